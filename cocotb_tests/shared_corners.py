"""The corners that all formats have: kinds of values, and where blocks and tensors lie in words."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

import numpy as np

from golden import Format

from .coverage import Corner
from .ports import Seen
from .promises import promise


def kinds_of(fmt: Format, words: np.ndarray) -> dict[str, np.ndarray]:
    """By their names, which values are of each kind."""
    ft = fmt.float_type
    sign, field, mantissa = split(fmt, words)
    has_mantissa = mantissa > 0
    infinity = (field == ft.exponent_max) & ~has_mantissa
    quiet = (mantissa & ft.quiet_bit) > 0
    nan = (field == ft.exponent_max) & has_mantissa
    return {
        "+0": (field == 0) & ~has_mantissa & ~sign,
        "-0": (field == 0) & ~has_mantissa & sign,
        "subnormal": (field == 0) & has_mantissa,
        "normal": (field > 0) & (field < ft.exponent_max),
        "+infinity": infinity & ~sign,
        "-infinity": infinity & sign,
        "quiet NaN": nan & quiet,
        "signalling NaN": nan & ~quiet,
    }


def split(fmt: Format, words: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sign, exponent field and mantissa."""
    ft = fmt.float_type
    wide = words.astype(np.int64)
    fields = wide >> ft.mantissa_bits & ft.exponent_max
    return wide >> (ft.width - 1) == 1, fields, wide & ft.mantissa_mask


def place_corners(fmt: Format, bus_bytes: int, seen: Seen) -> Iterator[Corner]:
    """Where compressed blocks start in a bus word, and how many a tensor has."""
    assert fmt.target is not None
    yield Corner("tensors", "one block", seen.ends & (seen.numbers == 0))
    yield Corner("tensors", "several blocks", seen.ends & (seen.numbers > 0))
    for start in range(0, bus_bytes, gcd(fmt.target, bus_bytes)):
        met = seen.numbers * fmt.target % bus_bytes == start
        yield Corner("start of a block in the bus word", f"byte {start}", met)


def uncompressed_end_corners(fmt: Format, bus_bytes: int, seen: Seen) -> Iterator[Corner]:
    """Where tensors of values end."""
    moved = fmt.original_bytes // promise("compressor", fmt, [fmt], bus_bytes).block_cycles
    for cycle in range(fmt.original_bytes // moved):
        met = seen.ends & ((seen.sizes - 1) // moved == cycle)
        yield Corner("end of a tensor", f"in cycle {cycle} of a block", met)
    size = seen.numbers * fmt.original_bytes + seen.sizes
    yield Corner("end of a tensor", "fills its last word", seen.ends & (size % bus_bytes == 0))
    yield Corner("end of a tensor", "leaves empty bytes", seen.ends & (size % bus_bytes > 0))
    inside = seen.sizes % (fmt.float_type.width // 8) > 0
    yield Corner("end of a tensor", "inside a value", seen.ends & inside)


def stored_end_corners(fmt: Format, bus_bytes: int, seen: Seen) -> Iterator[Corner]:
    """Where tensors of blocks end."""
    assert fmt.target is not None
    whole = seen.sizes == fmt.target
    total = seen.numbers * fmt.target + seen.sizes
    yield Corner("end of a tensor", "fills its last word", seen.ends & (total % bus_bytes == 0))
    met = seen.ends & whole & (total % bus_bytes > 0)
    yield Corner("end of a tensor", "leaves empty bytes", met, fmt.target % bus_bytes > 0)
    yield Corner("end of a tensor", "inside a header", seen.sizes < fmt.header_bytes)
    yield Corner("end of a tensor", "inside a block", ~whole & (seen.sizes >= fmt.header_bytes))
