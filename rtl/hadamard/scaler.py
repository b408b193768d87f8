"""A block's header: energy over product, a bit in a cycle."""

from amaranth import C, Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from golden.hadamard import ALIGNED_BITS, FRACTION_BITS, HEADER_BITS, SCALE_BIAS, SPECIALS

from ..arith.sums import add, increment, let
from ..arith.trees import leading_zeros
from ..stream import Switch
from .energy import energy_layout
from .engine import HadamardEngine
from .quantiser import product_bits
from .timeline import Timeline

__all__ = ["Scaler"]

# Bits of the quotient: the leading one may be the first or the second, those of the scale follow, and one to
# round by.
_QUOTIENT_BITS = 1 + 1 + FRACTION_BITS + 1

_EXPONENT_BITS = HEADER_BITS - FRACTION_BITS


class Scaler(wiring.Component):
    """Divides energies by products.

    Members:
        go: all moves on.
        first: the product is there of a block with its first word at position 0, if there were such.
        product: see :class:`rtl.hadamard.quantiser.Product`.
        energy, top: of the same block, in the same cycle.
        special: the block with its first word at position :attr:`LATENCY` holds specials.
        header, zeros: of that block: its header, and whether it has none, but is zeros.
    """

    LATENCY = 1 + _QUOTIENT_BITS

    def __init__(self, engine: HadamardEngine, switch: Switch):
        self._engine = engine
        self._switch = switch
        super().__init__(
            {
                "go": In(1),
                "first": In(1),
                "product": In(product_bits(engine)),
                "energy": In(energy_layout(engine)),
                "top": In(engine.float_type.exponent_bits),
                "special": In(1),
                "header": Out(HEADER_BITS),
                "zeros": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        time = Timeline(m, self.go, self.first, self._engine.words)

        # Both numbers are moved up until they begin with a one.
        bits = len(self.energy.number)
        padded = Cat(C(0, bits - len(self.product)), self.product)
        zeros = let(
            m, "product_zeros", leading_zeros(Cat(C(0, (1 << (bits - 1).bit_length()) - bits), padded))
        )
        divisor = let(m, "product_moved", (padded << zeros)[:bits])
        doubles = ~self.energy.number[-1]
        number = let(m, "energy_moved", Mux(doubles, self.energy.number << 1, self.energy.number)[:bits])

        quotient, is_long = self._divided(m, time, number, divisor)
        exponent = self._exponent(m, time, zeros, doubles, is_long)
        # Behind the leading one the bits of the scale, and the one to round by.
        rounding = Mux(quotient[-1], quotient[1:-1], quotient[:-2])
        fraction = rounding[1:]
        up = let(m, "up", rounding[0] & fraction.all())
        scale = increment(m, "scale", Cat(fraction, exponent[:_EXPONENT_BITS]), rounding[0], 4)
        too_small = exponent[-1] | (~exponent.any() & ~up)
        too_large = exponent[_EXPONENT_BITS:].any() | (exponent[:_EXPONENT_BITS].all() & up)
        m.d.comb += [
            self.zeros.eq(too_small & ~self.special),
            self.header.eq(Mux(self.special, SPECIALS, Mux(too_large, (1 << HEADER_BITS) - 1, scale))),
        ]
        return m

    def _divided(self, m: Module, time: Timeline, number: Value, divisor: Value) -> tuple[Value, Value]:
        """The quotient, and in the third cycle its first bit.

        By subtraction: a block is in each unit for as many cycles as it has words.
        """
        bits = len(divisor)
        low = bits - len(self.product)  # bits of the divisor that are 0
        layout = data.StructLayout({"rest": bits + 1, "divisor": bits - low, "quotient": _QUOTIENT_BITS})
        incoming = Signal(layout, name="undivided")
        m.d.comb += [incoming.rest.eq(number), incoming.divisor.eq(divisor[low:])]
        words = self._engine.words
        firsts = []
        for start in range(0, _QUOTIENT_BITS, words):
            state = Signal(layout, name=f"state{start}", reset_less=True)
            reduced = Signal(layout, name=f"reduced{start}")
            rest, top = state.rest[low:bits], state.rest[bits]
            less = let(m, f"less{start}", add(m, f"difference{start}", rest, ~state.divisor, C(1), 7))
            fits = let(m, f"fits{start}", top | less[-1])
            m.d.comb += [
                reduced.rest.eq(Cat(C(0, 1), state.rest[:low], Mux(fits, less[:-1], rest))),
                reduced.divisor.eq(state.divisor),
                reduced.quotient.eq(Cat(fits, state.quotient[:-1])),
            ]
            with m.If(self.go):
                m.d.sync += state.eq(reduced)
            with m.If(self.go & time.at(start)):
                m.d.sync += state.eq(incoming)
            incoming = reduced
            firsts.append(state.quotient[0])
        return state.quotient, firsts[0]

    def _exponent(self, m: Module, time: Timeline, zeros: Value, doubles: Value, is_long: Value) -> Value:
        """That of the scale, in three cycles, before rounding.

        Args:
            zeros, doubles: how far the product has moved, and whether the energy by an odd number of bits.
            is_long: whether the quotient begins with a one, in the third cycle.
        """
        engine = self._engine
        ft = engine.float_type
        # Where the numbers' first bits were, and 121 of docs/format.md.
        unmoved = len(self.energy.number) - len(self.product) - FRACTION_BITS - engine.halved
        constant = unmoved + SCALE_BIAS - (ALIGNED_BITS - 1) - 1
        bias = self._switch.choose(lambda fmt: engine.exponent_offset(fmt.float_type) + fmt.float_type.bias)
        shape = signed(ft.exponent_bits + 4)
        moved = Signal(shape, reset_less=True)
        product_zeros = Signal.like(zeros, reset_less=True)
        some = Signal(reset_less=True)
        with m.If(self.go & time.at(0)):
            m.d.sync += [
                moved.eq(self.top + constant - bias - Cat(doubles, self.energy.pairs)),
                product_zeros.eq(zeros),
                some.eq(self.product.any()),
            ]
        exponents = [Signal(shape, name=f"exponent{i}", reset_less=True) for i in range(2)]
        with m.If(self.go & time.at(1)):
            m.d.sync += exponents[0].eq(Mux(some, moved + product_zeros, -2))
        with m.If(self.go & time.at(2)):
            m.d.sync += exponents[1].eq(exponents[0] + is_long)
        return time.keep("exponent", exponents[1], 3, self.LATENCY)
