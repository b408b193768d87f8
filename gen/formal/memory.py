"""The memory engine's paths keep the rules of AXI4, and its map puts no two blocks in one place.

What codecs do to bytes does not matter here: in their stead are some that only count words.
"""

from __future__ import annotations

from unittest.mock import patch

from amaranth import C, Cat, Module, Mux, ResetSignal, Signal, Value
from amaranth.hdl import Assert, Cover, Fragment
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from golden import PlaneFormat
from golden.bursts import PAGE, BurstKind
from rtl.memory import MemoryParameters
from rtl.memory.parameters import PAGE_BITS
from rtl.memory.read import ReadPath
from rtl.memory.regions import Lookup, Mapper, region_layout, stored_pages
from rtl.memory.walker import span_mask
from rtl.memory.write import WritePath
from rtl.ports import COMPRESSORS, DECOMPRESSORS
from rtl.stream import word_layout

from .contract import drive, kept

__all__ = ["MapInside", "ReadRules", "WriteRules", "without_codecs"]


class _Counting(wiring.Component):
    """In a codec's stead: takes a tensor's words, then gives some without content."""

    def __init__(self, words: int, empty: int, i: data.Layout, o: data.Layout):
        self._words, self._empty = words, empty
        super().__init__({"i": In(stream.Signature(i)), "o": Out(stream.Signature(o))})

    def elaborate(self, platform):
        m = Module()
        left = Signal(range(self._words + 1))
        m.d.comb += [
            self.i.ready.eq(left == 0),
            self.o.valid.eq(left != 0),
            self.o.p.last.eq(left == 1),
            self.o.p.empty.eq(Mux(left == 1, self._empty, 0)),
        ]
        with m.If(self.i.valid & self.i.ready & self.i.p.last):
            m.d.sync += left.eq(self._words)
        with m.Elif(self.o.valid & self.o.ready):
            m.d.sync += left.eq(left - 1)
        return m


class _Compressor(_Counting):
    geometry = staticmethod(lambda fmt, bus_bytes: None)
    latency = staticmethod(lambda engine: 0)

    def __init__(self, fmt: PlaneFormat, bus_bytes: int):
        assert fmt.target is not None
        words = -(-fmt.target // bus_bytes)
        super().__init__(words, -fmt.target % bus_bytes, word_layout(bus_bytes), word_layout(bus_bytes))


class _Decompressor(_Counting):
    def __init__(self, fmt: PlaneFormat, bus_bytes: int):
        i, o = word_layout(bus_bytes, first=True), word_layout(bus_bytes, error=True)
        super().__init__(fmt.raw_bytes // bus_bytes, 0, i, o)


def without_codecs(path: wiring.Component, platform) -> Fragment:
    """A path with counting codecs."""
    tables = (COMPRESSORS, {PlaneFormat: _Compressor}), (DECOMPRESSORS, {PlaneFormat: _Decompressor})
    (compressors, one), (decompressors, other) = tables
    with patch.dict(compressors, one), patch.dict(decompressors, other):
        return Fragment.get(path, platform)


def _stays(m: Module, value: Value) -> Value:
    """What the solver chose in the first cycle, for all time."""
    begun, kept_value = Signal(reset_less=True), Signal(value.shape(), reset_less=True)
    chosen = Mux(begun, Value.cast(kept_value), Value.cast(value))
    m.d.sync += [begun.eq(1), Value.cast(kept_value).eq(chosen)]
    return chosen


def _allowed(m: Module, free, bus_bits: int):
    """The stream ``free``, but for bursts that AXI4 does not allow: these have one beat, of a byte."""
    port = free.signature.create()
    address = free.p.addr[:PAGE_BITS]
    span = span_mask(free.p.size)
    stop = Signal(PAGE_BITS + 9)
    m.d.comb += stop.eq((address | span) + (free.p.len << free.p.size))
    is_wrap = (free.p.len == 1) | (free.p.len == 3) | (free.p.len == 7) | (free.p.len == 15)
    is_wrap &= (address & span) == 0
    is_allowed = (
        ((free.p.burst == BurstKind.INCR) & (stop < PAGE))
        | ((free.p.burst == BurstKind.FIXED) & (free.p.len < 16))
        | ((free.p.burst == BurstKind.WRAP) & is_wrap)
    ) & (free.p.size <= bus_bits)
    m.d.comb += [
        Value.cast(port.payload).eq(Value.cast(free.payload)),
        port.valid.eq(free.valid),
        free.ready.eq(port.ready),
    ]
    with m.If(~is_allowed):
        m.d.comb += [port.p.len.eq(0), port.p.size.eq(0), port.p.burst.eq(BurstKind.INCR)]
    return port


def _only_if(m: Module, free, condition: Value):
    """The stream ``free``, of which nothing is offered without a condition."""
    port = free.signature.create()
    m.d.comb += [
        Value.cast(port.payload).eq(Value.cast(free.payload)),
        port.valid.eq(free.valid & condition),
        free.ready.eq(port.ready & condition),
    ]
    return port


def _regions(m: Module, parameters: MemoryParameters, regions, stored) -> None:
    """A region of the last format, or in bypass; its stored bytes begin anywhere, and behind it is none."""
    region = regions[0]
    m.d.comb += [
        region.size.eq(8),
        region.format.eq(len(parameters.formats)),
        region.stored.eq(_stays(m, stored)),
        region.enabled.eq(1),
        region.usable.eq(1),
    ]


def _in_a_page(parameters: MemoryParameters, port) -> Value:
    """Whether a burst to memory is of whole beats and does not leave its page."""
    stop = port.p.addr[:PAGE_BITS] + (port.p.len << parameters.beat_bits)
    whole = (port.p.addr[: parameters.beat_bits] == 0) & (port.p.size == parameters.beat_bits)
    return ~port.valid | (whole & (stop < PAGE) & (port.p.burst == BurstKind.INCR))


class _Rules(wiring.Component):
    """A path with all inputs but the streams' contracts and the regions left to the solver."""

    def __init__(self, path: wiring.Component, parameters: MemoryParameters):
        self._path, self._parameters = path, parameters
        members = path.signature.members
        names = [
            name for name in ("ar", "r", "mar", "mr", "aw", "w", "b", "maw", "mw", "mb") if name in members
        ]
        free = {"which": In(2), "stored": In(parameters.page_bits), "drain": In(1), "chance": In(1)}
        super().__init__({name: members[name] for name in names} | free)


class ReadRules(_Rules):
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
        _regions(m, parameters, path.regions, self.stored)
        drive(m, path.ar, _allowed(m, self.ar, parameters.word_bits))
        for name in ("mar", "r"):
            wiring.connect(m, getattr(path, name), wiring.flipped(getattr(self, name)))
        m.d.comb += [path.hazards.has_block.eq(self.chance), path.hazards.has_beat.eq(self.drain)]

        # Memory answers only what it was asked for.
        asked = Signal(12)
        drive(m, path.mr, _only_if(m, self.mr, asked != 0))
        asks, answers = path.mar.valid & path.mar.ready, path.mr.valid & path.mr.ready
        m.d.sync += asked.eq(asked + Mux(asks, path.mar.p.len + 1, 0) - answers)

        which = _stays(m, self.which)
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
            Assert(_in_a_page(parameters, path.mar), "mar stays in its page"),
            Assert(~is_it | ResetSignal() | seen, "only what was asked for is answered"),
            Assert(~is_it | ~seen | (path.r.p.id == identity), "in its turn"),
            Assert(~is_it | ~seen | (path.r.p.last == (beats == length)), "as many beats as were asked for"),
            Cover(is_it & path.r.p.last & (length == 2) & (path.r.p.resp == 0), "a burst is answered"),
        ]
        return m


class WriteRules(_Rules):
    """Proves that streams keep the contract, that bursts of memory stay in their page and have as many beats
    of W, the last with LAST, as their addresses say, and that nothing is answered before its data was taken.

    Reads are what the solver makes of them: which blocks they ask for, and which of them are to be evicted.
    """

    def __init__(self, parameters: MemoryParameters):
        super().__init__(WritePath(parameters), parameters)

    def elaborate(self, platform):
        m = Module()
        parameters, path = self._parameters, self._path
        m.submodules.path = without_codecs(path, platform)
        _regions(m, parameters, path.regions, self.stored)
        pending = Signal(3)  # addresses whose data has not come
        aw = _allowed(m, self.aw, parameters.word_bits)
        drive(m, path.aw, _only_if(m, aw, pending < 4))
        for name in ("b", "maw", "mw"):
            wiring.connect(m, getattr(path, name), wiring.flipped(getattr(self, name)))
        m.d.comb += [path.timeout.eq(100), path.hazards.evicts.eq(self.chance)]

        # W comes in bursts as long as its addresses say, memory answers what it was sent.
        beat, burst = Signal(8), Signal(2)
        w = _only_if(m, self.w, pending != 0)
        m.d.comb += w.p.last.eq(beat == self._length(m, path.aw, burst))
        drive(m, path.w, w)
        done = Signal(8)
        takes = path.w.valid & path.w.ready
        with m.If(takes):
            m.d.sync += beat.eq(Mux(path.w.p.last, 0, beat + 1))
            m.d.sync += burst.eq(burst + path.w.p.last)
        answers = path.b.valid & path.b.ready
        m.d.sync += pending.eq(pending + (path.aw.valid & path.aw.ready) - (takes & path.w.p.last))
        m.d.sync += done.eq(done + (takes & path.w.p.last) - answers)

        sent = Signal(8)
        drive(m, path.mb, _only_if(m, self.mb, sent != 0))
        addresses, ends = path.maw.valid & path.maw.ready, path.mw.valid & path.mw.ready & path.mw.p.last
        ahead = Signal(8)  # addresses whose data has not gone, in two's complement
        both = (addresses & (ends | ahead[-1])) | (ends & ~ahead[-1] & (ahead != 0))
        m.d.sync += [
            ahead.eq(ahead + addresses - ends),
            sent.eq(sent + both - (path.mb.valid & path.mb.ready)),
        ]

        which = _stays(m, self.which)
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
            Assert(_in_a_page(parameters, path.maw), "maw stays in its page"),
            Assert(~(has_data & has_length) | (data_length == out_length), "W is as long as AW says"),
            Assert(~path.b.valid | ResetSignal() | (done != 0), "no answer before the data"),
            Cover(has_data & has_length & (data_length == 1), "a burst of two beats"),
            Cover(answers & (path.b.p.resp == 0), "a burst is answered"),
        ]
        return m

    @staticmethod
    def _length(m: Module, port, burst: Value) -> Value:
        """Of the burst of this number, modulo 4."""
        number, length = Signal(2), Signal(8)
        for i in range(4):
            stored = Signal(8, name=f"length{i}")
            with m.If(port.valid & port.ready & (number == i)):
                m.d.sync += stored.eq(port.p.len)
            with m.If(burst == i):
                m.d.comb += length.eq(stored)
        m.d.sync += number.eq(number + (port.valid & port.ready))
        return length


class MapInside(wiring.Component):
    """Proves that different blocks, and words in bypass, are stored in different places, each within what its
    region takes, whatever regions there are, if none is usable that shares memory with another.

    Args:
        overlap: let them share a page, so that the proof must fail.
    """

    def __init__(self, parameters: MemoryParameters, overlap: bool = False):
        self._parameters, self._overlap = parameters, overlap
        regions = data.ArrayLayout(region_layout(parameters), parameters.regions)
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
            m.d.comb += [lookup.regions[i].eq(region), lookup.regions[i].usable.eq(usable[i])]
        size, low = Signal(PAGE_BITS, name=f"{name}_size"), Signal(PAGE_BITS, name=f"{name}_low")
        low_bits = parameters.word_bits
        m.d.comb += [size.eq(parameters.bus_bytes), low.eq(address[low_bits:PAGE_BITS] << low_bits)]
        for i, fmt in enumerate(parameters.formats):
            bits = parameters.raw_bits(i)
            with m.If(lookup.found.format == i + 1):
                m.d.comb += [size.eq(fmt.target), low.eq(address[bits:PAGE_BITS] << bits)]
        m.d.comb += [
            lookup.page.eq(address[PAGE_BITS:]),
            mapper.found.eq(lookup.found),
            mapper.low.eq(low),
        ]
        chosen = Cat(lookup.found.region == i for i in range(len(self.regions)))
        return lookup.found.hit, mapper.address, size, Cat(chosen, low, address[PAGE_BITS:])
