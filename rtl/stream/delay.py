"""Queues of words."""

from amaranth import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["DelayLine"]


class DelayLine(wiring.Component):
    """A queue of words as a row of registers, each word moving up as soon as there is room.

    An empty line offers a word ``depth`` cycles after it was taken. Without read multiplexers it is a
    quarter smaller than a memory of flip-flops; it holds and passes a word a cycle also when it is full.
    A platform may have it in a memory of its own: see :class:`rtl.stream.DelayMemories`.
    """

    def __init__(self, width: int, depth: int):
        self.width = width
        self.depth = depth
        super().__init__({"i": In(stream.Signature(width)), "o": Out(stream.Signature(width))})

    def elaborate(self, platform):
        if hasattr(platform, "get_delay_line") and (in_memory := platform.get_delay_line(self)):
            return in_memory
        m = Module()
        words = [Signal(self.width, name=f"word{i}", reset_less=True) for i in range(self.depth)]
        full = Signal(self.depth)
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
