"""The plane format as machine code for the CPU, made by Numba; the bytes are golden's.

What the bits mean is said in ``golden/plane.py`` and docs/format.md; this file says how it is done fast.
A block is worked on alone, in a few loops over its values that the compiler turns into vector
instructions: they have no branches, and every number in them has the width of a word. A plane is then one
comparison of a vector with a bit, and only planes that are stored are ever looked at.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from llvmlite import ir
from numba.extending import intrinsic

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
    slots: int
    partial: int
    nearest: int

    @classmethod
    def of(cls, fmt: PlaneFormat) -> _Layout:
        ft = fmt.float_type
        nearest = int(fmt.rounding == "nearest")
        return cls(ft.mantissa_bits, ft.exponent_max, fmt.slots, fmt.partial, nearest)


def _compiled(function: Callable) -> Any:
    try:
        return numba.njit(function, nogil=True, cache=True)
    except RuntimeError:  # there is no folder at all to keep the machine code in
        return numba.njit(function, nogil=True)


def _instruction(function: Callable) -> Any:
    """What a function of argument types returns: a signature, and what emits the LLVM code for a call."""
    return intrinsic(prefer_literal=True)(function)


@_compiled
def _bit_length(number: int) -> int:
    """Of a number from 0 to 255."""
    number |= number >> 1
    number |= number >> 2
    return _bit_count(number | number >> 4)


@_instruction
def _bit_count(_: Any, number: Any) -> Any:
    kind = numba.types.unliteral(number)
    return kind(kind), lambda context, builder, signature, arguments: builder.ctpop(arguments[0])


@_instruction
def _trailing_zeros(_: Any, number: Any) -> Any:
    """Of a number other than 0."""
    kind, true = numba.types.unliteral(number), ir.IntType(1)(1)
    return kind(kind), lambda context, builder, signature, arguments: builder.cttz(arguments[0], true)


@_compiled
def _code_special(value: int, infinity: int, sign_bit: int, exponent_bit: int) -> int:
    """Two bits a value for a block with NaNs whose target has no room for a third plane."""
    magnitude = value & ~sign_bit
    if magnitude > infinity:
        return sign_bit
    return value & sign_bit | exponent_bit if magnitude == infinity else 0


# A plane is all words of a block compared at once, which processors have instructions for and compilers
# do not find in a loop. So these two are written in LLVM's language, where a comparison gives <N x i1>.


@_instruction
def _store_plane(_: Any, words: Any, n: Any, weight: Any, stored: Any, place: Any) -> Any:
    """``stored[place : place + n / 8] = `` the bits of that weight of ``words[:n]``."""
    signature = numba.void(words, n, words.dtype, stored, place)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        block, weights, octets = _of_block(context, builder, signature, arguments)
        values = builder.load(block, align=_alignment(words))
        plane = builder.icmp_unsigned("!=", builder.and_(values, weights), values.type(None))
        builder.store(builder.bitcast(plane, octets.type.pointee), octets, align=1)
        return context.get_dummy_value()

    return signature, generate


@_instruction
def _load_plane(_: Any, words: Any, n: Any, weight: Any, stored: Any, place: Any) -> Any:
    """Those of ``words[:n]`` whose bit in ``stored[place : place + n / 8]`` is 1 get a bit of that weight."""
    signature = numba.void(words, n, words.dtype, stored, place)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        block, weights, octets = _of_block(context, builder, signature, arguments)
        values = builder.load(block, align=_alignment(words))
        plane = builder.bitcast(builder.load(octets, align=1), ir.VectorType(ir.IntType(1), n.literal_value))
        bits = builder.select(plane, weights, values.type(None))
        builder.store(builder.or_(values, bits), block, align=_alignment(words))
        return context.get_dummy_value()

    return signature, generate


def _of_block(context: Any, builder: Any, signature: Any, arguments: Any) -> tuple[Any, Any, Any]:
    """A pointer to ``words[:n]`` as a vector, n times the weight, a pointer to the plane as an integer."""
    words, n, word, stored, _ = signature.args
    vector = ir.VectorType(ir.IntType(word.bitwidth), n.literal_value)
    block = context.make_array(words)(context, builder, arguments[0]).data
    plane = builder.gep(context.make_array(stored)(context, builder, arguments[3]).data, [arguments[4]])
    first = builder.insert_element(vector(None), arguments[2], ir.IntType(32)(0))
    zeros = ir.VectorType(ir.IntType(32), n.literal_value)(None)
    weights = builder.shuffle_vector(first, vector(None), zeros)
    return (
        builder.bitcast(block, vector.as_pointer()),
        weights,
        builder.bitcast(plane, ir.IntType(n.literal_value).as_pointer()),
    )


def _alignment(array: Any) -> int:
    return array.dtype.bitwidth // 8


# In compiled code numbers narrower than 64 bits widen in every operation, as in C, and a signed and an
# unsigned one of 64 bits make a float. So everything that meets a word is made a word, by ``word(...)``.


@cache
def _kernels(width: int, n: int) -> tuple[Any, Any]:
    """Both directions for blocks of ``n`` words: constants here, so that the compiler unrolls the loops."""
    header, plane_bytes = 1 + width // 8, n // 8

    @_compiled
    def compress(words: np.ndarray, stored: np.ndarray, layout: _Layout) -> int:
        """uint[blocks, N] -> uint8[blocks, target]; always -1."""
        mantissa_bits, exponent_max, slots, partial, nearest = layout
        blocks, target = stored.shape
        word = words.dtype.type
        sign_bit = word(1 << (width - 1))
        infinity = word(exponent_max << mantissa_bits)
        first_normal = word(1 << mantissa_bits)
        mantissa_mask = word(first_normal - 1)
        magnitude_mask = word(infinity | mantissa_mask)
        quiet = word(1 << (mantissa_bits - 1))

        coded = np.empty(n, words.dtype)
        whole_plane = np.empty(plane_bytes, np.uint8)
        octets = stored.reshape(-1)
        early = np.zeros(n, words.dtype)  # all ones where a value is one of the first ``partial``
        early[:partial] = ~word(0)

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
            half, half_early = word(lost), word(lost ^ lost_early)
            mask = word(max(2 * lost - 1, 0))
            mask_early = word(mask ^ word(max(2 * lost_early - 1, 0)))
            step = word(2 * lost * nearest)
            step_early = word(step ^ word(2 * lost_early * nearest))
            zero_planes = word(~(present & mantissa_mask))
            for i in range(n):
                value = words[block, i]
                magnitude = word(value & magnitude_mask)
                value = word(value | quiet) if magnitude > infinity else value
                value = word(value & below_keeps) if magnitude < start else word(value - shift)
                rest = word(value & word(mask ^ word(mask_early & early[i])))
                kept = word(value ^ rest)
                up = word(step ^ word(step_early & early[i]))
                odd = word(1) if kept & up else word(0)
                above_half = word(rest + odd) > word(half ^ word(half_early & early[i]))
                # A carry that leaves the stored planes, for a zero plane or the exponent, saturates.
                stays = word(word(word(kept & mantissa_mask) + up) & zero_planes) == 0
                coded[i] = word(kept + up) if above_half & stays else kept
            if special:
                base, kept_flags = 0, 1 << (width - 1) | 1 << mantissa_bits
                for i in range(n):
                    coded[i] = _code_special(words[block, i], infinity, sign_bit, first_normal)

            # Lay out the planes, the last first: it may be cut off.
            start_of_block = block * target
            end = start_of_block + target
            place = start_of_block + header + _bit_count(kept_flags) * plane_bytes
            for i in range(place, end):
                octets[i] = 0
            header_flags = 0
            while kept_flags:
                weight = kept_flags & -kept_flags
                kept_flags ^= weight
                header_flags |= 1 << (width - 1 - _trailing_zeros(weight))
                place -= plane_bytes
                if place + plane_bytes <= end:
                    _store_plane(coded, n, word(weight), octets, place)
                else:
                    _store_plane(coded, n, word(weight), whole_plane, 0)
                    for i in range(end - place):
                        octets[place + i] = whole_plane[i]
            octets[start_of_block] = base
            for i in range(header - 1):
                octets[start_of_block + 1 + i] = np.uint8(header_flags >> 8 * i)
        return -1

    @_compiled
    def decompress(stored: np.ndarray, words: np.ndarray, layout: _Layout) -> int:
        """uint8[blocks, target] -> uint[blocks, N]; the first block with an invalid header, or -1."""
        mantissa_bits, exponent_max, slots, partial, _ = layout
        blocks, target = stored.shape
        word = words.dtype.type
        sign_bit = word(1 << (width - 1))
        infinity = word(exponent_max << mantissa_bits)
        first_normal = word(1 << mantissa_bits)
        quiet_nan = word(infinity | word(1 << (mantissa_bits - 1)))
        specials_flags = 1 << (width - 1) | 1 << mantissa_bits
        coded = np.empty(n, words.dtype)
        whole_plane = np.zeros(plane_bytes, np.uint8)
        octets = stored.reshape(-1)

        for block in range(blocks):
            place, end = block * target + header, (block + 1) * target
            base = np.int64(octets[place - header])
            remaining: Any = 0
            for i in range(1, header):
                remaining |= np.int64(octets[place - header + i]) << 8 * (i - 1)
            for i in range(n):
                coded[i] = 0
            flags = 0
            while remaining:
                weight = 1 << (width - 1 - _trailing_zeros(remaining))
                remaining &= remaining - 1
                flags |= weight
                if place + plane_bytes <= end:
                    _load_plane(coded, n, word(weight), octets, place)
                else:
                    for i in range(end - place):
                        whole_plane[i] = octets[place + i]
                    _load_plane(coded, n, word(weight), whole_plane, 0)
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

            if special:
                for i in range(n):
                    sign = word(coded[i] & sign_bit)
                    finite_or_nan = quiet_nan if sign else word(0)
                    words[block, i] = word(sign | infinity) if coded[i] & first_normal else finite_or_nan
            else:
                shift = word((base - 1) << mantissa_bits)
                for i in range(n):
                    field = word(coded[i] & infinity)
                    moved = word(word(coded[i] ^ field) | word(word(field + shift) & infinity))
                    words[block, i] = moved if field != word(0) else coded[i]
        return -1

    return compress, decompress
