"""Bit patterns of floats from their fields."""

from __future__ import annotations

import numpy as np

from golden import Format

Blocks = np.ndarray  # bit patterns, uint64[blocks, N]


def fields(fmt: Format, sign, exponent, mantissa) -> Blocks:
    """Of numbers, or arrays of them; they are broadcast."""
    ft = fmt.float_type
    wide = [np.asarray(part).astype(np.uint64) for part in (sign, exponent, mantissa)]
    return wide[0] << np.uint64(ft.width - 1) | wide[1] << np.uint64(ft.mantissa_bits) | wide[2]


def random_fields(fmt: Format, count: int, rng: np.random.Generator):
    """The shape [count, N], and any signs and mantissas of it."""
    shape = (count, fmt.block)
    sign = rng.integers(0, 2, shape)
    return shape, sign, rng.integers(0, fmt.float_type.mantissa_mask + 1, shape)
