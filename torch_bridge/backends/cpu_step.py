"""The step format as machine code for the CPU, made by Numba; the bytes are golden's.

What the bits mean is said in ``golden/step.py`` and docs/format.md; this file says how it is done fast. Every
type is worked on as fp32. What looks at all values of a block is a loop without branches, which the compiler
turns into vector instructions, or a comparison of vectors; only values that escape are met one by one.

Which values these are is said by magnitudes alone: one escapes if it is at least ``2**(core - 1) - r / 32``
coarse steps, and floats compare as their bit patterns do. With a fine bit it escapes if it does so without
one at the next finer step from a core of one bit more.
"""

# What Numba compiles has numbers of whatever width its operations give them.
# mypy: disable-error-code="assignment, arg-type, operator, return-value, type-var"

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from golden import StepFormat
from golden.step import (
    BLOCK_STRIDE,
    FIELDS,
    HALF,
    HEADER_BYTES,
    LEADING_BITS,
    MAX_FINER,
    MAX_MOVED,
    MOST,
    NOISE_SHARED,
    POINT_BITS,
    WORD_STRIDE,
)

from .instructions import (
    bit_count,
    bit_length,
    bits_reversed,
    compiled,
    inlined,
    load_octets,
    load_plane,
    store_not_below,
    store_octets,
    store_plane,
    trailing_zeros,
)

# Where the fields of the header begin, and what they are cut to.
_MOVED, _MASKED, _CORE, _WIDE = (sum(list(FIELDS.values())[:i]) for i in range(1, 5))
_GRID_MASK, _MOVED_MASK, _CORE_MASK = ((1 << FIELDS[name]) - 1 for name in ("grid", "moved", "core"))
_HEADER_MASK = (1 << 8 * HEADER_BYTES) - 1

# Of fp32: mantissa bits, exponent field of 1, infinity, least normal number. And what fp16's exponent field
# lacks to be one of fp32.
_MANTISSA, _BIAS = 23, 127
_INFINITY, _NORMAL = 255 << _MANTISSA, 1 << _MANTISSA
_REBIASED = 112 << _MANTISSA

# Above and below all magnitudes, whatever they are compared with.
_NEVER, _NOTHING = (1 << 31) - 1, -100 << _MANTISSA

# Blocks whose exponent is below the first get the other one added to it. In all others subnormals are less
# than any step, and the inverse of a step is a float.
_SMALL, _LIFT = -64, 64

# How many escapes are worked on at a time, and how many rows are copied to be decoded.
_BATCH, _ROWS = 16, 16

# Bytes around a row in memory: before it, as its last 8 are loaded even where it is shorter; and behind it,
# as escapes are written a batch at a time.
_BEFORE, _BEHIND = 8, 48


class Layout(NamedTuple):
    """What the kernels have to know of a format; width and N are compiled into them."""

    mantissa_bits: int
    lowest: int
    stochastic: int

    @classmethod
    def of(cls, fmt: StepFormat) -> Layout:
        return cls(fmt.float_type.mantissa_bits, fmt.lowest_grid, int(fmt.rounding == "stochastic"))


@inlined
def _low_bits(count: int) -> np.uint64:
    """A word whose first bits are set: none below 0, all from 64 on."""
    return ~np.uint64(0) >> np.uint64(64 - min(count, 64)) if count > 0 else np.uint64(0)


@inlined
def _power(exponent: int) -> np.float32:
    """A power of two, which has to be a normal number."""
    return np.int32(exponent + _BIAS << _MANTISSA).view(np.float32)


@inlined
def _batches(count: int) -> int:
    """So many, in whole batches."""
    return -(-count // _BATCH) * _BATCH


# Encoding: what a block is.


@inlined
def _widened(word: int, width: int, mantissa_bits: int) -> np.int32:
    """A word as a pattern of fp32."""
    if width == 32:
        return np.int32(word)
    if mantissa_bits == 7:
        return np.int32(np.int32(word) << np.int32(16))
    magnitude = np.int32(np.int32(word) & np.int32(0x7FFF))
    pattern = np.int32(np.int32(magnitude << np.int32(13)) + np.int32(_REBIASED))
    if magnitude >= np.int32(31 << 10):
        pattern = np.int32(pattern + np.int32(_REBIASED))
    if magnitude < np.int32(1 << 10):
        pattern = np.int32(np.float32(magnitude).view(np.int32) - np.int32(24 << _MANTISSA))
    pattern = pattern if magnitude > np.int32(0) else np.int32(0)
    return np.int32(pattern | np.int32(np.int32(word >> 15) << np.int32(31)))


@inlined
def _read(
    words: np.ndarray,
    block: int,
    n: int,
    width: int,
    mantissa_bits: int,
    values: np.ndarray,
    magnitudes: np.ndarray,
) -> np.int32:
    """A block as fp32, and its magnitudes as patterns; the largest of them."""
    largest = np.int32(0)
    for i in range(n):
        pattern = _widened(words[block, i], width, mantissa_bits)
        values[i] = np.int32(pattern).view(np.float32)
        magnitudes[i] = np.int32(pattern & np.int32(_INFINITY | _NORMAL - 1))
        largest = max(largest, magnitudes[i])
    return largest


@inlined
def _set_aside(n: int, values: np.ndarray, magnitudes: np.ndarray, kinds: np.ndarray) -> tuple[np.int32, int]:
    """Make specials zeros, with their signs: the largest magnitude left, and how many are infinities.

    ``kinds`` becomes 0 for a finite value, 1 for a NaN, 2 and 3 for the infinities.
    """
    largest, infinities = np.int32(0), 0
    for i in range(n):
        kinds[i] = 0
        if magnitudes[i] >= np.int32(_INFINITY):
            kinds[i] = 1 if magnitudes[i] > np.int32(_INFINITY) else (3 if values[i] < 0 else 2)
            infinities += kinds[i] > 1
            values[i] = np.float32(-0.0) if kinds[i] == 3 else np.float32(0)
            magnitudes[i] = 0
        largest = max(largest, magnitudes[i])
    return largest, infinities


@inlined
def _lift(n: int, values: np.ndarray, magnitudes: np.ndarray) -> None:
    """Make the values of a block larger, but for those that count as 0."""
    for i in range(n):
        normal = magnitudes[i] >= np.int32(_NORMAL)
        values[i] = np.float32(values[i] * (np.float32(2.0**_LIFT) if normal else np.float32(0)))
        magnitudes[i] = magnitudes[i] if normal else np.int32(_NOTHING)


# Encoding: the step.


@inlined
def _mixed(x: np.uint32) -> np.uint32:
    x = np.uint32(x + np.uint32(x << np.uint32(12)))
    x = np.uint32(x ^ np.uint32(x >> np.uint32(19)))
    x = np.uint32(x + np.uint32(x << np.uint32(5)))
    x = np.uint32(x ^ np.uint32(x >> np.uint32(9)))
    x = np.uint32(x + np.uint32(x << np.uint32(3)))
    return np.uint32(x ^ np.uint32(x >> np.uint32(16)))


@inlined
def _draw(n: int, block: int, seed: int, added: np.ndarray) -> None:
    """What is added to the values for stochastic rounding, a byte each, eight to a word."""
    key = _mixed(np.uint32(block * BLOCK_STRIDE + seed & 0xFFFFFFFF))
    for i in range(n // NOISE_SHARED):
        x = np.uint64(_mixed(np.uint32(key ^ np.uint32(np.uint32(i) * np.uint32(WORD_STRIDE)))))
        # Each half byte to a byte of its own.
        x = (x | x << np.uint64(16)) & np.uint64(0x0000FFFF0000FFFF)
        x = (x | x << np.uint64(8)) & np.uint64(0x00FF00FF00FF00FF)
        x = (x | x << np.uint64(4)) & np.uint64(0x0F0F0F0F0F0F0F0F)
        added[i] = x << np.uint64(1) | np.uint64(0x0101010101010101)


@inlined
def _compare(n: int, magnitudes: np.ndarray, added: np.ndarray, core: int, above: np.ndarray) -> None:
    """How far magnitudes are above the least that escape if a coarse step is ``2**POINT_BITS``."""
    limit = np.int32(1 << core - 1 + POINT_BITS)
    for i in range(n):
        least = np.float32(np.int32(limit - np.int32(added[i]))).view(np.int32)
        above[i] = np.int32(magnitudes[i] - least)


@inlined
def _least(top: int, finer: int, core: int, stochastic: int) -> np.int32:
    """What escapes at a step: by :func:`_compare`, or by magnitudes themselves for rounding to nearest."""
    if finer == 0:
        return np.int32(_NEVER)
    least = top + 2 - POINT_BITS - finer << _MANTISSA
    if not stochastic:
        least += np.float32((1 << core - 1 + POINT_BITS) - HALF).view(np.int32)
    return np.int32(min(least, _NEVER))


@inlined
def _escapes(n: int, above: np.ndarray, least: np.int32, plane: np.ndarray) -> int:
    """Which values escape, a bit each, and how many do."""
    store_not_below(above, n, least, plane, 0)
    count = 0
    for word in range(len(plane)):
        count += np.int64(bit_count(plane[word]))
    return count


@inlined
def _wide_bits(leading: int, finer: int, core: int, stochastic: int) -> int:
    """Bits of an escape's field, as ``golden.step.wide_bits`` has it."""
    most_added = MOST if stochastic else HALF
    beyond = ((leading << finer) - 1 + most_added >> POINT_BITS) - (1 << core - 1)
    return bit_length(max(beyond, 0)) + 1 if finer > 0 else 1


@inlined
def _choose(
    n: int,
    space: int,
    widest: int,
    largest: int,
    top: int,
    finest: int,
    guess: int,
    infinities: int,
    stochastic: int,
    above_one: np.ndarray,
    above_widest: np.ndarray,
    plane_one: np.ndarray,
    plane: np.ndarray,
) -> tuple[int, int, int, int]:
    """The finest step that fits: finer, core, wide, room left; a core of 0 if none does.

    ``plane`` becomes the values that escape from the core in coarse steps, but for infinities.
    """
    hidden = 1 << LEADING_BITS - 1
    leading = (largest >> _MANTISSA - LEADING_BITS + 1 & hidden - 1) + hidden + 1
    # A finer step never needs fewer bits. That of the last block is a good guess, and the next does not fit.
    finer, upwards = min(guess + 1, finest), True
    while True:
        core, wide = 1, _wide_bits(leading, finer, 1, stochastic)
        count = infinities + _escapes(n, above_one, _least(top, finer, 1, stochastic), plane_one)
        rest = space - n - wide * count
        if widest > 1:
            count = _escapes(n, above_widest, _least(top, finer, widest, stochastic), plane)
            needed = _wide_bits(leading, finer, widest, stochastic)
            left = space - n * widest - needed * count
            if left > rest:
                core, wide, rest = widest, needed, left
        if rest >= 0:
            if finer == finest or not upwards:
                break
            finer += 1
        elif finer > 0:
            finer, upwards = finer - 1, False
        else:
            core, wide = 0, 0
            break
    for word in range(len(plane)):
        plane[word] = plane_one[word] if core == 1 else plane[word]
    return finer, core, wide, rest


@inlined
def _moved(n: int, plane: np.ndarray, plane_fine: np.ndarray, wide: int, rest: int) -> int:
    """How many values have a fine bit, by which of them escape without one and with one."""
    moved = rest
    for word in range(len(plane)):
        saves = plane[word] & ~plane_fine[word]
        while saves and 64 * word + np.int64(trailing_zeros(saves)) <= moved:
            moved += wide
            saves &= saves - np.uint64(1)
        if saves:
            break
    return min(moved, min(n, MAX_MOVED))


# Encoding: the fields.


@inlined
def _round(
    n: int,
    values: np.ndarray,
    added: np.ndarray,
    places: np.ndarray,
    finely: np.float32,
    coarsely: np.float32,
    moved: int,
    core: int,
    codes: np.ndarray,
) -> None:
    """Each value's field and its fine bit, the last one; which is any where there is none.

    Args:
        finely, coarsely: ``2**POINT_BITS`` divided by each of the steps.
    """
    limit, some = (1 << core - 1) - 1, np.int32(moved)
    fine_origin, coarse_origin = np.int32(2 * limit + 1 << POINT_BITS), np.int32(limit << POINT_BITS)
    escape = np.uint32(4 * limit + 3)
    for i in range(n):
        fine = places[i] < some
        whole = np.int32(np.float32(values[i] * (finely if fine else coarsely)))
        # All is rounded down: to a negative number the rest to MOST is added.
        up_by = np.int32(np.int32(added[i] ^ np.int32(whole >> np.int32(31))) & np.int32(MOST))
        code = np.uint32(np.int32(np.int32(whole + up_by) + (fine_origin if fine else coarse_origin)))
        code = np.uint32(code >> (np.uint32(POINT_BITS) if fine else np.uint32(POINT_BITS - 1)))
        codes[i] = np.uint16(min(code, escape))


@inlined
def _gather(
    values: np.ndarray,
    added: np.ndarray,
    plane: np.ndarray,
    plane_fine: np.ndarray,
    moved: int,
    found: np.ndarray,
    found_added: np.ndarray,
) -> int:
    """The values that escape, one after another; how many there are."""
    count = np.uint64(0)
    for word in range(len(plane)):
        fine = _low_bits(moved - 64 * word)
        left = plane[word] & ~fine | plane_fine[word] & fine
        while left:
            i = np.uint64(64 * word) + trailing_zeros(left)
            left &= left - np.uint64(1)
            found[count], found_added[count] = values[i], added[i]
            count += np.uint64(1)
    return np.int64(count)


@inlined
def _widen(
    found: np.ndarray,
    found_added: np.ndarray,
    places: np.ndarray,
    count: int,
    coarsely: np.float32,
    core: int,
    fields: np.ndarray,
) -> None:
    """The fields of escapes, above a bit each, and zeros up to the end of a batch."""
    least, some = np.int32(1 << core - 1), np.int32(count)
    for i in range(_batches(count)):
        whole = np.int32(np.float32(abs(found[i]) * coarsely))
        size = np.int32(np.int32(whole + np.int32(found_added[i])) >> np.int32(POINT_BITS))
        beyond = max(np.int32(size - least), np.int32(0))
        negative = np.int32(np.float32(found[i]).view(np.int32) >> np.int32(31)) & np.int32(1)
        field = np.uint16(np.int32(beyond << np.int32(2)) | np.int32(negative << np.int32(1)))
        fields[i] = field if places[i] < some else np.uint16(0)


@inlined
def _put(quads: np.ndarray, count: int, bits: int, out: np.ndarray, octet: int) -> int:
    """Pack fields of up to 15 bits, above a bit each, four to a quad. Eight of them are whole bytes."""
    field = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    fields = field | field << np.uint64(32)
    one, two, four = np.uint64(bits), np.uint64(2 * bits), np.uint64(4 * bits)
    for i in range(count // 4):
        pairs = quads[i] >> np.uint64(1) & fields | (quads[i] >> np.uint64(17) & fields) << one
        quads[i] = pairs & np.uint64(0xFFFFFFFF) | pairs >> np.uint64(32) << two
    for i in range(0, count // 4, 2):
        store_octets(out, octet, quads[i] | quads[i + 1] << four)
        if bits > 8:
            store_octets(out, octet + 8, quads[i + 1] >> np.uint64(64) - four)
        octet += bits
    return octet


# Decoding.


@inlined
def _take(rows: np.ndarray, octet: int, count: int, bits: int, quads: np.ndarray) -> None:
    """Fields of up to 15 bits as :func:`_put` has them."""
    field, pair = _low_bits(bits), _low_bits(2 * bits)
    fields = field | field << np.uint64(32)
    one, two = np.uint64(bits), np.uint64(2 * bits)
    for i in range(0, count // 4, 2):
        quads[i] = load_octets(rows, octet)
        quads[i + 1] = load_octets(rows, octet + (4 * bits >> 3)) >> np.uint64(4 * bits & 7)
        octet += bits
    for i in range(count // 4):
        pairs = quads[i] & pair | (quads[i] >> two & pair) << np.uint64(32)
        quads[i] = (pairs & fields) << np.uint64(1) | (pairs >> one & fields) << np.uint64(17)


@inlined
def _word_of(
    steps: np.int32,
    scale: np.float32,
    other: np.float32,
    largest: np.float32,
    width: int,
    mantissa_bits: int,
) -> int:
    """So many steps, of ``scale * other`` each, as a word: to nearest, a tie to even, never infinite."""
    value = np.float32(np.float32(np.float32(steps) * scale) * other)
    value = np.float32(min(max(value, np.float32(-largest)), largest))
    pattern = np.float32(value).view(np.uint32)
    if width == 32:
        return pattern
    lost = np.uint32(_MANTISSA - mantissa_bits)
    odd = np.uint32(np.uint32(pattern >> lost) & np.uint32(1))
    almost_half = np.uint32((1 << lost - 1) - 1)
    rounded = np.uint32(np.uint32(np.uint32(pattern + almost_half) + odd) >> lost)
    if mantissa_bits == 7:
        return rounded
    magnitude = np.float32(abs(value))
    normal = np.uint32(np.uint32(rounded & np.uint32(0x3FFFF)) - np.uint32(_REBIASED >> 13))
    subnormal = np.uint32(np.int32(np.float32(magnitude * np.float32(2.0**24))))
    sign = np.uint32(np.uint32(pattern >> np.uint32(16)) & np.uint32(0x8000))
    return np.uint32((normal if magnitude >= np.float32(2.0**-14) else subnormal) | sign)


@cache
def kernels(width: int, n: int) -> tuple[Any, Any]:
    """Both directions for blocks of ``n`` words."""
    plane_words, many = max(n // 64, 1), n + _BATCH

    @compiled
    def compress(words: np.ndarray, stored: np.ndarray, layout: Layout, first: int, seed: int) -> None:
        """uint[blocks, N] -> uint8[blocks, target]; ``first`` is the number of the first block."""
        mantissa_bits, lowest, stochastic = layout
        blocks, target = stored.shape
        room = 8 * (target - HEADER_BYTES)
        bits_alone = 2 if room >= 2 * n else 1
        values, magnitudes, added = np.empty(n, np.float32), np.empty(n, np.int32), np.full(n, HALF, np.uint8)
        above, above_widest = magnitudes, magnitudes
        if stochastic:
            above, above_widest = np.empty(n, np.int32), np.empty(n, np.int32)
        kinds, codes, fields = np.zeros(n, np.uint16), np.empty(n, np.uint16), np.empty(many, np.uint16)
        found, found_added = np.zeros(many, np.float32), np.zeros(many, np.uint8)
        added_words, code_quads = added.view(np.uint64), codes.view(np.uint64)
        field_quads = fields.view(np.uint64)
        places = np.arange(many).astype(np.int32)
        plane, plane_fine = np.zeros(plane_words, np.uint64), np.zeros(plane_words, np.uint64)
        plane_other = np.zeros(plane_words, np.uint64)
        out = np.zeros(_BEFORE + target + _BEHIND, np.uint8)
        begin, end = _BEFORE + HEADER_BYTES, _BEFORE + target
        finer = 0

        largest = _read(words, 0, n, width, mantissa_bits, values, magnitudes) if blocks else np.int32(0)
        for block in range(blocks):
            masked, infinities = largest >= np.int32(_INFINITY), 0
            if masked:
                largest, infinities = _set_aside(n, values, magnitudes, kinds)
            top = max(np.int64(largest >> _MANTISSA) - _BIAS, lowest - 1)
            lifted = _LIFT if top < _SMALL else 0
            if lifted:
                _lift(n, values, magnitudes)
            space = room - n if masked else room
            widest = min(space // n, 1 if masked else MAX_FINER)
            core, wide, rest, moved, count = 0, 0, 0, 0, 0
            if widest > 0:
                if stochastic:
                    _draw(n, first + block, seed, added_words)
                    _compare(n, magnitudes, added, 1, above)
                    _compare(n, magnitudes, added, widest, above_widest)
                finest = min(top + 1 - lowest, MAX_FINER)
                finer, core, wide, rest = _choose(
                    n,
                    space,
                    widest,
                    largest,
                    top,
                    finest,
                    finer,
                    infinities,
                    stochastic,
                    above,
                    above_widest,
                    plane_other,
                    plane,
                )
            exponent = POINT_BITS - 1 - top + finer - lifted
            finely, coarsely = _power(exponent), _power(exponent - 1) if finer else np.float32(0)
            if core:
                if stochastic:
                    _compare(n, magnitudes, added, core + 1, above)
                _escapes(n, above, _least(top, finer + 1, core + 1, stochastic), plane_fine)
                if infinities:
                    store_plane(kinds, n, np.uint16(2), plane_other, 0)
                    for word in range(plane_words):
                        plane[word] |= plane_other[word]
                        plane_fine[word] |= plane_other[word]
                moved = _moved(n, plane, plane_fine, wide, rest)
                _round(n, values, added, places, finely, coarsely, moved, core, codes)
                count = _gather(values, added, plane, plane_fine, moved, found, found_added)
                if infinities:
                    for i in range(n):
                        codes[i] = 3 if kinds[i] > 1 else codes[i]
            else:
                for i in range(n):
                    codes[i] = min(kinds[i], np.uint16((1 << bits_alone) - 1)) << 1

            # It takes a while until what was just written can be loaded in other pieces. So the next block is
            # read before this one's fields are packed.
            largest = _read(words, min(block + 1, blocks - 1), n, width, mantissa_bits, values, magnitudes)
            grid = top + 1 - finer - lowest if core else 0
            header = grid | moved << _MOVED | masked << _MASKED | core << _CORE | wide << _WIDE
            store_octets(out, _BEFORE, np.uint64(header))
            octet = begin
            if masked and core:
                store_not_below(kinds, n, np.uint16(1), out, octet)
                octet += n // 8
            store_plane(codes, n, np.uint16(1), plane, 0)
            _widen(found, found_added, places, count, coarsely, core, fields)
            if core == 1:
                store_plane(codes, n, np.uint16(2), out, octet)
                octet += n // 8
            else:
                octet = _put(code_quads, n, core if core else bits_alone, out, octet)
            for place in range(octet, end, 8):
                store_octets(out, place, np.uint64(0))
            _put(field_quads, _batches(count), wide, out, octet)
            for word in range(plane_words):
                fine = bits_reversed(plane[word] & _low_bits(moved - 64 * word))
                place = end - 8 * (word + 1)
                store_octets(out, place, load_octets(out, place) | fine)
            for i in range(target):
                stored[block, i] = out[_BEFORE + i]

    @compiled
    def decompress(stored: np.ndarray, words: np.ndarray, layout: Layout) -> int:
        """uint8[blocks, target] -> uint[blocks, N]; the first block that no encoder produces, or -1."""
        mantissa_bits, lowest, _ = layout
        blocks, target = stored.shape
        room = 8 * (target - HEADER_BYTES)
        word_type = words.dtype.type
        sign = np.int64(1 << width - 1)
        infinity = sign - (1 << mantissa_bits)
        nan = infinity | np.int64(1 << mantissa_bits - 1)
        largest = np.int32(_widened(word_type(infinity - 1), width, mantissa_bits)).view(np.float32)
        codes, kinds, fields = np.empty(n, np.uint16), np.empty(n, np.uint16), np.empty(many, np.uint16)
        code_quads, kind_quads = codes.view(np.uint64), kinds.view(np.uint64)
        found = np.empty(many, words.dtype)
        plane, last = np.zeros(plane_words, np.uint64), np.zeros(plane_words, np.uint64)
        # Behind a row there are zeros for as many bits as wide fields may have.
        length = _BEFORE + target + 2 * many
        rows = np.zeros(_ROWS * length, np.uint8)

        for block in range(blocks):
            if block % _ROWS == 0:
                for k in range(min(_ROWS, blocks - block)):
                    for i in range(target):
                        rows[k * length + _BEFORE + i] = stored[block + k, i]
            row = block % _ROWS * length + _BEFORE
            header = np.int64(load_octets(rows, row)) & _HEADER_MASK
            moved, core, wide = header >> _MOVED & _MOVED_MASK, header >> _CORE & _CORE_MASK, header >> _WIDE
            masked, octet = header >> _MASKED & 1, row + HEADER_BYTES
            if core == 0:
                if header != 1 << _MASKED:
                    return block
                _take(rows, octet, n, 2 if room >= 2 * n else 1, kind_quads)
                for i in range(n):
                    kind = kinds[i] >> 1
                    special = nan if kind == 1 else (infinity if kind == 2 else infinity | sign)
                    words[block, i] = word_type(special if kind else 0)
                continue
            if moved > n or n * (core + masked) + moved > room:
                return block
            if masked:
                _take(rows, octet, n, 1, kind_quads)
                octet += n // 8

            # The last bit is 1 where there is no fine bit. So what escapes is the largest number.
            _take(rows, octet, n, core, code_quads)
            for word in range(plane_words):
                fine = bits_reversed(load_octets(rows, row + target - 8 * (word + 1)))
                last[word] = fine | ~_low_bits(moved - 64 * word)
            load_plane(codes, n, np.uint16(1), last, 0)
            count = _escapes(n, codes, np.uint16((2 << core) - 1), plane)
            place, mask = np.uint64(8 * octet + n * core), _low_bits(wide)
            for k in range(count):
                field = load_octets(rows, place >> np.uint64(3)) >> (place & np.uint64(7))
                fields[k] = np.uint16(field & mask)
                place += np.uint64(wide)

            # 2**exponent may be none that fp32 has; so in two steps.
            exponent = min((header & _GRID_MASK) + lowest, _BIAS + 1)
            scale, other = _power(exponent >> 1), _power(exponent - (exponent >> 1))
            origin, beyond = np.int32((1 << core) - 1), np.int32(1 << core)
            for i in range(n):
                steps = np.int32(np.int32(codes[i]) - origin)
                words[block, i] = word_type(_word_of(steps, scale, other, largest, width, mantissa_bits))
            for i in range(_batches(count)):
                minus = np.int32(-np.int32(np.int32(fields[i]) & np.int32(1)))
                size = np.int32(np.int32(np.int32(fields[i]) & np.int32(-2)) + beyond)
                steps = np.int32(np.int32(size ^ minus) - minus)
                found[i] = word_type(_word_of(steps, scale, other, largest, width, mantissa_bits))
            number = np.uint64(0)
            for word in range(plane_words):
                left = plane[word]
                while left:
                    words[block, np.uint64(64 * word) + trailing_zeros(left)] = found[number]
                    left &= left - np.uint64(1)
                    number += np.uint64(1)
            if masked:
                for i in range(n):
                    if kinds[i]:
                        found_word = np.int64(words[block, i])
                        words[block, i] = word_type(found_word & sign | infinity if found_word else nan)
        return -1

    return compress, decompress
