"""The registers behind AXI4-Lite."""

from amaranth import Array, C, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from golden.bursts import Response

from ...stream import DelayMemory
from ..interface.channels import axi4_lite_channels
from ..layouts import error_layout, region_layout
from ..parameters import MemoryParameters
from .map import COUNTERS, ERRORS, IDENTITY, MAP_BITS, TIMEOUT_CYCLES, address_of
from .regions import stored_pages

__all__ = ["Registers", "counts_layout"]

# Cycles that what is to be added to a counter waits at most: all have a turn in 50, if every third reads one.
_LONGEST_WAIT = 64


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

    A read is answered in the cycle after it was taken, and one of a counter is taken a cycle later than
    others. A write is answered in the second cycle after both address and data were; one that enables a
    region one cycle later and one more for each region there is, for its stored bytes are compared with one
    region's in a cycle; one that disables a region when that is drained. Whatever cannot be done is answered
    SLVERR and changes nothing: a register that is not there, one that cannot be written, or not now, a part
    of one, a value that this engine has not.

    Members:
        aw, w, b, ar, r: of AXI4-Lite.
        regions: all of them; one is enabled once it is known which others share its stored bytes.
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
                "regions": Out(data.ArrayLayout(region_layout(parameters), parameters.regions)),
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

        # A write: address and data are taken together once the one before is answered.
        taken, is_done, accepted = Signal(), Signal(), Signal()
        address, word, is_whole = Signal(MAP_BITS), Signal(32), Signal()
        both = self.aw.valid & self.w.valid & ~taken & ~self.b.valid
        m.d.comb += [self.aw.ready.eq(both), self.w.ready.eq(both), is_done.eq(taken)]
        with m.If(both):
            m.d.sync += [
                taken.eq(1),
                address.eq(self.aw.p.addr),
                word.eq(self.w.p.data),
                is_whole.eq(self.w.p.strb.all()),
            ]
        with m.If(taken & is_done):
            m.d.sync += [
                taken.eq(0),
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
        region, is_searching = self._regions(m, taken & is_whole, address, word, accepted, is_done)

        # A read, in no more than every other cycle.
        takes = self.ar.valid & self.ar.ready
        count, waits = self._count(m, self.ar.valid & ~self.r.valid & ~is_searching)
        place = Signal(parameters.address_bits)
        m.d.comb += [
            place.eq(Array(places)[self.ar.p.addr[3:6]]),
            self.ar.ready.eq(~self.r.valid & ~is_searching & ~waits),
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
            **{_all_of(name, parameters.regions): value for name, value in region.items()},
        }
        with m.If(self.r.ready):
            m.d.sync += self.r.valid.eq(0)
        with m.If(takes):
            m.d.sync += [self.r.valid.eq(1), self.r.p.resp.eq(Response.SLVERR), self.r.p.data.eq(0)]
            with m.Switch(self.ar.p.addr):
                for at, value in values.items():
                    with m.Case(*(at if isinstance(at, tuple) else (at,))):
                        m.d.sync += [self.r.p.data.eq(value), self.r.p.resp.eq(Response.OKAY)]
        return m

    def _regions(self, m: Module, writes, address, word, accepted, is_done) -> tuple[dict[str, Value], Value]:
        """Write regions; the registers of the one that a read is about, and whether none can be read.

        A region that is to be enabled is compared with all of them, one a cycle, before it is.
        """
        parameters = self._parameters
        count = parameters.regions
        kept = data.StructLayout(
            {
                name: place.width
                for name, place in region_layout(parameters)
                if name not in ("enabled", "usable")
            }
        )
        regions = [Signal(kept, name=f"region{i}") for i in range(count)]
        enabled, locked, fits = Signal(count), Signal(count), Signal(count)
        clashes = {(i, j): Signal(name=f"clash{i}_{j}") for j in range(count) for i in range(j)}
        for i, region in enumerate(regions):
            clash = [meets & enabled[sum(pair) - i] for pair, meets in clashes.items() if i in pair]
            m.d.comb += [
                *(self.regions[i][name].eq(region[name]) for name, _ in kept),
                self.regions[i].enabled.eq(enabled[i]),
                self.regions[i].usable.eq(enabled[i] & fits[i] & ~Cat(clash).any()),
            ]

        # The one that is written.
        number, is_enabled, is_locked = Signal(range(count)), Signal(), Signal()
        is_control, enables, is_empty = Signal(), Signal(), Signal()
        phase = Signal(range(count + 2))
        current, wanted = Array(regions)[number], Signal.like(Cat(regions[0].format, regions[0].merge))
        merges = word[3] if parameters.merging else C(0, 1)
        can_be = (word[8:12] <= len(parameters.formats)) & (word[3] == merges)
        stays = is_enabled & word[0]
        m.d.comb += [
            number.eq(address[4:]),
            self.region.eq(number),
            is_enabled.eq(enabled.bit_select(number, 1)),
            is_locked.eq(locked.bit_select(number, 1)),
            enables.eq(is_control & ~is_enabled & word[0]),
            wanted.eq(Cat(word[8 : 8 + len(regions[0].format)], merges)),
        ]
        with m.If(writes & ~is_locked), m.Switch(address):
            for name in ("base", "size", "stored"):
                with (
                    m.Case(*_all_of(f"REGION_{name.upper()}", count)),
                    m.If(~is_enabled & ~word[parameters.page_bits :].any()),
                ):
                    m.d.comb += accepted.eq(1)
                    for i, region in enumerate(regions):
                        with m.If(number == i):
                            m.d.sync += region[name].eq(word)
            is_same = Cat(current.format, current.merge) == wanted
            with m.Case(*_all_of("REGION_CONTROL", count)), m.If(can_be & (~stays | is_same)):
                m.d.comb += [accepted.eq(~is_empty), is_control.eq(1)]
                with m.If(enables):
                    m.d.comb += is_done.eq((phase == count + 1) | is_empty)
                with m.Elif(is_enabled & ~word[0]):
                    m.d.comb += [self.drain.eq(1), is_done.eq(self.drained)]
        for i, region in enumerate(regions):
            with m.If(is_control & accepted & (number == i)):
                # The search needs them; what is under way in an enabled region still has those before.
                with m.If(~is_enabled | is_done):
                    m.d.sync += Cat(region.format, region.merge).eq(wanted)
                with m.If(is_done):
                    m.d.sync += [enabled[i].eq(word[0]), locked[i].eq(word[1])]

        # The one that is looked at: by a read; or by the search, first the written one and then each.
        picked, one = Signal(range(count)), Signal(region_layout(parameters))
        m.d.comb += [picked.eq(self.ar.p.addr[4:]), one.eq(self.regions[picked])]
        end, start, stop = (Signal(parameters.page_bits + 1, name=name) for name in ("end", "start", "stop"))
        m.d.comb += end.eq(one.stored + stored_pages(parameters, one.size, one.format))
        with m.If(enables):
            m.d.sync += phase.eq(Mux(is_done, 0, phase + 1))
            m.d.comb += [
                picked.eq(Mux(phase < 2, number, phase - 2)),
                is_empty.eq((phase == 0) & ~one.size.any()),
            ]
        with m.If(phase == 1):
            m.d.sync += [start.eq(one.stored), stop.eq(end)]
            m.d.sync += fits.bit_select(number, 1).eq(~end[-1] | ~end[:-1].any())
        meets = (one.stored < stop) & (start < end)
        for (i, j), clash in clashes.items():
            is_pair = ((number == i) & (picked == j)) | ((number == j) & (picked == i))
            with m.If((phase > 1) & is_pair):
                m.d.sync += clash.eq(meets)
        control = Cat(one.enabled, locked.bit_select(picked, 1), one.usable, one.merge, C(0, 4), one.format)
        registers = {"BASE": one.base, "SIZE": one.size, "STORED": one.stored, "CONTROL": control}
        return {f"REGION_{name}": value for name, value in registers.items()}, enables

    def _count(self, m: Module, may_ask: Value) -> tuple[Value, Value]:
        """The counter that a read is about, and whether the read must wait for it: a cycle, and after a reset
        until all are cleared.

        They are in a memory, of which one is read in a cycle and written in the next. What is to be added to
        one waits until it is its turn, in one of two cycles at least, or until it is read.
        """
        m.submodules.counters = counters = DelayMemory(32, 16)
        turn, index, chosen = (Signal(4, name=name) for name in ("turn", "index", "chosen"))
        is_fresh, clears = Signal(init=1), Signal()
        writes, asked, is_old = Signal(), Signal(), Signal()
        first = address_of(COUNTERS[0][0])  # a multiple of 64
        is_about_one = self.ar.p.addr[6:] == first >> 6
        asks = may_ask & is_about_one & ~is_fresh & ~asked
        waiting = []
        for i, (name, _) in enumerate(COUNTERS):
            more = self.counts[name]
            waits = Signal(range(_LONGEST_WAIT * ((1 << len(more)) - 1) + 1), name=f"waiting{i}")
            m.d.sync += waits.eq(Mux(writes & (chosen == i), 0, waits) + more)
            waiting.append(waits)
        total = Signal(32)
        m.d.comb += [
            index.eq(Mux(asks, self.ar.p.addr[2:], turn)),
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
        return Cat(
            C(len(parameters.formats), 8),
            C(parameters.regions, 8),
            C(parameters.buffers, 8),
            C(parameters.word_bits, 4),
            C(parameters.beat_bits, 4),
        )


def _all_of(name: str, count: int) -> tuple[int, ...]:
    """Where the registers of a group are."""
    return tuple(address_of(name, i) for i in range(count))
