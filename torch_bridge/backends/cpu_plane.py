"""The bit-plane format as machine code for the CPU, made by Numba; the bytes are golden's.

What the bits mean is said in ``golden/plane.py`` and docs/format.md; this file says how it is done fast.
A block is worked on alone, in a few loops over its values that the compiler turns into vector
instructions: they have no branches, and every number in them has the width of a word. A plane is then one
comparison of a vector with a bit, and only planes that are stored are ever looked at.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from golden import PlaneFormat

from .instructions import bit_count, bit_length, compiled, load_plane, store_plane, trailing_zeros


class Layout(NamedTuple):
    """What the kernels have to know of a format; width and N are compiled into them."""

    mantissa_bits: int
    exponent_max: int
    slots: int
    partial: int
    nearest: int

    @classmethod
    def of(cls, fmt: PlaneFormat) -> Layout:
        ft = fmt.float_type
        nearest = int(fmt.rounding == "nearest")
        return cls(ft.mantissa_bits, ft.exponent_max, fmt.slots, fmt.partial, nearest)


@compiled
def _code_special(value: int, infinity: int, sign_bit: int, exponent_bit: int) -> int:
    """Two bits a value for a block with NaNs whose target has no room for a third plane."""
    magnitude = value & ~sign_bit
    if magnitude > infinity:
        return sign_bit
    return value & sign_bit | exponent_bit if magnitude == infinity else 0


# In compiled code numbers narrower than 64 bits widen in every operation, as in C, and a signed and an
# unsigned one of 64 bits make a float. So everything that meets a word is made a word, by ``word(...)``.


@cache
def kernels(width: int, n: int) -> tuple[Any, Any]:
    """Both directions for blocks of ``n`` words: constants here, so that the compiler unrolls the loops."""
    header, plane_bytes = 1 + width // 8, n // 8

    @compiled
    def compress(words: np.ndarray, stored: np.ndarray, layout: Layout, first: int) -> None:
        """uint[blocks, N] -> uint8[blocks, target]."""
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
            exponent_planes = bit_length(top - base + 1) if top > 0 else 0
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
            for _ in range(bit_count(flags) - slots):
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
            place = start_of_block + header + bit_count(kept_flags) * plane_bytes
            for i in range(place, end):
                octets[i] = 0
            header_flags = 0
            while kept_flags:
                weight = kept_flags & -kept_flags
                kept_flags ^= weight
                header_flags |= 1 << (width - 1 - trailing_zeros(weight))
                place -= plane_bytes
                if place + plane_bytes <= end:
                    store_plane(coded, n, word(weight), octets, place)
                else:
                    store_plane(coded, n, word(weight), whole_plane, 0)
                    for i in range(end - place):
                        octets[place + i] = whole_plane[i]
            octets[start_of_block] = base
            for i in range(header - 1):
                octets[start_of_block + 1 + i] = np.uint8(header_flags >> 8 * i)

    @compiled
    def decompress(stored: np.ndarray, words: np.ndarray, layout: Layout, first: int) -> int:
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
                weight = 1 << (width - 1 - trailing_zeros(remaining))
                remaining &= remaining - 1
                flags |= weight
                if place + plane_bytes <= end:
                    load_plane(coded, n, word(weight), octets, place)
                else:
                    for i in range(end - place):
                        whole_plane[i] = octets[place + i]
                    load_plane(coded, n, word(weight), whole_plane, 0)
                place += plane_bytes

            exponent = flags >> mantissa_bits & exponent_max
            exponent_planes = bit_length(exponent)
            planes = bit_count(flags)
            mantissas = bit_count(flags & ((1 << mantissa_bits) - 1))
            valid = exponent & (exponent + 1) == 0
            if exponent_planes == 0:
                valid &= base == 1
            else:
                valid &= (base >= 1) & (base + (1 << (exponent_planes - 1)) - 1 <= exponent_max)
            valid &= (planes - mantissas <= slots) & (planes <= slots + (partial > 0))
            special = (base == 0) & (slots == 2) & (flags == specials_flags)
            cleared = (base == 0) & (flags == 0)
            if not (valid | special | cleared):
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
