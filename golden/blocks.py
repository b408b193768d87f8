"""What all formats share: blocks of N values, their parameters, and the checks of what comes in."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, ClassVar, Self

import numpy as np

from .floats import FLOAT_TYPES, FloatType

# Work in pieces of this many values, so that the temporary arrays stay in the cache.
CHUNK_VALUES = 1 << 16


class BlockFormat(ABC):
    """A format that turns each block of ``block`` values into bytes, ``target`` of them if it is fixed.

    The base of the formats, which are frozen dataclasses and say what the parameters may be.

    Blocks have numbers: that of block ``b`` of a call is ``(first + b) mod 2**32``. What a format makes of a
    block may depend on it, so that whoever decompresses has to say the same ``first``.

    Attributes:
        scheme: name of the format on command lines and in reports.
    """

    scheme: ClassVar[str]
    dtype: str
    block: int
    target: int | None

    @property
    def float_type(self) -> FloatType:
        return FLOAT_TYPES[self.dtype]

    @property
    def original_bytes(self) -> int:
        """Bytes of an uncompressed block."""
        return self.block * self.float_type.width // 8

    @property
    @abstractmethod
    def header_bytes(self) -> int:
        """Bytes of a block's header."""

    @property
    @abstractmethod
    def min_target(self) -> int:
        """The smallest target that the format allows."""

    @property
    @abstractmethod
    def max_target(self) -> int:
        """The largest one."""

    @abstractmethod
    def compress(self, values: np.ndarray, first: int = 0) -> Any:
        """Compress an array, its values taken in C order, the tail block padded with zeros.

        Args:
            values: array of any shape, of the format's NumPy type (``ml_dtypes.bfloat16`` for bf16).
            first: number of its first block, from 0 to 2**32 - 1.

        Returns:
            uint8[blocks, target], if the format is fixed.

        Raises:
            ValueError: the array has another type, or no block has such a number.
        """

    @abstractmethod
    def decompress(self, stored: Any, shape: int | Sequence[int], first: int = 0) -> np.ndarray:
        """Decompress to an array of the given shape and the format's NumPy type.

        Args:
            stored: what ``compress`` returned for an array of that shape.
            shape: shape of the result.
            first: as ``compress`` was given.

        Raises:
            ValueError: ``stored`` has the wrong type or size for the shape, no block has such a number, or a
                block is one that no encoder produces; the message names the block.
        """

    def blocks(self, count: int) -> int:
        """Blocks that ``count`` values take; the last may be a padded tail.

        Raises:
            ValueError: ``count`` is no number of values.
        """
        return -(-as_count(count) // self.block)

    def for_rows(self, width: int) -> Self:
        """The format for rows of so many values: each, as a token, has a scale of its own.

        A format whose blocks have no scale for all of their values stays as it is.

        Raises:
            ValueError: ``width`` is no whole number from 1 up.
        """
        as_width(width)
        return self

    def padded_width(self, width: int) -> int:
        """Values that a row takes with its padding, without which blocks would have values of two rows.

        A format whose blocks have no scale for all of their values packs rows: that is ``width``.

        Raises:
            ValueError: ``width`` is no whole number from 1 up.
        """
        return as_width(width)

    def _check_parameters(self, blocks: Sequence[int], least: str, most: str, lossless: bool = False) -> None:
        """Raise ValueError for what is no parameter; make NumPy's integers and strings Python's.

        Args:
            blocks: the sizes of blocks that the format has.
            least, most: what ``min_target`` and ``max_target`` have room for, for the message.
            lossless: whether ``target`` may be None.
        """
        block, target = as_integer(self.block), as_integer(self.target)
        if not isinstance(self.dtype, str) or self.dtype not in FLOAT_TYPES:
            raise ValueError(f"dtype must be one of {', '.join(FLOAT_TYPES)}, not {self.dtype!r}")
        if block not in blocks:
            raise ValueError(f"block must be one of {tuple(blocks)}, not {self.block!r}")
        object.__setattr__(self, "dtype", str(self.dtype))
        object.__setattr__(self, "block", block)
        if self.target is None and lossless:
            return
        if target is None:
            raise ValueError(
                f"target must be a number of bytes{' or None' if lossless else ''}, not {self.target!r}"
            )
        if not self.min_target <= target <= self.max_target:
            raise ValueError(
                f"target must be from {self.min_target} ({least}) to {self.max_target} bytes ({most}) "
                f"for {self.dtype} and block {block}, not {target}"
            )
        object.__setattr__(self, "target", target)

    def _chunks(self, values: np.ndarray) -> Iterator[np.ndarray]:
        """Cut an array into blocks of bit patterns: uint[some blocks, N] at a time."""
        ft = self.float_type
        if values.dtype != ft.array:
            raise ValueError(f"values must be {ft.array} for dtype {self.dtype!r}, not {values.dtype}")
        flat = np.ascontiguousarray(values).reshape(-1).view(ft.bits)
        size = max(1, CHUNK_VALUES // self.block) * self.block
        for start in range(0, len(flat), size):
            chunk = flat[start : start + size]
            if len(chunk) % self.block:
                chunk = np.pad(chunk, (0, -len(chunk) % self.block))
            yield chunk.reshape(-1, self.block)

    def _numbers(self, first: int, blocks: int) -> np.ndarray:
        """The numbers of so many blocks, uint32[blocks]; raises ValueError for what is no first number."""
        return (as_block_number(first) + np.arange(blocks, dtype=np.int64)).astype(np.uint32)

    def _check_stored(self, stored: object, blocks: int) -> np.ndarray:
        """The rows of fixed-size blocks, uint8[blocks, target]; raises ValueError if they are not."""
        if not isinstance(stored, np.ndarray) or stored.dtype != np.uint8:
            raise ValueError(f"stored must be an array of uint8, not {describe(stored)}")
        if stored.shape != (blocks, self.target):
            raise ValueError(f"stored must have shape {(blocks, self.target)}, not {stored.shape}")
        return np.ascontiguousarray(stored)

    def _spans(self, blocks: int) -> Iterator[tuple[int, int]]:
        """Cut so many blocks into pieces: first block, and the one behind the last."""
        step = max(1, CHUNK_VALUES // self.block)
        for start in range(0, blocks, step):
            yield start, min(start + step, blocks)

    def complaint(self, number: int, block: np.ndarray) -> str:
        """The message about a block, uint8[target], that no encoder produces."""
        return (
            f"block {number}: no encoder produces the header {block[: self.header_bytes].tobytes().hex(' ')}"
        )

    def _as_array(self, words: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Bit patterns of all blocks -> values of a shape, the padding dropped."""
        return words.reshape(-1)[: prod(shape)].view(self.float_type.array).reshape(shape)


def block_for_rows(width: int, blocks: Sequence[int], most: int) -> int:
    """The block for rows of so many values: the largest of those that pad a row the least.

    Args:
        width: values of a row, from 1 up.
        blocks: the sizes that there are, each a multiple of the smallest.
        most: that it may have, one of these.

    Raises:
        ValueError: there is no such width.

    Examples:
        >>> [block_for_rows(width, (64, 128, 256), most=128) for width in (64, 576, 768, 100, 1000)]
        [64, 64, 128, 128, 128]
    """
    least = whole_blocks(width, min(blocks))
    return max(block for block in blocks if block <= most and least % block == 0)


def whole_blocks(width: int, block: int) -> int:
    """Values of the blocks that a row has to itself, its padding among them.

    Raises:
        ValueError: ``width`` is no whole number from 1 up.
    """
    return -(-as_width(width) // block) * block


def as_width(number: object) -> int:
    """The values of a row as int; raises ValueError for what is no such number."""
    whole = as_integer(number)
    if whole is None or whole < 1:
        raise ValueError(f"width must be a whole number from 1 up, not {number!r}")
    return whole


def as_shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    """Sizes as a tuple of Python integers; raises ValueError for what is no shape."""
    sizes = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    checked = tuple(size for size in map(as_integer, sizes) if size is not None and size >= 0)
    if len(checked) != len(sizes):
        raise ValueError(f"shape must have sizes from 0 up, not {sizes}")
    return checked


def as_integer(number: object) -> int | None:
    """A Python or NumPy integer as int; None for anything else, booleans too."""
    if isinstance(number, bool | np.bool_):
        return None
    try:
        return operator.index(number)  # type: ignore[arg-type]
    except TypeError:
        return None


def as_count(number: object) -> int:
    """A number of values as int; raises ValueError for what is none."""
    whole = as_integer(number)
    if whole is None or whole < 0:
        raise ValueError(f"count must be a whole number from 0 up, not {number!r}")
    return whole


def as_block_number(number: object) -> int:
    """The number of a first block as int; raises ValueError for what is none."""
    whole = as_integer(number)
    if whole is None or not 0 <= whole < 1 << 32:
        raise ValueError(f"first must be a whole number from 0 to 2**32 - 1, not {number!r}")
    return whole


def bit_length(numbers: np.ndarray) -> np.ndarray:
    """int.bit_length of each number from 0 to 2**53 - 1, as int64."""
    return np.frexp(numbers.astype(np.float64))[1].astype(np.int64)


def describe(thing: object) -> str:
    """What something is, for a message."""
    if isinstance(thing, np.ndarray):
        return f"{thing.dtype}{list(thing.shape)}"
    return type(thing).__name__
