"""The Hadamard format: signs flipped, a Hadamard transform, a few bits of every coefficient, one scale.

This module is the format. docs/format.md says the same in words; where the two differ, one of them has a
bug. It is integer arithmetic; floats only carry integers that they hold exactly, up to the one rounding at
the end. After Vargaftik et al., "EDEN: Communication-Efficient and Robust
Distributed Mean Estimation for Federated Learning" (ICML 2022): rotate at random, quantise as a Gaussian,
and scale so that the result is unbiased.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from math import prod
from typing import NamedTuple, Self

import ml_dtypes
import numpy as np

from .blocks import BlockFormat, as_shape, bit_length, block_for_rows, whole_blocks

BLOCKS = (64, 128, 256)

# Bits of a value's magnitude once a block is aligned; a coefficient has log2(N) more.
ALIGNED_BITS = 11

# The header: a number whose lowest bits are those of the scale behind its leading one, and above them
# its exponent. What is below 2**FRACTION_BITS is no scale.
HEADER_BITS, FRACTION_BITS = 12, 4
ZEROS, SPECIALS = 0, 1

# A scale of the header is (16 + fraction) * 2**(exponent - SCALE_BIAS): the smallest is 2**-126.
SCALE_BIAS = 131

# Magnitudes that a field of so many bits can have, the sign among them: about the Lloyd-Max levels of a
# Gaussian with a standard deviation of 13.5; and the bounds between them, in 32nds of that deviation.
LEVELS = {0: (0,), 1: (10,), 2: (6, 20), 3: (3, 10, 18, 29), 4: (2, 5, 9, 13, 17, 22, 28, 37)}
THRESHOLDS = {0: (), 1: (), 2: (31,), 3: (15, 33, 55), 4: (8, 16, 26, 35, 46, 59, 76)}
THRESHOLD_BITS = 5
MAX_WIDTH = max(LEVELS)

# The levels by width and number, 0 where there is none.
_LEVEL_TABLE = np.array(list(zip_longest(*LEVELS.values(), fillvalue=0))).T

# The root of a block's energy is known to ROOT_BITS leading bits.
ROOT_BITS = 8

# A block's number xor this starts its sign pattern.
SIGN_START = 0x9E3779B9

# What a special is called in two bits.
NAN, PLUS_INFINITY, MINUS_INFINITY = 1, 2, 3


class Encoded(NamedTuple):
    """What the bytes of some blocks are made of.

    Attributes:
        header: int64[blocks].
        fields: int64[blocks, N], each below 2 to its width.
    """

    header: np.ndarray
    fields: np.ndarray


@dataclass(frozen=True)
class HadamardFormat(BlockFormat):
    """The parameters of a Hadamard format, and the codec they define.

    Args:
        dtype: type of the values: "fp32", "bf16" or "fp16".
        block: values in a block, ``N``: 64, 128 or 256.
        target: bytes of every compressed block, from 1 to 4 bits a value: ``N`` / 8 to ``N`` / 2.

    Raises:
        ValueError: an argument is none of the above; the message names the value.

    Examples:
        >>> fmt = HadamardFormat("fp32", block=128, target=64)
        >>> wave = np.sin(np.arange(300, dtype=np.float32))
        >>> stored = fmt.compress(wave)
        >>> stored.shape, bool(np.square(fmt.decompress(stored, 300) - wave).mean() < 0.01)
        ((3, 64), True)
    """

    scheme = "hadamard"

    dtype: str = "fp32"
    block: int = 128
    target: int = 32

    def __post_init__(self) -> None:
        self._check_parameters(BLOCKS, "1 bit a value", "4 bits a value")

    @property
    def header_bytes(self) -> int:
        """Bytes that hold the header; the last of them begins the fields."""
        return -(-HEADER_BITS // 8)

    @property
    def min_target(self) -> int:
        return self.block // 8

    @property
    def max_target(self) -> int:
        return self.block // 2

    @cached_property
    def widths(self) -> np.ndarray:
        """Bits of each coefficient's field, int64[N]: the first have one more than the last."""
        least, more = divmod(8 * self.target - HEADER_BITS, self.block)
        return least + (np.arange(self.block) < more)

    @property
    def names_specials(self) -> bool:
        """Whether every value has a bit to say that it is special."""
        return bool(self.widths[-1] > 0)

    def for_rows(self, width: int) -> Self:
        """The format for rows of so many values, with as many bits a value; of a byte, a fraction is dropped.

        Its block is the largest that pads a row the least and is not above this format's; rows of a multiple
        of 64 values take no padding.

        Args:
            width: values of a row, each row with a scale of its own: those of one token.

        Raises:
            ValueError: ``width`` is no whole number from 1 up.

        Example:
            >>> HadamardFormat("bf16", block=128, target=32).for_rows(576)
            HadamardFormat(dtype='bf16', block=64, target=16)
        """
        block = block_for_rows(width, BLOCKS, self.block)
        return replace(self, block=block, target=self.target * block // self.block)

    def padded_width(self, width: int) -> int:
        """Values that a row takes in whole blocks, the zeros behind its own among them.

        Raises:
            ValueError: ``width`` is no whole number from 1 up.

        Example:
            >>> HadamardFormat(block=128, target=32).padded_width(100)
            128
        """
        return whole_blocks(width, self.block)

    # The codec.

    def compress(self, values: np.ndarray, first: int = 0) -> np.ndarray:
        """Compress an array, its values taken in C order, the tail block padded with zeros.

        Args:
            values: array of any shape, of the format's NumPy type (``ml_dtypes.bfloat16`` for bf16).
            first: number of the first block, from 0 to 2**32 - 1; the others follow, modulo 2**32.

        Returns:
            uint8[blocks, target].

        Raises:
            ValueError: the array has another type, or there is no such number.
        """
        values = np.asarray(values)
        numbers = self._numbers(first, self.blocks(values.size))
        rows, start = [np.empty((0, self.target), np.uint8)], 0
        for words in self._chunks(values):
            rows.append(self._lay_out(self.encode(words, numbers[start : start + len(words)])))
            start += len(words)
        return np.concatenate(rows)

    def decompress(self, stored: np.ndarray, shape: int | Sequence[int], first: int = 0) -> np.ndarray:
        """Decompress to an array of the given shape and the format's NumPy type.

        Args:
            stored: what ``compress`` returned for an array of that shape.
            shape: shape of the result.
            first: number of the first block, as it was compressed.

        Raises:
            ValueError: ``stored`` has the wrong type or size for the shape, or a block has a header that no
                encoder produces; the message names the block. Or there is no such number.
        """
        shape = as_shape(shape)
        rows = self._check_stored(stored, self.blocks(prod(shape)))
        numbers = self._numbers(first, len(rows))
        words = np.empty((len(rows), self.block), self.float_type.bits)
        for start, stop in self._spans(len(rows)):
            words[start:stop] = self._decode(rows[start:stop], numbers[start:stop], start)
        return self._as_array(words, shape)

    def signs(self, numbers: np.ndarray) -> np.ndarray:
        """The sign patterns of blocks with these numbers, uint32[blocks] -> int64[blocks, N] of 1 and -1.

        Raises:
            ValueError: the numbers have another type, in which shifts would keep what 32 bits drop.
        """
        if numbers.dtype != np.uint32:
            raise ValueError(f"numbers must be uint32, not {numbers.dtype}")
        state, patterns = _next(numbers ^ np.uint32(SIGN_START)), []
        for _ in range(self.block // 32):
            patterns.append(state[:, None] >> np.arange(32, dtype=np.uint32) & np.uint32(1))
            state = _next(state)
        return 1 - 2 * np.hstack(patterns).astype(np.int64)

    # Encoding.

    def encode(self, words: np.ndarray, numbers: np.ndarray) -> Encoded:
        """Header and fields of each block; nothing is laid out yet.

        Args:
            words: bit patterns of the values, uint[blocks, N].
            numbers: of the blocks, uint32[blocks].
        """
        ft = self.float_type
        field = (words >> ft.bits.type(ft.mantissa_bits)).astype(np.int64) & ft.exponent_max
        special = (field == ft.exponent_max).any(axis=1)
        aligned, top = self._align(words, field)
        z = transform(aligned * self.signs(numbers))
        energy = np.square(aligned).sum(axis=1)
        index = self._quantise(np.abs(z), energy)
        product = (np.abs(z) * self._magnitudes(index)).sum(axis=1)
        header = self._scale(energy, product, top)
        fields = index | np.where(z < 0, self._sign_bit, 0)
        fields[header == ZEROS] = 0
        if special.any():
            header[special] = SPECIALS
            fields[special] = self._name_specials(words[special])
        return Encoded(header, fields)

    def _align(self, words: np.ndarray, field: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values as integers of ALIGNED_BITS and a sign, and the exponent field that they are aligned to."""
        ft = self.float_type
        mantissa = words.astype(np.int64) & ft.mantissa_mask | (field > 0) << ft.mantissa_bits
        exponent = np.maximum(field, 1)
        top = exponent.max(axis=1)
        # Twice the magnitude, rounded down: one bit more than is kept, to round by.
        spare = ft.mantissa_bits - ALIGNED_BITS
        doubled = mantissa >> spare if spare >= 0 else mantissa << -spare
        doubled >>= top[:, None] - exponent
        magnitude = np.minimum((doubled + 1) >> 1, (1 << ALIGNED_BITS) - 1)
        return np.where(words >> ft.bits.type(ft.width - 1) == 1, -magnitude, magnitude), top

    def _quantise(self, magnitude: np.ndarray, energy: np.ndarray) -> np.ndarray:
        """The number of each coefficient's level, int64[blocks, N]."""
        power = np.maximum(bit_length(energy) - 1, 0) // 2  # 4**power is the largest one not above
        leading = energy << 6 >> 2 * power  # 8 bits
        root = np.floor(np.sqrt(256.0 * leading)).astype(np.int64)
        index = np.zeros_like(magnitude)
        for width in np.unique(self.widths):
            places = self.widths == width
            for threshold in THRESHOLDS[int(width)]:
                least = (threshold * root << power) >> (ROOT_BITS - 1 + THRESHOLD_BITS)
                index[:, places] += magnitude[:, places] > least[:, None]
        return index

    def _magnitudes(self, index: np.ndarray) -> np.ndarray:
        """The levels with these numbers; all int64[blocks, N]."""
        return _LEVEL_TABLE[self.widths, index]

    def _scale(self, energy: np.ndarray, product: np.ndarray, top: np.ndarray) -> np.ndarray:
        """The header whose scale is nearest to energy / product, in units of the aligned values."""
        some = product > 0  # it is 0 if all is, or if the energy is in coefficients without a bit
        energy, product = np.where(some, energy, 1), np.where(some, product, 1)
        # The quotient gets FRACTION_BITS behind its leading one, and one more to round by.
        shift = bit_length(product) - bit_length(energy) + FRACTION_BITS + 2
        quotient = (energy << np.maximum(shift, 0)) // (product << np.maximum(-shift, 0))
        wide = quotient >> FRACTION_BITS + 2
        shift, quotient = shift - wide, quotient >> wide
        mantissa = (quotient + 1 >> 1) - (1 << FRACTION_BITS)  # 1 << FRACTION_BITS carries into the exponent
        unit = top - self.float_type.bias - (ALIGNED_BITS - 1)
        header = (unit + 1 - shift + SCALE_BIAS << FRACTION_BITS) + mantissa
        header = np.where(some & (header >= 1 << FRACTION_BITS), header, ZEROS)
        return np.minimum(header, (1 << HEADER_BITS) - 1)

    def _name_specials(self, words: np.ndarray) -> np.ndarray:
        """Fields that say which values are NaN or infinite, as far as there is room."""
        ft = self.float_type
        infinity = ft.exponent_max << ft.mantissa_bits
        magnitude = words & ft.bits.type(infinity | ft.mantissa_mask)
        negative = (words >> ft.bits.type(ft.width - 1)).astype(np.int64)
        kind = np.where(magnitude == infinity, PLUS_INFINITY + negative, 0)
        kind = np.where(magnitude > infinity, NAN, kind)
        if not self.names_specials:
            return np.zeros_like(kind)
        return np.where(self.widths > 1, kind, kind > 0)

    def _lay_out(self, encoded: Encoded) -> np.ndarray:
        """Header and fields as rows of bytes: each field's lowest bit first, one behind the other."""
        header = _bits(encoded.header[:, None], HEADER_BITS)[:, 0]
        fields = _bits(encoded.fields, MAX_WIDTH)[:, self._stored_bits]
        return np.packbits(np.hstack([header, fields]), axis=1, bitorder="little")

    @cached_property
    def _stored_bits(self) -> np.ndarray:
        """Which bits of fields of the greatest width there are, bool[N, width]."""
        return np.arange(MAX_WIDTH) < self.widths[:, None]

    @cached_property
    def _sign_bit(self) -> np.ndarray:
        """The weight of each field's highest bit, int64[N]; 0 where there is no field."""
        return 1 << self.widths >> 1

    # Decoding.

    def check_headers(self, headers: np.ndarray) -> np.ndarray:
        """Which headers no encoder produces: int64[blocks] -> bool[blocks]."""
        return (headers > SPECIALS) & (headers < 1 << FRACTION_BITS)

    def _decode(self, rows: np.ndarray, numbers: np.ndarray, first_block: int) -> np.ndarray:
        """Rows of bytes -> bit patterns, uint[blocks, N]."""
        bits = np.unpackbits(rows, axis=1, bitorder="little")
        header = _number(bits[:, :HEADER_BITS])
        invalid = np.flatnonzero(self.check_headers(header))
        if len(invalid):
            raise ValueError(self.complaint(first_block + int(invalid[0]), rows[invalid[0]]))
        wide = np.zeros((len(rows), *self._stored_bits.shape), np.uint8)
        wide[:, self._stored_bits] = bits[:, HEADER_BITS:]
        fields = _number(wide)

        ft = self.float_type
        sums = transform(self._coefficients(fields)) * self.signs(numbers)
        scale = (1 << FRACTION_BITS) + (header & (1 << FRACTION_BITS) - 1)
        exponent = (header >> FRACTION_BITS) - SCALE_BIAS
        # At most 19 bits: exact here and in float32, through which a cast to bfloat16 goes.
        values = np.ldexp((sums * scale[:, None]).astype(np.float64), exponent[:, None])
        largest = float(ml_dtypes.finfo(ft.array).max)
        with np.errstate(under="ignore"):  # an error to who asked NumPy for errors
            values = np.clip(values, -largest, largest).astype(ft.array)
        values[header <= SPECIALS] = 0
        words = values.view(ft.bits)
        special = header == SPECIALS
        if special.any():
            words[special] = self._special_values(fields[special])
        return words

    def _coefficients(self, fields: np.ndarray) -> np.ndarray:
        """What the fields stand for, in units of the scale; all int64[blocks, N]."""
        magnitude = self._magnitudes(fields & self._sign_bit - 1)
        return np.where(fields & self._sign_bit, -magnitude, magnitude)

    def _special_values(self, fields: np.ndarray) -> np.ndarray:
        ft = self.float_type
        infinity = ft.bits.type(ft.exponent_max << ft.mantissa_bits)
        minus = ft.bits.type(1 << ft.width - 1)
        kinds = np.array([0, infinity | ft.bits.type(ft.quiet_bit), infinity, infinity | minus], ft.bits)
        return kinds[fields & 3 if self.names_specials else np.full_like(fields, NAN)]


def transform(values: np.ndarray) -> np.ndarray:
    """The Walsh-Hadamard transform of each row, in its natural order and not normalised; int64 both.

    Coefficient ``k`` is the sum of all values ``i``, negated where ``i & k`` has an odd number of ones.
    Applied twice it gives ``N`` times the values.
    """
    rows, size = values.shape
    for half in (1 << level for level in range(size.bit_length() - 1)):
        pairs = values.reshape(rows, -1, 2, half)
        values = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2)
    return values.reshape(rows, size)


def _next(state: np.ndarray) -> np.ndarray:
    """The next 32 signs of each pattern: Marsaglia, "Xorshift RNGs" (2003); uint32 both."""
    state = state ^ state << np.uint32(13)
    state = state ^ state >> np.uint32(17)
    return state ^ state << np.uint32(5)


def _bits(numbers: np.ndarray, width: int) -> np.ndarray:
    """The bits of each number, the lowest first: int64[...] -> uint8[..., width]."""
    return (numbers[..., None] >> np.arange(width) & 1).astype(np.uint8)


def _number(bits: np.ndarray) -> np.ndarray:
    """The inverse of ``_bits``."""
    return (bits.astype(np.int64) << np.arange(bits.shape[-1])).sum(axis=-1)
