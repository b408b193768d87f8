"""Group quantisation, as a baseline: what ActNN and GACT keep of an activation.

After Chen et al., "ActNN: Reducing Training Memory Footprint via 2-Bit Activation Compressed Training"
(ICML 2021), section 3.2, and Liu et al., "GACT" (ICML 2022): groups of 256 values, each with a zero point and
a step in bf16, and of each value an integer of 2, 3, 4 or 8 bits, rounded stochastically. Groups of 128 and
64 values are for rows of other widths.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from golden.blocks import as_count, as_integer, block_for_rows, whole_blocks
from golden.floats import FLOAT_TYPES

BITS = (2, 3, 4, 8)
GROUPS = (64, 128, 256)


@dataclass(frozen=True)
class QuantFormat:
    """The parameters of a group quantisation; goes where a format of golden/ goes.

    Args:
        dtype: type of the values: "fp32", "bf16" or "fp16".
        bits: of each value: 2, 3, 4 or 8.
        block: values in a group: 64, 128 or 256.

    Raises:
        ValueError: an argument is none of the above.

    Examples:
        >>> QuantFormat("fp32", bits=4).target
        132
    """

    scheme: ClassVar[str] = "quant"
    dtype: str = "fp32"
    bits: int = 4
    block: int = 256

    def __post_init__(self) -> None:
        if not isinstance(self.dtype, str) or self.dtype not in FLOAT_TYPES:
            raise ValueError(f"dtype must be one of {', '.join(FLOAT_TYPES)}, not {self.dtype!r}")
        if as_integer(self.bits) not in BITS:
            raise ValueError(f"bits must be one of {', '.join(map(str, BITS))}, not {self.bits!r}")
        if as_integer(self.block) not in GROUPS:
            raise ValueError(f"block must be one of {', '.join(map(str, GROUPS))}, not {self.block!r}")
        object.__setattr__(self, "bits", int(self.bits))
        object.__setattr__(self, "block", int(self.block))

    @property
    def target(self) -> int:
        """Bytes of a group: zero point, step, integers."""
        return 4 + self.block * self.bits // 8

    @property
    def original_bytes(self) -> int:
        """Bytes of an uncompressed group."""
        return self.block * FLOAT_TYPES[self.dtype].width // 8

    def blocks(self, count: int) -> int:
        """Groups that ``count`` values take; the last may be padded.

        Raises:
            ValueError: ``count`` is no number of values.
        """
        return -(-as_count(count) // self.block)

    def for_rows(self, width: int) -> Self:
        """The format for rows of so many values: the largest group that pads a row the least.

        It is not above this format's. Integers keep their bits, and 4 bytes more are stored for each group.

        Raises:
            ValueError: ``width`` is no whole number from 1 up.

        Example:
            >>> QuantFormat("fp32", bits=4).for_rows(576)
            QuantFormat(dtype='fp32', bits=4, block=64)
        """
        return replace(self, block=block_for_rows(width, GROUPS, self.block))

    def padded_width(self, width: int) -> int:
        """Values that a row takes in whole groups, the padding behind its own among them.

        Raises:
            ValueError: ``width`` is no whole number from 1 up.
        """
        return whole_blocks(width, self.block)
