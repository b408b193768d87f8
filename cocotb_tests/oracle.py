"""What must come out of a decompressor for any blocks, invalid ones among them, as golden/ has it."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from golden import Format, HadamardFormat


def invalid_blocks(fmt: Format, stored: np.ndarray) -> np.ndarray:
    """Which blocks of uint8[blocks, target] no encoder produces, by their headers: bool[blocks]."""
    headers = stored[:, : fmt.header_bytes]
    if isinstance(fmt, HadamardFormat):
        return fmt.check_headers(headers[:, 0].astype(np.int64) | (headers[:, 1].astype(np.int64) & 15) << 8)
    return fmt.check_headers(headers)


def invalid_block(fmt: Format) -> np.ndarray:
    """A block that no encoder produces, uint8[target]."""
    block = np.full(fmt.target, 0xFF, np.uint8)
    if isinstance(fmt, HadamardFormat):
        block[:2] = 2, 0xF0
    return block


def decoded(fmt: Format, stored: np.ndarray, first: int = 0) -> tuple[bytes, set[int]]:
    """The bytes of the values of uint8[blocks, target], zeros for an invalid block, and which are such.

    Args:
        first: the number of the first block.
    """
    invalid = invalid_blocks(fmt, stored)
    safe = stored.copy()
    safe[invalid] = 0
    values = fmt.decompress(safe, (len(stored), fmt.block), first)
    return values.tobytes(), set(np.flatnonzero(invalid).tolist())


def error_flags(errors: Collection[int], block: int, size: int, word: int) -> list[bool]:
    """For each word of ``word`` bytes whether it comes with an error.

    Args:
        errors: the blocks that are errors.
        block: bytes of a block.
        size: bytes of all blocks.
    """
    starts = range(0, size, word)
    return [any(b in errors for b in range(i // block, -(-min(i + word, size) // block))) for i in starts]
