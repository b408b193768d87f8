"""The decompressor's second half: integers times a scale, as floats."""

from amaranth import C, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from golden.floats import FloatType
from golden.hadamard import FRACTION_BITS, HEADER_BITS, MINUS_INFINITY, NAN, SCALE_BIAS

from ..arith.sums import Columns, add, compress, difference, increment, let, place, rows_of, shift_left
from ..arith.trees import leading_zeros
from ..stream import Switch, word_layout
from .engine import HadamardEngine
from .reader import largest_sum, sums_layout
from .stages import Stages

__all__ = ["Composer"]

_EXPONENT_BITS = HEADER_BITS - FRACTION_BITS


class Composer(wiring.Component):
    """Multiplies sums by their block's scale, and rounds to the nearest floats, a word a cycle.

    A word is offered :meth:`latency` cycles after the sums were: one to multiply, one to find the leading
    bit, and one to round if a type has fewer bits than products can have.
    """

    def __init__(self, engine: HadamardEngine, switch: Switch):
        self._engine = engine
        self._switch = switch
        super().__init__(
            {
                "i": In(stream.Signature(sums_layout(engine))),
                "o": Out(stream.Signature(word_layout(engine.word_bytes, error=True))),
            }
        )

    @staticmethod
    def latency(engine: HadamardEngine) -> int:
        return 2 + bool(_rounded(engine))

    def elaborate(self, platform):
        m = Module()
        engine = self._engine
        stages = Stages(m, "stage", self.i.valid, self.o.ready, self.latency(engine))
        m.d.comb += [self.i.ready.eq(stages.room), self.o.valid.eq(stages.full[-1])]

        products = _kept(m, "products", stages.takes[0], self._multiplied(m))
        moved = self._normalised(m, products)
        if len(stages.takes) > 2:
            moved = _kept(m, "moved", stages.takes[1], moved)
        word = Signal(self.o.p.shape())
        floats = [self._float(m, f"float{i}", lane, moved) for i, lane in enumerate(moved.lanes)]
        m.d.comb += [word.data.eq(Cat(floats)), word.last.eq(moved.last), word.error.eq(moved.error)]
        m.d.comb += self.o.payload.eq(_kept(m, "word", stages.takes[-1], word))
        return m

    def _multiplied(self, m: Module) -> Signal:
        """The sums times the scale's mantissa, and its exponent."""
        engine = self._engine
        found = Signal(_products_layout(engine), name="multiplied")
        fraction, exponent = self.i.p.scale[:FRACTION_BITS], self.i.p.scale[FRACTION_BITS:]
        for i, (lane, of_sum) in enumerate(zip(found.lanes, self.i.p.lanes, strict=True)):
            columns: Columns = [[] for _ in range(_bits(engine))]
            place(columns, of_sum.magnitude, FRACTION_BITS)
            for j, bit in enumerate(fraction):
                place(columns, of_sum.magnitude & bit.replicate(len(of_sum.magnitude)), j)
            product = add(m, f"product{i}", *rows_of(compress(m, f"rows{i}", columns)), group=4)
            m.d.comb += [
                lane.product.eq(product),
                lane.negative.eq(of_sum.negative),
                lane.kind.eq(of_sum.kind),
            ]
        more = self._switch.choose(lambda fmt: _highest_field(engine, fmt.float_type))
        highest = let(m, "highest", exponent + more)
        m.d.comb += [
            found.highest.eq(Mux(highest < 1, 0, highest)),
            *(found[name].eq(self.i.p[name]) for name in ("error", "last")),
        ]
        if not _rounded(engine):
            most = self._switch.choose(lambda fmt: fmt.float_type.exponent_max - 1)
            m.d.comb += found.too_large.eq(Mux(highest > most, highest - most, 0))
        if _lowest(engine):
            # Where the leading bit of the least normal number is.
            least = Cat(highest == place for place in range(1, len(found.least) + 1))
            m.d.comb += found.least.eq(least[::-1])
        return found

    def _normalised(self, m: Module, products) -> Signal:
        """The products moved up to their leading bit, or in a subnormal to that of the least normal one."""
        engine = self._engine
        found = Signal(_moved_layout(engine), name="normalised")
        above = _lowest(engine)
        kept = len(found.lanes[0].significand)
        for i, (lane, of_product) in enumerate(zip(found.lanes, products.lanes, strict=True)):
            product = Cat(of_product.product, C(0, above))
            bits = product | products.least if above else product
            padding = (1 << (len(bits) - 1).bit_length()) - len(bits)
            zeros = let(m, f"zeros{i}", leading_zeros(Cat(C(0, padding), bits)))
            moved = shift_left(m, f"moved{i}", product, zeros)
            if above:
                moved = Mux(products.highest == 0, 0, moved)
            if _rounded(engine):
                rest = self._switch.choose(lambda fmt: fmt.float_type, lambda ft, bits=moved: _rest(bits, ft))
                m.d.comb += lane.rest.eq(rest)
            else:
                m.d.comb += lane.too_large.eq(zeros < products.too_large)
            m.d.comb += [
                lane.significand.eq(Cat(C(0, max(kept - len(moved), 0)), moved[-kept:])),
                lane.field.eq(difference(m, f"field{i}", products.highest, zeros)),
                lane.negative.eq(of_product.negative & of_product.product.any()),
                lane.kind.eq(of_product.kind),
            ]
        m.d.comb += [found[name].eq(products[name]) for name in ("error", "last")]
        return found

    def _float(self, m: Module, name: str, lane, word) -> Value:
        """The float nearest to a number that has been moved; ties to even."""
        engine, switch = self._engine, self._switch
        ft = engine.float_type
        number = Cat(lane.significand[:-1], Mux(lane.significand[-1], lane.field, 0))
        if _rounded(engine):
            more, half = lane.rest
            odd = switch.choose(
                lambda fmt: fmt.float_type.mantissa_bits,
                lambda bits: lane.significand[ft.mantissa_bits - bits],
            )
            # A carry comes to a type's last place through ones in those behind it, which the type lacks.
            places = [ft.mantissa_bits - rounded.mantissa_bits for rounded in _rounded(engine)]
            lowest = min(places)
            behind = Cat(
                switch.when(lambda fmt, i=i: i < ft.mantissa_bits - fmt.float_type.mantissa_bits)
                for i in range(lowest, max(places))
            )
            up = half & (more | odd)
            number = Cat(number[:lowest], increment(m, name, number[lowest:] | behind, up))
            most = switch.choose(lambda fmt: fmt.float_type.exponent_max)
            too_large = number[ft.mantissa_bits :] >= most
        else:
            too_large = lane.too_large
        finite = Mux(too_large, (ft.exponent_max << ft.mantissa_bits) - 1, number[: ft.width - 1])
        special = Cat(C(0, ft.mantissa_bits - 1), lane.kind == NAN, C(ft.exponent_max, ft.exponent_bits))
        negative = lane.negative | (lane.kind == MINUS_INFINITY)
        return Cat(Mux(lane.kind.any(), special, finite), negative)


def _bits(engine: HadamardEngine) -> int:
    """Of the largest product."""
    return (largest_sum(engine) * ((2 << FRACTION_BITS) - 1)).bit_length()


def _rounded(engine: HadamardEngine) -> list[FloatType]:
    """The types that have fewer bits than products may have."""
    return [ft for ft in engine.types if _bits(engine) > ft.mantissa_bits + 1]


def _rest(bits: Value, ft: FloatType) -> Value:
    """Whether there is less than half of a type's last place behind it, and whether that half."""
    rest = bits[: max(len(bits) - 1 - ft.mantissa_bits, 0)]
    return Cat(rest[:-1].any(), rest[-1:].any())


def _lowest(engine: HadamardEngine) -> int:
    """By how many bits the least normal number may lie above all products that still make a subnormal."""
    return max(ft.mantissa_bits + 1 if ft.exponent_bits < 8 else 0 for ft in engine.types)


def _highest_field(engine: HadamardEngine, ft: FloatType) -> int:
    """What a product's exponent field has more than the scale's exponent, if its highest bit is a one."""
    return _bits(engine) + _lowest(engine) - 1 + ft.bias - SCALE_BIAS + engine.halved


def _products_layout(engine: HadamardEngine) -> data.StructLayout:
    """A word of products.

    Members:
        lanes: of each value the product, its sign, and of what kind of special it is.
        highest: the exponent field of a product if its highest bit is its leading one; or 0 if it is none.
        error, last: see :func:`rtl.hadamard.reader.sums_layout`.
        least: if there are subnormals, the product that has the leading bit of the least normal number.
        too_large: if nothing is rounded, with how many leading zeros a product is not too large any more.
    """
    lane = data.StructLayout({"product": _bits(engine), "negative": 1, "kind": 2})
    highest = (1 << _EXPONENT_BITS) - 1 + max(_highest_field(engine, ft) for ft in engine.types)
    lowest = _lowest(engine)
    least_max = min(ft.exponent_max for ft in engine.types)
    return data.StructLayout(
        {
            "lanes": data.ArrayLayout(lane, engine.lanes),
            "highest": range(highest + 1),
            "error": 1,
            "last": 1,
        }
        | ({"least": _bits(engine) + lowest} if lowest else {})
        | ({} if _rounded(engine) else {"too_large": range(highest - least_max + 2)})
    )


def _moved_layout(engine: HadamardEngine) -> data.StructLayout:
    """A word of numbers.

    Members:
        lanes: of each the significand; the exponent field if it has a leading one; sign and kind; if there
            may be more bits, whether they are less than half of the last place, and whether that half;
            otherwise whether it is too large.
        error, last: see :func:`rtl.hadamard.reader.sums_layout`.
    """
    lane = data.StructLayout(
        ({"rest": 2} if _rounded(engine) else {"too_large": 1})
        | {
            "significand": engine.float_type.mantissa_bits + 1,
            "field": _products_layout(engine)["highest"].shape,
            "negative": 1,
            "kind": 2,
        }
    )
    return data.StructLayout({"lanes": data.ArrayLayout(lane, engine.lanes), "error": 1, "last": 1})


def _kept(m: Module, name: str, takes: Value, value):
    kept = Signal(value.shape(), name=name, reset_less=True)
    with m.If(takes):
        m.d.sync += kept.eq(value)
    return kept
