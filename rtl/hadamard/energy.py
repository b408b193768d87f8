"""The energy of a block's values, and from it the thresholds between the levels of its coefficients."""

from collections.abc import Callable
from math import isqrt

from amaranth import C, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from golden.hadamard import ALIGNED_BITS, ROOT_BITS, THRESHOLD_BITS, THRESHOLDS

from ..arith.sums import Columns, add, compress, let, place_square, registered, rows_of
from ..arith.trees import leading_zeros
from .engine import HadamardEngine

__all__ = ["Energy", "Thresholds", "energy_layout", "thresholds_layout"]

# Layers of adders between two registers.
_LAYERS = 7

# Thresholds up to which tables are smaller than a register for each value of a word that waits.
_TABLES = 3


def energy_layout(engine: HadamardEngine) -> data.StructLayout:
    """A block's energy.

    Members:
        number: moved up by pairs of bits until the first of these is not 0; or 0.
        pairs: by how many.
    """
    pairs = (engine.energy_bits + 1) // 2
    return data.StructLayout({"number": 2 * pairs, "pairs": range(pairs)})


class Energy(wiring.Component):
    """Adds up the squares of a block's values.

    Members:
        go: a word is taken, and all moves on.
        magnitudes: of its values.
        first: it is its block's first.
        summed: the final word was taken two cycles before, of those of ``go``.
        o: of a block, in the cycles after its ``summed`` until that of the next one.
    """

    TO_SUM, TO_ENERGY = 2, 1

    def __init__(self, engine: HadamardEngine):
        self._engine = engine
        super().__init__(
            {
                "go": In(1),
                "magnitudes": In(data.ArrayLayout(ALIGNED_BITS, engine.lanes)),
                "first": In(1),
                "summed": In(1),
                "o": Out(energy_layout(engine)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        width = self._engine.energy_bits
        columns: Columns = [[] for _ in range(width)]
        for i, magnitude in enumerate(self.magnitudes):
            place_square(m, f"square{i}", columns, magnitude)
        columns = registered(m, "squares", compress(m, "words", columns, _LAYERS), self.go)

        # The sum so far, as two numbers.
        starts = Signal()
        so_far = [Signal(width, name=f"sum{i}", reset_less=True) for i in range(2)]
        for number in so_far:
            for column, bit in zip(columns, Mux(starts, 0, number), strict=True):
                column.append(bit)
        rows = rows_of(compress(m, "blocks", columns))
        energy = Signal(len(self.o.number), reset_less=True)
        total = add(m, "total", *so_far, group=5)[:width]
        with m.If(self.go):
            m.d.sync += [
                starts.eq(self.first),
                *(number.eq(row) for number, row in zip(so_far, rows, strict=True)),
            ]
        with m.If(self.go & self.summed):
            m.d.sync += energy.eq(total)
        pairs, number = _leading_pair(m, energy)
        m.d.comb += [self.o.pairs.eq(pairs), self.o.number.eq(number)]
        return m


def _leading_pair(m: Module, number: Value) -> tuple[Value, Value]:
    """How many pairs of zeros a number begins with, and what it is without them. Of 0 it means nothing."""
    pairs = [number[i : i + 2].any() for i in range(0, len(number), 2)]
    padding = (1 << (len(pairs) - 1).bit_length()) - len(pairs)
    zeros = let(m, "zeros", leading_zeros(Cat(C(0, padding), pairs)))
    for i in reversed(range(len(zeros))):
        number = let(m, f"number_by{2 << i}", Mux(zeros[i], number << (2 << i), number)[: len(number)])
    return zeros, number


def thresholds_layout(engine: HadamardEngine) -> data.StructLayout:
    """The thresholds between a block's levels, moved up.

    Members:
        of2, of3, of4: those of each width, times the root of the block's energy.
        pairs: down by how many bits they have yet to go.
    """
    pairs = energy_layout(engine)["pairs"].shape
    return data.StructLayout(
        {
            f"of{width}": data.ArrayLayout(
                _multiple(engine, 255, max(thresholds, default=0)).bit_length(), len(thresholds)
            )
            for width, thresholds in engine.thresholds.items()
            if thresholds
        }
        | {"pairs": pairs}
    )


def _multiple(engine: HadamardEngine, root: int, threshold: int) -> int:
    """What a threshold is where a block's energy begins with a pair of bits that is not 0."""
    most_pairs = (engine.energy_bits - 1) // 2
    return threshold * root << most_pairs >> ROOT_BITS - 1 + THRESHOLD_BITS


class Thresholds(wiring.Component):
    """Finds the root of a block's energy and its multiples.

    They come from one table, if they are few, and otherwise take a cycle more.

    Members:
        go: all moves on.
        next: take a block's energy.
        energy: see :class:`Energy`.
        o: of the block that was taken :meth:`latency` cycles before, of those of ``go``, until the next one.
    """

    def __init__(self, engine: HadamardEngine):
        self._engine = engine
        super().__init__(
            {
                "go": In(1),
                "next": In(1),
                "energy": In(energy_layout(engine)),
                "o": Out(thresholds_layout(engine)),
            }
        )

    @staticmethod
    def latency(engine: HadamardEngine) -> int:
        return 1 if sum(map(len, engine.thresholds.values())) <= _TABLES else 2

    def elaborate(self, platform):
        m = Module()
        engine = self._engine
        leading = let(m, "leading", self.energy.number[-ROOT_BITS:])
        found = Signal(thresholds_layout(engine))
        kept = Signal(thresholds_layout(engine), reset_less=True)
        takes = let(m, "takes", self.next & self.go)
        if self.latency(engine) == 1:
            for width, thresholds in engine.thresholds.items():
                for one, threshold in zip(_of(found, width), thresholds, strict=True):
                    _table(m, one, leading, lambda root, t=threshold: _multiple(engine, root, t))
            m.d.comb += found.pairs.eq(self.energy.pairs)
        else:
            root = Signal(ROOT_BITS, reset_less=True)
            pairs = Signal.like(self.energy.pairs, reset_less=True)
            next_root = Signal(ROOT_BITS)
            _table(m, next_root, leading, lambda root: root)
            with m.If(takes):
                m.d.sync += [root.eq(next_root), pairs.eq(self.energy.pairs)]
            for width, thresholds in engine.thresholds.items():
                for one, threshold in zip(_of(found, width), thresholds, strict=True):
                    m.d.comb += one.eq(_multiple(engine, root, threshold))
            m.d.comb += found.pairs.eq(pairs)
            taken = Signal()
            with m.If(self.go):
                m.d.sync += taken.eq(takes)
            takes = taken & self.go
        with m.If(takes):
            m.d.sync += kept.eq(found)
        m.d.comb += self.o.eq(kept)
        return m


def _of(multiples, width: int):
    return multiples[f"of{width}"] if THRESHOLDS[width] else ()


def _table(m: Module, result: Value, leading: Value, entry: Callable[[int], int]) -> None:
    """A function of sixteen times the root of a number from 64 to 255."""
    with m.Switch(leading):
        for number in range(1 << len(leading)):
            with m.Case(number):
                m.d.comb += result.eq(entry(isqrt((number if number >= 64 else number + 64) << 8)))
