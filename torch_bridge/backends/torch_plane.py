"""The bit-plane format in vectorised torch operations, on any device; the bytes are golden's.

What the bits mean is said in ``golden/plane.py`` and docs/format.md; this file says how it is done fast. A
chunk of blocks is worked on as int32 words, value by value in rows and block by block in columns:
int32[N, blocks]. So what holds for a block (its base, what it drops) is one contiguous row that every row of
values is combined with, and a plane is a row as well. Where a choice is made for every value, masks of all
ones stand in for comparisons and ``torch.where``, which cost several times more on a CPU.
"""

from __future__ import annotations

import torch

from golden import PlaneFormat

# Swaps of sub-matrices that transpose a bit matrix (Warren, Hacker's Delight, 7-3): (size of the
# sub-matrix, mask of the bits whose place is even in that size). Shifting int32 right copies the sign,
# but into bits that each mask clears.
_SWAPS = ((16, 0x0000FFFF), (8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555))


class PlaneCodec:
    """The codec of one bit-plane format on one device, with the constants it needs there."""

    def __init__(self, fmt: PlaneFormat, device: torch.device) -> None:
        assert fmt.target is not None
        ft = fmt.float_type
        self.fmt, self.ft, self.device, self.target = fmt, ft, device, fmt.target
        self.word_dtype = torch.int32 if ft.width == 32 else torch.int16
        self.touched = fmt.slots + (fmt.partial > 0)
        self.infinity = ft.exponent_max << ft.mantissa_bits
        self.sign_bit = _int32(1 << (ft.width - 1))
        # A plane as elements of one type: N / 32 words, or one half word.
        self.row_dtype = torch.int16 if fmt.block == 16 else torch.int32
        self.groups = max(1, fmt.block // 32)

        def table(entries: list[int]) -> torch.Tensor:
            return torch.tensor([_int32(entry) for entry in entries], dtype=torch.int32, device=device)

        # By plane, the sign plane first; where there is one more entry, it means "no plane".
        width = ft.width
        weights = [1 << (width - 1 - j) for j in range(width)] + [0]
        self.weights = table(weights[:-1])[:, None]
        self.kept_above = table([~max(0, 2 * weight - 1) for weight in weights])
        self.below_half = table([max(0, weight - 1) for weight in weights])
        self.step = table([2 * weight for weight in weights])
        self.row_of_plane = torch.arange(width - 1, -1, -1, device=device)[:, None]
        self.byte_weights = torch.tensor([1 << i for i in range(8)], dtype=torch.uint8, device=device)[
            :, None
        ]
        self.bit_length = table([i.bit_length() for i in range(ft.exponent_max + 1)])
        self.one = torch.ones((), dtype=torch.int32, device=device)

    # Compressing.

    def compress(self, values: torch.Tensor, stored: torch.Tensor, first: int) -> None:
        """Compress one chunk of flat values into uint8[blocks, target], whatever number is first."""
        header = self.fmt.header_bytes
        words, base, flags = self._encode(self._words(values, len(stored)))
        flagged = (flags & self.weights) != 0
        stored[:, 0] = base
        bits = flagged.view(-1, 8, len(stored)).to(torch.uint8) * self.byte_weights
        stored[:, 1:header] = bits.sum(dim=1, dtype=torch.uint8).t()
        stored[:, header:] = self._fill_slots(words, flagged)[:, : self.target - header]

    def _words(self, values: torch.Tensor, blocks: int) -> torch.Tensor:
        """Flat values -> bit patterns, int32[N, blocks], the tail padded with zeros."""
        words = values.view(self.word_dtype)
        missing = blocks * self.fmt.block - len(words)
        if missing:
            words = torch.cat([words, words.new_zeros(missing)])
        words = words.view(blocks, self.fmt.block).t().contiguous()
        return words if self.word_dtype == torch.int32 else words.to(torch.int32).bitwise_and_(0xFFFF)

    def _encode(self, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Choose base and planes and round: words[N, blocks], base and flags int32[blocks]."""
        fmt, ft = self.fmt, self.ft
        magnitude = words & (self.infinity | ft.mantissa_mask)
        largest = magnitude.amax(dim=0)
        present = _or_rows(words)

        # Magnitudes with exponent field 0 wrap to the largest, so that the minimum ignores them.
        wrapped = (magnitude - (1 << ft.mantissa_bits)).bitwise_and_(0x7FFFFFFF)
        smallest = wrapped.amin(dim=0)
        top = largest >> ft.mantissa_bits
        has_normal = top > 0
        base = torch.where(has_normal, (smallest >> ft.mantissa_bits) + 1, self.one)
        width = self.bit_length[((top - base + 1) * has_normal).long()]

        any_sign = present >> (ft.width - 1) & 1
        any_nan = largest > self.infinity
        if self._maybe(any_nan):
            is_nan = self.infinity - magnitude >> 31
            words = words | (is_nan & ft.quiet_bit)
            present = present | any_nan * ft.quiet_bit
        room = (fmt.slots - any_sign - any_nan.int()).clamp(max=ft.exponent_bits)
        flushed = width > room
        special = flushed & (room == 0)
        width = torch.where(flushed, room, width)
        base = torch.where(flushed, top - (self.one << room) + 2, base)

        flags = present & ~self.infinity | ((self.one << width) - 1) << ft.mantissa_bits
        above = (magnitude - (base << ft.mantissa_bits)).bitwise_not_() >> 31
        coded = words - (above & (base - 1) << ft.mantissa_bits)
        if self._maybe(flushed):
            coded &= above | ~flushed.int().neg_() | self.sign_bit
        coded, flags = self._fit(coded, flags)
        if fmt.has_specials_blocks and self._maybe(special):
            coded = torch.where(special, self._code_specials(words), coded)
            base = base * ~special
            flags = torch.where(special, _int32(fmt.specials_flags), flags)
        return coded, base, flags

    def _fit(self, words: torch.Tensor, flags: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Drop what does not fit the target, and round the values on the bits that stay."""
        count = _running_count((flags & self.weights) != 0)
        lost = last_lost = _planes_within(count, self.fmt.slots)
        zero_planes = ~(flags & self.ft.mantissa_mask)
        partial = self.fmt.partial
        if partial:
            last_lost = _planes_within(count, self.fmt.slots + 1)
            self._round(words[:partial], last_lost, zero_planes)
        self._round(words[partial:], lost, zero_planes)
        return words, flags & self.kept_above[last_lost]

    def _round(self, words: torch.Tensor, lost: torch.Tensor, zero_planes: torch.Tensor) -> None:
        """Clear the bits from plane ``lost`` on, a number a block, and round, all in place."""
        keep = self.kept_above[lost]
        if self.fmt.rounding == "truncate":
            words &= keep
            return
        # Half a step less the least weight, and that weight again if the last kept bit is odd: a sum
        # that carries exactly when nearest-even rounds up. Where nothing is lost both are zero.
        mantissa = words & self.ft.mantissa_mask
        words ^= mantissa
        rounded = (mantissa & self.step[lost]).clamp_(max=1)
        rounded.add_(mantissa).add_(self.below_half[lost]).bitwise_and_(keep)
        mantissa &= keep
        # A carry that leaves the stored planes, for a zero plane or the exponent, saturates.
        stray = (rounded & zero_planes).neg_().bitwise_right_shift_(31)
        mantissa.bitwise_xor_(rounded).bitwise_and_(stray)
        words |= rounded.bitwise_xor_(mantissa)

    def _code_specials(self, words: torch.Tensor) -> torch.Tensor:
        magnitude = words & (self.infinity | self.ft.mantissa_mask)
        infinite = words & self.sign_bit | 1 << self.ft.mantissa_bits
        coded = torch.where(magnitude == self.infinity, infinite, 0)
        return torch.where(magnitude > self.infinity, self.sign_bit, coded).int()

    def _fill_slots(self, words: torch.Tensor, flagged: torch.Tensor) -> torch.Tensor:
        """int32[N, blocks] -> the flagged planes in order, then zeros: uint8[blocks, bytes]."""
        planes = self._to_planes(words)
        # Each flagged plane writes its row into its slot; the others write into a slot that is cut off,
        # and slots that no plane claims keep the row of zeros.
        slot = self._slots(flagged).clamp(max=self.touched)
        source = slot.new_full((self.touched + 1, slot.shape[1]), self.ft.width)
        source.scatter_(0, slot, self.row_of_plane.expand_as(slot))
        slots = planes.gather(1, source[: self.touched].expand(self.groups, -1, -1))
        rows = slots.new_empty((slots.shape[2], slots.shape[1], slots.shape[0]))
        rows.copy_(slots.permute(2, 1, 0))
        return rows.view(len(rows), -1).view(torch.uint8)

    def _slots(self, flagged: torch.Tensor) -> torch.Tensor:
        """Which slot each plane lies in, int64[planes, blocks]; one past the last for a zero plane."""
        below_last = _running_count(flagged) - (self.touched + 1)
        return below_last.mul_(flagged.to(torch.int8)).add_(self.touched).long()

    def _to_planes(self, words: torch.Tensor) -> torch.Tensor:
        """int32[N, blocks] -> rows[groups, planes + 1, blocks], least weight first, then zeros."""
        width, blocks = self.ft.width, words.shape[1]
        planes = words.new_zeros((self.groups, width + 1, blocks), dtype=self.row_dtype)
        if self.fmt.block == 16:
            _transpose_bits(words.view(1, 16, blocks))
            planes[0, :16] = words
            if width == 32:
                planes[0, 16:32] = words >> 16
        elif width == 32:
            planes[:, :32] = words.view(-1, 32, blocks)
            _transpose_bits(planes[:, :32])
        else:  # two 16x16 matrices side by side
            halves = words.view(-1, 2, 16, blocks)
            torch.bitwise_or(halves[:, 0], halves[:, 1] << 16, out=planes[:, :16])
            _transpose_bits(planes[:, :16])
        return planes

    # Decompressing.

    def decompress(self, stored: torch.Tensor, rows: torch.Tensor, first: int) -> torch.Tensor:
        """Decompress uint8[blocks, target] into words[blocks, N]; return which headers are invalid.

        What an invalid block decodes to is undefined, but nothing out of bounds is read or written.
        """
        blocks, header = len(stored), self.fmt.header_bytes
        base = stored[:, 0].int()
        flagged = ((stored[:, None, 1:header].permute(2, 1, 0) & self.byte_weights) != 0).reshape(-1, blocks)
        slots = stored.new_zeros((blocks, (self.touched + 1) * self.fmt.plane_bytes))
        slots[:, : self.target - header] = stored[:, header:]
        slots = slots.view(self.row_dtype).view(blocks, -1, self.groups).permute(2, 1, 0).contiguous()
        slot = self._slots(flagged).clamp_(max=self.touched)
        words = self._from_planes(slots.gather(1, slot.flip(0).expand(self.groups, -1, -1)))

        # What no encoder writes may carry out of the exponent field when the base is added.
        not_zero = (words & self.infinity).neg_().bitwise_right_shift_(31)
        decoded = words + not_zero.bitwise_and_((base - 1).clamp(min=0) << self.ft.mantissa_bits)
        decoded.bitwise_xor_(words).bitwise_and_(self.infinity).bitwise_xor_(words)
        special = base == 0
        if self.fmt.has_specials_blocks and self._maybe(special):
            decoded = torch.where(special, self._decode_specials(words), decoded)
        rows.copy_(decoded.to(self.word_dtype).t())
        return self._invalid(base, flagged)

    def _invalid(self, base: torch.Tensor, flagged: torch.Tensor) -> torch.Tensor:
        """Which headers are invalid, as in golden's ``check_headers``: bool[blocks]."""
        fmt, ft = self.fmt, self.ft
        flags = _or_rows(flagged.int() * self.weights)
        exponent = flags >> ft.mantissa_bits & ft.exponent_max
        width = self.bit_length[exponent.long()]
        highest = base + torch.where(width > 0, self.one << (width - 1).clamp(min=0), self.one) - 1
        valid = exponent & (exponent + 1) == 0
        valid &= (base >= 1) & (highest <= ft.exponent_max) & ((width > 0) | (base == 1))
        count = _running_count(flagged)
        stored, above_mantissa = count[-1], count[ft.exponent_bits]
        valid &= above_mantissa <= fmt.slots
        valid &= (stored == above_mantissa) | (stored <= self.touched)
        valid |= (base == 0) & (flags == 0)
        if fmt.has_specials_blocks:
            valid |= (base == 0) & (flags == _int32(fmt.specials_flags))
        return ~valid

    def _from_planes(self, planes: torch.Tensor) -> torch.Tensor:
        """rows[groups, planes, blocks], least weight first -> int32[N, blocks]. Reuses ``planes``."""
        width, blocks = self.ft.width, planes.shape[2]
        if self.fmt.block == 16:
            words = planes[0, :16].int().bitwise_and_(0xFFFF)
            if width == 32:
                words |= planes[0, 16:].int() << 16
            _transpose_bits(words.view(1, 16, blocks))
            return words
        _transpose_bits(planes)
        if width == 32:
            return planes.view(-1, blocks)
        halves = torch.stack([planes & 0xFFFF, planes >> 16 & 0xFFFF], dim=1)
        return halves.view(-1, blocks)

    def _decode_specials(self, words: torch.Tensor) -> torch.Tensor:
        sign = words & self.sign_bit
        is_infinity = (words & 1 << self.ft.mantissa_bits) != 0
        nan = torch.where(sign != 0, self.infinity | self.ft.quiet_bit, 0)
        return torch.where(is_infinity, sign | self.infinity, nan).int()

    def _maybe(self, mask: torch.Tensor) -> bool:
        """Whether a rare case has to be handled. On a GPU, asking would cost more than handling it."""
        return self.device.type != "cpu" or bool(mask.any())


def _int32(word: int) -> int:
    """The signed number with the same 32 bits."""
    word &= 0xFFFFFFFF
    return word - (1 << 32) if word >> 31 else word


def _or_rows(rows: torch.Tensor) -> torch.Tensor:
    """Bitwise or of all rows, whose number is a power of two: [rows, blocks] -> [blocks]."""
    while len(rows) > 1:
        half = len(rows) // 2
        rows = rows[:half] | rows[half:]
    return rows[0]


def _running_count(flagged: torch.Tensor) -> torch.Tensor:
    """For each plane how many are flagged down to it: bool[planes, blocks] -> int8[planes, blocks]."""
    count = flagged.to(torch.int8)
    distance = 1
    while distance < len(count):
        count[distance:] += count[:-distance].clone()
        distance *= 2
    return count


def _planes_within(count: torch.Tensor, slots: int) -> torch.Tensor:
    """How many planes, zero planes included, come before the one that no slot is left for."""
    return (count <= slots).sum(dim=0, dtype=torch.int8).long()


def _transpose_bits(matrices: torch.Tensor) -> None:
    """Transpose every bit matrix in place: int32[matrices, rows, blocks], rows 32, or 16 for two 16x16.

    Bit ``c`` of row ``r`` changes places with bit ``r`` of row ``c``.
    """
    rows = matrices.shape[1]
    for size, mask in _SWAPS:
        if size < rows:
            pairs = matrices.unflatten(1, (rows // (2 * size), 2, size))
            upper, lower = pairs[:, :, 0], pairs[:, :, 1]
            swap = (upper >> size).bitwise_xor_(lower).bitwise_and_(mask)
            lower ^= swap
            upper ^= swap.bitwise_left_shift_(size)
