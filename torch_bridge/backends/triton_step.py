"""The step format as two Triton kernels, one for each direction; the bytes are golden's.

What the bits mean is said in ``golden/step.py`` and docs/format.md; this file says how it is done fast. A
program has some blocks, int32[blocks, N] in a tile, and what holds for a block is a column of it. A block is
aligned once; up to the choice of a step there are then only counts of values beyond some bound, several of
them in the bytes of one sum. Fields become bytes without atomics: they are shifted to where they begin in
their words and summed up from the first, and what two of these sums differ by is what begins between them.
Each value is read once and each byte written once.
"""

# In a kernel, names in capitals are constants at compile time. Only Triton's built-in functions are called,
# and sums and maxima by the combinations that Triton's own have: these can be interpreted even where Triton
# itself was imported for compiling.
# ruff: noqa: N803, N806

from __future__ import annotations

import triton
import triton.language as tl

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

from .triton_kernels import Kernels, TritonBackend

# Of a program: whole blocks in one warp, so that no sum waits for another; eight values for each thread.
_WARPS, _VALUES = 1, 256
_WORD = tl.constexpr(16)  # bits of the words that rows are put together from

# What the kernels take from golden, as Triton wants it.
_OFFSET, _CORE, _SHORT, _WIDE = (tl.constexpr(sum(list(FIELDS.values())[:i])) for i in range(1, 5))
_GRID_MASK, _OFFSET_MASK, _CORE_MASK = (
    tl.constexpr((1 << FIELDS[name]) - 1) for name in ("grid", "offset", "core")
)
_OFFSET_BITS = tl.constexpr(FIELDS["offset"])
_HEADER_BITS, _HEADER_BYTES = tl.constexpr(8 * HEADER_BYTES), tl.constexpr(HEADER_BYTES)
_ALIGNED, _MASKED, _MAX_CORE = tl.constexpr(ALIGNED_BITS), tl.constexpr(MASKED), tl.constexpr(MAX_CORE)
_MAX_OFFSET = tl.constexpr(MAX_OFFSET)
_BLOCK_STRIDE, _PLACE_STRIDE = tl.constexpr(BLOCK_STRIDE), tl.constexpr(PLACE_STRIDE)
_COARSEST = tl.constexpr(ALIGNED_BITS + 2)  # bits of an aligned value below the step at which all are 0
_FINEST = tl.constexpr(ALIGNED_BITS + 2 - MAX_FINER)
_UNREACHED = tl.constexpr(1 << 20)  # more than any code
_TOO_LONG = tl.constexpr(1 << 24)


def _constants(fmt: StepFormat) -> dict[str, int]:
    """What both kernels are compiled for."""
    return {
        "TARGET": fmt.target,
        "WIDTH": fmt.float_type.width,
        "MANTISSA": fmt.float_type.mantissa_bits,
        "LOWEST": fmt.lowest_grid,
        "STOCHASTIC": fmt.rounding == "stochastic",
        "N": fmt.block,
        "LOG_N": fmt.block.bit_length() - 1,
        "BLOCKS": _VALUES // fmt.block,  # of a program
        "WORDS": triton.next_power_of_2(triton.cdiv(fmt.target, 2)),  # in a block
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
def _bit_length(number):
    """int.bit_length of each number from 0 to 2**24 - 1, from the exponent of the float."""
    return tl.maximum((number.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 126, 0)


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
def _rounded(aligned, noise, shift, STOCHASTIC: tl.constexpr):
    """Aligned values in steps of 2**shift."""
    size = tl.abs(aligned)
    if STOCHASTIC:
        size = size + (noise >> 32 - shift).to(tl.int32) >> shift
    else:
        size = size + (1 << shift >> 1) >> shift
    return tl.where(aligned < 0, -size, size)


@triton.jit
def _coarse(aligned, noise, shift, STOCHASTIC: tl.constexpr):
    """The same, but that at the coarsest step all values are 0."""
    return tl.where(shift < _COARSEST, _rounded(aligned, noise, shift, STOCHASTIC), 0)


@triton.jit
def _is_likely(core, step, escapes, longest, room, masked, N: tl.constexpr):
    """Whether a block seems to fit."""
    wide = longest - step + 1
    fits = N * core + escapes * tl.where(masked > 0, _MASKED, wide) <= room
    return fits & (core > 0) & (wide < _MASKED)


@triton.jit
def _escape_bound(core, step):
    """From where on a distance is taken for an escape."""
    return 1 << tl.minimum(step + tl.where(core > 1, core - 1, -1), 20)


@triton.jit
def _least(core):
    """The least magnitude of an escape."""
    return tl.where(core > 0, 1 << tl.maximum(core - 1, 0), _UNREACHED)


@triton.jit
def _shortest(
    aligned,
    noise,
    total,
    special,
    infinite,
    step,
    widest,
    masked,
    STOCHASTIC: tl.constexpr,
    N: tl.constexpr,
    LOG_N: tl.constexpr,
):
    """The fewest bits that each block takes with steps of 2**step, and the header, but for the grid."""
    offset = total + (1 << step + (LOG_N - 1)) >> step + LOG_N
    offset = tl.minimum(tl.maximum(offset, -_MAX_OFFSET), _MAX_OFFSET)
    offset = tl.where(step < _COARSEST, offset, 0)
    whole = _coarse(aligned, noise, step, STOCHASTIC)
    length, header = tl.full(step.shape, _TOO_LONG, tl.int32), tl.full(step.shape, 0, tl.int32)
    for split in tl.static_range(3):
        core = widest - 2 + split if split > 0 else tl.minimum(widest, 1)
        middle = offset if split > 0 else tl.full(offset.shape, 0, tl.int32)
        size, least = tl.abs(tl.where(special, infinite, whole - middle)), _least(core)
        counts = _total(tl.where(size >= least, 1, 0) + tl.where(size > least, 1 << 8, 0))
        escapes, farther = counts & 0xFF, counts >> 8
        beyond = _largest(size) - least
        for short in tl.static_range(2):
            bits = _bit_length(tl.maximum(beyond - short, 0)) + 1 - short
            bits = tl.where(beyond >= short, bits, 0)
            wide = tl.where(masked > 0, _MASKED, bits)
            taken = N * core + 2 * short * escapes + (farther if short else escapes) * wide
            better = (core > 0) & (bits < masked + _MASKED) & (taken < length)
            # The width lies above the bit that says whether there is a short form.
            fields = (middle & _OFFSET_MASK) << _OFFSET | core << _CORE | 2 * wide + short << _SHORT
            length, header = tl.where(better, taken, length), tl.where(better, fields, header)
    return length, header


@triton.jit
def _offset_of(header):
    offset = header >> _OFFSET & _OFFSET_MASK
    return tl.where(offset > _MAX_OFFSET, offset - (_OFFSET_MASK + 1), offset)


@triton.jit
def _core_of(header):
    return header >> _CORE & _CORE_MASK


@triton.jit
def _escape_bits(codes, header):
    """Bits that each code takes beside its core."""
    beyond = tl.abs(codes) - _least(_core_of(header))
    short, wide = header >> _SHORT & 1, header >> _WIDE
    return tl.where(beyond >= 0, 2 * short, 0) + tl.where(beyond >= short, wide, 0)


@triton.jit
def _up_to(fields, starts, ends):
    """The sum of the fields that begin in a word or before it, each shifted to its place in its own word.

    ``starts`` are the places of fields, and ``ends`` how many of them begin before the end of a word.
    """
    running = _running((fields << starts % _WORD).to(tl.uint32))
    return tl.where(ends > 0, tl.gather(running, tl.maximum(ends - 1, 0), 1), 0)


@triton.jit
def _up_to_evenly(fields, begin, width, limit, N: tl.constexpr):
    """The same for fields of one width in a block."""
    width = tl.maximum(width, 1)
    ends = tl.minimum(tl.maximum((limit - begin + width - 1) // width, 0), N)
    return _up_to(fields, begin + width * tl.arange(0, N)[None, :], ends)


@triton.jit
def _up_to_unevenly(fields, begin, widths, limit, N: tl.constexpr, LOG_N: tl.constexpr):
    """The same for fields of any widths, the number that begin in time by bisection."""
    starts = begin + _running(widths) - widths
    ends = tl.full((begin + limit).shape, 0, tl.int32)
    for i in tl.static_range(LOG_N + 1):
        more = N >> i + 1 if i < LOG_N else 1
        ends += tl.where(tl.gather(starts, ends + (more - 1), 1) < limit, more, 0)
    return _up_to(fields, starts, ends)


# The kernels.


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
    LOG_N: tl.constexpr,
    BLOCKS: tl.constexpr,
    WORDS: tl.constexpr,
):
    """uint[count] -> uint8[blocks, target]."""
    ROOM: tl.constexpr = 8 * TARGET - _HEADER_BITS
    BITS_ALONE: tl.constexpr = 2 if ROOM >= 2 * N else 1
    HIDDEN: tl.constexpr = 1 << MANTISSA
    INFINITY: tl.constexpr = (1 << (WIDTH - 1)) - HIDDEN
    BIAS: tl.constexpr = INFINITY >> MANTISSA + 1

    first = tl.program_id(0).to(tl.int64) * BLOCKS
    left = tl.minimum(count - first * N, BLOCKS * N).to(tl.int32)
    block, number = tl.arange(0, BLOCKS)[:, None], tl.arange(0, N)[None, :]
    place = block * N + number
    words = tl.load(values + first * N + place, mask=place < left, other=0).to(tl.uint32)
    negative = words >> (WIDTH - 1) == 1
    magnitude = (words & INFINITY + HIDDEN - 1).to(tl.int32)
    noise = words
    if STOCHASTIC:
        key = _mixed((first + block).to(tl.uint32) * _BLOCK_STRIDE + seed.to(tl.uint32))
        noise = _mixed(key ^ number.to(tl.uint32) * _PLACE_STRIDE)

    # Aligning.
    special = magnitude >= INFINITY
    infinite = tl.where(magnitude == INFINITY, tl.where(negative, -1, 1), 0)
    masked = _largest(special.to(tl.int32))
    magnitude = tl.where(special, 0, magnitude)
    largest = _largest(magnitude)
    field = largest >> MANTISSA
    top = tl.where(field > 0, field, _bit_length(largest) - MANTISSA) - BIAS
    top = tl.maximum(tl.where(largest > 0, top, LOWEST - 1), LOWEST - 1)
    unit = top - _ALIGNED + BIAS + MANTISSA  # the field whose last bit counts as 1
    up_by = tl.maximum(tl.maximum(field, 1) - unit, 0)
    field = magnitude >> MANTISSA
    size = (magnitude & HIDDEN - 1) + tl.where(field > 0, HIDDEN, 0)
    size = size << up_by >> tl.minimum(unit + up_by - tl.maximum(field, 1), 31)
    aligned = tl.where(negative, -size, size)
    total = _total(aligned)

    # Guessing a step. What does not seem to fit at one does so at no finer one.
    room = ROOM - N * masked
    widest = tl.minimum(room // N, _MAX_CORE)
    finest = tl.maximum(LOWEST + 1 - top + _ALIGNED, _FINEST)
    mean = total + N // 2 >> LOG_N
    distance = tl.abs(aligned - mean)
    longest, longest_from_mean = _bit_length(_largest(size)), _bit_length(_largest(distance))
    mean_length = _bit_length(tl.abs(mean))
    likely = tl.full((BLOCKS, 1), _COARSEST, tl.int32)
    for i in tl.static_range(5):
        step = likely - (8 >> i if i < 4 else 1)
        counts = tl.where(size >= _escape_bound(1, step), 1, 0)
        counts += tl.where(distance >= _escape_bound(widest - 1, step), 1 << 8, 0)
        counts += tl.where(distance >= _escape_bound(widest, step), 1 << 16, 0)
        counts = _total(counts)
        fits = _is_likely(widest - 1, step, counts >> 8 & 0xFF, longest_from_mean, room, masked, N)
        fits |= _is_likely(widest, step, counts >> 16, longest_from_mean, room, masked, N)
        fits &= mean_length < step + _OFFSET_BITS
        fits |= _is_likely(tl.minimum(widest, 1), step, counts & 0xFF, longest, room, masked, N)
        likely = tl.where(fits & (step >= finest), step, likely)

    # Choosing: the first of four steps that fits. A block that none fits only says which are special.
    length = tl.full((BLOCKS, 1), _TOO_LONG, tl.int32)
    header = tl.full((BLOCKS, 1), _MASKED << _WIDE, tl.int32)
    chosen = tl.full((BLOCKS, 1), _COARSEST, tl.int32)
    for i in tl.static_range(4):
        step = likely - 1 + i if i < 3 else tl.full((BLOCKS, 1), _COARSEST, tl.int32)
        tried = (length > room) & (step >= finest) & (step <= _COARSEST)
        if _any(tried):
            new_length, new_header = _shortest(
                aligned, noise, total, special, infinite, step, widest, masked, STOCHASTIC, N, LOG_N
            )
            fits = tried & (new_length <= room)
            length, header = tl.where(fits, new_length, length), tl.where(fits, new_header, header)
            chosen = tl.where(fits, step, chosen)

    core, short, wide = _core_of(header), header >> _SHORT & 1, header >> _WIDE
    offset, least = _offset_of(header), _least(core)
    codes = _coarse(aligned, noise, chosen, STOCHASTIC) - offset
    codes = tl.where(special, infinite, codes)
    header |= tl.where(core > 0, top + chosen - (_ALIGNED + 1) - LOWEST, 0)

    # Refining: the first values, as many as there is room for, move to the fine grid.
    finely = _rounded(aligned, noise, chosen - 1, STOCHASTIC)
    moved = (finely >> 1) - offset
    farthest = least + tl.where(short > 0, 1 << wide, (1 << wide >> 1) - 1)
    moves = (tl.abs(moved) <= farthest) & (special == 0)
    moved = tl.where(moves, moved, codes)
    more = 1 + _escape_bits(moved, header) - _escape_bits(codes, header)
    fits = length + N * masked + _running(more) <= ROOM
    refined = number < _largest(tl.where(fits, number + 1, 0))
    codes = tl.where(refined, moved, codes)
    fine = tl.where(refined & moves, finely & 1, 0)

    # Laying out. What few blocks have is left out where none of a program has it.
    word = tl.arange(0, WORDS)[None, :]
    limit = word * _WORD + _WORD  # the place behind a word
    alone = core == 0
    begin = tl.full((BLOCKS, 1), _HEADER_BITS, tl.int32)
    up_to = tl.broadcast_to(header, (BLOCKS, WORDS)).to(tl.uint32)  # which begins in the first word
    if _any(masked > 0):
        kinds = special.to(tl.int32)
        if BITS_ALONE == 2:
            kinds += tl.where(alone, tl.where(infinite < 0, 2, infinite), 0)
        width = tl.where(alone, BITS_ALONE, tl.where(wide == _MASKED, 1, 0))
        up_to += _up_to_evenly(kinds, begin, width, limit, N)
        begin += N * width
    beyond = tl.abs(codes) - least
    sign = tl.where(codes < 0, 1, 0)
    field = tl.where(alone, 0, tl.where(beyond >= 0, 2 * least - 1, codes + least - 1))
    up_to += _up_to_evenly(field, begin, core, limit, N)
    begin += N * core
    if _any(short > 0):
        has_form = (beyond >= 0) & (short > 0)
        form = tl.where(has_form, sign + tl.where(beyond > 0, 2, 0), 0)
        form_bits = tl.where(has_form, 2, 0)
        up_to += _up_to_unevenly(form, begin, form_bits, limit, N, LOG_N)
        begin += _total(form_bits)
    is_wide = beyond >= short
    field = tl.where(is_wide, tl.where(short > 0, beyond - 1, 2 * beyond + sign), 0)
    bits = tl.where(is_wide, wide, 0)
    up_to += _up_to_unevenly(field, begin, bits, limit, N, LOG_N)
    begin += _total(bits)
    up_to += _up_to_evenly(fine, begin, tl.full((BLOCKS, 1), 1, tl.int32), limit, N)

    # What begins in a word reaches into the next one at most.
    before = tl.broadcast_to(tl.maximum(word - 1, 0), (BLOCKS, WORDS))
    begun = up_to - tl.where(word > 0, tl.gather(up_to, before, 1), 0)
    packed = begun + tl.where(word > 0, tl.gather(begun, before, 1) >> _WORD, 0)
    for i in tl.static_range(2):
        octet = 2 * word + i
        rows = stored + first * TARGET + (block * TARGET + octet)
        tl.store(rows, (packed >> 8 * i).to(tl.uint8), mask=(block * N < left) & (octet < TARGET))


@triton.jit
def _take(rows, place, width, inside, TARGET: tl.constexpr):
    """Fields of up to 15 bits; bits behind the row are 0."""
    octet, low = place >> 3, place & 7
    bits = tl.full((octet + width).shape, 0, tl.int32)
    for i in tl.static_range(3):
        needed = inside & (width > 0) & (low + width > 8 * i) & (octet < TARGET - i)
        bits |= tl.load(rows + octet + i, mask=needed, other=0).to(tl.int32) << 8 * i
    return bits >> low & (1 << width) - 1


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
    LOG_N: tl.constexpr,
    BLOCKS: tl.constexpr,
    WORDS: tl.constexpr,
):
    """uint8[blocks, target] -> uint[count]; the first invalid block goes into the record."""
    BITS_ALONE: tl.constexpr = 2 if 8 * TARGET - _HEADER_BITS >= 2 * N else 1
    HIDDEN: tl.constexpr = 1 << MANTISSA
    SIGN: tl.constexpr = 1 << (WIDTH - 1)
    INFINITY: tl.constexpr = SIGN - HIDDEN

    first = tl.program_id(0).to(tl.int64) * BLOCKS
    left = tl.minimum(count - first * N, BLOCKS * N).to(tl.int32)
    block, number = tl.arange(0, BLOCKS)[:, None], tl.arange(0, N)[None, :]
    inside = block * N < left
    rows = stored + first * TARGET + block * TARGET
    header = tl.full(block.shape, 0, tl.int32)
    for i in tl.static_range(_HEADER_BYTES):
        header |= tl.load(rows + i, mask=inside, other=0).to(tl.int32) << 8 * i
    grid = (header & _GRID_MASK) + LOWEST
    core, short, wide = _core_of(header), header >> _SHORT & 1, header >> _WIDE
    alone, least = core == 0, _least(core)

    width = tl.where(alone, BITS_ALONE, tl.where(wide == _MASKED, 1, 0))
    special = _take(rows, width * number + _HEADER_BITS, width, inside, TARGET)
    begin = N * width + _HEADER_BITS
    field = _take(rows, begin + core * number, core, inside, TARGET)
    begin += N * core
    escapes = field > 2 * least - 2
    width = tl.where(escapes, 2 * short, 0)
    form = _take(rows, begin + _running(width) - width, width, inside, TARGET)
    begin += _total(width)
    is_wide = escapes & ((short == 0) | (form > 1))
    width = tl.where(is_wide, wide, 0)
    long_form = _take(rows, begin + _running(width) - width, width, inside, TARGET)
    begin += _total(width)
    fine = _take(rows, begin + number, tl.where(alone, 0, 1), inside, TARGET)

    negative = tl.where(short > 0, form, long_form) & 1
    beyond = tl.where(short > 0, tl.where(is_wide, long_form + 1, 0), long_form >> 1)
    codes = tl.where(negative > 0, -least - beyond, least + beyond)
    codes = tl.where(escapes, codes, tl.where(alone, 0, field - least + 1))

    # Counts have 17 bits, so that in fp32 the value is exact; two factors are as good as one.
    whole = 2 * (codes + _offset_of(header)) + fine
    half = grid >> 1
    factor = (half + 127 << 23).to(tl.float32, bitcast=True)
    other = (grid - half + 127 << 23).to(tl.float32, bitcast=True)
    size = tl.abs(whole).to(tl.float32) * factor * other
    if WIDTH == 32 or MANTISSA == 7:
        pattern = size.to(tl.int32, bitcast=True)
        if WIDTH == 16:
            pattern = pattern + 0x7FFF + (pattern >> 16 & 1) >> 16
    else:
        pattern = tl.minimum(size, 65504.0).to(tl.float16).to(tl.uint16, bitcast=True).to(tl.int32)
    pattern = tl.minimum(pattern, INFINITY - 1)
    negative = (whole < 0) & (pattern > 0)
    codes = tl.where(alone, (special >> 1) * (1 - 2 * (special & 1)), codes)
    pattern = tl.where(special > 0, tl.where(codes == 0, INFINITY + HIDDEN // 2, INFINITY), pattern)
    negative = tl.where(special > 0, codes < 0, negative)
    decoded = pattern.to(tl.uint32) + tl.where(negative, SIGN, 0).to(tl.uint32)
    place = block * N + number
    decoded = decoded.to(values.dtype.element_ty)
    tl.store(values + first * N + place, decoded, mask=place < left)

    # Sections that are longer than the row, or no values and yet not the header that belongs to that.
    invalid = inside & ((begin > 8 * TARGET) | alone & (header != _MASKED << _WIDE))
    # All entries get the same call and block, so that the bytes are of one header.
    entry = (call.to(tl.int64) << 40) + (first + block << 8)
    entries = record + tl.full(block.shape, 0, tl.int32)
    for i in tl.static_range(_HEADER_BYTES):
        tl.atomic_min(entries + i, entry + (header >> 8 * i & 0xFF), mask=invalid, sem="relaxed")


class TritonStepBackend(TritonBackend):
    """The same backend for the step format."""

    kernels = Kernels(_compress, _decompress, _constants, _WARPS)
