"""The parameters that the compressor and the decompressor share, checked in one place."""

from golden import PlaneFormat

__all__ = ["BUS_BYTES", "Engine"]

BUS_BYTES = (16, 32, 64, 128)


class Engine:
    """How an engine for a format cuts blocks into words.

    Args:
        fmt: a format with a fixed target.
        bus_bytes: bytes of a word on either side: 16, 32, 64 or 128.

    Attributes:
        word_bytes: bytes of uncompressed data that the datapath takes or gives in a cycle: the bus, but
            at most half a block.
        lanes: values of such a word.
        words: such words of a block, at least two.
        is_narrow: whether a bus word is more than such a word.

    Raises:
        ValueError: the format is lossless, or ``bus_bytes`` is none of the above.
    """

    def __init__(self, fmt: PlaneFormat, bus_bytes: int):
        if fmt.target is None:
            raise ValueError("fmt must have a fixed target, not None")
        if bus_bytes not in BUS_BYTES:
            raise ValueError(f"bus_bytes must be one of {BUS_BYTES}, not {bus_bytes!r}")
        self.fmt = fmt
        self.bus_bytes = bus_bytes
        self.word_bytes = min(bus_bytes, fmt.raw_bytes // 2)
        self.lanes = 8 * self.word_bytes // fmt.float_type.width
        self.words = fmt.raw_bytes // self.word_bytes
        self.is_narrow = self.word_bytes < bus_bytes
