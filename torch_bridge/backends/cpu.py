"""The plane format as machine code for the CPU, made by Numba; the bytes are golden's.

What the bits mean is said in ``golden/plane.py`` and docs/format.md; this file says how it is done fast.
A block is worked on alone, in a few loops over its values that the compiler turns into vector
instructions: they have no branches, and every number in them has the width of a word. The words are then
cut into octets, so that eight values' octets are an 8x8 bit matrix in one uint64; of the transposed
matrices only the bytes of planes that are stored are ever looked at.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numba
import numpy as np
import torch

from golden import PlaneFormat

from ..dtypes import TORCH_DTYPES
from .base import Backend
from .threads import for_each

# Values a thread works on at a time: enough to make a call cheap, few enough to share out evenly.
_CHUNK = 1 << 16


class CpuBackend(Backend):
    """Runs on ``torch.get_num_threads()`` threads; tensors of other devices go through the CPU.

    The first call for a block's size and a value's width compiles for some seconds. Numba keeps what it
    compiled beside this file or, if that folder is read-only, in the user's cache (``NUMBA_CACHE_DIR``).
    """

    def __init__(self, fmt: PlaneFormat) -> None:
        assert fmt.target is not None
        self.fmt, self._target, self._layout = fmt, fmt.target, _Layout.of(fmt)
        self._compress, self._decompress = _kernels(fmt.planes, fmt.block)

    def compress(self, values: torch.Tensor) -> torch.Tensor:
        block, bits = self.fmt.block, self.fmt.float_type.bits
        here = values.cpu()
        words = _octets(here).view(bits)
        stored = torch.empty((self.fmt.blocks(len(words)), self._target), dtype=torch.uint8)
        rows, whole = stored.numpy(), len(words) // block
        self._for_each(whole, self._compress, words[: whole * block].reshape(whole, block), rows[:whole])
        if whole < len(rows):
            tail = np.zeros((1, block), bits)
            tail[0, : len(words) % block] = words[whole * block :]
            self._compress(tail, rows[whole:], self._layout)
        return stored.to(values.device)

    def decompress(self, stored: torch.Tensor, count: int) -> torch.Tensor:
        blocks = self.fmt.blocks(count)
        if stored.dtype != torch.uint8 or stored.shape != (blocks, self._target):
            raise ValueError(
                f"stored must be uint8 of shape {(blocks, self._target)}, "
                f"not {stored.dtype} of {tuple(stored.shape)}"
            )
        values = torch.empty(blocks * self.fmt.block, dtype=TORCH_DTYPES[self.fmt.dtype])
        words = values.view(torch.uint8).numpy().view(self.fmt.float_type.bits)
        self._for_each(
            blocks, self._decompress, stored.cpu().contiguous().numpy(), words.reshape(blocks, self.fmt.block)
        )
        return values[:count].to(stored.device)

    def _for_each(
        self, blocks: int, kernel: Callable[..., int], source: np.ndarray, sink: np.ndarray
    ) -> None:
        """Run a kernel on chunks of blocks; it returns the first block with an invalid header, or -1."""
        step = _CHUNK // self.fmt.block

        def work(start: int) -> None:
            invalid = kernel(source[start : start + step], sink[start : start + step], self._layout)
            if invalid >= 0:
                header = source[start + invalid, : self.fmt.header_bytes].tobytes().hex(" ")
                raise ValueError(f"block {start + invalid}: no encoder produces the header {header}")

        for_each(work, range(0, blocks, step))


def _octets(tensor: torch.Tensor) -> np.ndarray:
    """A CPU tensor's memory, for as long as the tensor lives.

    ``Tensor.numpy()`` would forbid everyone to resize the storage, which is how FSDP frees memory.
    """
    return np.ctypeslib.as_array((ctypes.c_uint8 * tensor.nbytes).from_address(tensor.data_ptr()))


class _Layout(NamedTuple):
    """What the kernels have to know of a format; width and N are compiled into them."""

    mantissa_bits: int
    exponent_max: int
    header: int
    slots: int
    partial: int
    nearest: int

    @classmethod
    def of(cls, fmt: PlaneFormat) -> _Layout:
        ft = fmt.float_type
        nearest = int(fmt.rounding == "nearest")
        return cls(ft.mantissa_bits, ft.exponent_max, fmt.header_bytes, fmt.slots, fmt.partial, nearest)


def _compiled(function: Callable) -> Any:
    try:
        return numba.njit(function, nogil=True, cache=True)
    except RuntimeError:  # there is no folder at all to keep the machine code in
        return numba.njit(function, nogil=True)


@_compiled
def _bit_length(number: int) -> int:
    """Of a number from 0 to 255."""
    number |= number >> 1
    number |= number >> 2
    return _bit_count(number | number >> 4)


@_compiled
def _bit_count(number: int) -> int:
    count = 0
    while number:
        number &= number - 1
        count += 1
    return count


@_compiled
def _trailing_zeros(number: int) -> int:
    return _bit_count((number & -number) - 1)


@_compiled
def _code_special(value: int, infinity: int, sign_bit: int, exponent_bit: int) -> int:
    """Two bits a value for a block with NaNs whose target has no room for a third plane."""
    magnitude = value & ~sign_bit
    if magnitude > infinity:
        return sign_bit
    return value & sign_bit | exponent_bit if magnitude == infinity else 0


@_compiled
def _transpose_8x8(matrix: np.uint64) -> np.uint64:
    """Transpose the 8x8 bit matrix in a uint64: bit b of octet i changes places with bit i of octet b.

    Swaps of 1x1, 2x2 and 4x4 sub-matrices (Warren, Hacker's Delight, 7-3).
    """
    swap = (matrix >> np.uint64(7) ^ matrix) & np.uint64(0x00AA00AA00AA00AA)
    matrix ^= swap ^ swap << np.uint64(7)
    swap = (matrix >> np.uint64(14) ^ matrix) & np.uint64(0x0000CCCC0000CCCC)
    matrix ^= swap ^ swap << np.uint64(14)
    swap = (matrix >> np.uint64(28) ^ matrix) & np.uint64(0x00000000F0F0F0F0)
    return matrix ^ swap ^ swap << np.uint64(28)


# In compiled code numbers narrower than 64 bits widen in every operation, as in C, and a signed and an
# unsigned one of 64 bits make a float. So everything that meets a word is made a word, by ``word(...)``.


@cache
def _kernels(width: int, n: int) -> tuple[Any, Any]:
    """Both directions for blocks of ``n`` words: constants here, so that the compiler unrolls the loops."""
    octets_per_word, plane_bytes = width // 8, n // 8

    @_compiled
    def compress(words: np.ndarray, stored: np.ndarray, layout: _Layout) -> int:
        """uint[blocks, N] -> uint8[blocks, target]; always -1."""
        mantissa_bits, exponent_max, header, slots, partial, nearest = layout
        blocks, target = stored.shape
        word = words.dtype.type
        sign_bit = word(1 << (width - 1))
        infinity = word(exponent_max << mantissa_bits)
        first_normal = word(1 << mantissa_bits)
        mantissa_mask = word(first_normal - 1)
        magnitude_mask = word(infinity | mantissa_mask)
        quiet = word(1 << (mantissa_bits - 1))

        coded = np.empty(n, words.dtype)
        matrices = np.empty((octets_per_word, plane_bytes), np.uint64)
        octets = matrices.view(np.uint8)

        for block in range(blocks):
            present, largest, smallest = word(0), word(0), magnitude_mask
            for i in range(n):
                magnitude = word(words[block, i] & magnitude_mask)
                present = word(present | words[block, i])
                largest = max(largest, magnitude)
                # Magnitudes with exponent field 0 wrap to the largest, so that the minimum ignores them.
                smallest = min(smallest, word(word(magnitude - first_normal) & magnitude_mask))

            top = np.int64(largest >> mantissa_bits)
            base: Any = np.int64(smallest >> mantissa_bits) + 1 if top > 0 else 1
            exponent_planes = _bit_length(top - base + 1) if top > 0 else 0
            any_nan = largest > infinity
            if any_nan:
                present = word(present | quiet)
            room = slots - np.int64(present >> (width - 1)) - np.int64(any_nan)
            below_keeps = word(sign_bit | magnitude_mask)
            special = False
            if exponent_planes > room:  # flushed: values below the base become zeros
                special = room == 0
                exponent_planes = room
                base = top - (1 << room) + 2
                below_keeps = sign_bit
            # The weights of the planes that no slot is left for: the first that the last values lose,
            # and the next, which is the first that the values before ``partial`` lose.
            flags: Any = np.int64(present & ~infinity) | ((1 << exponent_planes) - 1) << mantissa_bits
            lost, lost_early, remaining = 0, 0, flags
            for _ in range(_bit_count(flags) - slots):
                lost_early, lost = lost, remaining & -remaining
                remaining &= remaining - 1
            first_lost = lost_early if partial > 0 else lost
            kept_flags = flags & ~max(2 * first_lost - 1, 0)

            start, shift = word(base << mantissa_bits), word((base - 1) << mantissa_bits)
            half, half_early = word(lost), word(lost_early)
            mask, mask_early = word(max(2 * lost - 1, 0)), word(max(2 * lost_early - 1, 0))
            step, step_early = word(2 * lost * nearest), word(2 * lost_early * nearest)
            zero_planes = word(~(present & mantissa_mask))
            for i in range(n):
                value = words[block, i]
                magnitude = word(value & magnitude_mask)
                value = word(value | quiet) if magnitude > infinity else value
                value = word(value & below_keeps) if magnitude < start else word(value - shift)
                rest = word(value & (mask_early if i < partial else mask))
                kept = word(value ^ rest)
                up = step_early if i < partial else step
                odd = word(1) if kept & up else word(0)
                above_half = word(rest + odd) > (half_early if i < partial else half)
                # A carry that leaves the stored planes, for a zero plane or the exponent, saturates.
                stays = word(word(word(kept & mantissa_mask) + up) & zero_planes) == 0
                coded[i] = word(kept + up) if above_half & stays else kept
            if special:
                base, kept_flags = 0, 1 << (width - 1) | 1 << mantissa_bits
                for i in range(n):
                    coded[i] = _code_special(words[block, i], infinity, sign_bit, first_normal)

            for k in range(octets_per_word):
                for i in range(n):
                    octets[k, i] = np.uint8(coded[i] >> 8 * k)
            for k in range(octets_per_word):
                for g in range(plane_bytes):
                    matrices[k, g] = _transpose_8x8(matrices[k, g])

            # Lay out the planes, the last first.
            place = header + _bit_count(kept_flags) * plane_bytes
            for i in range(place, target):
                stored[block, i] = 0
            header_flags = 0
            while kept_flags:
                weight = _trailing_zeros(kept_flags)
                kept_flags &= kept_flags - 1
                header_flags |= 1 << (width - 1 - weight)
                place -= plane_bytes
                octet, low = weight >> 3, np.uint64(8 * (weight & 7))
                if place + plane_bytes <= target:
                    for g in range(plane_bytes):
                        stored[block, place + g] = np.uint8(matrices[octet, g] >> low)
                else:
                    for g in range(target - place):
                        stored[block, place + g] = np.uint8(matrices[octet, g] >> low)
            stored[block, 0] = base
            for i in range(octets_per_word):
                stored[block, 1 + i] = np.uint8(header_flags >> 8 * i)
        return -1

    @_compiled
    def decompress(stored: np.ndarray, words: np.ndarray, layout: _Layout) -> int:
        """uint8[blocks, target] -> uint[blocks, N]; the first block with an invalid header, or -1."""
        mantissa_bits, exponent_max, header, slots, partial, _ = layout
        blocks, target = stored.shape
        word = words.dtype.type
        sign_bit = word(1 << (width - 1))
        infinity = word(exponent_max << mantissa_bits)
        first_normal = word(1 << mantissa_bits)
        quiet_nan = word(infinity | word(1 << (mantissa_bits - 1)))
        specials_flags = 1 << (width - 1) | 1 << mantissa_bits
        matrices = np.empty((octets_per_word, n // 8), np.uint64)
        octets = matrices.view(np.uint8)

        for block in range(blocks):
            base = np.int64(stored[block, 0])
            matrices[:] = 0
            flags, place = 0, header
            remaining: Any = 0
            for i in range(octets_per_word):
                remaining |= np.int64(stored[block, 1 + i]) << 8 * i
            while remaining:
                weight = width - 1 - _trailing_zeros(remaining)
                remaining &= remaining - 1
                flags |= 1 << weight
                octet, low = weight >> 3, np.uint64(8 * (weight & 7))
                if place + plane_bytes <= target:
                    for g in range(plane_bytes):
                        matrices[octet, g] |= np.uint64(stored[block, place + g]) << low
                else:
                    for g in range(target - place):
                        matrices[octet, g] |= np.uint64(stored[block, place + g]) << low
                place += plane_bytes

            exponent = flags >> mantissa_bits & exponent_max
            exponent_planes = _bit_length(exponent)
            planes = _bit_count(flags)
            mantissas = _bit_count(flags & ((1 << mantissa_bits) - 1))
            valid = exponent & (exponent + 1) == 0
            if exponent_planes == 0:
                valid &= base == 1
            else:
                valid &= (base >= 1) & (base + (1 << (exponent_planes - 1)) - 1 <= exponent_max)
            valid &= (planes - mantissas <= slots) & (planes <= slots + (partial > 0))
            special = (base == 0) & (slots == 2) & (flags == specials_flags)
            if not (valid | special):
                return block

            for k in range(octets_per_word):
                for g in range(plane_bytes):
                    matrices[k, g] = _transpose_8x8(matrices[k, g])
            for i in range(n):
                value = word(0)
                for k in range(octets_per_word):
                    value = word(value | word(octets[k, i]) << word(8 * k))
                words[block, i] = value
            if special:
                for i in range(n):
                    sign = word(words[block, i] & sign_bit)
                    finite_or_nan = quiet_nan if sign else word(0)
                    words[block, i] = (
                        word(sign | infinity) if words[block, i] & first_normal else finite_or_nan
                    )
            else:
                shift = word((base - 1) << mantissa_bits)
                for i in range(n):
                    field = word(words[block, i] & infinity)
                    moved = word(words[block, i] ^ field | word(field + shift) & infinity)
                    words[block, i] = moved if field else words[block, i]
        return -1

    return compress, decompress
