"""The Hadamard format as machine code for the CPU, made by Numba; the bytes are golden's.

What the bits mean is said in ``golden/hadamard.py`` and docs/format.md; this file says how it is done fast.
Sixteen blocks are worked on side by side: once they are transposed, value ``i`` of all of them is one vector,
and so is coefficient ``k``. The transform is then nothing but sums and differences of vectors, and a field is
in the same bits of the same word of all sixteen. Only blocks with specials are met one by one.

Places in arrays of vectors count numbers: neighbours are ``LANES`` apart. A tile is ``LANES`` vectors.
"""

# What Numba compiles has vectors, and numbers of whatever width its operations give them.
# mypy: disable-error-code="assignment"

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from golden import HadamardFormat
from golden.hadamard import (
    ALIGNED_BITS,
    FRACTION_BITS,
    HEADER_BITS,
    LEVELS,
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

from .instructions import compiled, copy_octets, inlined
from .lanes import (
    LANES,
    butterflies,
    converted,
    filled,
    larger,
    load,
    negated,
    prefetch,
    smaller,
    square_root,
    store,
    table,
    transpose,
    viewed,
    where,
)

_LANE = np.arange(LANES, dtype=np.uint32)
_TILE = LANES * LANES
_MOST_HEADER, _LEAST_SCALE = (1 << HEADER_BITS) - 1, 1 << FRACTION_BITS
_MOST_ALIGNED = (1 << ALIGNED_BITS) - 1

# Of fields of each width: the first level, how many thresholds there are, and what each of these adds to the
# level and, above LEVEL_BITS, to its number.
_LEVEL_BITS = 6
_FIRST = tuple(levels[0] for levels in LEVELS.values())
_COUNT = tuple(len(thresholds) for thresholds in THRESHOLDS.values())
_THRESHOLDS, _ADDED = np.zeros((2, len(LEVELS), max(_COUNT)), np.int32)
for _width, _count in enumerate(_COUNT):
    _THRESHOLDS[_width, :_count] = THRESHOLDS[_width]
    _ADDED[_width, :_count] = np.diff(LEVELS[_width]) + (1 << _LEVEL_BITS)

_level_0, _level_1, _level_2, _level_3, _level_4 = map(table, LEVELS.values())

# Of floats of 64 bits and of 32: bits of the mantissa, bias; infinity.
_WIDE_MANTISSA, _WIDE_BIAS = 52, 1023
_MANTISSA, _BIAS, _INFINITY = 23, 127, 255 << 23


class Layout(NamedTuple):
    """What the kernels have to know of a format."""

    mantissa_bits: int
    exponent_max: int
    largest: float
    least: int  # bits of the last field
    more: int  # fields with one more

    @classmethod
    def of(cls, fmt: HadamardFormat) -> Layout:
        ft, least = fmt.float_type, int(fmt.widths[-1])
        largest = float(ml_dtypes.finfo(ft.array).max)
        return cls(ft.mantissa_bits, ft.exponent_max, largest, least, int((fmt.widths > least).sum()))


@inlined
def _next(state: Any) -> Any:
    state = state ^ state << 13
    state = state ^ state >> 17
    return state ^ state << 5


@inlined
def _draw(number: int, signs: np.ndarray) -> None:
    """The sign patterns of blocks from this number on, sixteen signs to an item."""
    state = _next(load(_LANE, 0) + number ^ SIGN_START)
    for i in range(0, len(signs), 2 * LANES):
        store(signs, i, converted(state, np.int16))
        store(signs, i + LANES, converted(state >> 16, np.int16))
        state = _next(state)


@inlined
def _copy_octets(array: np.ndarray, place: int, out: np.ndarray, to: int, count: int) -> None:
    for i in range(count & ~7, count):
        out[to + i] = array[place + i]
    for i in range(0, count - 7, 8):
        copy_octets(array, place + i, out, to + i)


@inlined
def _copy_vectors(array: np.ndarray, place: int, out: np.ndarray, to: int, count: int) -> None:
    for i in range(0, count, LANES):
        store(out, to + i, load(array, place + i))


@inlined
def _transform_tiles(x: np.ndarray) -> None:
    """The transform, as far as it is between vectors in the same places of tiles."""
    for i in range(0, _TILE, LANES):
        if len(x) == 4 * _TILE:
            butterflies(x, i, _TILE, 4, x)
        elif len(x) == 8 * _TILE:
            butterflies(x, i, _TILE, 8, x)
        else:
            butterflies(x, i, _TILE, 16, x)


# Encoding.


@inlined
def _largest(raw: np.ndarray, magnitude_mask: int) -> Any:
    """The largest magnitude of each block."""
    largest = load(raw, 0) & magnitude_mask
    for i in range(LANES, len(raw), LANES):
        largest = larger(largest, load(raw, i) & magnitude_mask)
    return largest


@inlined
def _align(
    raw: np.ndarray,
    top: Any,
    width: int,
    mantissa_bits: int,
    signs: np.ndarray,
    x: np.ndarray,
    words: np.ndarray,
    ahead: int,
) -> Any:
    """Values as integers, with their signs flipped; their energy. What is ahead in ``words`` will be next."""
    up, down = max(ALIGNED_BITS - mantissa_bits, 0), max(mantissa_bits - ALIGNED_BITS, 0)
    most, energy = top + (down - 1), filled(np.int32(0))
    for tile in range(0, len(signs), LANES):
        pattern = load(signs, tile)
        for i in range(tile * LANES, (tile + LANES) * LANES, LANES):
            prefetch(words, ahead + i, 0)
            word = load(raw, i)
            magnitude = word & (1 << width - 1) - 1
            exponent = larger(magnitude >> mantissa_bits, 1) - 1
            # An exponent of 1 is left of a normal number's: its hidden bit.
            mantissa = magnitude - (exponent << mantissa_bits) << up
            doubled = mantissa >> smaller(most - exponent, width - 1)
            aligned = converted(smaller(doubled + 1 >> 1, _MOST_ALIGNED), np.int32)
            energy = energy + aligned * aligned
            flipped = converted(word >> width - 16, np.int16) ^ pattern << 15
            pattern = pattern >> 1
            short = converted(aligned, np.int16)
            store(x, i, where(flipped < 0, negated(short), short))
    return energy


@inlined
def _deviation(energy: Any) -> tuple[Any, Any]:
    """The root of the energy: its ROOT_BITS leading bits, and how often they are doubled."""
    energy = larger(energy, 1)
    exponent = (viewed(converted(energy, np.float64), np.int64) >> _WIDE_MANTISSA) - _WIDE_BIAS
    half = converted(exponent >> 1, np.int32)
    leading = energy << (larger(negated(half) + 3, 0) << 1) >> (larger(half - 3, 0) << 1)
    return converted(square_root(converted(leading << 8, np.float32)), np.int32), half


@inlined
def _quantise(
    z: np.ndarray, energy: Any, least: int, more: int, limits: np.ndarray, packed: np.ndarray
) -> Any:
    """Coefficients as fields, behind the place of the header; their product with the levels."""
    root, half = _deviation(energy)
    product, word = filled(np.int32(0)), filled(np.uint32(0))
    begin, to, at = 0, 0, HEADER_BITS
    for bits, end in ((least + 1, more * LANES), (least, len(z))):
        if bits == 0:
            break
        for t in range(_COUNT[bits]):
            limit = root * _THRESHOLDS[bits, t] << half >> ROOT_BITS - 1 + THRESHOLD_BITS
            store(limits, t * LANES, limit)
        for i in range(begin, end, LANES):
            value = load(z, i)
            magnitude = where(value < 0, negated(value), value)
            found = filled(np.int32(_FIRST[bits]))  # the level, and above it its number
            for t in range(_COUNT[bits]):
                found = where(magnitude > load(limits, t * LANES), found + _ADDED[bits, t], found)
            product = product + magnitude * (found & (1 << _LEVEL_BITS) - 1)
            field = viewed(found >> _LEVEL_BITS | value >> 31 & 1 << bits - 1, np.uint32)
            word = word | field << at
            at += bits
            if at >= 32:
                store(packed, to, word)
                to, at = to + LANES, at - 32
                word = field >> bits - at
        begin = end
    store(packed, to, word)
    return product


@inlined
def _header(energy: Any, product: Any, top: Any, exponent_max: int) -> Any:
    """The header whose scale is nearest to energy / product; 0 for a block of zeros."""
    # In 64 bits the quotient is nearer to the exact one than that is to where it would be rounded otherwise.
    quotient = viewed(converted(energy, np.float64) / converted(product, np.float64), np.int64)
    lost = _WIDE_MANTISSA - FRACTION_BITS
    rounded = converted(quotient + (1 << lost - 1) >> lost, np.int32)
    unit = top - ((exponent_max >> 1) + ALIGNED_BITS - 1)
    header = rounded + (unit + (SCALE_BIAS - FRACTION_BITS - _WIDE_BIAS) << FRACTION_BITS)
    header = where(header > _LEAST_SCALE - 1, smaller(header, _MOST_HEADER), 0)
    return where(product > 0, header, 0)


@inlined
def _write(
    packed: np.ndarray, rows: np.ndarray, count: int, octets: np.ndarray, start: int, target: int
) -> None:
    """So many blocks as bytes."""
    span, row = len(rows) // LANES, rows.view(np.uint8)
    for i in range(0, span, LANES):
        transpose(packed, i * LANES, LANES, rows, i, span)
    for lane in range(count):
        _copy_octets(row, 4 * lane * span, octets, start + lane * target, target)


@inlined
def _write_specials(words: np.ndarray, row: np.ndarray, layout: Layout) -> None:
    """One block that says of its values which of them are special."""
    width = 8 * words.itemsize
    infinity = layout.exponent_max << layout.mantissa_bits
    for i in range(len(row)):
        row[i] = 0
    row[0] = SPECIALS
    at = HEADER_BITS
    for i in range(len(words) if layout.least > 0 else 0):
        bits = layout.least + (i < layout.more)
        magnitude, minus = np.int64(words[i]) & (1 << width - 1) - 1, np.int64(words[i]) >> width - 1
        if magnitude >= infinity:
            kind = NAN if magnitude > infinity or bits == 1 else PLUS_INFINITY + minus
            row[at >> 3] |= kind << (at & 7)
            if at & 7 == 7 and bits > 1:
                row[(at >> 3) + 1] |= kind >> 1
        at += bits


@compiled
def _compress(words: np.ndarray, stored: np.ndarray, layout: Layout, first: int) -> None:
    """uint[blocks, N] -> uint8[blocks, target]; ``first`` is the number of the first block."""
    (blocks, n), target = words.shape, stored.shape[1]
    size, width = n * LANES, 8 * words.itemsize
    flat, octets, spare = words.reshape(-1), stored.reshape(-1), np.empty(size, words.dtype)
    x, z = np.empty(size, np.int16), np.empty(size, np.int32)
    raw, signs = z.view(words.dtype)[:size], np.empty(n, np.int16)
    limits, tops = np.empty(max(_COUNT) * LANES, np.int32), np.empty(LANES, np.int32)
    packed = np.empty(max(n // 8, LANES) * LANES + LANES, np.uint32)
    rows = np.empty(len(packed) - LANES, np.uint32)

    for block in range(0, blocks, LANES):
        count = min(LANES, blocks - block)
        source, place = flat, block * n
        if count < LANES:
            _copy_vectors(flat, place, spare, 0, count * n)
            source, place = spare, 0
        for i in range(0, n, LANES):
            transpose(source, place + i, n, raw, i * LANES, LANES)
        top = larger(_largest(raw, (1 << width - 1) - 1) >> layout.mantissa_bits, 1)
        wide_top = converted(top, np.int32)
        store(tops, 0, wide_top)

        _draw(first + block, signs)
        energy = _align(raw, top, width, layout.mantissa_bits, signs, x, flat, block * n + size)
        _transform_tiles(x)
        for i in range(0, size, _TILE):
            butterflies(x, i, LANES, LANES, z)
        product = _quantise(z, energy, layout.least, layout.more, limits, packed)
        header = _header(energy, product, wide_top, layout.exponent_max)
        store(packed, 0, load(packed, 0) | viewed(header, np.uint32))
        for i in range(0, len(rows), LANES):
            store(packed, i, where(header > 0, load(packed, i), 0))
        _write(packed, rows, count, octets, block * target, target)
        for lane in range(count):
            if tops[lane] == layout.exponent_max:
                _write_specials(words[block + lane], stored[block + lane], layout)


# Decoding.


@inlined
def _read(
    octets: np.ndarray, start: int, count: int, target: int, rows: np.ndarray, packed: np.ndarray
) -> None:
    """The words of so many blocks."""
    span, row = len(rows) // LANES, rows.view(np.uint8)
    for lane in range(count):
        _copy_octets(octets, start + lane * target, row, 4 * lane * span, target)
    for i in range(0, span, LANES):
        transpose(rows, i, span, packed, i * LANES, LANES)


@inlined
def _level(field: Any, bits: int) -> Any:
    if bits == 4:
        return _level_4(field)
    if bits == 3:
        return _level_3(field)
    if bits == 2:
        return _level_2(field)
    return _level_1(field) if bits == 1 else _level_0(field)


@inlined
def _expand(packed: np.ndarray, least: int, more: int, x: np.ndarray, words: np.ndarray, ahead: int) -> None:
    """Fields as coefficients. What is ahead in ``words`` will be written."""
    word = load(packed, 0)
    begin, place, at = 0, 0, HEADER_BITS
    for bits, end in ((least + 1, more * LANES), (least, len(x))):
        sign = 1 << max(bits - 1, 0)
        for i in range(begin, end, LANES):
            prefetch(words, ahead + i, 1)
            code = word >> at
            at += bits
            if at >= 32:
                place, at = place + LANES, at - 32
                word = load(packed, place)
                code = code | word << bits - at
            field = converted(code, np.int16)
            level = _level(field, bits)
            store(x, i, where((field & sign) != 0, negated(level), level))
        begin = end


@inlined
def _rounded(value: Any, mantissa_bits: int) -> Any:
    """Floats as words, which are in the upper bits: the nearest one, and the even one of two."""
    bits = viewed(value, np.int32)
    if mantissa_bits == _MANTISSA:
        return bits
    if mantissa_bits == 7:
        return bits + (bits >> 16 & 1) + 0x7FFF
    magnitude = bits & 0x7FFFFFFF
    normal = (magnitude + (magnitude >> 13 & 1) + 0xFFF >> 13) - (112 << 10)
    # The last bit of a float from 0.5 to 1 is what the last bit of a subnormal is.
    subnormal = viewed(viewed(magnitude, np.float32) + 0.5, np.int32) - (126 << _MANTISSA)
    return bits & -1 << 31 | where(magnitude < 113 << _MANTISSA, subnormal, normal) << 16


@inlined
def _finish(
    x: np.ndarray, place: int, pattern: Any, header: Any, huge: bool, layout: Layout, tile: np.ndarray
) -> None:
    """A tile of sums as words."""
    # The header is the upper bits of the scale, as a float.
    scale = viewed(smaller(header << _MANTISSA - FRACTION_BITS, _INFINITY - 1), np.float32)
    some = converted(where(header > SPECIALS, filled(np.int32(-1)), 0), np.int16)
    for i in range(0, _TILE, LANES):
        total = load(x, place + i) & some
        value = converted(where((pattern & 1) != 0, negated(total), total), np.float32) * scale
        pattern = pattern >> 1
        if huge:
            value = larger(smaller(value, layout.largest), -layout.largest)
        store(tile, i, _rounded(value, layout.mantissa_bits))


@inlined
def _read_specials(row: np.ndarray, words: np.ndarray, layout: Layout) -> None:
    """The values of one block that says which of them are special."""
    infinity = layout.exponent_max << layout.mantissa_bits
    at = HEADER_BITS
    for i in range(len(words)):
        bits = layout.least + (i < layout.more)
        kind = np.int64(row[at >> 3]) >> (at & 7)
        if at & 7 == 7 and bits > 1:
            kind |= np.int64(row[(at >> 3) + 1]) << 1
        kind = kind & (1 << min(bits, 2)) - 1 if layout.least > 0 else NAN
        word = infinity | 1 << layout.mantissa_bits - 1 if kind == NAN else infinity
        word |= 1 << 8 * words.itemsize - 1 if kind == MINUS_INFINITY else 0
        words[i] = word if kind else 0
        at += bits


@compiled
def _decompress(stored: np.ndarray, words: np.ndarray, layout: Layout, first: int) -> int:
    """uint8[blocks, target] -> uint[blocks, N]; the first block with an invalid header, or -1."""
    (blocks, n), target = words.shape, stored.shape[1]
    size = n * LANES
    flat, octets, spare = words.reshape(-1), stored.reshape(-1), np.empty(size, words.dtype)
    x, tile = np.empty(size, np.int16), np.empty(_TILE, np.int32)
    signs, headers = np.empty(n, np.int16), np.empty(LANES, np.int32)
    packed = np.empty(max(n // 8, LANES) * LANES + LANES, np.uint32)
    rows = np.empty(len(packed) - LANES, np.uint32)
    # Scales from here on can make sums of up to 2**14 larger than the largest float.
    least_huge = (layout.exponent_max >> 1) + _BIAS - 14 << FRACTION_BITS

    for block in range(0, blocks, LANES):
        count = min(LANES, blocks - block)
        out, place = (flat, block * n) if count == LANES else (spare, 0)
        _read(octets, block * target, count, target, rows, packed)
        header = viewed(load(packed, 0) & _MOST_HEADER, np.int32)
        store(headers, 0, header)
        huge = False
        for lane in range(count):
            if SPECIALS < headers[lane] < _LEAST_SCALE:
                return block + lane
            huge = huge or headers[lane] >= least_huge

        _draw(first + block, signs)
        _expand(packed, layout.least, layout.more, x, flat, block * n)
        _transform_tiles(x)
        for i in range(0, n, LANES):
            butterflies(x, i * LANES, LANES, LANES, x)
            _finish(x, i * LANES, load(signs, i), header, huge, layout, tile)
            transpose(tile, 0, LANES, out, place + i, n)
        if count < LANES:
            _copy_vectors(spare, 0, flat, block * n, count * n)
        for lane in range(count):
            if headers[lane] == SPECIALS:
                _read_specials(stored[block + lane], words[block + lane], layout)
    return -1


def kernels(width: int, n: int) -> tuple[Any, Any]:
    """Both directions, for blocks of any size; Numba compiles them for words of a width when they come."""
    return _compress, _decompress
