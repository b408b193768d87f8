"""Sizes that the lossless codecs of other memory compressors give real data."""

from __future__ import annotations

import zlib
from typing import Protocol

import numpy as np

_LINE = 64  # bytes
_BINS = np.array([0, 8, 32, 64])  # bytes, of a compressed line


class Codec(Protocol):
    def __call__(self, values: np.ndarray, page: int) -> np.ndarray:
        """Bytes that each page of a tensor takes.

        Args:
            values: of a tensor of fp32, uint8[size].
            page: uncompressed bytes of a page; the last of a tensor is filled with zeros.
        """
        ...


def bit_planes(values: np.ndarray, page: int) -> np.ndarray:
    """Bit planes of each page, then DEFLATE.

    The layout of Xie et al., "Reimagining memory access for LLM inference", arXiv 2503.18869, where the codec
    is LZ4 or ZSTD. DEFLATE stands for them: it comes with Python, and compresses more than LZ4.
    """
    pages = _pages(values, page)
    # The bits of a page's words, by their place in the word.
    words = pages.view("<u4").astype(">u4").view(np.uint8).reshape(len(pages), -1, 4)
    planes = np.packbits(np.unpackbits(words, axis=2).swapaxes(1, 2), axis=2).reshape(len(pages), -1)
    return np.array([len(zlib.compress(row.tobytes())) for row in planes], np.int64)


def lines(values: np.ndarray, page: int) -> np.ndarray:
    """Lines of 64 bytes in Bit-Plane Compression, each in a bin of 0, 8, 32 or 64 bytes.

    The layout of Choukse et al., "Compresso: pragmatic main memory compression", MICRO 2018.
    """
    pages = _pages(values, page)
    sizes = bit_plane_compression(pages.reshape(-1, _LINE))
    binned = _BINS[np.searchsorted(_BINS, np.minimum(sizes, _LINE))]
    return binned.reshape(len(pages), -1).sum(axis=1)


def bit_plane_compression(found: np.ndarray) -> np.ndarray:
    """Bytes of lines of 32-bit words; 0 of a line of zeros.

    Source: J. Kim et al., "Bit-Plane Compression: transforming data for better compression in many-core
    architectures", ISCA 2016: the deltas of neighbours as bit planes, each with an exclusive or to the next,
    and a code for each of these. For lines of 16 words a position takes 4 bits and a plane 15.

    Args:
        found: uint8[lines, bytes].
    """
    words = found.view("<i4").astype(np.int64)
    deltas = np.diff(words, axis=1)
    count = deltas.shape[1]
    weights = 1 << np.arange(count, dtype=np.int64)
    # From the sign, bit 32, down.
    planes = [((deltas >> bit & 1) * weights).sum(axis=1) for bit in range(32, -1, -1)]
    bits = _base_bits(words[:, 0])
    run = np.zeros(len(words), np.int64)  # of planes that the exclusive or makes zero
    above = np.zeros(len(words), np.int64)
    for plane in planes:
        changed = plane ^ above
        is_zero = changed == 0
        bits += np.where(is_zero, 0, _run_bits(run) + _plane_bits(changed, plane, count))
        run = np.where(is_zero, run + 1, 0)
        above = plane
    bits += _run_bits(run)
    return np.where((words == 0).all(axis=1), 0, -(-bits // 8))


def _base_bits(base: np.ndarray) -> np.ndarray:
    """Of a line's first word: 0, or what fits 4, 8 or 16 bits with its sign, or all 32."""
    fits = [(base >= -(1 << width - 1)) & (base < 1 << width - 1) for width in (4, 8, 16)]
    return np.select([base == 0, *fits], [3, 7, 11, 19], 33).astype(np.int64)


def _run_bits(run: np.ndarray) -> np.ndarray:
    """Of planes of zeros one after the other: 3 bits for one, 7 for up to 33."""
    return np.select([run == 0, run == 1], [0, 3], 7)


def _plane_bits(changed: np.ndarray, plane: np.ndarray, count: int) -> np.ndarray:
    """Of a plane that is not zero: all ones, zero before the exclusive or, one or two ones, or as it is."""
    lowest = changed & -changed
    rest = changed ^ lowest
    position = 5 + (count).bit_length()
    return np.select(
        [changed == (1 << count) - 1, plane == 0, rest == 0, rest == lowest << 1],
        [5, 5, position, position],
        1 + count,
    )


def _pages(values: np.ndarray, page: int) -> np.ndarray:
    """uint8[pages, page], filled up with zeros."""
    count = -(-len(values) // page)
    padded = np.zeros(count * page, np.uint8)
    padded[: len(values)] = values
    return padded.reshape(count, page)
