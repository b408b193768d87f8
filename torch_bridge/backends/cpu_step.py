"""The step format as machine code for the CPU, made by Numba; the bytes are golden's.

What the bits mean is said in ``golden/step.py`` and docs/format.md; this file says how it is done fast. A
block is aligned once, to integers; each step that is tried is then a few vector instructions a value, and
those that are so coarse that every code fits the core are passed over.
"""

# What Numba compiles has numbers of whatever width its operations give them.
# mypy: disable-error-code="assignment, arg-type, operator, type-var"

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from golden import StepFormat
from golden.step import (
    ALIGNED_BITS,
    BLOCK_STRIDE,
    FIELDS,
    GUARD_BITS,
    HEADER_BYTES,
    MASKED,
    MAX_CORE,
    MAX_OFFSET,
    PLACE_STRIDE,
)

from .instructions import bit_length, compiled, store_plane

_TRIES = ALIGNED_BITS - GUARD_BITS + 2
_HEADER_BITS = 8 * HEADER_BYTES

# Where the fields of the header begin, and what they are cut to.
_OFFSET, _CORE, _SHORT, _WIDE = (sum(list(FIELDS.values())[:i]) for i in range(1, 5))
_GRID_MASK, _OFFSET_MASK, _CORE_MASK = ((1 << FIELDS[name]) - 1 for name in ("grid", "offset", "core"))
_COARSEST = ALIGNED_BITS + 2  # bits below the coarse step of the first try


class Layout(NamedTuple):
    """What the kernels have to know of a format; width and N are compiled into them."""

    mantissa_bits: int
    exponent_max: int
    lowest: int
    stochastic: int

    @classmethod
    def of(cls, fmt: StepFormat) -> Layout:
        ft = fmt.float_type
        return cls(ft.mantissa_bits, ft.exponent_max, fmt.lowest_grid, int(fmt.rounding == "stochastic"))


@compiled
def _mixed(x: np.uint32) -> np.uint32:
    x = np.uint32(x + np.uint32(x << np.uint32(12)))
    x = np.uint32(x ^ np.uint32(x >> np.uint32(19)))
    x = np.uint32(x + np.uint32(x << np.uint32(5)))
    x = np.uint32(x ^ np.uint32(x >> np.uint32(9)))
    x = np.uint32(x + np.uint32(x << np.uint32(3)))
    return np.uint32(x ^ np.uint32(x >> np.uint32(16)))


@compiled
def _put(row: np.ndarray, place: int, value: int, width: int) -> int:
    """OR a field of up to 32 bits into a row of zeros; the place behind it. What is outside is dropped."""
    value <<= place & 7
    octet = place >> 3
    while value:
        if octet < len(row):
            row[octet] |= np.uint8(value & 255)
        value >>= 8
        octet += 1
    return place + width


@compiled
def _flush(row: np.ndarray, octet: int, pending: np.uint64, waiting: int) -> tuple[int, np.uint64, int]:
    """Write 32 bits that wait; those behind the row are zeros and are dropped."""
    for i in range(4):
        if octet + i < len(row):
            row[octet + i] = np.uint8(pending >> np.uint64(8 * i))
    return octet + 4, pending >> np.uint64(32), waiting - 32


@compiled
def _farthest(short: int, wide: int) -> int:
    """By how much a code may be beyond the least escape, so that its fields hold it."""
    if short:
        return 1 << wide
    return (1 << wide - 1) - 1 if wide else -1


@compiled
def _take(row: np.ndarray, place: int, width: int) -> int:
    """A field of up to 32 bits; bits behind the row are 0."""
    octet = place >> 3
    value = 0
    for i in range(5):
        if octet + i < len(row):
            value |= np.int64(row[octet + i]) << 8 * i
    return value >> (place & 7) & (1 << width) - 1


@compiled
def _compose(whole: int, exponent: int, mantissa_bits: int, exponent_max: int, width: int) -> int:
    """The float nearest to ``whole * 2**exponent``, as ``golden.step.compose`` has it."""
    last = 1 - (exponent_max >> 1) - mantissa_bits  # the exponent of a subnormal's last bit
    size = abs(whole)
    drop = max(bit_length(size) - 1 - mantissa_bits, last - exponent)
    if drop > 0:
        drop = min(drop, 62)
        kept = size >> drop
        rest, half = size - (kept << drop), np.int64(1) << drop - 1
        kept += 1 if rest > half or (rest == half and kept & 1) else 0
    else:
        kept = size << -drop
    if not kept:
        return 0
    found = min((exponent + drop - last << mantissa_bits) + kept, (exponent_max << mantissa_bits) - 1)
    return found | np.int64(1) << width - 1 if whole < 0 else found


@cache
def kernels(width: int, n: int) -> tuple[Any, Any]:
    """Both directions for blocks of ``n`` words."""
    log_n = n.bit_length() - 1

    @compiled
    def compress(words: np.ndarray, stored: np.ndarray, layout: Layout, first: int, seed: int) -> None:
        """uint[blocks, N] -> uint8[blocks, target]; ``first`` is the number of the first block."""
        mantissa_bits, exponent_max, lowest, stochastic = layout
        blocks, target = stored.shape
        room = 8 * (target - HEADER_BYTES)
        bias = exponent_max >> 1
        infinity, hidden = np.int64(exponent_max) << mantissa_bits, np.int64(1) << mantissa_bits
        aligned, keep, forced = np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.int32)
        noise, codes, best = np.empty(n, np.uint32), np.empty(n, np.int32), np.empty(n, np.int32)
        fine, more, mask = np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n // 8, np.uint8)

        for block in range(blocks):
            row = stored[block]
            row[:] = 0
            largest, masked = np.int64(0), False
            for i in range(n):
                magnitude = np.int64(words[block, i]) & (infinity | hidden - 1)
                masked |= magnitude >= infinity
                largest = max(largest, magnitude if magnitude < infinity else 0)
            top_field = max(largest >> mantissa_bits, 1)
            if largest == 0:
                top = np.int64(lowest - 1)
            elif largest < hidden:
                top = np.int64(bit_length(largest) - bias - mantissa_bits)
            else:
                top = np.int64(top_field - bias)
            to_unit = top - ALIGNED_BITS + bias + mantissa_bits
            up = max(top_field - to_unit, 0)
            total = np.int64(0)
            for i in range(n):
                word = np.int64(words[block, i])
                magnitude = word & (infinity | hidden - 1)
                field = magnitude >> mantissa_bits
                significand = magnitude & hidden - 1 | (hidden if field > 0 else 0)
                value = (significand << up) >> min(to_unit - max(field, 1) + up, 62)
                value = value if magnitude < infinity else 0
                negative = word >> (width - 1) == 1
                value = -value if negative else value
                aligned[i] = value
                total += value
                keep[i] = -1 if magnitude < infinity else 0
                forced[i] = (-1 if negative else 1) if magnitude == infinity else 0
            if stochastic:
                key = _mixed(np.uint32((first + block) * BLOCK_STRIDE + seed & 0xFFFFFFFF))
                for i in range(n):
                    noise[i] = _mixed(np.uint32(key ^ np.uint32(np.uint32(i) * np.uint32(PLACE_STRIDE))))

            room_here = room - n if masked else room
            cores = min(room_here // n, MAX_CORE)
            chosen, core, short, wide, offset = -1, 0, 0, MASKED, 0
            # Codes of step d are at most 2**d, so that a core of d + 2 bits holds all of them.
            start = 0 if masked else max(min(cores - 2, _TRIES - 1), 0)
            if top + 1 - start < lowest:
                start = 0
            for d in range(start, _TRIES):
                if d > 0 and top + 1 - d < lowest:
                    break
                this_offset = 0
                if d == 0:
                    for i in range(n):
                        codes[i] = forced[i]
                else:
                    below = np.int32(_COARSEST - d)
                    shift = _COARSEST - d + log_n
                    mean = (total + (np.int64(1) << shift - 1)) >> shift
                    this_offset = min(max(mean, -MAX_OFFSET), MAX_OFFSET)
                    minus = np.int32(this_offset)
                    half = np.int32(1 << _COARSEST - 1 - d)
                    if stochastic:
                        drop = np.uint32(32 - (_COARSEST - d))
                        for i in range(n):
                            up_by = np.int32(noise[i] >> drop)
                            code = np.int32(np.int32(abs(aligned[i]) + up_by) >> below)
                            code = np.int32(-code) if aligned[i] < 0 else code
                            codes[i] = np.int32(np.int32(code - minus) & keep[i]) | forced[i]
                    else:
                        for i in range(n):
                            code = np.int32(np.int32(abs(aligned[i]) + half) >> below)
                            code = np.int32(-code) if aligned[i] < 0 else code
                            codes[i] = np.int32(np.int32(code - minus) & keep[i]) | forced[i]
                biggest = np.int32(0)
                for i in range(n):
                    biggest = max(biggest, np.int32(abs(codes[i])))

                length, this_core, this_short, this_wide = np.int64(room_here + 1), 0, 0, 0
                for candidate in range(1, cores + 1):
                    least = np.int32(1 << candidate - 1)
                    escapes, exactly = np.int32(0), np.int32(0)
                    for i in range(n):
                        size = np.int32(abs(codes[i]))
                        escapes = np.int32(escapes + np.int32(size >= least))
                        exactly = np.int32(exactly + np.int32(size == least))
                    beyond = np.int64(biggest) - least
                    needed = bit_length(beyond) + 1 if beyond >= 0 else 0
                    bits = MASKED if masked else needed
                    if (
                        needed <= (MASKED if masked else MASKED - 1)
                        and n * candidate + escapes * bits < length
                    ):
                        length, this_core = n * candidate + escapes * bits, candidate
                        this_short, this_wide = 0, bits
                    needed = bit_length(beyond - 1) if beyond >= 1 else 0
                    bits = MASKED if masked else needed
                    all_bits = n * candidate + 2 * escapes + (escapes - exactly) * bits
                    if needed <= (MASKED if masked else MASKED - 1) and all_bits < length:
                        length, this_core, this_short, this_wide = all_bits, candidate, 1, bits
                if this_core == 0:
                    break
                chosen, core, short, wide, offset = d, this_core, this_short, this_wide, this_offset
                for i in range(n):
                    best[i] = codes[i]

            if chosen < 0:
                _put(row, 0, MASKED << _WIDE, _HEADER_BITS)
                place, bits = _HEADER_BITS, 2 if room >= 2 * n else 1
                for i in range(n):
                    kind = 0 if keep[i] else (1 if forced[i] == 0 else (2 if forced[i] > 0 else 3))
                    place = _put(row, place, kind if bits == 2 else min(kind, 1), bits)
                continue

            # Move the first values to the fine grid, as many as there is room for.
            grid = max(top + 1 - chosen, np.int64(lowest))
            below = grid - top + ALIGNED_BITS  # bits; more than in an int32 where all values are tiny
            half, drop = np.int64(1) << below >> 1, max(32 - below, 0)
            for i in range(n):
                up_by = np.int64(noise[i]) >> drop if stochastic else half
                codes[i] = np.int32(np.int64(abs(aligned[i])) + up_by >> below)
            limit = (1 << core - 1) - 1
            largest_inside, minus = np.int32(limit), np.int32(offset)
            is_short, long_bits = np.int32(short), np.int32(wide)
            form_bits, farthest = np.int32(2 * short), np.int32(_farthest(short, wide))
            used = np.int64(n * (core + (1 if masked else 0)))
            for i in range(n):
                finely = np.int32(-codes[i]) if aligned[i] < 0 else codes[i]
                code = np.int32(np.int32(finely >> np.int32(1)) - minus)
                old = np.int32(np.int32(abs(best[i]) - largest_inside) - np.int32(1))
                new = np.int32(np.int32(abs(code) - largest_inside) - np.int32(1))
                old_bits = np.int32(form_bits + (long_bits if old >= is_short else np.int32(0)))
                new_bits = np.int32(form_bits + (long_bits if new >= is_short else np.int32(0)))
                old_bits = old_bits if old >= 0 else np.int32(0)
                new_bits = new_bits if new >= 0 else np.int32(0)
                moves = (new <= farthest) & (keep[i] != 0)
                codes[i] = code if moves else best[i]
                fine[i] = np.int32(finely & np.int32(1)) if moves else np.int32(0)
                more[i] = np.int32(1) + (np.int32(new_bits - old_bits) if moves else np.int32(0))
                used += old_bits
            moved = 0
            for i in range(n):
                used += more[i]
                moved = i + 1 if used <= room else moved
            for i in range(n):
                best[i] = codes[i] if i < moved else best[i]
                fine[i] = fine[i] if i < moved else np.int32(0)

            header = (grid - lowest) | (offset & _OFFSET_MASK) << _OFFSET
            header |= core << _CORE | short << _SHORT | wide << _WIDE
            place = _put(row, 0, header, _HEADER_BITS)
            if masked:
                for i in range(n):
                    place = _put(row, place, 0 if keep[i] else 1, 1)
            escapes = 0
            for i in range(n):
                inside = np.int32(abs(best[i])) <= largest_inside
                codes[i] = np.int32(best[i] + largest_inside) if inside else np.int32(2 * limit + 1)
                escapes += 0 if inside else 1
            if core <= 8:  # eight values take whole bytes, and begin with one, as header and mask do
                octet = place >> 3
                for i in range(0, n, 8):
                    packed = np.uint64(0)
                    for k in range(8):
                        packed |= np.uint64(codes[i + k]) << np.uint64(k * core)
                    for k in range(core):
                        row[octet + k] = np.uint8(packed >> np.uint64(8 * k))
                    octet += core
            else:
                for i in range(n):
                    _put(row, place + i * core, codes[i], core)
            place += n * core
            # From here on fields of any width follow each other: bits wait in ``pending`` for a whole word.
            octet, pending, waiting = place >> 3, np.uint64(0), 0
            if escapes and short:
                for i in range(n):
                    size = np.int64(abs(best[i]))
                    if size > limit:
                        form = (1 if best[i] < 0 else 0) + (2 if size > limit + 1 else 0)
                        pending |= np.uint64(form) << np.uint64(waiting)
                        waiting += 2
                        if waiting >= 32:
                            octet, pending, waiting = _flush(row, octet, pending, waiting)
            if escapes and wide:
                for i in range(n):
                    beyond = np.int64(abs(best[i])) - limit - 1
                    if beyond >= short:
                        field = beyond - 1 if short else beyond << 1 | (1 if best[i] < 0 else 0)
                        pending |= np.uint64(field) << np.uint64(waiting)
                        waiting += wide
                        if waiting >= 32:
                            octet, pending, waiting = _flush(row, octet, pending, waiting)
            store_plane(fine, n, np.int32(1), mask, 0)
            for i in range(n // 8):
                pending |= np.uint64(mask[i]) << np.uint64(waiting)
                waiting += 8
                if waiting >= 32:
                    octet, pending, waiting = _flush(row, octet, pending, waiting)
            while waiting > 0:
                octet, pending, waiting = _flush(row, octet, pending, waiting)

    @compiled
    def decompress(stored: np.ndarray, words: np.ndarray, layout: Layout) -> int:
        """uint8[blocks, target] -> uint[blocks, N]; the first block that no encoder produces, or -1."""
        mantissa_bits, exponent_max, lowest, _ = layout
        blocks, target = stored.shape
        room = 8 * (target - HEADER_BYTES)
        word = words.dtype.type
        sign_bit = np.int64(1) << width - 1
        infinity = np.int64(exponent_max) << mantissa_bits
        nan = infinity | np.int64(1) << mantissa_bits - 1
        bias = exponent_max >> 1
        codes, kinds, specials = np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.int32)
        floats = np.empty(n, np.float32)
        patterns = floats.view(np.int32)
        narrower = 23 - mantissa_bits
        almost_half = np.int32((1 << narrower >> 1) - 1 if narrower else 0)

        for block in range(blocks):
            row = stored[block]
            header = np.int64(row[0]) | np.int64(row[1]) << 8 | np.int64(row[2]) << 16
            offset = header >> _OFFSET & _OFFSET_MASK
            offset -= _OFFSET_MASK + 1 if offset > MAX_OFFSET else 0
            core, short, wide = header >> _CORE & _CORE_MASK, header >> _SHORT & 1, header >> _WIDE
            if core == 0:
                if header != MASKED << _WIDE:
                    return block
                bits = 2 if room >= 2 * n else 1
                for i in range(n):
                    kind = _take(row, _HEADER_BITS + i * bits, bits)
                    words[block, i] = word(0)
                    if kind == 1:
                        words[block, i] = word(nan)
                    elif kind > 1:
                        words[block, i] = word(infinity if kind == 2 else infinity | sign_bit)
                continue
            masked = wide == MASKED
            place = _HEADER_BITS
            for i in range(n):
                kinds[i] = _take(row, place + i, 1) if masked else 0
            place += n if masked else 0
            if place + n * core > 8 * target:
                return block
            limit = (np.int64(1) << core - 1) - 1
            if core <= 8:
                octet = place >> 3
                for i in range(0, n, 8):
                    packed = np.uint64(0)
                    for k in range(core):
                        packed |= np.uint64(row[octet + k]) << np.uint64(8 * k)
                    octet += core
                    for k in range(8):
                        field = packed >> np.uint64(k * core) & np.uint64((1 << core) - 1)
                        codes[i + k] = np.int32(np.int32(field) - np.int32(limit))
            else:
                for i in range(n):
                    codes[i] = _take(row, place + i * core, core) - limit
            escapes = 0
            for i in range(n):
                escapes += 1 if codes[i] > limit else 0
            place += n * core
            if escapes:
                forms, wides = place, place + (2 * escapes if short else 0)
                for i in range(n):
                    if codes[i] > limit:
                        negative, beyond = np.int64(0), np.int64(0)
                        if short:
                            form = _take(row, forms, 2)
                            forms += 2
                            negative = form & 1
                            if form & 2:
                                beyond = _take(row, wides, wide) + 1
                                wides += wide
                        else:
                            field = _take(row, wides, wide)
                            wides += wide
                            negative, beyond = field & 1, field >> 1
                        size = limit + 1 + beyond
                        codes[i] = -size if negative else size
                place = wides
            if place > 8 * target:
                return block
            for i in range(n):
                specials[i] = codes[i]
            for i in range(0, n, 8):
                bits = _take(row, place + i, 8)
                for k in range(8):
                    bit = np.int32(bits >> k & 1)
                    codes[i + k] = np.int32(2 * (codes[i + k] + offset)) + bit
            exponent = (header & _GRID_MASK) + lowest
            # Codes have fewer than 20 bits. Where none can make a subnormal or an infinity, a conversion to
            # float gives the significand, normalised, and its exponent only has to be moved.
            if exponent > -bias and exponent + 20 < bias:
                for i in range(n):
                    floats[i] = np.float32(abs(codes[i]))
                move = np.int32(exponent + bias - 127 << mantissa_bits)
                for i in range(n):
                    bits = patterns[i]
                    odd = np.int32(bits >> np.int32(narrower) & np.int32(1))
                    rounded = np.int32(np.int32(bits + almost_half) + (odd if narrower else np.int32(0)))
                    found = np.int32(np.int32(rounded >> np.int32(narrower)) + move)
                    found = found if codes[i] else np.int32(0)
                    words[block, i] = word(found) | (word(sign_bit) if codes[i] < 0 else word(0))
            else:
                for i in range(n):
                    words[block, i] = word(
                        _compose(np.int64(codes[i]), exponent, mantissa_bits, exponent_max, width)
                    )
            if masked:
                for i in range(n):
                    if kinds[i]:
                        words[block, i] = word(
                            nan
                            if specials[i] == 0
                            else (infinity if specials[i] > 0 else infinity | sign_bit)
                        )
        return -1

    return compress, decompress
