"""The step format as two Triton kernels, one for each direction; the bytes are golden's.

What the bits mean is said in ``golden/step.py`` and docs/format.md; this file says how it is done fast. A
program has some blocks, a tile [blocks, N], and what holds for a block is a column of it. A magnitude is a
float, in the power of two of its block's largest: times another power of two it stays exact, so that what
golden finds by exponents is a comparison here. A block never takes fewer bits at a finer step, so bisection
finds the finest that fits. Each value is read once and each byte written once: eight fields of one width are
whole octets, and of the escapes' fields each writes the octets that it completes.
"""

# In a kernel, names in capitals are constants at compile time. Only Triton's built-in functions are called,
# and sums and maxima by the combinations that Triton's own have: these can be interpreted even where Triton
# itself was imported for compiling. What is computed with constants begins with a number of Triton's: else
# the interpreter would take the result for another constant.
# ruff: noqa: N803, N806

from __future__ import annotations

import triton
import triton.language as tl

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
    NOISE_BITS,
    NOISE_SHARED,
    POINT_BITS,
    WORD_STRIDE,
)

from .triton_kernels import Kernels, TritonBackend

# Of a program: whole blocks in one warp, so that no sum waits for another; eight values for each thread.
_WARPS, _VALUES = 1, 256

# What the kernels take from golden, as Triton wants it.
_MOVED, _MASKED, _CORE, _WIDE = (tl.constexpr(sum(list(FIELDS.values())[:i])) for i in range(1, 5))
_ALONE_HEADER = tl.constexpr(1 << _MASKED.value)  # of a block that only says which values are special
_GRID_MASK, _MOVED_MASK, _CORE_MASK = (
    tl.constexpr((1 << FIELDS[name]) - 1) for name in ("grid", "moved", "core")
)
_HEADER_BYTES, _HEADER_BITS = tl.constexpr(HEADER_BYTES), tl.constexpr(8 * HEADER_BYTES)
_MAX_FINER, _MAX_MOVED = tl.constexpr(MAX_FINER), tl.constexpr(MAX_MOVED)
_POINT, _ONE = tl.constexpr(POINT_BITS), tl.constexpr(1 << POINT_BITS)
_HALF, _MOST = tl.constexpr(HALF), tl.constexpr(MOST)
_NOISE_BITS, _NOISE_SHARED, _NOISE_MASK = (
    tl.constexpr(number) for number in (NOISE_BITS, NOISE_SHARED, (1 << NOISE_BITS) - 1)
)
_BLOCK_STRIDE, _WORD_STRIDE = tl.constexpr(BLOCK_STRIDE), tl.constexpr(WORD_STRIDE)

# Of fp32: bits, bias, and patterns of the least normal number and of infinity.
_MANTISSA, _BIAS, _NORMAL, _INFINITY = (tl.constexpr(number) for number in (23, 127, 1 << 23, 0xFF << 23))
# The first bits of a significand: how far down, and the top one.
_LEADING, _FIRST_BIT = tl.constexpr(24 - LEADING_BITS), tl.constexpr(1 << LEADING_BITS - 1)
# For the pattern of what counts as 0: less than any other over any power of two.
_ZERO = tl.constexpr(-1 << 30)


def _constants(fmt: StepFormat) -> dict[str, int]:
    """What both kernels are compiled for."""
    return {
        "TARGET": fmt.target,
        "WIDTH": fmt.float_type.width,
        "MANTISSA": fmt.float_type.mantissa_bits,
        "LOWEST": fmt.lowest_grid,
        "STOCHASTIC": fmt.rounding == "stochastic",
        "N": fmt.block,
        "BLOCKS": _VALUES // fmt.block,  # of a program
        "WIDEST": min(fmt.room // fmt.block, MAX_FINER),  # core
        "ALONE": min(fmt.room // fmt.block, 2),  # bits of a value in a block that only says which are special
        "OCTETS": triton.next_power_of_2(fmt.target),
    }


# Columns and rows.


@triton.jit
def _total(tile):
    """The sum of each row."""
    return tl.reduce(tile, 1, tl.standard._sum_combine, keep_dims=True)


@triton.jit
def _largest(tile):
    """The largest of each row."""
    return tl.reduce(tile, 1, tl.standard._elementwise_max, keep_dims=True)


@triton.jit
def _running(tile):
    """Of each number the sum of its row up to it."""
    return tl.associative_scan(tile, 1, tl.standard._sum_combine)


@triton.jit
def _any(column):
    """Whether anything of a program is so."""
    return tl.reduce(column.to(tl.int32), None, tl.standard._elementwise_max) > 0


@triton.jit
def _power(exponent):
    """2**exponent, from -126 to 127."""
    return (exponent + _BIAS << _MANTISSA).to(tl.float32, bitcast=True)


@triton.jit
def _bit_length(number):
    """int.bit_length of each number from 0 to 2**24 - 1, from the exponent of the float."""
    exponent = number.to(tl.float32).to(tl.int32, bitcast=True) >> _MANTISSA
    return tl.maximum(exponent - (_BIAS - 1), 0)


@triton.jit
def _mixed(x):
    """Every bit spread over the 32 of a word, as ``golden.step`` does it."""
    x += x << 12
    x ^= x >> 19
    x += x << 5
    x ^= x >> 9
    x += x << 3
    return x ^ x >> 16


@triton.jit
def _random(block, seed, N: tl.constexpr):
    """What is added to the bits behind the point: odd numbers, by the bits of ``golden.step.random_bits``."""
    key = _mixed(block.to(tl.uint32) * _BLOCK_STRIDE + seed.to(tl.uint32))
    word = tl.arange(0, N // _NOISE_SHARED)[None, :].to(tl.uint32) * _WORD_STRIDE
    words = _mixed(key ^ word)[:, :, None]
    shift = tl.arange(0, _NOISE_SHARED)[None, None, :].to(tl.uint32) * _NOISE_BITS
    noise = words >> shift & _NOISE_MASK
    return tl.reshape(2 * noise + 1, (block.shape[0], N)).to(tl.int32)


# Encoding.


@triton.jit
def _wide_bits(leading, finer, most_added, REACH: tl.constexpr):
    """Bits of an escape's field, if the fewest coarse steps that escape are ``REACH``."""
    farthest = (leading << finer) - 1 + most_added >> _POINT
    return _bit_length(tl.maximum(farthest - REACH, 0)) + 1


@triton.jit
def _choices(
    size,
    added,
    finer,
    leading,
    infinities,
    masked,
    MOST_ADDED: tl.constexpr,
    ROOM: tl.constexpr,
    N: tl.constexpr,
    WIDEST: tl.constexpr,
):
    """With the core of a bit, and with the widest: bits of an escape's field, and those that are left.

    A core with which a block does not fit leaves less than no bits.
    """
    REACH: tl.constexpr = 1 << WIDEST - 1
    # Of the last bit behind the point, in a coarse step; at the coarsest nothing escapes.
    unit = tl.where(finer > 0, _power(-finer + (2 - _POINT)), float("inf"))
    escapes = size >= (-added + _ONE).to(tl.float32) * unit
    escapes_widest = size >= (-added + REACH * _ONE).to(tl.float32) * unit
    counts = _total(tl.where(escapes_widest, 1 + (1 << 8), tl.where(escapes, 1, 0)))
    narrow, widest = _wide_bits(leading, finer, MOST_ADDED, 1), _wide_bits(leading, finer, MOST_ADDED, REACH)
    left = ROOM - N - N * masked - ((counts & 0xFF) + infinities) * narrow
    left_by_widest = tl.where(masked > 0, -1, ROOM - N * WIDEST - (counts >> 8) * widest)
    return narrow, left, widest, left_by_widest


@triton.jit
def _append(window, length, more, more_length):
    """What is appended to a row of bits: the last 32 of these, the very last on top, and their number."""
    return window >> tl.minimum(more_length, 31).to(tl.uint32) | more, length + more_length


@triton.jit
def _of_eight(tile):
    """The sums of eight each: [blocks, N] -> [blocks, N / 8]."""
    eights = tl.reshape(tile, (tile.shape[0], tile.shape[1] // 8, 8))
    return tl.reduce(eights, 2, tl.standard._sum_combine)


@triton.jit
def _put(rows, fields, begin, width, inside, MOST_BITS: tl.constexpr):
    """Store fields of one width in a block, from an octet on: eight of them are ``width`` octets."""
    N: tl.constexpr = fields.shape[1]
    fields, shift = fields.to(tl.uint32), width * (tl.arange(0, N) % 8)[None, :]
    octets = rows + begin + width * tl.arange(0, N // 8)[None, :]
    if MOST_BITS <= 4:
        words = _of_eight(fields << shift.to(tl.uint32))
    for i in tl.static_range(MOST_BITS):
        if MOST_BITS <= 4:
            octet = words >> 8 * i
        else:
            # Bits 16 to 23 of a field shifted so are those in octet i; it has 15 bits at most.
            up = tl.minimum(tl.maximum(shift + (16 - 8 * i), 0), 31)
            octet = _of_eight(fields << up.to(tl.uint32) & 0xFF << 16) >> 16
        tl.store(octets + i, octet.to(tl.uint8), mask=inside & (i < width))


@triton.jit(do_not_specialize=["count", "seed"])
def _compress(
    values,
    stored,
    count,
    seed,
    TARGET: tl.constexpr,
    WIDTH: tl.constexpr,
    MANTISSA: tl.constexpr,
    LOWEST: tl.constexpr,
    STOCHASTIC: tl.constexpr,
    N: tl.constexpr,
    BLOCKS: tl.constexpr,
    WIDEST: tl.constexpr,
    ALONE: tl.constexpr,
    OCTETS: tl.constexpr,
):
    """uint[count] -> uint8[blocks, target]."""
    ROOM: tl.constexpr = 8 * TARGET - _HEADER_BITS
    MOST_ADDED: tl.constexpr = _MOST if STOCHASTIC else _HALF

    first = tl.program_id(0).to(tl.int64) * BLOCKS
    behind = tl.minimum(count - first * N, BLOCKS * N).to(tl.int32)
    block, number = tl.arange(0, BLOCKS)[:, None], tl.arange(0, N)[None, :]
    place, inside = block * N + number, block * N < behind
    # A mask would keep the loads of a thread apart, so that only the last program has one.
    if behind == BLOCKS * N:
        words = tl.load(values + first * N + place)
    else:
        words = tl.load(values + first * N + place, mask=place < behind, other=0)
    if WIDTH == 32:
        pattern = words.to(tl.int32, bitcast=True)
    elif MANTISSA == 7:
        pattern = words.to(tl.int32) << 16
    else:
        pattern = words.to(tl.float16, bitcast=True).to(tl.float32).to(tl.int32, bitcast=True)
    added = _random(first + block, seed, N) if STOCHASTIC else tl.full((1, 1), _HALF, tl.int32)

    negative = tl.where(pattern < 0, 1, 0)
    magnitude = pattern & 0x7FFFFFFF
    special, infinite = magnitude >= _INFINITY, magnitude == _INFINITY
    infinities = _total(tl.where(special, 1 << 8, 0) + tl.where(infinite, 1, 0))
    masked, infinities = tl.where(infinities > 0, 1, 0), infinities & 0xFF
    magnitude = tl.where(special | (magnitude < _NORMAL), _ZERO, magnitude)
    largest = _largest(magnitude)
    top = tl.maximum((largest >> _MANTISSA) - _BIAS, LOWEST - 1)
    leading = (largest >> _LEADING & _FIRST_BIT - 1) + _FIRST_BIT + 1
    size = tl.maximum(magnitude - (top << _MANTISSA), 0).to(tl.float32, bitcast=True)

    # Choosing a step.
    finest = tl.minimum(top + 1 - LOWEST, _MAX_FINER)
    finer = tl.full((BLOCKS, 1), 0, tl.int32)
    for i in tl.static_range(4):
        tried = finer + (8 >> i)
        _, left, _, left_by_widest = _choices(
            size, added, tried, leading, infinities, masked, MOST_ADDED, ROOM, N, WIDEST
        )
        fits = (tl.maximum(left, left_by_widest) >= 0) & (tried <= finest)
        finer = tl.where(fits, tried, finer)
    wide, left, widest, left_by_widest = _choices(
        size, added, finer, leading, infinities, masked, MOST_ADDED, ROOM, N, WIDEST
    )
    core = tl.where(left_by_widest > left, WIDEST, 1)
    wide = tl.where(left_by_widest > left, widest, wide)
    left = tl.maximum(left, left_by_widest)
    # A block that fits at no step only says which values are special.
    core, wide, left = tl.where(left < 0, 0, core), tl.where(left < 0, 0, wide), tl.maximum(left, 0)

    # Counting in steps.
    is_one = tl.where(infinite & (core > 0), 1, 0)
    scaled = (size * _power(finer + (_POINT - 1))).to(tl.int32)
    coarse = tl.where(finer > 0, (scaled >> 1) + added >> _POINT, 0) + is_one
    fine = (scaled + added >> _POINT) + 2 * is_one
    limit = (1 << tl.maximum(core, 1) - 1) - 1
    saves = (coarse > limit) & (fine <= 2 * limit + 1)
    used = _running(1 - tl.where(saves, wide, 0))
    moved = tl.minimum(-_largest(tl.where(used > left, -number, -N)), _MAX_MOVED)
    has_fine = number < moved
    whole = tl.where(has_fine, fine, coarse)
    most = tl.where(has_fine, 2 * limit + 1, limit)
    escapes = whole > most
    field = tl.where(escapes, most + 1, tl.where(negative > 0, -whole, whole)) + most

    # Laying out.
    rows = stored + first * TARGET + block * TARGET
    begin = tl.full((BLOCKS, 1), _HEADER_BYTES, tl.int32)
    if _any(masked):
        kinds = tl.where(special, 1, 0)
        if ALONE == 2:
            kinds += tl.where(infinite & (core == 0), 1 + negative, 0)
        width = tl.where(core > 0, masked, ALONE)
        _put(rows, kinds, begin, width, inside, ALONE)
        begin += width * (N // 8)
    _put(rows, tl.where(has_fine, field >> 1, field), begin, core, inside, WIDEST)
    begin += core * (N // 8)

    bits = tl.where(escapes, 2 * (coarse - limit - 1) + negative, 0).to(tl.uint32)
    bits = bits << (32 - tl.maximum(wide, 1)).to(tl.uint32)
    width = tl.where(escapes, wide, 0)
    window, end = tl.associative_scan((bits, width), 1, _append)
    end += 8 * begin
    for i in tl.static_range(2):
        octet = (end >> 3) - 1 - i
        bits = window >> (24 - 8 * i - (end & 7)).to(tl.uint32)
        tl.store(rows + octet, bits.to(tl.uint8), mask=inside & escapes & (octet >= end - wide >> 3))
    end = _largest(end)
    tail = _total(tl.where(number == N - 1, window, 0))
    tail = tail >> 1 >> (31 - (end & 7)).to(tl.uint32)

    # Octets with fine bits, the first of which may have the last bits of an escape, too.
    fine_bits = tl.where(has_fine, field & 1, 0) << 7 - number % 8
    group = tl.arange(0, N // 8)[None, :]
    octet = TARGET - 1 - group
    octets = _of_eight(fine_bits) + tl.where(octet == end >> 3, tail, 0).to(tl.int32)
    tl.store(rows + octet, octets.to(tl.uint8), mask=inside & (8 * group < moved))

    header = tl.where(core > 0, top + 1 - finer - LOWEST, 0)
    header |= moved << _MOVED | masked << _MASKED | core << _CORE | wide << _WIDE
    octet = tl.arange(0, OCTETS)[None, :]
    octets = tl.where(octet == end >> 3, tail, 0)
    octets = tl.where(octet < _HEADER_BYTES, (header >> 8 * tl.minimum(octet, 2)).to(tl.uint32), octets)
    between = (octet >= end >> 3) & (octet < TARGET - (moved + 7 >> 3))
    tl.store(rows + octet, octets.to(tl.uint8), mask=inside & ((octet < _HEADER_BYTES) | between))


# Decoding.


@triton.jit
def _spread(tile):
    """The same for eight each: [blocks, N / 8] -> [blocks, N]."""
    eights = tl.broadcast_to(tile[:, :, None], (tile.shape[0], tile.shape[1], 8))
    return tl.reshape(eights, (tile.shape[0], 8 * tile.shape[1]))


@triton.jit
def _get(rows, begin, width, inside, TARGET: tl.constexpr, N: tl.constexpr, MOST_BITS: tl.constexpr):
    """The inverse of :func:`_put`; behind a row there are zeros."""
    shift, place = width * (tl.arange(0, N) % 8)[None, :], begin + width * tl.arange(0, N // 8)[None, :]
    words = tl.full(place.shape, 0, tl.int32)
    fields = tl.full((rows.shape[0], N), 0, tl.int32)
    for i in tl.static_range(MOST_BITS):
        needed = inside & (i < width) & (place + i < TARGET)
        octet = tl.load(rows + place + i, mask=needed, other=0).to(tl.int32)
        if MOST_BITS <= 4:
            words |= octet << 8 * i
        else:
            fields |= _spread(octet << 16) >> tl.minimum(tl.maximum(shift + (16 - 8 * i), 0), 31)
    if MOST_BITS <= 4:
        fields = _spread(words) >> shift
    return fields & (1 << width) - 1


@triton.jit(do_not_specialize=["count", "call"])
def _decompress(
    stored,
    values,
    count,
    record,
    call,
    TARGET: tl.constexpr,
    WIDTH: tl.constexpr,
    MANTISSA: tl.constexpr,
    LOWEST: tl.constexpr,
    STOCHASTIC: tl.constexpr,
    N: tl.constexpr,
    BLOCKS: tl.constexpr,
    WIDEST: tl.constexpr,
    ALONE: tl.constexpr,
    OCTETS: tl.constexpr,
):
    """uint8[blocks, target] -> uint[count]; the first invalid block goes into the record."""
    HIDDEN: tl.constexpr = 1 << MANTISSA
    SIGN: tl.constexpr = 1 << (WIDTH - 1)
    INFINITY: tl.constexpr = SIGN - HIDDEN

    first = tl.program_id(0).to(tl.int64) * BLOCKS
    behind = tl.minimum(count - first * N, BLOCKS * N).to(tl.int32)
    block, number = tl.arange(0, BLOCKS)[:, None], tl.arange(0, N)[None, :]
    inside = block * N < behind
    rows = stored + first * TARGET + block * TARGET
    header = tl.full(block.shape, 0, tl.int32)
    for i in tl.static_range(_HEADER_BYTES):
        header |= tl.load(rows + i, mask=inside, other=0).to(tl.int32) << 8 * i
    moved, masked = header >> _MOVED & _MOVED_MASK, header >> _MASKED & 1
    core, wide = header >> _CORE & _CORE_MASK, header >> _WIDE
    too_long = (N * (core + masked) + moved > 8 * TARGET - _HEADER_BITS) | (moved > N)
    invalid = tl.where(core > 0, too_long, header != _ALONE_HEADER)
    core = tl.where(invalid, 0, core)  # which may be wider than there is room for
    has_core = core > 0

    width, begin = tl.where(has_core, masked, ALONE), tl.full(block.shape, _HEADER_BYTES, tl.int32)
    special = _get(rows, begin, width, inside, TARGET, N, ALONE)
    begin += N // 8 * width
    field = _get(rows, begin, core, inside, TARGET, N, WIDEST)
    begin = 8 * begin + N * core
    # Fine bits go down from the end, the highest of an octet first.
    has_fine = tl.where(number < moved, 1, 0)
    octets = tl.load(rows + TARGET - 1 - tl.arange(0, N // 8)[None, :], mask=inside, other=0)
    field = field << has_fine | _spread(octets.to(tl.int32)) >> 7 - number % 8 & has_fine
    # The largest field is an escape's, and half of it that of 0. Without a core all are 0.
    largest = (1 << core + has_fine) - 1
    escapes = tl.where(field == largest, 1, 0)
    place = begin + (_running(escapes) - escapes) * wide
    bits = tl.full((BLOCKS, N), 0, tl.int32)
    for i in tl.static_range(3):
        octet = (place >> 3) + i
        needed = inside & (escapes > 0) & (octet < TARGET)
        bits |= tl.load(rows + octet, mask=needed, other=0).to(tl.int32) << 8 * i
    bits = bits >> (place & 7) & (1 << wide) - 1
    beyond = 2 * ((bits >> 1) + (1 << core >> 1))
    beyond = tl.where(bits & 1 > 0, -beyond, beyond)
    whole = tl.where(escapes > 0, beyond, field - (largest >> 1) << 1 - has_fine)

    # Counts have 17 bits, so that in fp32 the value is exact; two factors are as good as one.
    exponent = (header & _GRID_MASK) + LOWEST
    half = exponent >> 1
    size = tl.abs(whole).to(tl.float32) * _power(half) * _power(exponent - half)
    if WIDTH == 32 or MANTISSA == 7:
        pattern = size.to(tl.int32, bitcast=True)
        if WIDTH == 16:
            pattern = pattern + 0x7FFF + (pattern >> 16 & 1) >> 16
    else:
        pattern = tl.minimum(size, 65504.0).to(tl.float16).to(tl.uint16, bitcast=True).to(tl.int32)
    pattern = tl.minimum(pattern, INFINITY - 1)
    of_value = tl.where(whole == 0, 1, tl.where(whole > 0, 2, 3))
    kind = tl.where(has_core & (special > 0), of_value, special)
    pattern = tl.where(kind > 0, tl.where(kind > 1, INFINITY, INFINITY + HIDDEN // 2), pattern)
    negative = tl.where(kind > 0, kind == 3, whole < 0)
    decoded = pattern.to(tl.uint32) + tl.where(negative, SIGN, 0).to(tl.uint32)
    place = block * N + number
    decoded = decoded.to(values.dtype.element_ty)
    if behind == BLOCKS * N:
        tl.store(values + first * N + place, decoded)
    else:
        tl.store(values + first * N + place, decoded, mask=place < behind)

    # All entries get the same call and block, so that the bytes are of one header.
    entry = (call.to(tl.int64) << 40) + (first + block << 8)
    entries = record + tl.full(block.shape, 0, tl.int32)
    for i in tl.static_range(_HEADER_BYTES):
        tl.atomic_min(entries + i, entry + (header >> 8 * i & 0xFF), mask=inside & invalid, sem="relaxed")


class TritonStepBackend(TritonBackend):
    """The same backend for the step format."""

    kernels = Kernels(_compress, _decompress, _constants, _WARPS)
