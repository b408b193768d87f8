"""Compressed blocks of the step format, valid and not, such as hardly any tensor becomes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from golden import StepFormat
from golden.step import FIELDS, MAX_CORE, MAX_MOVED

SHARES = (0, 0.02, 0.1, 0.5, 0.9, 1)  # of ones, of escapes or of specials


def stored_blocks(fmt: StepFormat, count: int, rng: np.random.Generator) -> np.ndarray:
    """``count`` blocks of every header and with any number of escapes: uint8[count, target]."""
    return np.stack([_stored_block(fmt, rng) for _ in range(count)])


def overfull_blocks(fmt: StepFormat, count: int, rng: np.random.Generator) -> np.ndarray:
    """``count`` blocks with more escapes than there is room for: uint8[count, target].

    Where the target leaves room for all, there are none.
    """
    rows = [np.empty((0, fmt.target), np.uint8)]
    widest = (1 << FIELDS["wide"]) - 1
    while len(rows) <= count and fmt.room < fmt.block * (MAX_CORE + widest):
        core = int(rng.integers(1, min(fmt.room // fmt.block, MAX_CORE) + 1))
        wide = int(rng.integers(1, widest + 1))
        most = (fmt.room - fmt.block * core) // wide
        if most < fmt.block:
            fields = {"grid": int(rng.integers(10)), "moved": 0, "masked": 0, "core": core, "wide": wide}
            escapes = int(rng.integers(most + 1, fmt.block + 1))
            rows.append(_filled(fmt, fields, lambda left, escapes=escapes: escapes, rng)[None])
    return np.concatenate(rows)


def decoded(fmt: StepFormat, stored: np.ndarray) -> tuple[bytes, set[int]]:
    """The bytes of the values, zeros for a block that golden/ takes for none, and which are such."""
    rows, errors = [], set()
    for i, row in enumerate(stored):
        try:
            rows.append(fmt.decompress(row[None], fmt.block).tobytes())
        except ValueError:
            rows.append(bytes(fmt.raw_bytes))
            errors.add(i)
    return b"".join(rows), errors


def header_bytes(fields: dict[str, int]) -> np.ndarray:
    """The header with these fields, uint8[3]; those that are not given are 0."""
    word, place = 0, 0
    for name, bits in FIELDS.items():
        word |= fields.get(name, 0) << place
        place += bits
    return np.frombuffer(word.to_bytes(place // 8, "little"), np.uint8)


def _stored_block(fmt: StepFormat, rng: np.random.Generator) -> np.ndarray:
    fields = _header(fmt, rng)
    wide = max(fields["wide"], 1)
    return _filled(fmt, fields, lambda left: _escapes(left // wide, fmt.block, rng), rng)


def _filled(
    fmt: StepFormat, fields: dict[str, int], escapes: Callable[[int], int], rng: np.random.Generator
) -> np.ndarray:
    """A block with this header, and so many escapes for the bits that its cores and fine bits leave."""
    core, moved, n = fields["core"], fields["moved"], fmt.block
    bits = rng.random(fmt.room) < rng.choice(SHARES)
    start = n * fields["masked"]
    if start:
        bits[:n] = rng.random(n) < rng.choice(SHARES)
    left = fmt.room - start - n * core - moved
    if core > 0 and moved <= n and left >= 0:
        escape = np.zeros(n, bool)
        escape[rng.permutation(n)[: escapes(left)]] = True
        values = rng.integers(0, (1 << core) - 1, n)
        values = np.where(rng.random() < 0.2, (1 << core - 1) - 1, values)  # sometimes all of them are 0
        values = np.where(escape, (1 << core) - 1, values)
        section = values[:, None] >> np.arange(core) & 1
        bits[start : start + n * core] = section.reshape(-1) > 0
        # A core of ones with a fine bit of 0 is no escape.
        fine = bits[::-1][:moved]
        fine |= escape[:moved] & (rng.random(moved) < rng.choice([0.5, 0.9, 1]))
    return np.concatenate([header_bytes(fields), np.packbits(bits, bitorder="little")])


def _header(fmt: StepFormat, rng: np.random.Generator) -> dict[str, int]:
    """Any header, more often than not one that there is room for; steps from the least to too large ones."""
    if rng.random() < 0.2:  # of specials and nothing else, now and then with a single reason to complain
        wrong = {"grid": 128, "moved": 1, "masked": 0, "wide": 8}
        names = rng.permutation(list(wrong))[: rng.random() < 0.3]
        return dict.fromkeys(FIELDS, 0) | {"masked": 1} | {name: wrong[name] for name in names}
    n, masked = fmt.block, int(rng.integers(2))
    most = max(min(fmt.room // n - masked, MAX_CORE), 1)
    core = int(rng.choice([1, *rng.integers(1, most + 1, 2), rng.integers(1, MAX_CORE + 1)]))
    left = int(np.clip(fmt.room - n * (core + masked), 0, min(n, MAX_MOVED)))
    moved = [0, left, *rng.integers(0, left + 1, 2), left + 1, rng.integers(MAX_MOVED + 1)]
    return {
        "grid": int(rng.choice([0, 1, rng.integers(20), rng.integers(20, 60), rng.integers(256), 255])),
        "moved": min(int(rng.choice(moved)), MAX_MOVED),
        "masked": masked,
        "core": core,
        "wide": int(rng.integers(1 << FIELDS["wide"])),
    }


def _escapes(most: int, n: int, rng: np.random.Generator) -> int:
    """How many escapes: none, all, some, or as many as there is room for, or one more."""
    return int(np.clip(rng.choice([0, 1, n, rng.integers(n), rng.integers(most + 1), most, most + 1]), 0, n))
