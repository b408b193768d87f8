"""The tables of docs/schemes.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..page import fill
from . import live
from .peaks import LLAMAS, PAPER, RANKS, ROBERTA

Row = dict[str, Any]

PAGE = Path("docs/schemes.md")


def document(found: dict[str, list[Row]]) -> None:
    """Fill the page's tables of what was measured, and print them."""
    tables = {
        "compact-pretraining": pretraining(found["peaks"]),
        "compact-fine-tuning": fine_tuning(found["peaks"]),
        "compact-split": split(found["peaks"]),
    }
    if "compressed" in found:
        tables["compact-compressed"] = compressed(found["compressed"])
    if "training" in found:
        tables["compact-training"] = training(found["training"])
    for name, text in tables.items():
        fill(PAGE, name, text)
        print(f"{text}\n")


def pretraining(rows: Sequence[Row]) -> str:
    """Beside Table 2: a line for each model and rank."""
    heads = ["", "rank", "paper, MB", "counted as in the paper, MB", "here, MB", "paper, less", "here, less"]
    lines = []
    for model in LLAMAS:
        full = _row(rows, model, "full", True, "bf16")
        for rank in ("full", "n/2", "n/4", "n/8"):
            paper, ours = PAPER[model, rank], _row(rows, model, rank, True, "bf16")
            own = ours if rank == "full" else _row(rows, model, rank, False, "bf16")
            less = (_less(paper, PAPER[model, "full"]), _less(ours["peak_mb"], full["peak_mb"]))
            peaks = [f"{mb:,.0f}" for mb in (paper, own["peak_mb"], ours["peak_mb"])]
            lines.append([model, rank, *peaks, *(less if rank != "full" else ("", ""))])
    return _markdown(heads, lines)


def fine_tuning(rows: Sequence[Row]) -> str:
    """Beside Table 4."""
    heads = ["rank", "paper, MB", "fp32, MB", "less", "autocast to bf16, MB", "less"]
    lines = []
    for rank in ("full", "8", "4"):
        line = [rank, f"{PAPER[ROBERTA, rank]:,}"]
        for dtype in ("fp32", "autocast"):
            full = _row(rows, ROBERTA, "full", True, dtype)["peak_mb"]
            mb = _row(rows, ROBERTA, rank, True, dtype)["peak_mb"]
            line += [f"{mb:,.0f}", _less(mb, full) if rank != "full" else ""]
        lines.append(line)
    return _markdown(heads, lines)


def split(rows: Sequence[Row]) -> str:
    """What the peaks are made of, in MB."""
    shown = [
        *((model, rank, shared, "bf16") for model in LLAMAS for rank, shared in _METHODS),
        *((ROBERTA, rank, True, dtype) for dtype in ("fp32", "autocast") for rank in ("full", "8")),
    ]
    lines = []
    for model, rank, shared, dtype in shown:
        row = _row(rows, model, rank, shared, dtype)
        method = rank if shared else f"{rank}, as in the paper"
        lines.append(
            [
                f"{model}, {dtype}",
                method,
                *(f"{row['at_peak_mb'][kind]:,.0f}" for kind in live.KINDS),
                f"{row['peak_mb']:,.0f}",
            ]
        )
    return _markdown(["", "rank", *live.KINDS, "peak"], lines)


_METHODS = (("full", True), ("n/4", False), ("n/4", True))


def compressed(rows: Sequence[Row]) -> str:
    """CompAct with the rest compressed."""
    heads = ["rank", "kept, MB", "peak beside parameters, MB", "gradient error"]
    return _markdown(
        heads,
        [
            [row["method"], f"{row['kept_mb']:.1f}", f"{row['peak_mb']:.1f}", f"{row['gradient_error']:.3f}"]
            for row in rows
        ],
    )


def training(rows: Sequence[Row]) -> str:
    """Losses of small models."""
    full = {row["phase"]: row for row in rows if row["rank"] == "full"}
    heads = ["", "rank", "perplexity over that of full", "peak, MB"]
    return _markdown(
        heads,
        [
            [
                row["phase"],
                row["rank"],
                f"{row['perplexity'] / full[row['phase']]['perplexity']:.2f}",
                f"{row['peak_bytes'] / 1e6:.1f}",
            ]
            for row in rows
        ],
    )


def _row(rows: Sequence[Row], model: str, rank: str, shared: bool, dtype: str) -> Row:
    assert rank in RANKS
    of = {"model": model, "rank": rank, "shared": shared, "dtype": dtype}
    return next(row for row in rows if of.items() <= row.items())


def _less(mb: float, full: float) -> str:
    return f"{1 - mb / full:.1%}"


def _markdown(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [heads, ["---"] * len(heads), *lines])
