"""A queue of a few words."""

from amaranth import Module, Shape, Value
from amaranth.hdl import ShapeLike
from amaranth.lib import fifo, stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Queue"]


class Queue(wiring.Component):
    """Holds words in their order.

    Throughput: a word a cycle. Latency: a word is offered in the cycle after it was taken. No path leads
    through it. After reset it holds nothing.

    Args:
        shape: of the payload.
        depth: words that it holds.

    Members:
        i, o: streams of the payload.
    """

    def __init__(self, shape: ShapeLike, depth: int):
        self._depth = depth
        super().__init__({"i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape))})

    def elaborate(self, platform):
        m = Module()
        m.submodules.words = words = fifo.SyncFIFO(
            width=Shape.cast(self.i.payload.shape()).width, depth=self._depth
        )
        m.d.comb += [
            words.w_data.eq(self.i.payload),
            words.w_en.eq(self.i.valid),
            self.i.ready.eq(words.w_rdy),
            Value.cast(self.o.payload).eq(words.r_data),
            self.o.valid.eq(words.r_rdy),
            words.r_en.eq(self.o.ready),
        ]
        return m
