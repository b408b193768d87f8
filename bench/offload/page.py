"""The tables of docs/schemes.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import quantiles
from typing import Any

from ..page import fill
from .models import NAMES, SHAPES, Model

Row = dict[str, Any]

PAGE = Path("docs/schemes.md")
METHODS = (
    "baseline",
    "checkpointing",
    "offload all",
    "offload adaptive",
    "compress to 4 bits",
    "compress, offload all",
)


def document(rows: Sequence[Row]) -> None:
    """Fill the page's tables, and print them."""
    tables = {"shapes": shapes(rows), "micro-batches": micro_batches(rows), "times": times(rows)}
    for name, text in tables.items():
        fill(PAGE, f"offload-{name}", text)
        print(f"{text}\n")


def shapes(rows: Sequence[Row]) -> str:
    """1F1B, by the paper's shapes: a step of both stages."""
    lines = []
    for name in NAMES:
        for paper_width in SHAPES:
            model = Model(name, paper_width)
            title = f"{name.upper()}, {paper_width} wide, {model.layers} layers"
            of = {"model": name, "paper_width": paper_width, "schedule": "1F1B"}
            lines += _lines([row for row in rows if of.items() <= row.items()], title)
    return _markdown(["the paper's", *_HEADS], lines)


def micro_batches(rows: Sequence[Row]) -> str:
    """GPipe, by the number of micro-batches in flight."""
    lines = []
    for name in NAMES:
        found = [row for row in rows if (row["model"], row["schedule"]) == (name, "GPipe")]
        for number in sorted({row["micro_batches"] for row in found}):
            alike = [row for row in found if row["micro_batches"] == number]
            lines += _lines(alike, f"{name.upper()}, {number} in flight")
    return _markdown(["", *_HEADS], lines)


def times(rows: Sequence[Row]) -> str:
    """The time of a step over that of the baseline, in the middle of all cases."""
    of = ("model", "paper_width", "schedule", "micro_batches")
    cases = dict.fromkeys(tuple(row[key] for key in of) for row in rows)
    steps = [by_method([row for row in rows if tuple(row[key] for key in of) == case]) for case in cases]
    lines = []
    for method in METHODS:
        ratios = [step[method]["seconds_per_step"] / step["baseline"]["seconds_per_step"] for step in steps]
        low, middle, high = quantiles(ratios, n=4)
        lines.append([method, f"{middle:.2f}", f"{low:.2f} to {high:.2f}"])
    return _markdown(["method", "time of baseline, median", "half of the cases"], lines)


_HEADS = ("method", "peak, MB", "less", "written, MB", "read, MB", "time of baseline")


def _lines(rows: Sequence[Row], title: str) -> list[list[str]]:
    steps = by_method(rows)
    baseline = steps["baseline"]
    return [
        [
            title if method == "baseline" else "",
            method,
            f"{step['activation_peak_bytes'] / 1e6:.1f}",
            f"{1 - step['activation_peak_bytes'] / baseline['activation_peak_bytes']:z.0%}",
            f"{step['bytes_written'] / 1e6:.1f}",
            f"{step['bytes_read'] / 1e6:.1f}",
            f"{step['seconds_per_step'] / baseline['seconds_per_step']:.1f}",
        ]
        for method, step in steps.items()
    ]


def by_method(rows: Sequence[Row]) -> dict[str, Row]:
    """Of both stages' rows one for each method: the larger peak, the longer time, all traffic."""
    found: dict[str, Row] = {}
    for method in METHODS:
        both = [row for row in rows if row["method"] == method]
        found[method] = both[0] | {
            **{key: max(row[key] for row in both) for key in ("activation_peak_bytes", "seconds_per_step")},
            **{key: sum(row[key] for row in both) for key in ("bytes_written", "bytes_read")},
        }
    return found


def _markdown(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [heads, ["---"] * len(heads), *lines])
