"""The step format: small integers, counted in a power of two that each block has to itself.

This module is the format. docs/format.md says the same in words; where the two differ, one of them has a
bug. All of it is integer arithmetic on the fields of the floats.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np

from .blocks import BlockFormat, as_integer, as_shape, bit_length
from .floats import FloatType

ROUNDINGS = ("nearest", "stochastic")

# Bits of the header's fields, which follow each other from bit 0 on in this order.
FIELDS = {"grid": 8, "moved": 7, "masked": 1, "core": 4, "wide": 4}
HEADER_BYTES = sum(FIELDS.values()) // 8

MAX_CORE = (1 << FIELDS["core"]) - 1
MAX_MOVED = (1 << FIELDS["moved"]) - 1
MAX_FINER = 14  # how often the step at which every value is 0 may be halved

# Bits behind the point of a value that is to be rounded; what is added to them to round to nearest, and the
# most that is added to round stochastically.
POINT_BITS = 5
HALF, MOST = 1 << POINT_BITS - 1, (1 << POINT_BITS) - 1

# Bits of a block's largest magnitude that decide how wide its escapes may be.
LEADING_BITS = 4

# Random bits of a value, how many values share a random word, and by which numbers blocks and words are
# spread over the 32 bits of its key.
NOISE_BITS, NOISE_SHARED = 4, 8
BLOCK_STRIDE, WORD_STRIDE = 0x9E3779B9, 0x85EBCA6B

# Significands have so many bits, the top one set.
SIGNIFICAND_BITS = 24
_NEVER = -(1 << 20)


class Header(NamedTuple):
    """What the header of each block says; int64[blocks] each.

    Attributes:
        grid: exponent of the fine step, which is half the coarse one.
        moved: how many values have a fine bit.
        masked: 1 if there is a mask of specials.
        core: bits of every value's field; 0 if the block only says which values are NaN or infinite.
        wide: bits of an escape's field.
    """

    grid: np.ndarray
    moved: np.ndarray
    masked: np.ndarray
    core: np.ndarray
    wide: np.ndarray


class Encoded(NamedTuple):
    """What the bytes of some blocks are made of; int64[blocks, N] but for the header.

    Attributes:
        header: of each block.
        coarse, fine: values in coarse and in fine steps; of a NaN 0, of an infinity 1 and 2 or -1 and -2.
        specials: 0 for a finite value; otherwise 1, or what kind it is in a block that says only that.
    """

    header: Header
    coarse: np.ndarray
    fine: np.ndarray
    specials: np.ndarray


@dataclass(frozen=True)
class StepAccount:
    """Stored bits of an array, part by part.

    Attributes:
        values: values counted, the padding of the tail block included.
        raw: bits before compression.
        stored: bits of "header", "specials" (which values are NaN or infinite), "core" (every value's
            field), "escapes" (of values that the core is too narrow for), "refinement" (one more bit for the
            first values) and "padding". The sum is what is stored.
    """

    values: int
    raw: int
    stored: dict[str, int]

    @property
    def ratio(self) -> float:
        """Original bits over stored bits, headers and padding included."""
        return self.raw / sum(self.stored.values())


@dataclass(frozen=True)
class StepFormat(BlockFormat):
    """The parameters of a step format, and the codec they define.

    Args:
        dtype: type of the values: "fp32", "bf16" or "fp16".
        block: values in a block, ``N``: 16, 32, 64 or 128.
        target: bytes of every compressed block, from the header and a bit per value to the raw block.
        rounding: "nearest" (ties away from zero), or "stochastic": up or down with probabilities that make
            the expected value exact.

    Raises:
        ValueError: an argument is none of the above; the message names the value.

    Example:
        >>> fmt = StepFormat("fp32", block=128, target=64)
        >>> ramp = np.linspace(0, 1, 300, dtype=np.float32)
        >>> stored = fmt.compress(ramp)
        >>> stored.shape, bool((abs(fmt.decompress(stored, 300) - ramp) <= 1 / 32).all())
        ((3, 64), True)
    """

    dtype: str = "fp32"
    block: int = 128
    target: int = 64
    rounding: str = "nearest"

    def __post_init__(self) -> None:
        self._check_parameters(ROUNDINGS, "header and a bit per value", lossless=False)

    @property
    def header_bytes(self) -> int:
        return HEADER_BYTES

    @property
    def min_target(self) -> int:
        return self.header_bytes + self.block // 8

    @property
    def room(self) -> int:
        """Bits behind the header."""
        return 8 * (self.target - self.header_bytes)

    @property
    def lowest_grid(self) -> int:
        """Exponent of the step whose grid field is 0."""
        return lowest_of(self.float_type)

    # The codec.

    def compress(self, values: np.ndarray, seed: int = 0) -> np.ndarray:
        """Compress an array, its values taken in C order, the tail block padded with zeros.

        Args:
            values: array of any shape, of the format's NumPy type (``ml_dtypes.bfloat16`` for bf16).
            seed: of stochastic rounding, from 0 to 2**32 - 1. The same seed gives the same bytes.

        Returns:
            uint8[blocks, target].

        Raises:
            ValueError: the array has another type, or there is no such seed.
        """
        whole = as_integer(seed)
        if whole is None or not 0 <= whole < 1 << 32:
            raise ValueError(f"seed must be from 0 to 2**32 - 1, not {seed!r}")
        rows = [np.empty((0, self.target), np.uint8)]
        for words, first in self._numbered_chunks(values):
            rows.append(self._lay_out(self._encode(words, whole, first)))
        return np.concatenate(rows)

    def decompress(self, stored: np.ndarray, shape: int | Sequence[int]) -> np.ndarray:
        """Decompress to an array of the given shape and the format's NumPy type.

        Args:
            stored: what :meth:`compress` returned for an array of that shape.
            shape: shape of the result.

        Raises:
            ValueError: ``stored`` has the wrong type or size for the shape, or a block is one that no
                encoder produces; the message names the block.
        """
        shape = as_shape(shape)
        rows = self._check_stored(stored, self.blocks(prod(shape)))
        words = np.empty((len(rows), self.block), self.float_type.bits)
        for start, stop in self._spans(len(rows)):
            words[start:stop] = self._decode(rows[start:stop], first_block=start)
        return self._as_array(words, shape)

    def account(self, values: np.ndarray) -> StepAccount:
        """Count the stored bits of an array part by part; see :class:`StepAccount`.

        Raises:
            ValueError: the array has another type than the format's.
        """
        stored = dict.fromkeys(("header", "specials", "core", "escapes", "refinement", "padding"), 0)
        blocks = 0
        for words, first in self._numbered_chunks(values):
            encoded = self._encode(words, 0, first)
            header = encoded.header
            blocks += len(words)
            parts = {
                "header": np.full(len(words), 8 * HEADER_BYTES),
                "specials": self._specials_bits(header) * self.block,
                "core": header.core * self.block,
                "escapes": _escapes(encoded).sum(axis=1) * header.wide,
                "refinement": header.moved,
            }
            parts["padding"] = 8 * self.target - sum(parts.values())
            for part, bits in parts.items():
                stored[part] += int(bits.sum())
        return StepAccount(blocks * self.block, 8 * self.raw_bytes * blocks, stored)

    def _numbered_chunks(self, values: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
        first = 0
        for words in self._chunks(np.asarray(values)):
            yield words, first
            first += len(words)

    # Encoding.

    def cores(self, masked: bool) -> tuple[int, ...]:
        """The widths of the core that are tried, in this order; in a block with specials one, if any."""
        widest = min(self.room // self.block, MAX_FINER)
        if masked:
            return (1,) if widest > 1 else ()
        return (1, widest) if widest > 1 else (1,)

    def _encode(self, words: np.ndarray, seed: int, first_block: int) -> Encoded:
        values = _Values.of(words, self.float_type, self.lowest_grid)
        added = np.full(words.shape, HALF)
        if self.rounding == "stochastic":
            blocks = np.arange(first_block, first_block + len(words))
            added = 2 * random_bits(seed, blocks, self.block) + 1
        finer, core, wide, rest = self._choose(values, added)
        grid = values.top + 1 - finer
        coarse, fine = values.counted(finer, added)
        limit = _limit(core)[:, None]
        saves = (np.abs(coarse) > limit) & (np.abs(fine) <= 2 * limit + 1)
        used = np.cumsum(1 - saves * wide[:, None], axis=1)
        # The first value that there is no room for ends it.
        fits = (core > 0)[:, None] & (used <= rest[:, None])
        moved = np.minimum(np.cumprod(fits, axis=1).sum(axis=1), MAX_MOVED)
        alone = core == 0
        kinds = alone[:, None] & (self._bits_alone == 2)
        specials = np.where(kinds, values.specials, values.specials > 0)
        masked = (values.specials.max(axis=1) > 0).astype(np.int64)
        header = Header(np.where(alone, self.lowest_grid, grid), moved, masked, core, wide)
        return Encoded(header, coarse, fine, specials)

    def _choose(self, values: _Values, added: np.ndarray) -> tuple[np.ndarray, ...]:
        """The finest steps at which blocks fit: how often the coarsest is halved, core, wide, room left."""
        blocks = len(values.top)
        finest = np.minimum(values.top + 1 - self.lowest_grid, MAX_FINER)
        infinities = (values.specials > 1).sum(axis=1)
        masked = values.specials.max(axis=1) > 0
        most_added = HALF if self.rounding == "nearest" else MOST
        # Of a block that fits at no step, and only says which values are special.
        finer, core, wide, rest = (np.zeros(blocks, np.int64) for _ in range(4))
        for has_mask in (False, True):
            space = self.room - self.block * has_mask
            here = np.flatnonzero(masked == has_mask)
            cores = self.cores(has_mask)
            escaped = [values.take(here).escaped_at(added[here], width) for width in cores]
            for tried in range(MAX_FINER + 1):
                best = np.full(len(here), -1)
                for width, at in zip(cores, escaped, strict=True):
                    count = (at <= tried).sum(axis=1) if tried else 0
                    count = count + infinities[here] * (width == 1)
                    needed = wide_bits(values.leading[here], tried, width, most_added)
                    left = space - self.block * width - count * needed
                    better = (left > best) & (tried <= finest[here])
                    best = np.where(better, left, best)
                    place = here[better]
                    finer[place], core[place] = tried, width
                    wide[place] = needed[better]
                    rest[place] = left[better]
        return finer, core, wide, rest

    @property
    def _bits_alone(self) -> int:
        """Bits of each value in a block that only says which are special."""
        return 2 if self.room >= 2 * self.block else 1

    def _specials_bits(self, header: Header) -> np.ndarray:
        """Bits with which each value of a block says whether it is special: int64[blocks]."""
        return np.where(header.core == 0, self._bits_alone, header.masked)

    def _lay_out(self, encoded: Encoded) -> np.ndarray:
        """The bytes of the blocks, uint8[blocks, target]."""
        header, coarse, fine, specials = encoded
        row = _BitRow(np.zeros((len(coarse), 8 * self.target), bool))
        grid = np.where(header.core > 0, header.grid - self.lowest_grid, 0)
        for bits, field in zip(FIELDS.values(), header._replace(grid=grid), strict=True):
            row.put(field[:, None], np.array([[bits]]))
        row.put(specials, self._specials_bits(header)[:, None])
        limit = _limit(header.core)[:, None]
        has_fine, escapes = _has_fine(header, self.block), _escapes(encoded)
        both = np.where(escapes, 4 * limit + 3, fine + 2 * limit + 1)
        alone = np.where(escapes, 2 * limit + 1, coarse + limit)
        row.put(np.where(has_fine, both >> 1, alone), header.core[:, None])
        beyond = np.abs(coarse) - limit - 1
        row.put(beyond << 1 | (coarse < 0), np.where(escapes, header.wide[:, None], 0))
        row.bits[:, ::-1][:, : self.block] |= has_fine & (both & 1 > 0)
        return np.packbits(row.bits, axis=1, bitorder="little")

    # Decoding.

    def _decode(self, rows: np.ndarray, first_block: int) -> np.ndarray:
        """Rows of bytes -> bit patterns, uint[blocks, N]."""
        n = self.block
        row = _BitRow(np.unpackbits(rows, axis=1, bitorder="little").view(bool))
        header = Header(*(row.take(np.full((len(rows), 1), bits))[:, 0] for bits in FIELDS.values()))
        alone = header.core == 0
        others = (header.grid > 0) | (header.moved > 0) | (header.masked == 0) | (header.wide > 0)
        too_long = (header.moved > n) | (n * (header.core + header.masked) + header.moved > self.room)
        self._complain(np.where(alone, others, too_long), rows, first_block)

        specials = row.take(np.repeat(self._specials_bits(header)[:, None], n, axis=1))
        core = row.take(np.repeat(header.core[:, None], n, axis=1))
        limit = _limit(header.core)[:, None]
        has_fine = _has_fine(header, n)
        bits = row.bits[:, ::-1][:, :n] & has_fine
        escapes = (core == 2 * limit + 1) & (bits | ~has_fine) & ~alone[:, None]
        field = row.take(np.where(escapes, header.wide[:, None], 0))
        beyond = 2 * ((field >> 1) + limit + 1)
        inside = np.where(has_fine, 2 * core + bits - (2 * limit + 1), 2 * (core - limit))
        whole = np.where(escapes, np.where(field & 1 > 0, -beyond, beyond), inside)
        words = compose(whole, header.grid[:, None] + self.lowest_grid, self.float_type)
        kinds = np.where(alone[:, None], specials, np.where(whole == 0, 1, np.where(whole > 0, 2, 3)))
        return np.where(specials > 0, self._special_words[kinds], words)

    @property
    def _special_words(self) -> np.ndarray:
        """Bit patterns by kind: none, NaN, infinity, -infinity."""
        ft = self.float_type
        infinity = ft.exponent_max << ft.mantissa_bits
        return np.array([0, infinity | ft.quiet_bit, infinity, 1 << (ft.width - 1) | infinity], ft.bits)

    def _complain(self, wrong: np.ndarray, rows: np.ndarray, first_block: int) -> None:
        if wrong.any():
            block = int(wrong.argmax())
            raise ValueError(self.complaint(first_block + block, rows[block]))


class _Values(NamedTuple):
    """Blocks of values: their magnitudes are ``significand * 2**(exponent + 1 - SIGNIFICAND_BITS)``.

    Attributes:
        negative: bool[blocks, N].
        significand, exponent: int64[blocks, N]. The top bit of a significand is set, but for zeros. Specials
            count as zeros.
        specials: 0 for a finite value, 1 for a NaN, 2 and 3 for the positive and the negative infinity.
        top: the largest exponent of each block, int64[blocks]; if all values are 0, ``lowest_grid - 1``.
        leading: the first ``LEADING_BITS`` of each block's largest magnitude, and 1: no magnitude has as many
            in their unit. int64[blocks].
    """

    negative: np.ndarray
    significand: np.ndarray
    exponent: np.ndarray
    specials: np.ndarray
    top: np.ndarray
    leading: np.ndarray

    @classmethod
    def of(cls, words: np.ndarray, ft: FloatType, lowest_grid: int) -> _Values:
        word = words.astype(np.int64)
        negative = word >> (ft.width - 1) == 1
        field, mantissa = word >> ft.mantissa_bits & ft.exponent_max, word & ft.mantissa_mask
        special = field == ft.exponent_max
        specials = np.where(special, np.where(mantissa > 0, 1, np.where(negative, 3, 2)), 0)
        if ft.exponent_bits == 8:
            subnormal = np.zeros_like(mantissa)
            exponent = field - (ft.exponent_max >> 1)
        else:
            subnormal = mantissa
            length = np.where(field > 0, ft.mantissa_bits + 1, bit_length(mantissa))
            exponent = np.maximum(field, 1) - (ft.exponent_max >> 1) + length - (ft.mantissa_bits + 1)
        number = np.where(field > 0, mantissa | 1 << ft.mantissa_bits, subnormal)
        number = np.where(special, 0, number)
        significand = number << SIGNIFICAND_BITS - bit_length(number)
        exponent = np.where(number > 0, exponent, lowest_grid - 1)
        top = exponent.max(axis=1, initial=lowest_grid - 1)
        largest = np.where(exponent == top[:, None], significand, 0).max(axis=1, initial=0)
        leading = (largest >> SIGNIFICAND_BITS - LEADING_BITS) + 1
        return cls(negative, significand, exponent, specials, top, leading)

    def take(self, blocks: np.ndarray) -> _Values:
        return _Values(*(part[blocks] for part in self))

    def counted(self, finer: np.ndarray, added: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values in coarse and in fine steps, ``2**(top + 2 - finer)`` and half of that.

        Args:
            finer: int64[blocks].
            added: to the bits behind the point, before these are cut off.
        """
        shift = (self.top - finer)[:, None] - self.exponent + (SIGNIFICAND_BITS - POINT_BITS)
        scaled = self.significand >> np.minimum(shift, 62)
        coarse, fine = (scaled >> 1) + added >> POINT_BITS, scaled + added >> POINT_BITS
        coarse = np.where(finer[:, None] > 0, coarse, 0)
        coarse, fine = (np.where(self.negative, -whole, whole) for whole in (coarse, fine))
        of_special = np.array([0, 0, 1, -1])[self.specials]
        is_special = self.specials > 0
        return np.where(is_special, of_special, coarse), np.where(is_special, 2 * of_special, fine)

    def escaped_at(self, added: np.ndarray, core: int) -> np.ndarray:
        """At which ``finer`` each finite value starts to escape from a core; int64[blocks, N].

        It does if ``value / step``, with ``POINT_BITS`` behind the point, is at least some number. That and
        the significand, both from 1 to 2, are compared; the rest is exponents.
        """
        least = (1 << POINT_BITS) * (1 + int(_limit(np.array(core)))) - added
        length = bit_length(least)
        below = self.significand << length < least << SIGNIFICAND_BITS
        coarsest = self.exponent + (POINT_BITS + 1) - length - below  # exponent of a step
        coarsest = np.where(self.significand > 0, coarsest, _NEVER)
        return self.top[:, None] + 2 - coarsest


def lowest_of(ft: FloatType) -> int:
    """Exponent of the finest step, that of a type's least number that counts."""
    return -126 if ft.exponent_bits == 8 else -24


def wide_bits(leading: np.ndarray, finer: int, core: int, most_added: int) -> np.ndarray:
    """Bits that escapes' fields need, by the first bits of a block's largest magnitude: int64[blocks]."""
    largest = (leading << finer) - 1 + most_added >> POINT_BITS
    beyond = largest - int(_limit(np.array(core))) - 1
    return np.where(finer > 0, bit_length(np.maximum(beyond, 0)) + 1, 1)


def _limit(core: np.ndarray) -> np.ndarray:
    """The largest number of coarse steps that a core has room for."""
    return (1 << np.maximum(core, 1) - 1) - 1


def _has_fine(header: Header, n: int) -> np.ndarray:
    return np.arange(n) < header.moved[:, None]


def _escapes(encoded: Encoded) -> np.ndarray:
    """Which values escape: bool[blocks, N]."""
    header, coarse, fine, _ = encoded
    limit = _limit(header.core)[:, None]
    beyond = np.where(
        _has_fine(header, coarse.shape[1]), np.abs(fine) > 2 * limit + 1, np.abs(coarse) > limit
    )
    return beyond & (header.core > 0)[:, None]


class _BitRow:
    """A row of bits for each block, written or read from the front on: bool[blocks, length]."""

    def __init__(self, bits: np.ndarray) -> None:
        self.bits = bits
        self.place = np.zeros(len(bits), np.int64)  # of the next bit

    def put(self, values: np.ndarray, widths: np.ndarray) -> None:
        """Append integers, the lowest bit first, each with its width; both int64[blocks, count]."""
        widths = np.broadcast_to(widths, values.shape)
        for bit, block, column, place in self._bits_of(widths):
            self.bits[block, place] = values[block, column] >> bit & 1

    def take(self, widths: np.ndarray) -> np.ndarray:
        """The next integers, by their widths. Behind the row's end there are zeros."""
        values = np.zeros(widths.shape, np.int64)
        for bit, block, column, place in self._bits_of(widths):
            inside = place < self.bits.shape[1]
            block, column = block[inside], column[inside]
            values[block, column] |= self.bits[block, place[inside]].astype(np.int64) << bit
        return values

    def _bits_of(self, widths: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
        """For each bit of the fields: which blocks and columns have it, and where it lies."""
        ends = self.place[:, None] + np.cumsum(widths, axis=1)
        starts = ends - widths
        self.place = ends[:, -1]
        for bit in range(int(widths.max(initial=0))):
            block, column = np.nonzero(widths > bit)
            yield bit, block, column, starts[block, column] + bit


def compose(whole: np.ndarray, exponent: np.ndarray, ft: FloatType) -> np.ndarray:
    """The floats nearest to ``whole * 2**exponent``, ties to even, never infinite: int64 -> bit patterns."""
    magnitude = np.abs(whole)
    last = 2 - (1 << ft.exponent_bits - 1) - ft.mantissa_bits  # the exponent of a subnormal's last bit
    drop = np.maximum(bit_length(magnitude) - 1 - ft.mantissa_bits, last - exponent)
    down = np.clip(drop, 0, 62)
    kept = magnitude << np.maximum(-drop, 0) >> down
    rest = magnitude - (kept << down >> np.maximum(-drop, 0))
    twice = 2 * rest - np.where(down > 0, 1 << down, 1)
    kept = kept + ((down > 0) & ((twice > 0) | (twice == 0) & (kept & 1 == 1)))
    bits = (exponent + drop - last << ft.mantissa_bits) + kept
    bits = np.minimum(np.where(kept > 0, bits, 0), (ft.exponent_max << ft.mantissa_bits) - 1)
    return (bits | np.where((whole < 0) & (bits > 0), 1 << ft.width - 1, 0)).astype(ft.bits)


def random_bits(seed: int, blocks: np.ndarray, n: int) -> np.ndarray:
    """``NOISE_BITS`` for each value of some blocks, a function of seed, block and place: int64[blocks, n].

    Cheap in gates: a block's key takes a multiplication (in hardware an addition for each next block), and
    ``NOISE_SHARED`` values share the two additions of a word.
    """
    mask = 0xFFFFFFFF
    key = _mixed((blocks.astype(np.uint64) * BLOCK_STRIDE + seed & mask).astype(np.int64))
    place = np.arange(n)
    words = _mixed(key[:, None] ^ (place // NOISE_SHARED * WORD_STRIDE & mask))
    return words >> NOISE_BITS * (place % NOISE_SHARED) & (1 << NOISE_BITS) - 1


def _mixed(x: np.ndarray) -> np.ndarray:
    """Every bit spread over the 32 of a word."""
    mask = 0xFFFFFFFF
    x = x + (x << 12) & mask
    x ^= x >> 19
    x = x + (x << 5) & mask
    x ^= x >> 9
    x = x + (x << 3) & mask
    return x ^ x >> 16
