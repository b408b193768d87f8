"""What the choices in the Hadamard format are worth: ``python -m bench.format_study``.

Variants of the format, each with one thing changed, computed in torch: with nothing changed it is the format,
as a test says. For each:

- the gradient error ``||g - g_exact|| / ||g_exact||`` of the models of ``bench.effective_bits``, over all
  parameters, with the same dropout masks;
- with eight batches, how much smaller the error of the mean gradient is than that of one: 2.83 if the errors
  are independent. The blocks of all batches have the same numbers, as those of eight ranks would;
- with ``--train``, the validation loss of the small GPT-2 after 300 steps, by seed. That of the format itself
  is in docs/convergence.json.

Each that is finished is a row in docs/format-study.json, and is not run again; docs/format-study.md has the
tables.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from golden import HadamardFormat, PlaneFormat
from golden.hadamard import ALIGNED_BITS, FRACTION_BITS, HEADER_BITS, LEVELS, THRESHOLDS
from torch_bridge import backends
from torch_bridge.backends.base import Backend
from torch_bridge.backends.dtypes import AnyFormat
from torch_bridge.job import train

from . import effective_bits
from .convergence.page import difference
from .convergence.rows import finished
from .convergence.runs import Everything
from .page import fill, write

Row = dict[str, Any]

RATES = (4, 2, 1.625)
ROWS, PAGE = Path("docs/format-study.json"), Path("docs/format-study.md")
STEPS = 300
_MEAN_BITS = 10
_PIECE = 512  # blocks that are computed at a time: what is computed of them stays in a core's cache

# Three levels of a Gaussian with a deviation of 13.5, and the threshold between them, in 32nds of it.
_THREE = ((0, 17), (20,))
_THREE_BITS = 1.6  # five of them in a byte


@dataclass(frozen=True)
class Variant:
    """A code like the Hadamard format.

    Args:
        block: values in a block.
        bits: stored for each value, headers included.
        mean: whether it is taken away before the transform, and stored in ten bits, two of them significant:
            "never", "always", or "flagged", in the blocks that err less with it, which a bit says.
        second: blocks with so many zeros that a map of these leaves the other values eight bits or more may
            be stored so, if they err less, which a bit says.
        three: coefficients of three levels in place of those that would have less than two bits.
        signs: "number", the pattern of the block's number; "fresh", a random one every time; "one", the
            same for all blocks.
        fraction: bits of the scale behind its leading one.
        aligned: bits of a value's magnitude.
        shrunk: the scale is that of the least squared error, in place of the unbiased one.
    """

    bits: float = 2
    block: int = 128
    mean: str = "never"
    second: bool = False
    three: bool = False
    signs: str = "number"
    fraction: int = FRACTION_BITS
    aligned: int = ALIGNED_BITS
    shrunk: bool = False

    @property
    def room(self) -> int:
        """Bits of a block behind its header, without those of a mean."""
        header = HEADER_BITS - FRACTION_BITS + self.fraction + (self.mean == "flagged") + self.second
        return int(self.bits * self.block) - header

    def quantisers(self, mean: bool) -> torch.Tensor:
        """The number of each coefficient's quantiser: its width, or 5 for three levels."""
        room = self.room - _MEAN_BITS * mean
        if self.three and room < 2 * self.block:
            costs = {1: 1.0, 5: _THREE_BITS, 2: 2.0}
            low, high = (1, 5) if room < _THREE_BITS * self.block else (5, 2)
            more = int((room - costs[low] * self.block) / (costs[high] - costs[low]))
            return torch.where(torch.arange(self.block) < more, high, low)
        least, more = divmod(room, self.block)
        return least + (torch.arange(self.block) < more).long()


def decoded(values: torch.Tensor, variant: Variant, signs: torch.Tensor) -> torch.Tensor:
    """What comes back of finite values: float32[blocks, N], with signs float64[blocks, N] or [1, N]."""
    exact = values.double()
    means = {"never": (False,), "always": (True,), "flagged": (False, True)}[variant.mean]
    ways = [_transformed(exact, variant, signs, mean) for mean in means]
    if variant.second:
        ways.append(_mapped(exact, variant))
    if len(ways) == 1:
        return ways[0].float()
    every = torch.stack(ways)
    best = (every - exact).square().sum(dim=2).argmin(dim=0)
    return every[best, torch.arange(len(exact))].float()


def _transformed(exact: torch.Tensor, variant: Variant, signs: torch.Tensor, with_mean: bool) -> torch.Tensor:
    mean = _short(exact.mean(dim=1, keepdim=True)) if with_mean else torch.zeros(len(exact), 1).double()
    aligned, unit = _align(exact - mean, variant.aligned)
    matrix = hadamard(variant.block)
    z = (aligned * signs) @ matrix
    energy = aligned.square().sum(dim=1, keepdim=True)
    coefficients = _quantise(z, energy, variant.quantisers(with_mean))
    product = (z * coefficients).sum(dim=1, keepdim=True)
    over = variant.block * coefficients.square().sum(dim=1, keepdim=True) if variant.shrunk else product
    scale = torch.where(product > 0, (product if variant.shrunk else energy) / over.clamp_min(1), 0)
    return (coefficients @ matrix) * signs * _rounded(scale, variant.fraction) * unit + mean


def _mapped(exact: torch.Tensor, variant: Variant) -> torch.Tensor:
    """Zeros by a map; the other values in the bits that it leaves, all of one width, up to 24. Or infinities.

    With fewer than eight bits they would err less than as coefficients, but not on average: rounded to
    nearest, small ones would all be lost, and gradients are worse.
    """
    count = (exact != 0).sum(dim=1, keepdim=True)
    width = ((variant.room - variant.block) // count.clamp_min(1)).clamp(1, 24)
    aligned, unit = _align(exact, width - 1)  # a bit is the sign
    return torch.where(width >= 8, aligned * unit, torch.inf)


def hadamard(size: int) -> torch.Tensor:
    matrix = torch.ones(1, 1).double()
    while len(matrix) < size:
        matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]).double(), matrix)
    return matrix


def _align(values: torch.Tensor, bits: int | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Values as integers, and their unit; subnormals aside, as the format does it."""
    largest = values.abs().amax(dim=1, keepdim=True)
    unit = torch.exp2(torch.frexp(largest).exponent.double() - bits)
    magnitude = torch.floor(values.abs() / unit + 0.5).clamp_max(2**bits - 1)
    return torch.where(largest > 0, values.sign() * magnitude, 0), unit


def _quantise(z: torch.Tensor, energy: torch.Tensor, quantisers: torch.Tensor) -> torch.Tensor:
    half = (torch.frexp(energy.clamp_min(1)).exponent - 1) // 2
    root = torch.floor(16 * torch.sqrt(torch.floor(energy * torch.exp2(6.0 - 2 * half))))
    found = torch.zeros_like(z)
    for number in quantisers.unique().tolist():
        levels, thresholds = _THREE if number == 5 else (LEVELS[number], THRESHOLDS[number])
        here = quantisers == number
        index = torch.zeros_like(z[:, here], dtype=torch.long)
        for threshold in thresholds:
            index += z[:, here].abs() > torch.floor(threshold * root * torch.exp2(half - 12.0))
        found[:, here] = torch.tensor(levels).double()[index]
    return torch.where(z < 0, -found, found)


def _rounded(scale: torch.Tensor, fraction: int) -> torch.Tensor:
    """Scales with so many bits behind their leading one, ties up."""
    unit = torch.exp2(torch.frexp(scale).exponent.double() - 1 - fraction)
    return torch.floor(scale / unit + 0.5) * unit


def _short(mean: torch.Tensor) -> torch.Tensor:
    return _rounded(mean.abs(), 1) * mean.sign()


class Simulated(Backend):
    """Stands in for a backend of the Hadamard format, but what it stores is what would come back."""

    def __init__(self, variant: Variant) -> None:
        super().__init__(PlaneFormat("fp32", 64, 256))  # that would store as much
        self._variant, self._generator = variant, torch.Generator().manual_seed(0)

    def _compress(self, values: torch.Tensor, first: int) -> torch.Tensor:
        block = self._variant.block
        rows = torch.cat([values, torch.zeros(-len(values) % block)]).view(-1, block)
        signs = self.signs(first, len(rows)).expand(len(rows), block)
        pieces = zip(rows.split(_PIECE), signs.split(_PIECE), strict=True)
        back = torch.cat([decoded(piece, self._variant, of_it) for piece, of_it in pieces]).view(-1, 64)
        return back[: self.fmt.blocks(len(values))].view(torch.uint8)

    def _decompress(self, stored: torch.Tensor, count: int, first: int) -> torch.Tensor:
        return stored.view(torch.float32).view(-1)[:count]

    def signs(self, first: int, blocks: int) -> torch.Tensor:
        block = self._variant.block
        if self._variant.signs == "fresh":
            return torch.randint(2, (blocks, block), generator=self._generator).double() * 2 - 1
        return _signs(block, first, 1 if self._variant.signs == "one" else blocks)


@lru_cache
def _signs(block: int, first: int, blocks: int) -> torch.Tensor:
    """Those of the format. A training step asks for the same ones again and again."""
    numbers = (first + np.arange(blocks, dtype=np.int64)).astype(np.uint32)
    return torch.from_numpy(HadamardFormat(block=block, target=block // 4).signs(numbers)).double()


@contextmanager
def simulated(variant: Variant) -> Iterator[None]:
    """The variant in place of every Hadamard format."""
    get = backends.get

    def stand_in(name: str, fmt: AnyFormat) -> Backend:
        return Simulated(variant) if isinstance(fmt, HadamardFormat) else get(name, fmt)

    with mock.patch.object(backends, "get", stand_in):
        yield


FORMAT = Variant()
VARIANTS = {
    "the format": FORMAT,
    "… with a fresh random pattern every time": replace(FORMAT, signs="fresh"),
    "… with one pattern for all blocks": replace(FORMAT, signs="one"),
    "… with 64 values": replace(FORMAT, block=64),
    "… with 256 values": replace(FORMAT, block=256),
    "… with a mean": replace(FORMAT, mean="always"),
    "… with a mean by a flag": replace(FORMAT, mean="flagged"),
    "… with a second mode for sparse blocks": replace(FORMAT, second=True),
    "… with three levels": replace(FORMAT, three=True),
    "… with a scale of 3 bits": replace(FORMAT, fraction=2),
    "… with a scale of 7 bits": replace(FORMAT, fraction=6),
    "… aligned to 10 bits": replace(FORMAT, aligned=9),
    "… aligned to 16 bits": replace(FORMAT, aligned=15),
    "… with the scale of the least squared error": replace(FORMAT, shrunk=True),
}
# What the page says of a variant, beside how its gradient error differs from the format's.
REASONS = {
    "… with a fresh random pattern every time": "Not taken: the pattern of a number needs no seed.",
    "… with one pattern for all blocks": "Not taken: alike blocks err alike, which does not average out.",
    "… with 64 values": "Allowed, not the default: the header takes twice the share of the bits.",
    "… with 256 values": (
        "Allowed, not the default: the compressor's latency would be 50 cycles in place of 34 (18 + 2 · "
        "block / bytes a cycle), over the 40 aimed for; twice as much would wait in it, and the line of "
        "values alone takes 10.5 of its 95 kGE; the least to be read by itself would be 1,024 bytes in "
        "place of 512."
    ),
    "… with a mean": "Not taken: its ten bits cost the other blocks more than those with a mean gain.",
    "… with a mean by a flag": (
        "Not taken: a block would have two layouts, and the compressor would add up values that are not "
        "aligned yet. What has a mean is above all GELU's `1 + tanh`, which the default policy recomputes."
    ),
    "… with a second mode for sparse blocks": (
        "Not taken: nothing shows for it. Masks, which are sparse, the policy keeps as bits."
    ),
    "… with three levels": (
        "Not taken: five coefficients would share a byte, so that none has a field of its own, and a "
        "decoder needs a table of bytes; levels of whole bits are only shifted and masked."
    ),
    "… with a scale of 3 bits": "Not taken: at 4 bits the scale's own rounding shows.",
    "… with a scale of 7 bits": "Not taken: two bits more gain nothing.",
    "… aligned to 10 bits": "Not taken, though nothing shows here: an outlier of 200 times needs 12 bits.",
    "… aligned to 16 bits": "Not taken: wider adders would gain nothing.",
    "… with the scale of the least squared error": (
        "Not taken, though each block then errs least: its errors shrink it, and they add up over tensors "
        "and batches."
    ),
}
# Rows of docs/convergence.json that are runs of the format itself, by bits a value.
SAME = {2: "hadamard 16x", 1.625: "hadamard 19.7x"}
# What is trained: names of variants, and bits a value.
TRAINED = [
    ("… with a fresh random pattern every time", 2),
    ("… with a mean", 2),
    ("… with a mean by a flag", 2),
    ("… with a second mode for sparse blocks", 2),
    ("… with 256 values", 2),
    ("… with three levels", 1.625),
    ("… with one pattern for all blocks", 2),
]


def gradient_rows(rows: list[Row], batches: int) -> Iterator[Row]:
    """Of each model, variant and rate that has no row yet: the error of one gradient, and of their mean."""
    done = {(row["model"], row["variant"], row["bits"]) for row in rows if "model" in row}
    for name, make in effective_bits.MODELS.items():
        left = [(title, bits) for title in VARIANTS for bits in RATES if (name, title, bits) not in done]
        if not left:
            continue
        model, batch = effective_bits.trained(make)
        several = [lambda _, n=n, batch=batch: batch(99 + n) for n in range(batches)]
        exact = [effective_bits.gradient(model, one, None) for one in several]
        norm = _root_mean_square(exact)
        for title, bits in track(left, name, console=Console(stderr=True)):
            with simulated(replace(VARIANTS[title], bits=bits)):
                found = [effective_bits.gradient(model, one, HadamardFormat()) for one in several]
            errors = [one - right for one, right in zip(found, exact, strict=True)]
            size = _root_mean_square(errors)
            gain = size / float((sum(errors) / batches).norm())
            yield {
                "model": name,
                "variant": title,
                "bits": bits,
                "batches": batches,
                "gradient_error": size / norm,
                "gain": gain,
            }


def _root_mean_square(vectors: list[torch.Tensor]) -> float:
    return math.sqrt(sum(float(one.square().sum()) for one in vectors) / len(vectors))


def training_rows(rows: list[Row], seeds: list[int]) -> Iterator[Row]:
    """Of each training run that has no row yet."""
    done = {(row["variant"], row["bits"], row["seed"]) for row in rows if "seed" in row}
    for seed in seeds:
        for title, bits in TRAINED:
            if (title, bits, seed) in done:
                continue
            options = Everything(scheme="hadamard", target=32, steps=STEPS, seed=seed)
            with simulated(replace(VARIANTS[title], bits=bits)):
                result = train.run(options, progress=True)
            if result["interrupted"]:
                raise KeyboardInterrupt
            yield {"variant": title, "bits": bits, "seed": seed, "val_loss": result["val_loss"]}


def document(rows: list[Row]) -> None:
    """Write docs/format-study.json and the tables of docs/format-study.md."""
    write(ROWS, "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    tables = []
    for name in effective_bits.MODELS:
        found = {(row["variant"], row["bits"]): row for row in rows if row.get("model") == name}
        if not found:
            continue
        cells = {
            title: [
                f"{row['gradient_error']:.3f} ({row['gain']:.2f})"
                if (row := found.get((title, bits)))
                else ""
                for bits in RATES
            ]
            for title in VARIANTS
        }
        tables.append(_table([f"**{name}**", *(f"{bits:g} bits" for bits in RATES)], cells))
    fill(PAGE, "gradients", "\n\n".join(tables))
    fill(PAGE, "choices", choices(rows))

    small = defaultdict(list)
    for row in finished():
        if row["model"] == "small":
            small[row["scheme"]].append(row)
    trained = {("the format", bits): small[scheme] for bits, scheme in SAME.items()}
    for title, bits in TRAINED:
        of_variant = [row for row in rows if "seed" in row and (row["variant"], row["bits"]) == (title, bits)]
        trained[title, bits] = of_variant
    cells = {}
    for (title, bits), runs in trained.items():
        if runs:
            cells[f"{title}, {bits:g} bits"] = [
                str(len(runs)),
                _added(runs, small["baseline"]),
                "" if title == "the format" else _added(runs, trained["the format", bits]),
            ]
    headings = ["", "seeds", "validation loss, less that without compression", "less the format's"]
    fill(PAGE, "training", _table(headings, cells) if cells else "No run is finished yet.")


def _added(runs: list[Row], base: list[Row]) -> str:
    middle, half, _ = difference(runs, base)
    return f"{middle:+.4f}" + (f" ± {half:.4f}" if half < math.inf else "")


def choices(rows: list[Row]) -> str:
    """A row for each variant: its gradient error against the format's, by model, and why it is not taken."""
    errors = {
        (row["variant"], row["bits"], row["model"]): row["gradient_error"] for row in rows if "model" in row
    }
    cells = {}
    for title, reason in REASONS.items():
        by_rate = []
        for bits in RATES:
            keys = [(bits, model) for model in effective_bits.MODELS]
            if all((name, *key) in errors for key in keys for name in (title, "the format")):
                changes = [errors[title, *key] / errors["the format", *key] - 1 for key in keys]
                by_rate.append(" / ".join(f"{round(100 * change):+d}" for change in changes))
            else:
                by_rate.append("")
        if any(by_rate):
            cells[title.removeprefix("… ")] = [*by_rate, reason]
    rates = [f"{bits:g} bits, %" for bits in RATES]
    return _table(["the format", *rates, "verdict"], cells) if cells else ""


def _table(headings: list[str], rows: dict[str, list[str]]) -> str:
    """A Markdown table, its rows by their first cell."""
    lines = [
        headings,
        ["---", *["---:"] * (len(headings) - 1)],
        *([name, *row] for name, row in rows.items()),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.format_study", description="Variants of the format."
    )
    parser.add_argument("--train", action="store_true", help="train the variants, too: hours")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="of training")
    parser.add_argument("--batches", type=int, default=8, help="of each gradient")
    arguments = parser.parse_args()
    rows = json.loads(ROWS.read_text()) if ROWS.exists() else []
    missing = [gradient_rows(rows, arguments.batches)]
    if arguments.train:
        missing.append(training_rows(rows, arguments.seeds))
    try:
        for row in chain.from_iterable(missing):
            rows.append(row)
            document(rows)
    except KeyboardInterrupt:
        sys.exit(130)
    document(rows)
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
