"""Tensors with at most two values, such as masks, as a bit for each value: exact, 8 to 64 times smaller."""

from __future__ import annotations

import torch

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

# Multiplied by _GATHER, eight bytes of 0 or 1 in an int64 have their sum of weights 1 to 128 in the top byte.
# _SPREAD copies a byte into all eight; _PICK keeps of byte i the bit i.
_GATHER = 0x0102040810204080
_SPREAD = 0x0101010101010101
_PICK = 0x8040201008040201 - (1 << 64)


class BitsCodec:
    """Stores one tensor's values as bits; has the interface of a backend.

    Args:
        levels: the two values that bits 0 and 1 stand for, as integers of the values' width: int[2].
        dtype: of the values.
    """

    BLOCK_BYTES = 64

    def __init__(self, levels: torch.Tensor, dtype: torch.dtype) -> None:
        self.levels, self._dtype = levels, dtype

    @classmethod
    def of(cls, values: torch.Tensor) -> BitsCodec | None:
        """The codec for a flat tensor, or None if it has more than two values; told by their bits.

        Values of 16 bytes are not looked at. On a GPU this waits for the values, but not for booleans.
        """
        if values.dtype == torch.bool:
            return cls(torch.tensor([0, 1], dtype=torch.int8, device=values.device), values.dtype)
        found = cls.levels_of(values)
        return found[0] if found is not None and bool(found[1]) else None

    @classmethod
    def levels_of(cls, values: torch.Tensor) -> tuple[BitsCodec, torch.Tensor] | None:
        """The codec for a flat tensor if it has two values at most, and a tensor that says whether it does.

        None for values of 16 bytes. This waits for no GPU.
        """
        if values.element_size() not in _INTEGERS:
            return None
        words = _words(values)
        if not len(words):
            return cls(words.new_zeros(2), values.dtype), torch.ones((), dtype=torch.bool)
        low, high = words.aminmax()
        return cls(torch.stack([low, high]), values.dtype), ((words == low) | (words == high)).all()

    def compress(self, values: torch.Tensor, first: int = 0) -> torch.Tensor:
        """A flat tensor -> uint8[blocks, 64], 512 values a block, the first in bit 0."""
        count, block = len(values), 8 * self.BLOCK_BYTES
        is_one = values.new_zeros(-(-count // block) * block, dtype=torch.bool)
        torch.eq(_words(values), self.levels[1], out=is_one[:count])
        gathered = is_one.view(torch.int64) * _GATHER >> 56
        return gathered.to(torch.uint8).view(-1, self.BLOCK_BYTES)

    def decompress(self, stored: torch.Tensor, count: int, first: int = 0) -> torch.Tensor:
        """The inverse: the first ``count`` values, bit for bit."""
        is_one = (stored.view(-1).long() * _SPREAD & _PICK).view(torch.uint8)[:count] != 0
        if self._dtype == torch.bool:
            return is_one
        return torch.where(is_one, self.levels[1], self.levels[0]).view(self._dtype)


def _words(values: torch.Tensor) -> torch.Tensor:
    """Values as integers of their width, which share the memory."""
    return values.view(_INTEGERS[values.element_size()])
