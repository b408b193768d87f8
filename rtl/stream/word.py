"""Word streams: what travels on the ports, and the change of width between a bus and a datapath.

Every stream is an ``amaranth.lib.stream``: the source raises ``valid`` without waiting for ``ready``,
and holds ``valid`` and the payload until a cycle with both. Byte 0 of a word is its lowest byte.
"""

from amaranth import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

__all__ = ["NUMBER_BITS", "Joiner", "Splitter", "word_layout"]

# Of a block's number.
NUMBER_BITS = 32


def word_layout(size: int, *, error: bool = False, first: bool = False) -> data.StructLayout:
    """Payload of a stream of words.

    Args:
        size: bytes of a word.
        error: whether the word also carries a flag that its block could not be decoded.
        first: whether it carries the number of a block.

    Members:
        data: the bytes.
        last: this word ends its tensor.
        empty: how many bytes at the word's end do not belong to the tensor; they are zero. 0 unless ``last``.
        error: see above.
        first: the number of the tensor's first block, in its first word; in others it means nothing.
    """
    members = {"data": 8 * size, "last": 1, "empty": range(size)}
    more = ({"error": 1} if error else {}) | ({"first": NUMBER_BITS} if first else {})
    return data.StructLayout(members | more)


class Splitter(wiring.Component):
    """Cuts each wide word into narrow words, lowest bytes first.

    One narrow word a cycle, combinationally from the wide word, which is taken with its last piece, the
    one that holds the last byte before its ``empty`` ones; ``last`` goes with that piece, whose own
    ``empty`` stays 0: its missing bytes are zeros. It holds no data.

    Args:
        wide, narrow: bytes of a word at either end, powers of two.
    """

    def __init__(self, wide: int, narrow: int):
        self._pieces = wide // narrow
        self._narrow = narrow
        super().__init__(
            {"i": In(stream.Signature(word_layout(wide))), "o": Out(stream.Signature(word_layout(narrow)))}
        )

    def elaborate(self, platform):
        m = Module()
        index = Signal(range(self._pieces))
        is_final = index == ~self.i.p.empty[exact_log2(self._narrow) :]
        m.d.comb += [
            self.o.valid.eq(self.i.valid),
            self.o.p.data.eq(self.i.p.data.word_select(index, 8 * self._narrow)),
            self.o.p.last.eq(self.i.p.last & is_final),
            self.i.ready.eq(self.o.ready & is_final),
        ]
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += index.eq(Mux(is_final, 0, index + 1))
        return m


class Joiner(wiring.Component):
    """Gathers narrow words into wide ones, lowest bytes first.

    A wide word is offered in the cycle after its last piece was taken. A narrow word with ``last``, which
    has no ``empty`` bytes, ends its wide word early; the missing pieces are ``empty``. ``error`` is set if
    any piece has it. Takes one narrow word a cycle while the wide side does not stall.

    Args:
        narrow, wide: bytes of a word at either end, powers of two.
    """

    def __init__(self, narrow: int, wide: int):
        self._pieces = wide // narrow
        self._narrow = narrow
        super().__init__(
            {
                "i": In(stream.Signature(word_layout(narrow, error=True))),
                "o": Out(stream.Signature(word_layout(wide, error=True))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        index = Signal(range(self._pieces))
        word = Signal(word_layout(self._narrow * self._pieces, error=True))
        full = Signal()
        m.d.comb += [
            self.o.valid.eq(full),
            self.o.payload.eq(word),
            self.i.ready.eq(~full | self.o.ready),
        ]
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += full.eq(0)
        with m.If(self.i.valid & self.i.ready):
            is_final = self.i.p.last | (index == self._pieces - 1)
            m.d.sync += [
                full.eq(is_final),
                index.eq(Mux(is_final, 0, index + 1)),
                word.last.eq(self.i.p.last),
                word.empty.eq(Mux(self.i.p.last, ~index, 0) << exact_log2(self._narrow)),
                word.error.eq(self.i.p.error | (word.error & (index != 0))),
            ]
            with m.If(index == 0):
                m.d.sync += word.data.eq(self.i.p.data)
            with m.Else():
                m.d.sync += word.data.word_select(index, 8 * self._narrow).eq(self.i.p.data)
        return m
