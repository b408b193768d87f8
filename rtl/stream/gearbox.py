"""Between blocks of any size and bus words: compressed blocks lie end to end, or each is a tensor."""

from collections.abc import Mapping
from math import gcd

from amaranth import C, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..arith.trees import any_set
from .word import word_layout

__all__ = ["BlockJoiner", "BlockSplitter", "Packer", "Unpacker"]


class Packer(wiring.Component):
    """Packs blocks end to end into words.

    A block with ``last`` ends a tensor: its last word carries ``last``, what the block leaves of it is
    ``empty``, and the next block starts on a new word. A word is offered in the same cycle as the block that
    completes it, and the block is taken with that word; what is left of it is offered in the cycles after.
    One word a cycle.

    Args:
        block: bytes of a block; those that are ``empty`` do not count.
        bus: bytes of a word.
        grain: bytes that divide the block, what is empty of it, and the word; as many as can be by default.
    """

    def __init__(self, block: int, bus: int, grain: int | None = None):
        self._block = block
        self._bus = bus
        self._grain = grain or gcd(block, bus)
        super().__init__(
            {"i": In(stream.Signature(word_layout(block))), "o": Out(stream.Signature(word_layout(bus)))}
        )

    def elaborate(self, platform):
        m = Module()
        block, bus, grain = self._block, self._bus, self._grain
        if block == bus == grain:
            wiring.connect(m, wiring.flipped(self.i), wiring.flipped(self.o))
            return m
        # All offsets are multiples of the grain, so that the shifter has only bus / grain positions.
        block_grains, bus_grains = block // grain, bus // grain
        capacity = max(block_grains, bus_grains) - 1

        rest = Signal(8 * grain * capacity)  # what was not yet sent; zero above the level
        level = Signal(range(capacity + 1))  # in grains
        ends = Signal()  # the rest is the end of a tensor

        # The rest with the next block behind it, if there is one and it is its turn.
        is_turn = ~ends & (level < bus_grains)
        inserts = self.i.valid & is_turn
        joined = Signal(8 * grain * (bus_grains - 1 + block_grains))
        total = Signal(range(bus_grains + block_grains))
        ends_here = Signal()
        places = [
            Mux(inserts & (level == i), self.i.p.data.shift_left(8 * grain * i), 0) for i in range(bus_grains)
        ]
        m.d.comb += [
            joined.eq(any_set([rest, *places])),
            total.eq(level + Mux(inserts, block_grains - (self.i.p.empty >> exact_log2(grain)), 0)),
            ends_here.eq(ends | (inserts & self.i.p.last)),
        ]

        is_last = ends_here & (total <= bus_grains)
        m.d.comb += [
            self.o.valid.eq(ends_here | (total >= bus_grains)),
            self.o.p.data.eq(joined),
            self.o.p.last.eq(is_last),
            self.o.p.empty.eq(Mux(is_last, (-total)[: exact_log2(bus_grains)], 0) << exact_log2(grain)),
            self.i.ready.eq(is_turn & (self.o.ready | ~self.o.valid)),
        ]
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += [
                rest.eq(joined.shift_right(8 * bus)),
                level.eq(Mux(is_last, 0, total - bus_grains)),
                ends.eq(ends_here & ~is_last),
            ]
        with m.Elif(inserts & ~self.o.valid):
            m.d.sync += [rest.eq(joined), level.eq(total)]
        return m


class Unpacker(wiring.Component):
    """Cuts words into blocks: the inverse of :class:`Packer`.

    A block is offered in the cycle after its last word was taken. The word with ``last`` ends a tensor.
    Bytes that end in the middle of a block give a block with ``error``, so that every word with ``last``
    leads to exactly one block with ``last``, whatever came in.

    Args:
        block: bytes of a block, at most.
        bus: bytes of a word.
        sizes: where blocks vary, how many bytes they may have -> whether they have; it changes only while the
            unpacker is empty.
    """

    def __init__(self, block: int, bus: int, sizes: Mapping[int, Value] | None = None):
        self._block = block
        self._bus = bus
        self._sizes = sizes or {block: C(1)}
        super().__init__(
            {
                "i": In(stream.Signature(word_layout(bus))),
                "o": Out(stream.Signature(word_layout(block, error=True))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        block, bus = self._block, self._bus
        grain = gcd(bus, *self._sizes)
        size = any_set(Mux(is_it, bytes_ // grain, 0) for bytes_, is_it in self._sizes.items())
        block_grains, bus_grains = block // grain, bus // grain
        capacity = block_grains - 1 + bus_grains

        buffer = Signal(8 * grain * capacity)  # zero above the level until the tensor ends
        level = Signal(range(capacity + 1))  # in grains
        ends = Signal()  # the buffer holds the end of a tensor
        ragged = Signal()  # and behind its grains a part of one

        whole = level >= size
        m.d.comb += [
            self.o.valid.eq(whole | ends),
            self.o.p.data.eq(buffer),
            self.o.p.error.eq(~whole),
            self.o.p.last.eq(ends & (~whole | ((level == size) & ~ragged))),
        ]

        level_left = Signal.like(level)
        ends_left = Signal()
        buffer_left = Signal.like(buffer)
        m.d.comb += [level_left.eq(level), ends_left.eq(ends), buffer_left.eq(buffer)]
        with m.If(self.o.valid & self.o.ready):
            rests = [Mux(is_it, buffer.shift_right(8 * bytes_), 0) for bytes_, is_it in self._sizes.items()]
            m.d.comb += [level_left.eq(level - size), buffer_left.eq(any_set(rests))]
            with m.If(self.o.p.last):
                m.d.comb += [level_left.eq(0), ends_left.eq(0), buffer_left.eq(0)]
        m.d.comb += self.i.ready.eq(~ends_left & (level_left < size))

        m.d.sync += [level.eq(level_left), ends.eq(ends_left), buffer.eq(buffer_left)]
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [
                level.eq(level_left + ((bus - self.i.p.empty) >> exact_log2(grain))),
                ends.eq(self.i.p.last),
                ragged.eq(self.i.p.empty[: exact_log2(grain)].any()),
            ]
            places = [
                Mux(level_left == i, self.i.p.data.shift_left(8 * grain * i), 0) for i in range(block_grains)
            ]
            m.d.sync += buffer.eq(any_set([buffer_left, *places]))
        return m


class BlockSplitter(wiring.Component):
    """Cuts blocks into words, each block a tensor of its own: a :class:`Packer` that turns no bytes.

    A block's first word is offered in the same cycle as the block, which is taken with it; the others follow
    in the cycles after. One word a cycle.

    Args:
        block: bytes of a block; all of them count, and each block ends a tensor.
        bus: bytes of a word.
    """

    def __init__(self, block: int, bus: int):
        self._block, self._bus = block, bus
        super().__init__(
            {"i": In(stream.Signature(word_layout(block))), "o": Out(stream.Signature(word_layout(bus)))}
        )

    def elaborate(self, platform):
        m = Module()
        words = -(-self._block // self._bus)
        rest = Signal(8 * max(self._block - self._bus, 0), reset_less=True)
        left = Signal(range(words))  # words of the rest
        is_first = left == 0
        is_last = Mux(is_first, words == 1, left == 1)
        m.d.comb += [
            self.o.valid.eq(self.i.valid | ~is_first),
            self.o.p.data.eq(Mux(is_first, self.i.p.data, rest)),
            self.o.p.last.eq(is_last),
            self.o.p.empty.eq(Mux(is_last, -self._block % self._bus, 0)),
            self.i.ready.eq(is_first & self.o.ready),
        ]
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += [
                rest.eq(Mux(is_first, self.i.p.data, rest) >> 8 * self._bus),
                left.eq(Mux(is_first, words, left) - 1),
            ]
        return m


class BlockJoiner(wiring.Component):
    """Joins words to blocks, each block a tensor of its own: the inverse of :class:`BlockSplitter`.

    A block is offered in the cycle after its last word was taken. None is cut short: whoever sends words
    sends whole blocks, so that there is no ``error``.

    Args:
        block: bytes of a block.
        bus: bytes of a word.
    """

    def __init__(self, block: int, bus: int):
        self._block, self._bus = block, bus
        super().__init__(
            {
                "i": In(stream.Signature(word_layout(bus))),
                "o": Out(stream.Signature(word_layout(block, error=True))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        bits, words = 8 * self._bus, -(-self._block // self._bus)
        block, index = Signal(8 * self._block, reset_less=True), Signal(range(words))
        is_last = index == words - 1
        m.d.comb += [
            self.o.p.data.eq(block),
            self.o.p.last.eq(1),
            self.i.ready.eq(~self.o.valid | self.o.ready),
        ]
        with m.If(self.i.ready):
            m.d.sync += self.o.valid.eq(self.i.valid & is_last)
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += index.eq(Mux(is_last, 0, index + 1))
            for i in range(words):
                with m.If(index == i):
                    m.d.sync += block[i * bits : (i + 1) * bits].eq(self.i.p.data)
        return m
