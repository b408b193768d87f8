"""The floating-point types the formats know, as field widths and NumPy types."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class FloatType:
    """One IEEE-754-style type: a sign bit, then the exponent field, then the mantissa field.

    ``array`` is the NumPy type of values, ``bits`` the unsigned integer of the same width.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    array: np.dtype
    bits: np.dtype

    @property
    def width(self) -> int:
        """Bits of one value."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def exponent_max(self) -> int:
        """The exponent field of infinities and NaNs: all ones."""
        return (1 << self.exponent_bits) - 1

    @property
    def bias(self) -> int:
        """What an exponent field has more than the exponent."""
        return self.exponent_max >> 1

    @property
    def mantissa_mask(self) -> int:
        return (1 << self.mantissa_bits) - 1

    @property
    def quiet_bit(self) -> int:
        """The top mantissa bit, which marks a NaN as quiet (IEEE 754-2019, 6.2.1)."""
        return 1 << (self.mantissa_bits - 1)


FLOAT_TYPES = {
    t.name: t
    for t in (
        FloatType("fp32", 8, 23, np.dtype(np.float32), np.dtype(np.uint32)),
        FloatType("bf16", 8, 7, np.dtype(ml_dtypes.bfloat16), np.dtype(np.uint16)),
        FloatType("fp16", 5, 10, np.dtype(np.float16), np.dtype(np.uint16)),
    )
}
