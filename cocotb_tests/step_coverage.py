"""Functional coverage of the step format: which blocks an engine has met, as golden/ sees them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from golden import StepFormat
from golden.step import FIELDS, MASKED, MAX_CORE
from rtl.engine import StepEngine

from .coverage import Corner, Coverage, kinds_of


class StepCoverage(Coverage):
    """Counts how often each bin of an engine of the step format was met; see :class:`Coverage`."""

    def __init__(self, engine: StepEngine, part: str):
        super().__init__(engine, part)

    def _meet_something(self) -> None:
        fmt = self._engine.fmt
        self.tensors([1])
        if self._part == "compressor":
            self.blocks(np.zeros((1, fmt.block), fmt.float_type.bits))
            return
        self.stored(np.zeros((1, fmt.target), np.uint8), bytes(fmt.raw_bytes), set())

    def blocks(self, words: np.ndarray, seed: int = 0) -> None:
        """Count the blocks of a tensor. Of a decompressor what it is given decides, not they."""
        if self._part == "compressor":
            self._count(_chosen_corners(self._engine, words, seed))

    def stored(self, stored: np.ndarray, expected: bytes, errors: set[int]) -> None:
        """Count compressed blocks.

        Args:
            stored: uint8[blocks, target].
            expected: their values' bytes.
            errors: which of them are invalid.
        """
        fmt = self._engine.fmt
        words = np.frombuffer(expected, fmt.float_type.bits).reshape(len(stored), fmt.block)
        invalid = np.isin(np.arange(len(stored)), list(errors))
        self._count(_stored_corners(self._engine, stored, invalid))
        self._count(_result_corners(self._engine, words[~invalid]))


def _chosen_corners(engine: StepEngine, words: np.ndarray, seed: int) -> Iterator[Corner]:
    """What the values are, and how a compressor stores them."""
    fmt = engine.fmt
    stored = fmt.compress(words.view(fmt.float_type.array), seed)
    for kind, here in kinds_of(fmt, words).items():
        yield Corner("values", f"a {kind}", here.any(axis=1))
        yield Corner("values", f"nothing but {kind}", here.all(axis=1))
    fields = _fields(stored)
    core, short = fields["core"], fields["short"] > 0
    alone, masked = core == 0, fields["wide"] == MASKED
    bits, escapes, with_wide = _used_bits(fmt, stored, fields)
    for mask in (False, True):
        widest = min(engine.room // engine.block - mask, MAX_CORE)
        for width in {1, widest - 1, widest}:
            met = ~alone & (masked == mask) & (core == width)
            yield Corner("core", f"{width} bits{', beside a mask' * mask}", met, 0 < width <= widest)
    yield Corner("only specials", "a block", alone, engine.sections < 3)
    some = ~alone & (escapes > 0)
    has_room = engine.rest >= 2
    yield Corner("escapes", "none", ~alone & (escapes == 0))
    yield Corner("escapes", "without a short form", some & ~short, has_room)
    yield Corner(
        "escapes", "of either form", some & (with_wide > 0) & (with_wide < escapes), engine.rest >= 6
    )
    left = np.where(alone, -1, engine.room - bits)
    yield Corner("fine bits", "for some values", (left > 0) & (left < engine.block), engine.rest > 0)
    yield Corner("fine bits", "for all values", left >= engine.block, engine.sections > 1)


def _stored_corners(engine: StepEngine, stored: np.ndarray, invalid: np.ndarray) -> Iterator[Corner]:
    """What the header says, how many escapes there are, and whether all of it fits."""
    fields = _fields(stored)
    core, short, wide = fields["core"], fields["short"], fields["wide"]
    alone = core == 0
    others = (fields["grid"] > 0) | (fields["offset"] > 0) | (short > 0) | (wide != MASKED)
    bits, escapes, with_wide = _used_bits(engine.fmt, stored, fields)
    valid = ~invalid & ~alone
    for width in range(1, engine.max_core + 1):
        for form in (0, 1):
            met = valid & (core == width) & (short == form)
            yield Corner("core", f"{width} bits, {'a' if form else 'no'} short form", met)
    for width in range(MASKED):
        met = valid & (wide == width) & (with_wide > 0)
        yield Corner("wide fields", f"of {width} bits", met, width <= engine.rest)
    masked = valid & (wide == MASKED)
    # The shortest escape, without a wide field, takes a form's two bits.
    after_mask = engine.room - 2 * engine.block
    some = (escapes > 0) & (escapes < engine.block)
    yield Corner("escapes", "none", valid & (escapes == 0))
    yield Corner("escapes", "none, beside a mask", masked & (escapes == 0), after_mask >= 0)
    yield Corner("escapes", "some", valid & some)
    yield Corner("escapes", "some, beside a mask", masked & some, after_mask >= 2)
    yield Corner("escapes", "all", valid & (escapes == engine.block))
    met = valid & (short > 0) & (with_wide > 0) & (with_wide < escapes)
    yield Corner("escapes", "some of either form", met, engine.rest >= 4)
    fine = np.where(valid, engine.room - bits, -1)
    yield Corner("fit", "no bit is left", fine == 0)
    yield Corner("fit", "fine bits for some values", (fine > 0) & (fine < engine.block), engine.rest > 0)
    yield Corner("fit", "fine bits for all values", fine >= engine.block, engine.sections > 1)
    yield Corner("only specials", "valid", ~invalid & alone)
    yield Corner("invalid", "only specials, and more", invalid & alone & others)
    too_wide = engine.block * (core + (wide == MASKED)) > engine.room
    met = invalid & ~alone & too_wide
    yield Corner("invalid", "mask and core are too long", met, engine.sections <= MAX_CORE)
    met = invalid & ~alone & ~too_wide
    yield Corner("invalid", "escapes are too long", met, engine.rest < 17 * engine.block)
    met &= bits == engine.room + 1
    yield Corner("invalid", "by a single bit", met, engine.rest < 17 * engine.block)


def _result_corners(engine: StepEngine, words: np.ndarray) -> Iterator[Corner]:
    """What values come out."""
    fmt = engine.fmt
    ft = fmt.float_type
    kinds = kinds_of(fmt, words)
    for kind in ("+0", "normal", "quiet NaN"):
        yield Corner("values", f"a {kind}", kinds[kind].any(axis=1))
    # With 8 exponent bits only a single least step is subnormal, which takes a fine bit.
    can_occur = ft.exponent_bits < 8 or engine.rest > 0
    yield Corner("values", "a subnormal", kinds["subnormal"].any(axis=1), can_occur)
    for kind in ("+infinity", "-infinity"):
        yield Corner("values", f"a {kind}", kinds[kind].any(axis=1), engine.sections > 1)
    largest = (ft.exponent_max << ft.mantissa_bits) - 1
    yield Corner("values", "the largest", ((words & (2 * largest + 1 >> 1)) == largest).any(axis=1))


def _fields(stored: np.ndarray) -> dict[str, np.ndarray]:
    """The header's fields, int64[blocks] each."""
    word = stored[:, :3].astype(np.int64) @ (1 << 8 * np.arange(3))
    fields, place = {}, 0
    for name, bits in FIELDS.items():
        fields[name] = word >> place & (1 << bits) - 1
        place += bits
    return fields


def _used_bits(fmt: StepFormat, stored: np.ndarray, fields: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    """Of each block the bits up to its fine ones, its escapes, and how many of these have wide fields."""
    n = fmt.block
    rows = []
    for i, row in enumerate(np.unpackbits(stored[:, 3:], axis=1, bitorder="little")):
        core, short, wide = (int(fields[name][i]) for name in ("core", "short", "wide"))
        start = n * (wide == MASKED)
        cores = row[start : start + n * core]
        if core == 0 or len(cores) < n * core:
            rows.append((start + n * core, 0, 0))
            continue
        escapes = int(cores.reshape(n, core).all(axis=1).sum())
        forms = row[start + n * core :][1 : 2 * escapes : 2]
        with_wide = int(forms.sum()) if short else escapes
        rows.append((start + n * core + 2 * escapes * short + wide * with_wide, escapes, with_wide))
    return tuple(np.array(rows).T)
