"""The Hadamard format in vectorised torch operations, on any device; the bytes are golden's.

What the bits mean is said in ``golden/hadamard.py`` and docs/format.md; this file says how it is done fast.
Values, coefficients and fields are rows, int32[N, blocks], so that what holds for a block is one contiguous
row as well, and what holds for a place in all blocks a column, [N, 1]. Only what a root and a quotient are
taken of, one number for each block, has more than 31 bits. The transform is made of sums: a matrix product
would be at the mercy of autocast and of what precision its factors are allowed.
"""

from __future__ import annotations

from math import isqrt

import numpy as np
import torch

from golden import HadamardFormat
from golden.hadamard import (
    ALIGNED_BITS,
    FRACTION_BITS,
    HEADER_BITS,
    LEVELS,
    MAX_WIDTH,
    MINUS_INFINITY,
    NAN,
    PLUS_INFINITY,
    ROOT_BITS,
    SCALE_BIAS,
    SIGN_START,
    SPECIALS,
    THRESHOLD_BITS,
    THRESHOLDS,
)

from .dtypes import TORCH_DTYPES

_FP32_MANTISSA, _FP32_MAX = 23, 0x7F7FFFFF  # of fp32: bits, and the pattern of the largest number
_CODES = 1 << MAX_WIDTH  # fields of the greatest width


class HadamardCodec:
    """The codec of one format on one device, with the constants it needs there."""

    def __init__(self, fmt: HadamardFormat, device: torch.device) -> None:
        ft = fmt.float_type
        self.fmt, self.ft, self.device = fmt, ft, device
        self.dtype = TORCH_DTYPES[fmt.dtype]
        self.word_dtype = torch.int32 if ft.width == 32 else torch.int16
        self.infinity = ft.exponent_max << ft.mantissa_bits

        def table(numbers: object) -> torch.Tensor:
            return torch.from_numpy(np.array(numbers, np.int32)).to(device)

        self.powers = table([1 << i for i in range(31)])
        self.roots = table([isqrt(256 * x) for x in range(1 << ROOT_BITS)])
        self.up = table(31 - np.arange(32))[None, :, None]
        specials = [0, self.infinity | ft.quiet_bit, self.infinity, self.infinity - (1 << ft.width - 1)]
        self.specials = table(specials).to(self.word_dtype)  # by kind

        widths, least = fmt.widths, int(fmt.widths[-1])
        self.widths = table(widths)[:, None]
        more = int((widths > least).sum())
        self.spans = (0, more, least + 1), (more, fmt.block, least)  # of fields of one width
        self.sign_bit = table(1 << widths >> 1)[:, None]
        # What fields stand for, and where those of a field's width begin.
        self.coefficients = table([_coefficients(width) for width in LEVELS]).view(-1)
        self.first_code = table(_CODES * widths)[:, None]
        # Where a field begins: in which octet, and how far up.
        starts = HEADER_BITS + np.cumsum(widths) - widths
        self.octet = table(np.minimum(starts >> 3, fmt.target - 1))
        self.shift = table(starts & 7)[:, None]

        # Fields are joined two by two until words have eight, behind a word with the header alone. Where an
        # octet begins: in which of these, how far up, and with how many bits; the others are of the next.
        lower = [widths.reshape(-1, 2 * size)[:, :size].sum(axis=1) for size in (1, 2, 4)]
        self.lower = [table(bits)[:, None] for bits in lower]
        begin, octets = np.append(0, starts[::8]), 8 * np.arange(fmt.target)
        word = np.searchsorted(begin, octets, side="right") - 1
        bits = np.minimum(np.append(begin[1:], 8 * fmt.target)[word] - octets, 8)
        self.word, self.next_word = table(word), table(np.minimum(word + 1, len(begin) - 1))
        self.down, self.bits = table(octets - begin[word])[:, None], table(bits)[:, None]

    # Compressing.

    def compress(self, values: torch.Tensor, stored: torch.Tensor, first: int) -> None:
        """Compress one chunk of flat values into uint8[blocks, target]; its first block has that number."""
        words = self._words(values, len(stored))
        magnitude = words & (self.infinity | self.ft.mantissa_mask)
        largest = magnitude.amax(dim=0)
        top = (largest >> self.ft.mantissa_bits).clamp_(min=1)
        aligned = self._align(magnitude, top)
        energy = (aligned * aligned).sum(dim=0, dtype=torch.int32)
        negative = (words ^ self._flips(first, len(stored))) >> 31
        z = _transform(aligned.bitwise_xor_(negative).sub_(negative))
        fields = self._quantise(z, energy)
        product = (z * self._coefficients(fields)).sum(dim=0, dtype=torch.int32)
        header = self._scale(energy, product, top)
        special = largest >= self.infinity
        if self._maybe(special):
            header = torch.where(special, SPECIALS, header)
            fields = torch.where(special, self._kinds(words, magnitude), fields)
        stored.copy_(self._lay_out(header, fields).t())

    def _words(self, values: torch.Tensor, blocks: int) -> torch.Tensor:
        """Flat values -> bit patterns, int32[N, blocks], the tail padded with zeros and signs extended."""
        words = values.view(self.word_dtype)
        missing = blocks * self.fmt.block - len(words)
        if missing:
            words = torch.cat([words, words.new_zeros(missing)])
        return words.view(blocks, self.fmt.block).t().contiguous().int()

    def _align(self, magnitude: torch.Tensor, top: torch.Tensor) -> torch.Tensor:
        """Patterns without signs -> integers of ALIGNED_BITS, in units of their block."""
        mantissa_bits = self.ft.mantissa_bits
        exponent = (magnitude >> mantissa_bits).clamp_(min=1)
        doubled = magnitude - (exponent - 1 << mantissa_bits)
        doubled <<= max(ALIGNED_BITS - mantissa_bits, 0)
        doubled >>= (top - exponent).add_(max(mantissa_bits - ALIGNED_BITS, 0)).clamp_(max=31)
        return doubled.add_(1).bitwise_right_shift_(1).clamp_(max=(1 << ALIGNED_BITS) - 1)

    def _flips(self, first: int, blocks: int) -> torch.Tensor:
        """The sign patterns of blocks, numbered from the first: in the top bit, of int32[N, blocks]."""
        numbers = torch.arange(first, first + blocks, device=self.device)
        state, states = _next((numbers ^ SIGN_START).int()), []
        for _ in range(self.fmt.block // 32):
            states.append(state)
            state = _next(state)
        return (torch.stack(states)[:, None] << self.up).view(-1, blocks)

    def _quantise(self, z: torch.Tensor, energy: torch.Tensor) -> torch.Tensor:
        """The fields of coefficients: levels that these are nearest to, and signs."""
        half = (_bit_length(energy, self.powers) - 1).clamp_(min=0) >> 1  # 4**half is the largest not above
        leading = energy.long() << 6 >> 2 * half
        root = self.roots[leading] << half
        fields = z >> 31 & self.sign_bit
        for start, stop, width in self.spans:
            magnitude = z[start:stop].abs()
            for threshold in THRESHOLDS[width]:
                fields[start:stop] += magnitude > threshold * root >> ROOT_BITS - 1 + THRESHOLD_BITS
        return fields

    def _coefficients(self, fields: torch.Tensor) -> torch.Tensor:
        """What fields stand for, in units of the scale."""
        codes = fields + self.first_code
        return self.coefficients.index_select(0, codes.view(-1)).view(codes.shape)

    def _scale(self, energy: torch.Tensor, product: torch.Tensor, top: torch.Tensor) -> torch.Tensor:
        """The header whose scale is nearest to energy / product, in units of the aligned values."""
        some = product > 0
        energy, product = energy.clamp(min=1), product.clamp(min=1)
        shift = _bit_length(product, self.powers) - _bit_length(energy, self.powers) + FRACTION_BITS + 2
        quotient = (energy.long() << shift.clamp(min=0)) // (product.long() << (-shift).clamp_(min=0))
        wide = quotient >> FRACTION_BITS + 2
        mantissa = ((quotient >> wide) + 1 >> 1) - (1 << FRACTION_BITS)
        unit = top - self.ft.bias - (ALIGNED_BITS - 1)
        header = (unit + 1 - shift + wide + SCALE_BIAS << FRACTION_BITS) + mantissa
        return (header * (some & (header >= 1 << FRACTION_BITS))).clamp_(max=(1 << HEADER_BITS) - 1).int()

    def _kinds(self, words: torch.Tensor, magnitude: torch.Tensor) -> torch.Tensor:
        """Fields that say which values are NaN or infinite, as far as there is room."""
        if not self.fmt.names_specials:
            return torch.zeros_like(words)
        infinite = PLUS_INFINITY - (words >> 31) * (MINUS_INFINITY - PLUS_INFINITY)
        kinds = torch.where(magnitude > self.infinity, NAN, infinite) * (magnitude >= self.infinity)
        return torch.where(self.widths > 1, kinds, kinds.clamp(max=1))

    def _lay_out(self, header: torch.Tensor, fields: torch.Tensor) -> torch.Tensor:
        """Header and fields as bytes, int32[target, blocks], of which only the lowest eight bits count."""
        words = fields
        for bits in self.lower:
            words = words[0::2] | words[1::2] << bits
        words = torch.cat([header[None], words * (header > 0)])
        octets = words.index_select(0, self.word) >> self.down & (1 << self.bits) - 1
        return octets | words.index_select(0, self.next_word) << self.bits

    def _maybe(self, mask: torch.Tensor) -> bool:
        """Whether a rare case has to be handled. On a GPU, asking would cost more than handling it."""
        return self.device.type != "cpu" or bool(mask.any())

    # Decompressing.

    def decompress(self, stored: torch.Tensor, rows: torch.Tensor, first: int) -> torch.Tensor:
        """Decompress uint8[blocks, target] into words[blocks, N]; return which headers are invalid."""
        octets = stored.t().contiguous().int()
        header = octets[0] | (octets[1] << 8 & (1 << HEADER_BITS) - 1)
        pairs = octets.clone()
        pairs[:-1] |= octets[1:] << 8
        fields = pairs.index_select(0, self.octet) >> self.shift & (1 << self.widths) - 1

        flips = self._flips(first, len(stored)) >> 31
        sums = _transform(self._coefficients(fields)).bitwise_xor_(flips).sub_(flips)
        sums *= header > SPECIALS
        # A header is the top of its scale's pattern, or of infinity's or more: all but 0 become the largest.
        scale = (header << _FP32_MANTISSA - FRACTION_BITS).clamp_(max=_FP32_MAX).view(torch.float32)
        largest = torch.finfo(self.dtype).max
        values = (sums.float() * scale).clamp_(-largest, largest).to(self.dtype)
        words = values.view(self.word_dtype)
        special = header == SPECIALS
        if self._maybe(special):
            kinds = fields & 3 if self.fmt.names_specials else torch.full_like(fields, NAN)
            words = torch.where(special, self.specials[kinds], words)
        rows.copy_(words.t())
        return (header > SPECIALS) & (header < 1 << FRACTION_BITS)


def _coefficients(width: int) -> list[int]:
    """What each field of so many bits stands for, and zeros for what is no such field."""
    levels = LEVELS[width]
    return [*levels, *(-level for level in levels), *[0] * _CODES][:_CODES]


def _transform(values: torch.Tensor) -> torch.Tensor:
    """The Walsh-Hadamard transform of each column, in its natural order; int32[N, blocks] both."""
    size, blocks = values.shape
    for half in (1 << level for level in range(size.bit_length() - 1)):
        pairs = values.view(-1, 2, half, blocks)
        upper, lower = pairs[:, 0], pairs[:, 1]
        values = torch.stack([upper + lower, upper - lower], dim=1)
    return values.view(size, blocks)


def _next(state: torch.Tensor) -> torch.Tensor:
    """The next 32 signs of each pattern."""
    state = state ^ state << 13
    state = state ^ state >> 17 & 0x7FFF  # shifting int32 right copies the sign
    return state ^ state << 5


def _bit_length(numbers: torch.Tensor, powers: torch.Tensor) -> torch.Tensor:
    """int.bit_length of each number from 0 to 2**31 - 1."""
    return torch.bucketize(numbers, powers, out_int32=True, right=True)
