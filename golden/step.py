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
FIELDS = {"grid": 8, "offset": 7, "core": 4, "short": 1, "wide": 4}
HEADER_BYTES = sum(FIELDS.values()) // 8

# Values are cut off this many bits below the top bit of their block's largest; the finest grid, so many less.
ALIGNED_BITS, GUARD_BITS = 17, 2

MAX_CORE = (1 << FIELDS["core"]) - 1
MAX_OFFSET = (1 << (FIELDS["offset"] - 1)) - 1
MASKED = (1 << FIELDS["wide"]) - 1  # the width that says that there is a mask of specials
MAX_FINER = ALIGNED_BITS - GUARD_BITS + 1  # how often the grid at which every value is 0 may be halved
_TOO_LONG = 1 << 40

# By which blocks and places are spread over the 32 bits of a random number's key.
BLOCK_STRIDE, PLACE_STRIDE = 0x9E3779B9, 0x85EBCA6B


class Header(NamedTuple):
    """What the header of each block says; int64[blocks] each.

    Attributes:
        grid: exponent of the fine step, which is half the coarse one.
        offset: coarse steps that lie between 0 and what the code 0 stands for.
        core: bits of every value's field; 0 if the block only says which values are NaN or infinite.
        short: 1 if there is a short form of escapes, else 0.
        wide: bits of an escape's long form; ``MASKED`` if there is a mask of specials, too.
    """

    grid: np.ndarray
    offset: np.ndarray
    core: np.ndarray
    short: np.ndarray
    wide: np.ndarray


class Encoded(NamedTuple):
    """What the bytes of some blocks are made of; int64[blocks, N] but for the header.

    Attributes:
        header: of each block.
        codes: values in coarse steps, less the offset; of a NaN 0, of an infinity 1 or -1.
        fine: the bit that refines a value: 1 for half a coarse step more.
        specials: 0 for a finite value; otherwise 1, or what kind it is in a block that says only that.
    """

    header: Header
    codes: np.ndarray
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
        return -127 if self.float_type.exponent_bits == 8 else -31

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
            header, codes = self._encode(words, 0, first)[:2]
            blocks += len(words)
            parts = {
                "specials": self._specials_bits(header) * self.block,
                "core": header.core * self.block,
                "escapes": _escape_bits(codes, header).sum(axis=1),
            }
            rest = self.room - sum(parts.values())
            parts["refinement"] = np.where(header.core > 0, np.minimum(rest, self.block), 0)
            parts["padding"] = rest - parts["refinement"]
            parts["header"] = np.full(len(words), 8 * HEADER_BYTES)
            for part, bits in parts.items():
                stored[part] += int(bits.sum())
        return StepAccount(blocks * self.block, 8 * self.raw_bytes * blocks, stored)

    def _numbered_chunks(self, values: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
        first = 0
        for words in self._chunks(np.asarray(values)):
            yield words, first
            first += len(words)

    # Encoding.

    def _encode(self, words: np.ndarray, seed: int, first_block: int) -> Encoded:
        aligned = _Aligned.of(words, self.float_type, self.lowest_grid)
        if self.rounding == "stochastic":
            blocks = np.arange(first_block, first_block + len(words))
            aligned = aligned._replace(noise=random_bits(seed, blocks, self.block))
        header, codes = self._choose(aligned)
        codes, fine = self._refine(aligned, header, codes)
        kinds = (header.core == 0)[:, None] & (self._bits_alone == 2)
        specials = np.where(kinds, aligned.specials, aligned.specials > 0)
        return Encoded(header, codes, fine, specials)

    def _choose(self, aligned: _Aligned) -> tuple[Header, np.ndarray]:
        """The finest grid, of four, at which each block fits, and its codes there.

        A histogram says which grid is likely to be the finest. It is tried, with the one that is twice as
        fine, the one that is twice as coarse, and at last the one at which every value is 0.
        """
        blocks = len(aligned.top)
        header = Header(*(np.zeros(blocks, np.int64) for _ in Header._fields))
        header.grid[:] = self.lowest_grid
        header.wide[:] = MASKED  # of a block that fits at no grid, and only says which values are special
        codes = np.zeros(aligned.values.shape, np.int64)
        masked = aligned.specials.max(axis=1) > 0
        room = np.where(masked, self.room - self.block, self.room)
        finest = np.minimum(aligned.top + 1 - self.lowest_grid, MAX_FINER)
        likely = np.minimum(_likely(aligned.values, room, masked), finest)
        trying = np.arange(blocks)
        for finer in (likely + 1, likely, likely - 1, np.zeros(blocks, np.int64)):
            tried = trying[(finer[trying] >= 0) & (finer[trying] <= finest[trying])]
            here = aligned.take(tried)
            whole, mean = here.counted(finer[tried])
            length, offset, core, short, wide = _shortest(here, whole, mean, room[tried], masked[tried])
            grid = here.top + 1 - finer[tried]
            fits = length <= room[tried]
            for kept, new in zip(header, (grid, offset, core, short, wide), strict=True):
                kept[tried[fits]] = new[fits]
            codes[tried[fits]] = here.codes(whole, offset)[fits]
            trying = np.setdiff1d(trying, tried[fits])
        return header, codes

    def _refine(self, aligned: _Aligned, header: Header, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Spend what is left: the first values, as many as it is enough for, move to the fine grid."""
        at_fine = aligned.rounded(header.grid)
        recoded, bits = (at_fine >> 1) - header.offset[:, None], at_fine & 1
        possible = _is_storable(recoded, header) & (aligned.specials == 0)
        recoded, bits = np.where(possible, recoded, codes), np.where(possible, bits, 0)
        more = 1 + _escape_bits(recoded, header) - _escape_bits(codes, header)
        used = self._coarse_bits(header, codes)[:, None] + np.cumsum(more, axis=1)
        refined = np.where(used <= self.room, np.arange(1, self.block + 1), 0).max(axis=1)
        refined[header.core == 0] = 0
        first = np.arange(self.block) < refined[:, None]
        return np.where(first, recoded, codes), np.where(first, bits, 0)

    @property
    def _bits_alone(self) -> int:
        """Bits of each value in a block that only says which are special."""
        return 2 if self.room >= 2 * self.block else 1

    def _specials_bits(self, header: Header) -> np.ndarray:
        """Bits with which each value of a block says whether it is special: int64[blocks]."""
        return np.where(header.core == 0, self._bits_alone, header.wide == MASKED)

    def _coarse_bits(self, header: Header, codes: np.ndarray) -> np.ndarray:
        """Bits behind the header, but for those that refine: int64[blocks]."""
        every = self.block * (self._specials_bits(header) + header.core)
        return every + _escape_bits(codes, header).sum(axis=1)

    def _lay_out(self, encoded: Encoded) -> np.ndarray:
        """The bytes of the blocks, uint8[blocks, target]."""
        header, codes, fine, specials = encoded
        row = _BitRow(np.zeros((len(codes), 8 * self.target + self.block), bool))
        grid = np.where(header.core > 0, header.grid - self.lowest_grid, 0)
        for bits, field in zip(FIELDS.values(), header._replace(grid=grid), strict=True):
            row.put(field[:, None], np.array([[bits]]))
        row.put(specials, self._specials_bits(header)[:, None])
        sections = _sections(codes, header)
        row.put(sections.core, header.core[:, None])
        row.put(sections.form, sections.form_bits)
        row.put(sections.wide, sections.wide_bits)
        row.put(fine, (header.core > 0)[:, None])
        return np.packbits(row.bits[:, : 8 * self.target], axis=1, bitorder="little")

    # Decoding.

    def _decode(self, rows: np.ndarray, first_block: int) -> np.ndarray:
        """Rows of bytes -> bit patterns, uint[blocks, N]."""
        row = _BitRow(np.unpackbits(rows, axis=1, bitorder="little").view(bool))
        header = Header(*(row.take(np.full((len(rows), 1), bits))[:, 0] for bits in FIELDS.values()))
        sign = 1 << (FIELDS["offset"] - 1)
        header = header._replace(grid=header.grid + self.lowest_grid, offset=(header.offset ^ sign) - sign)
        alone = header.core == 0
        others = (header.grid > self.lowest_grid) | (header.offset != 0) | (header.short > 0)
        self._complain(alone & (others | (header.wide != MASKED)), rows, first_block)

        specials = row.take(np.repeat(self._specials_bits(header)[:, None], self.block, axis=1))
        codes = _read_codes(row, header, self.block)
        self._complain(row.place > 8 * self.target, rows, first_block)
        fine = row.take(np.repeat((header.core > 0)[:, None], self.block, axis=1).astype(np.int64))
        whole = 2 * (codes + header.offset[:, None]) + fine
        words = compose(whole, header.grid[:, None], self.float_type)
        kinds = np.where(alone[:, None], specials, np.where(codes == 0, 1, np.where(codes > 0, 2, 3)))
        return np.where(specials > 0, self._special_words[kinds], words)

    @property
    def _special_words(self) -> np.ndarray:
        """Bit patterns by kind: none, NaN, infinity, -infinity."""
        ft = self.float_type
        infinity = ft.exponent_max << ft.mantissa_bits
        return np.array([0, infinity | ft.quiet_bit, infinity, 1 << (ft.width - 1) | infinity], ft.bits)

    def complaint(self, number: int, block: np.ndarray) -> str:
        return f"{super().complaint(number, block)} before what follows"

    def _complain(self, wrong: np.ndarray, rows: np.ndarray, first_block: int) -> None:
        if wrong.any():
            block = int(wrong.argmax())
            raise ValueError(self.complaint(first_block + block, rows[block]))


class _Aligned(NamedTuple):
    """Blocks of values as integers of one unit each, 2**(top - ALIGNED_BITS).

    Attributes:
        values: int64[blocks, N], cut off towards zero; 0 for NaNs and infinities.
        top: exponent of the largest finite value's top bit, but at least one less than that of the finest
            step that there is, int64[blocks].
        specials: 0 for a finite value, 1 for a NaN, 2 and 3 for the positive and the negative infinity.
        noise: 32 random bits for each value, or None.
    """

    values: np.ndarray
    top: np.ndarray
    specials: np.ndarray
    noise: np.ndarray | None

    @classmethod
    def of(cls, words: np.ndarray, ft: FloatType, lowest_grid: int) -> _Aligned:
        wide = words.astype(np.int64)
        negative = wide >> (ft.width - 1) == 1
        field, mantissa = wide >> ft.mantissa_bits & ft.exponent_max, wide & ft.mantissa_mask
        special = field == ft.exponent_max
        specials = np.where(special, np.where(mantissa > 0, 1, np.where(negative, 3, 2)), 0)
        significand = np.where(special, 0, np.where(field > 0, mantissa | 1 << ft.mantissa_bits, mantissa))
        exponent = np.maximum(field, 1) - (ft.exponent_max >> 1) - ft.mantissa_bits  # of the last bit
        tops = np.where(significand > 0, exponent + bit_length(significand) - 1, lowest_grid - 1)
        top = tops.max(axis=1, initial=lowest_grid - 1)
        shift = top[:, None] - ALIGNED_BITS - exponent
        magnitude = significand << np.maximum(-shift, 0) >> np.clip(shift, 0, 62)
        return cls(np.where(negative, -magnitude, magnitude), top, specials, None)

    def take(self, blocks: np.ndarray) -> _Aligned:
        noise = None if self.noise is None else self.noise[blocks]
        return _Aligned(self.values[blocks], self.top[blocks], self.specials[blocks], noise)

    def rounded(self, grid: np.ndarray) -> np.ndarray:
        """Values in steps of 2**grid, int64[blocks, N]."""
        shift = (grid - self.top + ALIGNED_BITS)[:, None]
        magnitude = np.abs(self.values)
        if self.noise is None:
            magnitude = magnitude + (1 << shift >> 1)
        else:
            magnitude = magnitude + (self.noise >> 32 - shift)
        magnitude >>= shift
        return np.where(self.values < 0, -magnitude, magnitude)

    def counted(self, finer: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values in coarse steps of 2**(top + 2 - finer), 0 where that is the coarsest, and their mean."""
        shift = ALIGNED_BITS + 2 - finer + self.values.shape[1].bit_length() - 1
        mean = self.values.sum(axis=1) + (1 << shift - 1) >> shift
        whole = self.rounded(self.top + 2 - finer)
        mean = np.clip(mean, -MAX_OFFSET, MAX_OFFSET)
        return np.where(finer[:, None] > 0, whole, 0), np.where(finer > 0, mean, 0)

    def codes(self, whole: np.ndarray, offset: np.ndarray) -> np.ndarray:
        """Codes of values counted in steps."""
        return np.where(self.specials > 0, np.array([0, 0, 1, -1])[self.specials], whole - offset[:, None])


def _splits(room: np.ndarray, n: int) -> Iterator[tuple[np.ndarray, bool]]:
    """The cores that are tried, none if 0, and whether codes are then counted from the mean, or from 0.

    The two widest that n values have room for, and a single bit for blocks that are zeros for the most part.
    """
    widest = np.minimum(room // n, MAX_CORE)
    yield np.minimum(widest, 1), False
    yield widest - 1, True
    yield widest, True


def _likely(values: np.ndarray, room: np.ndarray, masked: np.ndarray) -> np.ndarray:
    """How often the coarsest grid can be halved, going by histograms of distances: int64[blocks].

    A distance, from 0 or the mean, of ``2**(core - 1)`` steps is taken for an escape, and with a core of one
    bit one of half a step.
    """
    blocks, n = values.shape
    mean = values.sum(axis=1) + n // 2 >> n.bit_length() - 1
    mean_length = bit_length(np.abs(mean))
    lengths = [bit_length(np.abs(values)), bit_length(np.abs(values - mean[:, None]))]
    likely = np.zeros(blocks, np.int64)
    for finer in range(1, MAX_FINER + 1):
        step = ALIGNED_BITS + 2 - finer
        for core, from_mean in _splits(room, n):
            wide = lengths[from_mean].max(axis=1) - step + 1
            inside = step + np.where(core == 1, -1, core - 1)
            escapes = (lengths[from_mean] > inside[:, None]).sum(axis=1)
            fits = n * core + escapes * np.where(masked, MASKED, wide) <= room
            fits &= (core > 0) & (wide < MASKED)
            if from_mean:
                fits &= mean_length < step + FIELDS["offset"]
            likely[fits] = finer
    return likely


def _shortest(
    aligned: _Aligned, whole: np.ndarray, mean: np.ndarray, room: np.ndarray, masked: np.ndarray
) -> tuple[np.ndarray, ...]:
    """The fields with which each block takes the fewest bits: length, offset, core, short, wide.

    Of several the first split, and of two with that the one without a short form.
    """
    blocks, n = whole.shape
    best = (np.full(blocks, _TOO_LONG), *np.zeros((4, blocks), np.int64))
    for core, from_mean in _splits(room, n):
        offset = mean if from_mean else np.zeros_like(mean)
        magnitude = np.abs(aligned.codes(whole, offset))
        least = 1 << np.maximum(core, 1) - 1  # of an escape
        escapes = (magnitude >= least[:, None]).sum(axis=1)
        exactly = (magnitude == least[:, None]).sum(axis=1)
        beyond = magnitude.max(axis=1) - least
        for short in (0, 1):
            bits = np.where(beyond >= short, bit_length(np.maximum(beyond - short, 0)) + 1 - short, 0)
            wide = np.where(masked, MASKED, bits)
            length = n * core + 2 * short * escapes + (escapes - short * exactly) * wide
            fits = (core > 0) & (bits <= np.where(masked, MASKED, MASKED - 1))
            better = fits & (length < best[0])
            for kept, new in zip(best, (length, offset, core, np.full(blocks, short), wide), strict=True):
                np.copyto(kept, new, where=better)
    return best


def _beyond(codes: np.ndarray, header: Header) -> np.ndarray:
    """By how much codes are beyond the least that is an escape; negative for those that are none."""
    return np.abs(codes) - (1 << np.maximum(header.core, 1) - 1)[:, None]


def _escape_bits(codes: np.ndarray, header: Header) -> np.ndarray:
    """Bits that each code takes beside its core: int64[blocks, N]."""
    beyond, short, wide = _beyond(codes, header), header.short[:, None], header.wide[:, None]
    bits = np.where(beyond >= short, wide, 0) + 2 * short
    return np.where((beyond >= 0) & (header.core > 0)[:, None], bits, 0)


def _is_storable(codes: np.ndarray, header: Header) -> np.ndarray:
    """Whether the long form of an escape has room for a code: bool[blocks, N]."""
    beyond, short = _beyond(codes, header), header.short[:, None]
    bits = bit_length(np.maximum(beyond - short, 0)) + 1 - short
    return (beyond < short) & ((beyond < 0) | (short == 1)) | (bits <= header.wide[:, None])


class _Sections(NamedTuple):
    """The fields of codes, int64[blocks, N], and their widths where these are not the same for a block."""

    core: np.ndarray
    form: np.ndarray
    form_bits: np.ndarray
    wide: np.ndarray
    wide_bits: np.ndarray


def _sections(codes: np.ndarray, header: Header) -> _Sections:
    beyond, short = _beyond(codes, header), header.short[:, None]
    limit = (1 << np.maximum(header.core, 1) - 1)[:, None] - 1
    negative = (codes < 0).astype(np.int64)
    escapes, is_wide = beyond >= 0, beyond >= short
    core = np.where(escapes, 2 * limit + 1, codes + limit)
    return _Sections(
        core,
        form=negative | is_wide << 1,
        form_bits=np.where(escapes, 2 * short, 0),
        wide=np.where(short == 1, beyond - 1, beyond << 1 | negative),
        wide_bits=np.where(escapes & is_wide, header.wide[:, None], 0),
    )


def _read_codes(row: _BitRow, header: Header, n: int) -> np.ndarray:
    """The inverse: codes, int64[blocks, N]."""
    short = header.short[:, None]
    limit = (1 << np.maximum(header.core, 1) - 1)[:, None] - 1
    core = row.take(np.repeat(header.core[:, None], n, axis=1))
    escapes = (core == 2 * limit + 1) & (header.core > 0)[:, None]
    form = row.take(np.where(escapes, 2 * short, 0))
    is_wide = escapes & ((short == 0) | (form & 2 > 0))
    wide = row.take(np.where(is_wide, header.wide[:, None], 0))
    negative = np.where(short == 1, form & 1, wide & 1) == 1
    beyond = np.where(short == 1, np.where(is_wide, wide + 1, 0), wide >> 1)
    magnitude = limit + 1 + beyond
    inside = np.where(header.core[:, None] > 0, core - limit, 0)
    return np.where(escapes, np.where(negative, -magnitude, magnitude), inside)


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
    """32 random bits for each value of some blocks, a function of seed, block and place: int64[blocks, n].

    Cheap in gates: a block's key takes a multiplication (in hardware an addition for each next block), and
    each value two additions.
    """
    mask = 0xFFFFFFFF
    key = _mixed((blocks.astype(np.uint64) * BLOCK_STRIDE + seed & mask).astype(np.int64))
    places = np.arange(n) * PLACE_STRIDE & mask
    return _mixed(key[:, None] ^ places)


def _mixed(x: np.ndarray) -> np.ndarray:
    """Every bit spread over the 32 of a word."""
    mask = 0xFFFFFFFF
    x = x + (x << 12) & mask
    x ^= x >> 19
    x = x + (x << 5) & mask
    x ^= x >> 9
    x = x + (x << 3) & mask
    return x ^ x >> 16
