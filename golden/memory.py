"""The memory as an accelerator sees it through the engine: regions, gathered writes, what a read sees.

This module is the law for the engine's bytes and responses; docs/memory.md says the same in words. It knows
no time: a burst happens as a whole, a block is written as soon as it is complete. What the engine does
because time passes is a call of its own, ``MemoryModel.expire``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from .blocks import BlockFormat, as_integer
from .bursts import PAGE, Burst, BurstKind, Response

__all__ = ["Dram", "ErrorKind", "MemoryModel", "Region"]


class ErrorKind(Enum):
    """What the engine records, each with an address."""

    DECODE = "decode"  # the address of a burst that no region answers for
    REFUSED = "refused"  # the address of a FIXED write to blocks
    EVICTED = "evicted"  # a block that was never complete
    INVALID = "invalid"  # a block whose stored bytes no encoder produces
    READ = "read"  # a block, or a word past the formats, that memory answered with an error
    WRITE = "write"  # in memory: where the bytes begin of which it refused some


@dataclass(frozen=True)
class Region:
    """A range of addresses that is kept in one format.

    Args:
        base, size: where it begins and how many bytes it has, as the accelerator sees it.
        stored: where its stored bytes begin.
        fmt: a format with a fixed target; None keeps the bytes as they are.
        merge: whether a block that was written in part is merged with what is stored.

    Raises:
        ValueError: a number is not a multiple of 4 KiB, the size is 0, or the format is lossless.
    """

    base: int
    size: int
    stored: int
    fmt: BlockFormat | None = None
    merge: bool = False

    def __post_init__(self) -> None:
        for name in ("base", "size", "stored"):
            number = as_integer(getattr(self, name))
            if number is None or number < 0 or number % PAGE:
                raise ValueError(f"{name} must be a multiple of {PAGE}, not {getattr(self, name)!r}")
            object.__setattr__(self, name, number)
        if not self.size:
            raise ValueError(f"size must not be 0, not {self.size!r}")
        if self.fmt is not None and not isinstance(self.fmt, BlockFormat):
            raise ValueError(f"fmt must be a format or None, not {self.fmt!r}")
        if self.fmt is not None and self.fmt.target is None:
            raise ValueError("fmt must have a fixed target, not None")

    def __contains__(self, address: int) -> bool:
        return self.base <= address < self.base + self.size

    @property
    def stored_size(self) -> int:
        """Bytes of memory that it takes."""
        if self.fmt is None:
            return self.size
        assert self.fmt.target is not None
        return self.size // self.fmt.original_bytes * self.fmt.target

    def number(self, address: int) -> int:
        """The number of the block that an address lies in, counted from the region's first."""
        assert self.fmt is not None
        return (address - self.base) // self.fmt.original_bytes

    def shares_memory(self, other: Region) -> bool:
        """Whether the stored bytes of two regions overlap."""
        return (
            self.stored < other.stored + other.stored_size and other.stored < self.stored + self.stored_size
        )


class Dram:
    """The memory behind the engine: bytes from address 0 on, and places that answer errors.

    Args:
        content: uint8[size]; what lies beyond answers DECERR.
        beat: bytes of a beat: an error belongs to all of one.

    Attributes:
        faults: places, by their first byte and the one behind the last, and what they answer.
    """

    def __init__(self, content: np.ndarray, beat: int = 64):
        self.content = content
        self.beat = beat
        self.faults: list[tuple[int, int, Response]] = []

    def response(self, address: int, size: int) -> Response:
        """The gravest of what the beats answer that have these bytes."""
        start, stop = address - address % self.beat, address + size + -(address + size) % self.beat
        answers = [answer for low, high, answer in self.faults if low < stop and start < high]
        if stop > len(self.content):
            answers.append(Response.DECERR)
        return max(answers, default=Response.OKAY)

    def write(self, address: int, data: np.ndarray) -> Response:
        """Write bytes, but for those in beats that answer an error; the gravest answer."""
        for start in range(address - address % self.beat, address + len(data), self.beat):
            if self.response(start, self.beat) == Response.OKAY:
                low, high = max(start, address), min(start + self.beat, address + len(data))
                self.content[low:high] = data[low - address : high - address]
        return self.response(address, len(data))


@dataclass
class _Open:
    """A block of which some bytes were written and not all."""

    region: Region
    address: int
    content: np.ndarray
    written: np.ndarray
    waiting: set[int] = field(default_factory=set)  # the bursts that are not answered before it is written
    answered: bool = False  # whether a bufferable burst wrote to it


@dataclass
class _Answer:
    """What a burst will be answered, and whether that is decided."""

    master: int
    response: Response = Response.OKAY
    decided: bool = False


class MemoryModel:
    """An engine and its memory, burst by burst.

    Args:
        dram: the memory.
        bus_bytes: bytes of the accelerator's bus.
        regions: how many there are; all are disabled at first.
        buffers: blocks that can be open at once.
        slots: write bursts that can be unanswered at once.
        address_bits: of both sides; nothing answers for a region whose stored bytes reach beyond them.

    Attributes:
        responses: of all write bursts answered so far, by their tickets, in the order in which they were.
            Between bursts of different masters that order means nothing.
        errors: what was recorded, each with its address.

    Raises:
        ValueError: there are to be less than one of something.
    """

    def __init__(
        self,
        dram: Dram,
        bus_bytes: int = 64,
        *,
        regions: int = 8,
        buffers: int = 8,
        slots: int = 32,
        address_bits: int = 40,
    ):
        numbers = {"regions": regions, "buffers": buffers, "slots": slots, "address_bits": address_bits}
        for name, number in numbers.items():
            if number < 1:
                raise ValueError(f"{name} must be at least 1, not {number}")
        self.dram = dram
        self.bus_bytes = bus_bytes
        self.regions: list[Region | None] = [None] * regions
        self.responses: dict[int, Response] = {}
        self.errors: list[tuple[ErrorKind, int]] = []
        self._address_bits = address_bits
        self._buffers = buffers
        self._slots = slots
        self._open: list[_Open] = []  # in the order in which they were opened
        self._waiting: dict[int, _Answer] = {}
        self._tickets = 0

    # Regions.

    def enable(self, index: int, region: Region) -> None:
        """Let a region answer for its addresses.

        Raises:
            ValueError: there is no such one, it is enabled already, or its blocks have less than two words
                of the bus.
        """
        if index not in range(len(self.regions)):
            raise ValueError(f"index must be from 0 to {len(self.regions) - 1}, not {index}")
        if region.fmt is not None and region.fmt.original_bytes < 2 * self.bus_bytes:
            raise ValueError(
                f"fmt must have blocks of at least {2 * self.bus_bytes} bytes, "
                f"not {region.fmt.original_bytes}"
            )
        if self.regions[index] is not None:
            raise ValueError(
                f"region {index} must be disabled before it is changed, not {self.regions[index]}"
            )
        self.regions[index] = region

    def disable(self, index: int) -> None:
        """Evict a region's open blocks; from then on nothing answers for its addresses."""
        for block in [block for block in self._open if block.region is self.regions[index]]:
            self._evict(block)
        self.regions[index] = None
        self._answer()

    def _region_of(self, address: int) -> Region | None:
        """The one region that answers for an address."""
        hits = [region for region in self.regions if region is not None and address in region]
        if len(hits) != 1:
            return None
        (hit,) = hits
        others = [region for region in self.regions if region is not None and region is not hit]
        fits = hit.stored + hit.stored_size <= 1 << self._address_bits
        return hit if fits and not any(hit.shares_memory(other) for other in others) else None

    # Writes.

    def write(
        self,
        burst: Burst,
        words: np.ndarray,
        strobes: np.ndarray,
        *,
        bufferable: bool = False,
        master: int = 0,
    ) -> int:
        """Take a burst.

        Args:
            words: uint8[beats, bus_bytes], each byte in its lane.
            strobes: bool[beats, bus_bytes]: which of them are written.
            bufferable: AWCACHE[0].
            master: AWID; bursts of one are answered in their order.

        Returns:
            the burst's ticket: its key in ``responses`` once it is answered.

        Raises:
            ValueError: words or strobes have another type or shape, or a strobe lies in no lane of its beat,
                which AXI does not allow.
        """
        shape = (burst.beats, self.bus_bytes)
        for name, array, kind in (("words", words, np.uint8), ("strobes", strobes, np.bool_)):
            if array.dtype != kind or array.shape != shape:
                raise ValueError(
                    f"{name} must be {np.dtype(kind)}{list(shape)}, not {array.dtype}{list(array.shape)}"
                )
        if (strobes & ~burst.lanes(self.bus_bytes)).any():
            raise ValueError(f"strobes must be in the lanes of their beats, not {strobes.tolist()}")
        while len(self._waiting) == self._slots:
            self._evict(self._open[0])
            self._answer()
        ticket, self._tickets = self._tickets, self._tickets + 1
        answer = self._waiting[ticket] = _Answer(master)
        region = self._region_of(burst.address)
        if region is None:
            self._fail(answer, Response.DECERR, ErrorKind.DECODE, burst.address)
        elif region.fmt is None:
            self._write_through(region, burst, words, strobes, answer)
        elif burst.kind == BurstKind.FIXED:
            self._fail(answer, Response.SLVERR, ErrorKind.REFUSED, burst.address)
        else:
            for address, word, strobe in self._words(burst, words, strobes):
                self._gather(region, address, word, strobe, None if bufferable else ticket)
        answer.decided = True
        self._answer()
        return ticket

    def expire(self) -> bool:
        """Evict the block that has been open for longest; return whether there was one."""
        if not self._open:
            return False
        self._evict(self._open[0])
        self._answer()
        return True

    def _words(
        self, burst: Burst, words: np.ndarray, strobes: np.ndarray
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        for address, word, strobe in zip(burst.addresses(), words, strobes, strict=True):
            yield address - address % self.bus_bytes, word, strobe

    def _write_through(
        self, region: Region, burst: Burst, words: np.ndarray, strobes: np.ndarray, answer: _Answer
    ) -> None:
        start = region.stored - region.base
        for address, word, strobe in self._words(burst, words, strobes):
            for place in start + address + np.flatnonzero(strobe):
                response = self.dram.response(int(place), 1)
                if response == Response.OKAY:
                    self.dram.content[place] = word[place % self.bus_bytes]
                elif answer.response == Response.OKAY:
                    self.errors.append((ErrorKind.WRITE, int(place)))
                answer.response = max(answer.response, response)

    def _gather(
        self, region: Region, address: int, word: np.ndarray, strobe: np.ndarray, ticket: int | None
    ) -> None:
        """Take a word's bytes to its block; ``ticket`` is None of a bufferable burst."""
        if not strobe.any():
            return
        assert region.fmt is not None
        block = self._block_at(region, address - address % region.fmt.original_bytes)
        places = address - block.address + np.flatnonzero(strobe)
        block.content[places], block.written[places] = word[strobe], True
        block.answered |= ticket is None
        block.waiting |= set() if ticket is None else {ticket}
        if block.written.all():
            self._open.remove(block)
            self._store(block)

    def _block_at(self, region: Region, address: int) -> _Open:
        """The open block with this address, opened if it is not."""
        for block in self._open:
            if block.address == address:
                return block
        if len(self._open) == self._buffers:
            self._evict(self._open[0])
        assert region.fmt is not None
        size = region.fmt.original_bytes
        self._open.append(_Open(region, address, np.zeros(size, np.uint8), np.zeros(size, bool)))
        return self._open[-1]

    def _store(self, block: _Open) -> None:
        """Compress a whole block, write it, and let the bursts go that wait for it."""
        fmt = block.region.fmt
        assert fmt is not None
        assert fmt.target is not None
        number = block.region.number(block.address)
        values = block.content.view(fmt.float_type.array)
        place = block.region.stored + number * fmt.target
        response = self.dram.write(place, fmt.compress(values, number % 2**32)[0])
        if response > Response.OKAY:
            self.errors.append((ErrorKind.WRITE, place))
        self._release(block, response)

    def _evict(self, block: _Open) -> None:
        """Close a block that is not complete: merged with what is stored, or unwritten."""
        self._open.remove(block)
        if not block.region.merge:
            self.errors.append((ErrorKind.EVICTED, block.address))
            self._release(block, Response.SLVERR)
            return
        content, response = self._load(block.region, block.address)
        if response > Response.OKAY:
            self._release(block, response)
            return
        block.content[~block.written] = content[~block.written]
        self._store(block)

    def _release(self, block: _Open, response: Response) -> None:
        for ticket in block.waiting:
            answer = self._waiting[ticket]
            answer.response = max(answer.response, response)

    def _fail(self, answer: _Answer, response: Response, kind: ErrorKind, address: int) -> None:
        self.errors.append((kind, address))
        answer.response = response

    def _answer(self) -> None:
        """Give the responses that wait neither for a block nor for their master's earlier ones."""
        held = {ticket for block in self._open for ticket in block.waiting}
        masters = set()
        for ticket, answer in list(self._waiting.items()):
            if ticket in held or not answer.decided or answer.master in masters:
                masters.add(answer.master)
            else:
                self.responses[ticket] = answer.response
                del self._waiting[ticket]

    # Reads.

    def read(self, burst: Burst) -> tuple[np.ndarray, list[Response]]:
        """Read a burst.

        Returns:
            uint8[beats, bus_bytes], 0 outside the lanes of a beat and where its response is an error; and the
            response of each beat.
        """
        lanes = burst.lanes(self.bus_bytes)
        words = np.zeros(lanes.shape, np.uint8)
        region = self._region_of(burst.address)
        if region is None:
            self.errors.append((ErrorKind.DECODE, burst.address))
            return words, [Response.DECERR] * burst.beats
        if region.fmt is not None:
            self._settle(burst, region.fmt.original_bytes)
        responses = []
        size = region.fmt.original_bytes if region.fmt else self.bus_bytes
        has = -1  # the address of the block that is loaded, or of the word past the formats
        for word, lane, address in zip(words, lanes, burst.addresses(), strict=True):
            if has != address - address % size:
                has = address - address % size
                content, response = self._load(region, has)
            first = address - address % self.bus_bytes - has
            word[lane] = content[first : first + self.bus_bytes][lane]
            responses.append(response)
        return words, responses

    def _settle(self, burst: Burst, size: int) -> None:
        """Evict the open blocks of a burst to which a bufferable write was answered."""
        for address in dict.fromkeys(address - address % size for address in burst.addresses()):
            for block in [block for block in self._open if block.address == address and block.answered]:
                self._evict(block)
        self._answer()

    def _load(self, region: Region, address: int) -> tuple[np.ndarray, Response]:
        """A block's bytes, or a word's past the formats; zeros behind an error, which is recorded."""
        fmt = region.fmt
        if fmt is None:
            place = region.stored + address - region.base
            response = self.dram.response(place, self.bus_bytes)
            if response > Response.OKAY:
                self.errors.append((ErrorKind.READ, address))
                return np.zeros(self.bus_bytes, np.uint8), response
            return self.dram.content[place : place + self.bus_bytes].copy(), response
        assert fmt.target is not None
        number = region.number(address)
        place = region.stored + number * fmt.target
        response = self.dram.response(place, fmt.target)
        if response > Response.OKAY:
            self.errors.append((ErrorKind.READ, address))
        else:
            stored = self.dram.content[place : place + fmt.target].reshape(1, -1)
            try:
                return fmt.decompress(stored, fmt.block, number % 2**32).view(np.uint8).copy(), response
            except ValueError:
                self.errors.append((ErrorKind.INVALID, address))
                response = Response.SLVERR
        return np.zeros(fmt.original_bytes, np.uint8), response
