"""The decompressor's first half: coefficients, transformed back to integers."""

from amaranth import C, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from golden import HadamardFormat
from golden.hadamard import FRACTION_BITS, HEADER_BITS, LEVELS, NAN, SPECIALS, ZEROS

from ..arith.sums import add, butterfly, increment, let
from ..arith.trees import any_set
from ..stream import NUMBER_BITS, Switch, word_layout
from .engine import HadamardEngine
from .pattern import Pattern
from .stages import Stages

__all__ = ["Reader", "largest_sum", "sums_layout"]


def largest_sum(engine: HadamardEngine) -> int:
    """The largest sum of a block's levels, each half of what it is if all are even."""
    sums = (sum(LEVELS[width][-1] for width in fmt.widths if width) for fmt in engine.formats)
    return max(sums) >> engine.halved


def sums_layout(engine: HadamardEngine) -> data.StructLayout:
    """A word of sums.

    Members:
        lanes: of each value magnitude and sign of the sum, and of what kind of special it is, 0 for none.
        scale: of the header: what the sums are to be multiplied by.
        error: the block could not be decoded.
        last: this word ends its tensor.
    """
    lane = data.StructLayout({"magnitude": range(largest_sum(engine) + 1), "negative": 1, "kind": 2})
    return data.StructLayout(
        {"lanes": data.ArrayLayout(lane, engine.lanes), "scale": HEADER_BITS, "error": 1, "last": 1}
    )


# Levels of adders between two registers.
_LEVELS = 3


class Reader(wiring.Component):
    """Transforms blocks, a word of values a cycle.

    All coefficients are at hand in every cycle, so that those which only differ in the number of their word
    are added up at once, with the signs that the word of values asks for. The butterflies of a word follow.
    Numbers have an offset, as in :mod:`rtl.hadamard.transform`.

    A block's first word is offered :meth:`latency` cycles after the block was. The block is taken with its
    last word.

    Members:
        number: of the block at ``i``.
        begins: its first word is taken in.
    """

    def __init__(self, engine: HadamardEngine, switch: Switch):
        self._engine = engine
        self._switch = switch
        super().__init__(
            {
                "i": In(stream.Signature(word_layout(engine.target, error=True))),
                "number": In(NUMBER_BITS),
                "begins": Out(1),
                "o": Out(stream.Signature(sums_layout(engine))),
            }
        )

    @staticmethod
    def latency(engine: HadamardEngine) -> int:
        return -(-exact_log2(engine.block) // _LEVELS) + 1

    def elaborate(self, platform):
        m = Module()
        engine = self._engine
        count = self.latency(engine)
        stages = Stages(m, "stage", self.i.valid, self.o.ready, count)
        index = Signal(range(engine.words))
        final = index == engine.words - 1
        m.d.comb += [
            self.i.ready.eq(stages.room & final),
            self.begins.eq(stages.takes[0] & (index == 0)),
            self.o.valid.eq(stages.full[-1]),
        ]
        # Which words' coefficients change their sign in a word of values: those whose numbers have an odd
        # number of ones in common with its own.
        flips = [Signal(name=f"flips{word}") for word in range(engine.words)]
        following = let(m, "following", (index + 1)[: len(index)])
        with m.If(stages.takes[0]):
            m.d.sync += index.eq(following)
            m.d.sync += [flip.eq((following & word).xor()) for word, flip in enumerate(flips)]
        m.submodules.pattern = pattern = Pattern(engine.lanes)
        m.d.comb += [
            pattern.start.eq(self.begins),
            pattern.number.eq(self.number),
            pattern.next.eq(stages.takes[0] & ~self.begins),
        ]

        header = self.i.p.data[:HEADER_BITS]
        is_scale = let(m, "is_scale", header[FRACTION_BITS:].any() & ~self.i.p.error)
        beside = Signal(_beside_layout(engine))
        m.d.comb += [
            beside.scale.eq(header),
            beside.error.eq(self.i.p.error | (~is_scale & (header != ZEROS) & (header != SPECIALS))),
            beside.last.eq(self.i.p.last & final),
        ]
        with m.If((header == SPECIALS) & ~self.i.p.error):
            m.d.comb += Cat(beside.kinds).eq(self._kinds(index))

        lanes, bit, signs = self._leaves(m, flips), 0, None
        for number, takes in enumerate(stages.takes):
            name = f"stage{number}"
            if number < count - 1:
                for level in range(_LEVELS):
                    if len(lanes[0]) > 1:
                        lanes = _added(m, f"{name}_{level}", lanes)
                    elif bit < exact_log2(engine.lanes):
                        lanes = _butterflies(m, f"{name}_{level}", lanes, 1 << bit)
                        bit += 1
            else:
                lanes = [[_magnitude(m, f"value{i}", sums[0], signs[i])] for i, sums in enumerate(lanes)]
            values = [
                [_kept(m, f"{name}_{i}_{j}", takes, value) for j, value in enumerate(sums)]
                for i, sums in enumerate(lanes)
            ]
            if number == 0:
                with m.If(takes & ~is_scale):
                    m.d.sync += [value.eq(1 << len(value) - 1) for sums in values for value in sums]
            lanes = values
            beside = _kept(m, f"{name}_beside", takes, beside)
            signs = pattern.signs if number == 0 else _kept(m, f"{name}_signs", takes, signs)
        m.d.comb += [
            *(
                Cat(lane).eq(Cat(number[: len(lane.magnitude)], number[-1], kind))
                for lane, (number,), kind in zip(self.o.p.lanes, lanes, beside.kinds, strict=True)
            ),
            *(self.o.p[name].eq(beside[name]) for name in ("scale", "error", "last")),
        ]
        return m

    def _leaves(self, m: Module, flips: list[Signal]) -> list[list[Value]]:
        """For each lane the coefficients of all words, with the signs that they have in a word of values."""
        engine = self._engine
        largest = max(LEVELS[width][-1] for width in engine.thresholds)
        bits = 1 + (largest >> engine.halved).bit_length()
        places = {
            fmt: list(zip(fmt.widths.tolist(), (fmt.widths.cumsum() - fmt.widths).tolist(), strict=True))
            for fmt in engine.formats
        }

        def leaf(number: int, flip: Value) -> Value:
            def at(place: tuple[int, int]) -> Value:
                width, start = place
                name = f"coefficient{number}_of{width}_at{start}"
                field = self.i.p.data[HEADER_BITS + start :][:width]
                return _level_of(m, name, field, flip, bits, engine.halved)

            return self._switch.choose(lambda fmt: places[fmt][number], at)

        return [
            [leaf(word * engine.lanes + lane, flips[word]) for word in range(engine.words)]
            for lane in range(engine.lanes)
        ]

    def _kinds(self, index: Value) -> Value:
        """Of what kind of special the values of a word are."""
        engine = self._engine

        def of(fmt: HadamardFormat) -> Value:
            if not fmt.names_specials:
                return Cat(C(NAN, 2) for _ in range(engine.lanes))
            starts = HEADER_BITS + fmt.widths.cumsum() - fmt.widths
            kinds = [
                Cat(self.i.p.data[int(start) :][: min(int(width), 2)], C(0, 1))[:2]
                for start, width in zip(starts, fmt.widths, strict=True)
            ]
            return any_set(
                Mux(index == word, Cat(kinds[word * engine.lanes :][: engine.lanes]), 0)
                for word in range(engine.words)
            )

        return self._switch.choose(lambda fmt: fmt, of)


def _beside_layout(engine: HadamardEngine) -> data.StructLayout:
    """What goes along with the sums: see :func:`sums_layout`."""
    kinds = data.ArrayLayout(2, engine.lanes)
    return data.StructLayout({"kinds": kinds, "scale": HEADER_BITS, "error": 1, "last": 1})


def _kept(m: Module, name: str, takes: Value, value):
    kept = Signal(value.shape(), name=name, reset_less=True)
    with m.If(takes):
        m.d.sync += kept.eq(value)
    return kept


def _level_of(m: Module, name: str, field: Value, flip: Value, bits: int, halved: bool) -> Value:
    """The coefficient that a field stands for, negated if it is flipped, with an offset."""
    offset = 1 << bits - 1
    level = Signal(bits, name=name, init=offset)
    if not len(field):
        return level
    with m.Switch(Cat(field[:-1], field[-1] ^ flip)):
        for number, magnitude in enumerate(LEVELS[len(field)]):
            with m.Case(number):
                m.d.comb += level.eq(offset + (magnitude >> halved))
            with m.Case(number | 1 << len(field) - 1):
                m.d.comb += level.eq(offset - (magnitude >> halved))
    return level


def _added(m: Module, name: str, lanes: list[list[Value]]) -> list[list[Value]]:
    """Every lane's values in pairs."""
    half = len(lanes[0]) // 2
    return [
        [
            add(m, f"{name}_{i}_{j}", a, b)
            for j, (a, b) in enumerate(zip(values[:half], values[half:], strict=True))
        ]
        for i, values in enumerate(lanes)
    ]


def _butterflies(m: Module, name: str, lanes: list[list[Value]], bit: int) -> list[list[Value]]:
    result = list(lanes)
    for low in range(len(lanes)):
        if not low & bit:
            (a,), (b,) = lanes[low], lanes[low | bit]
            total, less, carry, borrow = butterfly(m, f"{name}_{low}", a, b, C(0), C(0))
            result[low], result[low | bit] = [Cat(total, carry)], [Cat(less, ~borrow)]
    return result


def _magnitude(m: Module, name: str, number: Value, flip: Value) -> Value:
    """The magnitude of a number with an offset, and behind it its sign, the other one if it is flipped."""
    negative = ~number[-1]
    flipped = let(m, f"{name}_flipped", number[:-1] ^ negative.replicate(len(number) - 1))
    return Cat(increment(m, f"{name}_magnitude", flipped, negative, 4), negative ^ flip)
