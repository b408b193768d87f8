"""The step format in vectorised torch operations, on any device; the bytes are golden's.

What the bits mean is said in ``golden/step.py`` and docs/format.md; this file says how it is done fast.
Values are rows, [blocks, N], and what holds for a block is a column, [blocks, 1]. A magnitude is a float, in
the power of two of its block's largest: times another power of two it stays exact, so that what golden finds
by exponents is a comparison here. A block never takes fewer bits at a finer step, so bisection finds the
finest that fits.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from golden import StepFormat
from golden.step import (
    BLOCK_STRIDE,
    FIELDS,
    HALF,
    HEADER_BYTES,
    LEADING_BITS,
    MAX_FINER,
    MAX_MOVED,
    MOST,
    NOISE_BITS,
    NOISE_SHARED,
    POINT_BITS,
    WORD_STRIDE,
)

from ..dtypes import TORCH_DTYPES

_32_BITS = 0xFFFFFFFF
_MANTISSA, _BIAS = 23, 127  # of fp32
_ZERO = -1 << 30  # for the pattern of what counts as 0: less than any other over any power of two
_REACH = 2  # octets behind that in which a field begins that it may reach into


class _Header(NamedTuple):
    """What the headers of some blocks say, as :class:`golden.step.Header` has it, but the grid as stored."""

    grid: torch.Tensor
    moved: torch.Tensor
    masked: torch.Tensor
    core: torch.Tensor
    wide: torch.Tensor


class _Values(NamedTuple):
    """Blocks of values.

    Attributes:
        size: magnitudes over 2**top: float32[blocks, N] from 0 up to 2. Specials are 0.
        negative, special, infinite: bool[blocks, N].
        masked: 1 if a block has specials; a column.
        top: exponent of the largest magnitude, or ``lowest_grid - 1``; a column.
        leading: the first bits of the largest magnitude, and 1; a column.
        added: to the bits behind the point, before these are cut off: rows, or one number for all.
    """

    size: torch.Tensor
    negative: torch.Tensor
    special: torch.Tensor
    infinite: torch.Tensor
    masked: torch.Tensor
    top: torch.Tensor
    leading: torch.Tensor
    added: torch.Tensor | int


class _Choice(NamedTuple):
    """How some blocks are coded; columns.

    Attributes:
        finer: how often the coarsest step is halved.
        core, wide: bits of the fields; 0 if a block only says which values are special.
        left: bits that are left for fine bits.
    """

    finer: torch.Tensor
    core: torch.Tensor
    wide: torch.Tensor
    left: torch.Tensor


class StepCodec:
    """The codec of one format on one device, with the constants it needs there."""

    def __init__(self, fmt: StepFormat, device: torch.device) -> None:
        ft = fmt.float_type
        self.fmt, self.device = fmt, device
        self.dtype = TORCH_DTYPES[fmt.dtype]
        self.word_dtype = torch.int32 if ft.width == 32 else torch.int16
        infinity = ft.exponent_max << ft.mantissa_bits
        specials = [0, infinity | ft.quiet_bit, infinity, infinity - (1 << ft.width - 1)]  # by kind
        self.specials = torch.tensor(specials, dtype=self.word_dtype, device=device)
        self.most_added = HALF if fmt.rounding == "nearest" else MOST
        self.bits_alone = 2 if fmt.room >= 2 * fmt.block else 1
        self.numbers = torch.arange(fmt.block, dtype=torch.int32, device=device)
        self.eight = torch.arange(8, dtype=torch.int32, device=device)
        strides = torch.arange(fmt.block // NOISE_SHARED, device=device) * WORD_STRIDE
        self.word_keys = (strides & _32_BITS).int()

    # Compressing.

    def compress(self, values: torch.Tensor, stored: torch.Tensor, first: int, seed: int) -> None:
        """Compress one chunk of flat values into uint8[blocks, target]; ``first`` numbers its first block."""
        blocks = len(stored)
        missing = blocks * self.fmt.block - len(values)
        if missing:
            values = torch.nn.functional.pad(values, (0, missing))
        added = HALF if self.fmt.rounding == "nearest" else self._random(first, blocks, seed)
        rows = self._values(values.view(blocks, -1), added)
        self._lay_out(rows, self._choose(rows), stored)

    def _values(self, values: torch.Tensor, added: torch.Tensor | int) -> _Values:
        values = values.float()
        magnitude = values.abs()
        special, infinite = ~(magnitude < torch.inf), magnitude == torch.inf
        pattern = magnitude.view(torch.int32)
        pattern = torch.where(special | (pattern < 1 << _MANTISSA), _ZERO, pattern)
        largest = pattern.amax(1, keepdim=True)
        top = ((largest >> _MANTISSA) - _BIAS).clamp(min=self.fmt.lowest_grid - 1)
        first_bit = 1 << LEADING_BITS - 1
        leading = (largest >> _MANTISSA + 1 - LEADING_BITS & first_bit - 1) + first_bit + 1
        size = (pattern - (top << _MANTISSA)).clamp_(min=0).view(torch.float32)
        masked = special.any(1, keepdim=True).int()
        return _Values(size, values < 0, special, infinite, masked, top, leading, added)

    def _random(self, first: int, blocks: int, seed: int) -> torch.Tensor:
        """What is added if it is random: odd numbers, of the bits of ``golden.step.random_bits``."""
        numbers = torch.arange(first, first + blocks, device=self.device)
        keys = _mixed((numbers * BLOCK_STRIDE + seed & _32_BITS).int())
        words = _mixed(keys[:, None] ^ self.word_keys)[:, :, None]
        noise = words >> NOISE_BITS * self.eight[:NOISE_SHARED] & (1 << NOISE_BITS) - 1
        return noise.view(blocks, -1).mul_(2).add_(1)

    def _choose(self, values: _Values) -> _Choice:
        """The finest steps at which blocks fit."""
        n, room = self.fmt.block, self.fmt.room
        infinities = _count(values.infinite)
        cores = 1, min(room // n, MAX_FINER)
        # A block with specials has the first core, if any.
        spaces = room - n * values.masked, room - (room + 1) * values.masked
        least = [(1 << core - 1 << POINT_BITS) - values.added for core in cores]
        finest = (values.top + 1 - self.fmt.lowest_grid).clamp(max=MAX_FINER)

        def choices(finer: torch.Tensor) -> list[_Choice]:
            """With each core; one that does not fit leaves less than no bits."""
            # Of the last bit behind the point, in a coarse step; at the coarsest nothing escapes.
            unit = torch.where(finer > 0, _power(2 - POINT_BITS - finer), torch.inf)
            farthest = (values.leading << finer) - 1 + self.most_added >> POINT_BITS
            found = []
            for core, space, numbers in zip(cores, spaces, least, strict=True):
                wide = _bit_length((farthest - (1 << core - 1)).clamp(min=0)) + 1
                escapes = _count(values.size >= numbers * unit) + infinities
                left = space - n * core - escapes * wide
                found.append(_Choice(finer, torch.full_like(finer, core), wide, left))
            return found

        finer = torch.zeros_like(finest)
        for more in (8, 4, 2, 1):
            tried = finer + more
            fits = torch.maximum(*(choice.left for choice in choices(tried))) >= 0
            finer = torch.where(fits & (tried <= finest), tried, finer)
        narrow, widest = choices(finer)
        is_wider = widest.left > narrow.left
        best = _Choice(*(torch.where(is_wider, *both) for both in zip(widest, narrow, strict=True)))
        return _Choice(*(field * (best.left >= 0) for field in best))

    def _lay_out(self, values: _Values, choice: _Choice, stored: torch.Tensor) -> None:
        """Count in the chosen steps, and write the bytes of the blocks, uint8[blocks, target]."""
        n, target = self.fmt.block, self.fmt.target
        finer, core, wide, left = choice
        has_core = core > 0
        infinite = (values.infinite & has_core).int()
        scaled = (values.size * _power(finer + POINT_BITS - 1)).int()
        coarse = ((scaled >> 1) + values.added >> POINT_BITS) * (finer > 0) + infinite
        fine = (scaled + values.added >> POINT_BITS) + 2 * infinite

        limit = (1 << core >> 1).sub_(1).clamp_(min=0)
        saves = (coarse > limit) & (fine <= 2 * limit + 1)
        used = (1 - saves * wide).cumsum(1, dtype=torch.int32)
        moved = torch.where(used > left, self.numbers, min(n, MAX_MOVED)).amin(1, keepdim=True)
        has_fine = self.numbers < moved
        whole = torch.where(has_fine, fine, coarse)
        most = torch.where(has_fine, 2 * limit + 1, limit)
        escapes = whole > most
        field = torch.where(escapes, most + 1, torch.where(values.negative, -whole, whole)) + most

        grid = (values.top + 1 - finer - self.fmt.lowest_grid) * has_core
        header = _Header(grid, moved, values.masked, core, wide)
        row = core.new_zeros((len(core), target + _REACH))
        row[:, :HEADER_BYTES] = _packed(header) >> 8 * self.eight[:HEADER_BYTES] & 0xFF
        begin = torch.full_like(core, 8 * HEADER_BYTES)
        if self._maybe(values.masked):
            kinds = values.special.int()
            if self.bits_alone == 2:
                kinds += (values.infinite & ~has_core) * (1 + values.negative.int())
            width = self._specials_bits(header)
            _put(row, kinds, begin + width * self.numbers)
            begin += n * width
        _put(row, field >> has_fine.int(), begin + core * self.numbers)
        begin += n * core
        beyond = 2 * (coarse - limit - 1) + values.negative
        _put(row, beyond * escapes, begin + wide * _before(escapes))
        bits = (field & has_fine).view(len(core), -1, 8) << 7 - self.eight
        row[:, target - n // 8 : target] += bits.sum(2, dtype=torch.int32).flip(1)
        octets = row.clone()
        for i in range(1, _REACH + 1):
            octets[:, i:] += row[:, :-i] >> 8 * i
        stored.copy_(octets[:, :target])

    def _specials_bits(self, header: _Header) -> torch.Tensor:
        """Bits with which each value of a block says whether it is special, a column."""
        return torch.where(header.core > 0, header.masked, self.bits_alone)

    def _maybe(self, column: torch.Tensor) -> bool:
        """Whether a rare case has to be handled. On a GPU, asking would cost more than handling it."""
        return self.device.type != "cpu" or bool(column.any())

    # Decompressing.

    def decompress(self, stored: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Decompress uint8[blocks, target] into words[blocks, N]; return which blocks are invalid.

        What an invalid block decodes to is undefined, but nothing out of bounds is read or written.
        """
        n, target = self.fmt.block, self.fmt.target
        octets = torch.nn.functional.pad(stored, (0, 1 + _REACH)).int()
        windows = octets[:, : target + 1].clone()
        for i in range(1, _REACH + 1):
            windows += octets[:, i : target + 1 + i] << 8 * i
        header = _unpacked(windows[:, :1])
        invalid = self._invalid(header)

        begin = torch.full_like(header.core, 8 * HEADER_BYTES)
        specials = None
        if self._maybe(header.masked | invalid):
            width = self._specials_bits(header)
            specials = _take(windows, begin + width * self.numbers, width)
            begin += n * width
        field = _take(windows, begin + header.core * self.numbers, header.core)
        begin += n * header.core
        has_fine = (self.numbers < header.moved).int()
        fine = octets[:, target - n // 8 : target].flip(1)[:, :, None] >> 7 - self.eight
        field = (field << has_fine) + (fine.view(len(stored), n) & has_fine)
        # The largest field is an escape's, and half of it that of 0. Without a core all are 0.
        largest = (1 << header.core + has_fine) - 1
        escapes = field == largest
        wide = _take(windows, begin + header.wide * _before(escapes), header.wide)
        beyond = 2 * ((wide >> 1) + (1 << header.core >> 1))
        inside = field - (largest >> 1) << 1 - has_fine
        whole = torch.where(escapes, torch.where(wide & 1 > 0, -beyond, beyond), inside)

        # Floats are exact: of 17 bits at most, and two factors are as good as one.
        exponent = header.grid + self.fmt.lowest_grid
        half = exponent >> 1
        most = torch.finfo(self.dtype).max
        values = (whole.float() * _power(half) * _power(exponent - half)).clamp_(-most, most)
        words = values.to(self.dtype).view(self.word_dtype)
        if specials is not None:
            of_value = 1 + (whole != 0).int() + (whole < 0)
            kinds = torch.where(header.core > 0, (specials > 0) * of_value, specials)
            words = torch.where(kinds > 0, self.specials[kinds.long()], words)
        rows.copy_(words)
        return invalid[:, 0]

    def _invalid(self, header: _Header) -> torch.Tensor:
        """Which headers no encoder produces: a column."""
        n = self.fmt.block
        too_long = n * (header.core + header.masked) + header.moved > self.fmt.room
        others = header.grid | header.moved | header.wide | 1 - header.masked
        return torch.where(header.core > 0, too_long | (header.moved > n), others > 0)


def _packed(header: _Header) -> torch.Tensor:
    packed, begin = torch.zeros_like(header.core), 0
    for bits, field in zip(FIELDS.values(), header, strict=True):
        packed += field << begin
        begin += bits
    return packed


def _unpacked(packed: torch.Tensor) -> _Header:
    fields = []
    for bits in FIELDS.values():
        fields.append(packed & (1 << bits) - 1)
        packed = packed >> bits
    return _Header(*fields)


def _put(row: torch.Tensor, fields: torch.Tensor, starts: torch.Tensor) -> None:
    """Add fields to the octets in which they begin; what they have beyond these stays there."""
    row.scatter_add_(1, (starts >> 3).long(), fields << (starts & 7))


def _take(windows: torch.Tensor, starts: torch.Tensor, widths: torch.Tensor) -> torch.Tensor:
    """Fields from the octets that they begin in and those behind; behind the last there are zeros."""
    octets = (starts >> 3).clamp_(max=windows.shape[1] - 1)
    return windows.gather(1, octets.long()) >> (starts & 7) & (1 << widths) - 1


def _count(mask: torch.Tensor) -> torch.Tensor:
    """How many of each row are true: a column."""
    return mask.sum(1, keepdim=True, dtype=torch.int32)


def _before(mask: torch.Tensor) -> torch.Tensor:
    """How many of the row are true before each."""
    return mask.cumsum(1, dtype=torch.int32) - mask.int()


def _power(exponent: torch.Tensor) -> torch.Tensor:
    """2**exponent, as fp32, from -126 to 127."""
    return (exponent + _BIAS << _MANTISSA).view(torch.float32)


def _bit_length(numbers: torch.Tensor) -> torch.Tensor:
    """int.bit_length of each number from 0 to 2**24 - 1, from the exponent of the float."""
    return ((numbers.float().view(torch.int32) >> _MANTISSA) - (_BIAS - 1)).clamp_(min=0)


def _mixed(x: torch.Tensor) -> torch.Tensor:
    """Every bit spread over the 32 of a word, as ``golden.step`` does it."""
    x = x + (x << 12)
    x = x ^ x >> 19 & 0x1FFF
    x = x + (x << 5)
    x = x ^ x >> 9 & 0x7FFFFF
    x = x + (x << 3)
    return x ^ x >> 16 & 0xFFFF
