"""The engines behind AXI4-Stream (AMBA IHI 0051), the names and rules that other people's cores expect.

A tensor is a packet. What is added is combinational: TKEEP becomes a word's ``empty``, and back; TUSER is
what else a word carries, the number of a block or an error.
"""

from amaranth import Cat, ClockDomain, DomainRenamer, Module, Mux
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from golden import Format

from ..arith.trees import all_ones, leading_zeros
from ..stream import NUMBER_BITS
from .cores import COMPRESSORS, DECOMPRESSORS, Cores, core_of

__all__ = ["AxiStreamCompressor", "AxiStreamDecompressor"]


class _AxiStreamEngine(wiring.Component):
    _cores: Cores

    def __init__(self, fmt: Format, bus_bytes: int = 64):
        self._core = core_of(self._cores, fmt)(fmt, bus_bytes)
        self.engine = self._core.engine
        self._numbered = "first" in self._core.i.p.shape().members
        self._checked = "error" in self._core.o.p.shape().members
        members = {
            "aclk": In(1),
            "aresetn": In(1),
            "s_axis_tdata": In(8 * bus_bytes),
            "s_axis_tkeep": In(bus_bytes),
            "s_axis_tlast": In(1),
            "s_axis_tvalid": In(1),
            "s_axis_tready": Out(1),
            "m_axis_tdata": Out(8 * bus_bytes),
            "m_axis_tkeep": Out(bus_bytes),
            "m_axis_tlast": Out(1),
            "m_axis_tvalid": Out(1),
            "m_axis_tready": In(1),
        }
        if self._numbered:
            members["s_axis_tuser"] = In(NUMBER_BITS)
        if self._checked:
            members["m_axis_tuser"] = Out(1)
        super().__init__(members)

    def elaborate(self, platform):
        m = Module()
        size = self.engine.bus_bytes
        core = self._core
        m.domains.axis = axis = ClockDomain(local=True)
        m.submodules.core = DomainRenamer("axis")(core)
        mask = Cat(keep.replicate(8) for keep in self.s_axis_tkeep)
        m.d.comb += [
            axis.clk.eq(self.aclk),
            axis.rst.eq(~self.aresetn),
            core.i.p.data.eq(self.s_axis_tdata & mask),
            core.i.p.last.eq(self.s_axis_tlast),
            core.i.p.empty.eq(Mux(self.s_axis_tlast, leading_zeros(self.s_axis_tkeep), 0)),
            self.m_axis_tdata.eq(core.o.p.data),
            self.m_axis_tkeep.eq(all_ones(size) >> core.o.p.empty),
            self.m_axis_tlast.eq(core.o.p.last),
            core.i.valid.eq(self.s_axis_tvalid),
            core.o.ready.eq(self.m_axis_tready),
            # The engine sees a reset at the next clock edge, but TVALID must be low from its first moment.
            self.s_axis_tready.eq(core.i.ready & self.aresetn),
            self.m_axis_tvalid.eq(core.o.valid & self.aresetn),
        ]
        if self._numbered:
            m.d.comb += core.i.p.first.eq(self.s_axis_tuser)
        if self._checked:
            m.d.comb += self.m_axis_tuser.eq(core.o.p.error)
        return m


class AxiStreamCompressor(_AxiStreamEngine):
    """A format's compressor between two AXI4-Streams, with its throughput and latency.

    A packet of any number of bytes is a tensor; its last block is padded with zeros. It leaves as a packet of
    whole blocks, ``fmt.target`` bytes each, end to end. After reset it holds nothing.

    Args:
        fmt: a format with a fixed target.
        bus_bytes: bytes of a beat on either side: 16, 32, 64 or 128.

    Members:
        aclk, aresetn: clock; synchronous reset, active low. While it is low nothing is offered or taken.
        s_axis_*: ``tdata``, ``tkeep``, ``tlast``, ``tvalid``, ``tready``. A byte without its ``tkeep`` bit is
            taken as 0, whatever it holds. The packet ends behind the highest ``tkeep`` bit of its last beat,
            behind the first byte if none is set. ``tuser`` is there if the format counts blocks: in a
            packet's first beat the number of its first block, in others it means nothing.
        m_axis_*: the same. ``tkeep`` is all ones but in the last beat, and there contiguous from bit 0.

    Raises:
        ValueError: see :class:`rtl.stream.Engine`, or there is no engine for the format.
    """

    _cores = COMPRESSORS


class AxiStreamDecompressor(_AxiStreamEngine):
    """A format's decompressor between two AXI4-Streams, with its throughput and latency.

    A packet of blocks, as :class:`AxiStreamCompressor` sends it, leaves as one of whole blocks of values.

    Args:
        fmt: a format with a fixed target.
        bus_bytes: bytes of a beat on either side: 16, 32, 64 or 128.

    Members:
        aclk, aresetn, s_axis_*, m_axis_*: as :class:`AxiStreamCompressor` has them.
        m_axis_tuser: 1 in the beats of a block that could not be decoded and is zeros instead.

    Raises:
        ValueError: see :class:`rtl.stream.Engine`, or there is no engine for the format.
    """

    _cores = DECOMPRESSORS
