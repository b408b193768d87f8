"""The Hadamard format as two Triton kernels, one for each direction; the bytes are golden's.

What the bits mean is said in ``golden/hadamard.py`` and docs/format.md; this file says how it is done fast. A
tile holds 32 values or coefficients of a block in each column, int32[32, columns], and a thread has a whole
column. Columns are of two kinds: *of neighbours*, 32 places one behind the other, or *from all over* the
block, with an equal share of each 32 places. Five stages of the transform are within columns of one kind,
the others within those of the other, so that numbers move from thread to thread once. Fields are of
neighbours; they are joined to words of eight, and an octet has bits of one or two words.
"""

# In a kernel, names in capitals are constants at compile time. What is computed with constants begins with a
# number of Triton's: else the interpreter would take the result for another constant.
# ruff: noqa: N803, N806

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl

from golden import HadamardFormat
from golden.hadamard import (
    ALIGNED_BITS,
    FRACTION_BITS,
    HEADER_BITS,
    LEVELS,
    ROOT_BITS,
    SCALE_BIAS,
    SIGN_START,
    THRESHOLD_BITS,
    THRESHOLDS,
)

from .triton_tiles import (
    COLUMNS,
    Kernels,
    add,
    by_block,
    fold_rows,
    larger,
    own_columns,
    pairs,
    to_columns,
    unpair,
)

# What the kernels take from golden, as Triton wants it.
_ALIGNED_BITS, _MOST_ALIGNED = tl.constexpr(ALIGNED_BITS), tl.constexpr((1 << ALIGNED_BITS) - 1)
_HEADER_BITS, _MOST_HEADER = tl.constexpr(HEADER_BITS), tl.constexpr((1 << HEADER_BITS) - 1)
_FRACTION_BITS, _ONE = tl.constexpr(FRACTION_BITS), tl.constexpr(1 << FRACTION_BITS)
_SCALE_BIAS, _SIGN_START = tl.constexpr(SCALE_BIAS), tl.constexpr(SIGN_START)
_POINT = tl.constexpr(ROOT_BITS - 1 + THRESHOLD_BITS)  # bits of a threshold that are behind it

# Of fp32: bits of the mantissa, exponent field of 1/2, and the pattern of the largest number.
_MANTISSA, _HALF, _LARGEST = (tl.constexpr(number) for number in (23, 126, 0x7F7FFFFF))


def _constants(fmt: HadamardFormat) -> dict[str, int]:
    """What both kernels are compiled for."""
    least = int(fmt.widths[-1])
    return {
        "TARGET": fmt.target,
        "WIDTH": fmt.float_type.width,
        "MANTISSA": fmt.float_type.mantissa_bits,
        "BIAS": fmt.float_type.bias,
        "PER_BLOCK": fmt.block // 32,  # columns
        "BLOCKS": COLUMNS * 32 // fmt.block,  # of a program
        "OCTETS": triton.next_power_of_2(fmt.target),
        "LEAST": least,  # bits of a field, and one more
        "MORE": int((fmt.widths > least).sum()),  # of the first so many
        "LEVELS": _packed(LEVELS[least]),
        "LEVELS_MORE": _packed(LEVELS[least + 1]),
        "THRESHOLDS": _packed(THRESHOLDS[least]),
        "THRESHOLDS_MORE": _packed(THRESHOLDS[least + 1]),
    }


def _packed(numbers: Sequence[int]) -> int:
    """Numbers as one, a byte for each."""
    return int.from_bytes(bytes(numbers), "little")


# Blocks.


@triton.jit
def _from_all_over(BLOCKS: tl.constexpr, PER_BLOCK: tl.constexpr):
    """The places in a block of what is in columns from all over."""
    SHARE: tl.constexpr = 32 // PER_BLOCK
    row, column = tl.arange(0, 32)[:, None], tl.arange(0, BLOCKS * PER_BLOCK)[None, :]
    return row // SHARE * 32 + column % PER_BLOCK * SHARE + row % SHARE


@triton.jit
def _exchange(tile, PER_BLOCK: tl.constexpr):
    """The same with columns of the other kind."""
    columns: tl.constexpr = tile.shape[1]
    shares = tl.reshape(tile, (PER_BLOCK, 32 // PER_BLOCK, columns // PER_BLOCK, PER_BLOCK))
    return tl.reshape(tl.permute(shares, (3, 1, 2, 0)), (32, columns))


@triton.jit
def _largest(tile, PER_BLOCK: tl.constexpr):
    """The largest of each block, for each of its columns."""
    column = fold_rows(tile, larger, True)
    return to_columns(tl.reduce(by_block(column, PER_BLOCK), 1, larger), PER_BLOCK)


@triton.jit
def _total(tile, PER_BLOCK: tl.constexpr):
    """The sum of each block, for each of its columns."""
    column = fold_rows(tile, add, True)
    return to_columns(tl.reduce(by_block(column, PER_BLOCK), 1, add), PER_BLOCK)


@triton.jit
def _any(column):
    """Whether anything of a program is so."""
    return tl.reduce(column.to(tl.int32), 0, larger) > 0


@triton.jit
def _stage(tile, DISTANCE: tl.constexpr):
    """One stage of the transform, of rows that lie so far apart."""
    upper, lower = pairs(tile, DISTANCE)
    return unpair(upper + lower, upper - lower)


@triton.jit
def _transform(tile, PER_BLOCK: tl.constexpr):
    """The Walsh-Hadamard transform of each block; its columns are of the other kind."""
    for stage in tl.static_range(5):
        tile = _stage(tile, 1 << stage)
    tile = _exchange(tile, PER_BLOCK)
    if PER_BLOCK > 4:
        tile = _stage(tile, 4)
    if PER_BLOCK > 2:
        tile = _stage(tile, 8)
    return _stage(tile, 16)


@triton.jit
def _next(state):
    """The next 32 signs of a pattern."""
    state ^= state << 13
    state ^= state >> 17
    return state ^ state << 5


@triton.jit
def _flips(number, PER_BLOCK: tl.constexpr):
    """The sign patterns of blocks with these numbers, in the top bits of columns from all over."""
    SHARE: tl.constexpr = 32 // PER_BLOCK
    columns: tl.constexpr = number.shape[0]
    state, word = _next(number.to(tl.uint32) ^ _SIGN_START), tl.arange(0, PER_BLOCK)[:, None]
    words = tl.full((PER_BLOCK, columns), 0, tl.uint32)
    for i in tl.static_range(PER_BLOCK):
        words = tl.where(word == i, state[None, :], words)
        state = _next(state)
    bit = tl.arange(0, columns)[None, :] % PER_BLOCK * SHARE + tl.arange(0, SHARE)[:, None]
    return tl.reshape(words[:, None, :] << (31 - bit).to(tl.uint32)[None, :, :], (32, columns))


# Fields and headers.


@triton.jit
def _bits(fields, field, LEAST: tl.constexpr, MORE: tl.constexpr):
    """Bits of so many fields, of which the first has that number."""
    return fields * LEAST + tl.minimum(tl.maximum(MORE - field, 0), fields)


@triton.jit
def _levels(index, has_more, LEVELS: tl.constexpr, LEVELS_MORE: tl.constexpr):
    """The levels with these numbers."""
    levels = tl.where(has_more, LEVELS_MORE & 0xFFFFFFFF, LEVELS & 0xFFFFFFFF)
    if LEVELS_MORE >> 32 > 0:
        levels = tl.where(index < 4, levels, LEVELS_MORE >> 32)
    return levels >> 8 * (index & 3) & 0xFF


@triton.jit
def _bit_length(number):
    """int.bit_length of each number from 1 to 2**31 - 1, from the exponent of a float not rounded up."""
    return ((number & ~(number >> 1)).to(tl.float32).to(tl.int32, bitcast=True) >> _MANTISSA) - _HALF


@triton.jit
def _root(energy):
    """The leading bits of the energy's root, and how far up they belong."""
    length = _bit_length(energy)
    leading = energy << 31 - length >> 23 + (length & 1)
    # Half a unit more keeps the root 1/1024 from every whole number: no approximation is as wrong as that.
    return tl.sqrt((256 * leading).to(tl.float32) + 0.5).to(tl.int32), length - 1 >> 1


@triton.jit
def _scale(energy, product, top, BIAS: tl.constexpr):
    """The header whose scale is nearest to energy / product, in units of the aligned values."""
    length, product_length = _bit_length(energy), _bit_length(product)
    rest = (energy << 31 - length).to(tl.uint32)
    divisor = (product << 31 - product_length).to(tl.uint32)
    # From 1/2 to 2: a bit before the point, and behind it enough for the fraction and one to round by.
    quotient = tl.full(energy.shape, 0, tl.int32)
    for _ in tl.static_range(_FRACTION_BITS + 3):
        quotient = 2 * quotient + (rest >= divisor).to(tl.int32)
        rest = tl.where(rest >= divisor, rest - divisor, rest) << 1
    wide = quotient >> _FRACTION_BITS + 2
    mantissa = ((quotient >> wide) + 1 >> 1) - _ONE
    exponent = top + length - product_length + wide + (_SCALE_BIAS - _ALIGNED_BITS - _FRACTION_BITS - BIAS)
    return (exponent << _FRACTION_BITS) + mantissa


@triton.jit
def _joined(fields, start, LEAST: tl.constexpr, MORE: tl.constexpr):
    """Fields of neighbours, of which a column's first has such a number -> words of eight, [4, columns]."""
    words = fields.to(tl.uint32)
    for i in tl.static_range(3):
        lower, upper = pairs(words, 1)
        field = start[None, None, :] + (tl.arange(0, 16 >> i) * (2 << i))[:, None, None]
        words = lower | upper << _bits(1 << i, field, LEAST, MORE).to(tl.uint32)
        words = tl.reshape(words, (16 >> i, fields.shape[1]))
    return words


@triton.jit
def _octets(words, header, octet, LEAST: tl.constexpr, MORE: tl.constexpr):
    """Octets with these numbers, a row: of the header, a column, and the words of blocks, [blocks, words].

    Each has bits of one or two words, or of the header and the first.
    """
    LAST: tl.constexpr = words.shape[1] - 1
    shape: tl.constexpr = (words.shape[0], octet.shape[1])
    bit = 8 * octet - _HEADER_BITS
    beyond = bit - MORE * (LEAST + 1)
    field = tl.where(beyond < 0, bit // (LEAST + 1), MORE + beyond // max(LEAST, 1))
    word = tl.minimum(tl.maximum(field, 0) // 8, LAST)
    lower = tl.gather(words, tl.broadcast_to(word, shape), 1)
    upper = tl.gather(words, tl.broadcast_to(tl.minimum(word + 1, LAST), shape), 1)
    down = tl.minimum(tl.maximum(bit - _bits(8 * word, 0, LEAST, MORE), 0), 31)
    up = tl.minimum(_bits(8 * word + 8, 0, LEAST, MORE) - bit, 31)
    octets = lower >> down.to(tl.uint32) | upper << up.to(tl.uint32)
    first_two = header.to(tl.uint32) | lower << _HEADER_BITS
    return tl.where(octet < 2, first_two >> tl.minimum(8 * octet, 8), octets)


# The kernels.


@triton.jit(do_not_specialize=["count", "first"])
def _compress(
    values,
    stored,
    count,
    first,
    TARGET: tl.constexpr,
    WIDTH: tl.constexpr,
    MANTISSA: tl.constexpr,
    BIAS: tl.constexpr,
    PER_BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    OCTETS: tl.constexpr,
    LEAST: tl.constexpr,
    MORE: tl.constexpr,
    LEVELS: tl.constexpr,
    LEVELS_MORE: tl.constexpr,
    THRESHOLDS: tl.constexpr,
    THRESHOLDS_MORE: tl.constexpr,
):
    """uint[count] -> uint8[blocks, target]."""
    N: tl.constexpr = 32 * PER_BLOCK
    SIGN: tl.constexpr = 1 << WIDTH - 1
    INFINITY: tl.constexpr = SIGN - (1 << MANTISSA)
    UP: tl.constexpr = max(_ALIGNED_BITS - MANTISSA, 0)
    DOWN: tl.constexpr = max(MANTISSA - _ALIGNED_BITS, 0)

    before = tl.program_id(0).to(tl.int64) * BLOCKS
    left = tl.minimum(count - before * N, BLOCKS * N).to(tl.int32)
    values += before * N
    column = tl.arange(0, BLOCKS * PER_BLOCK)
    block, start = column // PER_BLOCK, column % PER_BLOCK * 32
    place = block[None, :] * N + _from_all_over(BLOCKS, PER_BLOCK)
    # A mask would keep the loads of a thread apart, so that only the last program has one.
    if left == BLOCKS * N:
        words = tl.load(values + place)
    else:
        words = tl.load(values + place, mask=place < left, other=0)
    words = own_columns(words).to(tl.uint32)

    # Alignment, and the transform.
    magnitude = (words & SIGN - 1).to(tl.int32)
    largest = _largest(magnitude, PER_BLOCK)
    top = tl.maximum(largest >> MANTISSA, 1)
    exponent = tl.maximum(magnitude >> MANTISSA, 1)
    doubled = magnitude - (exponent - 1 << MANTISSA) << UP
    doubled = doubled >> tl.minimum(top[None, :] - exponent + DOWN, 31)
    aligned = tl.minimum(doubled + 1 >> 1, _MOST_ALIGNED)
    energy = tl.maximum(_total(aligned * aligned, PER_BLOCK), 1)
    flips = _flips(first + before.to(tl.int32) + block, PER_BLOCK)
    negative = (flips ^ words << 32 - WIDTH).to(tl.int32) >> 31
    z = _transform((aligned ^ negative) - negative, PER_BLOCK)

    # Levels, and the scale.
    number = start[None, :] + tl.arange(0, 32)[:, None]
    has_more = number < MORE
    size = tl.abs(z)
    root, up = _root(energy)
    index = tl.full((32, BLOCKS * PER_BLOCK), 0, tl.int32)
    for i in tl.static_range((1 << LEAST) - 1):
        bound = (root * (THRESHOLDS_MORE >> 8 * i & 0xFF) << up >> _POINT)[None, :]
        beyond = has_more & (size > bound)
        if i < ((1 << LEAST) >> 1) - 1:
            bound_least = (root * (THRESHOLDS >> 8 * i & 0xFF) << up >> _POINT)[None, :]
            beyond = size > tl.where(has_more, bound, bound_least)
        index += beyond.to(tl.int32)
    product = _total(size * _levels(index, has_more, LEVELS, LEVELS_MORE), PER_BLOCK)
    header = _scale(energy, tl.maximum(product, 1), top, BIAS)
    header = tl.where((product > 0) & (header >= _ONE), tl.minimum(header, _MOST_HEADER), 0)
    fields = tl.where(z < 0, tl.where(has_more, 1 << LEAST, (1 << LEAST) >> 1), 0) | index

    special = largest >= INFINITY
    if _any(special):
        place = block[None, :] * N + number
        words = own_columns(tl.load(values + place, mask=place < left, other=0)).to(tl.uint32)
        magnitude = (words & SIGN - 1).to(tl.int32)
        kinds = tl.where(magnitude > INFINITY, 1, tl.where(words < SIGN, 2, 3))
        kinds = tl.where(magnitude < INFINITY, 0, kinds)
        if LEAST == 1:
            kinds = tl.minimum(kinds, tl.where(has_more, 3, 1))
        if LEAST == 0:
            kinds = tl.full(kinds.shape, 0, tl.int32)
        fields = tl.where(special[None, :], kinds, fields)
        header = tl.where(special, 1, header)

    words = _joined(tl.where((header > 0)[None, :], fields, 0), start, LEAST, MORE)
    words = tl.permute(tl.reshape(words, (4, BLOCKS, PER_BLOCK)), (1, 2, 0))
    header = tl.reduce(by_block(header, PER_BLOCK), 1, larger)[:, None]
    octet = tl.arange(0, OCTETS)[None, :]
    octets = _octets(tl.reshape(words, (BLOCKS, 4 * PER_BLOCK)), header, octet, LEAST, MORE)
    in_program = tl.arange(0, BLOCKS)[:, None]
    inside = (in_program * N < left) & (octet < TARGET)
    tl.store(stored + before * TARGET + in_program * TARGET + octet, octets.to(tl.uint8), mask=inside)


@triton.jit(do_not_specialize=["count", "first", "call"])
def _decompress(
    stored,
    values,
    count,
    first,
    record,
    call,
    TARGET: tl.constexpr,
    WIDTH: tl.constexpr,
    MANTISSA: tl.constexpr,
    BIAS: tl.constexpr,
    PER_BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    OCTETS: tl.constexpr,
    LEAST: tl.constexpr,
    MORE: tl.constexpr,
    LEVELS: tl.constexpr,
    LEVELS_MORE: tl.constexpr,
    THRESHOLDS: tl.constexpr,
    THRESHOLDS_MORE: tl.constexpr,
):
    """uint8[blocks, target] -> uint[count]; the first invalid header goes into the record."""
    N: tl.constexpr = 32 * PER_BLOCK
    SIGN: tl.constexpr = 1 << WIDTH - 1
    INFINITY: tl.constexpr = SIGN - (1 << MANTISSA)
    NAN: tl.constexpr = INFINITY | 1 << MANTISSA - 1

    before = tl.program_id(0).to(tl.int64) * BLOCKS
    left = tl.minimum(count - before * N, BLOCKS * N).to(tl.int32)
    column = tl.arange(0, BLOCKS * PER_BLOCK)
    block, start = column // PER_BLOCK, column % PER_BLOCK * 32
    has_block = block * N < left
    rows = stored + before * TARGET + block * TARGET
    octet, next_octet = tl.load(rows, mask=has_block, other=0), tl.load(rows + 1, mask=has_block, other=0)
    header = octet.to(tl.int32) | next_octet.to(tl.int32) << 8 & _MOST_HEADER

    # Words of eight fields, and these.
    field = start[None, :] + tl.arange(0, 4)[:, None] * 8
    bit = _bits(field, 0, LEAST, MORE) + _HEADER_BITS
    words = tl.full(bit.shape, 0, tl.uint32)
    for i in tl.static_range(LEAST + 2):
        place, shift = (bit >> 3) + i, 8 * i - (bit & 7)
        needed = has_block[None, :] & (place < TARGET) & (shift < 8 * LEAST + 8)
        octets = tl.load(rows[None, :] + place, mask=needed, other=0).to(tl.uint32)
        words |= octets << tl.minimum(tl.maximum(shift, 0), 31) >> tl.maximum(-shift, 0)
    eighth = tl.arange(0, 8)[None, :, None]
    shift = _bits(eighth, field[:, None, :], LEAST, MORE)
    fields = tl.reshape(words[:, None, :] >> shift.to(tl.uint32), (32, BLOCKS * PER_BLOCK)).to(tl.int32)
    has_more = start[None, :] + tl.arange(0, 32)[:, None] < MORE
    fields &= tl.where(has_more, (2 << LEAST) - 1, (1 << LEAST) - 1)

    # Coefficients, and the transform.
    sign = tl.where(has_more, 1 << LEAST, (1 << LEAST) >> 1)
    negative = fields >= tl.maximum(sign, 1)
    levels = _levels(tl.where(negative, fields - sign, fields), has_more, LEVELS, LEVELS_MORE)
    sums = _transform(tl.where(negative, -levels, levels), PER_BLOCK)
    flips = _flips(first + before.to(tl.int32) + block, PER_BLOCK).to(tl.int32) >> 31
    sums = tl.where((header > 1)[None, :], (sums ^ flips) - flips, 0)

    # A header is the top of its scale's pattern, or of infinity's and more: then all but 0 are the largest.
    scale = tl.minimum(header << _MANTISSA - _FRACTION_BITS, _LARGEST).to(tl.float32, bitcast=True)
    size = tl.abs(sums).to(tl.float32) * scale[None, :]
    if WIDTH == 32:
        pattern = size.to(tl.int32, bitcast=True)
    elif MANTISSA == 7:
        pattern = size.to(tl.int32, bitcast=True)
        pattern = pattern + 0x7FFF + (pattern >> 16 & 1) >> 16
    else:
        pattern = tl.minimum(size, 65504.0).to(tl.float16).to(tl.uint16, bitcast=True).to(tl.int32)
    decoded = tl.minimum(pattern, INFINITY - 1).to(tl.uint32)
    decoded = tl.where(sums < 0, decoded | SIGN, decoded)
    special = header == 1
    if _any(special):
        kinds = tl.full(fields.shape, 1, tl.int32)
        if LEAST > 0:
            kinds = _exchange(fields & 3, PER_BLOCK)
        named = tl.where(kinds == 1, NAN, tl.where(kinds == 2, INFINITY, SIGN | INFINITY))
        named = tl.where(kinds == 0, 0, named).to(tl.uint32)
        decoded = tl.where(special[None, :], named, decoded)

    place = block[None, :] * N + _from_all_over(BLOCKS, PER_BLOCK)
    decoded = decoded.to(values.dtype.element_ty)
    values += before * N
    if left == BLOCKS * N:
        tl.store(values + place, decoded)
    else:
        tl.store(values + place, decoded, mask=place < left)

    invalid = has_block & (header > 1) & (header < _ONE)
    # Both entries get the same call and block, so that the bytes are of one header.
    entry = (call.to(tl.int64) << 40) + (before + block << 8)
    entries = record + tl.full(block.shape, 0, tl.int32)
    tl.atomic_min(entries, entry + octet, mask=invalid, sem="relaxed")
    tl.atomic_min(entries + 1, entry + next_octet, mask=invalid, sem="relaxed")


KERNELS = Kernels(_compress, _decompress, _constants)
