"""The decompressor of the step format, last part: integers to floats, rounded to what the type has."""

from amaranth import C, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from golden.step import FIELDS

from .engine import StepEngine
from .fields import Register, leading_zeros, let
from .stream import word_layout

__all__ = ["INFINITY", "MAGNITUDE_BITS", "NAN", "Composer", "integers_layout"]

# Kinds of specials; 0 is none.
NAN, INFINITY = 1, 2

# The widest core and wide field, and the largest offset, make an integer of at most so many bits.
MAGNITUDE_BITS = 17


def integers_layout(engine: StepEngine) -> data.StructLayout:
    """A step of values as integers.

    Members:
        lanes: of each value its magnitude in fine steps, its sign, and what kind of special it is.
        grid: of the header.
        error: the block could not be decoded.
        last: this step ends its tensor.
    """
    lane = data.StructLayout({"magnitude": MAGNITUDE_BITS, "negative": 1, "kind": 2})
    return data.StructLayout(
        {"lanes": data.ArrayLayout(lane, engine.lanes), "grid": FIELDS["grid"], "error": 1, "last": 1}
    )


class Composer(wiring.Component):
    """Turns integers, counted in fine steps, into the nearest floats: two cycles, a step a cycle."""

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

        normal = Register(m, _normal_layout(engine), self.i.ready & self.i.valid, "normal")
        word = Register(m, self.o.p.shape(), word_room & full, "word")
        _normalise(m, engine, self.i.payload, normal.next)
        values = Cat(_rounded(m, engine, lane, str(i)) for i, lane in enumerate(normal.now.lanes))
        m.d.comb += [
            word.next.data.eq(Mux(normal.now.error, 0, values)),
            word.next.last.eq(normal.now.last),
            word.next.error.eq(normal.now.error),
            self.o.payload.eq(word.now),
        ]
        return m


def _significand_bits(engine: StepEngine) -> int:
    """Bits that integers are shifted to the top of, so many that none has to be shifted to the right."""
    return max(MAGNITUDE_BITS, 1 - _slack(engine))


def _slack(engine: StepEngine) -> int:
    """By how many exponents the least of steps is above the least normal number."""
    least_normal = 2 - (1 << engine.float_type.exponent_bits - 1)
    return engine.fmt.lowest_grid - least_normal


def _normal_layout(engine: StepEngine) -> data.StructLayout:
    """A step of values as floats without a limit, to be rounded.

    Members:
        lanes: of each value its significand, with the top bit set unless it is subnormal or zero; the
            exponent field that this would be; sign and kind.
    """
    lane = {
        "significand": _significand_bits(engine),
        "exponent": FIELDS["grid"] + 1,
        "negative": 1,
        "kind": 2,
    }
    lanes = data.ArrayLayout(data.StructLayout(lane), engine.lanes)
    return data.StructLayout({"lanes": lanes, "error": 1, "last": 1})


def _normalise(m: Module, engine: StepEngine, integers, normal) -> None:
    """Shifts each integer to the left, to the top but no further than a subnormal's place."""
    bits = _significand_bits(engine)
    # With bit b as its top bit, an integer has the exponent field grid + slack + b + 1, but no less than 1.
    lowest_top = -_slack(engine) - integers.grid  # the bit of the least normal number
    least = let(m, "least", Cat(lowest_top == bit for bit in range(bits)))
    for i, (lane, integer) in enumerate(zip(normal.lanes, integers.lanes, strict=True)):
        padding = C(0, (1 << (bits - 1).bit_length()) - bits)
        marked = let(m, f"marked{i}", (integer.magnitude | least)[:bits])
        zeros = let(m, f"zeros{i}", leading_zeros(Cat(padding, marked)))
        m.d.comb += [
            lane.significand.eq((integer.magnitude << zeros)[:bits]),
            lane.exponent.eq(integers.grid + (_slack(engine) + bits) - zeros),
            lane.negative.eq(integer.negative),
            lane.kind.eq(integer.kind),
        ]
    m.d.comb += [normal.error.eq(integers.error), normal.last.eq(integers.last)]


def _rounded(m: Module, engine: StepEngine, lane, name: str) -> Value:
    """The float of a lane."""
    ft = engine.float_type
    significand = Cat(C(0, ft.mantissa_bits), lane.significand)
    whole, rest = significand[-1 - ft.mantissa_bits :], lane.significand[: -1 - ft.mantissa_bits]
    up = rest[-1:].any() & (rest[:-1].any() | whole[0])
    bits = Cat(whole[:-1], Mux(whole[-1], lane.exponent, 0)) + up
    rounded = let(m, f"rounded{name}", bits[: ft.mantissa_bits + len(lane.exponent)])
    too_large = rounded[ft.mantissa_bits :] >= ft.exponent_max
    finite = Mux(too_large, (ft.exponent_max << ft.mantissa_bits) - 1, rounded[: ft.width - 1])
    special = Cat(C(0, ft.mantissa_bits - 1), lane.kind == NAN, C(ft.exponent_max, ft.exponent_bits))
    is_special = lane.kind.any()
    sign = lane.negative & Mux(is_special, lane.kind != NAN, rounded.any())
    return Cat(Mux(is_special, special, finite), sign)
