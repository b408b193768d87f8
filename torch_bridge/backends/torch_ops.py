"""The plane format in vectorised torch operations, on any device; the bytes are golden's.

Everything is integer arithmetic on int32 words, one row a block, whatever the float type: torch has
few operations on unsigned words. The comments say how this differs from ``golden/plane.py``; what the
bits mean is said there and in docs/format.md.
"""

from __future__ import annotations

import torch

from golden import PlaneFormat

from ..dtypes import TORCH_DTYPES

# Values worked on at a time: on the CPU the temporaries stay in the cache, on a GPU they stay small
# beside the activations while a chunk still fills the device.
_CHUNK_VALUES = {"cpu": 1 << 15, "cuda": 1 << 24}

# As in golden.bitplanes: eight bytes are an 8x8 bit matrix, transposed by three swaps. The shift of
# int64 is arithmetic, but each mask clears the bits into which the sign is shifted.
_SWAPS = ((7, 0x00AA00AA00AA00AA), (14, 0x0000CCCC0000CCCC), (28, 0x00000000F0F0F0F0))

# A plane of N bits as elements of one integer type: N / 8 bytes.
_ROW_DTYPES = {2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


class TorchBackend:
    """Compresses and decompresses on the device where the values are.

    On CUDA nothing is copied to the host while compressing; decompressing waits once for the device,
    to raise on invalid headers.
    """

    def __init__(self, fmt: PlaneFormat) -> None:
        self.fmt = fmt
        self._tables: dict[torch.device, _Tables] = {}

    def compress(self, values: torch.Tensor) -> torch.Tensor:
        codec = self._codec(values.device)
        stored = values.new_empty((self.fmt.blocks(values.numel()), codec.target), dtype=torch.uint8)
        step = codec.chunk_blocks
        for start in range(0, len(stored), step):
            chunk = values[start * self.fmt.block : (start + step) * self.fmt.block]
            codec.compress(chunk, stored[start : start + step])
        return stored

    def decompress(self, stored: torch.Tensor, count: int) -> torch.Tensor:
        codec = self._codec(stored.device)
        blocks = self.fmt.blocks(count)
        if stored.dtype != torch.uint8 or stored.shape != (blocks, codec.target):
            raise ValueError(
                f"stored must be uint8 of shape {(blocks, codec.target)}, "
                f"not {stored.dtype} of {tuple(stored.shape)}"
            )
        invalid = codec.invalid(stored[:, : self.fmt.header_bytes])
        if invalid.any():
            block = int(invalid.nonzero()[0])
            header = bytes(stored[block, : self.fmt.header_bytes].tolist()).hex(" ")
            raise ValueError(f"block {block}: no encoder produces the header {header}")
        values = stored.new_empty(blocks * self.fmt.block, dtype=TORCH_DTYPES[self.fmt.dtype])
        rows = values.view(blocks, self.fmt.block)
        step = codec.chunk_blocks
        for start in range(0, blocks, step):
            codec.decompress(stored[start : start + step], rows[start : start + step])
        return values[:count]

    def _codec(self, device: torch.device) -> _Tables:
        if device not in self._tables:
            self._tables[device] = _Tables(self.fmt, device)
        return self._tables[device]


class _Tables:
    """The codec of one format on one device, with the constants it needs there."""

    def __init__(self, fmt: PlaneFormat, device: torch.device) -> None:
        assert fmt.target is not None
        ft = fmt.float_type
        self.fmt, self.device, self.target = fmt, device, fmt.target
        self.chunk_blocks = _CHUNK_VALUES.get(device.type, _CHUNK_VALUES["cuda"]) // fmt.block
        self.bytes_per_value = ft.width // 8
        self.touched = fmt.slots + (fmt.partial > 0)
        self.mantissa_bits, self.exponent_max = ft.mantissa_bits, ft.exponent_max
        self.infinity = ft.exponent_max << ft.mantissa_bits
        self.magnitude_mask = self.infinity | ft.mantissa_mask
        # The weight of the sign bit as a signed word: for fp32 that is int32's own sign.
        self.sign_bit = -(1 << 31) if ft.width == 32 else 1 << (ft.width - 1)
        self.row_dtype = _ROW_DTYPES[fmt.plane_bytes]

        planes = fmt.planes
        weights = [1 << (planes - 1 - j) for j in range(planes)]
        self.weights = torch.tensor(weights, dtype=torch.int64, device=device)
        self.byte_weights = torch.tensor([1 << i for i in range(8)], dtype=torch.uint8, device=device)
        # Transposing leaves the planes of each byte in the order of their weight, the least first.
        position = [j // 8 * 8 + 7 - j % 8 for j in range(planes)]
        self.position = torch.tensor(position, dtype=torch.int64, device=device)

    # Compressing.

    def compress(self, values: torch.Tensor, stored: torch.Tensor) -> None:
        """Compress one chunk of flat values into uint8[blocks, target]."""
        words = self._words(values, len(stored))
        coded, base, flags = self._encode(words)
        flagged = (flags[:, None] & self.weights) != 0
        header = self.fmt.header_bytes
        stored[:, 0] = base
        bits = flagged.view(len(stored), -1, 8).to(torch.uint8) * self.byte_weights
        stored[:, 1:header] = bits.sum(dim=2, dtype=torch.uint8)
        stored[:, header:] = self._planes_in_slots(coded, flagged)[:, : self.target - header]

    def _words(self, values: torch.Tensor, blocks: int) -> torch.Tensor:
        """Flat values -> bit patterns, int32[blocks, N], the tail padded with zeros."""
        words = values.view(torch.int32 if self.bytes_per_value == 4 else torch.int16)
        missing = blocks * self.fmt.block - len(words)
        if missing:
            words = torch.cat([words, words.new_zeros(missing)])
        words = words.view(blocks, self.fmt.block)
        return words if self.bytes_per_value == 4 else words.to(torch.int32) & 0xFFFF

    def _encode(self, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Choose base and planes and round: int32[blocks, N] words, base and flags int64[blocks]."""
        fmt, ft = self.fmt, self.fmt.float_type
        magnitude = words & self.magnitude_mask
        largest = _fold(torch.maximum, magnitude)
        present = _fold(torch.bitwise_or, words).long()

        # Magnitudes with exponent field 0 wrap to the largest, so that the minimum ignores them.
        wrapped = (magnitude - (1 << ft.mantissa_bits)).bitwise_and_(0x7FFFFFFF)
        smallest = _fold(torch.minimum, wrapped)
        top = largest.long() >> ft.mantissa_bits
        base = torch.where(top > 0, (smallest.long() >> ft.mantissa_bits) + 1, 1)
        width = _bit_length(torch.where(top > 0, top - base + 1, 0))

        any_sign = present >> (ft.width - 1) & 1
        any_nan = largest > self.infinity
        if self._maybe(any_nan):
            words = torch.where(magnitude > self.infinity, words | ft.quiet_bit, words)
            present = torch.where(any_nan, present | ft.quiet_bit, present)
        room = (fmt.slots - any_sign - any_nan.long()).clamp(max=ft.exponent_bits)
        flushed = width > room
        special = flushed & (room == 0)
        width = torch.where(flushed, room, width)
        base = torch.where(flushed, top - (1 << room) + 2, base)

        # -1 in the flags' upper bits does no harm: only planes' weights are looked at.
        flags = present & ~self.infinity | ((1 << width) - 1) << ft.mantissa_bits
        below = magnitude < (base << ft.mantissa_bits).int()[:, None]
        shift = ((base - 1) << ft.mantissa_bits).int()[:, None]
        coded = words - shift * ~below
        if self._maybe(flushed):
            coded = torch.where(below & flushed[:, None], words & self.sign_bit, coded)
        coded, flags = self._fit(coded, flags)
        if fmt.has_specials_blocks and self._maybe(special):
            coded = torch.where(special[:, None], self._code_specials(words), coded)
            base = torch.where(special, 0, base)
            flags = torch.where(special, fmt.specials_flags, flags)
        return coded, base, flags

    def _fit(self, words: torch.Tensor, flags: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Drop what does not fit the target, and round the values on the bits that stay."""
        flagged = (flags[:, None] & self.weights) != 0
        count = flagged.cumsum(dim=1, dtype=torch.int32)
        lost = ((flagged & (count == self.fmt.slots + 1)) * self.weights).sum(dim=1)
        last_lost = lost
        partial = self.fmt.partial
        rounded = torch.empty_like(words)
        if partial:
            last_lost = ((flagged & (count == self.fmt.slots + 2)) * self.weights).sum(dim=1)
            rounded[:, :partial] = self._round(words[:, :partial], last_lost, flags)
        rounded[:, partial:] = self._round(words[:, partial:], lost, flags)
        return rounded, flags & ~(2 * last_lost - 1).clamp(min=0)

    def _round(self, words: torch.Tensor, lost: torch.Tensor, flags: torch.Tensor) -> torch.Tensor:
        """Clear the bits from ``lost`` (one weight a block, 0 for none) down, and round."""
        mantissa_mask = self.fmt.float_type.mantissa_mask
        keep = ~(2 * lost - 1).clamp(min=0)
        if self.fmt.rounding == "truncate":
            return words & keep.int()[:, None]
        # Half a step less the least weight, and that weight again if the last kept bit is odd: a sum
        # that carries exactly when nearest-even rounds up. Where nothing is lost both are zero.
        less_than_half = (lost - 1).clamp(min=0).int()[:, None]
        step = (2 * lost).int()[:, None]
        mantissa = words & mantissa_mask
        kept = mantissa & keep.int()[:, None]
        rounded = ((mantissa & step) != 0) + less_than_half
        rounded.add_(mantissa).bitwise_and_(keep.int()[:, None])
        # A carry that leaves the stored planes, for a zero plane or the exponent, saturates.
        stray = rounded & ~(flags & mantissa_mask).int()[:, None]
        return (words ^ mantissa) | torch.where(stray == 0, rounded, kept)

    def _code_specials(self, words: torch.Tensor) -> torch.Tensor:
        magnitude = words & self.magnitude_mask
        infinite = words & self.sign_bit | 1 << self.mantissa_bits
        coded = torch.where(magnitude == self.infinity, infinite, 0)
        return torch.where(magnitude > self.infinity, self.sign_bit, coded).int()

    def _planes_in_slots(self, words: torch.Tensor, flagged: torch.Tensor) -> torch.Tensor:
        """int32[blocks, N] -> the flagged planes in order, then zeros: uint8[blocks, bytes]."""
        planes = self._to_planes(words)
        # Each flagged plane writes its place into its slot; the others write into a slot that is cut off,
        # and slots that no plane claims keep the place of a plane of zeros.
        blocks, width = flagged.shape
        slot = flagged.cumsum(dim=1) - 1
        slot = torch.where(flagged & (slot < self.touched), slot, self.touched)
        source = torch.full((blocks, self.touched + 1), width, dtype=torch.int64, device=self.device)
        source.scatter_(1, slot, self.position.expand(blocks, -1))
        return planes.gather(1, source[:, : self.touched]).view(torch.uint8).view(blocks, -1)

    def _to_planes(self, words: torch.Tensor) -> torch.Tensor:
        """int32[blocks, N] -> rows[blocks, planes + 1], ordered by ``position``; the last is zero."""
        blocks, n = words.shape
        size = self.bytes_per_value
        octets = torch.empty((size, blocks, n), dtype=torch.uint8, device=self.device)
        for i in range(size):
            octets[i] = words >> 8 * (size - 1 - i)
        _transpose_8x8(octets.view(torch.int64))
        planes = torch.zeros((blocks, 8 * size + 1, n // 8), dtype=torch.uint8, device=self.device)
        by_bit = octets.view(size, blocks, n // 8, 8).permute(1, 0, 3, 2)
        planes[:, :-1].view(blocks, size, 8, n // 8).copy_(by_bit)
        return planes.view(self.row_dtype).view(blocks, -1)

    # Decompressing.

    def invalid(self, headers: torch.Tensor) -> torch.Tensor:
        """Which headers no encoder produces, as in golden's ``check_headers``: bool[blocks]."""
        fmt, ft = self.fmt, self.fmt.float_type
        base = headers[:, 0].long()
        flagged = self._flagged(headers)
        flags = (flagged * self.weights).sum(dim=1)
        exponent = flags >> ft.mantissa_bits & ft.exponent_max
        width = _bit_length(exponent)
        contiguous = exponent == (1 << width) - 1
        highest = base + torch.where(width > 0, 1 << (width - 1).clamp(min=0), 1) - 1
        valid = contiguous & (base >= 1) & (highest <= ft.exponent_max) & ((width > 0) | (base == 1))
        stored = flagged.sum(dim=1)
        mantissa = flagged[:, -ft.mantissa_bits :].sum(dim=1)
        valid &= (stored - mantissa <= fmt.slots) & ((mantissa == 0) | (stored <= self.touched))
        if fmt.has_specials_blocks:
            valid |= (base == 0) & (flags == fmt.specials_flags)
        return ~valid

    def decompress(self, stored: torch.Tensor, values: torch.Tensor) -> None:
        """Decompress uint8[blocks, target] with valid headers into a chunk of values[blocks, N]."""
        ft = self.fmt.float_type
        words = self._from_planes(self._planes_of_slots(stored))
        base = stored[:, 0].int()
        # Valid deltas never carry out of the exponent field when the base is added.
        shift = ((base - 1).clamp(min=0) << ft.mantissa_bits)[:, None]
        decoded = words + shift * ((words & self.infinity) != 0)
        if self.fmt.has_specials_blocks:
            special = (base == 0)[:, None]
            if self._maybe(special):
                decoded = torch.where(special, self._decode_specials(words), decoded)
        values.view(torch.int32 if self.bytes_per_value == 4 else torch.int16).copy_(decoded)

    def _decode_specials(self, words: torch.Tensor) -> torch.Tensor:
        sign = words & self.sign_bit
        is_infinity = (words & 1 << self.mantissa_bits) != 0
        nan = torch.where(sign != 0, self.infinity | self.fmt.float_type.quiet_bit, 0)
        return torch.where(is_infinity, sign | self.infinity, nan).int()

    def _flagged(self, headers: torch.Tensor) -> torch.Tensor:
        """uint8[blocks, header bytes] -> bool[blocks, planes]."""
        return ((headers[:, 1:, None] & self.byte_weights) != 0).view(len(headers), -1)

    def _planes_of_slots(self, stored: torch.Tensor) -> torch.Tensor:
        """uint8[blocks, target] -> rows[blocks, planes], ordered by ``position``."""
        blocks, header = len(stored), self.fmt.header_bytes
        slots = torch.zeros((blocks, (self.touched + 1) * self.fmt.plane_bytes), dtype=torch.uint8)
        slots = slots.to(self.device)
        slots[:, : self.target - header] = stored[:, header:]
        flagged = self._flagged(stored[:, :header])
        slot = torch.where(flagged, flagged.cumsum(dim=1) - 1, self.touched)
        return slots.view(self.row_dtype).gather(1, slot[:, self.position])

    def _from_planes(self, planes: torch.Tensor) -> torch.Tensor:
        """The inverse of ``_to_planes``, without its last row."""
        blocks, n, size = len(planes), self.fmt.block, self.bytes_per_value
        rows = planes.view(torch.uint8).view(blocks, size, 8, n // 8)
        octets = rows.permute(1, 0, 3, 2).contiguous().view(size, blocks, n)
        _transpose_8x8(octets.view(torch.int64))
        words = octets[0].int()
        for octet in octets[1:]:
            words = words.bitwise_left_shift_(8).bitwise_or_(octet)
        return words

    def _maybe(self, mask: torch.Tensor) -> bool:
        """Whether a rare case has to be handled. On a GPU, asking would cost more than handling it."""
        return self.device.type != "cpu" or bool(mask.any())



def _fold(combine, words: torch.Tensor) -> torch.Tensor:
    """Reduce rows of a power-of-two length: [blocks, N] -> [blocks]."""
    while words.shape[1] > 1:
        half = words.shape[1] // 2
        words = combine(words[:, :half], words[:, half:])
    return words[:, 0]


def _transpose_8x8(matrices: torch.Tensor) -> None:
    """Transpose every 8x8 bit matrix of an int64 tensor in place."""
    for shift, mask in _SWAPS:
        swap = (matrices >> shift).bitwise_xor_(matrices).bitwise_and_(mask)
        matrices ^= swap
        matrices ^= swap.bitwise_left_shift_(shift)


def _bit_length(numbers: torch.Tensor) -> torch.Tensor:
    """int.bit_length of each small non-negative number, int64."""
    return torch.frexp(numbers.float())[1].long()
