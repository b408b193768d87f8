"""The corners of the bit-plane format that the ports of an engine can show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from golden import PlaneFormat

from .coverage import Corner
from .ports import Seen
from .shared_corners import kinds_of, place_corners, split, stored_end_corners, uncompressed_end_corners


def of_compressor(fmt: PlaneFormat, bus_bytes: int, seen: Seen) -> Iterator[Corner]:
    """What a compressor is given, and what that becomes."""
    kinds = kinds_of(fmt, seen.words)
    special = seen.stored[:, 0] == 0
    for kind, here in kinds.items():
        yield Corner("values", f"a {kind}", here.any(axis=1))
        yield Corner("values", f"nothing but {kind}", here.all(axis=1))
        met = here.any(axis=1) & special
        yield Corner("specials block", f"a {kind}", met, fmt.has_specials_blocks)
    nan = (kinds["quiet NaN"] | kinds["signalling NaN"]).any(axis=1)
    infinity = (kinds["+infinity"] | kinds["-infinity"]).any(axis=1)
    _, field, _ = split(fmt, seen.words)
    zero_code = (field == 0).any(axis=1) & (field > 0).any(axis=1)
    yield Corner("values", "zeros or subnormals beside others", zero_code)
    yield Corner("values", "NaN beside infinity", nan & infinity)
    yield from _plane_corners(fmt, seen)
    yield from place_corners(fmt, bus_bytes, seen)
    yield from uncompressed_end_corners(fmt, bus_bytes, seen)


def of_decompressor(fmt: PlaneFormat, bus_bytes: int, seen: Seen) -> Iterator[Corner]:
    """Which blocks, valid or not, a decompressor is given, and what values come out of those that are."""
    assert fmt.target is not None
    whole = seen.sizes == fmt.target
    invalid = fmt.check_headers(seen.stored[:, : fmt.header_bytes])
    valid = whole & ~invalid
    special = valid & (seen.stored[:, 0] == 0) & (seen.stored[:, 1] > 0)  # and no cleared memory
    for kind, here in kinds_of(fmt, seen.words).items():
        yield Corner("values", f"a {kind}", valid & here.any(axis=1))
        in_special = kind in ("+0", "+infinity", "-infinity", "quiet NaN")
        met = special & here.any(axis=1)
        yield Corner("specials block", f"a {kind}", met, fmt.has_specials_blocks and in_special)
        if kind != "signalling NaN":  # these an encoder never stores
            yield Corner("values", f"nothing but {kind}", valid & here.all(axis=1))
    yield from _header_corners(fmt, seen.stored, whole)
    yield from _stored_corners(fmt, seen, valid)
    yield from place_corners(fmt, bus_bytes, seen)
    yield from stored_end_corners(fmt, bus_bytes, seen)


def _stored_corners(fmt: PlaneFormat, seen: Seen, valid: np.ndarray) -> Iterator[Corner]:
    """Which planes a decompressor finds in a block, and what else its payload holds.

    A block that keeps ``most`` planes has so many for signs, deltas and mantissas together.
    """
    assert fmt.target is not None
    ft = fmt.float_type
    headers = seen.stored[:, : fmt.header_bytes]
    flags = np.unpackbits(headers[:, 1:], axis=1, bitorder="little").astype(bool)
    signs, exponents, mantissas = np.split(flags, [1, 1 + ft.exponent_bits], axis=1)
    signs, width, total = signs[:, 0], exponents.sum(axis=1), flags.sum(axis=1)
    plain = valid & (seen.stored[:, 0] > 0)
    most = fmt.slots + (fmt.partial > 0)
    for k in range(ft.exponent_bits + 1):
        yield Corner("delta width", f"{k} bits", plain & (width == k), k <= fmt.slots)
    for name, here, fewest in _mantissa_patterns(mantissas):
        yield Corner("flags", f"{name}, signs", plain & here & signs, fewest + 1 <= most)
        yield Corner("flags", f"{name}, no signs", plain & here & ~signs, fewest <= most)
    yield Corner("fit", "room to spare", plain & (total < fmt.slots))
    yield Corner("fit", "fills the whole slots", plain & (total == fmt.slots))
    met = plain & (total == fmt.slots + 1)
    yield Corner("fit", "ends in the partial slot", met, fmt.partial > 0 and fmt.slots < fmt.planes)

    planes = fmt.header_bytes + total * fmt.plane_bytes
    behind = (np.arange(fmt.target) >= planes[:, None]) & (seen.stored > 0)
    yield Corner("payload", "bytes behind the planes", plain & behind.any(axis=1))
    yield Corner(
        "payload", "bytes behind a cleared header", valid & (total == 0) & ~plain & behind.any(axis=1)
    )
    _, field, _ = split(fmt, seen.words)
    wraps = (field > 0) & (field < seen.stored[:, :1])
    # Deltas of two bits reach 0 and no farther.
    yield Corner("payload", "a delta beyond the largest field", plain & wraps.any(axis=1), fmt.slots > 2)


def _mantissa_patterns(flags: np.ndarray) -> list[tuple[str, np.ndarray, int]]:
    """Name of a class of mantissa planes, where it is met, and how many planes it has at least."""
    most = flags.shape[1]
    count = flags.sum(axis=1)
    has_gap = (np.diff(flags, axis=1, prepend=0) == 1).sum(axis=1) > 1
    return [
        ("no mantissa plane", count == 0, 0),
        ("one", count == 1, 1),
        ("some, side by side", (count > 1) & (count < most) & ~has_gap, 2),
        ("some, with zero planes between", has_gap, 2),
        ("all", count == most, most),
    ]


def _plane_corners(fmt: PlaneFormat, seen: Seen) -> Iterator[Corner]:
    """What a block's planes are, which of them fit, and how its values are rounded."""
    ft, words = fmt.float_type, seen.words
    base = seen.stored[:, 0].astype(int)
    _, field, mantissa = split(fmt, words)
    nan = (field == ft.exponent_max) & (mantissa > 0)
    mantissa = np.where(nan, mantissa | ft.quiet_bit, mantissa)
    quieted = np.where(nan, words | ft.bits.type(ft.quiet_bit), words)

    # The flags if there were room for everything.
    flags = _flags(fmt, replace(fmt, target=None).encode(quieted).flags)
    signs, exponents, mantissas = np.split(flags, [1, 1 + ft.exponent_bits], axis=1)
    width = exponents.sum(axis=1)
    for k in range(ft.exponent_bits + 1):
        yield Corner("delta width", f"{k} bits", width == k)
    for name, met, _ in _mantissa_patterns(mantissas):
        yield Corner("flags", f"{name}, signs", met & signs[:, 0])
        yield Corner("flags", f"{name}, no signs", met & ~signs[:, 0])

    # Signs and quiet bits take up to two slots; a block is flushed if the rest is too little.
    is_plain = base > 0
    room = fmt.slots - signs[:, 0] - nan.any(axis=1)
    flushed = is_plain & (width > room)
    for planes in range(fmt.slots - 2, fmt.slots + 1):
        met = flushed & (room == planes)
        yield Corner("flushed", f"to {planes} exponent planes", met, 0 < planes < ft.exponent_bits)

    kept_width = np.minimum(width, room)[:, None]
    flags[:, 1 : 1 + ft.exponent_bits] = np.arange(ft.exponent_bits, 0, -1) <= kept_width
    total = np.where(is_plain, flags.sum(axis=1), 0)
    partial = int(fmt.partial > 0)
    most = fmt.planes - fmt.slots  # planes beyond the whole slots, at most
    yield Corner("fit", "room to spare", is_plain & (total < fmt.slots))
    yield Corner("fit", "fills the whole slots", total == fmt.slots)
    met = (total == fmt.slots + 1) & (partial == 1)
    yield Corner("fit", "ends in the partial slot", met, partial == 1 and most >= 1)
    yield Corner("fit", "planes dropped", total > fmt.slots + partial, most > partial)

    mantissa = np.where(flushed[:, None] & (field < base[:, None]), 0, mantissa)
    unflagged = _as_ints(~mantissas)
    early, late = (slice(0, fmt.partial), slice(fmt.partial, fmt.block))
    for where, values, slots in (("early", early, fmt.slots + 1), ("late", late, fmt.slots)):
        lost = np.where((total > slots)[:, None], flags & (flags.cumsum(axis=1) > slots)[:, :], False)
        most = (fmt.planes - slots) if mantissa[:, values].shape[1] else 0
        for name, met, fewest in _roundings(fmt, mantissa[:, values], _as_ints(lost), unflagged):
            yield Corner(f"rounding, {where} values", name, met.any(axis=1), most >= fewest)


def _roundings(
    fmt: PlaneFormat, mantissa: np.ndarray, lost: np.ndarray, unflagged: np.ndarray
) -> Iterator[tuple[str, np.ndarray, int]]:
    """How values are rounded, and how many planes a value must be able to lose for that.

    Args:
        mantissa: of the values, int[blocks, values].
        lost, unflagged: mantissa planes of each block as masks: those the values lose, and zero planes.
    """
    loses = (lost > 0)[:, None]
    weight = ((1 << np.frexp(lost)[1]) >> 1)[:, None]  # of the first plane that is lost
    rest = mantissa & (2 * weight - 1)
    yield "loses zeros", loses & (rest == 0), 1
    if fmt.rounding == "truncate":
        yield "down", loses & (rest > 0), 1
        return
    is_odd = (mantissa & 2 * weight) > 0
    up = (mantissa & -2 * weight) + 2 * weight
    overflows = up > fmt.float_type.mantissa_mask
    strays = (up & unflagged[:, None]) > 0
    tie = loses & (rest == weight)
    rises = (rest > weight) & loses | tie & is_odd
    fits = ~overflows & ~strays
    # A tie takes one lost bit, all else two; a zero plane is one flag less.
    yield "down", loses & (rest > 0) & (rest < weight), 2
    yield "up", loses & (rest > weight) & fits, 2
    yield "a tie, down to even", tie & ~is_odd, 1
    yield "a tie, up to even", tie & is_odd & fits, 1
    yield "saturates below the exponent", rises & overflows, 1
    yield "saturates below a zero plane", rises & strays & ~overflows, 2


def _header_corners(fmt: PlaneFormat, stored: np.ndarray, whole: np.ndarray) -> Iterator[Corner]:
    """The rules that docs/format.md, "Invalid headers", has headers keep, and each way to break one."""
    ft = fmt.float_type
    headers = stored[:, : fmt.header_bytes]
    base = headers[:, 0].astype(int)
    flags = np.unpackbits(headers[:, 1:], axis=1, bitorder="little").astype(bool)
    signs, exponents, _ = np.split(flags, [1, 1 + ft.exponent_bits], axis=1)
    width, total = exponents.sum(axis=1), flags.sum(axis=1)
    contiguous = ~(np.diff(exponents.astype(int), axis=1) < 0).any(axis=1)
    wrong = fmt.check_headers(headers)
    valid, invalid = whole & ~wrong, whole & wrong
    highest = (1 << ft.exponent_bits) - (1 << np.maximum(width, 1) - 1)
    kept = fmt.slots + (fmt.partial > 0)
    specials = (base == 0) & (total == 2) & signs[:, 0] & exponents[:, -1]
    yield Corner("header", "valid", valid)
    yield Corner("header", "of a specials block", valid & specials, fmt.has_specials_blocks)
    yield Corner("header", "every flag set", whole & flags.all(axis=1))
    yield Corner("header", "of cleared memory", valid & (base == 0) & ~flags.any(axis=1))
    yield Corner("header", "base 0", invalid & (base == 0))
    yield Corner("header", "exponent planes not the last ones", invalid & ~contiguous)
    yield Corner("header", "no exponent plane, base not 1", invalid & (width == 0) & (base > 1))
    yield Corner("header", "base too large", invalid & contiguous & (width > 0) & (base > highest))
    too_wide = contiguous & (signs[:, 0] + width > fmt.slots)
    yield Corner("header", "no room for exponents", invalid & too_wide, fmt.slots < 1 + ft.exponent_bits)
    met = invalid & too_wide & (width == ft.exponent_bits)
    yield Corner("header", "no room for exponents, all planes", met, fmt.slots < ft.exponent_bits)
    yield Corner("header", "no room for mantissas", invalid & (total > kept), kept < fmt.planes)


def _flags(fmt: PlaneFormat, flags: np.ndarray) -> np.ndarray:
    """Flags as golden/ has them -> bool[blocks, planes]."""
    shifts = np.arange(fmt.planes)[::-1]
    return (flags[:, None].astype(np.int64) >> shifts & 1).astype(bool)


def _as_ints(planes: np.ndarray) -> np.ndarray:
    """bool[blocks, planes], the last of weight 1 -> a mask for each block."""
    return planes @ (1 << np.arange(planes.shape[1], dtype=np.int64)[::-1])
