"""What must come out of a decompressor for any blocks, invalid ones among them, as golden/ has it."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from golden import PlaneFormat


def decoded(fmt: PlaneFormat, stored: np.ndarray) -> tuple[bytes, set[int]]:
    """The bytes of the values of uint8[blocks, target], zeros for an invalid block, and which are such."""
    invalid = fmt.check_headers(stored[:, : fmt.header_bytes])
    safe = stored.copy()
    safe[invalid] = fmt.compress(np.zeros(fmt.block, fmt.float_type.array))
    values = fmt.decompress(safe, (len(stored), fmt.block))
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
