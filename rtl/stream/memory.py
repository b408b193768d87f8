"""Delay lines in memories, for chips in which a memory is smaller than its flip-flops."""

from amaranth import ClockSignal, Instance, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

__all__ = ["DELAY_MEMORY", "DelayMemories", "DelayMemory", "MemoryLine"]

DELAY_MEMORY = "bitstash_delay_memory"  # the module of a memory, to be replaced by a macro
_LEAST_DEPTH = 3  # words; shorter lines stay registers


class DelayMemory(wiring.Component):
    """A simple dual-port memory: one port writes, one reads, which takes a cycle.

    A word is never read in the cycle in which it is written.

    Args:
        width: bits of a word.
        depth: words.

    Members:
        write, write_address, write_data: a word for an address.
        read, read_address: an address whose word is at ``read_data`` from the next cycle on.
    """

    def __init__(self, width: int, depth: int):
        self.width = width
        self.depth = depth
        super().__init__(
            {
                "write": In(1),
                "write_address": In(range(depth)),
                "write_data": In(width),
                "read": In(1),
                "read_address": In(range(depth)),
                "read_data": Out(width),
            }
        )

    def elaborate(self, platform):
        if hasattr(platform, "get_delay_memory"):
            return platform.get_delay_memory(self)
        m = Module()
        m.submodules.memory = memory = Memory(shape=self.width, depth=self.depth, init=[])
        write, read = memory.write_port(), memory.read_port()
        m.d.comb += [
            *(write.en.eq(self.write), write.addr.eq(self.write_address), write.data.eq(self.write_data)),
            *(read.en.eq(self.read), read.addr.eq(self.read_address), self.read_data.eq(read.data)),
        ]
        return m


class MemoryLine(wiring.Component):
    """A queue of words with the ports of a :class:`rtl.stream.DelayLine`, in a memory.

    An empty line offers a word two cycles after it was taken; it holds and passes a word a cycle also when it
    is full. The word that is offered counts among the ``depth``, so that no address is written while it is
    read.

    Args:
        width: bits of a word.
        depth: words, at least 3.
    """

    def __init__(self, width: int, depth: int):
        self._width = width
        self._depth = depth
        super().__init__({"i": In(stream.Signature(width)), "o": Out(stream.Signature(width))})

    def elaborate(self, platform):
        m = Module()
        m.submodules.memory = memory = DelayMemory(self._width, self._depth)
        inside = Signal(range(self._depth + 1))  # words that were not yet read
        is_there = Signal()  # one that was
        takes, reads = Signal(), Signal()
        m.d.comb += [
            self.i.ready.eq((inside + is_there != self._depth) | (is_there & self.o.ready)),
            takes.eq(self.i.valid & self.i.ready),
            reads.eq((inside != 0) & (~is_there | self.o.ready)),
            *(memory.write.eq(takes), memory.write_data.eq(self.i.payload), memory.read.eq(reads)),
            *(self.o.valid.eq(is_there), self.o.payload.eq(memory.read_data)),
        ]
        m.d.sync += inside.eq(inside + takes - reads)
        with m.If(~is_there | self.o.ready):
            m.d.sync += is_there.eq(reads)
        for address, steps in ((memory.write_address, takes), (memory.read_address, reads)):
            place = Signal.like(address, name="place")
            m.d.comb += address.eq(place)
            with m.If(steps):
                m.d.sync += place.eq(Mux(place == self._depth - 1, 0, place + 1))
        return m


class DelayMemories:
    """A platform of Amaranth: longer delay lines are memories, instances of :data:`DELAY_MEMORY`."""

    def get_delay_line(self, line):
        """What a :class:`rtl.stream.DelayLine` is made of; none if it stays registers."""
        if line.depth < _LEAST_DEPTH:
            return None
        m = Module()
        m.submodules.line = inner = MemoryLine(line.width, line.depth)
        wiring.connect(m, wiring.flipped(line.i), inner.i)
        wiring.connect(m, inner.o, wiring.flipped(line.o))
        return m

    def get_delay_memory(self, memory):
        """What a :class:`DelayMemory` is made of."""
        m = Module()
        m.submodules.memory = Instance(
            DELAY_MEMORY,
            p_WIDTH=memory.width,
            p_DEPTH=memory.depth,
            p_ADDRESS_BITS=len(memory.write_address),
            i_clk=ClockSignal(),
            **{f"i_{name}": getattr(memory, name) for name in ("write", "write_address", "write_data")},
            **{f"i_{name}": getattr(memory, name) for name in ("read", "read_address")},
            o_read_data=memory.read_data,
        )
        return m
