"""The bit-plane format as two Triton kernels, one for each direction; the bytes are golden's.

What the bits mean is said in ``golden/plane.py`` and docs/format.md; this file says how it is done fast. A
block is cut into groups of 32 values (16 if it has no more), and a tile holds a group in each column:
uint32[values, groups]. A thread has a whole column: it combines values and transposes their bits without the
others, and what holds for a block is worked out once for 32 values. Then the planes move to their slots and,
from thread to thread, to where neighbours hold neighbouring bytes; each value is read once and each byte
written once.
"""

# In a kernel, names in capitals are constants at compile time.
# ruff: noqa: N803, N806

from __future__ import annotations

import triton
import triton.language as tl

from golden import PlaneFormat

from .triton_tiles import (
    COLUMNS,
    Kernels,
    bitwise_or,
    by_block,
    fold_rows,
    larger,
    own_columns,
    pairs,
    smaller,
    to_columns,
    unpair,
)


def _constants(fmt: PlaneFormat) -> dict[str, int]:
    """What both kernels are compiled for."""
    assert fmt.target is not None
    values = min(fmt.block, 32)
    touched = fmt.slots + (fmt.partial > 0)
    return {
        "TARGET": fmt.target,
        "WIDTH": fmt.float_type.width,
        "MANTISSA": fmt.float_type.mantissa_bits,
        "NEAREST": fmt.rounding == "nearest",
        "SLOTS": fmt.slots,
        "PARTIAL": fmt.partial,
        "TOUCHED": touched,  # slots of which at least one bit can be stored
        "ROWS": triton.next_power_of_2(touched),
        "VALUES": values,  # of a group
        "PER_BLOCK": fmt.block // values,  # groups
        "BLOCKS": COLUMNS * values // fmt.block,  # of a program
    }


# Bits.


@triton.jit
def _swap(tile, SIZE: tl.constexpr):
    """One stage of ``_transpose_bits``: swap the off-diagonal sub-matrices of that size."""
    upper, lower = pairs(tile, SIZE)
    swap = (upper >> SIZE ^ lower) & (0xFFFFFFFF // ((1 << SIZE) + 1))
    return unpair(upper ^ swap << SIZE, lower ^ swap)


@triton.jit
def _transpose_bits(tile):
    """Transpose the bit matrix in each column: 32 rows, or 16 for two 16x16 matrices side by side.

    Bit ``c`` of row ``r`` changes places with bit ``r`` of row ``c`` (Warren, Hacker's Delight, 7-3).
    """
    if tile.shape[0] == 32:
        tile = _swap(tile, 16)
    tile = _swap(tile, 8)
    tile = _swap(tile, 4)
    tile = _swap(tile, 2)
    return _swap(tile, 1)


@triton.jit
def _reverse_bits(word, WIDTH: tl.constexpr):
    """The low bits of a word in the opposite order, the others cleared."""
    if WIDTH == 32:
        word = word << 16 | word >> 16
    word = (word & 0x00FF00FF) << 8 | word >> 8 & 0x00FF00FF
    word = (word & 0x0F0F0F0F) << 4 | word >> 4 & 0x0F0F0F0F
    word = (word & 0x33333333) << 2 | word >> 2 & 0x33333333
    word = (word & 0x55555555) << 1 | word >> 1 & 0x55555555
    return word & ((1 << WIDTH) - 1)


@triton.jit
def _count_bits(word):
    word -= word >> 1 & 0x55555555
    word = (word & 0x33333333) + (word >> 2 & 0x33333333)
    word = word + (word >> 4) & 0x0F0F0F0F
    return word * 0x01010101 >> 24


@triton.jit
def _from_lowest(word):
    """The lowest bit that is set and all above it; none if none is set."""
    return word | 0 - word


@triton.jit
def _lowest_bit(word):
    """The place of the lowest bit that is set, as a float's exponent."""
    return ((word & 0 - word).to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127


@triton.jit
def _to_planes(words, WIDTH: tl.constexpr):
    """Words of groups, [values, groups] -> their planes, the least weight first, [width, groups]."""
    if WIDTH == 16 and words.shape[0] == 32:
        upper, lower = pairs(words, 16)
        words = tl.reshape(upper | lower << 16, (16, words.shape[1]))
    planes = _transpose_bits(words)
    if WIDTH == 32 and words.shape[0] == 16:
        planes = tl.reshape(planes, (1, 16, planes.shape[1]))
        planes = unpair(planes & 0xFFFF, planes >> 16)
    return planes


@triton.jit
def _from_planes(planes, VALUES: tl.constexpr):
    """The inverse of ``_to_planes``."""
    if VALUES == 16 and planes.shape[0] == 32:
        upper, lower = pairs(planes, 16)
        planes = tl.reshape(upper | lower << 16, (16, planes.shape[1]))
    words = _transpose_bits(planes)
    if VALUES == 32 and planes.shape[0] == 16:
        words = tl.reshape(words, (1, 16, words.shape[1]))
        words = unpair(words & 0xFFFF, words >> 16)
    return words


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
    NEAREST: tl.constexpr,
    SLOTS: tl.constexpr,
    PARTIAL: tl.constexpr,
    TOUCHED: tl.constexpr,
    ROWS: tl.constexpr,
    VALUES: tl.constexpr,
    PER_BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """uint[count] -> uint8[blocks, target]."""
    HEADER: tl.constexpr = 1 + WIDTH // 8
    SIGN: tl.constexpr = 1 << (WIDTH - 1)
    MANTISSA_MASK: tl.constexpr = (1 << MANTISSA) - 1
    INFINITY: tl.constexpr = SIGN - 1 - MANTISSA_MASK
    EXPONENT: tl.constexpr = WIDTH - 1 - MANTISSA
    QUIET: tl.constexpr = 1 << (MANTISSA - 1)
    GROUPS: tl.constexpr = BLOCKS * PER_BLOCK

    before = tl.program_id(0).to(tl.int64) * BLOCKS
    left = tl.minimum(count - before * (PER_BLOCK * VALUES), GROUPS * VALUES).to(tl.int32)
    group = tl.arange(0, GROUPS)
    value = tl.arange(0, VALUES)
    place = value[:, None] + group[None, :] * VALUES
    values += before * (PER_BLOCK * VALUES)
    # A mask would keep the loads of a thread apart, so that only the last program has one.
    if left == GROUPS * VALUES:
        words = tl.load(values + place)
    else:
        words = tl.load(values + place, mask=place < left, other=0)
    words = own_columns(words).to(tl.uint32)

    magnitude = words & (SIGN - 1)
    largest = fold_rows(magnitude, larger, False)
    # Magnitudes with exponent field 0 wrap to the largest, so that the minimum ignores them.
    smallest = fold_rows(magnitude - (1 << MANTISSA), smaller, False)
    present = fold_rows(words, bitwise_or, False)
    # Where a block is one group this changes no value, but deals the results out, one to a thread.
    largest = to_columns(tl.reduce(by_block(largest, PER_BLOCK), 1, larger), PER_BLOCK)
    smallest = to_columns(tl.reduce(by_block(smallest, PER_BLOCK), 1, smaller), PER_BLOCK)
    present = to_columns(tl.reduce(by_block(present, PER_BLOCK), 1, bitwise_or), PER_BLOCK)

    top = largest >> MANTISSA
    base = tl.where(top > 0, (smallest >> MANTISSA) + 1, 1)
    # A delta's bits and those below it: one for each plane that deltas take, and there is room for.
    deltas = tl.where(top > 0, top - base + 1, 0)
    deltas |= deltas >> 1
    deltas |= deltas >> 2
    deltas |= deltas >> 4
    any_nan = largest > INFINITY
    present |= tl.where(any_nan, QUIET, 0).to(tl.uint32)
    room = SLOTS - (present >> (WIDTH - 1)) - any_nan.to(tl.uint32)
    most = (1 << tl.minimum(room, EXPONENT)) - 1
    flushed = deltas > most
    special = flushed & (most == 0)
    deltas = tl.where(flushed, most, deltas)
    base = tl.where(flushed, top + 1 - most, base)

    words = tl.where(magnitude > INFINITY, words | QUIET, words)
    normal = magnitude >= (base << MANTISSA)[None, :]
    below = words & tl.where(flushed, SIGN, 2 * SIGN - 1).to(tl.uint32)[None, :]
    coded = tl.where(normal, words - (base - 1 << MANTISSA)[None, :], below)

    # Flags in the header's order, where the lowest bit is the first plane.
    flags = present & (SIGN | MANTISSA_MASK) | deltas << MANTISSA
    header = _reverse_bits(flags, WIDTH)
    unstored = header
    for _ in tl.static_range(SLOTS):
        unstored &= unstored - 1
    # The bits of the planes that a value loses: those from the first that no slot is left for on.
    lost = _reverse_bits(_from_lowest(unstored), WIDTH)[None, :]
    if PARTIAL > 0:
        unstored &= unstored - 1
        lost_early = _reverse_bits(_from_lowest(unstored), WIDTH)[None, :]
        octet = (value // 8 * 8)[:, None] + (group % PER_BLOCK * VALUES)[None, :]
        lost = tl.where(octet < PARTIAL, lost_early, lost)
    header ^= unstored
    keep = lost ^ 0xFFFFFFFF
    if NEAREST:
        # Half a step less the least weight, and that weight again if the last kept bit is odd: a sum
        # that carries exactly when nearest-even rounds up. Where nothing is lost both are zero.
        rounded = coded + (lost >> 1) + tl.minimum(coded & lost << 1 & keep, 1)
        # A carry that leaves the stored planes, for a zero plane or the exponent, saturates.
        stray = (rounded ^ coded) & ((flags & MANTISSA_MASK)[None, :] ^ keep) & keep
        coded = tl.where(stray == 0, rounded, coded)
    coded &= keep
    if SLOTS == 2:
        infinite = tl.where(magnitude == INFINITY, words & SIGN | 1 << MANTISSA, 0)
        code = tl.where(magnitude > INFINITY, SIGN, infinite).to(tl.uint32)
        coded = tl.where(special[None, :], code, coded)
        header = tl.where(special, 1 | 1 << EXPONENT, header)
        base = tl.where(special, 0, base)

    # A slot that no plane claims takes one that is not stored. That is a zero plane: nothing is dropped
    # while there is room.
    slot = tl.arange(0, ROWS)[:, None]
    source = tl.full((ROWS, GROUPS), 0, tl.int32)
    unplaced = header
    for number in tl.static_range(TOUCHED):
        unplaced = tl.where(unplaced == 0, header ^ 0xFFFFFFFF, unplaced)
        source = tl.where(slot == number, WIDTH - 1 - _lowest_bit(unplaced)[None, :], source)
        unplaced &= unplaced - 1
    rows = tl.gather(_to_planes(coded, WIDTH), source, 0)

    rows = tl.permute(tl.reshape(rows, (ROWS, BLOCKS, PER_BLOCK)), (1, 0, 2))
    rows = tl.reshape(rows, (BLOCKS, ROWS * PER_BLOCK))
    stored += before * TARGET
    block = tl.arange(0, BLOCKS)[:, None]
    start = HEADER + tl.arange(0, ROWS * PER_BLOCK)[None, :] * (VALUES // 8)
    inside = block * (PER_BLOCK * VALUES) < left
    for i in tl.static_range(VALUES // 8):
        octets = (rows >> 8 * i).to(tl.uint8)
        tl.store(stored + block * TARGET + start + i, octets, mask=inside & (start + i < TARGET))

    # One group of a block writes its header.
    leads = (group % PER_BLOCK == 0) & (group * VALUES < left)
    headers = stored + group // PER_BLOCK * TARGET
    tl.store(headers, base.to(tl.uint8), mask=leads)
    for i in tl.static_range(WIDTH // 8):
        tl.store(headers + 1 + i, (header >> 8 * i).to(tl.uint8), mask=leads)


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
    NEAREST: tl.constexpr,
    SLOTS: tl.constexpr,
    PARTIAL: tl.constexpr,
    TOUCHED: tl.constexpr,
    ROWS: tl.constexpr,
    VALUES: tl.constexpr,
    PER_BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """uint8[blocks, target] -> uint[count]; the first invalid header goes into the record."""
    HEADER: tl.constexpr = 1 + WIDTH // 8
    SIGN: tl.constexpr = 1 << (WIDTH - 1)
    MANTISSA_MASK: tl.constexpr = (1 << MANTISSA) - 1
    INFINITY: tl.constexpr = SIGN - 1 - MANTISSA_MASK
    EXPONENT_MAX: tl.constexpr = INFINITY >> MANTISSA
    QUIET: tl.constexpr = 1 << (MANTISSA - 1)
    GROUPS: tl.constexpr = BLOCKS * PER_BLOCK

    before = tl.program_id(0).to(tl.int64) * BLOCKS
    left = tl.minimum(count - before * (PER_BLOCK * VALUES), GROUPS * VALUES).to(tl.int32)
    stored += before * TARGET
    block = tl.arange(0, BLOCKS)[:, None]
    start = HEADER + tl.arange(0, ROWS * PER_BLOCK)[None, :] * (VALUES // 8)
    inside = block * (PER_BLOCK * VALUES) < left
    rows = tl.full((BLOCKS, ROWS * PER_BLOCK), 0, tl.uint32)
    for i in tl.static_range(VALUES // 8):
        mask = inside & (start + i < TARGET)
        octets = tl.load(stored + block * TARGET + start + i, mask=mask, other=0)
        rows |= octets.to(tl.uint32) << 8 * i
    rows = tl.permute(tl.reshape(rows, (BLOCKS, ROWS, PER_BLOCK)), (1, 0, 2))
    rows = tl.reshape(rows, (ROWS, GROUPS))

    group = tl.arange(0, GROUPS)
    # Groups of a block that begin behind the last value need its header all the same.
    has_block = group // PER_BLOCK * (PER_BLOCK * VALUES) < left
    headers = stored + group // PER_BLOCK * TARGET
    base = tl.load(headers, mask=has_block, other=1).to(tl.uint32)
    header = tl.full((GROUPS,), 0, tl.uint32)
    for i in tl.static_range(WIDTH // 8):
        header |= tl.load(headers + 1 + i, mask=has_block, other=0).to(tl.uint32) << 8 * i
    flags = _reverse_bits(header, WIDTH)

    # Slots hold the flagged planes in order, the greatest weight first.
    flag = (1 << WIDTH - 1 - tl.arange(0, WIDTH)).to(tl.uint32)[:, None]
    slot = tl.minimum(_count_bits(header[None, :] & flag - 1), ROWS - 1).to(tl.int32)
    planes = tl.where((header[None, :] & flag) != 0, tl.gather(rows, slot, 0), 0)
    words = _from_planes(planes, VALUES)

    delta = words & INFINITY
    field = delta + (tl.maximum(base, 1) - 1 << MANTISSA)[None, :] & INFINITY
    decoded = tl.where(delta != 0, words ^ delta ^ field, words)
    if SLOTS == 2:
        sign = words & SIGN
        nan = tl.where(sign != 0, INFINITY | QUIET, 0).to(tl.uint32)
        code = tl.where((words & 1 << MANTISSA) != 0, sign | INFINITY, nan)
        decoded = tl.where((base == 0)[None, :], code, decoded)
    value = tl.arange(0, VALUES)
    place = value[:, None] + group[None, :] * VALUES
    values += before * (PER_BLOCK * VALUES)
    decoded = decoded.to(values.dtype.element_ty)
    if left == GROUPS * VALUES:
        tl.store(values + place, decoded)
    else:
        tl.store(values + place, decoded, mask=place < left)

    # Which headers are invalid, as in golden's check_headers.
    deltas = flags >> MANTISSA & EXPONENT_MAX
    valid = deltas & deltas + 1 == 0
    # The largest delta's field is at most the largest there is, and without deltas the base is 1.
    valid &= (base >= 1) & (base + (deltas + 1 >> 1) <= EXPONENT_MAX + 1) & ((deltas > 0) | (base == 1))
    valid &= (_count_bits(flags >> MANTISSA) <= SLOTS) & (_count_bits(flags) <= TOUCHED)
    valid |= (base == 0) & (flags == 0)
    if SLOTS == 2:
        valid |= (base == 0) & (flags == (SIGN | 1 << MANTISSA))
    invalid = has_block & ~valid
    # All entries get the same call and block, so that the bytes are of one header.
    entry = (call.to(tl.int64) << 40) + (before + group // PER_BLOCK << 8)
    entries = record + tl.full((GROUPS,), 0, tl.int32)
    tl.atomic_min(entries, entry + base, mask=invalid, sem="relaxed")
    for i in tl.static_range(WIDTH // 8):
        octet = header >> 8 * i & 0xFF
        tl.atomic_min(entries + 1 + i, entry + octet, mask=invalid, sem="relaxed")


KERNELS = Kernels(_compress, _decompress, _constants)
