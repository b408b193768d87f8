"""Register slices: registers between a source and a sink that cut the paths from one to the other."""

from amaranth import Module, Mux, Signal, Value
from amaranth.hdl import ShapeLike
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["FullSlice", "HalfSlice"]


class FullSlice(wiring.Component):
    """A register slice, or skid buffer, of two words: no path leads through it in either direction.

    Throughput: a word a cycle. Latency: a word is offered in the cycle after it was taken, unless one before
    it still stands. Back-pressure: ``i.ready`` falls in the cycle after ``o.ready``, and a word that is taken
    meanwhile is kept aside; it holds two. After reset it holds nothing.

    Args:
        shape: of the payload.

    Members:
        i, o: streams of it.
    """

    def __init__(self, shape: ShapeLike):
        super().__init__({"i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape))})

    def elaborate(self, platform):
        m = Module()
        payload = Value.cast(self.i.payload)
        word, aside = Signal(len(payload), reset_less=True), Signal(len(payload), reset_less=True)
        has_word, has_aside = Signal(), Signal()
        m.d.comb += [
            self.o.valid.eq(has_word),
            Value.cast(self.o.payload).eq(word),
            self.i.ready.eq(~has_aside),
        ]
        with m.If(self.o.ready | ~has_word):
            m.d.sync += [
                has_word.eq(self.i.valid | has_aside),
                has_aside.eq(0),
                word.eq(Mux(has_aside, aside, payload)),
            ]
        with m.Elif(self.i.valid & ~has_aside):
            m.d.sync += [has_aside.eq(1), aside.eq(payload)]
        return m


class HalfSlice(wiring.Component):
    """A register slice of one word: half the registers of a :class:`FullSlice`, and half its rate.

    No path leads through it in either direction. Throughput: a word every other cycle. Latency: a word is
    offered in the cycle after it was taken. Back-pressure: ``i.ready`` is low while it holds a word. After
    reset it holds nothing.

    Args, Members: as of :class:`FullSlice`.
    """

    def __init__(self, shape: ShapeLike):
        super().__init__({"i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape))})

    def elaborate(self, platform):
        m = Module()
        payload = Value.cast(self.i.payload)
        word = Signal(len(payload), reset_less=True)
        has_word = Signal()
        m.d.comb += [
            self.o.valid.eq(has_word),
            Value.cast(self.o.payload).eq(word),
            self.i.ready.eq(~has_word),
        ]
        with m.If(~has_word):
            m.d.sync += [has_word.eq(self.i.valid), word.eq(payload)]
        with m.Elif(self.o.ready):
            m.d.sync += has_word.eq(0)
        return m
