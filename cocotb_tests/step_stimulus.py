"""Compressed blocks of the step format, valid and not, such as hardly any tensor becomes."""

from __future__ import annotations

import numpy as np

from golden import StepFormat
from golden.step import FIELDS, MASKED, MAX_CORE

SHARES = (0, 0.02, 0.1, 0.5, 0.9, 1)  # of ones, of escapes or of specials


def stored_blocks(fmt: StepFormat, count: int, rng: np.random.Generator) -> np.ndarray:
    """``count`` blocks of every header and with any number of escapes: uint8[count, target]."""
    return np.stack([_stored_block(fmt, rng) for _ in range(count)])


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
        word |= (fields.get(name, 0) & ((1 << bits) - 1)) << place
        place += bits
    return np.frombuffer(word.to_bytes(place // 8, "little"), np.uint8)


def _stored_block(fmt: StepFormat, rng: np.random.Generator) -> np.ndarray:
    fields = _header(fmt, rng)
    core, wide, n = fields["core"], fields["wide"], fmt.block
    bits = rng.random(fmt.room) < rng.choice(SHARES)
    masked = n if wide == MASKED else 0
    if masked:
        bits[:n] = rng.random(n) < rng.choice(SHARES)
    if core > 0 and masked + n * core <= fmt.room:
        rest = fmt.room - masked - n * core
        escape = np.zeros(n, bool)
        escape[rng.permutation(n)[: _escapes(fields, rest, n, rng)]] = True
        values = rng.integers(0, (1 << core) - 1, n)
        values = np.where(rng.random() < 0.2, (1 << core - 1) - 1, values)  # sometimes all codes are 0
        values = np.where(escape, (1 << core) - 1, values)
        section = values[:, None] >> np.arange(core) & 1
        bits[masked : masked + n * core] = section.reshape(-1) > 0
    return np.concatenate([header_bytes(fields), np.packbits(bits, bitorder="little")])


def _header(fmt: StepFormat, rng: np.random.Generator) -> dict[str, int]:
    """Any header, more often than not one that there is room for; steps from the least to too large ones."""
    most = min(fmt.room // fmt.block, MAX_CORE)
    lowest = int(rng.choice([0, 1, rng.integers(20), rng.integers(20, 60), rng.integers(256), 255]))
    fields = {
        "grid": lowest,
        "offset": int(rng.choice([-64, -63, -1, 0, 1, 63, rng.integers(-64, 64)])),
        "core": int(rng.choice([0, rng.integers(1, most + 1), rng.integers(1, most + 1), rng.integers(16)])),
        "short": int(rng.integers(2)),
        "wide": int(rng.choice([MASKED, *rng.integers(0, MASKED, 3)])),
    }
    if fields["core"] == 0:
        fields |= {"grid": 0, "offset": 0, "short": 0, "wide": MASKED}
        if rng.random() < 0.2:  # a single reason to complain
            name, value = list({"grid": 128, "offset": 1, "short": 1, "wide": 7}.items())[rng.integers(4)]
            fields[name] = value
    return fields


def _escapes(fields: dict[str, int], rest: int, n: int, rng: np.random.Generator) -> int:
    """How many escapes: none, all, some, or as many as just fit, or one more."""
    most = rest // max(fields["wide"] + 2 * fields["short"], 1)
    return int(np.clip(rng.choice([0, 1, n, rng.integers(n), rng.integers(most + 1), most, most + 1]), 0, n))
