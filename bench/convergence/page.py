"""The tables and plots of docs/convergence.md."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from scipy import stats

from ..page import fill, write
from .rows import DOCS, SCHEMES, STUDIES, WIDE, as_json, wanted

LIMIT = 0.02  # of a loss that counts as the same
# Okabe and Ito's colours, told apart by everyone.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
# Of the picture: its settings, and the widest interval that says something.
MOST_HALF = 0.05
SETTINGS = (
    *("4 bits", "2 bits", "4 bits, time 1.2", "10-bit boundaries, time 1.35"),
    "checkpointed, boundaries at 4 bits",
)
# MB that the models save of a batch of 8, as they are and with GELU as one operation.
SAVED_MB = {"small": (90.89, 53.14), "medium": (268.71, 155.46)}


def document(rows: list[dict[str, Any]]) -> None:
    """Write docs/convergence.json, the tables of docs/convergence.md and its picture."""
    text = "[\n" + ",\n".join(map(as_json, rows)) + "\n]\n" if rows else "[]\n"
    write(DOCS / "convergence.json", text)
    page = DOCS / "convergence.md"
    bf16_first = sorted(STUDIES, key=lambda model: STUDIES[model].dtype != "bf16")
    tables = [table_of(rows, model) for model in bf16_first if by_scheme(rows, model)]
    fill(page, "table", "\n\n".join([progress(rows), *tables]))
    if points(rows):
        plot(rows, DOCS / "convergence.png")
    print(f"{len(rows)} of {len(wanted(STUDIES))} runs are finished; wrote {page}")


def progress(rows: list[dict[str, Any]]) -> str:
    """How many runs there are, and which not."""
    found = {(row["model"], row["scheme"], row["seed"], row["steps"]) for row in rows}
    keys = wanted(STUDIES)
    missing: dict[str, Counter[str]] = defaultdict(Counter)
    for key in keys:
        if key not in found:
            missing[key[0]][key[1]] += 1
    if not missing:
        return f"{len(keys)} runs:"
    lines = [
        f"| *{model}* | {label_of(scheme)} | {count} |"
        for model, schemes in missing.items()
        for scheme, count in schemes.items()
    ]
    done = len(keys) - sum(schemes.total() for schemes in missing.values())
    head = [f"{done} of {len(keys)} runs. Missing:", "", "| model | scheme | seeds |", "| --- | --- | ---: |"]
    return "\n".join([*head, *lines])


def by_scheme(rows: list[dict[str, Any]], model: str) -> dict[str, list[dict[str, Any]]]:
    """The rows of a model, in the order of schemes."""
    found = defaultdict(list)
    for row in rows:
        if row["model"] == model:
            found[row["scheme"]].append(row)
    return {scheme: found[scheme] for scheme in SCHEMES if scheme in found}


def difference(rows: list[dict[str, Any]], base: list[dict[str, Any]]) -> tuple[float, float, int]:
    """Mean of the losses less those of the same seeds without compression, half its 95 % interval, seeds.

    The mean is infinite if a run ended without a finite loss.
    """
    losses = {row["seed"]: row["val_loss"] for row in base}
    pairs = [row["val_loss"] - losses[row["seed"]] for row in rows if row["seed"] in losses]
    if not all(map(math.isfinite, pairs)):
        return math.inf, math.inf, len(pairs)
    if len(pairs) < 2:
        return (pairs[0] if pairs else math.nan), math.inf, len(pairs)
    half = stats.t.ppf(0.975, len(pairs) - 1) * statistics.stdev(pairs) / len(pairs) ** 0.5
    return statistics.mean(pairs), float(half), len(pairs)


def _wide(schemes: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """What was trained with wide products: seeds, or some schemes of a seed."""
    rows = [(scheme, row) for scheme, found in schemes.items() for row in found]
    for seed in sorted({row["seed"] for _, row in rows if row.get(WIDE)}):
        some = [scheme for scheme, row in rows if row["seed"] == seed and row.get(WIDE)]
        is_all = len(some) == sum(row["seed"] == seed for _, row in rows)
        yield f"seed {seed}" if is_all else f"seed {seed} of {' and '.join(map(label_of, some))}"


def table_of(rows: list[dict[str, Any]], model: str) -> str:
    """A Markdown table of one model."""
    schemes = by_scheme(rows, model)
    base = schemes.get("baseline", [])
    lines = [
        f"**{model}**: {STUDIES[model].title}, {STUDIES[model].steps} steps:\n",
        "| scheme | bits a value | overall ratio | seeds | validation loss | spread "
        f"| difference to baseline, 95 % | below +{LIMIT} | gradient error | effective bits |",
        "| --- " + "| ---: " * 9 + "|",
    ]
    if wide := ", ".join(_wide(schemes)):
        products = f"; {wide} on a processor without bf16, where products are in fp32 and rounded"
        lines[0] = lines[0].replace(":\n", products + ":\n")
    for scheme, found in schemes.items():
        losses = [row["val_loss"] for row in found]
        finite = all(map(math.isfinite, losses))
        spread = f"{statistics.stdev(losses):.4f}" if finite and len(losses) > 1 else ""
        cells = [
            label_of(scheme),
            f"{bits:.4g}" if (bits := found[0]["bits_per_value"]) else "",
            _whole(model, scheme, found[0]["ratio"]),
            str(len(found)),
            f"{statistics.mean(losses):.4f}" if finite else "diverges",
            spread,
        ]
        if scheme == "baseline":
            cells += [""] * 4
        else:
            middle, half, _ = difference(found, base)
            errors = [error for row in found for _, error in row["gradient_error"]]
            effective = [row["effective_bits"] for row in found if row["effective_bits"] is not None]
            cells += [
                f"{middle:+.4f} ± {half:.4f}" if half < math.inf else f"{middle:+.4f}" if finite else "",
                "" if finite and half == math.inf else "yes" if middle + half < LIMIT else "no",
                f"{statistics.median(errors):.3g}" if errors else "",
                f"{statistics.mean(effective):.2f}" if effective else "",
            ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _whole(model: str, scheme: str, ratio: float) -> str:
    """The overall ratio; of recomputed rows also that to what a model with fused GELU saves."""
    if not scheme.startswith("recomputed, ") or model not in SAVED_MB:
        return f"{ratio:.1f}x"
    as_it_is, fused = SAVED_MB[model]
    return f"{ratio:.1f}x, of fused GELU {ratio * fused / as_it_is:.1f}x"


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """What the default policy adds to the loss: a line for each model and setting, with its overall ratio."""
    lines = points(rows)
    figure, axis = plt.subplots(figsize=(9.5, 1.3 + 0.34 * len(lines)), layout="constrained")
    for place, (model, setting, ratio, middle, half) in enumerate(lines):
        axis.errorbar(
            middle, place, xerr=half, fmt="o", color=COLOURS[SETTINGS.index(setting)], capsize=3, ms=6
        )
        axis.annotate(
            f"{ratio:.0f}x", (1, place), (8, -3), ("axes fraction", "data"), textcoords="offset points"
        )
        if place and lines[place - 1][0] != model:
            axis.axhline(place - 0.5, color="gray", lw=0.5)
    axis.axvspan(-LIMIT, LIMIT, color="gray", alpha=0.15, lw=0)
    most = max(middle for _, setting, _, middle, _ in lines if setting == "4 bits")
    figure.suptitle(f"With 4 bits a value the loss rises by at most {most:.3f}", weight="bold")
    axis.set_yticks(range(len(lines)), labels=[f"{STUDIES[model].title}: {of}" for model, of, *_ in lines])
    axis.invert_yaxis()
    axis.set_xlabel("added validation loss, 95 % interval", loc="right")
    axis.annotate("ratio", (1, 1), (8, 6), "axes fraction", textcoords="offset points")
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def points(rows: list[dict[str, Any]]) -> list[tuple[str, str, float, float, float]]:
    """Model, setting, overall ratio, added loss and half its interval, unless that is too wide."""
    found = []
    for model in STUDIES:
        schemes = by_scheme(rows, model)
        for scheme, of in schemes.items():
            middle, half, _ = difference(of, schemes.get("baseline", []))
            shown = scheme.startswith("recompute") or scheme in SETTINGS
            if shown and "calibrated" not in scheme and half < MOST_HALF:
                rate = f"{of[0]['bits_per_value']:g} bits"
                setting = rate if scheme.startswith("recomputed, ") else scheme.removeprefix("recompute, ")
                if setting in SETTINGS:
                    found.append((model, setting, of[0]["ratio"], middle, half))
    return found


def label_of(scheme: str) -> str:
    """What tables call a scheme."""
    named = scheme.replace("planes", "bit-plane format").replace("hadamard", "Hadamard")
    return named.replace("recompute, ", "recomputed with the head, ")
