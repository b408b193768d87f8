"""A stream from one clock to another."""

from amaranth import Module, ResetSignal, Shape, Value
from amaranth.hdl import ShapeLike
from amaranth.lib import fifo, stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["AsyncFifo"]

_LEAST_DEPTH = 4


class AsyncFifo(wiring.Component):
    """A FIFO whose ends have a clock each, whatever their frequencies and phases.

    Words cross in a memory, its two pointers in Gray code through two flip-flops each, so that a pointer
    caught while it changes is read as it was or as it is: Amaranth's ``AsyncFIFO``, after Clifford E.
    Cummings, "Simulation and Synthesis Techniques for Asynchronous FIFO Design" (SNUG 2002).

    Throughput: a word in each cycle of the slower clock, from a depth of 8 words on. Latency: a word is
    offered behind the second edge of the read clock after the edge that took it, or the third if that came
    too close, unless words before it still stand. Back-pressure: it holds ``depth`` words; behind the second
    edge of the write clock, or the third, after one was given ``i.ready`` is high again. No path leads
    through it. After reset it holds nothing.

    Resets: both ends are reset together, for at least six cycles of the slower clock, in which pointers that
    jump back to 0 come to rest. It is the write side's reset that empties it.

    Args:
        shape: of the payload.
        depth: words that it holds, a power of two from 4 on.

    Members:
        i: stream of the payload, in the clock domain "write".
        o: the same, in the clock domain "read".

    Raises:
        ValueError: ``depth`` is none of the above.
    """

    def __init__(self, shape: ShapeLike, depth: int = 8):
        if depth < _LEAST_DEPTH or depth & (depth - 1):
            raise ValueError(f"depth must be a power of two from {_LEAST_DEPTH} on, not {depth!r}")
        self.depth = depth
        super().__init__({"i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape))})

    def elaborate(self, platform):
        m = Module()
        width = Shape.cast(self.i.payload.shape()).width
        m.submodules.fifo = queue = fifo.AsyncFIFO(width=width, depth=self.depth)
        m.d.comb += [
            queue.w_data.eq(self.i.payload),
            queue.w_en.eq(self.i.valid),
            self.i.ready.eq(queue.w_rdy),
            Value.cast(self.o.payload).eq(queue.r_data),
            # What is left of before a reset is offered until the write side's has crossed.
            self.o.valid.eq(queue.r_rdy & ~ResetSignal("read")),
            queue.r_en.eq(self.o.ready & self.o.valid),
        ]
        return m
