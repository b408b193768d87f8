"""The memory engine: an AXI4 subordinate towards the accelerator, a manager towards memory."""

from amaranth import ClockDomain, DomainRenamer, Module, Mux
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .interface.channels import (
    axi4_channels,
    axi4_lite_channels,
    connect_channels,
    ports_of,
    toward_subordinate,
)
from .parameters import MemoryParameters
from .read.path import ReadPath
from .registers.map import ERRORS, MAP_BITS
from .registers.registers import Registers
from .write.path import WritePath

__all__ = ["MemoryEngine"]


class MemoryEngine(wiring.Component):
    """Keeps the memory of an accelerator compressed: docs/memory.md.

    Args:
        parameters: see there.

    Members:
        aclk, aresetn: clock; synchronous reset, active low. While it is low nothing is offered or taken.
        s_axi_*: AXI4 of the accelerator.
        m_axi_*: AXI4 of the memory; all are INCR bursts of whole beats. What is read to be merged has the
            ID 1, all else 0.
        s_axil_*: AXI4-Lite of the registers.
        irq: see :class:`rtl.memory.registers.registers.Registers`.
    """

    def __init__(self, parameters: MemoryParameters):
        self.parameters = parameters
        self._port = axi4_channels(parameters.address_bits, parameters.bus_bytes, parameters.id_bits)
        self._below = axi4_channels(parameters.address_bits, parameters.memory_bytes, 1)
        self._lite = axi4_lite_channels(MAP_BITS)
        super().__init__(
            {
                "aclk": In(1),
                "aresetn": In(1),
                "irq": Out(1),
                **ports_of("s_axi", self._port, True),
                **ports_of("m_axi", self._below, False),
                **ports_of("s_axil", self._lite, True),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.domains.axi = axi = ClockDomain(local=True)
        m.submodules.core = core = DomainRenamer("axi")(_Core(self.parameters))
        m.d.comb += [axi.clk.eq(self.aclk), axi.rst.eq(~self.aresetn), self.irq.eq(core.irq)]
        for prefix, channels, subordinate in (
            ("s_axi", self._port, True),
            ("m_axi", self._below, False),
            ("s_axil", self._lite, True),
        ):
            streams = connect_channels(m, self, prefix, channels, subordinate, self.aresetn)
            for name, port in streams.items():
                inner = getattr(core, f"{prefix}_{name}")
                toward = toward_subordinate(name) == subordinate
                source, sink = (port, inner) if toward else (inner, port)
                m.d.comb += [
                    sink.payload.eq(source.payload),
                    sink.valid.eq(source.valid),
                    source.ready.eq(sink.ready),
                ]
        return m


class _Core(wiring.Component):
    """The engine with streams for channels."""

    def __init__(self, parameters: MemoryParameters):
        self._parameters = parameters
        write, read, registers = WritePath(parameters), ReadPath(parameters), Registers(parameters)
        self._parts = {"write": write, "read": read, "registers": registers}
        # Which part has which channel.
        self._channels = {
            **{f"s_axi_{name}": (write, name) for name in ("aw", "w", "b")},
            **{f"m_axi_{name}": (write, f"m{name}") for name in ("aw", "w", "b")},
            **{f"s_axi_{name}": (read, name) for name in ("ar", "r")},
            **{f"m_axi_{name}": (read, f"m{name}") for name in ("ar", "r")},
            **{f"s_axil_{name}": (registers, name) for name in ("aw", "w", "b", "ar", "r")},
        }
        members = {name: part.signature.members[channel] for name, (part, channel) in self._channels.items()}
        super().__init__({"irq": Out(1), **members})

    def elaborate(self, platform):
        m = Module()
        for name, part in self._parts.items():
            m.submodules[name] = part
        write, read, registers = self._parts.values()
        wiring.connect(m, read.hazards, write.hazards)
        wiring.connect(m, registers.writes, write.map)
        wiring.connect(m, registers.reads, read.map)
        if self._parameters.merging:
            wiring.connect(m, write.merge_ar, read.merge_ar)
            wiring.connect(m, read.merge_r, write.merge_r)
        for name, (part, channel) in self._channels.items():
            outer, inner = getattr(self, name), getattr(part, channel)
            into = self.signature.members[name].flow == In
            source, sink = (outer, inner) if into else (inner, outer)
            m.d.comb += [
                sink.payload.eq(source.payload),
                sink.valid.eq(source.valid),
                source.ready.eq(sink.ready),
            ]
        m.d.comb += [
            write.timeout.eq(registers.timeout),
            write.drain.eq(registers.drain),
            read.drain.eq(registers.drain),
            write.region.eq(registers.region),
            registers.drained.eq(write.drained & read.idle),
            self.irq.eq(registers.irq),
        ]

        sources = {
            "DECODE": (write.undecoded, read.undecoded),
            "REFUSED": (write.refused,),
            "EVICTED": (write.evicted,),
            "INVALID": (write.invalid, read.invalid),
            "READ": (write.unread, read.failed),
            "WRITE": (write.failed,),
        }
        for error, (name, _) in zip(registers.errors, ERRORS, strict=True):
            first, *others = sources[name]
            m.d.comb += error.eq(first)
            for other in others:
                with m.If(~first.valid):
                    m.d.comb += error.eq(other)
        errors = sum(error.valid for of_kind in sources.values() for error in of_kind)
        self._count(m, write, read, registers, errors)
        return m

    def _count(self, m, write, read, registers, errors) -> None:
        moves = {name: getattr(self, name).valid & getattr(self, name).ready for name in self._channels}
        stalls = {name: getattr(self, name).valid & ~getattr(self, name).ready for name in self._channels}
        is_busy = ~read.idle | ~write.idle
        counts = {
            "READ_BEATS": moves["s_axi_r"],
            "READ_BYTES": read.bytes & moves["s_axi_r"].replicate(len(read.bytes)),
            "WRITE_BEATS": moves["s_axi_w"],
            "WRITE_BYTES": _ones(self.s_axi_w.p.strb, moves["s_axi_w"]),
            "MEMORY_READ_BEATS": moves["m_axi_r"],
            "MEMORY_WRITE_BEATS": moves["m_axi_w"],
            "MEMORY_WRITE_BYTES": _ones(self.m_axi_w.p.strb, moves["m_axi_w"]),
            "BLOCKS_READ": read.block_read + write.block_merged,
            "BLOCKS_WRITTEN": write.block_written,
            "ERRORS_SEEN": errors,
            "BUSY": is_busy,
            "READ_STALLED": stalls["s_axi_r"],
            "WRITE_STALLED": stalls["s_axi_w"],
            "MEMORY_READ_STALLED": stalls["m_axi_ar"],
            "MEMORY_WRITE_STALLED": stalls["m_axi_w"],
        }
        for name, more in counts.items():
            m.d.comb += registers.counts[name].eq(more)


def _ones(strobes, moves):
    return Mux(moves, sum(strobes), 0)  # what moves is known late
