"""The compressor's transform: a word of values in and a word of coefficients out, in every cycle.

Values in one word meet in butterflies. Those in different words are first brought into one: half of the lanes
wait for so many words as lie between the two, then the halves of the words change places, and the other half
waits as long. So every butterfly has two values in every cycle. (In the literature: a multi-path delay
commutator.)

The upper bits of every number are a cycle behind the lower ones, so that a carry has no farther to go in a
cycle than half of a number.

Numbers have an offset: one of ``n`` bits is 2**(n - 1) more than what it stands for. So the highest bit of a
sum is a carry, and that of a difference a borrow, with no sign to extend.
"""

from amaranth import C, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from golden.hadamard import ALIGNED_BITS

from ..arith.sums import butterfly, increment, let
from .engine import BUTTERFLY, SWAP, HadamardEngine

__all__ = ["KIND", "Transform", "aligned_layout", "coefficients_layout"]

# Bits of a number that go ahead.
_LOWER = 8

# The bits in which a kind of special travels. The lowest is another's: it is the same in all results of the
# butterflies that a value meets in one cycle, so that registers for it are shared.
KIND = slice(1, 3)


def aligned_layout(engine: HadamardEngine) -> data.StructLayout:
    """A word of values on its way.

    Members:
        lanes: of each value magnitude and sign. In a block of specials bits 1 and 2 of the magnitude are what
            kind of special it is, 0 if it is finite, and the sign is 0.
        first: this word is its block's first.
        special: its block holds specials.
    """
    lane = data.StructLayout({"magnitude": ALIGNED_BITS, "negative": 1})
    return data.StructLayout({"lanes": data.ArrayLayout(lane, engine.lanes), "first": 1, "special": 1})


def coefficients_layout(engine: HadamardEngine) -> data.StructLayout:
    """A word of coefficients: as :func:`aligned_layout`, but each a number with an offset."""
    lanes = data.ArrayLayout(engine.coefficient_bits + 1, engine.lanes)
    return data.StructLayout({"lanes": lanes, "first": 1, "special": 1})


class Transform(wiring.Component):
    """The Walsh-Hadamard transform of each block, in the order of :attr:`HadamardEngine.places`.

    A block's first word leaves :meth:`latency` cycles after it came, of those in which all moves on (``go``),
    and the others follow it. Between blocks there may be any number of cycles without one. Where a block has
    specials, each coefficient shows of which kind the value is that has its number.
    """

    def __init__(self, engine: HadamardEngine):
        self._engine = engine
        super().__init__(
            {"go": In(1), "i": In(aligned_layout(engine)), "o": Out(coefficients_layout(engine))}
        )

    @staticmethod
    def latency(engine: HadamardEngine) -> int:
        registers = sum(stage.kind not in (BUTTERFLY, SWAP) for stage in engine.stages)
        return registers + engine.words - 1 + 1

    def elaborate(self, platform):
        m = Module()
        lower, upper = self._offset(m)
        first, special = self.i.first, self.i.special
        for number, stage in enumerate(self._engine.stages):
            name = f"stage{number}"
            if stage.kind == BUTTERFLY:
                self._butterflies(m, name, lower, upper, 1 << stage.lane, special)
                continue
            cycles = 1
            if stage.kind == SWAP:
                cycles = 1 << stage.word
                follows = self._delayed(m, f"{name}_follows", first, 1, reset=True)
                lower = self._swap(m, f"{name}_lower", lower, stage.lane, stage.word, first)
                upper = self._swap(m, f"{name}_upper", upper, stage.lane, stage.word, follows)
            else:
                lower = [self._delayed(m, f"{name}_lower{i}", lane, 1) for i, lane in enumerate(lower)]
                upper = [self._delayed(m, f"{name}_upper{i}", lane, 1) for i, lane in enumerate(upper)]
            first = self._delayed(m, f"{name}_first", first, cycles, reset=True)
            special = self._delayed(m, f"{name}_special", special, cycles)
        lower = [self._delayed(m, f"lower{i}", lane, 1) for i, lane in enumerate(lower)]
        m.d.comb += [
            Cat(self.o.lanes).eq(Cat(Cat(*halves) for halves in zip(lower, upper, strict=True))),
            self.o.first.eq(self._delayed(m, "first", first, 1, reset=True)),
            self.o.special.eq(self._delayed(m, "special", special, 1)),
        ]
        return m

    def _delayed(self, m: Module, name: str, value: Value, cycles: int, reset: bool = False) -> Value:
        for i in range(cycles):
            later = Signal(len(value), name=f"{name}_after{i + 1}", reset_less=not reset)
            with m.If(self.go):
                m.d.sync += later.eq(value)
            value = later
        return value

    def _offset(self, m: Module) -> tuple[list[Value], list[Value]]:
        """The values with an offset, a bit longer than their magnitudes: lower bits and upper ones."""
        lower, upper = [], []
        for i, lane in enumerate(self.i.lanes):
            negative = lane.negative
            flipped = let(m, f"lower{i}_flipped", lane.magnitude[:_LOWER] ^ negative.replicate(_LOWER))
            lower.append(increment(m, f"value{i}_lower", flipped, negative))
            carry = self._delayed(m, f"value{i}_carry", negative & flipped.all(), 1)
            rest = self._delayed(m, f"value{i}_rest", lane.magnitude[_LOWER:], 1)
            negative = self._delayed(m, f"value{i}_negative", negative, 1)
            flipped = let(m, f"upper{i}_flipped", Cat(rest, C(0, 1)) ^ negative.replicate(len(rest) + 1))
            signed = increment(m, f"value{i}_upper", flipped, carry)
            upper.append(Cat(signed[:-1], ~signed[-1]))
        return lower, upper

    def _butterflies(
        self, m: Module, name: str, lower: list[Value], upper: list[Value], bit: int, special: Value
    ) -> None:
        """Replace the lanes whose numbers differ in a bit by their sums and their differences."""
        for low in range(len(lower)):
            if low & bit:
                continue
            high = low | bit
            of_pair = f"{name}_{low}"
            total, less, carry, borrow = butterfly(m, f"{of_pair}_lower", lower[low], lower[high], C(0), C(0))
            carry = self._delayed(m, f"{of_pair}_carry", carry, 1)
            borrow = self._delayed(m, f"{of_pair}_borrow", borrow, 1)
            for lane, value in ((low, total), (high, less)):
                kind = Mux(special, lower[lane][KIND], value[KIND])
                lower[lane] = let(m, f"{name}_lane{lane}", Cat(value[: KIND.start], kind, value[KIND.stop :]))
            total, less, carry, borrow = butterfly(
                m, f"{of_pair}_upper", upper[low], upper[high], carry, borrow
            )
            upper[low], upper[high] = Cat(total, carry), Cat(less, ~borrow)

    def _swap(
        self, m: Module, name: str, lanes: list[Value], lane_bit: int, word_bit: int, first: Value
    ) -> list[Value]:
        """The lanes when a bit of their number has changed places with one of the word's number."""
        following = Signal(word_bit + 1, name=f"{name}_following", reset_less=True)
        index = let(m, f"{name}_index", Mux(first, 0, following))
        with m.If(self.go):
            m.d.sync += following.eq(index + 1)
        crosses = index[word_bit]
        result = list(lanes)
        for low in range(len(lanes)):
            if low >> lane_bit & 1:
                continue
            high = low | 1 << lane_bit
            waited = self._delayed(m, f"{name}_before{high}", lanes[high], 1 << word_bit)
            waits = let(m, f"{name}_waits{low}", Mux(crosses, waited, lanes[low]))
            result[low] = self._delayed(m, f"{name}_behind{low}", waits, 1 << word_bit)
            result[high] = let(m, f"{name}_passes{high}", Mux(crosses, lanes[low], waited))
        return result
