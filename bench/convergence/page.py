"""The tables and plots of docs/convergence.md."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from scipy import stats

from ..page import fill, write
from .rows import DOCS, EARLIER, SCHEMES, STUDIES, as_json, is_earlier, wanted

COLOURS = {"planes": "tab:orange", "hadamard": "tab:green", "quant": "tab:blue"}
COLOURS |= {"recomputed, hadamard": "tab:olive", "recomputed, calibrated": "tab:pink"}
COLOURS |= {"recompute": "tab:cyan", "recompute, time 1.2": "tab:gray", "recompute, time 1.35": "black"}
COLOURS |= {"step": "tab:red", "step, nearest": "tab:purple", "compact": "tab:brown"}
STYLES = {"10.7x": (0, (8, 2)), "12.8x": "-.", "16x": "--", "19.7x": ":", "32x": (0, (1, 4))}
STYLES |= {"6.4x": "--", "3 bits": "-.", "2 bits": "--"}  # of a rate's curve, if not a line
LIMIT = 0.02  # of a loss that counts as the same
TOP = 6  # of a loss that is shown
# MB that the models save of a batch of 8, as they are and with GELU as one operation.
SAVED_MB = {"small": (90.89, 53.14), "medium": (268.71, 155.46)}


def document(rows: list[dict[str, Any]]) -> None:
    """Write docs/convergence.json, the tables of docs/convergence.md and the plots."""
    text = "[\n" + ",\n".join(map(as_json, rows)) + "\n]\n" if rows else "[]\n"
    write(DOCS / "convergence.json", text)
    page = DOCS / "convergence.md"
    tables = [table_of(rows, model) for model in STUDIES if by_scheme(rows, model)]
    done = sum(not is_earlier(row["scheme"]) for row in rows)
    fill(page, "table", "\n\n".join([progress(rows), *tables]))
    fill(page, "findings", findings(rows))
    if rows:
        plot_bits(rows, DOCS / "convergence.png")
        plot_curves(rows, DOCS / "convergence_steps.png")
    print(f"{done} of {len(wanted(STUDIES))} runs are finished; wrote {page}")


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
    parts = [
        f"*{model}* " + ", ".join(f"{scheme} ({count})" for scheme, count in schemes.items())
        for model, schemes in missing.items()
    ]
    done = len(keys) - sum(schemes.total() for schemes in missing.values())
    return f"{done} of {len(keys)} runs. There are none yet, of so many seeds, of {'; '.join(parts)}:"


def by_scheme(rows: list[dict[str, Any]], model: str) -> dict[str, list[dict[str, Any]]]:
    """The rows of a model, those of earlier releases last."""
    found = defaultdict(list)
    for row in rows:
        if row["model"] == model:
            found[row["scheme"]].append(row)
    return {scheme: found[scheme] for scheme in (*SCHEMES, *filter(is_earlier, found)) if scheme in found}


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
    for scheme, found in schemes.items():
        losses = [row["val_loss"] for row in found]
        finite = all(map(math.isfinite, losses))
        spread = f"{statistics.stdev(losses):.4f}" if finite and len(losses) > 1 else ""
        cells = [
            _label(scheme),
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


def findings(rows: list[dict[str, Any]]) -> str:
    """What the tables say, in a few lines; schemes without a finished run are left out."""
    lines = []
    for title, schemes in FINDINGS.items():
        told = [f"{_rate(scheme)} {losses}" for scheme in schemes if (losses := _losses_of(rows, scheme))]
        if told:
            lines.append(f"- **{title}**: {'; '.join(told)}.")
    return "\n".join(lines)


FINDINGS = {
    "The plane format, the paper's with a code for zero": ("planes 3.2x", "planes 6.4x"),
    "The Hadamard format": (
        *("hadamard 8x", "hadamard 10.7x", "hadamard 12.8x"),
        *("hadamard 16x", "hadamard 19.7x", "hadamard 32x"),
    ),
    "The same, and what can be [recomputed](concepts.md#what-is-recomputed) is not stored": (
        "recomputed, hadamard 8x",
        "recomputed, hadamard 16x",
    ),
    "Recomputed, and [calibrated](guides/calibrate.md) rates that take as many bytes": (
        "recomputed, calibrated 16x",
    ),
    "The step format of release 0.1": ("step 8x", "step 10.7x", "step 12.8x", "step 16x"),
    "Group quantisation": ("quant, 4 bits", "quant, 3 bits", "quant, 2 bits"),
}


def _rate(scheme: str) -> str:
    return re.findall("[0-9.]+(?:x| bits)", scheme)[0]


def _losses_of(rows: list[dict[str, Any]], scheme: str) -> str:
    """What a scheme adds to the loss of each model; "" if nothing is known of it."""
    told = []
    for model in STUDIES:
        schemes = by_scheme(rows, model)
        middle, half, seeds = difference(schemes.get(scheme, []), schemes.get("baseline", []))
        if seeds and math.isfinite(middle):
            interval = f" ± {half:.4f}" if half < math.inf else " (one seed)"
            told.append(f"{middle:+.4f}{interval} in *{model}*")
        elif seeds:
            told.append(f"diverges in *{model}*")
    return ", ".join(told)


def _whole(model: str, scheme: str, ratio: float) -> str:
    """The overall ratio; of recomputed rows also that to what a model with fused GELU saves."""
    if not scheme.startswith("recomputed, ") or model not in SAVED_MB:
        return f"{ratio:.1f}x"
    as_it_is, fused = SAVED_MB[model]
    return f"{ratio:.1f}x, of fused GELU {ratio * fused / as_it_is:.1f}x"


def plot_bits(rows: list[dict[str, Any]], path: Path) -> None:
    """Difference to the loss without compression against bits per value, a panel for each model."""
    models = [model for model in STUDIES if by_scheme(rows, model)]
    columns, lines = min(2, len(models)), -(-len(models) // 2)
    size = (5.5 * columns, 4.1 * lines + 0.6)
    figure, axes = plt.subplots(
        lines, columns, figsize=size, squeeze=False, sharey=True, layout="constrained"
    )
    for axis in axes.flat[len(models) :]:
        axis.set_axis_off()
    for axis, model in zip(axes.flat, models, strict=False):
        schemes = by_scheme(rows, model)
        places = defaultdict(list)
        for scheme, found in schemes.items():
            bits = found[0]["bits_per_value"]
            if scheme != "baseline" and bits:
                middle, half, _ = difference(found, schemes.get("baseline", []))
                if not math.isfinite(middle):
                    axis.plot(bits, TOP / 2, "^", color=COLOURS[_kind(scheme)], ms=8)
                    axis.annotate("diverges", (bits, TOP / 2), (9, -4), textcoords="offset points")
                    continue
                places[_kind(scheme)].append((bits, middle, 0 if half == math.inf else half))
        for kind, points in places.items():
            bits, middles, halves = zip(*sorted(points), strict=True)
            axis.errorbar(
                bits, middles, halves, fmt="o-", color=COLOURS[kind], label=_label(kind), capsize=3, ms=5
            )
        axis.axhspan(-LIMIT, LIMIT, color="gray", alpha=0.15, lw=0)
        axis.axvline(10, color="tab:orange", ls=":", label="the paper's rate, 3.2x")
        axis.set_xscale("log", base=2)
        axis.set_xlim(0.9, 11.5)
        ticks = [1, 1.6, 2, 3, 4, 5, 10]
        axis.set_xticks(ticks, labels=[f"{bits:g}\n{32 / bits:.3g}x" for bits in ticks])
        # Straight where losses count as the same, logarithmic beyond.
        axis.set_yscale("symlog", linthresh=2 * LIMIT)
        ticks = [-LIMIT, 0, LIMIT, 0.1, 1, 4]
        axis.set_yticks(ticks, labels=[f"{loss:g}" for loss in ticks])
        axis.set_ylim(-2 * LIMIT, TOP)
        axis.minorticks_off()
        axis.set_xlabel("stored bits per fp32 value, and the ratio")
        axis.set_title(STUDIES[model].title)
        axis.grid(alpha=0.3)
    for axis in axes[:, 0]:
        axis.set_ylabel("validation loss, less that without")
    figure.legend(*axes[0][0].get_legend_handles_labels(), fontsize=9, ncols=4, loc="outside lower center")
    figure.suptitle("Trained through each compression: means of the seeds, 95 % intervals", fontsize=11)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def plot_curves(rows: list[dict[str, Any]], path: Path) -> None:
    """Validation loss against steps, the mean of the seeds; beside it the same less the baseline's."""
    models = [model for model in STUDIES if by_scheme(rows, model)]
    figure, axes = plt.subplots(len(models), 2, figsize=(11, 4 * len(models)), squeeze=False)
    for (axis, beside), model in zip(axes, models, strict=True):
        schemes = by_scheme([row for row in rows if not is_earlier(row["scheme"])], model)
        means = {
            scheme: [statistics.mean(losses) for losses in zip(*map(_losses, found), strict=True)]
            for scheme, found in schemes.items()
        }
        for scheme, losses in means.items():
            steps = [step for step, _ in schemes[scheme][0]["curve"]]
            rate = next((rate for rate in STYLES if scheme.endswith(rate)), None)
            style = {"color": COLOURS.get(_kind(scheme), "black"), "ls": STYLES.get(rate, "-"), "lw": 1.4}
            diverges = "" if math.isfinite(losses[-1]) else " (diverges)"
            axis.plot(steps, losses, label=scheme + diverges, **style)
            exact = {row["seed"]: _losses(row) for row in schemes.get("baseline", [])}
            pairs = [(_losses(row), exact[row["seed"]]) for row in schemes[scheme] if row["seed"] in exact]
            if pairs:
                less = np.mean([np.subtract(*pair) for pair in pairs], axis=0)
                beside.plot(steps, less, **style)
        if "baseline" in means:
            axis.set_ylim(min(means["baseline"]) - 0.05, max(means["baseline"]) + 0.1)
            beside.set_ylim(-0.06, 0.1)
        axis.set_title(STUDIES[model].title, fontsize=10)
        axis.set_ylabel("validation loss, nats a token")
        beside.set_title("less that without compression", fontsize=10)
        axis.legend(fontsize=8)
        for one in (axis, beside):
            one.set_xlabel("step")
            one.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _losses(row: dict[str, Any]) -> list[float]:
    return [loss for _, loss in row["curve"]]


def _label(scheme: str) -> str:
    """What tables and plots call a scheme, or a kind of schemes."""
    return next(
        (scheme.replace(*names, 1) for names in EARLIER.items() if scheme.startswith(names[0])), scheme
    )


def _kind(scheme: str) -> str:
    """A scheme's name without its rate."""
    return re.sub(",? [0-9.]+(x| bits)", "", scheme)
