"""The step format as machine code for the CPU, made by Numba; the bytes are golden's.

What the bits mean is said in ``golden/step.py`` and docs/format.md; this file says how it is done fast. Every
type is worked on as fp32. What looks at all values of a block is a loop without branches or a comparison of
a vector, and only the few values that escape are met one by one.

Which of them do at some step is said by their magnitudes alone: a value escapes if it is at least
``2**(core - 1) - r / 32`` coarse steps, and bit patterns compare as magnitudes do. With a fine bit it escapes if
it would do so without one at the next finer step, from a core of one bit more.
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

_HEADER_BITS = 8 * HEADER_BYTES

# Where the fields of the header begin, and what they are cut to.
_MOVED, _MASKED, _CORE, _WIDE = (sum(list(FIELDS.values())[:i]) for i in range(1, 5))
_GRID_MASK, _MOVED_MASK, _CORE_MASK = ((1 << FIELDS[name]) - 1 for name in ("grid", "moved", "core"))

# Of fp32: bits of a mantissa, exponent field of 1, infinity, least normal number.
_MANTISSA, _BIAS = 23, 127
_INFINITY, _NORMAL = 255 << _MANTISSA, 1 << _MANTISSA
_REBIASED = 112 << _MANTISSA  # from fp16's exponent field to that of fp32

_NEVER, _NOTHING = (1 << 31) - 1, -100 << _MANTISSA  # above and below all magnitudes, whatever is compared
_SMALL, _LIFT = -64, 64  # the exponents of blocks that are lifted, and by how much

_TOGETHER = 16  # how many escapes are worked on at a time
_ROWS = 16  # how many rows are decoded from a copy, so that what lies around each is known
# Bytes before a row, as its last 8 are looked at even where it is shorter, and what is written behind it.
_FRONT, _BEHIND = 8, 32


class Layout(NamedTuple):
    """What the kernels have to know of a format; width and N are compiled into them."""

    mantissa_bits: int
    lowest: int
    stochastic: int

    @classmethod
    def of(cls, fmt: StepFormat) -> Layout:
        return cls(fmt.float_type.mantissa_bits, fmt.lowest_grid, int(fmt.rounding == "stochastic"))


@inlined
def _mixed(x: np.uint32) -> np.uint32:
    x = np.uint32(x + np.uint32(x << np.uint32(12)))
    x = np.uint32(x ^ np.uint32(x >> np.uint32(19)))
    x = np.uint32(x + np.uint32(x << np.uint32(5)))
    x = np.uint32(x ^ np.uint32(x >> np.uint32(9)))
    x = np.uint32(x + np.uint32(x << np.uint32(3)))
    return np.uint32(x ^ np.uint32(x >> np.uint32(16)))


@inlined
def _low_bits(count: int) -> np.uint64:
    """A word whose first bits are set: none below 0, all from 64 on."""
    return ~np.uint64(0) >> np.uint64(64 - min(count, 64)) if count > 0 else np.uint64(0)


@inlined
def _power(exponent: int) -> np.float32:
    """A power of two that fp32 has."""
    return np.int32(exponent + _BIAS << _MANTISSA).view(np.float32)


@inlined
def _whole_parts(count: int) -> int:
    return -(-count // _TOGETHER) * _TOGETHER


@inlined
def _wide_bits(leading: int, finer: int, core: int, stochastic: int) -> int:
    """Bits of an escape's field, as ``golden.step.wide_bits`` has it."""
    most_added = MOST if stochastic else HALF
    beyond = ((leading << finer) - 1 + most_added >> POINT_BITS) - (1 << core - 1)
    return bit_length(max(beyond, 0)) + 1 if finer > 0 else 1


@inlined
def _least(top: int, finer: int, core: int, stochastic: int) -> np.int32:
    """What ``compare`` says of the least values that escape; or magnitudes do, for rounding to nearest."""
    if finer == 0:
        return np.int32(_NEVER)
    least = top + 2 - POINT_BITS - finer << _MANTISSA
    if not stochastic:
        least += np.float32((1 << core - 1 + POINT_BITS) - HALF).view(np.int32)
    return np.int32(min(least, _NEVER))


@cache
def kernels(width: int, n: int) -> tuple[Any, Any]:
    """Both directions for blocks of ``n`` words."""
    plane_words = max(n // 64, 1)

    # Encoding.

    @inlined
    def widened(word: int, mantissa_bits: int) -> np.int32:
        """A word as a pattern of fp32."""
        if width == 32:
            return np.int32(word)
        if mantissa_bits == 7:
            return np.int32(np.int32(word) << np.int32(16))
        bits = np.int32(np.int32(word) & np.int32(0x7FFF))
        pattern = np.int32(np.int32(bits << np.int32(13)) + np.int32(_REBIASED))
        subnormal = np.int32(np.float32(bits).view(np.int32) - np.int32(24 << _MANTISSA))
        pattern = np.int32(pattern + np.int32(_REBIASED)) if bits >= np.int32(31 << 10) else pattern
        pattern = subnormal if bits < np.int32(1 << 10) else pattern
        pattern = pattern if bits > np.int32(0) else np.int32(0)
        return np.int32(pattern | np.int32(np.int32(word >> 15) << np.int32(31)))

    @inlined
    def read(
        words: np.ndarray, block: int, mantissa_bits: int, values: np.ndarray, magnitudes: np.ndarray
    ) -> np.int32:
        """A block as fp32, and its magnitudes as bit patterns; the largest of them."""
        largest = np.int32(0)
        for i in range(n):
            pattern = widened(words[block, i], mantissa_bits)
            values[i] = np.int32(pattern).view(np.float32)
            magnitudes[i] = np.int32(pattern & np.int32(_INFINITY | _NORMAL - 1))
            largest = max(largest, magnitudes[i])
        return largest

    @inlined
    def set_aside(values: np.ndarray, magnitudes: np.ndarray, kinds: np.ndarray) -> tuple[np.int32, int]:
        """Make specials zeros: the largest magnitude left, and how many of them are infinities.

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
    def lift(values: np.ndarray, magnitudes: np.ndarray) -> None:
        """Make small values larger, so that any step is a normal number, and zero what counts as that."""
        for i in range(n):
            counts = magnitudes[i] >= np.int32(_NORMAL)
            values[i] = np.float32(values[i] * (np.float32(2.0**_LIFT) if counts else np.float32(0)))
            magnitudes[i] = magnitudes[i] if counts else np.int32(_NOTHING)

    @inlined
    def draw(key: np.uint32, added: np.ndarray) -> None:
        """What is added to values for stochastic rounding, eight bytes a word: random bits, and half of one."""
        for i in range(n // NOISE_SHARED):
            share = np.uint32(np.uint32(i) * np.uint32(WORD_STRIDE))
            x = np.uint64(_mixed(np.uint32(key ^ share)))
            # Each half byte to a byte of its own.
            x = (x | x << np.uint64(16)) & np.uint64(0x0000FFFF0000FFFF)
            x = (x | x << np.uint64(8)) & np.uint64(0x00FF00FF00FF00FF)
            x = (x | x << np.uint64(4)) & np.uint64(0x0F0F0F0F0F0F0F0F)
            added[i] = x << np.uint64(1) | np.uint64(0x0101010101010101)

    @inlined
    def compare(magnitudes: np.ndarray, added: np.ndarray, core: int, above: np.ndarray) -> None:
        """How far values are above those that escape if 32 coarse steps are 1, as a difference of patterns."""
        all_steps = np.int32(1 << core - 1 + POINT_BITS)
        for i in range(n):
            least = np.float32(np.int32(all_steps - np.int32(added[i]))).view(np.int32)
            above[i] = np.int32(magnitudes[i] - least)

    @inlined
    def escapes(above: np.ndarray, least: np.int32, plane: np.ndarray) -> int:
        """Which values escape, as bits, and how many do."""
        store_not_below(above, n, least, plane, 0)
        count = 0
        for word in range(plane_words):
            count += np.int64(bit_count(plane[word]))
        return count

    @inlined
    def choose(
        above_one: np.ndarray,
        above_widest: np.ndarray,
        largest: int,
        top: int,
        finest: int,
        guess: int,
        space: int,
        widest: int,
        infinities: int,
        stochastic: int,
        plane_one: np.ndarray,
        plane_widest: np.ndarray,
    ) -> tuple[int, int, int, int]:
        """The finest step that fits, its core, wide and the room left; a core of 0 if none fits.

        The planes become those of the values that escape from either core.
        """
        leading = (largest >> _MANTISSA - LEADING_BITS + 1 & (1 << LEADING_BITS - 1) - 1) + 1 + (1 << LEADING_BITS - 1)
        # A finer step never needs fewer bits, and the one above the guess most often does not fit.
        finer, upwards = min(guess + 1, finest), True
        while True:
            count = escapes(above_one, _least(top, finer, 1, stochastic), plane_one) + infinities
            core, wide = 1, _wide_bits(leading, finer, 1, stochastic)
            rest = space - n - wide * count
            if widest > 1:
                count = escapes(above_widest, _least(top, finer, widest, stochastic), plane_widest)
                needed = _wide_bits(leading, finer, widest, stochastic)
                left = space - n * widest - needed * count
                if left > rest:
                    core, wide, rest = widest, needed, left
            if rest >= 0 and (finer == finest or not upwards):
                return finer, core, wide, rest
            if rest >= 0:
                finer += 1
            elif finer > 0:
                finer, upwards = finer - 1, False
            else:
                return 0, 0, 0, 0

    @inlined
    def moved_values(plane: np.ndarray, plane_fine: np.ndarray, wide: int, rest: int) -> int:
        """How many values have a fine bit."""
        moved = rest
        for word in range(plane_words):
            saves = plane[word] & ~plane_fine[word]
            while saves and 64 * word + np.int64(trailing_zeros(saves)) <= moved:
                moved += wide
                saves &= saves - np.uint64(1)
            if saves:
                break
        return min(moved, min(n, MAX_MOVED))

    @inlined
    def round_all(
        values: np.ndarray,
        added: np.ndarray,
        places: np.ndarray,
        finely: np.float32,
        coarsely: np.float32,
        moved: int,
        core: int,
        codes: np.ndarray,
    ) -> None:
        """Core and fine bit in one field; behind the fine bits, any last bit."""
        limit, some = (1 << core - 1) - 1, np.int32(moved)
        fine_origin, coarse_origin = np.int32(2 * limit + 1 << POINT_BITS), np.int32(limit << POINT_BITS)
        escape = np.uint32(4 * limit + 3)
        for i in range(n):
            fine = places[i] < some
            whole = np.int32(np.float32(values[i] * (finely if fine else coarsely)))
            # Rounded down, a negative number gets what is left to MOST.
            up_by = np.int32(np.int32(added[i] ^ np.int32(whole >> np.int32(31))) & np.int32(MOST))
            code = np.uint32(np.int32(np.int32(whole + up_by) + (fine_origin if fine else coarse_origin)))
            code = np.uint32(code >> (np.uint32(POINT_BITS) if fine else np.uint32(POINT_BITS - 1)))
            codes[i] = np.uint16(min(code, escape))

    @inlined
    def escape_fields(
        found: np.ndarray,
        found_added: np.ndarray,
        places: np.ndarray,
        count: int,
        coarsely: np.float32,
        core: int,
        fields: np.ndarray,
    ) -> None:
        """What escapes' fields say, above a bit each, and zeros behind them."""
        least, number = np.int32(1 << core - 1), np.int32(count)
        for i in range(_whole_parts(count)):
            whole = np.int32(np.float32(abs(found[i]) * coarsely))
            size = np.int32(np.int32(whole + np.int32(found_added[i])) >> np.int32(POINT_BITS))
            beyond = max(np.int32(size - least), np.int32(0))
            sign = np.int32(np.float32(found[i]).view(np.int32) >> np.int32(31)) & np.int32(1)
            field = np.uint16(np.int32(beyond << np.int32(2)) | np.int32(sign << np.int32(1)))
            fields[i] = field if places[i] < number else np.uint16(0)

    @inlined
    def put(quads: np.ndarray, count: int, bits: int, out: np.ndarray, octet: int) -> int:
        """Fields of up to 15 bits, of which a quad has four above a bit each: eight of them are whole bytes."""
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

    @compiled
    def compress(words: np.ndarray, stored: np.ndarray, layout: Layout, first: int, seed: int) -> None:
        """uint[blocks, N] -> uint8[blocks, target]; ``first`` is the number of the first block."""
        mantissa_bits, lowest, stochastic = layout
        blocks, target = stored.shape
        room = 8 * (target - HEADER_BYTES)
        many = n + _TOGETHER
        values, magnitudes, added = np.empty(n, np.float32), np.empty(n, np.int32), np.full(n, HALF, np.uint8)
        above_one, above_widest, above_fine = magnitudes, magnitudes, magnitudes
        if stochastic:
            above_one, above_widest, above_fine = np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.int32)
        kinds, codes, fields = np.zeros(n, np.uint16), np.empty(n, np.uint16), np.empty(many, np.uint16)
        found, found_added = np.zeros(many, np.float32), np.zeros(many, np.uint8)
        places = np.arange(many).astype(np.int32)
        added_words, code_quads, field_quads = added.view(np.uint64), codes.view(np.uint64), fields.view(np.uint64)
        plane, plane_one = np.zeros(plane_words, np.uint64), np.zeros(plane_words, np.uint64)
        plane_widest, plane_fine = np.zeros(plane_words, np.uint64), np.zeros(plane_words, np.uint64)
        out = np.zeros(_FRONT + target + _BEHIND, np.uint8)
        finer = 0

        largest = read(words, 0, mantissa_bits, values, magnitudes) if blocks else np.int32(0)
        for block in range(blocks):
            masked, infinities = largest >= np.int32(_INFINITY), 0
            if masked:
                largest, infinities = set_aside(values, magnitudes, kinds)
            top = max(np.int64(largest >> _MANTISSA) - _BIAS, lowest - 1)
            lifted = _LIFT if top < _SMALL else 0
            if lifted:
                lift(values, magnitudes)
            space = room - n if masked else room
            widest = min(space // n, 1 if masked else MAX_FINER)
            if stochastic:
                draw(_mixed(np.uint32((first + block) * BLOCK_STRIDE + seed & 0xFFFFFFFF)), added_words)
                compare(magnitudes, added, 1, above_one)
                compare(magnitudes, added, widest, above_widest)
            core, wide, rest, moved, count = 0, 0, 0, 0, 0
            if widest > 0:
                finest = min(top + 1 - lowest, MAX_FINER)
                finer, core, wide, rest = choose(
                    above_one, above_widest, largest, top, finest, finer, space, widest, infinities, stochastic, plane_one, plane_widest,
                )
            kind_bits = 2 if room >= 2 * n else 1
            exponent = POINT_BITS - 1 - top + finer - lifted
            finely, coarsely = _power(exponent), _power(exponent - 1) if finer else np.float32(0)
            if core:
                if stochastic:
                    compare(magnitudes, added, core + 1, above_fine)
                escapes(above_fine, _least(top, finer + 1, core + 1, stochastic), plane_fine)
                for word in range(plane_words):
                    plane[word] = plane_one[word] if core == 1 else plane_widest[word]
                if masked:
                    store_plane(kinds, n, np.uint16(2), plane_one, 0)
                    for word in range(plane_words):
                        plane[word] |= plane_one[word]
                        plane_fine[word] |= plane_one[word]
                moved = moved_values(plane, plane_fine, wide, rest)
                round_all(values, added, places, finely, coarsely, moved, core, codes)
                for word in range(plane_words):
                    fine = _low_bits(moved - 64 * word)
                    left = plane[word] & ~fine | plane_fine[word] & fine
                    while left:
                        i = np.uint64(64 * word) + trailing_zeros(left)
                        left &= left - np.uint64(1)
                        found[np.uint64(count)], found_added[np.uint64(count)] = values[i], added[i]
                        count += 1
                if masked:
                    for i in range(n):
                        codes[i] = 3 if kinds[i] > 1 else codes[i]
            else:
                for i in range(n):
                    codes[i] = min(kinds[i], np.uint16((1 << kind_bits) - 1)) << 1

            # The fields that were just written take a while until they can be read. So the next block comes
            # before they are packed.
            largest = read(words, min(block + 1, blocks - 1), mantissa_bits, values, magnitudes)
            grid = top + 1 - finer - lowest if core else 0
            header = grid | moved << _MOVED | masked << _MASKED | core << _CORE | wide << _WIDE
            store_octets(out, _FRONT, np.uint64(header))
            octet = _FRONT + HEADER_BYTES
            if masked and core:
                store_not_below(kinds, n, np.uint16(1), out, octet)
                octet += n // 8
            store_plane(codes, n, np.uint16(1), plane, 0)
            if core == 1:
                store_plane(codes, n, np.uint16(2), out, octet)
                octet += n // 8
            else:
                octet = put(code_quads, n, core if core else kind_bits, out, octet)
            for place in range(octet, _FRONT + target, 8):
                store_octets(out, place, np.uint64(0))
            escape_fields(found, found_added, places, count, coarsely, core, fields)
            put(field_quads, count + 7 & ~7, wide, out, octet)
            for word in range(plane_words):
                fine = bits_reversed(plane[word] & _low_bits(moved - 64 * word))
                octet = _FRONT + target - 8 * (word + 1)
                store_octets(out, octet, load_octets(out, octet) | fine)
            for i in range(target):
                stored[block, i] = out[_FRONT + i]

    # Decoding.

    @inlined
    def take(row: np.ndarray, octet: int, count: int, bits: int, quads: np.ndarray) -> None:
        """Fields of up to 15 bits, from some byte on: four to a quad, above a bit each."""
        one, two = np.uint64(bits), np.uint64(2 * bits)
        field, pair = (np.uint64(1) << one) - np.uint64(1), (np.uint64(1) << two) - np.uint64(1)
        fields = field | field << np.uint64(32)
        for i in range(0, count // 4, 2):
            quads[i] = load_octets(row, octet)
            quads[i + 1] = load_octets(row, octet + (4 * bits >> 3)) >> np.uint64(4 * bits & 7)
            octet += bits
        for i in range(count // 4):
            pairs = quads[i] & pair | (quads[i] >> two & pair) << np.uint64(32)
            quads[i] = (pairs & fields) << np.uint64(1) | (pairs >> one & fields) << np.uint64(17)

    @inlined
    def word_of(
        whole: np.int32, scale: np.float32, other: np.float32, largest: np.float32, mantissa_bits: int
    ) -> int:
        """A number of steps as a word: to nearest, a tie to even; never infinite."""
        value = np.float32(np.float32(np.float32(whole) * scale) * other)
        value = np.float32(min(max(value, np.float32(-largest)), largest))
        pattern = np.float32(value).view(np.int32)
        if width == 32:
            return np.uint32(pattern)
        magnitude = np.int32(pattern & np.int32(0x7FFFFFFF))
        lost = np.int32(_MANTISSA - mantissa_bits)
        odd = np.int32(np.int32(magnitude >> lost) & np.int32(1))
        almost_half = np.int32((1 << lost - 1) - 1)
        rounded = np.int32(np.int32(np.int32(magnitude + almost_half) + odd) >> lost)
        if mantissa_bits == 10:
            normal = magnitude >= np.int32(1 - 15 + _BIAS << _MANTISSA)
            subnormal = np.int32(np.float32(abs(value) * np.float32(1 << 24)))
            rounded = np.int32(rounded - np.int32(_REBIASED >> 13)) if normal else subnormal
        return np.uint16(rounded | np.int32(np.int32(pattern >> np.int32(16)) & np.int32(0x8000)))

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
        largest_pattern = np.int32(_INFINITY - (1 << _MANTISSA - mantissa_bits))
        if mantissa_bits == 10:
            largest_pattern = np.int32(_REBIASED + (31 << _MANTISSA) - (1 << 13))
        largest = np.int32(largest_pattern).view(np.float32)
        many = n + _TOGETHER
        codes, kinds, fields = np.empty(n, np.uint16), np.empty(n, np.uint16), np.empty(many, np.uint16)
        code_quads, kind_quads, field_quads = codes.view(np.uint64), kinds.view(np.uint64), fields.view(np.uint64)
        found = np.empty(many, words.dtype)
        last, escaped = np.zeros(plane_words, np.uint64), np.zeros(plane_words, np.uint64)
        length = _FRONT + target + 2 * n + 16
        rows = np.zeros(_ROWS * length, np.uint8)

        for block in range(blocks):
            if block % _ROWS == 0:
                for k in range(min(_ROWS, blocks - block)):
                    for i in range(target):
                        rows[k * length + _FRONT + i] = stored[block + k, i]
            row = block % _ROWS * length + _FRONT
            header = np.int64(load_octets(rows, row)) & (1 << _HEADER_BITS) - 1
            moved, core, wide = header >> _MOVED & _MOVED_MASK, header >> _CORE & _CORE_MASK, header >> _WIDE
            masked = header >> _MASKED & 1
            octet = row + HEADER_BYTES
            if core == 0:
                if header != 1 << _MASKED:
                    return block
                take(rows, octet, n, 2 if room >= 2 * n else 1, kind_quads)
                for i in range(n):
                    kind = kinds[i] >> 1
                    special = nan if kind == 1 else (infinity if kind == 2 else infinity | sign)
                    words[block, i] = word_type(special if kind else 0)
                continue
            if moved > n or n * (core + masked) + moved > room:
                return block
            if masked:
                take(rows, octet, n, 1, kind_quads)
                octet += n // 8

            # The last bit is 1 where none is stored. So an escape is the largest number of all.
            take(rows, octet, n, core, code_quads)
            octet += n * core // 8
            for word in range(plane_words):
                fine = bits_reversed(load_octets(rows, row + target - 8 * (word + 1)))
                last[word] = fine | ~_low_bits(moved - 64 * word)
            load_plane(codes, n, np.uint16(1), last, 0)
            count = escapes(codes, np.uint16((2 << core) - 1), escaped)

            # 2**exponent may be none that fp32 has; so in two steps.
            exponent = min((header & _GRID_MASK) + lowest, _BIAS + 1)
            half = exponent >> 1
            scale, other = _power(half), _power(exponent - half)
            origin, beyond = np.int32((1 << core) - 1), np.int32(1 << core)
            for i in range(n):
                whole = np.int32(np.int32(codes[i]) - origin)
                words[block, i] = word_of(whole, scale, other, largest, mantissa_bits)
            place, field_mask = np.uint64(8 * octet), _low_bits(wide)
            for k in range(count):
                octets = load_octets(rows, place >> np.uint64(3)) >> (place & np.uint64(7))
                fields[k] = np.uint16(octets & field_mask)
                place += np.uint64(wide)
            for i in range(_whole_parts(count)):
                minus = np.int32(-np.int32(np.int32(fields[i]) & np.int32(1)))
                size = np.int32(np.int32(np.int32(fields[i]) & np.int32(-2)) + beyond)
                found[i] = word_of(np.int32(np.int32(size ^ minus) - minus), scale, other, largest, mantissa_bits)
            number = np.uint64(0)
            for word in range(plane_words):
                left = escaped[word]
                while left:
                    words[block, np.uint64(64 * word) + trailing_zeros(left)] = found[number]
                    left &= left - np.uint64(1)
                    number += np.uint64(1)
            if masked:
                for i in range(n):
                    if kinds[i]:
                        word = np.int64(words[block, i])
                        words[block, i] = word_type(word & sign | infinity if word else nan)
        return -1

    return compress, decompress
