"""The compressor's last stage: headers and fields, each in its place."""

from amaranth import C, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from golden import HadamardFormat
from golden.hadamard import HEADER_BITS

from ..stream import Switch, word_layout
from .engine import HadamardEngine

__all__ = ["Collector", "fills_words"]


def fills_words(engine: HadamardEngine) -> bool:
    """Whether whole blocks fill a bus word, whatever the format."""
    return {fmt.target for fmt in engine.formats} == {engine.target} and not engine.bus_bytes % engine.target


class Collector(wiring.Component):
    """Lays out blocks, a word of fields a cycle; offers them in the cycle after that of a block's header.

    Where several blocks fill a bus word, it is offered with the last of them, or with one that ends its
    tensor.

    Args:
        size: bytes of what it offers: a block, or a bus word that takes several whole ones.

    Members:
        go: all may move on. It is 0 while what is offered waits to be taken.
        first: the fields are those of a block's first word.
        fields: see :class:`rtl.hadamard.quantiser.Quantiser`.
        ends: they are those of its last word, and its header is there.
        header, zeros, last: of the block, with ``ends``: see :class:`rtl.hadamard.scaler.Scaler`, and whether
            it ends its tensor.
    """

    def __init__(self, engine: HadamardEngine, switch: Switch, size: int):
        self._engine = engine
        self._switch = switch
        self._size = size
        most = max(int(fmt.widths[0]) for fmt in engine.formats)
        super().__init__(
            {
                "go": Out(1),
                "first": In(1),
                "fields": In(data.ArrayLayout(most, engine.lanes)),
                "ends": In(1),
                "header": In(HEADER_BITS),
                "zeros": In(1),
                "last": In(1),
                "o": Out(stream.Signature(word_layout(size))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        engine, switch = self._engine, self._switch
        size = self._size
        parts = size // engine.target
        bits = Signal(8 * size, reset_less=True)
        full = Signal()
        last = Signal(reset_less=True)
        part = Signal(range(max(parts, 2)))
        empty = Signal(range(size))
        m.d.comb += [
            self.go.eq(~full | self.o.ready),
            self.o.valid.eq(full),
            # What is behind a shorter block is another's.
            self.o.p.data.eq(
                bits if parts > 1 else switch.choose(lambda fmt: fmt.target, lambda n: bits[: 8 * n])
            ),
            self.o.p.last.eq(last),
            self.o.p.empty.eq(empty),
        ]
        with m.If(full & self.o.ready):
            m.d.sync += full.eq(0)
        # Between blocks whatever is there may be written in the place of the next one: that writes every bit.
        index = engine.word_index(m, "index", self.go, self.first)
        for here in range(parts):
            block = bits[8 * engine.target * here :][: 8 * engine.target]
            writes = self.go & (part == here)
            for fmt, is_it in zip(engine.formats, switch.is_format, strict=True):
                chosen = is_it if len(engine.formats) > 1 else C(1)
                for word, places in enumerate(engine.places):
                    with m.If(writes & chosen & (index == word)):
                        m.d.sync += self._write(fmt, block, places)
            with m.If(writes & self.ends):
                m.d.sync += block[:HEADER_BITS].eq(self.header)
            # What a word's first block does not fill is zeros, should there be no other.
            cleared = self.go & (part == 0) & self.first if here > 0 else C(0)
            with m.If((writes & self.ends & self.zeros) | cleared):
                m.d.sync += block.eq(0)
        with m.If(self.go & self.ends):
            is_full = self.last | (part == parts - 1)
            m.d.sync += [
                full.eq(is_full),
                last.eq(self.last),
                part.eq(Mux(is_full, 0, part + 1)),
                empty.eq(Mux(self.last, (parts - 1 - part) * engine.target, 0)),
            ]
            if parts == 1:
                m.d.sync += empty.eq(switch.choose(lambda fmt: engine.target - fmt.target))
        return m

    def _write(self, fmt: HadamardFormat, block, places: list[int]) -> list:
        """The fields of a word of a format, to the places of their coefficients."""
        ends = HEADER_BITS + fmt.widths.cumsum()
        return [
            block[int(ends[place] - fmt.widths[place]) : int(ends[place])].eq(field)
            for place, field in zip(places, self.fields, strict=True)
            if fmt.widths[place]
        ]
