"""Queues of words."""

from amaranth import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["DelayLine"]


class DelayLine(wiring.Component):
    """A queue of words as a row of registers, each word moving up as soon as there is room.

    An empty line offers a word ``depth`` cycles after it was taken. Without read multiplexers it is a
    quarter smaller than a memory of flip-flops; it holds and passes a word a cycle also when it is full.
    """

    def __init__(self, width: int, depth: int):
        self._width = width
        self._depth = depth
        super().__init__({"i": In(stream.Signature(width)), "o": Out(stream.Signature(width))})

    def elaborate(self, platform):
        m = Module()
        words = [Signal(self._width, name=f"word{i}", reset_less=True) for i in range(self._depth)]
        full = Signal(self._depth)
        for i, word in enumerate(words):
            # A word moves up if there is room anywhere above it.
            moves = Signal(name=f"moves{i}")
            m.d.comb += moves.eq(~full[i:].all() | self.o.ready)
            before, comes = (words[i - 1], full[i - 1]) if i else (self.i.payload, self.i.valid)
            with m.If(moves):
                m.d.sync += full[i].eq(comes)
                with m.If(comes):
                    m.d.sync += word.eq(before)
            if i == 0:
                m.d.comb += self.i.ready.eq(moves)
        m.d.comb += [self.o.valid.eq(full[-1]), self.o.payload.eq(words[-1])]
        return m
