"""The step format as machine code for the CPU, made by Numba; the bytes are golden's.

What the bits mean is said in ``golden/step.py`` and docs/format.md; this file says how it is done fast. A
block is aligned once, to integers of 32 bits; everything up to the choice of a step is then a few loops over
them without branches, which the compiler turns into vector instructions.
"""

# What Numba compiles has numbers of whatever width its operations give them.
# mypy: disable-error-code="assignment, arg-type, operator, return-value, type-var"

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

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

from .instructions import bit_length, compiled, store_octets, store_plane, trailing_zeros

_HEADER_BITS = 8 * HEADER_BYTES

# Where the fields of the header begin, and what they are cut to.
_OFFSET, _CORE, _SHORT, _WIDE = (sum(list(FIELDS.values())[:i]) for i in range(1, 5))
_GRID_MASK, _OFFSET_MASK, _CORE_MASK = ((1 << FIELDS[name]) - 1 for name in ("grid", "offset", "core"))
_OFFSET_BITS = FIELDS["offset"]
_COARSEST = ALIGNED_BITS + 2  # bits below the step at which every value is 0
_TOO_LONG = 1 << 40


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


class Fields(NamedTuple):
    """What a block's header says, but for the grid."""

    offset: int
    core: int
    short: int
    wide: int


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
    def align(
        words: np.ndarray, layout: Layout, aligned: np.ndarray, kinds: np.ndarray
    ) -> tuple[int, int, bool]:
        """A block as integers: the exponent of the largest, their sum, and whether there are specials.

        ``kinds`` becomes 0 for a finite value, 1 for a NaN, 2 and 3 for the infinities.
        """
        for i in range(n):
            kinds[i] = 0
        mantissa_bits, exponent_max, lowest, _ = layout
        bias = exponent_max >> 1
        infinity, hidden = np.int32(exponent_max << mantissa_bits), np.int32(1 << mantissa_bits)
        below_hidden, magnitude_mask = np.int32(hidden - 1), np.int32(infinity | hidden - 1)
        largest = np.int32(0)
        for i in range(n):
            largest = max(largest, np.int32(np.int32(words[i]) & magnitude_mask))
        masked = largest >= infinity
        if masked:
            largest = np.int32(0)
            for i in range(n):
                magnitude = np.int32(np.int32(words[i]) & magnitude_mask)
                largest = max(largest, magnitude if magnitude < infinity else np.int32(0))
                negative = words[i] >> (width - 1) == 1
                kinds[i] = 0 if magnitude < infinity else (1 if magnitude > infinity else 2 + negative)
        top_field = max(np.int64(largest) >> mantissa_bits, 1)
        if largest == 0:
            top = np.int64(lowest - 1)
        elif largest < hidden:
            top = np.int64(max(bit_length(largest) - bias - mantissa_bits, lowest - 1))
        else:
            top = np.int64(top_field - bias)
        to_unit = top - ALIGNED_BITS + bias + mantissa_bits
        up_by = max(top_field - to_unit, 0)
        total = np.int32(0)
        up, down, shift = np.int32(up_by & 31), np.int32(to_unit + up_by), np.int32(mantissa_bits & 31)
        for i in range(n):
            word = np.int32(words[i])
            magnitude = np.int32(word & magnitude_mask)
            field = np.int32(magnitude >> shift)
            significand = np.int32(
                np.int32(magnitude & below_hidden) | (hidden if field > 0 else np.int32(0))
            )
            drop = min(np.int32(down - max(field, np.int32(1))), np.int32(31))
            value = np.int32(np.int32(significand << up) >> np.int32(drop & np.int32(31)))
            value = value if magnitude < infinity else np.int32(0)
            value = np.int32(-value) if words[i] >> (width - 1) else value
            aligned[i] = value
            total = np.int32(total + value)
        return top, np.int64(total), masked

    @compiled
    def count(aligned: np.ndarray, noise: np.ndarray, layout: Layout, below: int, whole: np.ndarray) -> None:
        """Values in steps of 2**below."""
        shift, half = np.int32(below & 31), np.int32(1 << (below - 1 & 31))
        drop = np.uint32(32 - below & 31)
        for i in range(n):
            up_by = np.int32(noise[i] >> drop) if layout.stochastic else half
            size = np.int32(np.int32(abs(aligned[i]) + up_by) >> shift)
            whole[i] = np.int32(-size) if aligned[i] < 0 else size

    @compiled
    def seems_to_fit(away: np.ndarray, longest: int, core: int, step: int, room: int, masked: bool) -> bool:
        """By how many values lie so far away that they may be escapes."""
        wide = longest - step + 1
        inside = step + core - 1 if core > 1 else step - 1
        if wide >= MASKED or core < 1:
            return False
        if inside >= longest:
            return True
        least, escapes = np.int32(1 << inside), np.int32(0)
        for i in range(n):
            escapes = np.int32(escapes + np.int32(away[i] >= least))
        return n * core + escapes * (MASKED if masked else wide) <= room

    @compiled
    def likely(
        aligned: np.ndarray,
        total: int,
        away: np.ndarray,
        widest: int,
        finest: int,
        room: int,
        masked: bool,
    ) -> int:
        """The finest step, in bits of the aligned values, at which a block seems to fit."""
        mean, present = np.int32(total + n // 2 >> log_n), np.int32(0)
        for i in range(n):
            away[i] = np.int32(abs(np.int32(aligned[i] - mean)))
            present = np.int32(present | away[i])
        longest = bit_length(present)
        bound = max(finest, bit_length(abs(np.int64(mean))) - _OFFSET_BITS + 1)
        step = _COARSEST
        # A split that does not seem to fit at a step does so at no finer one.
        for core in (widest, widest - 1):
            while step > bound and seems_to_fit(away, longest, core, step - 1, room, masked):
                step -= 1
        if step > finest:
            present = np.int32(0)
            for i in range(n):
                away[i] = np.int32(abs(aligned[i]))
                present = np.int32(present | away[i])
            longest = bit_length(present)
            while step > finest and seems_to_fit(away, longest, min(widest, 1), step - 1, room, masked):
                step -= 1
        return step

    @compiled
    def measure(codes: np.ndarray, core: int, masked: bool) -> tuple[int, int, int]:
        """The sections' bits, the mask not counted, without a short form or with one; and ``wide``."""
        least = np.int32(1 << (core - 1 & 31))
        escapes, exactly, largest = np.int32(0), np.int32(0), np.int32(0)
        for i in range(n):
            size = np.int32(abs(codes[i]))
            escapes = np.int32(escapes + np.int32(size >= least))
            exactly = np.int32(exactly + np.int32(size == least))
            largest = max(largest, size)
        beyond = np.int64(largest) - least
        most = MASKED if masked else MASKED - 1
        length, short, wide = _TOO_LONG, 0, 0
        needed = bit_length(beyond) + 1 if beyond >= 0 else 0
        bits = MASKED if masked else needed
        if needed <= most:
            length, wide = n * core + escapes * bits, bits
        needed = bit_length(beyond - 1) if beyond >= 1 else 0
        bits = MASKED if masked else needed
        other = n * core + 2 * escapes + (escapes - exactly) * bits
        if needed <= most and other < length:
            length, short, wide = other, 1, bits
        return length, short, wide

    @compiled
    def encode(whole: np.ndarray, offset: int, kinds: np.ndarray, masked: bool, codes: np.ndarray) -> None:
        minus = np.int32(offset)
        for i in range(n):
            codes[i] = np.int32(whole[i] - minus)
        if masked:
            for i in range(n):
                if kinds[i]:
                    codes[i] = 0 if kinds[i] == 1 else (1 if kinds[i] == 2 else -1)

    @compiled
    def refine(
        codes: np.ndarray,
        whole: np.ndarray,
        fine: np.ndarray,
        kinds: np.ndarray,
        more: np.ndarray,
        fields: Fields,
        used: int,
        room: int,
    ) -> None:
        """Move the first values to the fine grid, in which ``whole`` counts, as many as there is room for.

        Specials stay. ``more`` is overwritten.
        """
        limit, minus = np.int32((1 << fields.core - 1) - 1), np.int32(fields.offset)
        is_wide, farthest = np.int32(limit + fields.short), np.int32(limit + 1)
        farthest = np.int32(farthest + _farthest(fields.short, fields.wide))
        form_bits, wide_bits = np.int32(2 * fields.short), np.int32(fields.wide)
        most = np.int32(0)
        for i in range(n):
            finely, code = whole[i], codes[i]
            moved = np.int32(np.int32(finely >> np.int32(1)) - minus)
            old, new = np.int32(abs(code)), np.int32(abs(moved))
            moves = (new <= farthest) & (kinds[i] == 0)
            moved = moved if moves else code
            new = new if moves else old
            bits = np.int32(form_bits if new > limit else np.int32(0)) + np.int32(1)
            bits = np.int32(bits + (wide_bits if new > is_wide else np.int32(0)))
            bits = np.int32(bits - (form_bits if old > limit else np.int32(0)))
            more[i] = np.int32(bits - (wide_bits if old > is_wide else np.int32(0)))
            most = np.int32(most + more[i])
            fine[i] = np.int32(finely & np.int32(1)) if moves else np.int32(0)
            whole[i] = moved
        refined, used = n, used + most
        while used > room:
            refined -= 1
            used -= more[refined]
        for i in range(n):
            codes[i] = whole[i] if i < refined else codes[i]
            fine[i] = fine[i] if i < refined else np.int32(0)

    @compiled
    def put_core(codes: np.ndarray, core: int, spare: np.ndarray, out: np.ndarray, octet: int) -> int:
        """Every value's field: eight of them are whole bytes."""
        pairs = spare.view(np.uint64)
        limit = np.int32((1 << core - 1) - 1)
        for i in range(n):
            inside = np.int32(abs(codes[i])) <= limit
            spare[i] = np.int32(codes[i] + limit) if inside else np.int32(2 * limit + 1)
        gap, mask = np.uint64(32 - core), np.uint64((1 << 2 * core) - 1)
        for i in range(n // 2):
            pairs[i] = (pairs[i] | pairs[i] >> gap) & mask
        two, four, rest = np.uint64(2 * core), np.uint64(4 * core), np.uint64(64 - 4 * core)
        for i in range(0, n // 2, 4):
            low, high = pairs[i] | pairs[i + 1] << two, pairs[i + 2] | pairs[i + 3] << two
            store_octets(out, octet, low | high << four)
            if core > 8:
                store_octets(out, octet + 8, high >> rest)
            octet += core
        return octet

    @compiled
    def put_rest(
        codes: np.ndarray,
        fine: np.ndarray,
        fields: Fields,
        spare: np.ndarray,
        plane: np.ndarray,
        out: np.ndarray,
        octet: int,
    ) -> int:
        """What lies behind the core: forms, wide fields, fine bits. Bits wait until they are whole bytes."""
        some = plane.view(np.uint64)
        pending, waiting = np.uint64(0), 0
        for forms in range(fields.short, -1, -1):
            outside = np.int32((1 << fields.core - 1) + fields.short - forms)
            bits = 2 if forms else fields.wide
            for i in range(n):
                spare[i] = np.int32(np.int32(abs(codes[i])) >= outside)
            store_plane(spare, n, np.int32(1), plane, 0)
            for word in range(len(some)):
                left = some[word]
                while left:
                    code = np.int64(codes[64 * word + np.int64(trailing_zeros(left))])
                    left &= left - np.uint64(1)
                    beyond, negative = abs(code) - outside, code >> 63 & 1
                    short_form = negative | (2 if beyond else 0)
                    long_form = beyond if fields.short else beyond << 1 | negative
                    pending |= np.uint64(short_form if forms else long_form) << np.uint64(waiting)
                    waiting += bits
                    store_octets(out, octet, pending)
                    octet, pending = octet + (waiting >> 3), pending >> np.uint64(waiting & 24)
                    waiting &= 7
        store_plane(fine, n, np.int32(1), plane, 0)
        for word in range(len(some)):
            store_octets(out, octet, pending | some[word] << np.uint64(waiting))
            octet, pending = octet + 8, some[word] >> np.uint64(63 - waiting) >> np.uint64(1)
        store_octets(out, octet, pending)
        return octet + 8

    @compiled
    def compress(words: np.ndarray, stored: np.ndarray, layout: Layout, first: int, seed: int) -> None:
        """uint[blocks, N] -> uint8[blocks, target]; ``first`` is the number of the first block."""
        blocks, target = stored.shape
        lowest = layout.lowest
        all_room = 8 * (target - HEADER_BYTES)
        aligned, kinds, noise = np.empty(n, np.int32), np.empty(n, np.int32), np.zeros(n, np.uint32)
        whole, codes, fine = np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.int32)
        plane = np.zeros(max(n // 8, 8), np.uint8)
        out = np.empty(target + n // 8 + 24, np.uint8)  # a row, and what is written behind it

        for block in range(blocks):
            top, total, masked = align(words[block], layout, aligned, kinds)
            if layout.stochastic:
                key = _mixed(np.uint32((first + block) * BLOCK_STRIDE + seed & 0xFFFFFFFF))
                for i in range(n):
                    noise[i] = _mixed(np.uint32(key ^ np.uint32(np.uint32(i) * np.uint32(PLACE_STRIDE))))
            room = all_room - n if masked else all_room
            widest = min(room // n, MAX_CORE)
            finest = max(_COARSEST - MAX_FINER, lowest - top + ALIGNED_BITS + 1)
            guess = likely(aligned, total, whole, widest, finest, room, masked)
            length, step, fields = room + 1, _COARSEST, Fields(0, 0, 0, MASKED)
            for tried in (guess - 1, guess, guess + 1, _COARSEST):
                if not finest <= tried <= _COARSEST or widest < 1:
                    continue
                mean = np.int64(0)
                if tried == _COARSEST:
                    whole[:] = 0
                else:
                    mean = total + (1 << tried + log_n - 1) >> tried + log_n
                    mean = min(max(mean, -MAX_OFFSET), MAX_OFFSET)
                    count(aligned, noise, layout, tried, whole)
                for split in range(3):
                    core, offset = (widest - 2 + split, mean) if split else (1, 0)
                    if split < 2:
                        encode(whole, offset, kinds, masked, codes)
                    if core < 1:
                        continue
                    bits, short, wide = measure(codes, core, masked)
                    if bits < length:
                        length, step, fields = bits, tried, Fields(offset, core, short, wide)
                if length <= room:
                    break

            if length > room:
                out[:] = 0
                kind_bits = 2 if all_room >= 2 * n else 1
                place = _put(out, 0, MASKED << _WIDE, _HEADER_BITS)
                for i in range(n):
                    place = _put(out, place, min(kinds[i], (1 << kind_bits) - 1), kind_bits)
                for i in range(target):
                    stored[block, i] = out[i]
                continue

            encode(whole, fields.offset, kinds, masked, codes)
            grid = top - ALIGNED_BITS - 1 + step
            count(aligned, noise, layout, step - 1, whole)
            refine(codes, whole, fine, kinds, aligned, fields, length, room)

            header = (grid - lowest) | (fields.offset & _OFFSET_MASK) << _OFFSET
            header |= fields.core << _CORE | fields.short << _SHORT | fields.wide << _WIDE
            store_octets(out, 0, np.uint64(header))
            octet = HEADER_BYTES
            if masked:
                for i in range(n):
                    whole[i] = min(kinds[i], 1)
                store_plane(whole, n, np.int32(1), out, octet)
                octet += n // 8
            octet = put_core(codes, fields.core, whole, out, octet)
            octet = put_rest(codes, fine, fields, whole, plane, out, octet)
            for i in range(target):
                stored[block, i] = out[i] if i < octet else 0

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
