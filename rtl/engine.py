"""The parameters that the compressors and the decompressors share, checked in one place."""

from collections.abc import Callable, Sequence
from math import gcd
from typing import TypeVar

from amaranth import C, Cat, Mux, Signal, Value

from golden import Format, PlaneFormat
from golden.floats import FLOAT_TYPES, FloatType

from .planes import any_set

__all__ = ["BUS_BYTES", "Engine", "PlaneEngine", "rows_of"]

BUS_BYTES = (16, 32, 64, 128)

Key = TypeVar("Key")


def rows_of(fmt: PlaneFormat) -> int:
    """Rows of bits in a block: its whole slots, and the partial one."""
    return fmt.slots + (fmt.partial > 0)


class Engine:
    """How an engine cuts blocks into words, and what its format decides.

    An engine has one format, or several between which it is switched while it is empty. Whatever depends on
    the format is a constant if there is only one, and otherwise selected by ``is_format``.

    Args:
        formats: one or several, with a fixed target, all of the same block.
        bus_bytes: bytes of a word on either side: 16, 32, 64 or 128.

    Attributes:
        fmt: the first format.
        types: the formats' types.
        is_format: for each format, whether it is the one of the moment.
        float_type: one whose values hold those of all formats.
        block: values of a block.
        lanes: values that the datapath takes or gives in a cycle: a bus word of the shortest type, but at
            most half a block.
        words: such steps of a block, at least two.
        word_bytes: bytes of a step as values of ``float_type``.
        target: bytes of the longest compressed block.
        grain: a number of bytes that divides all targets and the bus.

    Raises:
        ValueError: a format is lossless, or the blocks differ, or ``bus_bytes`` is none of the above.
    """

    least_words = 2  # of a block, at least

    def __init__(self, formats: Format | Sequence[Format], bus_bytes: int):
        formats = (formats,) if isinstance(formats, Format) else tuple(formats)
        for fmt in formats:
            if fmt.target is None:
                raise ValueError("fmt must have a fixed target, not None")
            if fmt.block != formats[0].block:
                raise ValueError(f"formats must all have a block of {formats[0].block}, not {fmt.block}")
        if bus_bytes not in BUS_BYTES:
            raise ValueError(f"bus_bytes must be one of {BUS_BYTES}, not {bus_bytes!r}")
        self.formats = formats
        self.bus_bytes = bus_bytes
        self.is_format = Signal(len(formats))

        self.fmt = formats[0]
        self.types = list(dict.fromkeys(fmt.float_type for fmt in formats))
        self.float_type: FloatType = self.types[0] if len(self.types) == 1 else FLOAT_TYPES["fp32"]
        self.block = formats[0].block
        most = self.block // self.least_words
        self.lanes = min(8 * bus_bytes // min(ft.width for ft in self.types), most)
        self.words = self.block // self.lanes
        self.word_bytes = self.step_bytes(self.float_type)
        self.target = max(fmt.target for fmt in formats)
        self.grain = gcd(bus_bytes, *(fmt.target for fmt in formats))

    def step_bytes(self, float_type: FloatType) -> int:
        """Bytes of a step's values on the bus."""
        return self.lanes * float_type.width // 8

    @property
    def joined_cycles(self) -> int:
        """Cycles in which the steps of the shortest type are joined to a bus word."""
        pieces = self.bus_bytes // min(self.step_bytes(ft) for ft in self.types)
        return pieces if pieces > 1 else 0

    def when(self, condition: Callable[[Format], bool]) -> Value:
        """Whether the format of the moment fulfils a condition."""
        holds = [condition(fmt) for fmt in self.formats]
        if all(holds) or not any(holds):
            return C(int(holds[0]), 1)
        return Cat(is_it for is_it, hold in zip(self.is_format, holds, strict=True) if hold).any()

    def choose(self, key: Callable[[Format], Key], value: Callable[[Key], Value | int] = Value.cast) -> Value:
        """What belongs to the format of the moment: the value for a key that the format decides."""
        keys = list(dict.fromkeys(key(fmt) for fmt in self.formats))
        if len(keys) == 1:
            return Value.cast(value(keys[0]))
        return any_set(Mux(self.when(lambda fmt, k=k: key(fmt) == k), value(k), 0) for k in keys)


class PlaneEngine(Engine):
    """An engine of the plane format.

    Inside, every value is one of ``float_type``: a shorter mantissa ends in zeros, and a shorter exponent
    field is shifted so that infinities and NaNs have all ones. This changes neither a delta nor a stored
    plane.

    Args, Raises: as of :class:`Engine`; the formats are :class:`golden.PlaneFormat`.

    Attributes:
        planes: of ``float_type``.
        slots: the most that a format has.
        kept: the most rows of a block, whole slots and the partial one.
        touched: the slots that matter: those kept, and one behind them to round by.
    """

    def __init__(self, formats: PlaneFormat | Sequence[PlaneFormat], bus_bytes: int):
        super().__init__(formats, bus_bytes)
        self.planes = self.float_type.width
        self.slots = max(fmt.slots for fmt in self.formats)
        self.kept = max(rows_of(fmt) for fmt in self.formats)
        self.touched = min(self.kept + 1, self.planes)

    def exponent_offset(self, float_type: FloatType) -> int:
        """What is added to the exponent fields of a type that are not 0."""
        return self.float_type.exponent_max - float_type.exponent_max

    def places_of(self, float_type: FloatType) -> list[int]:
        """For each plane of a type, which plane of the engine's type it is."""
        first_mantissa = 1 + self.float_type.exponent_bits
        exponent = range(first_mantissa - float_type.exponent_bits, first_mantissa)
        return [0, *exponent, *range(first_mantissa, first_mantissa + float_type.mantissa_bits)]
