"""The compressor's coefficients as numbers of levels, and the product of both."""

from math import isqrt

from amaranth import C, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from golden.hadamard import ALIGNED_BITS, LEVELS

from ..arith.sums import Columns, add, compress, let, place, registered, rows_of, shift_right
from ..arith.trees import any_set
from ..stream import Switch
from .energy import thresholds_layout
from .engine import HadamardEngine
from .transform import KIND, coefficients_layout

__all__ = ["Product", "Quantiser", "levels_layout", "product_bits"]

# Every level of each width as a sum of powers of two, which are as few as can be: of each place in these sums
# there are several, of which a level has one, or none.
_TERMS: dict[int, tuple[tuple[int, ...], ...]] = {
    0: ((0,),),
    1: ((8, 2),),
    2: ((4, 2), (4, 16)),
    3: ((1, 2), (2, 8), (2, 16), (1, 32, -4)),
    4: ((2,), (1, 4), (1, 8), (1, 16, -4), (1, 16), (2, 16, 4), (0, 32, -4), (1, 32, 4)),
}

# Layers of adders between two registers.
_LAYERS = 6


def levels_layout(engine: HadamardEngine) -> data.StructLayout:
    """A word of coefficients with their levels.

    Members:
        lanes: of each coefficient the sign; its bits, inverted if it is negative; and for each level but the
            last whether it has a larger one.
        first: this word is its block's first.
        special: its block holds specials; bits 1 and 2 say of which kind, and no sign is negative.
    """
    above = max(1, *map(len, engine.thresholds.values()))
    lane = data.StructLayout({"flipped": engine.coefficient_bits, "negative": 1, "above": above})
    return data.StructLayout({"lanes": data.ArrayLayout(lane, engine.lanes), "first": 1, "special": 1})


class Quantiser(wiring.Component):
    """Finds the level of each coefficient; in a cycle.

    Members:
        go: a word is taken, and what was found is given on.
        thresholds: of the block of the word at ``i``.
        o: the word taken last, with its levels.
        fields: what is stored of it: of each coefficient number of the level and sign; zeros above them.
    """

    def __init__(self, engine: HadamardEngine, switch: Switch):
        self._engine = engine
        self._switch = switch
        most = max(int(fmt.widths[0]) for fmt in engine.formats)
        super().__init__(
            {
                "go": In(1),
                "i": In(coefficients_layout(engine)),
                "thresholds": In(thresholds_layout(engine)),
                "o": Out(levels_layout(engine)),
                "fields": Out(data.ArrayLayout(most, engine.lanes)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        engine = self._engine
        found = Signal(levels_layout(engine))
        kept = Signal(levels_layout(engine), reset_less=True)
        first = Signal()
        with m.If(self.go):
            m.d.sync += [kept.eq(found), first.eq(self.i.first)]
        m.d.comb += [found.special.eq(self.i.special), self.o.eq(kept), self.o.first.eq(first)]
        thresholds = {
            width: [
                shift_right(m, f"threshold{width}_{j}", multiple, self.thresholds.pairs)
                for j, multiple in enumerate(self.thresholds[f"of{width}"] if values else ())
            ]
            for width, values in engine.thresholds.items()
        }
        here = engine.word_index(m, "here", self.go, self.i.first)
        kept_word = engine.word_index(m, "kept_word", self.go, first)
        for i, (coefficient, lane) in enumerate(zip(self.i.lanes, found.lanes, strict=True)):
            negative = let(m, f"negative{i}", ~coefficient[-1] & ~self.i.special)
            flipped = let(m, f"flipped{i}", coefficient[:-1] ^ negative.replicate(len(coefficient) - 1))
            m.d.comb += [lane.negative.eq(negative), lane.flipped.eq(flipped)]
            for j, is_above in enumerate(lane.above):
                ways = [
                    (engine.width_is(self._switch, i, width, here), thresholds[width][j])
                    for width in engine.widths_at(i)
                    if j < len(thresholds[width])
                ]
                if ways:
                    threshold = let(m, f"threshold_of{i}_{j}", _selected(ways))
                    m.d.comb += is_above.eq(_is_above(m, f"above{i}_{j}", flipped, negative, threshold))
        named = self._switch.when(lambda fmt: fmt.names_specials)
        for i, (lane, field) in enumerate(zip(kept.lanes, self.fields, strict=True)):
            kind = Mux(named, lane.flipped[KIND], 0)
            fields = [
                (engine.width_is(self._switch, i, width, kept_word), _field(lane, width, kept.special, kind))
                for width in engine.widths_at(i)
            ]
            m.d.comb += field.eq(_selected(fields))
        return m


def _selected(ways: list[tuple[Value, Value]]) -> Value:
    """The value whose condition is met."""
    if len(ways) == 1:
        return ways[0][1]
    size = max(len(value) for _, value in ways)
    return any_set(Cat(value, C(0, size - len(value))) & is_it.replicate(size) for is_it, value in ways)


def _is_above(m: Module, name: str, flipped: Value, negative: Value, threshold: Value) -> Value:
    """Whether a magnitude is larger than a number: the carry out of their difference.

    Args:
        flipped, negative: of the magnitude; it is the sum of both.
    """
    carry = negative
    for i, (bit, other) in enumerate(zip(flipped, threshold, strict=False)):
        carry = let(m, f"{name}_carry{i}", (bit & ~other) | ((bit | ~other) & carry))
    return carry | flipped[len(threshold) :].any()


def _field(lane, width: int, special: Value, kind: Value) -> Value:
    """What is stored of a coefficient: level and sign, or which kind of special the value in its place is."""
    if width == 0:
        return C(0, 1)
    if width == 1:
        return Mux(special, kind.any(), lane.negative)
    index = {2: lane.above[:1], 3: _count(lane.above[:3]), 4: _count(lane.above[:7])}[width]
    field = Cat(index, lane.negative)
    return Cat(Mux(special, kind, field[:2]), Mux(special, 0, field[2:]))


def _count(above: Value) -> Value:
    """How many bits are set, of which none is above one that is not."""
    if len(above) == 1:
        return above
    middle = len(above) // 2
    return Cat(_count(Mux(above[middle], above[middle + 1 :], above[:middle])), above[middle])


def product_bits(engine: HadamardEngine) -> int:
    """Of the largest product: no coefficient is beyond the root of all energy, and all are as large."""
    most = max(LEVELS[int(fmt.widths[0])][-1] for fmt in engine.formats) >> engine.halved
    return (most * isqrt(engine.block**3 << 2 * ALIGNED_BITS)).bit_length()


class Product(wiring.Component):
    """Adds up each magnitude times its level.

    Members:
        go: a word is taken, and all moves on.
        i: a word.
        summed: a block's final word was taken two cycles before, of those of ``go``.
        o: the block's sum, or half of it if all levels are even; from the cycle after ``summed`` on until
            that of the next.
    """

    TO_SUM, TO_PRODUCT = 2, 1

    def __init__(self, engine: HadamardEngine, switch: Switch):
        self._engine = engine
        self._switch = switch
        super().__init__(
            {
                "go": In(1),
                "i": In(levels_layout(engine)),
                "summed": In(1),
                "o": Out(product_bits(engine)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        engine = self._engine
        width = product_bits(engine)
        columns: Columns = [[] for _ in range(width)]
        word = engine.word_index(m, "word", self.go, self.i.first)
        for i, lane in enumerate(self.i.lanes):
            _place_terms(m, f"lane{i}", columns, lane, self._terms(i, lane, word))
        columns = registered(m, "products", compress(m, "words", columns, _LAYERS), self.go)

        starts = Signal()
        so_far = [Signal(width, name=f"sum{i}", reset_less=True) for i in range(2)]
        for number in so_far:
            for column, bit in zip(columns, Mux(starts, 0, number), strict=True):
                column.append(bit)
        rows = rows_of(compress(m, "blocks", columns))
        total = add(m, "total", *so_far, group=5)[:width]
        product = Signal(width, reset_less=True)
        with m.If(self.go):
            m.d.sync += [
                starts.eq(self.i.first),
                *(number.eq(row) for number, row in zip(so_far, rows, strict=True)),
            ]
        with m.If(self.go & self.summed):
            m.d.sync += product.eq(total)
        m.d.comb += self.o.eq(product)
        return m

    def _terms(self, i: int, lane, word: Value) -> list[dict[int, Value]]:
        """For each place in the sums that levels are: when which power of two is there."""
        engine = self._engine
        terms: list[dict[int, list[Value]]] = []
        for width in engine.widths_at(i):
            is_width = engine.width_is(self._switch, i, width, word)
            for level, powers in enumerate(_TERMS[width]):
                is_it = is_width
                if level > 0:
                    is_it = is_it & lane.above[level - 1]
                if level + 1 < len(_TERMS[width]):
                    is_it = is_it & ~lane.above[level]
                for number, power in enumerate(powers):
                    if number == len(terms):
                        terms.append({})
                    if power:
                        terms[number].setdefault(power >> engine.halved, []).append(is_it)
        return [{power: any_set(conditions) for power, conditions in term.items()} for term in terms if term]


def _place_terms(m: Module, name: str, columns: Columns, lane, terms: list[dict[int, Value]]) -> None:
    """Put into columns a magnitude times one power of two of each term."""
    bits, sign = lane.flipped, lane.negative
    for number, term in enumerate(terms):
        parts = []
        for power, is_it in term.items():
            at = abs(power).bit_length() - 1
            is_it = let(m, f"{name}_{number}_times{power}".replace("-", "minus"), is_it)
            if power > 0:
                columns[at].append(is_it & sign)
                parts.append(Cat(C(0, at), bits & is_it.replicate(len(bits))))
                continue
            # The negative is all bits inverted, and one, less the next power of two behind them.
            columns[at].append(is_it & ~sign)
            parts.append(Cat(C(0, at), ~bits & is_it.replicate(len(bits))))
            columns[at + len(bits)].append(~is_it)
            place(columns, C(-1, len(columns) - at - len(bits)), at + len(bits))
        size = max(map(len, parts))
        place(
            columns, let(m, f"{name}_{number}", any_set(Cat(part, C(0, size - len(part))) for part in parts))
        )
