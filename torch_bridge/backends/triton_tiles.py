"""What Triton kernels share: tiles of which each thread has whole columns, and what holds for a block.

Only Triton's built-in functions are called: these can be interpreted even where Triton itself was imported
for compiling.
"""

# In a kernel, names in capitals are constants at compile time.
# ruff: noqa: N803

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import triton
import triton.language as tl

WARPS = 4  # of a program
COLUMNS = 32 * WARPS  # of a tile: one for each thread


class Kernels(NamedTuple):
    """The kernels of a format.

    Attributes:
        compress: takes values, stored, their count, the number of the first block and the constants.
        decompress: takes stored, values, their count, that number, record, call and the constants.
        constants: what both are compiled for; ``BLOCKS`` is how many blocks a program has.
    """

    compress: Any
    decompress: Any
    constants: Callable[[Any], dict[str, int]]


@triton.jit
def pairs(tile, DISTANCE: tl.constexpr):
    """Rows that lie ``DISTANCE``, d, apart: [rows, columns] -> upper and lower, [rows / 2d, d, columns]."""
    rows: tl.constexpr = tile.shape[0]
    columns: tl.constexpr = tile.shape[1]
    pairs = tl.reshape(tile, (rows // (2 * DISTANCE), 2, DISTANCE, columns))
    return tl.split(tl.permute(pairs, (0, 2, 3, 1)))


@triton.jit
def unpair(upper, lower):
    """The inverse of ``pairs``."""
    rows: tl.constexpr = 2 * upper.shape[0] * upper.shape[1]
    columns: tl.constexpr = upper.shape[2]
    return tl.reshape(tl.permute(tl.join(upper, lower), (0, 3, 1, 2)), (rows, columns))


@triton.jit
def own_columns(tile):
    """The same tile, of which each thread has whole columns.

    It is the compiler that deals a tile out to threads. Loading in order deals neighbours a column
    together, and a thread must have both of the rows that it splits.
    """
    upper, lower = pairs(tile, tile.shape[0] // 2)
    return unpair(upper, lower)


@triton.jit
def add(one, other):
    return one + other


@triton.jit
def bitwise_or(one, other):
    return one | other


@triton.jit
def larger(one, other):
    return tl.maximum(one, other)


@triton.jit
def smaller(one, other):
    return tl.minimum(one, other)


@triton.jit
def fold_rows(tile, FOLD: tl.constexpr, NEAREST: tl.constexpr):
    """Combine all rows, at most 32, two by two: [rows, columns] -> [columns].

    The nearest first, or those half of the tile apart: whichever else is done first with the same tile. It is
    dealt out once for each order.
    """
    for _ in tl.static_range(5):
        if tile.shape[0] > 1:
            upper, lower = pairs(tile, 1 if NEAREST else tile.shape[0] // 2)
            tile = tl.reshape(FOLD(upper, lower), (tile.shape[0] // 2, tile.shape[1]))
    return tl.reshape(tile, (tile.shape[1],))


@triton.jit
def by_block(column, PER_BLOCK: tl.constexpr):
    """What each column has -> [blocks, columns of a block]."""
    return tl.reshape(column, (column.shape[0] // PER_BLOCK, PER_BLOCK))


@triton.jit
def to_columns(of_block, PER_BLOCK: tl.constexpr):
    """What each block has -> the same for each of its columns."""
    blocks: tl.constexpr = of_block.shape[0]
    spread = tl.broadcast_to(tl.reshape(of_block, (blocks, 1)), (blocks, PER_BLOCK))
    return tl.reshape(spread, (blocks * PER_BLOCK,))
