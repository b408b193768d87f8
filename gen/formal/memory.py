"""The memory engine's paths keep the rules of AXI4, and its map puts no two blocks in one place."""

from __future__ import annotations

from amaranth import C, Cat, Module, Mux, ResetSignal, Signal, Value
from amaranth.hdl import Assert, Cover
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In

from golden.bursts import PAGE, Response
from rtl.memory import MemoryParameters
from rtl.memory.layouts import format_number_bits
from rtl.memory.parameters import PAGE_BITS
from rtl.memory.read.path import ReadPath
from rtl.memory.registers.regions import Lookup, Mapper, stored_pages
from rtl.memory.write.path import WritePath

from .contract import drive, kept
from .paths import (
    Rules,
    allowed,
    drive_writes,
    in_a_page,
    one_region,
    only_if,
    stays,
    unanswered_beats,
    unanswered_bursts,
    without_codecs,
)

__all__ = ["MapInside", "ReadRules", "ReadsApart", "WriteOrder", "WriteRules"]


class ReadRules(Rules):
    """Proves that streams keep the contract, that bursts of memory stay in their page, and that each burst is
    answered with its ID, in its turn, in as many beats as it has, the last with LAST.

    Writes are what the solver makes of them: it decides whether a read must wait for one.
    """

    def __init__(self, parameters: MemoryParameters):
        super().__init__(ReadPath(parameters), parameters)

    def elaborate(self, platform):
        m = Module()
        parameters, path = self._parameters, self._path
        m.submodules.path = without_codecs(path, platform)
        one_region(m, parameters, path.map, self.stored)
        drive(m, path.ar, allowed(m, self.ar, parameters.word_bits))
        for name in ("mar", "r"):
            wiring.connect(m, getattr(path, name), wiring.flipped(getattr(self, name)))
        m.d.comb += [path.hazards.has_block.eq(self.chance), path.hazards.has_beat.eq(self.drain)]

        drive(m, path.mr, only_if(m, self.mr, unanswered_beats(m, path) != 0))

        which = stays(m, self.which)
        bursts, ended, beats = Signal(3), Signal(3), Signal(9)
        length, identity, seen = Signal(8), Signal(parameters.id_bits), Signal()
        takes, gives = path.ar.valid & path.ar.ready, path.r.valid & path.r.ready
        with m.If(takes & ~bursts[2]):
            m.d.sync += bursts.eq(bursts + 1)
            with m.If(bursts == which):
                m.d.sync += [seen.eq(1), length.eq(path.ar.p.len), identity.eq(path.ar.p.id)]
        is_it = path.r.valid & (ended == which) & ~ended[2]
        with m.If(gives & ~ended[2]):
            m.d.sync += [beats.eq(Mux(path.r.p.last, 0, beats + 1)), ended.eq(ended + path.r.p.last)]
        m.d.comb += [
            *(Assert(kept(m, getattr(path, name)), f"{name} keeps the contract") for name in ("r", "mar")),
            Assert(in_a_page(parameters, path.mar), "mar stays in its page"),
            Assert(~is_it | ResetSignal() | seen, "only what was asked for is answered"),
            Assert(~is_it | ~seen | (path.r.p.id == identity), "in its turn"),
            Assert(~is_it | ~seen | (path.r.p.last == (beats == length)), "as many beats as were asked for"),
            Cover(is_it & path.r.p.last & (length == 2) & (path.r.p.resp == 0), "a burst is answered"),
        ]
        return m


class _Writes(Rules):
    """The path of writes between neighbours that keep the rules of AXI4; nothing times out."""

    def __init__(self, parameters: MemoryParameters):
        super().__init__(WritePath(parameters), parameters)

    def _add_path(self, m: Module, platform) -> None:
        path = self._path
        m.submodules.path = without_codecs(path, platform)
        one_region(m, self._parameters, path.map, self.stored)
        for name in ("b", "maw", "mw"):
            wiring.connect(m, getattr(path, name), wiring.flipped(getattr(self, name)))
        m.d.comb += path.timeout.eq(100)

    def _drive(self, m: Module, aw) -> Signal:
        """Give it bursts of these addresses; returns how many have all their data and no answer."""
        path = self._path
        _, done = drive_writes(m, path, aw, self.w, self._parameters.word_bits)
        drive(m, path.mb, only_if(m, self.mb, unanswered_bursts(m, path)[0] != 0))
        return done


class WriteRules(_Writes):
    """Proves that streams keep the contract, that bursts of memory stay in their page and have as many beats
    of W, the last with LAST, as their addresses say, and that nothing is answered before its data was taken.

    Reads are what the solver makes of them: which blocks they ask for, and which of them are to be evicted.
    """

    def elaborate(self, platform):
        m = Module()
        parameters, path = self._parameters, self._path
        self._add_path(m, platform)
        m.d.comb += path.hazards.evicts.eq(self.chance)
        done = self._drive(m, self.aw)
        addresses = path.maw.valid & path.maw.ready

        which = stays(m, self.which)
        out_bursts, out_ended, out_beats = Signal(3), Signal(3), Signal(9)
        out_length, has_length = Signal(8), Signal()
        with m.If(addresses & ~out_bursts[2]):
            m.d.sync += out_bursts.eq(out_bursts + 1)
            with m.If(out_bursts == which):
                m.d.sync += [has_length.eq(1), out_length.eq(path.maw.p.len)]
        data_length, has_data = Signal(9), Signal()
        with m.If(path.mw.valid & path.mw.ready & ~out_ended[2]):
            m.d.sync += [
                out_beats.eq(Mux(path.mw.p.last, 0, out_beats + 1)),
                out_ended.eq(out_ended + path.mw.p.last),
            ]
            with m.If((out_ended == which) & path.mw.p.last):
                m.d.sync += [has_data.eq(1), data_length.eq(out_beats)]
        outputs = ("b", "maw", "mw")
        m.d.comb += [
            *(Assert(kept(m, getattr(path, name)), f"{name} keeps the contract") for name in outputs),
            Assert(in_a_page(parameters, path.maw), "maw stays in its page"),
            Assert(~(has_data & has_length) | (data_length == out_length), "W is as long as AW says"),
            Assert(~path.b.valid | ResetSignal() | (done != 0), "no answer before the data"),
            Cover(has_data & has_length & (data_length == 1), "a burst of two beats"),
            Cover(path.b.valid & path.b.ready & (path.b.p.resp == 0), "a burst is answered"),
        ]
        return m


class WriteOrder(_Writes):
    """Proves that bursts of the same ID are answered in their order, each once, after its own last beat: of
    those of any one ID, the answer of each is DECERR if there is no region at its address, and no other is.

    Memory answers OKAY.

    Args:
        any_id: claim it of bursts of all IDs together, so that the proof must fail.
    """

    def __init__(self, parameters: MemoryParameters, any_id: bool = False):
        super().__init__(parameters)
        self._any_id = any_id

    def elaborate(self, platform):
        m = Module()
        path = self._path
        self._add_path(m, platform)
        self._drive(m, self.aw)
        m.d.comb += path.mb.p.resp.eq(Response.OKAY)

        which, mine = stays(m, self.which), stays(m, self.chance)
        takes, gives = path.aw.valid & path.aw.ready, path.b.valid & path.b.ready
        bursts, ended = Signal(3), Signal(3)  # of this ID
        addresses, data = Signal(4), Signal(4)  # of all
        number, hits, seen = Signal(4), Signal(), Signal()
        inside = path.aw.p.addr[PAGE_BITS:] < path.map.regions[0].end
        with m.If(takes & ~addresses[-1]):
            m.d.sync += addresses.eq(addresses + 1)
        with m.If(takes & (C(self._any_id, 1) | (path.aw.p.id == mine)) & ~bursts[-1]):
            m.d.sync += bursts.eq(bursts + 1)
            with m.If(bursts == which):
                m.d.sync += [seen.eq(1), number.eq(addresses), hits.eq(inside)]
        with m.If(path.w.valid & path.w.ready & path.w.p.last & ~data[-1]):
            m.d.sync += data.eq(data + 1)
        is_mine = path.b.valid & (C(self._any_id, 1) | (path.b.p.id == mine))
        with m.If(is_mine & gives & ~ended[-1]):
            m.d.sync += ended.eq(ended + 1)
        is_it = is_mine & (ended == which) & ~ResetSignal()
        m.d.comb += [
            Assert(~is_it | seen, "only what was asked for is answered"),
            Assert(~is_it | number[-1] | (data > number), "after its own data"),
            Assert(~is_it | ((path.b.p.resp == Response.DECERR) == ~hits), "in its turn"),
            Cover(is_it & (which == 1) & hits & (number == 2), "another ID came between"),
        ]
        return m


class ReadsApart(_Writes):
    """Proves that reads wait for no writes of other pages: while there are some of even pages alone, nothing
    that they do keeps a read of an odd page, be it of blocks or of beats of memory.

    Args:
        any_page: let writes be of all pages, so that the proof must fail.
    """

    def __init__(self, parameters: MemoryParameters, any_page: bool = False):
        super().__init__(parameters)
        self._any_page = any_page

    def elaborate(self, platform):
        m = Module()
        parameters, path = self._parameters, self._path
        self._add_path(m, platform)
        m.d.comb += path.hazards.evicts.eq(self.chance)
        written = self.aw.signature.create()
        wiring.connect(m, wiring.flipped(self.aw), written)
        if not self._any_page:
            m.d.comb += written.p.addr[PAGE_BITS].eq(0)
        self._drive(m, written)

        page = Cat(C(1, 1), self.which)
        blocks, beats = path.hazards.blocks, path.hazards.beats
        m.d.comb += [blocks.page.eq(page), blocks.first.eq(0), blocks.last.eq(~0)]
        m.d.comb += [path.hazards.blocks_anew.eq(1), path.hazards.beats_anew.eq(1)]  # whatever is here counts
        # What a page takes in memory is whole beats, in one of memory's pages or in two.
        takes = parameters.page_stored(-1) if parameters.formats else PAGE
        takes //= parameters.memory_bytes
        beat_bits = PAGE_BITS - parameters.beat_bits
        stored = path.map.origin.stored
        start = (stored << beat_bits) + page * takes
        stop = start + takes - 1
        is_second = self.drain & (start[beat_bits:] != stop[beat_bits:])
        is_last = is_second | (start[beat_bits:] == stop[beat_bits:])
        m.d.comb += [
            beats.page.eq(start[beat_bits:] + is_second),
            beats.first.eq(Mux(is_second, 0, start[:beat_bits])),
            beats.last.eq(Mux(is_last, stop[:beat_bits], ~0)),
        ]
        fits = stored + path.map.regions[0].end < 1 << parameters.page_bits
        m.d.comb += [
            Assert(~fits | ~path.hazards.has_block, "no block"),
            Assert(~fits | ~path.hazards.has_beat, "no beat"),
            Cover(path.maw.valid & path.maw.ready & fits, "a write goes to memory"),
        ]
        return m


class MapInside(wiring.Component):
    """Proves that different blocks, and words in bypass, are stored in different places, each within what its
    region takes, whatever regions there are, if none is usable that shares memory with another.

    Args:
        overlap: let them share a page, so that the proof must fail.
    """

    def __init__(self, parameters: MemoryParameters, overlap: bool = False):
        self._parameters, self._overlap = parameters, overlap
        pages, bits = parameters.page_bits, format_number_bits(parameters)
        region = {"base": pages, "size": pages, "stored": pages, "format": bits, "enabled": 1}
        regions = data.ArrayLayout(data.StructLayout(region), parameters.regions)
        address = parameters.address_bits
        super().__init__({"regions": In(regions), "a": In(address), "b": In(address)})

    def elaborate(self, platform):
        m = Module()
        parameters = self._parameters
        usable = []
        takes = [stored_pages(parameters, region.size, region.format) for region in self.regions]
        ends = [region.stored + size for region, size in zip(self.regions, takes, strict=True)]
        for i, region in enumerate(self.regions):
            fits = (ends[i] <= 1 << parameters.page_bits) & (region.format <= len(parameters.formats))
            for j, other in enumerate(self.regions):
                if j != i:
                    apart = (region.stored >= ends[j]) | (other.stored >= ends[i])
                    if self._overlap:
                        apart = (region.stored + 1 >= ends[j]) | (other.stored + 1 >= ends[i])
                    fits &= apart | ~other.enabled
            usable.append(region.enabled & fits)
        places = [self._place(m, name, address, usable) for name, address in (("a", self.a), ("b", self.b))]
        (a_hit, a_start, a_size, a_is), (b_hit, b_start, b_size, b_is) = places
        both = a_hit & b_hit & (a_is != b_is)
        m.d.comb += [
            Assert(~both | (a_start + a_size <= b_start) | (b_start + b_size <= a_start), "apart"),
            Cover(both, "two blocks"),
        ]
        for hit, start, size, _ in places[:1]:
            low, high = C(0), C(0)
            for i, region in enumerate(self.regions):
                inside = hit & (Value.cast(places[0][3])[: len(self.regions)][i])
                low = Mux(inside, region.stored << PAGE_BITS, low)
                high = Mux(inside, ends[i] << PAGE_BITS, high)
            m.d.comb += Assert(~hit | ((start >= low) & (start + size <= high)), "within its region")
        return m

    def _place(self, m: Module, name: str, address: Value, usable: list[Value]):
        """Whether an address has a region, where its block is stored, in how many bytes, and which it is."""
        parameters = self._parameters
        m.submodules[f"{name}_lookup"] = lookup = Lookup(parameters)
        m.submodules[f"{name}_mapper"] = mapper = Mapper(parameters)
        for i, region in enumerate(self.regions):
            shown = lookup.regions[i]
            m.d.comb += [
                *(shown[name].eq(region[name]) for name in ("base", "format", "enabled")),
                *(shown.end.eq(region.base + region.size), shown.usable.eq(usable[i])),
            ]
            with m.If(lookup.found.region == i):
                m.d.comb += [mapper.origin.base.eq(region.base), mapper.origin.stored.eq(region.stored)]
        size, low = Signal(PAGE_BITS, name=f"{name}_size"), Signal(PAGE_BITS, name=f"{name}_low")
        low_bits = parameters.word_bits
        m.d.comb += [size.eq(parameters.bus_bytes), low.eq(address[low_bits:PAGE_BITS] << low_bits)]
        for i, fmt in enumerate(parameters.formats):
            bits = parameters.original_bits(i)
            with m.If(lookup.found.format == i + 1):
                m.d.comb += [size.eq(fmt.target), low.eq(address[bits:PAGE_BITS] << bits)]
        m.d.comb += [
            lookup.page.eq(address[PAGE_BITS:]),
            mapper.format.eq(lookup.found.format),
            mapper.page.eq(lookup.page),
            mapper.low.eq(low),
        ]
        chosen = Cat(lookup.found.region == i for i in range(len(self.regions)))
        return lookup.found.hit, mapper.address, size, Cat(chosen, low, address[PAGE_BITS:])
