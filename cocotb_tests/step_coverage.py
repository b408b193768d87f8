"""Functional coverage of the step format: which blocks an engine has met, as golden/ sees them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from golden import StepFormat
from golden.step import FIELDS, MAX_CORE, MAX_FINER, MAX_MOVED
from rtl.engine import StepEngine

from .coverage import Corner, Coverage, kinds_of


class StepCoverage(Coverage):
    """Counts how often each bin of an engine of the step format was met; see :class:`Coverage`."""

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
        self._count(_result_corners(self._engine, stored[~invalid], words[~invalid]))


def _chosen_corners(engine: StepEngine, words: np.ndarray, seed: int) -> Iterator[Corner]:
    """What the values are, and how a compressor stores them."""
    fmt = engine.fmt
    n, room = fmt.block, fmt.room
    stored = fmt.compress(words.view(fmt.float_type.array), seed)
    for kind, here in kinds_of(fmt, words).items():
        yield Corner("values", f"a {kind}", here.any(axis=1))
        yield Corner("values", f"nothing but {kind}", here.all(axis=1))
    fields = _fields(stored)
    core, masked, moved = fields["core"], fields["masked"] > 0, fields["moved"]
    alone = core == 0
    for mask in (False, True):
        for width in fmt.cores(mask):
            met = (masked == mask) & (core == width)
            yield Corner("core", f"{width} bits{', beside a mask' * mask}", met)
    yield Corner("only specials", "a block", alone, room < 3 * n)
    some_room = room > n
    coarse, fine = _escapes(fmt, stored, fields)
    escapes = coarse.sum(axis=1) + fine.sum(axis=1)
    yield Corner("escapes", "none", ~alone & (escapes == 0))
    yield Corner("escapes", "some, beside a mask", masked & (escapes > 0), room > 2 * n)
    yield Corner("escapes", "in coarse steps", coarse.any(axis=1), some_room)
    yield Corner("escapes", "with a fine bit", fine.any(axis=1), some_room)
    undone = _cores(fmt, stored, fields) & ~coarse & ~fine
    yield Corner("escapes", "undone by a fine bit", undone.any(axis=1), some_room)
    for width in range(1, 9):
        met = (escapes > 0) & (fields["wide"] == width)
        yield Corner("wide fields", f"of {width} bits", met, room - n >= 8)
    most = min(n, MAX_MOVED)
    yield Corner("fine bits", "none", ~alone & (moved == 0), room <= n * (MAX_FINER + 1))
    yield Corner("fine bits", "for some values", (moved > 0) & (moved < most), some_room)
    yield Corner("fine bits", "for all values", moved == most, room >= 2 * n)
    used = n * (core + masked) + moved + escapes * fields["wide"]
    yield Corner("fit", "no bit is left", ~alone & (used == room))
    yield Corner("step", "the finest there is", ~alone & (fields["grid"] == 0))


def _stored_corners(engine: StepEngine, stored: np.ndarray, invalid: np.ndarray) -> Iterator[Corner]:
    """What the header says, how many escapes there are, and what they reach into."""
    n, room = engine.block, engine.room
    fields = _fields(stored)
    core, wide, moved, masked = (fields[name] for name in ("core", "wide", "moved", "masked"))
    alone = core == 0
    coarse, fine = _escapes(engine.fmt, stored, fields)
    escapes = coarse.sum(axis=1) + fine.sum(axis=1)
    valid = ~invalid & ~alone
    widest = min(room // n, MAX_CORE)
    for mask in (0, 1):
        for width in range(1, min(room // n - mask, MAX_CORE) + 1):
            met = valid & (core == width) & (masked == mask)
            yield Corner("core", f"{width} bits{', beside a mask' * mask}", met)
    for width in range(1 << FIELDS["wide"]):
        met = valid & (wide == width) & (escapes > 0)
        yield Corner("wide fields", f"of {width} bits", met)
    yield Corner("escapes", "none", valid & (escapes == 0))
    yield Corner("escapes", "some", valid & (escapes > 0) & (escapes < n))
    yield Corner("escapes", "all", valid & (escapes == n))
    yield Corner("escapes", "some, beside a mask", valid & (masked > 0) & (escapes > 0), room >= 2 * n)
    has_room = room > n
    yield Corner("escapes", "with a fine bit", valid & fine.any(axis=1), has_room)
    all_ones = _cores(engine.fmt, stored, fields)
    undone = valid & (all_ones & ~coarse & ~fine).any(axis=1)
    yield Corner("escapes", "undone by a fine bit", undone, has_room)
    end = n * (core + masked) + escapes * wide
    yield Corner(
        "wide fields", "end with the block", valid & (escapes > 0) & (wide > 0) & (end == room), has_room
    )
    yield Corner(
        "wide fields", "reach into fine bits", valid & (end > room - moved) & (end <= room), has_room
    )
    yield Corner("wide fields", "reach behind the block", valid & (end > room))
    most = min(n, MAX_MOVED)
    yield Corner("fine bits", "none", valid & (moved == 0))
    yield Corner("fine bits", "for some values", valid & (moved > 0) & (moved < most), has_room)
    yield Corner("fine bits", "for all values", valid & (moved == most), widest > 1)
    yield Corner("step", "the finest there is", valid & (fields["grid"] == 0))
    yield Corner("step", "the coarsest", valid & (fields["grid"] == (1 << FIELDS["grid"]) - 1))
    yield Corner("only specials", "valid", ~invalid & alone)
    for name in ("grid", "moved", "wide"):
        met = invalid & alone & (masked > 0) & (fields[name] > 0)
        yield Corner("invalid", f"only specials, but {name}", met)
    yield Corner("invalid", "neither core nor mask", invalid & alone & (masked == 0))
    size = n * (core + masked)
    yield Corner(
        "invalid", "mask and core are too long", invalid & ~alone & (size > room), room < n * (MAX_CORE + 1)
    )
    met = invalid & ~alone & (size <= room) & (moved <= n) & (size + moved > room)
    yield Corner("invalid", "too little room for fine bits", met)
    yield Corner("invalid", "by a single bit", met & (size + moved == room + 1))
    met = invalid & ~alone & (moved > n) & (size + moved <= room)
    yield Corner("invalid", "more fine bits than values", met, n < MAX_MOVED and room >= 2 * n + 1)


def _result_corners(engine: StepEngine, stored: np.ndarray, words: np.ndarray) -> Iterator[Corner]:
    """What values come out of valid blocks."""
    fmt = engine.fmt
    ft = fmt.float_type
    kinds = kinds_of(fmt, words)
    for kind in ("+0", "normal", "quiet NaN"):
        yield Corner("values", f"a {kind}", kinds[kind].any(axis=1))
    yield Corner("values", "a subnormal", kinds["subnormal"].any(axis=1), ft.exponent_bits < 8)
    for kind in ("+infinity", "-infinity"):
        yield Corner("values", f"a {kind}", kinds[kind].any(axis=1), engine.room >= 2 * engine.block)
    fields = _fields(stored)
    beside = (fields["core"] > 0) & (fields["masked"] > 0)
    # Behind a mask and a core of one bit, it takes a further bit to say that a value is negative.
    least_room = {"quiet NaN": 0, "+infinity": 0, "-infinity": 1}
    for kind, bits in least_room.items():
        met = beside & kinds[kind].any(axis=1)
        yield Corner("values", f"a {kind} beside a mask", met, engine.room >= 2 * engine.block + bits)
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


def _cores(fmt: StepFormat, stored: np.ndarray, fields: dict[str, np.ndarray]) -> np.ndarray:
    """Which values' fields in the core are all ones: bool[blocks, N]; none if the core has no room."""
    n = fmt.block
    found = np.zeros((len(stored), n), bool)
    for i, row in enumerate(np.unpackbits(stored[:, fmt.header_bytes :], axis=1, bitorder="little")):
        core, start = int(fields["core"][i]), n * int(fields["masked"][i])
        if core > 0 and start + n * core <= fmt.room:
            found[i] = row[start : start + n * core].reshape(n, core).all(axis=1)
    return found


def _escapes(
    fmt: StepFormat, stored: np.ndarray, fields: dict[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Which values escape without a fine bit, and which with one: bool[blocks, N]."""
    all_ones = _cores(fmt, stored, fields)
    has_fine = np.arange(fmt.block) < fields["moved"][:, None]
    bits = np.unpackbits(stored, axis=1, bitorder="little")[:, ::-1][:, : fmt.block] > 0
    return all_ones & ~has_fine, all_ones & has_fine & bits
