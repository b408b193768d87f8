"""The compressor's first stage: values as integers, aligned to the largest of their block."""

from amaranth import C, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from golden.hadamard import ALIGNED_BITS, MINUS_INFINITY, NAN, PLUS_INFINITY

from ..arith.sums import difference, increment, let, shift_right
from ..arith.trees import largest_of
from ..stream import NUMBER_BITS, DelayLine, Switch, word_layout
from .counter import BlockCounter
from .engine import HadamardEngine
from .pattern import Pattern
from .transform import KIND, aligned_layout

__all__ = ["Aligner", "block_layout"]

# Values that are aligned to the largest of them before that of the block is known; and how many of them it is
# found among in the cycle in which they come.
_GROUP, _PART = 16, 8

# A magnitude, and one bit more to round by.
_BITS = ALIGNED_BITS + 1

# Bits of a distance at which something is left of a magnitude that moves.
_NEAR = 4


def block_layout(engine: HadamardEngine) -> data.StructLayout:
    """What is known of a block.

    Members:
        top: the exponent field that its values are aligned to.
        special: some of them are special.
        last: it ends its tensor.
    """
    return data.StructLayout({"top": engine.float_type.exponent_bits, "special": 1, "last": 1})


class Aligner(wiring.Component):
    """Pads tensors to whole blocks, aligns each block's values, and flips them by the sign pattern.

    Takes a word a cycle. A block's first word is given :attr:`LATENCY` cycles after its last one was taken,
    and the others in the cycles of ``go`` behind it.

    A value loses bits twice, before and after it waits for the rest of its block, as it is narrower in
    between; what is lost at first would be lost anyway.

    Members:
        first: the number of the first block of the tensor whose first word is at ``i``.
        go: what is at ``o`` is taken.
        o: a word of values; of no block if there has been no ``first`` for as many words as a block has.
        block: of the word at ``o``.
    """

    LATENCY = 3

    def __init__(self, engine: HadamardEngine, switch: Switch):
        self._engine = engine
        self._switch = switch
        super().__init__(
            {
                "i": In(stream.Signature(word_layout(engine.word_bytes))),
                "first": In(NUMBER_BITS),
                "go": In(1),
                "o": Out(aligned_layout(engine)),
                "block": Out(block_layout(engine)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        engine = self._engine
        m.submodules.line = line = DelayLine(_narrow_layout(engine).size, engine.words)
        m.submodules.counter = counter = BlockCounter()
        m.submodules.pattern = pattern = Pattern(engine.lanes)

        # The word that was taken last.
        word = Signal(_wide_layout(engine), reset_less=True)
        full = Signal()
        final = Signal()
        index = Signal(range(engine.words))
        pads = Signal()
        starts = Signal(init=1)
        # A block is complete with its final word. Then none of the block before it may be in the line.
        leaves = Signal()  # words of a complete block
        leaves_last = Signal()
        m.d.comb += line.i.valid.eq(full & ~(final & leaves & ~leaves_last))
        moves = let(m, "moves", line.i.valid & line.i.ready)
        room = let(m, "room", ~full | moves)
        takes = let(m, "takes", (self.i.valid | pads) & room)
        m.d.comb += self.i.ready.eq(room & ~pads)
        taken = self._taken(m)
        is_final = index == engine.words - 1
        ends = pads | self.i.p.last
        with m.If(room):
            m.d.sync += full.eq(takes)
        with m.If(takes):
            m.d.sync += [
                index.eq(Mux(is_final, 0, index + 1)),
                pads.eq(ends & ~is_final),
                starts.eq(ends & is_final),
                final.eq(is_final),
                word.eq(Mux(pads, 0, taken)),
                word.last.eq(ends),
            ]

        complete = let(m, "complete", moves & final)
        m.d.comb += [
            counter.load.eq(takes & starts),
            counter.first.eq(self.first),
            counter.count.eq(complete),
        ]

        # The largest exponent so far, and of the block that leaves.
        narrow = Signal(_narrow_layout(engine))
        _align_groups(m, engine, self._switch, word, narrow)
        so_far = Signal(block_layout(engine))
        now, block = (Signal.like(so_far, name=name, reset_less=True) for name in ("now", "leaving"))
        m.d.comb += [
            line.i.payload.eq(narrow),
            now.top.eq(_largest(m, "top", [*(group.highest for group in narrow.groups), so_far.top])),
            now.special.eq(so_far.special | Cat(group.special for group in narrow.groups).any()),
            now.last.eq(word.last),
        ]
        with m.If(moves):
            m.d.sync += so_far.eq(Mux(final, 0, now))
        with m.If(complete):
            m.d.sync += block.eq(now)

        out_index = Signal(range(engine.words))
        pops = let(m, "pops", leaves & self.go)
        m.d.comb += [
            line.o.ready.eq(pops),
            leaves_last.eq(self.go & (out_index == engine.words - 1)),
            pattern.start.eq(complete),
            pattern.number.eq(counter.number),
            pattern.next.eq(pops),
        ]
        with m.If(pops):
            m.d.sync += [out_index.eq(out_index + 1), leaves.eq(~leaves_last)]
        with m.If(complete):
            m.d.sync += leaves.eq(1)

        aligned = Signal(aligned_layout(engine), reset_less=True)
        first = Signal()
        given = Signal.like(block, reset_less=True)
        leaving = Signal(_narrow_layout(engine))
        m.d.comb += leaving.eq(line.o.payload)
        lanes = _align(m, engine, leaving, block, pattern.signs)
        with m.If(self.go):
            m.d.sync += first.eq(leaves & (out_index == 0))
        with m.If(pops):
            m.d.sync += [aligned.lanes.eq(lanes), given.eq(block)]
        m.d.comb += [
            self.o.eq(aligned),
            self.o.first.eq(first),
            self.o.special.eq(given.special),
            self.block.eq(given),
        ]
        return m

    def _taken(self, m: Module) -> Value:
        """The word at the input, taken apart."""
        engine = self._engine
        ft = engine.float_type
        word = Signal(_wide_layout(engine), name="taken")
        fields = []
        for i, lane in enumerate(word.lanes):
            value = self.i.p.data.word_select(i, ft.width)
            mantissa, field = value[: ft.mantissa_bits], value[ft.mantissa_bits : -1]
            rest, kept = mantissa[: -len(lane.mantissa)], mantissa[-len(lane.mantissa) :]
            # Of a special, the lowest bit that is kept says whether it is a NaN.
            m.d.comb += [
                lane.field.eq(field),
                lane.negative.eq(value[-1]),
                lane.mantissa.eq(Cat(Mux(field.all(), kept.any() | rest.any(), kept[0]), kept[1:])),
            ]
            fields.append(field)
        size = engine.lanes // len(word.highest)
        for i, highest in enumerate(word.highest):
            m.d.comb += highest.eq(_largest(m, f"highest{i}", fields[i * size : (i + 1) * size]))
        return word


def _wide_layout(engine: HadamardEngine) -> data.StructLayout:
    """A word of values that are not aligned yet, and the highest exponent field of each part."""
    ft = engine.float_type
    lane = data.StructLayout(
        {"mantissa": min(ft.mantissa_bits, ALIGNED_BITS), "field": ft.exponent_bits, "negative": 1}
    )
    highest = data.ArrayLayout(ft.exponent_bits, max(engine.lanes // _PART, 1))
    return data.StructLayout({"lanes": data.ArrayLayout(lane, engine.lanes), "highest": highest, "last": 1})


def _narrow_layout(engine: HadamardEngine) -> data.StructLayout:
    """A word of values that are aligned to the highest exponent of their group.

    Where a group has specials, bits 1 and 2 of each magnitude are what kind of special it is, or 0.
    """
    lane = data.StructLayout({"magnitude": _BITS, "negative": 1})
    group = data.StructLayout({"highest": engine.float_type.exponent_bits, "special": 1})
    groups = max(engine.lanes // _GROUP, 1)
    return data.StructLayout(
        {"lanes": data.ArrayLayout(lane, engine.lanes), "groups": data.ArrayLayout(group, groups)}
    )


def _align_groups(m: Module, engine: HadamardEngine, switch: Switch, word, narrow) -> None:
    least = switch.choose(lambda fmt: 1 + engine.exponent_offset(fmt.float_type))
    size = engine.lanes // len(narrow.groups)
    parts = len(word.highest) // len(narrow.groups)
    for g, group in enumerate(narrow.groups):
        highest = _largest(m, f"group_highest{g}", list(word.highest)[g * parts : (g + 1) * parts])
        highest = let(m, f"exponent{g}", _exponent(highest, least))
        here = range(g * size, (g + 1) * size)
        specials = [let(m, f"special{i}", word.lanes[i].field.all()) for i in here]
        special = let(m, f"specials{g}", Cat(specials).any())
        m.d.comb += [group.highest.eq(highest), group.special.eq(special)]
        for i, is_special in zip(here, specials, strict=True):
            lane = word.lanes[i]
            significand = Cat(C(0, ALIGNED_BITS - len(lane.mantissa)), lane.mantissa, lane.field.any())
            below = difference(m, f"below{i}", highest, _exponent(lane.field, least))
            magnitude = _moved(m, f"moved{i}", significand, below)
            kind = Mux(lane.mantissa[0], NAN, Mux(lane.negative, MINUS_INFINITY, PLUS_INFINITY))
            m.d.comb += [
                narrow.lanes[i].magnitude.eq(magnitude),
                narrow.lanes[i].negative.eq(lane.negative),
            ]
            with m.If(special):
                m.d.comb += narrow.lanes[i].magnitude[KIND].eq(Mux(is_special, kind, 0))


def _align(m: Module, engine: HadamardEngine, word, block, signs: Value) -> Value:
    """The lanes of :func:`rtl.hadamard.transform.aligned_layout`."""
    lanes = []
    for g, group in enumerate(word.groups):
        below = difference(m, f"group_below{g}", block.top, group.highest)
        far = let(m, f"group_far{g}", below[_NEAR:].any())
        size = engine.lanes // len(word.groups)
        for i in range(g * size, (g + 1) * size):
            lane = word.lanes[i]
            moved = shift_right(m, f"finally_moved{i}", lane.magnitude, below[:_NEAR])
            # Half of a unit and more is rounded up, but not beyond what there are bits for.
            up = moved[0] & ~(lane.magnitude.all() & (below[:_NEAR] == 0))
            rounded = increment(m, f"rounded{i}", moved[1:], up, 4)
            kind = Mux(block.special, Mux(group.special, lane.magnitude[KIND], 0), Mux(far, 0, rounded[KIND]))
            bits = [Mux(far, 0, rounded[: KIND.start]), kind, Mux(far, 0, rounded[KIND.stop :])]
            lanes.append(Cat(bits, (lane.negative ^ signs[i]) & ~block.special))
    return Cat(lanes)


def _exponent(field: Value, least: Value) -> Value:
    """That of a subnormal is the one of the least normal number."""
    return field | Mux(field.any(), 0, least)


def _moved(m: Module, name: str, magnitude: Value, below: Value) -> Value:
    """A magnitude moved down by a difference of exponents; nothing is left of it if that is large."""
    moved = shift_right(m, name, magnitude, below[:_NEAR])
    return let(m, f"{name}_near", Mux(below[_NEAR:].any(), 0, moved))


def _largest(m: Module, name: str, values: list[Value]) -> Value:
    """The largest of some numbers: up to four at once, of more those of pairs first."""
    size = 2 if len(values) > 4 else 4
    while len(values) > 1:
        groups = [values[i : i + size] for i in range(0, len(values), size)]
        values = [let(m, f"{name}_of{len(groups)}_{i}", largest_of(group)) for i, group in enumerate(groups)]
        size = 4
    return values[0]
