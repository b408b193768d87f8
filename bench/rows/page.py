"""The tables of docs/rows.md."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from ..page import fill
from .training import STARTS, TRAINED

Row = dict[str, Any]

PAGE = Path("docs/rows.md")
STUDIES = {
    "gaussian": ("effective_bits", ["block"]),
    "norm": ("gradient_error", ["width", "cut"]),
    "attention": ("gradient_error", ["layout", "spread"]),
    "convolution": ("gradient_error", ["row", "size"]),
}


def document(rows: list[Row]) -> None:
    """Fill the page's tables, and print them."""
    for study, text in {**{study: table(rows, study) for study in STUDIES}, "training": losses(rows)}.items():
        fill(PAGE, study, text)
        print(f"{text}\n")


def table(rows: list[Row], study: str) -> str:
    """A study without training: a line for each case, its figures by bits of a value."""
    figure, keys = STUDIES[study]
    found = [row for row in rows if row["study"] == study]
    rates = sorted({row["bits"] for row in found}, reverse=True)
    lines: dict[tuple[Any, ...], dict[float, str]] = {}
    for row in found:
        text = f"{row[figure]:.2f}" if figure == "effective_bits" else _three_digits(row[figure])
        if "bits_stored" in row and not math.isclose(row["bits_stored"], row["bits"]):
            text += f" (in {row['bits_stored']:.2f} bits)"
        lines.setdefault(tuple(row[key] for key in keys), {})[row["bits"]] = text
    heads = [*keys, *(f"{bits:g} bits" for bits in rates)]
    return _markdown(heads, [[*key, *(line.get(bits, "") for bits in rates)] for key, line in lines.items()])


def losses(rows: list[Row]) -> str:
    """Validation losses less that without compression, paired by seed: their mean and its standard error."""
    runs = [row for row in rows if row["study"] == "training"]
    exact = {_case(row): row["val_loss"] for row in runs if row["cut"] == "exact"}
    rates = sorted({row["bits"] for row in runs if row["cut"] != "exact"}, reverse=True)
    lines = []
    for (width, cuts), start in product(TRAINED.items(), STARTS):
        of_start = [row for row in runs if (row["width"], row["start"]) == (width, start)]
        for cut in cuts:
            of_cut = [row for row in of_start if row["cut"] == cut]
            added = [
                [row["val_loss"] - exact[_case(row)] for row in of_cut if row["bits"] == bits]
                for bits in rates
            ]
            if any(added):
                lines.append([width, start, cut, max(map(len, added)), *map(_spread, added)])
    return _markdown(["width", "start", "cut", "seeds", *(f"{bits:g} bits" for bits in rates)], lines)


def _case(row: Row) -> tuple[int, str, int]:
    return row["width"], row["start"], row["seed"]


def _spread(added: list[float]) -> str:
    if not added:
        return ""
    half = f" ± {stdev(added) / math.sqrt(len(added)):.4f}" if len(added) > 1 else ""
    return f"{mean(added):+.4f}{half}"


def _three_digits(number: float) -> str:
    digits = max(0, 2 - math.floor(math.log10(number)))
    return f"{number:,.{digits}f}"


def _markdown(heads: list[str], lines: list[list[Any]]) -> str:
    every = [heads, ["---", *["---:"] * (len(heads) - 1)], *lines]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in every)
