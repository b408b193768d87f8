"""What each choice in the step format is worth: ``python -m bench.step_study``.

Effective bits of the step format and of variants of it, on the activations of ``bench.effective_bits``, a
sample of each model's. The formats themselves are golden's. The variants are an estimate that computes
lengths and errors, not bytes; its first row is the format's own choices and shows how near the estimate is.

Rows go to build/bench/step_study.json, by model and of all models.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from golden import Format, PlaneFormat, StepFormat
from golden.step import FIELDS, HEADER_BYTES, LEADING_BITS, MAX_FINER, MAX_MOVED

from .effective_bits import MODELS, STEPS, loss_of, tensors

RATES = (6, 4, 3, 2.5, 2)
BLOCK = 128
BLOCKS_OF_A_MODEL = 1500
OFFSET_BITS = 7
RICE_PARAMETERS = range(8)
OUTPUT = Path("build/bench/step_study.json")

Escaped = Literal["coarse", "fine", "halved"]


@dataclass(frozen=True)
class Escapes:
    """A core of so many bits, and a wide field for what is beyond it.

    Attributes:
        from_mean: whether counts are from the mean, rather than from 0.
        short: whether an escape starts with 2 bits, its sign and whether it has a wide field: the least has
            none.
        escaped: how a value escapes that has a fine bit: in "coarse" steps; in "fine" ones, with a bit more
            in its wide field; or "halved": as ``fine >> 1`` does without a fine bit, which then follows.
    """

    core: int
    from_mean: bool = False
    short: bool = False
    escaped: Escaped = "coarse"

    @property
    def limit(self) -> int:
        return (1 << self.core - 1) - 1

    def bits(self, coarse: np.ndarray, most: np.ndarray) -> np.ndarray:
        """Of each value without a fine bit, int[blocks, N]; no count of a block is more than its ``most``."""
        beyond, largest = (np.abs(counts) - self.limit - 1 - self.short for counts in (coarse, most[:, None]))
        wide = np.frexp(np.maximum(largest, 0).astype(np.float64))[1] + 1 - self.short
        escape = 2 * self.short + np.where(beyond >= 0, wide, 0)
        return self.core + np.where(np.abs(coarse) > self.limit, escape, 0)

    def fine_bits(self, coarse: np.ndarray, fine: np.ndarray, most: np.ndarray) -> np.ndarray:
        """Of each value with a fine bit, in coarse and in fine steps: int[blocks, N]."""
        if self.escaped == "halved":
            return 1 + self.bits(fine >> 1, most)
        inside = np.abs(fine) <= 2 * self.limit + 1
        if self.escaped == "coarse":
            return 1 + self.bits(np.where(inside, 0, coarse), most)
        return 1 + self.bits(np.where(inside, 0, np.abs(fine) >> 1), most) + ~inside

    def refines(self, fine: np.ndarray) -> np.ndarray:
        """Whether a fine bit makes a value any finer: bool[blocks, N]."""
        return (np.abs(fine) <= 2 * self.limit + 1) | (self.escaped != "coarse")


@dataclass(frozen=True)
class Rice:
    """Rice codes of this parameter, and of the next one for values with a fine bit."""

    parameter: int
    from_mean: bool = False

    def bits(self, coarse: np.ndarray, most: np.ndarray) -> np.ndarray:
        return (np.where(coarse < 0, -2 * coarse - 1, 2 * coarse) >> self.parameter) + 1 + self.parameter

    def fine_bits(self, coarse: np.ndarray, fine: np.ndarray, most: np.ndarray) -> np.ndarray:
        return Rice(self.parameter + 1).bits(fine, most)

    def refines(self, fine: np.ndarray) -> np.ndarray:
        return np.ones(fine.shape, bool)


Coder = Escapes | Rice


@dataclass(frozen=True)
class Variant:
    """How a block is coded: by the coder that takes the fewest bits at the finest step that fits.

    Attributes:
        cores: which are tried; "best" are the one of a bit and the two widest.
        fine: whether values have fine bits, and whether what a fine bit saves is counted.
        escaped, short: as in :class:`Escapes`.
        offset: whether counts may be from the mean, which is in the header.
        mantissas: of steps, each times a power of two; more than one take a bit of the header.
        leading: bits of the largest magnitude that decide about the wide fields; 1 is its exponent alone,
            None all of it.
        finer: how often the step at which every value is 0 may be halved.
        rice: whether codes are Rice codes, with the best parameter for each block.
        header: bits of the header beside the format's own.
    """

    cores: Literal["widest", "both", "best", "every"] = "both"
    fine: Literal["none", "uncounted", "counted"] = "counted"
    escaped: Escaped = "coarse"
    short: bool = False
    offset: bool = False
    mantissas: tuple[float, ...] = (1.0,)
    leading: int | None = LEADING_BITS
    finer: int = MAX_FINER
    rice: bool = False
    header: int = 0

    def room(self, bits: float, n: int) -> int:
        header = 8 * HEADER_BYTES + self.header
        return int(n * bits) - header - OFFSET_BITS * self.offset - (len(self.mantissas) > 1)

    def coders(self, room: int, n: int) -> list[Coder]:
        if self.rice:
            return [Rice(parameter) for parameter in RICE_PARAMETERS]
        widest = min(room // n, MAX_FINER)
        cores = {
            "widest": {widest},
            "both": {1, widest},
            "best": {1, max(widest - 1, 1), widest},
            "every": set(range(1, widest + 1)),
        }[self.cores]
        origins, shorts = (sorted({False, flag}) for flag in (self.offset, self.short))
        return [
            Escapes(core, origin, short, self.escaped)
            for core in sorted(cores)
            for origin in origins
            for short in shorts
        ]

    def most(self, distances: np.ndarray, step: np.ndarray) -> np.ndarray:
        """A bound for counts, going by distances from the origin: int64[blocks]."""
        largest = distances.max(axis=1)
        if self.leading is None:
            return np.floor(largest / step + 0.5).astype(np.int64)
        mantissa, exponent = np.frexp(largest)
        bound = np.ldexp(np.floor(np.ldexp(mantissa, self.leading)) + 1, exponent - self.leading)
        return np.ceil(bound / step + 0.5).astype(np.int64) - 1  # less than the bound


FORMATS: dict[str, Callable[[float], Format]] = {
    "planes, 64 values": lambda bits: PlaneFormat("fp32", 64, max(int(8 * bits), _least_of_planes())),
    "step, 32 values": lambda bits: StepFormat("fp32", 32, int(4 * bits)),
    "step, 64 values": lambda bits: StepFormat("fp32", 64, int(8 * bits)),
    "step, 128 values": lambda bits: StepFormat("fp32", 128, int(16 * bits)),
}
VARIANTS = {
    "the same, estimated": Variant(),
    "… with the widest core alone": Variant(cores="widest"),
    "… with every core": Variant(cores="every"),
    "… without fine bits": Variant(fine="none"),
    "… with fine bits that save nothing": Variant(fine="uncounted"),
    "… with `moved` not stored": Variant(header=-FIELDS["moved"]),
    "… with finer escapes": Variant(escaped="fine"),
    "… with `f` halved, and its last bit": Variant(escaped="halved", header=-FIELDS["moved"]),
    "… with a short form of escapes": Variant(short=True, header=1),
    "… with `wide` from the exponent alone": Variant(leading=1),
    "… with `wide` from the exact maximum": Variant(leading=None),
    "… with `d` up to 16": Variant(finer=16),
    "… with an offset": Variant(offset=True),
    "… with steps of 1 and 1.5 times a power of two": Variant(mantissas=(1.0, 1.5)),
    "… with Rice codes": Variant(rice=True),
    "the most elaborate": Variant(
        cores="best",
        escaped="halved",
        short=True,
        offset=True,
        leading=None,
        finer=16,
        header=1 - FIELDS["moved"],
    ),
}


def rounded(values: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Values in steps, ties away from zero: int64[blocks, N]."""
    return (np.sign(values) * np.floor(np.abs(values) / step[:, None] + 0.5)).astype(np.int64)


def decoded(values: np.ndarray, bits: float, variant: Variant) -> np.ndarray:
    """What blocks of finite values, float64[blocks, N], decode to."""
    blocks, n = values.shape
    room = variant.room(bits, n)
    coders = variant.coders(room, n)
    step, mean, chosen = np.ones(blocks), np.zeros(blocks, np.int64), np.full(blocks, -1)
    top = np.frexp(np.abs(values).max(axis=1))[1] - 1
    for finer in range(1, variant.finer + 1):
        for mantissa in sorted(variant.mantissas, reverse=True):
            this_step = mantissa * 2.0 ** (top + 2 - finer)
            this_mean = in_steps(values.mean(axis=1), this_step)
            length = np.full(blocks, room + 1)
            for index, coder in enumerate(coders):
                this_length = coder.bits(*counted(values, this_step, this_mean, coder, variant)).sum(axis=1)
                better = this_length < length
                length[better], chosen[better] = this_length[better], index
                step[better], mean[better] = this_step[better], this_mean[better]
    found = np.zeros_like(values)
    for index, coder in enumerate(coders):
        rows = chosen == index
        found[rows] = filled(values[rows], step[rows], mean[rows], coder, variant, room)
    return found


def in_steps(mean: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Means that an offset has room for: int64[blocks]."""
    most = (1 << OFFSET_BITS - 1) - 1
    return np.clip(np.floor(mean / step + 0.5), -most, most).astype(np.int64)


def counted(
    values: np.ndarray, step: np.ndarray, mean: np.ndarray, coder: Coder, variant: Variant
) -> tuple[np.ndarray, np.ndarray]:
    """What a coder is given: values in coarse steps, and how many these may be."""
    origin = mean * coder.from_mean
    distances = np.abs(values - (origin * step)[:, None])
    return rounded(values, step) - origin[:, None], variant.most(distances, step)


def filled(
    values: np.ndarray, step: np.ndarray, mean: np.ndarray, coder: Coder, variant: Variant, room: int
) -> np.ndarray:
    """The decoded values: the first that there is room for in fine steps, the others in coarse ones."""
    coarse, most = counted(values, step, mean, coder, variant)
    origin = (mean * coder.from_mean)[:, None]
    fine = rounded(values, step / 2) - 2 * origin
    before, after = coder.bits(coarse, most), coder.fine_bits(coarse, fine, most)
    costs = {"none": room + 1, "uncounted": 1, "counted": after - before}[variant.fine]
    used = before.sum(axis=1)[:, None] + np.cumsum(np.broadcast_to(costs, before.shape), axis=1)
    moves = np.logical_and.accumulate(used <= room, axis=1) & (np.arange(values.shape[1]) < MAX_MOVED)
    halves = np.where(moves & coder.refines(fine), fine, 2 * coarse)
    return (halves + 2 * origin) * step[:, None] / 2


def effective_bits(exact: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Of each 64 values that vary."""
    exact, found = (part.astype(np.float64).reshape(-1, 64) for part in (exact, found))
    variance, error = exact.var(axis=1), ((found - exact) ** 2).mean(axis=1)
    varies = variance > 0
    with np.errstate(divide="ignore"):
        return np.minimum(0.5 * np.log2(variance[varies] / error[varies]), 24)


def activations(name: str) -> np.ndarray:
    """Some of what a model saves after its first steps: float32[blocks, BLOCK]."""
    torch.manual_seed(0)
    model, batch = MODELS[name]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    for step in range(STEPS):
        model(**batch(step)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    saved = tensors(model, lambda: loss_of(model, batch))
    blocks = np.concatenate([one for some in saved.values() for one in some])
    return blocks[:: max(len(blocks) // BLOCKS_OF_A_MODEL, 1)]


def _least_of_planes() -> int:
    return PlaneFormat("fp32", 64, None).min_target


def main() -> None:
    rows = []
    for name in MODELS:
        values = activations(name)
        for bits in track(RATES, name, console=Console(stderr=True), transient=True):
            for kind, make in FORMATS.items():
                fmt = make(bits)
                found = fmt.decompress(fmt.compress(values), values.shape)
                rows.append(row(name, kind, bits, effective_bits(values, found)))
            for kind, variant in VARIANTS.items():
                found = decoded(values.astype(np.float64), bits, variant)
                rows.append(row(name, kind, bits, effective_bits(values, found)))
    table = Table("", title="Effective bits, the mean of the models, at so many stored bits per value")
    for bits in RATES:
        table.add_column(f"{bits:g}", justify="right")
    for kind in [*FORMATS, *VARIANTS]:
        cells = []
        for bits in RATES:
            same = [one["effective_bits"] for one in rows if (one["kind"], one["bits"]) == (kind, bits)]
            cells.append(f"{np.mean(same):.2f}")
        table.add_row(kind, *cells)
    Console(width=110).print(table)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(rows, indent=2) + "\n")
    print(f"written to {OUTPUT}")


def row(model: str, kind: str, bits: float, found: np.ndarray) -> dict[str, str | float]:
    return {"model": model, "kind": kind, "bits": bits, "effective_bits": float(found.mean())}


if __name__ == "__main__":
    main()
