"""The parameters of an engine of the Hadamard format, and where in its streams each coefficient lies."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from amaranth import C, Cat, Module, Mux, Signal, Value
from amaranth.utils import exact_log2

from golden import HadamardFormat
from golden.hadamard import ALIGNED_BITS, LEVELS, THRESHOLDS

from ..arith.sums import let
from ..stream import Engine, Switch

__all__ = ["BUTTERFLY", "REGISTER", "SWAP", "HadamardEngine", "Stage"]

BUTTERFLY, SWAP, REGISTER = "butterfly", "swap", "register"

# That lie behind one another between registers.
_BUTTERFLIES = 3


@dataclass(frozen=True)
class Stage:
    """A stage of a transform whose values come in several words.

    The number of a value is made of the bits of its lane's number and of those of its word's.

    Attributes:
        kind: a butterfly of values whose lanes differ in a bit; a swap of a bit of the lane with one of the
            word; or a register.
        lane: which bit of the lane, but for a register.
        word: which bit of the word, for a swap.
    """

    kind: str
    lane: int = 0
    word: int = 0


class HadamardEngine(Engine):
    """An engine of the Hadamard format.

    Args, Raises: as of :class:`Engine`; the formats are :class:`golden.HadamardFormat`.

    Attributes:
        stages: of the compressor's transform.
        places: where these leave the coefficients: for each word, the number of each lane's.
        energy_bits: of the sum of the squares of a block's values.
        coefficient_bits: of a coefficient's magnitude.
        thresholds: between levels, for each width that fields have.
    """

    least_words = 4

    def __init__(self, formats: HadamardFormat | Sequence[HadamardFormat], bus_bytes: int):
        super().__init__(formats, bus_bytes)
        self.stages, self.places = _flow(exact_log2(self.lanes), exact_log2(self.words))
        growth = exact_log2(self.block)
        self.energy_bits = 2 * ALIGNED_BITS + growth
        self.coefficient_bits = ALIGNED_BITS + growth
        widths = {int(width) for fmt in self.formats for width in fmt.widths}
        self.thresholds = {width: THRESHOLDS[width] for width in sorted(widths)}

    def widths_at(self, lane: int) -> list[int]:
        """How wide the fields of a lane's coefficients can be."""
        return sorted({int(fmt.widths[word[lane]]) for fmt in self.formats for word in self.places})

    def width_is(self, switch: Switch, lane: int, width: int, word: Value) -> Value:
        """Whether the field of a lane's coefficient is so wide, in a word of which the number is given."""

        def words_with(fmt: HadamardFormat) -> tuple[int, ...]:
            return tuple(i for i, places in enumerate(self.places) if fmt.widths[places[lane]] == width)

        def is_one_of(words: tuple[int, ...]) -> Value:
            if len(words) in (0, self.words):
                return C(bool(words), 1)
            return Cat(word == i for i in words).any()

        return switch.choose(words_with, is_one_of)

    def word_index(self, m: Module, name: str, go: Value, first: Value) -> Value:
        """The number of a word in its block."""
        following = Signal(range(self.words), name=f"{name}_following", reset_less=True)
        index = let(m, name, Mux(first, 0, following))
        with m.If(go):
            m.d.sync += following.eq(index + 1)
        return index

    @property
    def halved(self) -> bool:
        """Whether all levels of the formats are even, so that half of each does for all sums."""
        return all(level % 2 == 0 for width in self.thresholds for level in LEVELS[width])


def _flow(lane_bits: int, word_bits: int) -> tuple[list[Stage], list[list[int]]]:
    """The stages of a transform, and the numbers of the values behind them.

    Each bit of the word changes places with one of the lane that has had its butterfly; the slowest goes
    first, where numbers are shortest. At most so many butterflies lie between registers, the first time one
    less.
    """
    lanes, words = list(range(lane_bits)), list(range(lane_bits, lane_bits + word_bits))
    at = lane_bits - 1
    stages = [Stage(BUTTERFLY, at)]
    for word in reversed(range(word_bits)):
        stages += [Stage(SWAP, at, word), Stage(BUTTERFLY, at)]
        lanes[at], words[word] = words[word], lanes[at]
        if at > 0:
            at -= 1
            stages.append(Stage(BUTTERFLY, at))
    stages += [Stage(BUTTERFLY, lane) for lane in reversed(range(at))]
    places = [
        [_number(lane, lanes) | _number(word, words) for lane in range(1 << lane_bits)]
        for word in range(1 << word_bits)
    ]
    return _with_registers(stages), places


def _with_registers(stages: list[Stage]) -> list[Stage]:
    result: list[Stage] = []
    room = _BUTTERFLIES - 1  # signs are as deep as a butterfly
    for stage in stages:
        if room == 0:
            result.append(Stage(REGISTER))
            room = _BUTTERFLIES
        room -= stage.kind == BUTTERFLY
        result.append(stage)
    return [*result, Stage(REGISTER)]


def _number(place: int, bits: list[int]) -> int:
    """The number whose bit ``bits[i]`` is bit ``i`` of a place."""
    return sum((place >> i & 1) << bit for i, bit in zip(count(), bits, strict=False))
