"""The regions: what the registers keep of them, and which may be used."""

from dataclasses import dataclass

from amaranth import Array, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from ...stream import DelayMemory
from ..layouts import format_number_bits, region_layout
from ..parameters import MemoryParameters
from .fields import bits_of, packed, registers_of
from .regions import RegionMap, stored_pages

__all__ = ["PATHS", "RegionTable"]

# Whoever looks regions up, each with a memory of their origins.
PATHS = ("writes", "reads")
_REGISTERS = registers_of("REGION")
_CONTROL = _REGISTERS.index("REGION_CONTROL")
_KEPT = ("base", "size", "stored")  # of the registers before that one


def _control(word: Value, field: str) -> Value:
    return word[bits_of("REGION_CONTROL", field)]


@dataclass(frozen=True)
class _Known:
    """What is known of all regions at once, a bit for each but of ``formats`` and ``clashes``.

    Attributes:
        enabled: it answers for its addresses.
        locked: nothing of it can be changed any more.
        merges: evicted blocks are merged.
        fits: its stored bytes lie within the address space.
        formats: their numbers.
        clashes: two of them share stored bytes, if both are enabled.
    """

    enabled: Signal
    locked: Signal
    merges: Signal
    fits: Signal
    formats: list[Signal]
    clashes: dict[tuple[int, int], Signal]

    @classmethod
    def of(cls, parameters: MemoryParameters) -> "_Known":
        count, bits = parameters.regions, format_number_bits(parameters)
        flags = (Signal(count, name=name) for name in ("enabled", "locked", "merges", "fits"))
        formats = [Signal(bits, name=f"format{i}") for i in range(count)]
        clashes = {(i, j): Signal(name=f"clash{i}_{j}") for j in range(count) for i in range(j)}
        return cls(*flags, formats, clashes)

    def usable(self, i: int) -> Value:
        others = [both & self.enabled[sum(pair) - i] for pair, both in self.clashes.items() if i in pair]
        return self.enabled[i] & self.fits[i] & ~Cat(others).any()


@dataclass(frozen=True)
class _Search:
    """A region that is looked up, in one cycle, and in the next what the memory has of it.

    Attributes:
        shows: the paths see of it what was found, from the next cycle on.
    """

    looks_up: Signal
    number: Signal
    found: data.View
    shows: Signal


class RegionTable(wiring.Component):
    """Keeps the regions in a memory, of which one is read in a cycle: for a write of a register, else for a
    read.

    A write is done in the cycle in which it comes. One that enables a region is done R + 1 cycles later, for
    it is compared with each of R regions, and until then none is read; one that disables it when that is
    drained.

    Members:
        clears, cleared: clear this region's words, as has to be done for all after a reset.
        begins, number, field, word: the register ``field`` of a region is to be written.
        done, accepted: it is, or it cannot be, in this cycle.
        asks, read_number, read_field: such a register is to be read.
        is_read, value: this is the word, of what was asked for in the cycle before.
        drain, region: a region is to be drained; drained: it is.
        writes, reads: the regions, for either path of bursts.
    """

    def __init__(self, parameters: MemoryParameters):
        self._parameters = parameters
        number, field = range(parameters.regions), range(len(_REGISTERS))
        super().__init__(
            {
                "clears": In(1),
                "cleared": In(number),
                "begins": In(1),
                "number": In(number),
                "field": In(field),
                "word": In(32),
                "done": Out(1),
                "accepted": Out(1),
                "asks": In(1),
                "read_number": In(number),
                "read_field": In(field),
                "is_read": Out(1),
                "value": Out(32),
                "drain": Out(1),
                "region": Out(number),
                "drained": In(1),
                **{path: Out(RegionMap(parameters)) for path in PATHS},
            }
        )

    def elaborate(self, platform):
        m = Module()
        parameters, count = self._parameters, self._parameters.regions
        pages = parameters.page_bits
        m.submodules.content = content = memory.Memory(
            shape=data.ArrayLayout(pages, len(_KEPT)), depth=max(count, 2), init=[]
        )
        write, read = content.write_port(granularity=1), content.read_port()
        kept = data.StructLayout(dict.fromkeys(_KEPT, pages))
        known = _Known.of(parameters)
        search = _Search(
            looks_up=Signal(name="looks_up"),
            number=Signal(range(count), name="looked_up"),
            found=Signal(kept, name="found"),
            shows=Signal(name="shows"),
        )
        m.d.comb += Value.cast(search.found).eq(Value.cast(read.data))
        self._write(m, known, search, write)
        self._show(m, known, search)
        with m.If(self.clears):
            m.d.comb += [write.addr.eq(self.cleared), Value.cast(write.data).eq(0), write.en.eq(~0)]

        # No place is read in the cycle in which it is written.
        reads = self.asks & ~self.is_read & ~search.looks_up & ~write.en.any()
        m.d.comb += [
            read.en.eq(search.looks_up | reads),
            read.addr.eq(Mux(search.looks_up, search.number, self.read_number)),
        ]
        m.d.sync += self.is_read.eq(reads)
        flags = {"ENABLE": known.enabled, "LOCK": known.locked, "MERGE": known.merges}
        control = {name: flag.bit_select(self.read_number, 1) for name, flag in flags.items()}
        control["USABLE"] = Array(known.usable(i) for i in range(count))[self.read_number]
        control["FORMAT"] = Array(known.formats)[self.read_number]
        values = (*(search.found[name] for name in _KEPT), packed("REGION_CONTROL", control))
        with m.Switch(self.read_field):
            for i, value in enumerate(values):
                with m.Case(i):
                    m.d.comb += self.value.eq(value)
        return m

    def _write(self, m: Module, known: _Known, search: _Search, write) -> None:
        """Write a register of a region, by the memory's port ``write``."""
        parameters, number, word = self._parameters, self.number, self.word
        enables, number_of_format = _control(word, "ENABLE"), _control(word, "FORMAT")
        merge = _control(word, "MERGE") & parameters.merging
        is_enabled, is_same, can_be = Signal(), Signal(), Signal()
        m.d.comb += [
            self.region.eq(number),
            write.addr.eq(number),
            *(kept.eq(word) for kept in write.data),
            is_enabled.eq(known.enabled.bit_select(number, 1)),
            is_same.eq(
                (Array(known.formats)[number] == number_of_format)
                & (known.merges.bit_select(number, 1) == merge)
            ),
            can_be.eq(
                (number_of_format <= len(parameters.formats))
                & (_control(word, "MERGE") == merge)
                & (~is_enabled | ~enables | is_same)
            ),
        ]
        takes, commits = Signal(), Signal()  # what CONTROL says
        with m.If(takes):
            m.d.sync += [
                Array(known.formats)[number].eq(number_of_format),
                known.merges.bit_select(number, 1).eq(merge),
            ]
        with m.If(commits):
            m.d.comb += [self.done.eq(1), self.accepted.eq(1)]
            m.d.sync += [
                known.enabled.bit_select(number, 1).eq(enables),
                known.locked.bit_select(number, 1).eq(_control(word, "LOCK")),
            ]

        compares = Signal()
        is_empty, is_last = self._compare(m, known, search, compares, number_of_format)
        with m.If(self.begins):
            with m.If(known.locked.bit_select(number, 1)):
                m.d.comb += self.done.eq(1)
            with m.Elif(self.field != _CONTROL):
                m.d.comb += [
                    self.done.eq(1),
                    self.accepted.eq(~is_enabled & ~word[parameters.page_bits :].any()),
                    *(write.en[i].eq(self.accepted & (self.field == i)) for i in range(_CONTROL)),
                ]
            with m.Elif(~can_be):
                m.d.comb += self.done.eq(1)
            with m.Elif(enables & ~is_enabled):
                m.d.comb += [
                    *(compares.eq(1), self.done.eq(is_empty | is_last)),
                    *(takes.eq(search.shows), commits.eq(is_last)),
                ]
            with m.Elif(is_enabled & ~enables):
                # What is under way in the region still has the format that it had.
                m.d.comb += [self.drain.eq(1), takes.eq(self.drained), commits.eq(self.drained)]
            with m.Else():
                m.d.comb += [takes.eq(1), commits.eq(1)]

    def _compare(
        self, m: Module, known: _Known, search: _Search, compares: Value, number_of_format: Value
    ) -> tuple[Signal, Signal]:
        """Compare a region's stored bytes with each one's, before it is enabled; whether it has none, or all
        were compared.
        """
        parameters, count, number = self._parameters, self._parameters.regions, self.number
        one, page_bits = search.found, parameters.page_bits
        cycle, current, is_itself = Signal(range(count + 2)), Signal(range(count)), Signal()
        end, start, stop = (Signal(page_bits + 1, name=name) for name in ("stored_end", "start", "stop"))
        is_last, is_empty = Signal(), Signal()
        format_of = Mux(is_itself, number_of_format, Array(known.formats)[current])
        m.d.comb += [
            is_last.eq(cycle == count + 1),
            is_itself.eq(cycle == 1),
            is_empty.eq(is_itself & ~one.size.any()),
            search.looks_up.eq(compares & ~is_last & ~is_empty),
            search.number.eq(Mux(cycle == 0, number, cycle - 1)),
            search.shows.eq(is_itself & ~is_empty),
            current.eq(cycle - 2),
            end.eq(one.stored + stored_pages(parameters, one.size, format_of)),
        ]
        with m.If(compares):
            m.d.sync += cycle.eq(Mux(is_last | is_empty, 0, cycle + 1))
        with m.If(is_itself):
            m.d.sync += [start.eq(one.stored), stop.eq(end)]
            m.d.sync += known.fits.bit_select(number, 1).eq(~end[-1] | ~end[:-1].any())
        meets = (one.stored < stop) & (start < end)
        for (i, j), clash in known.clashes.items():
            is_pair = ((number == i) & (current == j)) | ((number == j) & (current == i))
            with m.If((cycle > 1) & is_pair):
                m.d.sync += clash.eq(meets)
        return is_empty, is_last

    def _show(self, m: Module, known: _Known, search: _Search) -> None:
        """What the paths see of the regions."""
        parameters, number, one = self._parameters, self.number, search.found
        regions = Signal(data.ArrayLayout(region_layout(parameters), parameters.regions))
        for i, region in enumerate(regions):
            bounds = Signal(data.StructLayout({name: region[name].shape() for name in ("base", "end")}))
            with m.If(search.shows & (number == i)):
                m.d.sync += [bounds.base.eq(one.base), bounds.end.eq(one.base + one.size)]
            m.d.comb += [
                *(region[name].eq(bounds[name]) for name in ("base", "end")),
                region.format.eq(known.formats[i]),
                region.merge.eq(known.merges[i]),
                region.enabled.eq(known.enabled[i]),
                region.usable.eq(known.usable(i)),
            ]
        for name in PATHS:
            path = getattr(self, name)
            origins = DelayMemory(len(Value.cast(path.origin)), max(parameters.regions, 2))
            m.submodules[f"origins_of_{name}"] = origins
            m.d.comb += [
                path.regions.eq(regions),
                origins.write.eq(search.shows),
                origins.write_address.eq(number),
                origins.write_data.eq(Cat(one.base, one.stored)),
                origins.read.eq(path.takes),
                origins.read_address.eq(path.number),
                Value.cast(path.origin).eq(origins.read_data),
            ]
