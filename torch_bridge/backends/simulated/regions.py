"""Blocks that live in the region of a memory, and have the numbers that it gives them.

``regions`` has them of the golden model: what must come of them in any memory.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from functools import cache
from threading import RLock

import numpy as np
import torch

from golden import Format
from golden.bursts import PAGE
from golden.memory import Region

from ..base import Backend
from ..dtypes import TORCH_DTYPES
from ..memory import octets

# Bytes of memory from one region to the next, and of addresses.
_ROOM = 1 << 27
_REACH = 1 << 36


class Store(ABC):
    """Blocks of a region: those in use, from the first on, and those that are free.

    What was taken becomes free when nothing in the region is used any more, as behind a training step.

    Args:
        region: has a format.
        stored: uint8[blocks, target], its memory.
    """

    def __init__(self, region: Region, stored: np.ndarray) -> None:
        self.region, self._stored = region, stored
        self._next = self._used = 0
        self._lock = RLock()  # of models in several threads; a finalizer may run in the middle of what has it

    def take(self, blocks: int) -> tuple[int, np.ndarray]:
        """So many blocks: the number of the first, and their memory, whose end frees them.

        Raises:
            MemoryError: so many are not free.
        """
        with self._lock:
            self._used += 1  # first, so that no finalizer begins anew meanwhile
            number = self._next
            if number + blocks > len(self._stored):
                self._free()
                raise MemoryError(f"the region has {len(self._stored) - number} free blocks, not {blocks}")
            self._next += blocks
            rows = self._stored[number : number + blocks]
            weakref.finalize(rows, self._free)
            return number, rows

    def _free(self) -> None:
        with self._lock:
            self._used -= 1
            if not self._used:
                self._next = 0

    def number_of(self, address: int) -> int:
        """The number of the block whose memory begins there.

        Raises:
            ValueError: none does.
        """
        number, rest = divmod(address - self._stored.ctypes.data, self._stored.shape[1])
        if rest or not 0 <= number <= len(self._stored):
            raise ValueError("stored must be where compress put it, not a copy")
        return number

    @abstractmethod
    def write(self, number: int, original: np.ndarray) -> None:
        """Write whole blocks, uint8[bytes], from one on."""

    @abstractmethod
    def read(self, number: int, blocks: int) -> np.ndarray:
        """What they became, uint8[bytes]."""


class GoldenStore(Store):
    """The same as golden has it."""

    def __init__(self, region: Region) -> None:
        assert region.fmt is not None
        assert region.fmt.target is not None
        self._fmt = region.fmt
        super().__init__(
            region, np.zeros((region.size // region.fmt.original_bytes, region.fmt.target), np.uint8)
        )

    def write(self, number: int, original: np.ndarray) -> None:
        rows = self._fmt.compress(original.view(self._fmt.float_type.array), number)
        self._stored[number : number + len(rows)] = rows

    def read(self, number: int, blocks: int) -> np.ndarray:
        rows = self._stored[number : number + blocks]
        return self._fmt.decompress(rows, blocks * self._fmt.block, number).view(np.uint8)


class RegionBackend(Backend):
    """Keeps the blocks of a format in a region.

    What ``compress`` gives *is* the memory, and is to be decompressed there: not moved, nor copied.
    Tensors of other devices than the CPU, and numbers of blocks, are refused (ValueError).
    """

    fmt: Format

    def __init__(self, fmt: Format, store: Store) -> None:
        super().__init__(fmt)
        self._store = store

    def _compress(self, values: torch.Tensor, first: int) -> torch.Tensor:
        _refuse(first)
        if values.device.type != "cpu":
            raise ValueError(f"what regions keep must come from the CPU, not from {values.device}")
        blocks = self.fmt.blocks(values.numel())
        original, given = np.zeros(blocks * self.fmt.original_bytes, np.uint8), values.contiguous()
        original[: given.nbytes] = octets(given)
        number, rows = self._store.take(blocks)
        if blocks:
            self._store.write(number, original)
        return torch.from_numpy(rows)

    def _decompress(self, stored: torch.Tensor, count: int, first: int) -> torch.Tensor:
        _refuse(first)
        if not len(stored):
            return torch.empty(0, dtype=TORCH_DTYPES[self.fmt.dtype], device="cpu")
        if not stored.is_contiguous():
            raise ValueError(f"stored must be whole blocks in a row, not of strides {stored.stride()}")
        original = self._store.read(self._store.number_of(stored.data_ptr()), len(stored))
        return torch.from_numpy(original).view(TORCH_DTYPES[self.fmt.dtype])[:count]


def _refuse(first: int) -> None:
    if first:
        raise ValueError(f"first must be 0 where a region numbers the blocks, not {first}")


def region_of(fmt: Format, index: int = 0) -> Region:
    """The region of a format, one of several apart from each other."""
    assert fmt.target is not None
    size = _ROOM // fmt.target * fmt.original_bytes // PAGE * PAGE
    return Region(index * _REACH, size, index * _ROOM, fmt)


def golden(fmt: Format) -> RegionBackend:
    """The backend ``regions``."""
    return RegionBackend(fmt, _store(fmt))


@cache
def _store(fmt: Format) -> GoldenStore:
    return GoldenStore(region_of(fmt))
