"""What a memory engine is made for, checked in one place."""

from dataclasses import dataclass
from functools import cached_property
from math import gcd

from amaranth.utils import exact_log2

from golden import Format
from golden.bursts import PAGE

__all__ = ["PAGE_BITS", "MemoryParameters"]

PAGE_BITS = exact_log2(PAGE)
_BUS_BYTES = (16, 32, 64)
# That the register map has room for.
_MOST = {"regions": 8, "buffers": 255, "formats": 15}
_MOST_ID_BITS = 16  # there is a memory with a place for each ID


@dataclass(frozen=True, kw_only=True)
class MemoryParameters:
    """The parameters of a :class:`rtl.memory.MemoryEngine`.

    Args:
        formats: that regions can have, 15 at most, each with a fixed target and an uncompressed block of at
            least two words.
        bus_bytes: bytes of the accelerator's data bus: 16, 32 or 64.
        memory_bytes: of the memory's: as many, or a half or a quarter.
        address_bits: of both, from 16 to 44.
        id_bits: of the accelerator's, from 1 to 16.
        regions: how many there are, from 1 to 8.
        buffers: blocks that can be open at once, from 1 to 255.
        least_slots: write bursts that can be unanswered at once, at least 1; a block's words if those are
            more.
        reads: read bursts that can wait for those before them, at least 1.
        bursts: writes that memory can have unanswered at once; likewise what it is asked for, for one read of
            the port each, in one burst or several: a power of two from 2 on.
        merging: regions can merge. That takes decompressors of its own, and a memory for the beats that may
            wait for the accelerator.

    Raises:
        ValueError: an argument is none of the above; the message names the value.
    """

    formats: tuple[Format, ...] = ()
    bus_bytes: int = 64
    memory_bytes: int = 64
    address_bits: int = 40
    id_bits: int = 4
    regions: int = 8
    buffers: int = 8
    least_slots: int = 32
    reads: int = 32
    bursts: int = 16
    merging: bool = False

    def __post_init__(self) -> None:
        if self.bus_bytes not in _BUS_BYTES:
            raise ValueError(f"bus_bytes must be one of {_BUS_BYTES}, not {self.bus_bytes!r}")
        narrow = tuple(self.bus_bytes // n for n in (1, 2, 4))
        if self.memory_bytes not in narrow:
            raise ValueError(f"memory_bytes must be one of {narrow}, not {self.memory_bytes!r}")
        if not PAGE_BITS + 4 <= self.address_bits <= PAGE_BITS + 32:
            raise ValueError(f"address_bits must be from 16 to 44, not {self.address_bits!r}")
        for name in ("regions", "buffers"):
            if not 1 <= getattr(self, name) <= _MOST[name]:
                raise ValueError(f"{name} must be from 1 to {_MOST[name]}, not {getattr(self, name)!r}")
        if not 1 <= self.id_bits <= _MOST_ID_BITS:
            raise ValueError(f"id_bits must be from 1 to {_MOST_ID_BITS}, not {self.id_bits!r}")
        for name in ("least_slots", "reads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)!r}")
        if self.bursts < 2 or self.bursts & (self.bursts - 1):
            raise ValueError(f"bursts must be a power of two from 2 on, not {self.bursts!r}")
        if len(self.formats) > _MOST["formats"]:
            raise ValueError(f"formats must be at most {_MOST['formats']}, not {len(self.formats)}")
        if self.merging and not self.formats:
            raise ValueError("merging must be False where there are no formats, not True")
        for fmt in self.formats:
            if fmt.target is None:
                raise ValueError("formats must have fixed targets, not None")
            if fmt.original_bytes < 2 * self.bus_bytes:
                raise ValueError(
                    f"formats must have blocks of at least {2 * self.bus_bytes} bytes, "
                    f"not {fmt.original_bytes}"
                )

    @property
    def page_bits(self) -> int:
        """Of the number of a page of 4 KiB."""
        return self.address_bits - PAGE_BITS

    @property
    def word_bits(self) -> int:
        """Of an address within a word of the bus."""
        return exact_log2(self.bus_bytes)

    @property
    def beat_bits(self) -> int:
        """Of an address within a beat of the memory."""
        return exact_log2(self.memory_bytes)

    @cached_property
    def words(self) -> tuple[int, ...]:
        """Words of each format's block."""
        return tuple(fmt.original_bytes // self.bus_bytes for fmt in self.formats)

    @property
    def most_words(self) -> int:
        return max(self.words, default=2)

    @property
    def slots(self) -> int:
        return max(self.least_slots, self.most_words)

    @property
    def grain(self) -> int:
        """Bytes that divide all places of stored blocks, and a beat."""
        return gcd(self.memory_bytes, *(fmt.target for fmt in self.formats))

    def original_bits(self, index: int) -> int:
        """Of an address within a format's uncompressed block."""
        return exact_log2(self.formats[index].original_bytes)

    @property
    def unit_bits(self) -> int:
        """Of an address within the smallest uncompressed block, at a multiple of which all blocks begin."""
        return min((self.original_bits(i) for i in range(len(self.formats))), default=PAGE_BITS - 1)

    def page_stored(self, index: int) -> int:
        """Bytes that a page of a format's blocks takes in memory."""
        fmt = self.formats[index]
        return PAGE // fmt.original_bytes * fmt.target
