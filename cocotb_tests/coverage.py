"""Functional coverage: which corners of docs/format.md a run has met, as golden/ sees its stimulus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from math import gcd
from typing import NamedTuple

import numpy as np

from golden import Format, PlaneFormat
from rtl import Engine


class Corner(NamedTuple):
    """A bin, and where it was met.

    Attributes:
        group, name: of the bin.
        met: one truth value for each block, value, tensor or header.
        can_occur: whether this format has such a bin at all; the rule stands where the corner is made.
    """

    group: str
    name: str
    met: np.ndarray
    can_occur: bool = True


class Coverage:
    """Counts how often each bin of an engine was met.

    Args:
        engine: whose stimulus is watched.
        part: "compressor" or "decompressor".

    Attributes:
        hits: count of each group and name.
    """

    def __init__(self, engine: Engine, part: str):
        self._engine = engine
        self._part = part
        self.hits: Counter[tuple[str, str]] = Counter()
        self._meet_something()
        self.hits = Counter(dict.fromkeys(self.hits, 0))

    def _meet_something(self) -> None:
        """Any stimulus makes all the bins."""
        fmt = self._engine.fmt
        self.blocks(np.zeros((1, fmt.block), fmt.float_type.bits))
        self.tensors([1])
        if self._part == "decompressor":
            self.headers(np.zeros((1, fmt.header_bytes), np.uint8))

    def blocks(self, words: np.ndarray) -> None:
        """Count the blocks of a tensor, by their values' bit patterns, uint[blocks, N]."""
        self._count(_value_corners(self._engine.fmt, words))
        self._count(_plane_corners(self._engine.fmt, words))

    def tensors(self, sizes: list[int]) -> None:
        """Count tensors by their uncompressed bytes."""
        self._count(_tensor_corners(self._engine, self._part, np.array(sizes, int)))

    def headers(self, headers: np.ndarray) -> None:
        """Count headers, valid or not: uint8[headers, H]."""
        self._count(_header_corners(self._engine.fmt, headers))

    def as_rows(self) -> list[tuple[str, str, int]]:
        """Group, name and count of every bin."""
        return [(*place, count) for place, count in self.hits.items()]

    def _count(self, corners: Iterator[Corner]) -> None:
        for group, name, met, can_occur in corners:
            count = int(np.count_nonzero(met))
            assert can_occur or not count, f"{group}, {name}: by its rule it cannot occur, but it did"
            if can_occur:
                self.hits[group, name] += count


def kinds_of(fmt: Format, words: np.ndarray) -> dict[str, np.ndarray]:
    """By their names, which values are of each kind."""
    ft = fmt.float_type
    sign, field, mantissa = _split(fmt, words)
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


def _value_corners(fmt: PlaneFormat, words: np.ndarray) -> Iterator[Corner]:
    """Kinds of values, and blocks of nothing else."""
    _, field, _ = _split(fmt, words)
    kinds = kinds_of(fmt, words)
    nan = kinds["quiet NaN"] | kinds["signalling NaN"]
    infinity = kinds["+infinity"] | kinds["-infinity"]
    # With two slots only, signs and quiet bits can leave none for exponents.
    in_specials_block = (fmt.encode(words).base == 0)[:, None]
    for kind, here in kinds.items():
        yield Corner("values", f"a {kind}", here.any(axis=1))
        yield Corner("values", f"nothing but {kind}", here.all(axis=1))
        met = (here & in_specials_block).any(axis=1)
        yield Corner("specials block", f"a {kind}", met, fmt.has_specials_blocks)
    zero_code = (field == 0).any(axis=1) & (field > 0).any(axis=1)
    yield Corner("values", "zeros or subnormals beside others", zero_code)
    yield Corner("values", "NaN beside infinity", nan.any(axis=1) & infinity.any(axis=1))


def _plane_corners(fmt: PlaneFormat, words: np.ndarray) -> Iterator[Corner]:
    """What a block's planes are, which of them fit, and how its values are rounded."""
    ft = fmt.float_type
    _, field, mantissa = _split(fmt, words)
    nan = (field == ft.exponent_max) & (mantissa > 0)
    mantissa = np.where(nan, mantissa | ft.quiet_bit, mantissa)
    quieted = np.where(nan, words | ft.bits.type(ft.quiet_bit), words)

    # The flags if there were room for everything.
    flags = _flags(fmt, replace(fmt, target=None).encode(quieted).flags)
    signs, exponents, mantissas = np.split(flags, [1, 1 + ft.exponent_bits], axis=1)
    width = exponents.sum(axis=1)
    for k in range(ft.exponent_bits + 1):
        yield Corner("delta width", f"{k} bits", width == k)
    count = mantissas.sum(axis=1)
    has_gap = (np.diff(mantissas, axis=1, prepend=0) == 1).sum(axis=1) > 1
    patterns = {
        "no mantissa plane": count == 0,
        "one": count == 1,
        "some, side by side": (count > 1) & (count < ft.mantissa_bits) & ~has_gap,
        "some, with zero planes between": has_gap,
        "all": count == ft.mantissa_bits,
    }
    for name, met in patterns.items():
        yield Corner("flags", f"{name}, signs", met & signs[:, 0])
        yield Corner("flags", f"{name}, no signs", met & ~signs[:, 0])

    # Signs and quiet bits take up to two slots; a block is flushed if the rest is too little.
    encoded = fmt.encode(words)
    is_plain = encoded.base > 0
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

    mantissa = np.where(flushed[:, None] & (field < encoded.base[:, None]), 0, mantissa)
    unflagged = _as_ints(~mantissas)
    early, late = (slice(0, fmt.partial), slice(fmt.partial, fmt.block))
    for where, values, slots in (("early", early, fmt.slots + 1), ("late", late, fmt.slots)):
        lost = np.where((total > slots)[:, None], flags & (flags.cumsum(axis=1) > slots)[:, :], False)
        most = (fmt.planes - slots) if mantissa[:, values].shape[1] else 0
        for name, met, fewest in _roundings(fmt, mantissa[:, values], _as_ints(lost), unflagged):
            yield Corner(f"rounding, {where} values", name, met, most >= fewest)


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


def _tensor_corners(engine: Engine, part: str, sizes: np.ndarray) -> Iterator[Corner]:
    """Where tensors end in a block and in a bus word, and where blocks start in one."""
    fmt, bus = engine.fmt, engine.bus_bytes
    blocks = -(-sizes // fmt.raw_bytes)
    yield Corner("tensors", "one block", blocks == 1)
    yield Corner("tensors", "several blocks", blocks > 1)
    step = gcd(fmt.target, bus)
    for start in range(0, bus, step):
        # Multiples of the target reach each multiple of the step, the first of them within bus / step blocks.
        first = next(b for b in range(bus // step) if b * fmt.target % bus == start)
        yield Corner("start of a block in the bus word", f"byte {start}", blocks > first)
    if part == "decompressor":
        yield Corner("tensors", "fills its last word", blocks * fmt.target % bus == 0)
        yield Corner("tensors", "leaves empty bytes", blocks * fmt.target % bus > 0, fmt.target % bus > 0)
        return
    last_word = (sizes - 1) // engine.word_bytes % engine.words
    for word in range(engine.words):
        yield Corner("end of a tensor", f"in word {word} of a block", last_word == word)
    yield Corner("end of a tensor", "fills its last word", sizes % bus == 0)
    yield Corner("end of a tensor", "leaves empty bytes", sizes % bus > 0)
    yield Corner("end of a tensor", "inside a value", sizes % (fmt.float_type.width // 8) > 0)


def _header_corners(fmt: PlaneFormat, headers: np.ndarray) -> Iterator[Corner]:
    """The rules that docs/format.md, "Invalid headers", has headers keep, and each way to break one."""
    ft = fmt.float_type
    base = headers[:, 0].astype(int)
    flags = np.unpackbits(headers[:, 1:], axis=1, bitorder="little").astype(bool)
    signs, exponents, _ = np.split(flags, [1, 1 + ft.exponent_bits], axis=1)
    width, total = exponents.sum(axis=1), flags.sum(axis=1)
    contiguous = ~(np.diff(exponents.astype(int), axis=1) < 0).any(axis=1)
    invalid = fmt.check_headers(headers)
    highest = (1 << ft.exponent_bits) - (1 << np.maximum(width, 1) - 1)
    kept = fmt.slots + (fmt.partial > 0)
    specials = flags.sum(axis=1) == 2
    specials &= signs[:, 0] & exponents[:, -1] & (base == 0)
    yield Corner("header", "valid", ~invalid)
    yield Corner("header", "of a specials block", ~invalid & specials, fmt.has_specials_blocks)
    yield Corner("header", "every flag set", flags.all(axis=1))
    yield Corner("header", "of cleared memory", ~invalid & (base == 0) & ~flags.any(axis=1))
    yield Corner("header", "base 0", invalid & (base == 0))
    yield Corner("header", "exponent planes not the last ones", invalid & ~contiguous)
    yield Corner("header", "no exponent plane, base not 1", invalid & (width == 0) & (base > 1))
    yield Corner("header", "base too large", invalid & contiguous & (width > 0) & (base > highest))
    too_wide = contiguous & (signs[:, 0] + width > fmt.slots)
    yield Corner("header", "no room for exponents", invalid & too_wide, fmt.slots < 1 + ft.exponent_bits)
    yield Corner("header", "no room for mantissas", invalid & (total > kept), kept < fmt.planes)


def _split(fmt: Format, words: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sign, exponent field and mantissa."""
    ft = fmt.float_type
    wide = words.astype(np.int64)
    fields = wide >> ft.mantissa_bits & ft.exponent_max
    return wide >> (ft.width - 1) == 1, fields, wide & ft.mantissa_mask


def _flags(fmt: PlaneFormat, flags: np.ndarray) -> np.ndarray:
    """Flags as golden/ has them -> bool[blocks, planes]."""
    shifts = np.arange(fmt.planes)[::-1]
    return (flags[:, None].astype(np.int64) >> shifts & 1).astype(bool)


def _as_ints(planes: np.ndarray) -> np.ndarray:
    """bool[blocks, planes], the last of weight 1 -> a mask for each block."""
    return planes @ (1 << np.arange(planes.shape[1], dtype=np.int64)[::-1])
