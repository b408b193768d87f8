"""The parameters that the engines of all formats share, checked in one place."""

from collections.abc import Sequence
from math import gcd

from golden import Format
from golden.floats import FLOAT_TYPES, FloatType

__all__ = ["BUS_BYTES", "Engine"]

BUS_BYTES = (16, 32, 64, 128)


class Engine:
    """How an engine cuts blocks into words, and what its format decides.

    An engine has one format, or several between which it is switched while it is empty: see
    :class:`rtl.stream.Switch`. In the datapath a block travels as several *words*, which bus words are cut
    into or make up. There every value is one of ``float_type``: a shorter mantissa ends in zeros, and a
    shorter exponent field is moved up so that infinities and NaNs have all ones.

    Args:
        formats: one or several, with a fixed target, all of the same block.
        bus_bytes: bytes of a word on either side: 16, 32, 64 or 128.

    Attributes:
        fmt: the first format.
        types: the formats' types.
        float_type: one whose values hold those of all formats.
        block: values of a block.
        lanes: values that the datapath takes or gives in a cycle: a bus word of the shortest type, but at
            most half a block.
        words: of a block in the datapath, at least two.
        word_bytes: bytes of such a word as values of ``float_type``.
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

        self.fmt = formats[0]
        self.types = list(dict.fromkeys(fmt.float_type for fmt in formats))
        self.float_type: FloatType = self.types[0] if len(self.types) == 1 else FLOAT_TYPES["fp32"]
        self.block = formats[0].block
        most = self.block // self.least_words
        self.lanes = min(8 * bus_bytes // min(ft.width for ft in self.types), most)
        self.words = self.block // self.lanes
        self.word_bytes = self.bytes_as(self.float_type)
        self.target = max(fmt.target for fmt in formats)
        self.grain = gcd(bus_bytes, *(fmt.target for fmt in formats))

    def bytes_as(self, float_type: FloatType) -> int:
        """Bytes of a word's values as those of a type."""
        return self.lanes * float_type.width // 8

    def exponent_offset(self, float_type: FloatType) -> int:
        """What is added to the exponent fields of a type that are not 0."""
        return self.float_type.exponent_max - float_type.exponent_max

    @property
    def gathered_cycles(self) -> int:
        """Cycles that it takes to gather a word from bus words, where the longest type needs several."""
        return int(max(self.bytes_as(ft) for ft in self.types) > self.bus_bytes)

    @property
    def joined_cycles(self) -> int:
        """Cycles in which words of the shortest type are joined to a bus word."""
        pieces = self.bus_bytes // min(self.bytes_as(ft) for ft in self.types)
        return pieces if pieces > 1 else 0
