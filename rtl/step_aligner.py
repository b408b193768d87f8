"""The compressor of the step format, first part: floats to integers of one unit for each block."""

from amaranth import C, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from golden.step import ALIGNED_BITS

from .engine import StepEngine
from .fields import leading_zeros, let
from .planes import any_set
from .scanner import largest_of
from .step_noise import BlockKey
from .stream import word_layout

__all__ = ["VALUE_BITS", "Aligner", "Passage", "aligned_layout", "signed_value", "steps_of", "with_carry"]

# Bits of an aligned value's magnitude.
VALUE_BITS = ALIGNED_BITS + 1

# Which step of its block one is; ``valid`` unless there is none. The steps of a block follow each other in
# successive cycles.
TAG = data.StructLayout({"valid": 1, "first": 1, "final": 1})


def steps_of(engine: StepEngine, lane: data.Layout) -> data.StructLayout:
    """A step, with this for each value."""
    return data.StructLayout({"tag": TAG, "lanes": data.ArrayLayout(lane, engine.lanes)})


def aligned_layout() -> data.StructLayout:
    """A value as an integer, or a special.

    Members:
        magnitude: of a special 1 if it is an infinity, 0 if it is a NaN.
        negative: 0 if the magnitude is.
    """
    return data.StructLayout({"magnitude": VALUE_BITS, "negative": 1, "special": 1})


def signed_value(lane) -> Value:
    """An aligned value as a signed integer, 0 for specials."""
    magnitude = Mux(lane.special, 0, lane.magnitude)
    return Mux(lane.negative, -magnitude, magnitude)


def with_carry(a: Value, b: Value, carry: Value) -> Value:
    """The sum of two signed numbers and a bit, as a single addition."""
    total = Cat(C(1), a).as_signed() + Cat(carry, b).as_signed()
    return total[1:].as_signed()


class Passage:
    """The steps of blocks on their way through some registers, and their tags on each of these."""

    def __init__(self, m: Module, go: Value, steps, cycles: int, name: str):
        self.tags = [steps.tag]
        self.lanes = [steps.lanes]
        for cycle in range(1, cycles + 1):
            tag = Signal(TAG, name=f"{name}_tag{cycle}")
            lanes = Signal(steps.lanes.shape(), name=f"{name}{cycle}", reset_less=True)
            with m.If(go):
                m.d.sync += [tag.eq(self.tags[-1]), lanes.eq(self.lanes[-1])]
            self.tags.append(tag)
            self.lanes.append(lanes)

    def starts(self, cycle: int) -> Value:
        """A block's first step is there."""
        return self.tags[cycle].valid & self.tags[cycle].first

    def ends(self, cycle: int) -> Value:
        """A block's final step is there."""
        return self.tags[cycle].valid & self.tags[cycle].final


class Aligner(wiring.Component):
    """Pads tensors to whole blocks, holds each block until its largest exponent is known, and aligns it.

    Takes a step a cycle. Once it holds a whole block, it gives its steps in successive cycles.

    Members:
        go: the steps given are taken; nothing else moves while it is 0, but what comes in.
        above: by how much ``top + 1`` is above the lowest grid, of the block that is given.
        masked: it holds specials.
        last: it ends its tensor.
        seed: of the tensor of which the first word is at ``i``.
        key: of the random bits of the block that is given.
    """

    def __init__(self, engine: StepEngine):
        self._engine = engine
        super().__init__(
            {
                "i": In(stream.Signature(word_layout(engine.word_bytes))),
                "go": In(1),
                "o": Out(steps_of(engine, aligned_layout())),
                "above": Out(8),
                "masked": Out(1),
                "last": Out(1),
                "seed": In(engine.key_bits),
                "key": Out(engine.key_bits),
            }
        )

    def elaborate(self, platform):
        m = Module()
        engine = self._engine
        ft = engine.float_type
        # How far the top bit of a subnormal may lie below that of the least normal number, to matter.
        depth = 2 if ft.exponent_bits == 8 else ft.mantissa_bits
        kept = min(ft.mantissa_bits, VALUE_BITS + depth - 1)
        # What is added to an exponent field for the ``above`` of a block with it as its largest.
        bias = 2 - (1 << ft.exponent_bits - 1) - engine.fmt.lowest_grid

        # A row of registers through which each step moves up as soon as there is room above it.
        full = Signal(engine.words)
        moves = [Signal(name=f"moves{i}") for i in range(engine.words)]

        index = Signal(range(engine.words))
        pads = Signal()
        comes = self.i.valid | pads
        final = index == engine.words - 1
        word = Mux(pads, 0, self.i.p.data)

        raw = data.StructLayout({"mantissa": kept, "field": ft.exponent_bits, "negative": 1})
        held_layout = data.StructLayout(
            {"lanes": data.ArrayLayout(raw, engine.lanes), "first": 1, "final": 1}
        )
        entering = Signal(held_layout)
        fields, lows, specials = [], [], []
        for i, lane in enumerate(entering.lanes):
            value = word.word_select(i, ft.width)
            mantissa, field, sign = value[: ft.mantissa_bits], value[ft.mantissa_bits : -1], value[-1]
            special = let(m, f"special{i}", field.all())
            lost = mantissa[: ft.mantissa_bits - kept].any() & special
            m.d.comb += [
                lane.mantissa.eq(mantissa[ft.mantissa_bits - kept :] | lost),
                lane.field.eq(field),
                lane.negative.eq(sign),
            ]
            specials.append(special)
            fields.append(let(m, f"finite_field{i}", Mux(special, 0, field)))
            lows.append(Mux(field.any(), 0, mantissa[-depth:]))

        m.d.comb += [
            entering.first.eq(index == 0),
            entering.final.eq(final),
            self.i.ready.eq(moves[0] & ~pads),
        ]
        highest, low, any_special = Signal(ft.exponent_bits), Signal(depth), Signal()
        while len(fields) > 1:
            fields = [
                let(m, f"highest_of_{len(fields)}_{i}", largest_of(fields[i : i + 2]))
                for i in range(0, len(fields), 2)
            ]
        first = entering.first
        before = let(m, "highest_before", Mux(first, 0, highest))
        highest_now = let(m, "highest_now", largest_of([fields[0], before]))
        low_now = let(m, "low_now", any_set(lows) | Mux(first, 0, low))
        special_now = let(m, "special_now", Cat(specials).any() | (any_special & ~first))
        padded = 1 << (depth).bit_length()
        zeros = leading_zeros(Cat(C(0, padded - depth - 1), C(1, 1), low_now))
        above = Mux(highest_now.any(), highest_now + bias, Mux(zeros == depth, 0, (bias - zeros)[:8]))
        with m.If(comes & moves[0]):
            m.d.sync += [
                index.eq(Mux(final, 0, index + 1)),
                pads.eq(Mux(final, 0, pads | self.i.p.last)),
                highest.eq(highest_now),
                low.eq(low_now),
                any_special.eq(special_now),
            ]
            with m.If(final):
                m.d.sync += [
                    self.above.eq(above),
                    self.masked.eq(special_now),
                    self.last.eq(pads | self.i.p.last),
                ]
        if engine.key_bits:
            starts = Signal(init=1)
            key = BlockKey(m, comes & moves[0], entering.first, starts, self.seed)
            with m.If(comes & moves[0]):
                m.d.sync += starts.eq(final & (pads | self.i.p.last))
                with m.If(final):
                    m.d.sync += self.key.eq(key.value)

        # The first step of a block leaves once all of them are there.
        held = [Signal(entering.shape(), name=f"held{i}", reset_less=True) for i in range(engine.words)]
        leaving = held[-1]
        gives = full[-1] & (full.all() | ~leaving.first)
        for i, step in enumerate(held):
            before, there = (held[i - 1], full[i - 1]) if i else (entering, comes)
            m.d.comb += moves[i].eq(~full[i:].all() | (self.go & gives))
            with m.If(moves[i]):
                m.d.sync += full[i].eq(there)
                with m.If(there):
                    m.d.sync += step.eq(before)
        m.d.comb += [
            self.o.tag.valid.eq(gives),
            self.o.tag.first.eq(leaving.first),
            self.o.tag.final.eq(leaving.final),
        ]
        # A value is shifted to the right from where it would be with the block's largest exponent.
        base = let(m, "base", self.above + (depth - bias))
        for i, (lane, value) in enumerate(zip(leaving.lanes, self.o.lanes, strict=True)):
            normal = lane.field.any()
            field = Cat(lane.field[0] | ~normal, lane.field[1:])
            amount = let(m, f"amount{i}", (base - field)[:9])
            significand = Cat(C(0, VALUE_BITS + depth - 1 - kept), lane.mantissa, normal)
            shifted = let(m, f"shifted{i}", (significand >> amount[:5])[:VALUE_BITS])
            special = lane.field.all()
            infinity = special & ~lane.mantissa.any()
            magnitude = let(m, f"magnitude{i}", Mux(special, infinity, Mux(amount[5:].any(), 0, shifted)))
            m.d.comb += [
                value.magnitude.eq(magnitude),
                value.negative.eq(lane.negative & magnitude.any()),
                value.special.eq(special),
            ]
        return m
