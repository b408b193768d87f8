"""The corners of the Hadamard format that the ports of an engine can show."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from golden import HadamardFormat
from golden.hadamard import FRACTION_BITS, HEADER_BITS, LEVELS, SPECIALS, ZEROS

from .coverage import Corner
from .ports import Seen
from .shared_corners import kinds_of, place_corners, stored_end_corners, uncompressed_end_corners

_LAST = (1 << HEADER_BITS) - 1


def of_compressor(fmt: HadamardFormat, bus_bytes: int, seen: Seen) -> Iterator[Corner]:
    """What a compressor is given, and what that becomes."""
    kinds = kinds_of(fmt, seen.words)
    header = _headers(seen.stored)
    for kind, here in kinds.items():
        yield Corner("values", f"a {kind}", here.any(axis=1))
        yield Corner("values", f"nothing but {kind}", here.all(axis=1))
    finite = ~(kinds["quiet NaN"] | kinds["signalling NaN"] | kinds["+infinity"] | kinds["-infinity"])
    yield Corner("specials", "beside finite values", finite.any(axis=1) & (header == SPECIALS))
    zeros = (kinds["+0"] | kinds["-0"]).all(axis=1)
    yield Corner("header", "zeros", (header == ZEROS) & zeros)
    tiny = fmt.float_type.exponent_bits == 8 or fmt.widths[-1] == 0
    yield Corner("header", "zeros, of what is too small or has no field", (header == ZEROS) & ~zeros, tiny)
    yield Corner("header", "specials", header == SPECIALS)
    for fraction in range(1 << FRACTION_BITS):
        met = (header > _LAST >> HEADER_BITS - FRACTION_BITS) & (header % (1 << FRACTION_BITS) == fraction)
        yield Corner("scale", f"({16 + fraction} / 16) times a power of two", met)
    yield from _level_corners(fmt, seen.stored, header > SPECIALS)
    yield from _number_corners(seen)
    yield from place_corners(fmt, bus_bytes, seen)
    yield from uncompressed_end_corners(fmt, bus_bytes, seen)


def of_decompressor(fmt: HadamardFormat, bus_bytes: int, seen: Seen) -> Iterator[Corner]:
    """Which blocks, valid or not, a decompressor is given, and what values come out of those that are."""
    ft = fmt.float_type
    whole = seen.sizes == fmt.target
    header = _headers(seen.stored)
    invalid = fmt.check_headers(header)
    scaled = whole & (header > SPECIALS) & ~invalid
    special = whole & (header == SPECIALS)
    kinds = kinds_of(fmt, seen.words)
    yield Corner("header", "zeros", whole & (header == ZEROS))
    cleared = whole & (header == ZEROS) & (_fields(fmt, seen.stored) > 0).any(axis=1)
    yield Corner("header", "zeros, before fields that are none", cleared)
    yield Corner("header", "invalid", whole & invalid)
    yield Corner("header", "the smallest scale", scaled & (header == 1 << FRACTION_BITS))
    yield Corner("header", "the largest scale", scaled & (header == _LAST))
    named = {"+0": 1, "quiet NaN": 0, "+infinity": 2, "-infinity": 2}
    for kind, bits in named.items():
        met = special & kinds[kind].any(axis=1)
        room = fmt.widths[0] if fmt.names_specials else 0
        yield Corner("specials", f"a {kind}", met, int(room) >= bits)
    for kind in ("+0", "normal"):
        yield Corner("values", f"a {kind}", scaled & kinds[kind].any(axis=1))
    small = ft.exponent_bits < 8
    for kind in ("-0", "subnormal"):
        yield Corner("values", f"a {kind}", scaled & kinds[kind].any(axis=1), small)
    largest = (ft.exponent_max << ft.mantissa_bits) - 1
    magnitude = seen.words & ft.bits.type((1 << ft.width - 1) - 1)
    yield Corner("values", "the largest", scaled & (magnitude == largest).any(axis=1))
    yield from _level_corners(fmt, seen.stored, scaled)
    yield from _number_corners(seen)
    yield from place_corners(fmt, bus_bytes, seen)
    yield from stored_end_corners(fmt, bus_bytes, seen)


def _number_corners(seen: Seen) -> Iterator[Corner]:
    """Which numbers blocks have, and how these are counted."""
    number = (seen.firsts + seen.numbers) % (1 << 32)
    yield Corner("number", "0 is first", (number == 0) & (seen.numbers == 0))
    yield Corner("number", "0 follows the largest", (number == 0) & (seen.numbers > 0))
    carried = (number % (1 << 16) == 0) & (number > 0) & (seen.numbers > 0)
    yield Corner("number", "its upper half changes", carried)


def _headers(stored: np.ndarray) -> np.ndarray:
    """The header of each block, int64[blocks]."""
    return (stored[:, 0].astype(np.int64) | stored[:, 1].astype(np.int64) << 8) & _LAST


def _fields(fmt: HadamardFormat, stored: np.ndarray) -> np.ndarray:
    """Each coefficient's field, int64[blocks, N]."""
    bits = np.unpackbits(stored, axis=1, bitorder="little")[:, HEADER_BITS:].astype(np.int64)
    starts = fmt.widths.cumsum() - fmt.widths
    fields = np.zeros((len(stored), fmt.block), np.int64)
    for place in range(int(fmt.widths[0])):
        has = fmt.widths > place
        fields[:, has] |= bits[:, starts[has] + place] << place
    return fields


def _level_corners(fmt: HadamardFormat, stored: np.ndarray, scaled: np.ndarray) -> Iterator[Corner]:
    """Each level of each width, of either sign."""
    fields = _fields(fmt, stored)
    for width in sorted({int(width) for width in fmt.widths if width}):
        here = fields[:, fmt.widths == width]
        for field in range(2 * len(LEVELS[width])):
            yield Corner("fields", f"{field} in {width} bits", scaled & (here == field).any(axis=1))
