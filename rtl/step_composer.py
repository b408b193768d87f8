"""The decompressor of the step format, last part: integers to floats, rounded to what the type has."""

from amaranth import C, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from golden.step import FIELDS

from .engine import StepEngine
from .fields import Register, leading_zeros, let
from .stream import word_layout

__all__ = ["INFINITY", "NAN", "Composer", "integers_layout"]

# Kinds of specials; 0 is none.
NAN, INFINITY = 1, 2

# The widest core and the widest field of an escape make an integer of at most so many bits.
_BITS = 16


def integers_layout(engine: StepEngine) -> data.StructLayout:
    """A step of values as integers.

    Members:
        lanes: of each value its magnitude in fine steps; its sign, 0 of zeros and NaNs; and what kind of
            special it is.
        grid: of the header.
        error: the block could not be decoded.
        last: this step ends its tensor.
    """
    lane = data.StructLayout({"magnitude": _BITS, "negative": 1, "kind": 2})
    return data.StructLayout(
        {"lanes": data.ArrayLayout(lane, engine.lanes), "grid": FIELDS["grid"], "error": 1, "last": 1}
    )


class Composer(wiring.Component):
    """Turns integers, counted in fine steps, into the nearest floats: two cycles, a step a cycle.

    The first is to find how far to shift each integer, the second to shift and to round it.
    """

    def __init__(self, engine: StepEngine):
        self._engine = engine
        super().__init__(
            {
                "i": In(stream.Signature(integers_layout(engine))),
                "o": Out(stream.Signature(word_layout(engine.word_bytes, error=True))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        engine = self._engine
        full = Signal()
        word_room = ~self.o.valid | self.o.ready
        m.d.comb += self.i.ready.eq(~full | word_room)
        with m.If(self.i.ready):
            m.d.sync += full.eq(self.i.valid)
        with m.If(word_room):
            m.d.sync += self.o.valid.eq(full)

        shifts = data.ArrayLayout(range(_BITS), engine.lanes)
        layout = data.StructLayout({"integers": integers_layout(engine), "shifts": shifts})
        step = Register(m, layout, self.i.ready & self.i.valid, "step")
        word = Register(m, self.o.p.shape(), word_room & full, "word")
        integers = step.now.integers
        m.d.comb += step.next.integers.eq(self.i.payload)
        _find_shifts(m, engine, self.i.payload, step.next.shifts)
        lanes = zip(integers.lanes, step.now.shifts, strict=True)
        highest = let(m, "highest", integers.grid + (_BITS - _below_normal(engine)))
        values = Cat(_float(m, engine, highest, *lane, str(i)) for i, lane in enumerate(lanes))
        m.d.comb += [
            word.next.data.eq(Mux(integers.error, 0, values)),
            word.next.last.eq(integers.last),
            word.next.error.eq(integers.error),
            self.o.payload.eq(word.now),
        ]
        return m


def _below_normal(engine: StepEngine) -> int:
    """By how many exponents the least of steps is below the least normal number."""
    least_normal = 2 - (1 << engine.float_type.exponent_bits - 1)
    return least_normal - engine.fmt.lowest_grid


def _find_shifts(m: Module, engine: StepEngine, integers, shifts) -> None:
    """How far each integer is from the top or, in a subnormal, its exponent from the least."""
    # Where the top bit of the least normal number is, for each grid on which there are numbers below it.
    below = _below_normal(engine)
    least = let(m, "least", Cat(C(0, 1), (integers.grid == below - bit for bit in range(1, below + 1))))
    for i, (shift, lane) in enumerate(zip(shifts, integers.lanes, strict=True)):
        magnitude = let(m, f"magnitude{i}", lane.magnitude)
        m.d.comb += shift.eq(leading_zeros(magnitude | least))


def _float(m: Module, engine: StepEngine, highest: Value, integer, shift: Value, name: str) -> Value:
    """The float nearest to an integer."""
    ft = engine.float_type
    shifted = let(m, f"shifted{name}", (integer.magnitude << shift)[:_BITS])
    significand = Cat(C(0, ft.mantissa_bits), shifted)[-1 - ft.mantissa_bits :]
    rest = shifted[: -1 - ft.mantissa_bits]
    up = rest[-1:].any() & (rest[:-1].any() | significand[0])
    exponent = let(m, f"exponent{name}", (highest - shift)[: len(highest)])
    exponent = Mux(significand[-1], exponent, 0)
    down = Cat(significand[:-1], exponent)
    rounded = let(m, f"rounded{name}", Mux(up, (down + 1)[: len(down)], down))
    too_large = rounded[ft.mantissa_bits :] >= ft.exponent_max
    finite = Mux(too_large, (ft.exponent_max << ft.mantissa_bits) - 1, rounded[: ft.width - 1])
    special = Cat(C(0, ft.mantissa_bits - 1), integer.kind == NAN, C(ft.exponent_max, ft.exponent_bits))
    return Cat(Mux(integer.kind.any(), special, finite), integer.negative)
