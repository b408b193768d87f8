"""What proofs about the memory engine's paths have in common: bursts that AXI4 allows, a region, no codecs.

What codecs do to bytes does not matter to them: in their stead are some that only count words.
"""

from __future__ import annotations

from unittest.mock import patch

from amaranth import Module, Mux, Signal, Value
from amaranth.hdl import Fragment
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from golden import PlaneFormat
from golden.bursts import PAGE, BurstKind
from rtl.memory import MemoryParameters
from rtl.memory.interface.walker import span_mask
from rtl.memory.parameters import PAGE_BITS
from rtl.ports import COMPRESSORS, DECOMPRESSORS
from rtl.stream import word_layout

from .contract import drive

__all__ = [
    "Rules",
    "allowed",
    "drive_writes",
    "in_a_page",
    "one_region",
    "only_if",
    "stays",
    "unanswered_beats",
    "unanswered_bursts",
    "without_codecs",
]


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

    def __init__(self, fmt: PlaneFormat, bus_bytes: int, *, single: bool):
        assert fmt.target is not None
        words = -(-fmt.target // bus_bytes)
        super().__init__(words, -fmt.target % bus_bytes, word_layout(bus_bytes), word_layout(bus_bytes))


class _Decompressor(_Counting):
    def __init__(self, fmt: PlaneFormat, bus_bytes: int, *, single: bool):
        i, o = word_layout(bus_bytes), word_layout(bus_bytes, error=True)
        super().__init__(fmt.original_bytes // bus_bytes, 0, i, o)


def without_codecs(path: wiring.Component, platform) -> Fragment:
    """A path with counting codecs."""
    tables = (COMPRESSORS, {PlaneFormat: _Compressor}), (DECOMPRESSORS, {PlaneFormat: _Decompressor})
    (compressors, one), (decompressors, other) = tables
    with patch.dict(compressors, one), patch.dict(decompressors, other):
        return Fragment.get(path, platform)


def stays(m: Module, value: Value) -> Value:
    """What the solver chose in the first cycle, for all time."""
    begun, kept_value = Signal(reset_less=True), Signal(value.shape(), reset_less=True)
    chosen = Mux(begun, Value.cast(kept_value), Value.cast(value))
    m.d.sync += [begun.eq(1), Value.cast(kept_value).eq(chosen)]
    return chosen


def allowed(m: Module, free, bus_bits: int):
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


def only_if(m: Module, free, condition: Value):
    """The stream ``free``, of which nothing is offered without a condition."""
    port = free.signature.create()
    m.d.comb += [
        Value.cast(port.payload).eq(Value.cast(free.payload)),
        port.valid.eq(free.valid & condition),
        free.ready.eq(port.ready & condition),
    ]
    return port


def one_region(m: Module, parameters: MemoryParameters, table, stored) -> None:
    """A region of the last format, or in bypass; its stored bytes begin anywhere, and behind it is none."""
    region = table.regions[0]
    m.d.comb += [
        region.end.eq(8),
        region.format.eq(len(parameters.formats)),
        table.origin.stored.eq(stays(m, stored)),
        region.enabled.eq(1),
        region.usable.eq(1),
    ]


def in_a_page(parameters: MemoryParameters, port) -> Value:
    """Whether a burst to memory is of whole beats and does not leave its page."""
    stop = port.p.addr[:PAGE_BITS] + (port.p.len << parameters.beat_bits)
    whole = (port.p.addr[: parameters.beat_bits] == 0) & (port.p.size == parameters.beat_bits)
    return ~port.valid | (whole & (stop < PAGE) & (port.p.burst == BurstKind.INCR))


def unanswered_beats(m: Module, path) -> Signal:
    """That a read path asked memory for."""
    asked = Signal(12)
    asks, answers = path.mar.valid & path.mar.ready, path.mr.valid & path.mr.ready
    m.d.sync += asked.eq(asked + Mux(asks, path.mar.p.len + 1, 0) - answers)
    return asked


def unanswered_bursts(m: Module, path) -> tuple[Signal, Signal]:
    """Of which a write path sent memory the address and all data; by how many addresses are ahead of data."""
    sent = Signal(8)
    addresses, ends = path.maw.valid & path.maw.ready, path.mw.valid & path.mw.ready & path.mw.p.last
    ahead = Signal(8)  # addresses whose data has not gone, in two's complement
    both = (addresses & (ends | ahead[-1])) | (ends & ~ahead[-1] & (ahead != 0))
    m.d.sync += [
        ahead.eq(ahead + addresses - ends),
        sent.eq(sent + both - (path.mb.valid & path.mb.ready)),
    ]
    return sent, ahead


def drive_writes(m: Module, path, aw, w, word_bits: int) -> tuple[Signal, Signal]:
    """Give a write path bursts that AXI4 allows, with as many beats as they have, their addresses first.

    Args:
        aw, w: what the solver chooses.

    Returns:
        The bursts whose data has not all come, at most 4, and those whose has, without an answer.
    """
    pending, done = Signal(3), Signal(8)
    drive(m, path.aw, only_if(m, allowed(m, aw, word_bits), pending < 4))
    beat, burst = Signal(8), Signal(2)
    free = only_if(m, w, pending != 0)
    m.d.comb += free.p.last.eq(beat == _length(m, path.aw, burst))
    drive(m, path.w, free)
    takes = path.w.valid & path.w.ready
    with m.If(takes):
        m.d.sync += [beat.eq(Mux(path.w.p.last, 0, beat + 1)), burst.eq(burst + path.w.p.last)]
    ends, answers = takes & path.w.p.last, path.b.valid & path.b.ready
    m.d.sync += [
        pending.eq(pending + (path.aw.valid & path.aw.ready) - ends),
        done.eq(done + ends - answers),
    ]
    return pending, done


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


class Rules(wiring.Component):
    """A path with all inputs but the streams' contracts and the regions left to the solver."""

    def __init__(self, path: wiring.Component, parameters: MemoryParameters):
        self._path, self._parameters = path, parameters
        members = path.signature.members
        names = [
            name for name in ("ar", "r", "mar", "mr", "aw", "w", "b", "maw", "mw", "mb") if name in members
        ]
        free = {"which": In(2), "stored": In(parameters.page_bits), "drain": In(1), "chance": In(1)}
        super().__init__({name: members[name] for name in names} | free)
