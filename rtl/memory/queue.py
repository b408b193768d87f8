"""A queue of words in a memory that is read synchronously."""

from amaranth import C, Cat, Module, Mux, Shape, Signal, Value
from amaranth.hdl import ShapeLike
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from ..stream import DelayMemory

__all__ = ["Queue"]


class Queue(wiring.Component):
    """Holds words in their order.

    Throughput: a word a cycle. Latency: a word is offered in the second cycle after it was taken, for the
    memory takes a cycle to be read. No path leads through it. After reset it holds nothing.

    The word that is offered is the memory's output, and its place is written again only after it was given:
    so no address is ever read and written in the same cycle, and any memory with a port for each serves.

    Args:
        shape: of the payload.
        depth: words that it holds; it holds two where one would do.

    Members:
        i, o: streams of the payload.
        empty: it holds nothing, also nothing that is not offered yet.
    """

    def __init__(self, shape: ShapeLike, depth: int):
        self._depth = max(depth, 2)
        super().__init__(
            {"i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape)), "empty": Out(1)}
        )

    def elaborate(self, platform):
        m = Module()
        depth = self._depth
        m.submodules.words = words = DelayMemory(Shape.cast(self.i.payload.shape()).width, depth)
        unread = Signal(range(depth))  # while none is offered, one at most: it is being read
        takes, reads = Signal(), Signal()
        m.d.comb += [
            self.empty.eq((unread == 0) & ~self.o.valid),
            self.i.ready.eq((unread != depth - 1) | ~self.o.valid),
            takes.eq(self.i.valid & self.i.ready),
            reads.eq((unread != 0) & (~self.o.valid | self.o.ready)),
            words.write.eq(takes),
            words.write_data.eq(self.i.payload),
            words.read.eq(reads),
            Value.cast(self.o.payload).eq(words.read_data),
        ]
        with m.If(takes ^ reads):
            m.d.sync += unread.eq(unread + Cat(C(1, 1), reads.replicate(len(unread) - 1)))
        with m.If(~self.o.valid | self.o.ready):
            m.d.sync += self.o.valid.eq(reads)
        for address, moves in ((words.write_address, takes), (words.read_address, reads)):
            place = Signal.like(address, name="place")
            m.d.comb += address.eq(place)
            with m.If(moves):
                m.d.sync += place.eq(Mux(place == depth - 1, 0, place + 1))
        return m
