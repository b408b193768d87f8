"""The registers behind AXI4-Lite."""

from amaranth import Array, C, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from golden.bursts import Response

from ...stream import DelayMemory
from ..interface.channels import axi4_lite_channels
from ..layouts import error_layout
from ..parameters import MemoryParameters
from .fields import packed, registers_of
from .map import COUNTERS, ERRORS, IDENTITY, MAP_BITS, TIMEOUT_CYCLES, address_of
from .regions import RegionMap
from .table import PATHS, RegionTable

__all__ = ["Registers", "counts_layout"]

# Cycles that what is to be added to a counter waits at most: all have a turn in 50, if every third reads one.
_LONGEST_WAIT = 63


def counts_layout(parameters: MemoryParameters) -> data.StructLayout:
    """What is added to each counter in a cycle."""
    most = {
        "READ_BYTES": parameters.bus_bytes,
        "WRITE_BYTES": parameters.bus_bytes,
        "MEMORY_WRITE_BYTES": parameters.memory_bytes,
        "BLOCKS_READ": 2 if parameters.merging else 1,
        "ERRORS_SEEN": 2 * len(ERRORS),  # of a kind, a read and a write may have one in the same cycle
    }
    return data.StructLayout({name: range(most.get(name, 1) + 1) for name, _ in COUNTERS})


class Registers(wiring.Component):
    """The map of :mod:`rtl.memory.registers.map`.

    A read is answered in the second cycle after it was taken, and one of a counter or a region in the third.
    A write is answered in the second cycle after both address and data were; one that enables a region one
    cycle later and one more for each region there is, for its stored bytes are compared with one region's in
    a cycle; one that disables a region when that is drained. In the 17 cycles after a reset, while memories
    are cleared, nothing is written or answered. Whatever cannot be done is answered SLVERR and changes
    nothing: a register that is not there, one that cannot be written, or not now, a part of one, a value that
    this engine has not.

    Members:
        aw, w, b, ar, r: of AXI4-Lite.
        writes, reads: the regions, for either path; one is enabled once it is known which others share its
            stored bytes.
        timeout: see :class:`rtl.memory.write.gather.Gather`.
        drain, region: a region is to be drained; drained: it is.
        errors: of each kind.
        counts: what is added to each counter.
        irq: the interrupt: there was an error of a kind that raises it.
    """

    def __init__(self, parameters: MemoryParameters):
        self._parameters = parameters
        lite = axi4_lite_channels(MAP_BITS)
        super().__init__(
            {
                "aw": In(stream.Signature(lite["aw"])),
                "w": In(stream.Signature(lite["w"])),
                "b": Out(stream.Signature(lite["b"])),
                "ar": In(stream.Signature(lite["ar"])),
                "r": Out(stream.Signature(lite["r"])),
                **{path: Out(RegionMap(parameters)) for path in PATHS},
                "timeout": Out(32, init=TIMEOUT_CYCLES),
                "drain": Out(1),
                "region": Out(range(parameters.regions)),
                "drained": In(1),
                "errors": In(data.ArrayLayout(error_layout(parameters), len(ERRORS))),
                "counts": In(counts_layout(parameters)),
                "irq": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        parameters = self._parameters
        seen, raises = Signal(len(ERRORS)), Signal(len(ERRORS))
        places = [Signal(parameters.address_bits, name=f"place{i}") for i in range(len(ERRORS))]
        m.d.comb += self.irq.eq((seen & raises).any())

        # A write: address and data are taken, each by itself, once the one before is answered.
        taken, is_done, accepted = Signal(), Signal(), Signal()
        has_address, has_word = Signal(), Signal()
        address, word, is_whole = Signal(MAP_BITS), Signal(32), Signal()
        self._asked = Signal(MAP_BITS)  # the address of a read
        is_fresh = Signal(init=1)  # since a reset, until the memories are cleared
        m.d.comb += [
            self.aw.ready.eq(~has_address & ~self.b.valid & ~is_fresh),
            self.w.ready.eq(~has_word & ~self.b.valid & ~is_fresh),
            taken.eq(has_address & has_word),
            is_done.eq(taken),
        ]
        with m.If(self.aw.valid & self.aw.ready):
            m.d.sync += [has_address.eq(1), address.eq(self.aw.p.addr)]
        with m.If(self.w.valid & self.w.ready):
            m.d.sync += [has_word.eq(1), word.eq(self.w.p.data), is_whole.eq(self.w.p.strb.all())]
        with m.If(taken & is_done):
            m.d.sync += [
                has_address.eq(0),
                has_word.eq(0),
                self.b.valid.eq(1),
                self.b.p.resp.eq(Mux(accepted, Response.OKAY, Response.SLVERR)),
            ]
        with m.If(self.b.valid & self.b.ready):
            m.d.sync += self.b.valid.eq(0)

        clears = Signal(len(ERRORS))
        with m.If(taken & is_whole), m.Switch(address):
            with m.Case(address_of("TIMEOUT")):
                m.d.comb += accepted.eq(1)
                m.d.sync += self.timeout.eq(word)
            with m.Case(address_of("ERRORS")):
                m.d.comb += [accepted.eq(1), clears.eq(word)]
            with m.Case(address_of("INTERRUPTS")):
                m.d.comb += accepted.eq(1)
                m.d.sync += raises.eq(word)
        for i, error in enumerate(self.errors):
            with m.If(error.valid):
                m.d.sync += seen[i].eq(1)
                with m.If(~seen[i] | clears[i]):
                    m.d.sync += places[i].eq(error.address)
            with m.Elif(clears[i]):
                m.d.sync += seen[i].eq(0)
        table, is_region = self._regions(m, taken & is_whole, address, word, accepted, is_done)

        # A read: its address is taken once the one before is answered.
        reads, asked = Signal(), self._asked
        m.d.comb += self.ar.ready.eq(~reads & ~self.r.valid)
        with m.If(self.ar.valid & self.ar.ready):
            m.d.sync += [reads.eq(1), asked.eq(self.ar.p.addr)]
        takes = Signal()
        count, waits = self._count(m, reads, is_fresh, table)
        place = Signal(parameters.address_bits)
        m.d.comb += [
            place.eq(Array(places)[asked[3:6]]),
            takes.eq(reads & ~waits & (~is_region | table.is_read)),
            table.asks.eq(is_region & reads),
        ]
        values = {
            address_of("IDENTITY"): C(IDENTITY, 32),
            address_of("PARAMETERS"): self._described(),
            address_of("TIMEOUT"): self.timeout,
            address_of("ERRORS"): seen,
            address_of("INTERRUPTS"): raises,
            _all_of("ERROR_ADDRESS_LOW", len(ERRORS)): place[:32],
            _all_of("ERROR_ADDRESS_HIGH", len(ERRORS)): place[32:],
            tuple(address_of(name) for name, _ in COUNTERS): count,
            _of_regions(parameters.regions): table.value,
        }
        with m.If(self.r.ready):
            m.d.sync += self.r.valid.eq(0)
        with m.If(takes):
            m.d.sync += [
                reads.eq(0),
                self.r.valid.eq(1),
                self.r.p.resp.eq(Response.SLVERR),
                self.r.p.data.eq(0),
            ]
            with m.Switch(asked):
                for at, value in values.items():
                    with m.Case(*(at if isinstance(at, tuple) else (at,))):
                        m.d.sync += [self.r.p.data.eq(value), self.r.p.resp.eq(Response.OKAY)]
        return m

    def _regions(self, m: Module, writes, address, word, accepted, is_done) -> tuple[RegionTable, Value]:
        """Write regions; their table, and whether a read is about one."""
        m.submodules.table = table = RegionTable(self._parameters)
        for path in PATHS:
            wiring.connect(m, getattr(table, path), wiring.flipped(getattr(self, path)))
        registers = _of_regions(self._parameters.regions)
        is_region = Signal()
        m.d.comb += [
            table.number.eq(address[4:]),
            table.field.eq(address[2:]),
            table.word.eq(word),
            table.read_number.eq(self._asked[4:]),
            table.read_field.eq(self._asked[2:]),
            self.drain.eq(table.drain),
            self.region.eq(table.region),
            table.drained.eq(self.drained),
        ]
        with m.Switch(self._asked), m.Case(*registers):
            m.d.comb += is_region.eq(1)
        with m.If(writes), m.Switch(address), m.Case(*registers):
            m.d.comb += [table.begins.eq(1), is_done.eq(table.done), accepted.eq(table.accepted)]
        return table, is_region

    def _count(self, m: Module, may_ask: Value, is_fresh: Signal, table: RegionTable) -> tuple[Value, Value]:
        """The counter that a read is about, and whether the read must wait for it: a cycle, and after a reset
        until all are cleared.

        They are in a memory, of which one is read in a cycle and written in the next. What is to be added to
        one waits until it is its turn, in one of two cycles at least, or until it is read. The regions are
        cleared in the same cycles as they are.
        """
        m.submodules.counters = counters = DelayMemory(32, 16)
        turn, index, chosen = (Signal(4, name=name) for name in ("turn", "index", "chosen"))
        clears = Signal()
        writes, asked, is_old = Signal(), Signal(), Signal()
        first = address_of(COUNTERS[0][0])  # a multiple of 64
        is_about_one = self._asked[6:] == first >> 6
        asks = may_ask & is_about_one & ~is_fresh & ~asked
        waiting = []
        for i, (name, _) in enumerate(COUNTERS):
            more = self.counts[name]
            waits = Signal(range(_LONGEST_WAIT * ((1 << len(more)) - 1) + 1), name=f"waiting{i}")
            m.d.sync += waits.eq(Mux(writes & (chosen == i), 0, waits) + more)
            waiting.append(waits)
        total = Signal(32)
        m.d.comb += [table.clears.eq(is_fresh & (turn < self._parameters.regions)), table.cleared.eq(turn)]
        m.d.comb += [
            index.eq(Mux(asks, self._asked[2:], turn)),
            is_old.eq(writes & (index == chosen)),  # for it is written in this cycle
            total.eq(Mux(clears, 0, counters.read_data) + Array(waiting)[chosen]),
            counters.read.eq(1),
            counters.read_address.eq(index),
            counters.write.eq(writes),
            counters.write_address.eq(chosen),
            counters.write_data.eq(total),
        ]
        m.d.sync += [chosen.eq(index), writes.eq(~is_old), asked.eq(asks & ~is_old), clears.eq(is_fresh)]
        with m.If(~asks & ~is_old):
            m.d.sync += turn.eq(turn + 1)
            with m.If(turn == 15):
                m.d.sync += is_fresh.eq(0)
        return total, is_fresh | (is_about_one & ~asked)

    def _described(self) -> Value:
        parameters = self._parameters
        sizes = {
            "FORMATS": len(parameters.formats),
            "REGIONS": parameters.regions,
            "BUFFERS": parameters.buffers,
            "BUS": parameters.word_bits,
            "MEMORY": parameters.beat_bits,
        }
        return packed("PARAMETERS", {name: C(size, 8) for name, size in sizes.items()})


def _of_regions(count: int) -> tuple[int, ...]:
    """Where the registers of regions are."""
    return tuple(address for name in registers_of("REGION") for address in _all_of(name, count))


def _all_of(name: str, count: int) -> tuple[int, ...]:
    """Where the registers of a group are."""
    return tuple(address_of(name, i) for i in range(count))
