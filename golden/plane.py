"""The bit-plane format: base-delta exponents, zero planes dropped, the most significant planes first.

This module is the format. docs/format.md says the same in words; where the two differ, one of them
has a bug. After Lee, Yun, Lee, "In-memory Activation Compression for GPT Training", IEEE AICAS 2023.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, NamedTuple

import numpy as np

from .account import Account
from .bitplanes import from_planes, to_planes
from .blocks import BlockFormat, as_block_number, as_shape, bit_length, describe

BLOCKS = (16, 32, 64, 128)
ROUNDINGS = ("nearest", "truncate")


@dataclass(frozen=True, eq=False)
class RaggedBlocks:
    """Losslessly compressed blocks: block ``i`` is ``data[offsets[i]:offsets[i + 1]]``.

    Attributes:
        data: uint8[total], all blocks end to end.
        offsets: int64[blocks + 1], where each block starts, and the end of the last.
    """

    data: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        index = operator.index(index)
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} blocks, and none is {index}")
        index %= len(self)
        return self.data[self.offsets[index] : self.offsets[index + 1]]

    @property
    def nbytes(self) -> int:
        """Compressed bytes, without the offsets."""
        return self.data.nbytes


class EncodedBlocks(NamedTuple):
    """What a block is made of before its planes are laid out; one row a block.

    ``words`` holds, for every value, sign, exponent delta and mantissa where the sign, exponent
    and mantissa of the float were. Bit ``width - 1 - j`` of ``flags`` is set if plane ``j`` is stored.
    """

    words: np.ndarray  # uint[blocks, N]
    base: np.ndarray  # int64[blocks]
    flags: np.ndarray  # int64[blocks]


@dataclass(frozen=True)
class PlaneFormat(BlockFormat):
    """The parameters of a bit-plane format, and the codec they define.

    Args:
        dtype: type of the values: "fp32", "bf16" or "fp16".
        block: values in a block, ``N``: 16, 32, 64 or 128.
        target: bytes of every compressed block, or None for the lossless mode, whose blocks vary in
            size. At least the header and two bits per value, at most the uncompressed block.
        rounding: what happens to a value whose low bits are dropped: "nearest" (ties to even) or
            "truncate" (as in the paper). The lossless mode drops nothing.

    Raises:
        ValueError: an argument is none of the above; the message names the value.

    Examples:
        >>> fmt = PlaneFormat("fp32", block=64, target=80)
        >>> stored = fmt.compress(np.ones((3, 50), np.float32))
        >>> stored.shape, stored.dtype
        ((3, 80), dtype('uint8'))
        >>> bool((fmt.decompress(stored, (3, 50)) == 1).all())
        True
    """

    scheme: ClassVar[str] = "planes"
    dtype: str = "fp32"
    block: int = 64
    target: int | None = 80
    rounding: str = "nearest"

    def __post_init__(self) -> None:
        self._check_parameters(
            BLOCKS, "header and two bits per value", "the uncompressed block", lossless=True
        )
        if not isinstance(self.rounding, str) or self.rounding not in ROUNDINGS:
            raise ValueError(f"rounding must be one of {', '.join(ROUNDINGS)}, not {self.rounding!r}")
        object.__setattr__(self, "rounding", str(self.rounding))

    # Derived parameters. The RTL and the kernels read these, so that no width is written twice.

    @property
    def planes(self) -> int:
        """Planes of a block: one per bit of a value, sign first, then exponent, then mantissa."""
        return self.float_type.width

    @property
    def header_bytes(self) -> int:
        """The base exponent in one byte, then one flag per plane."""
        return 1 + self.planes // 8

    @property
    def plane_bytes(self) -> int:
        return self.block // 8

    @property
    def min_target(self) -> int:
        return self.header_bytes + self.block // 4

    @property
    def max_target(self) -> int:
        return self.original_bytes

    @property
    def slots(self) -> int:
        """Whole planes that fit behind the header of a fixed-size block."""
        return (self._fixed_target - self.header_bytes) // self.plane_bytes

    @property
    def partial(self) -> int:
        """Values whose bit fits in the room behind the whole planes; a multiple of 8 below N."""
        return (self._fixed_target - self.header_bytes) % self.plane_bytes * 8

    @property
    def _slots_touched(self) -> int:
        """Planes of which at least one bit can be stored."""
        return self.planes if self.target is None else self.slots + (self.partial > 0)

    @property
    def has_specials_blocks(self) -> bool:
        """Whether the target can be too small for sign, exponent and quiet planes together."""
        return self.target is not None and self.slots < 3

    @property
    def specials_flags(self) -> int:
        """Flags of a specials block (its base is 0): the sign plane and the last exponent plane."""
        return 1 << (self.planes - 1) | 1 << self.float_type.mantissa_bits

    @property
    def _fixed_target(self) -> int:
        if self.target is None:
            raise ValueError("the lossless mode has no fixed block size")
        return self.target

    # The codec.

    def compress(self, values: np.ndarray, first: int = 0) -> np.ndarray | RaggedBlocks:
        """Compress an array, its values taken in C order, the tail block padded with zeros.

        Args:
            values: array of any shape, of the format's NumPy type (``ml_dtypes.bfloat16`` for bf16).
            first: number of the first block, from 0 to 2**32 - 1; on which no byte depends.

        Returns:
            uint8[blocks, target], or ``RaggedBlocks`` in the lossless mode.

        Raises:
            ValueError: the array has another type, or no block has such a number.
        """
        as_block_number(first)
        chunks = [self._lay_out(self.encode(words)) for words in self._chunks(np.asarray(values))]
        if self.target is not None:
            return np.concatenate([np.empty((0, self.target), np.uint8), *(rows for rows, _ in chunks)])
        data = [rows[np.arange(rows.shape[1]) < sizes[:, None]] for rows, sizes in chunks]
        offsets = np.cumsum(np.concatenate([np.zeros(1, np.int64), *(sizes for _, sizes in chunks)]))
        return RaggedBlocks(np.concatenate([np.empty(0, np.uint8), *data]), offsets)

    def decompress(
        self, stored: np.ndarray | RaggedBlocks, shape: int | Sequence[int], first: int = 0
    ) -> np.ndarray:
        """Decompress to an array of the given shape and the format's NumPy type.

        Args:
            stored: what ``compress`` returned for an array of that shape.
            shape: shape of the result.
            first: number of the first block, from 0 to 2**32 - 1; on which no value depends.

        Raises:
            ValueError: ``stored`` has the wrong type or size for the shape, no block has such a number, or a
                block's header is invalid; the message names the block.
        """
        as_block_number(first)
        shape = as_shape(shape)
        blocks = self.blocks(prod(shape))
        rows = self._rows(stored, blocks)
        words = np.empty((blocks, self.block), self.float_type.bits)
        for start, stop in self._spans(blocks):
            words[start:stop] = self._decode(rows(start, stop), first_block=start)
        return self._as_array(words, shape)

    def account(self, values: np.ndarray) -> Account:
        """Count the stored bits of an array part by part; see ``Account``.

        In a fixed-size block a plane that is stored in part counts for the bits that are stored.

        Raises:
            ValueError: the array has another type than the format's.
        """
        ft = self.float_type
        exponent_mask = ft.exponent_max << ft.mantissa_bits
        blocks = exponent = mantissa = sign = plain = 0
        for words in self._chunks(np.asarray(values)):
            flags = self.encode(words).flags
            stored = np.bitwise_count(flags).astype(np.int64) * self.block
            not_mantissa = np.bitwise_count(flags & ~ft.mantissa_mask).astype(np.int64) * self.block
            if self.target is not None:
                stored = np.minimum(stored, 8 * (self.target - self.header_bytes))
            field = words >> ft.bits.type(ft.mantissa_bits) & ft.bits.type(ft.exponent_max)
            blocks += len(words)
            sign += int((flags >> (ft.width - 1)).sum()) * self.block
            exponent += int(np.bitwise_count(flags & exponent_mask).sum(dtype=np.int64)) * self.block
            mantissa += int((stored - not_mantissa).sum())
            plain += int(bit_length(np.ptp(field, axis=1)).sum()) * self.block

        flag_bits = {"sign": 1, "exponent": ft.exponent_bits, "mantissa": ft.mantissa_bits}
        original = {part: bits * blocks * self.block for part, bits in flag_bits.items()}
        header = {part: bits * blocks for part, bits in flag_bits.items()}
        header["exponent"] += 8 * blocks
        stored_bits = {"header": 8 * self.header_bytes * blocks, "sign": sign, "exponent": exponent}
        stored_bits["mantissa"] = mantissa
        used = sum(stored_bits.values())
        stored_bits["padding"] = 0 if self.target is None else 8 * self.target * blocks - used
        return Account(blocks * self.block, original, stored_bits, header, plain + header["exponent"])

    # Encoding.

    def encode(self, words: np.ndarray) -> EncodedBlocks:
        """Choose base and planes of each block and round its values; nothing is laid out yet.

        Args:
            words: bit patterns of the values, uint[blocks, N].
        """
        ft = self.float_type
        uint = ft.bits.type
        infinity = ft.exponent_max << ft.mantissa_bits
        magnitude = words & uint(infinity | ft.mantissa_mask)
        largest = magnitude.max(axis=1)
        present = np.bitwise_or.reduce(words, axis=1).astype(np.int64)

        # Magnitudes with exponent field 0 wrap to the largest, so that the minimum ignores them.
        smallest = (magnitude - uint(1 << ft.mantissa_bits)).min(axis=1)
        top = largest.astype(np.int64) >> ft.mantissa_bits
        base = np.where(top > 0, (smallest.astype(np.int64) >> ft.mantissa_bits) + 1, 1)
        width = bit_length(np.where(top > 0, top - base + 1, 0))
        flushed = special = np.zeros(len(words), bool)

        if self.target is not None:
            any_sign = present >> (ft.width - 1)
            any_nan = largest > infinity
            if any_nan.any():
                quiet = uint(ft.quiet_bit)
                words = np.where(magnitude > infinity, words | quiet, words)
                present[any_nan] |= ft.quiet_bit
            room = self.slots - any_sign - any_nan
            flushed = width > room
            special = flushed & (room == 0)
            width = np.where(flushed, room, width)
            base = np.where(flushed, top - (1 << room) + 2, base)

        flags = present & ~infinity | ((1 << width) - 1) << ft.mantissa_bits
        below = magnitude < (base << ft.mantissa_bits).astype(ft.bits)[:, None]
        shift = ((base - 1) << ft.mantissa_bits).astype(ft.bits)[:, None]
        coded = words - ~below * shift
        if flushed.any():
            sign_bit = uint(1 << (ft.width - 1))
            coded = np.where(below & flushed[:, None], words & sign_bit, coded)
        if self.target is not None:
            coded, flags = self._fit(coded, flags)
        if special.any():
            coded[special] = self._code_specials(words[special])
            base[special] = 0
            flags[special] = self.specials_flags
        return EncodedBlocks(coded, base, flags)

    def _fit(self, words: np.ndarray, flags: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Drop what does not fit the target, and round the values on the bits that stay."""
        # The first flagged plane that the last values of a block lose, and the next one, which is
        # the first that its first `partial` values lose.
        ranks = (self.slots, self.slots + 1)
        lost, lost_after_partial = _flags_of_ranks(flags, ranks, self.planes)
        rounded = np.empty_like(words)
        rounded[:, : self.partial] = self._round(words[:, : self.partial], lost_after_partial, flags)
        rounded[:, self.partial :] = self._round(words[:, self.partial :], lost, flags)

        first_unstored = lost_after_partial if self.partial else lost
        return rounded, flags & ~_at_and_below(first_unstored)

    def _round(self, words: np.ndarray, lost: np.ndarray, flags: np.ndarray) -> np.ndarray:
        """Clear the bits from ``lost`` (one weight a block, 0 for none) down, and round."""
        ft = self.float_type
        rest = words & _at_and_below(lost).astype(ft.bits)[:, None]
        kept = words ^ rest
        if self.rounding == "truncate":
            return kept
        half = lost.astype(ft.bits)[:, None]
        unit = half << ft.bits.type(1)
        up = rest + ((kept & unit) != 0) > half
        mantissa = kept & ft.bits.type(ft.mantissa_mask)
        rounded = mantissa + up * unit
        # A carry that leaves the stored planes, for a zero plane or the exponent, saturates.
        stray = rounded & ~(flags & ft.mantissa_mask).astype(ft.bits)[:, None]
        return np.where(stray == 0, kept + up * unit, kept)

    def _code_specials(self, words: np.ndarray) -> np.ndarray:
        """Two bits a value for a block with NaNs whose target has no room for a third plane."""
        ft = self.float_type
        infinity = ft.exponent_max << ft.mantissa_bits
        sign = ft.bits.type(1 << (ft.width - 1))
        magnitude = words & ~sign
        exponent = ft.bits.type(1 << ft.mantissa_bits)
        coded = np.where(magnitude == infinity, words & sign | exponent, ft.bits.type(0))
        return np.where(magnitude > infinity, sign, coded)

    def _lay_out(self, encoded: EncodedBlocks) -> tuple[np.ndarray, np.ndarray]:
        """Header and flagged planes as rows of bytes, and how many bytes of each row they take."""
        flagged = _unpack_flags(encoded.flags, self.planes)
        filled = self._filled_slots(flagged)
        area = np.zeros((*filled.shape, self.plane_bytes), np.uint8)
        area[filled] = to_planes(encoded.words)[flagged]

        header = np.packbits(flagged, axis=1, bitorder="little")
        rows = np.hstack([encoded.base.astype(np.uint8)[:, None], header, area.reshape(len(area), -1)])
        return rows[:, : self.target], self.header_bytes + flagged.sum(axis=1) * self.plane_bytes

    def _filled_slots(self, flagged: np.ndarray) -> np.ndarray:
        """The slots that hold a plane, bool[blocks, slots]: the flagged planes, in their order."""
        return np.arange(self._slots_touched) < np.count_nonzero(flagged, axis=1)[:, None]

    # Decoding.

    def _rows(self, stored: np.ndarray | RaggedBlocks, blocks: int) -> Callable[[int, int], np.ndarray]:
        """Check the container; return what gives blocks ``start:stop`` as rows of equal length."""
        length = self.header_bytes + self._slots_touched * self.plane_bytes
        if self.target is not None:
            fixed, pad = self._check_stored(stored, blocks), ((0, 0), (0, length - self.target))
            return lambda start, stop: np.pad(fixed[start:stop], pad)

        if not isinstance(stored, RaggedBlocks):
            raise ValueError(f"stored must be RaggedBlocks in the lossless mode, not {describe(stored)}")
        data, offsets = stored.data, stored.offsets
        if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 1:
            raise ValueError(f"stored.data must be uint8 of one dimension, not {describe(data)}")
        if not isinstance(offsets, np.ndarray) or offsets.dtype != np.int64 or offsets.ndim != 1:
            raise ValueError(f"stored.offsets must be int64 of one dimension, not {describe(offsets)}")
        if len(offsets) != blocks + 1:
            raise ValueError(f"stored must have {blocks} blocks for this shape, not {len(offsets) - 1}")
        sizes = np.diff(offsets)
        if offsets[0] != 0 or offsets[-1] != len(data):
            raise ValueError(
                f"stored.offsets must go from 0 to {len(data)}, not from {offsets[0]} to {offsets[-1]}"
            )
        wrong = np.flatnonzero((sizes < self.header_bytes) | (sizes > length))
        if len(wrong):
            raise ValueError(
                f"block {wrong[0]}: must have {self.header_bytes} to {length} bytes, not {sizes[wrong[0]]}"
            )

        padded = np.pad(data, (0, length))
        places = np.arange(length)

        def rows(start: int, stop: int) -> np.ndarray:
            taken = padded[offsets[start:stop, None] + places]
            flags = np.bitwise_count(taken[:, 1 : self.header_bytes]).sum(axis=1, dtype=np.int64)
            asked = self.header_bytes + flags * self.plane_bytes
            wrong = np.flatnonzero(asked != sizes[start:stop])
            if len(wrong):
                i = wrong[0]
                raise ValueError(
                    f"block {start + i}: its header asks for {asked[i]} bytes, not {sizes[start + i]}"
                )
            return taken  # what lies behind a block is never looked at: no flag points there

        return rows

    def check_headers(self, headers: np.ndarray) -> np.ndarray:
        """Which headers are invalid: uint8[blocks, header_bytes] -> bool[blocks].

        The rule, part by part, is in docs/format.md, "Invalid headers".
        """
        ft = self.float_type
        base = headers[:, 0].astype(np.int64)
        flags = _pack_flags(np.unpackbits(headers[:, 1:], axis=1, bitorder="little"))
        exponent = flags >> ft.mantissa_bits & ft.exponent_max
        width = bit_length(exponent)
        contiguous = exponent == (1 << width) - 1
        highest = base + np.where(width > 0, 1 << np.maximum(width - 1, 0), 1) - 1
        in_range = (base >= 1) & (highest <= ft.exponent_max) & ((width > 0) | (base == 1))
        valid = contiguous & in_range
        if self.target is not None:
            stored = np.bitwise_count(flags)
            mantissa = np.bitwise_count(flags & ft.mantissa_mask)
            valid &= (stored - mantissa <= self.slots) & (stored <= self._slots_touched)
            valid |= (base == 0) & (flags == 0)  # cleared memory, which reads as +0
        if self.has_specials_blocks:
            valid |= (base == 0) & (flags == self.specials_flags)
        return ~valid

    def _decode(self, rows: np.ndarray, first_block: int) -> np.ndarray:
        """Padded rows of bytes -> bit patterns, uint[blocks, N]."""
        ft = self.float_type
        invalid = np.flatnonzero(self.check_headers(rows[:, : self.header_bytes]))
        if len(invalid):
            raise ValueError(self.complaint(first_block + int(invalid[0]), rows[invalid[0]]))

        flagged = np.unpackbits(rows[:, 1 : self.header_bytes], axis=1, bitorder="little").astype(bool)
        area = rows[:, self.header_bytes :].reshape(len(rows), -1, self.plane_bytes)
        planes = np.zeros((*flagged.shape, self.plane_bytes), np.uint8)
        planes[flagged] = area[self._filled_slots(flagged)]
        words = from_planes(planes, ft.bits)

        base = rows[:, 0].astype(np.int64)
        field_mask = ft.bits.type(ft.exponent_max << ft.mantissa_bits)
        delta = words & field_mask
        shift = (np.maximum(base - 1, 0) << ft.mantissa_bits).astype(ft.bits)[:, None]
        field = (delta + np.where(delta > 0, shift, ft.bits.type(0))) & field_mask
        values = words ^ delta ^ field
        special = base == 0
        if special.any():
            values[special] = self._decode_specials(words[special])
        return values

    def _decode_specials(self, words: np.ndarray) -> np.ndarray:
        ft = self.float_type
        infinity = ft.bits.type(ft.exponent_max << ft.mantissa_bits)
        sign = words & ft.bits.type(1 << (ft.width - 1))
        is_infinity = (words & ft.bits.type(1 << ft.mantissa_bits)) != 0
        nan = np.where(sign > 0, infinity | ft.bits.type(ft.quiet_bit), ft.bits.type(0))
        return np.where(is_infinity, sign | infinity, nan)


def _unpack_flags(flags: np.ndarray, width: int) -> np.ndarray:
    """int64[blocks] -> bool[blocks, width], the flag of plane 0 (the top bit) first."""
    octets = flags.astype(f">u{width // 8}").view(np.uint8).reshape(len(flags), -1)
    return np.unpackbits(octets, axis=1).view(bool)


def _pack_flags(flagged: np.ndarray) -> np.ndarray:
    """The inverse of ``_unpack_flags``."""
    octets = np.packbits(flagged, axis=1)
    return octets.view(f">u{octets.shape[1]}").reshape(-1).astype(np.int64)


def _flags_of_ranks(flags: np.ndarray, ranks: tuple[int, int], width: int) -> list[np.ndarray]:
    """For each rank, the weight of the flag with that many flags above it, or 0; one row a block."""
    flagged = _unpack_flags(flags, width)
    count = np.cumsum(flagged, axis=1, dtype=np.int8)
    return [_pack_flags(flagged & (count == rank + 1)) for rank in ranks]


def _at_and_below(weight: np.ndarray) -> np.ndarray:
    """A mask of the bit with that weight and all below it; 0 for weight 0."""
    return np.where(weight > 0, 2 * weight - 1, 0)
