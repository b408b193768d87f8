"""Bit-plane transposition: from one word per value to one row of bits per bit position, and back.

A plane's row is packed little-endian: bit ``i % 8`` of byte ``i // 8`` belongs to value ``i``.
"""

from __future__ import annotations

import numpy as np

# Eight values' bytes form an 8x8 bit matrix in one uint64. It is transposed by swapping 1x1, 2x2
# and 4x4 sub-matrices across the diagonal (Warren, Hacker's Delight, 7-3): (shift, mask of one half).
_SWAPS = (
    (np.uint64(7), np.uint64(0x00AA00AA00AA00AA)),
    (np.uint64(14), np.uint64(0x0000CCCC0000CCCC)),
    (np.uint64(28), np.uint64(0x00000000F0F0F0F0)),
)


def _transpose_8x8(matrices: np.ndarray) -> None:
    """Transpose every 8x8 bit matrix of a uint64 array in place."""
    swap = np.empty_like(matrices)
    for shift, mask in _SWAPS:
        np.right_shift(matrices, shift, out=swap)
        swap ^= matrices
        swap &= mask
        matrices ^= swap
        np.left_shift(swap, shift, out=swap)
        matrices ^= swap


def to_planes(words: np.ndarray) -> np.ndarray:
    """uint16/uint32[blocks, N] -> uint8[blocks, width, N/8], planes from most to least significant."""
    blocks, n = words.shape
    size = words.dtype.itemsize
    octets = np.empty((size, blocks, n), np.uint8)  # the most significant byte of each word first
    for i in range(size):
        octets[i] = words >> words.dtype.type(8 * (size - 1 - i))
    _transpose_8x8(octets.view("<u8"))
    planes = octets.reshape(size, blocks, n // 8, 8).transpose(1, 0, 3, 2)[:, :, ::-1]
    return np.ascontiguousarray(planes).reshape(blocks, 8 * size, n // 8)


def from_planes(planes: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The inverse of ``to_planes``; ``dtype`` is the unsigned type of a word."""
    blocks, width, row = planes.shape
    size = width // 8
    rows = planes.reshape(blocks, size, 8, row)[:, :, ::-1]
    octets = np.ascontiguousarray(rows.transpose(1, 0, 3, 2)).reshape(size, blocks, row * 8)
    _transpose_8x8(octets.view("<u8"))
    words = octets[0].astype(dtype)
    for octet in octets[1:]:
        words = words << dtype.type(8) | octet
    return words
