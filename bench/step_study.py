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

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from golden import Format, PlaneFormat, StepFormat
from golden.step import HEADER_BYTES, MASKED, MAX_CORE, MAX_FINER, MAX_OFFSET

from .effective_bits import MODELS, STEPS, loss_of, tensors

RATES = (6, 4, 3, 2.5, 2)
BLOCK = 128
BLOCKS_OF_A_MODEL = 1500
OUTPUT = Path("build/bench/step_study.json")
_TOO_LONG = 1 << 30

# Bits of each code, int[blocks, N], in blocks whose widths are those that the second argument's codes need.
Coder = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Variant:
    """How a block is coded. Every step is tried, and the finest that fits is taken.

    Attributes:
        offset: whether codes may be counted from the mean.
        from_zero: whether there is a split with a core of 1 bit whose codes are counted from 0.
        refine: whether left-over bits move the first values to a grid twice as fine.
        short: whether escapes have a short form.
        every_core: whether all cores are tried, counted from 0 and from the mean.
        mantissas: of steps, each times a power of two; more than one take a bit of the header.
        rice: whether codes are Rice codes, with the best parameter for each block.
    """

    offset: bool = True
    from_zero: bool = True
    refine: bool = True
    short: bool = True
    every_core: bool = False
    mantissas: tuple[float, ...] = (1.0,)
    rice: bool = False

    def coders(self, room: int, n: int) -> list[tuple[bool, Coder]]:
        """What is tried at each step, and whether its codes are counted from the mean."""
        if self.rice:
            return [(self.offset, rice(k)) for k in range(8)]
        widest = min(room // n, MAX_CORE)
        origins = [False, True] if self.offset else [False]
        if self.every_core:
            splits = [(core, origin) for core in range(1, widest + 1) for origin in origins]
        else:
            splits = [(1, False)] if self.from_zero else []
            splits += [(core, self.offset) for core in (widest - 1, widest) if core > 0]
        shorts = [0, 1] if self.short else [0]
        return [(origin, escapes(core, short)) for core, origin in splits for short in shorts]


FORMATS: dict[str, Callable[[float], Format]] = {
    "planes, 64 values": lambda bits: PlaneFormat("fp32", 64, max(int(8 * bits), _least_of_planes())),
    "step, 32 values": lambda bits: StepFormat("fp32", 32, int(4 * bits)),
    "step, 64 values": lambda bits: StepFormat("fp32", 64, int(8 * bits)),
    "step, 128 values": lambda bits: StepFormat("fp32", 128, int(16 * bits)),
}
VARIANTS = {
    "the same, but with every step tried": Variant(),
    "… and with every core": Variant(every_core=True),
    "… without a core that counts from 0": Variant(from_zero=False),
    "… without an offset": Variant(offset=False),
    "… without refinement": Variant(refine=False),
    "… without a short form": Variant(short=False),
    "… with steps of 1 and 1.5 times a power of two": Variant(mantissas=(1.0, 1.5)),
    "… with Rice codes": Variant(rice=True),
}


def escapes(core: int, short: int) -> Coder:
    """A core of so many bits, and what is beyond it escapes."""

    def bits(codes: np.ndarray, needed: np.ndarray) -> np.ndarray:
        beyond, largest = (np.abs(part) - (1 << core - 1) for part in (codes, needed))
        wide = long_bits(largest, short).max(axis=1, keepdims=True)
        wide = np.where(wide < MASKED, wide, _TOO_LONG)
        escape = 2 * short + np.where(beyond >= short, wide, 0)
        found = core + np.where(beyond >= 0, escape, 0)
        return np.where(long_bits(beyond, short) > wide, _TOO_LONG, found)

    return bits


def long_bits(beyond: np.ndarray, short: int) -> np.ndarray:
    """Bits that a code's long form needs, 0 if it has none."""
    length = np.frexp(np.maximum(beyond - short, 0).astype(np.float64))[1]
    return np.where(beyond >= short, length + 1 - short, 0)


def rice(k: int) -> Coder:
    return lambda codes, _: (np.where(codes < 0, -2 * codes - 1, 2 * codes) >> k) + 1 + k


def rounded(values: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Values in steps, ties away from zero: int64[blocks, N]."""
    return (np.sign(values) * np.floor(np.abs(values) / step[:, None] + 0.5)).astype(np.int64)


def decoded(values: np.ndarray, bits: float, variant: Variant) -> np.ndarray:
    """What blocks of finite values, float64[blocks, N], decode to."""
    blocks, n = values.shape
    room = int(n * bits) - 8 * HEADER_BYTES - (len(variant.mantissas) > 1)
    coders = variant.coders(room, n)
    step, offset, chosen = np.ones(blocks), np.zeros(blocks, np.int64), np.full(blocks, -1)
    top = np.frexp(np.abs(values).max(axis=1))[1] - 1
    for finer in range(1, MAX_FINER + 1):
        for mantissa in sorted(variant.mantissas, reverse=True):
            this_step = mantissa * 2.0 ** (top + 2 - finer)
            whole = rounded(values, this_step)
            mean = np.clip(np.floor(values.mean(axis=1) / this_step + 0.5), -MAX_OFFSET, MAX_OFFSET)
            mean = mean.astype(np.int64)
            length = np.full(blocks, room + 1)
            for index, (from_mean, coder) in enumerate(coders):
                codes = whole - from_mean * mean[:, None]
                this_length = coder(codes, codes).sum(axis=1)
                better = this_length < length
                length[better], chosen[better] = this_length[better], index
                step[better], offset[better] = this_step[better], from_mean * mean[better]
    found = np.zeros_like(values)
    for index, (_, coder) in enumerate(coders):
        rows = chosen == index
        found[rows] = refined(values[rows], step[rows], offset[rows], coder, room if variant.refine else 0)
    return found


def refined(values: np.ndarray, step: np.ndarray, offset: np.ndarray, coder: Coder, room: int) -> np.ndarray:
    """The decoded values: the first that there is room for in half steps, the others in steps."""
    codes, halves = rounded(values, step) - offset[:, None], rounded(values, step / 2)
    moved = (halves >> 1) - offset[:, None]
    before, after = coder(codes, codes), coder(moved, codes)
    stays = after >= _TOO_LONG
    used = before.sum(axis=1)[:, None] + np.cumsum(1 + np.where(stays, 0, after - before), axis=1)
    count = np.where(used <= room, np.arange(1, values.shape[1] + 1), 0).max(axis=1, initial=0)
    moves = (np.arange(values.shape[1]) < count[:, None]) & ~stays
    return np.where(moves, halves, 2 * (codes + offset[:, None])) * step[:, None] / 2


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
