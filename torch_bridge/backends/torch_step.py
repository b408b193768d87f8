"""The step format in vectorised torch operations, on any device; the bytes are golden's.

What the bits mean is said in ``golden/step.py`` and docs/format.md; this file says how it is done fast.
Values are rows of int32[blocks, N], and what holds for a block is a column, int32[blocks, 1]. Where a choice
is made for every value, masks of all ones (a sign, shifted right) stand in for comparisons and
``torch.where``, which cost several times more on a CPU, and results overwrite what is no longer needed, which
halves the time again.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from golden import StepFormat
from golden.step import (
    ALIGNED_BITS,
    BLOCK_STRIDE,
    FIELDS,
    HEADER_BYTES,
    MASKED,
    MAX_CORE,
    MAX_FINER,
    MAX_OFFSET,
    PLACE_STRIDE,
)

from ..dtypes import TORCH_DTYPES

_COARSEST = ALIGNED_BITS + 2  # bits of an aligned value below the step at which every value is 0
_UNREACHED = 1 << 20  # more than any code
_TOO_LONG = 1 << 24
_WORD, _WORD_SHIFT, _WORD_MASK = 16, 4, 0xFFFF  # bits of the words that a row is put together from
_WIDE = 8 * HEADER_BYTES - FIELDS["wide"]  # where the header's last field begins
_32_BITS = 0xFFFFFFFF


class _Fields(NamedTuple):
    """What the headers of some blocks say, as :class:`golden.step.Header` has it; columns."""

    grid: torch.Tensor
    offset: torch.Tensor
    core: torch.Tensor
    short: torch.Tensor
    wide: torch.Tensor

    @property
    def least(self) -> torch.Tensor:
        """The least magnitude of an escape."""
        return torch.where(self.core > 0, 1 << (self.core - 1).clamp(min=0), _UNREACHED)

    @property
    def farthest(self) -> torch.Tensor:
        """The greatest magnitude of a code that the fields can hold."""
        return self.least + torch.where(self.short > 0, 1 << self.wide, (1 << self.wide >> 1) - 1)


class _Aligned(NamedTuple):
    """Blocks of values as integers of one unit each, 2**(top - ALIGNED_BITS).

    Attributes:
        values: rows, cut off towards zero; 0 for NaNs and infinities.
        top: exponent of the largest finite value's top bit, but at least one less than that of the finest
            step that there is. A column.
        total: the sum of the values, a column.
        special: all ones for NaNs and infinities, 0 for finite values; None if no block has any.
        special_codes: 0 for a NaN, 1 and -1 for the infinities; None as well.
        noise: 32 random bits for each value, int64[blocks, N], or None.
    """

    values: torch.Tensor
    top: torch.Tensor
    total: torch.Tensor
    special: torch.Tensor | None
    special_codes: torch.Tensor | None
    noise: torch.Tensor | None

    def take(self, blocks: torch.Tensor) -> _Aligned:
        values, top, total = (part.index_select(0, blocks) for part in self[:3])
        special, special_codes, noise = (
            None if part is None else part.index_select(0, blocks) for part in self[3:]
        )
        return _Aligned(values, top, total, special, special_codes, noise)

    def rounded(self, grid: torch.Tensor) -> torch.Tensor:
        """Values in steps of 2**grid, rows."""
        shift = grid - self.top + ALIGNED_BITS
        size = self.values.abs()
        if self.noise is None:
            size += 1 << shift >> 1
            size >>= shift
        else:
            size = ((self.noise >> 32 - shift) + size >> shift).int()
        return _with_sign(size, self.values)

    def counted(self, finer: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Values in coarse steps of 2**(top + 2 - finer), 0 where that is the coarsest, and their mean."""
        shift = _COARSEST - finer + self.values.shape[1].bit_length() - 1
        mean = (self.total + (1 << shift - 1) >> shift).clamp(-MAX_OFFSET, MAX_OFFSET)
        is_finer = _at_least(finer, 1)
        return self.rounded(self.top + 2 - finer).bitwise_and_(is_finer), mean & is_finer

    def codes(self, whole: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
        """Codes of values counted in steps."""
        codes = whole - offset
        if self.special is not None and self.special_codes is not None:
            codes = codes & ~self.special | self.special_codes
        return codes


class StepCodec:
    """The codec of one format on one device, with the constants it needs there."""

    def __init__(self, fmt: StepFormat, device: torch.device) -> None:
        ft = fmt.float_type
        self.fmt, self.ft, self.device = fmt, ft, device
        self.dtype = TORCH_DTYPES[fmt.dtype]
        self.word_dtype = torch.int32 if ft.width == 32 else torch.int16
        self.infinity = ft.exponent_max << ft.mantissa_bits
        self.sign_bit = -1 << ft.width - 1  # and those above it
        self.bits_alone = 2 if fmt.room >= 2 * fmt.block else 1
        self.from_mean = torch.tensor([0, 1, 1], dtype=torch.int32, device=device)  # of each split
        # Each split without a short form, and with one.
        self.options = torch.arange(2 * len(self.from_mean), dtype=torch.int32, device=device)
        self.numbers = torch.arange(1, fmt.block + 1, dtype=torch.int32, device=device)
        places = torch.arange(fmt.block, device=device) * PLACE_STRIDE
        self.place_keys = (places & _32_BITS).int()

    # Compressing.

    def compress(self, values: torch.Tensor, stored: torch.Tensor, first: int, seed: int) -> None:
        """Compress one chunk of flat values into uint8[blocks, target]; ``first`` numbers its first block."""
        aligned = self._align(self._words(values, len(stored)))
        if self.fmt.rounding == "stochastic":
            aligned = aligned._replace(noise=self._noise(first, len(stored), seed))
        fields, codes, used = self._choose(aligned)
        codes, fine = self._refine(aligned, fields, codes, used)
        self._lay_out(fields, codes, fine, aligned, stored)

    def _words(self, values: torch.Tensor, blocks: int) -> torch.Tensor:
        """Flat values -> bit patterns with their sign, rows, the tail padded with zeros."""
        words = values.view(self.word_dtype)
        missing = blocks * self.fmt.block - len(words)
        if missing:
            words = torch.cat([words, words.new_zeros(missing)])
        return words.view(blocks, self.fmt.block).int()

    def _align(self, words: torch.Tensor) -> _Aligned:
        mantissa_bits, bias = self.ft.mantissa_bits, self.ft.exponent_max >> 1
        hidden = 1 << mantissa_bits
        magnitude = words & (self.infinity | self.ft.mantissa_mask)
        special = special_codes = None
        if self.device.type != "cpu" or bool((magnitude >= self.infinity).any()):
            special = _at_least(magnitude, self.infinity)
            infinite = special ^ _at_least(magnitude, self.infinity + 1)
            special_codes = infinite & (words >> 31 | 1)
            magnitude = magnitude & ~special

        largest = magnitude.amax(1, keepdim=True)
        field = largest >> mantissa_bits
        lowest_top = self.fmt.lowest_grid - 1
        subnormal_top = torch.where(largest > 0, _bit_length(largest) - mantissa_bits, lowest_top + bias)
        top = torch.where(field > 0, field, subnormal_top) - bias
        top = top.clamp(min=lowest_top)
        unit = top - ALIGNED_BITS + bias + mantissa_bits  # the field whose last bit counts as 1
        up_by = (field.clamp(min=1) - unit).clamp(min=0)
        fields = magnitude >> mantissa_bits
        size = _at_least(fields, 1).bitwise_and_(hidden)
        size |= magnitude & self.ft.mantissa_mask
        size <<= up_by
        size >>= (unit + up_by - fields.clamp_(min=1)).clamp_(max=31)
        values = _with_sign(size, words)
        return _Aligned(values, top, _total(values), special, special_codes, None)

    def _noise(self, first: int, blocks: int, seed: int) -> torch.Tensor:
        """The random bits of each value, as ``golden.step.random_bits`` has them: int64[blocks, N]."""
        numbers = torch.arange(first, first + blocks, device=self.device)
        keys = _mixed((numbers * BLOCK_STRIDE + seed & _32_BITS).int())
        return _mixed(keys[:, None] ^ self.place_keys).long() & _32_BITS

    def _choose(self, aligned: _Aligned) -> tuple[_Fields, torch.Tensor, torch.Tensor]:
        """The finest grid, of four, at which each block fits: fields, codes, and the bits these take."""
        n, lowest = self.fmt.block, self.fmt.lowest_grid
        masked = torch.zeros_like(aligned.top)
        if aligned.special is not None:
            masked = -aligned.special.amin(1, keepdim=True)
        room = self.fmt.room - n * masked
        finest = (aligned.top + 1 - lowest).clamp(max=MAX_FINER)
        likely = self._likely(aligned, finest, room, masked)

        zero = torch.zeros_like(likely)
        chosen = [zero + _TOO_LONG, zero.clone(), zero.clone(), zero.clone(), zero + MASKED, zero.clone()]
        trying = torch.arange(len(zero), device=self.device)
        for finer in (likely + 1, likely, likely - 1, zero):
            finer = finer[trying]
            tried = finer.clamp(0, MAX_FINER)
            found = self._shortest(aligned.take(trying), tried, room[trying], masked[trying])
            fits = (found[0] <= room[trying]) & (finer >= 0) & (finer <= finest[trying])
            for kept, new in zip(chosen, (*found, tried), strict=True):
                kept[trying] = torch.where(fits, new, kept[trying])
            trying = trying[~fits[:, 0]]
        length, offset, core, short, wide, finer = chosen
        grid = torch.where(core > 0, aligned.top + 1 - finer, lowest)
        fields = _Fields(grid, offset, core, short, wide)
        return fields, aligned.codes(aligned.counted(finer)[0], offset), length + n * masked

    def _cores(self, room: torch.Tensor) -> torch.Tensor:
        """The core of each split, none if 0: [blocks, splits]. The first split is from 0."""
        widest = (room // self.fmt.block).clamp(max=MAX_CORE)
        return torch.cat([widest.clamp(max=1), widest - 1, widest], 1)

    def _likely(
        self, aligned: _Aligned, finest: torch.Tensor, room: torch.Tensor, masked: torch.Tensor
    ) -> torch.Tensor:
        """How often the coarsest grid can be halved, going by how many values are far away: a column."""
        n = self.fmt.block
        mean = aligned.total + n // 2 >> n.bit_length() - 1
        distances = _for_splits(aligned.values.abs(), (aligned.values - mean).abs_())
        longest = torch.cat([_bit_length(distance.amax(1, keepdim=True)) for distance in distances], 1)
        mean_length = _bit_length(mean.abs()) * self.from_mean
        cores = self._cores(room)
        inside = torch.where(cores > 1, cores - 1, -1)

        # What does not seem to fit at a grid does so at no finer one.
        likely = torch.zeros_like(finest)
        for more in (8, 4, 2, 1, 1):
            finer = likely + more
            step = _COARSEST - finer
            wide = longest - step + 1
            escapes = _count(distances, 1 << (step + inside).clamp(max=20))
            fits = n * cores + escapes * torch.where(masked > 0, MASKED, wide) <= room
            fits &= (cores > 0) & (wide < MASKED) & (mean_length < step + FIELDS["offset"])
            likely = torch.where((finer <= finest) & fits.any(1, keepdim=True), finer, likely)
        return likely

    def _shortest(
        self, aligned: _Aligned, finer: torch.Tensor, room: torch.Tensor, masked: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """The fields with which each block takes the fewest bits: length, offset, core, short, wide."""
        whole, mean = aligned.counted(finer)
        sizes = _for_splits(
            aligned.codes(whole, torch.zeros_like(mean)).abs_(), aligned.codes(whole, mean).abs_()
        )
        cores = self._cores(room)
        least = 1 << (cores - 1).clamp(min=0)
        escapes, farther = _count(sizes, least), _count(sizes, least + 1)
        beyond = torch.cat([size.amax(1, keepdim=True) for size in sizes], 1) - least

        def wide_and_length(short: int) -> tuple[torch.Tensor, torch.Tensor]:
            bits = _bit_length((beyond - short).clamp(min=0)) + 1 - short
            bits = torch.where(beyond >= short, bits, 0)
            wide = torch.where(masked > 0, MASKED, bits)
            length = self.fmt.block * cores + 2 * short * escapes + (farther if short else escapes) * wide
            return wide, torch.where((cores > 0) & (bits <= MASKED - 1 + masked), length, _TOO_LONG)

        wide, length = (
            torch.stack(both, 2).flatten(1) for both in zip(*map(wide_and_length, (0, 1)), strict=True)
        )
        # The first of the shortest: its number counts where lengths are the same.
        best = (length * len(self.options) + self.options).amin(1, keepdim=True)
        length, place = best // len(self.options), best % len(self.options)
        split = place // 2
        offset = torch.where(split > 0, mean, 0)
        return length, offset, cores.gather(1, split.long()), place % 2, wide.gather(1, place.long())

    def _refine(
        self, aligned: _Aligned, fields: _Fields, codes: torch.Tensor, used: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Spend what is left: the first values, as many as it is enough for, move to the fine grid."""
        at_fine = aligned.rounded(fields.grid)
        recoded = (at_fine >> 1) - fields.offset
        moves = _at_least(fields.farthest, recoded.abs())
        if aligned.special is not None:
            moves &= ~aligned.special
        recoded = _where(moves, recoded, codes)
        more = _escape_bits(recoded, fields).sub_(_escape_bits(codes, fields)).add_(1)
        fits = _at_least(self.fmt.room - used, more.cumsum(1, dtype=torch.int32))
        first = _at_least(fits.bitwise_and_(self.numbers).amax(1, keepdim=True), self.numbers)
        return _where(first, recoded, codes), at_fine.bitwise_and_(moves).bitwise_and_(first).bitwise_and_(1)

    def _lay_out(
        self,
        fields: _Fields,
        codes: torch.Tensor,
        fine: torch.Tensor,
        aligned: _Aligned,
        stored: torch.Tensor,
    ) -> None:
        """Write the bytes of the blocks, uint8[blocks, target]."""
        alone = fields.core - 1 >> 31
        header = fields.grid - self.fmt.lowest_grid
        begin = 0
        for bits, field in zip(FIELDS.values(), (header, *fields[1:]), strict=True):
            header = header | (field & (1 << bits) - 1) << begin
            begin += bits
        row = _Writer(header, self.fmt)
        if aligned.special is not None and aligned.special_codes is not None:
            kinds = aligned.special & 1
            if self.bits_alone == 2:
                infinite = aligned.special_codes
                kinds += (infinite & 1) + (infinite >> 31 & 1) & alone
            row.put(kinds, self._specials_bits(fields))
        least, short = fields.least, fields.short
        beyond, sign = codes.abs() - least, codes >> 31 & 1
        escapes, is_wide = _at_least(beyond, 0), _at_least(beyond, short)
        core = (codes + (least - 1)).bitwise_or_(escapes).bitwise_and_((1 << fields.core) - 1)
        row.put(core, fields.core)
        form = (is_wide & 2).bitwise_or_(sign).bitwise_and_(escapes).bitwise_and_(-short)
        row.put(form, escapes & 2 * short)
        # With a short form one less than beyond; without, the sign below it.
        long_form = (beyond << 1 - short).bitwise_or_(sign & short - 1).sub_(short)
        row.put(long_form.bitwise_and_(is_wide), is_wide & fields.wide)
        row.put(fine, 1 + alone)
        stored.copy_(row.octets()[:, : self.fmt.target])

    def _specials_bits(self, fields: _Fields) -> torch.Tensor:
        """Bits with which each value of a block says whether it is special, a column."""
        return torch.where(fields.core > 0, (fields.wide == MASKED).int(), self.bits_alone)

    # Decompressing.

    def decompress(self, stored: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Decompress uint8[blocks, target] into words[blocks, N]; return which blocks are invalid.

        What an invalid block decodes to is undefined, but nothing out of bounds is read or written.
        """
        row = _Reader(stored, self.fmt.block)
        rest, taken = row.header, []
        for bits in FIELDS.values():
            taken.append(rest & (1 << bits) - 1)
            rest = rest >> bits
        fields = _Fields(*taken)
        sign = 1 << FIELDS["offset"] - 1
        fields = fields._replace(
            grid=fields.grid + self.fmt.lowest_grid, offset=(fields.offset ^ sign) - sign
        )
        alone = fields.core - 1 >> 31
        specials = None
        if self.device.type != "cpu" or bool(((alone < 0) | (fields.wide == MASKED)).any()):
            specials = row.take(self._specials_bits(fields))
        codes = self._read_codes(row, fields)
        invalid = (row.place > 8 * self.fmt.target) | (alone != 0) & (row.header != MASKED << _WIDE)
        whole = 2 * (codes + fields.offset) + row.take(1 + alone)
        words = self._compose(whole, fields.grid)
        if specials is not None:
            codes = torch.where(alone != 0, (specials >> 1) * (1 - 2 * (specials & 1)), codes)
            patterns = (self.infinity | codes & self.sign_bit).int()
            patterns = torch.where(codes == 0, self.infinity | self.ft.quiet_bit, patterns)
            words = torch.where(specials > 0, patterns.to(self.word_dtype), words)
        rows.copy_(words)
        return invalid[:, 0]

    def _read_codes(self, row: _Reader, fields: _Fields) -> torch.Tensor:
        least, short = fields.least, fields.short
        core = row.take(fields.core)
        escapes = _at_least(core, 2 * least - 1)
        form = row.take(escapes & 2 * short)
        is_wide = escapes & (short - 1 | -(form >> 1))
        wide = row.take(is_wide & fields.wide)
        sign = (form & -short | wide & short - 1) & 1
        beyond = (wide + 1 & is_wide) & -short | (wide >> 1) & short - 1
        size = (least + beyond ^ -sign) + sign
        inside = core - least + 1 & _at_least(fields.core, 1)
        return _where(escapes, size, inside)

    def _compose(self, whole: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
        """The words of the floats nearest to ``whole * 2**exponent``, as ``golden.step.compose`` has them.

        As fp32 these are exact: ``whole`` has 17 bits at most, and two factors are as good as one.
        """
        half = exponent >> 1
        floats = whole.float() * _power(half) * _power(exponent - half)
        most = torch.finfo(self.dtype).max
        return (floats.clamp(-most, most).to(self.dtype) + 0).view(self.word_dtype)  # -0 + 0 is +0


class _Writer:
    """Rows of bits, written from the front on."""

    def __init__(self, header: torch.Tensor, fmt: StepFormat) -> None:
        self.words = header.new_zeros((len(header), (8 * fmt.target + fmt.block) // _WORD + 2))
        self.words[:, :1] = header & _WORD_MASK
        self.words[:, 1:2] = header >> _WORD
        self.place = torch.full_like(header, 8 * HEADER_BYTES)

    def put(self, values: torch.Tensor, widths: torch.Tensor) -> None:
        """Append rows of integers, the lowest bit first; widths, up to 15, are of values or of a block.

        Each is added to the word that it begins in: what it has beyond that stays in the word's upper half.
        """
        starts, self.place = _spread(self.place, widths, values.shape[1])
        index = (starts >> _WORD_SHIFT).long()
        self.words.scatter_add_(1, index, values << starts.bitwise_and_(_WORD - 1))

    def octets(self) -> torch.Tensor:
        words = self.words & _WORD_MASK
        words[:, 1:] |= self.words[:, :-1] >> _WORD
        return words.to(torch.int16).view(torch.uint8)


class _Reader:
    """Rows of bits, uint8[blocks, target], read from behind the header on; behind their ends are zeros."""

    def __init__(self, stored: torch.Tensor, block: int) -> None:
        blocks, target = stored.shape
        octets = stored.new_zeros((blocks, target + target % 2 + 4))
        octets[:, :target] = stored
        words = octets.view(torch.int16).int() & _WORD_MASK
        self.windows = words[:, :-1] | words[:, 1:] << _WORD  # two words from each word on
        self.header = self.windows[:, :1] & (1 << 8 * HEADER_BYTES) - 1
        self.place = torch.full_like(self.header, 8 * HEADER_BYTES)
        self.block = block

    def take(self, widths: torch.Tensor) -> torch.Tensor:
        """The next integers, by their widths: of values, or of a block."""
        starts, self.place = _spread(self.place, widths, self.block)
        index = (starts >> _WORD_SHIFT).clamp_(max=self.windows.shape[1] - 1).long()
        windows = self.windows.gather(1, index).bitwise_right_shift_(starts.bitwise_and_(_WORD - 1))
        return windows.bitwise_and_((1 << widths) - 1)


def _spread(place: torch.Tensor, widths: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Where fields lie that follow each other from a place on, and the place behind the last."""
    if widths.shape[1] == 1:
        numbers = torch.arange(count, dtype=torch.int32, device=widths.device)
        return place + widths * numbers, place + widths * count
    ends = widths.cumsum(1, dtype=torch.int32) + place
    return ends - widths, ends[:, -1:]


def _escape_bits(codes: torch.Tensor, fields: _Fields) -> torch.Tensor:
    """Bits that each code takes beside its core, rows."""
    beyond = codes.abs() - fields.least
    bits = _at_least(beyond, 0).bitwise_and_(2 * fields.short)
    bits += _at_least(beyond, fields.short).bitwise_and_(fields.wide)
    return bits


def _power(exponent: torch.Tensor) -> torch.Tensor:
    """2**exponent, as fp32, from -126 to 127."""
    return (exponent + 127 << 23).view(torch.float32)


def _at_least(numbers: torch.Tensor, least: torch.Tensor | int) -> torch.Tensor:
    """All ones where a number is no less than the least, 0 elsewhere."""
    return (least - 1 - numbers).bitwise_right_shift_(31)


def _where(mask: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """``torch.where`` for a mask of all ones and zeros."""
    return (one ^ other).bitwise_and_(mask).bitwise_xor_(other)


def _with_sign(size: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    """Numbers of a size with the signs of others; ``size`` is overwritten."""
    sign = of >> 31
    return size.bitwise_xor_(sign).sub_(sign)


def _count(rows: tuple[torch.Tensor, ...], least: torch.Tensor) -> torch.Tensor:
    """How many numbers of each of some rows are no less than theirs in a column: [blocks, len(rows)]."""
    columns = zip(rows, least.split(1, dim=1), strict=True)
    return -torch.cat([_total(_at_least(row, column)) for row, column in columns], 1)


def _for_splits(from_zero: torch.Tensor, from_mean: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What each split counts with."""
    return from_zero, from_mean, from_mean


def _total(rows: torch.Tensor) -> torch.Tensor:
    return rows.sum(1, keepdim=True, dtype=torch.int32)


def _bit_length(numbers: torch.Tensor) -> torch.Tensor:
    """int.bit_length of each number from 0 to 2**24 - 1, from the exponent of the float."""
    return ((numbers.float().view(torch.int32) >> 23) - 126).clamp(min=0)


def _mixed(x: torch.Tensor) -> torch.Tensor:
    """Every bit spread over the 32 of a word, as ``golden.step`` does it."""
    x = x + (x << 12)
    x = x ^ x >> 19 & 0x1FFF
    x = x + (x << 5)
    x = x ^ x >> 9 & 0x7FFFFF
    x = x + (x << 3)
    return x ^ x >> 16 & 0xFFFF
