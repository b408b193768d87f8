"""Does it train as well? Loss by scheme and bits per value: ``python -m bench.convergence``.

Trains two small GPT-2s from scratch with every scheme and seeds 1 to 5, the real GPT-2 with fewer, and
fine-tunes a pretrained SmolLM2 where it is installed (``make finetune``). A seed gives every scheme the same
weights and the same batches. Each run is a process of its own, several at a time with ``--jobs``, or one on
each GPU under ``torchrun``. A run that is finished is never run again: its row lies in build/convergence, and
all rows come together in docs/convergence.json, from which docs/convergence.md and its plots are made. So it
may be ended at any time, and go on elsewhere from what is committed; a run of the real GPT-2, which takes
half an hour on two cores, goes on from its last validation. A run that fails is said at once, and the others
go on. Under ``torchrun`` the page has what was finished when rank 0 ended; ``--document`` writes it anew.
Rows of formats that only an earlier release had stay where they are.

The gradient error, ``||g - g_exact|| / ||g_exact||``, is of one batch at every validation; effective bits are
of all that this batch saves and the scheme compresses, at the last.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import signal
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from itertools import cycle
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from scipy import stats

from torch_bridge import Policy, compress_activations
from torch_bridge.job import train

from . import smollm2
from .effective_bits import mean, quality, tensors
from .page import fill, write

# Every saved tensor is compressed, but where a name says "derive".
SCHEMES: dict[str, dict[str, Any]] = {
    "none": {},
    "planes 3.2x": {"scheme": "planes", "target": 80},
    "planes 6.4x": {"scheme": "planes", "target": 40},
    "hadamard 8x": {"scheme": "hadamard", "target": 64},
    "hadamard 16x": {"scheme": "hadamard", "target": 32},
    "hadamard 19.7x": {"scheme": "hadamard", "target": 26},
    "hadamard 32x": {"scheme": "hadamard", "target": 16},
    "derive, hadamard 8x": {"scheme": "hadamard", "target": 64, "derive": True},
    "derive, hadamard 16x": {"scheme": "hadamard", "target": 32, "derive": True},
    "quant, 4 bits": {"scheme": "quant", "bits": 4},
    "quant, 3 bits": {"scheme": "quant", "bits": 3},
    "quant, 2 bits": {"scheme": "quant", "bits": 2},
    "compact": {"scheme": "compact"},
}


@dataclass(frozen=True)
class Study:
    """What is trained of a model.

    Attributes:
        steps, batch, validations: of each run.
        seeds: of each scheme.
        schemes: names of ``SCHEMES``.
        title: what it is, for the page.
    """

    title: str
    schemes: tuple[str, ...]
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    steps: int = 300
    batch: int = 8
    validations: int = 10


FROM_SCRATCH = tuple(scheme for scheme in SCHEMES if scheme != "compact")
FEW = ("none", "planes 3.2x", "hadamard 8x", "hadamard 16x")
STUDIES = {
    "small": Study("GPT-2, 4 layers of 192", FROM_SCRATCH),
    "medium": Study(
        "GPT-2, 6 layers of 384",
        tuple(scheme for scheme in FROM_SCRATCH if scheme not in ("hadamard 32x", "quant, 3 bits")),
    ),
    "gpt2": Study("GPT-2, 124M, 1024 tokens", FEW, (1, 2), 200, 1, 5),
    "smollm2": Study("SmolLM2-135M, pretrained", (*FEW, "compact"), (1, 2, 3), 60, 1, 3),
}
# Formats of earlier releases, by what the schemes of their rows begin with, and what they are called here.
EARLIER = {"step": "step format (release 0.1)"}
COLOURS = {"planes": "tab:orange", "hadamard": "tab:green", "quant": "tab:blue"}
COLOURS |= {"derive, hadamard": "tab:olive"}
COLOURS |= {"step": "tab:red", "step, nearest": "tab:purple", "compact": "tab:brown"}
LIMIT = 0.02  # of a loss that counts as the same
DOCS, FOLDER = Path("docs"), Path("build/convergence")


def options_of(model: str, scheme: str, seed: int) -> train.Options:
    study = STUDIES[model]
    sizes: dict[str, Any] = {name: getattr(study, name) for name in ("steps", "batch", "validations")}
    options = {"derive": False} | SCHEMES[scheme]
    return train.Options(config=model if model in train.CONFIGS else "small", seed=seed, **sizes, **options)


def run(model: str, scheme: str, seed: int, threads: int, device: str | None) -> dict[str, Any] | None:
    """One row, also left in ``FOLDER``; None if Ctrl-C came first."""
    if threads:
        torch.set_num_threads(threads)
    options = replace(options_of(model, scheme, seed), device=device)
    torch.manual_seed(seed)
    subject = smollm2.subject() if model == "smollm2" else train.subject_of(options)
    compressed = options.make_scheme().compresses
    raw_bytes = saved_bytes(subject, options)

    def watch(step: int, net: torch.nn.Module) -> list[float | None]:
        """Of one batch: the gradient error, and in the end effective bits."""
        if not compressed:
            return [None, None]
        tokens = batch_of(subject, options)
        exact, found = (gradient(net, options, tokens, compress) for compress in (False, True))
        effective = None
        if step == options.steps:
            kinds = tensors(net, lambda: train.loss_of(net, options, tokens))
            effective = mean(quality(options.format, kinds))
            net.zero_grad(set_to_none=True)
        return [float((found - exact).norm() / exact.norm()), effective]

    path = FOLDER / f"{model}-{scheme.replace(', ', '-').replace(' ', '-')}-{seed}.json"
    checkpoint = path.with_suffix(".checkpoint") if model == "gpt2" else None
    result = train.run(options, subject=subject, watch=watch, checkpoint=checkpoint)
    if result["interrupted"]:
        return None
    steps, errors = [step for step, _ in result["val_curve"]], [error for error, _ in result["watched"]]
    fmt = options.format
    row = {
        "model": model,
        "scheme": scheme,
        "bits_per_value": 8 * fmt.target / fmt.block if compressed else 32.0 if scheme == "none" else None,  # type: ignore[operator]
        "ratio": raw_bytes / result["stored_bytes"],
        "seed": seed,
        "steps": options.steps,
        "val_loss": result["val_loss"],
        "curve": result["val_curve"],
        "gradient_error": list(zip(steps, errors, strict=True)) if compressed else [],
        "effective_bits": result["watched"][-1][1],
    }
    FOLDER.mkdir(parents=True, exist_ok=True)
    write(path, as_json(row))
    return row


def batch_of(subject: train.Subject, options: train.Options) -> torch.Tensor:
    """One batch, the same for all runs of a model."""
    generator = torch.Generator().manual_seed(99)
    return train.draw(subject.text, options.batch, subject.length, generator).to(options.torch_device)


def saved_bytes(subject: train.Subject, options: train.Options) -> int:
    """What autograd saves of one batch if nothing is done about it."""
    with compress_activations(subject.model, Policy([])) as stash:
        train.loss_of(subject.model, options, batch_of(subject, options))
    return stash.stored_bytes


def gradient(
    model: torch.nn.Module, options: train.Options, tokens: torch.Tensor, compress: bool
) -> torch.Tensor:
    if compress:
        with compress_activations(model, options.policy):
            loss = train.loss_of(model, options, tokens)
    else:
        loss = train.loss_of(model, options, tokens)
    return torch.cat([one.flatten() for one in torch.autograd.grad(loss, list(model.parameters()))])


def finished() -> list[dict[str, Any]]:
    """All rows that there are, of two the committed one.

    They are in the order of models, schemes and seeds; those of earlier releases come behind, as committed.
    """
    texts = [f"[{path.read_text()}]" for path in sorted(FOLDER.glob("*.json"))]
    committed = DOCS / "convergence.json"
    texts += [committed.read_text()] if committed.exists() else []
    rows = [with_infinities(row) for text in texts for row in json.loads(text)]
    found = {(row["model"], row["scheme"], row["seed"], row["steps"]): row for row in rows}
    earlier = [row for row in found.values() if _is_earlier(row["scheme"])]
    return [*(found[key] for key in wanted(STUDIES) if key in found), *earlier]


def as_json(row: dict[str, Any]) -> str:
    """A row as JSON, which has neither infinities nor NaNs: null in their place."""

    def plain(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [plain(one) for one in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps({name: plain(value) for name, value in row.items()}, allow_nan=False)


def with_infinities(row: dict[str, Any]) -> dict[str, Any]:
    """A row of JSON, with infinities where there was no finite loss or error."""

    def number(value: float | None) -> float:
        return math.inf if value is None else value

    pairs = {name: [[step, number(of)] for step, of in row[name]] for name in ("curve", "gradient_error")}
    return row | pairs | {"val_loss": number(row["val_loss"])}


def wanted(models: Any) -> list[tuple[str, str, int, int]]:
    """What identifies a run: the first seed of all schemes comes first."""
    return [
        (model, scheme, seed, STUDIES[model].steps)
        for model in models
        for seed in STUDIES[model].seeds
        for scheme in STUDIES[model].schemes
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.convergence", description="Loss by scheme.")
    parser.add_argument("--model", nargs="+", choices=STUDIES, default=None, help="only these")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (default: 1)")
    parser.add_argument("--threads", type=int, default=0, help="of each (default: cores over jobs)")
    parser.add_argument("--document", action="store_true", help="run nothing, write docs/ from what there is")
    given = parser.parse_args()
    models = given.model or [model for model in STUDIES if model != "smollm2" or smollm2.installed()]
    names = (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_WORLD_SIZE", 1))
    rank, ranks, ranks_here = (int(os.environ.get(name, number)) for name, number in names)
    device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else None
    done = {(row["model"], row["scheme"], row["seed"], row["steps"]) for row in finished()}
    left = [key for key in wanted(models)[rank::ranks] if key not in done]
    threads = given.threads or max(1, (os.cpu_count() or 1) // (given.jobs * ranks_here))
    failed = interrupted = False
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if left and not given.document:
        # A process for each run, which then depends on nothing that another did.
        with (
            ProcessPoolExecutor(given.jobs, get_context("spawn"), max_tasks_per_child=1) as pool,
            Progress(console=Console(stderr=True)) as bar,
        ):
            task = bar.add_task("training", total=len(left))
            futures = {pool.submit(run, *key[:3], threads, device): key for key in left}
            try:
                for future in as_completed(futures):
                    name = "{}, {}, seed {}".format(*futures[future])
                    try:
                        if (row := future.result()) is not None:
                            bar.print(f"{name}: {row['val_loss']:.4f}")
                    except BrokenProcessPool:
                        failed = True
                        bar.print("a process that trained was killed")
                        break
                    except Exception as error:
                        failed = True
                        bar.print(f"{name} failed: {error!r}")
                    bar.advance(task)
            except KeyboardInterrupt:
                interrupted = True
                pool.shutdown(wait=False, cancel_futures=True)
                for child in active_children():
                    child.terminate()
    if rank == 0:
        document(finished())
    sys.exit(130 if interrupted else int(failed))


# What is made of the rows.


def document(rows: list[dict[str, Any]]) -> None:
    """Write docs/convergence.json, the tables of docs/convergence.md and the plots."""
    write(DOCS / "convergence.json", "[\n" + ",\n".join(map(as_json, rows)) + "\n]\n" if rows else "[]\n")
    page = DOCS / "convergence.md"
    tables = [table_of(rows, model) for model in STUDIES if by_scheme(rows, model)]
    done = sum(not _is_earlier(row["scheme"]) for row in rows)
    fill(page, "table", "\n\n".join([f"{done} of {len(wanted(STUDIES))} runs:", *tables]))
    if rows:
        plot_bits(rows, DOCS / "convergence.png")
        plot_curves(rows, DOCS / "convergence_steps.png")
    print(f"{done} of {len(wanted(STUDIES))} runs are finished; wrote {page}")


def by_scheme(rows: list[dict[str, Any]], model: str) -> dict[str, list[dict[str, Any]]]:
    """The rows of a model, those of earlier releases last."""
    found = defaultdict(list)
    for row in rows:
        if row["model"] == model:
            found[row["scheme"]].append(row)
    return {scheme: found[scheme] for scheme in (*SCHEMES, *filter(_is_earlier, found)) if scheme in found}


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
    base = schemes.get("none", [])
    lines = [
        f"**{model}**: {STUDIES[model].title}, {STUDIES[model].steps} steps:\n",
        "| scheme | bits a value | whole stash | seeds | validation loss | spread | difference to none, 95 % "
        f"| below +{LIMIT} | gradient error | effective bits |",
        "| --- " + "| ---: " * 9 + "|",
    ]
    for scheme, found in schemes.items():
        losses = [row["val_loss"] for row in found]
        finite = all(map(math.isfinite, losses))
        spread = f"{statistics.stdev(losses):.4f}" if finite and len(losses) > 1 else ""
        cells = [
            _label(scheme),
            f"{bits:.4g}" if (bits := found[0]["bits_per_value"]) else "",
            f"{found[0]['ratio']:.1f}x",
            str(len(found)),
            f"{statistics.mean(losses):.4f}" if finite else "diverges",
            spread,
        ]
        if scheme == "none":
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


def plot_bits(rows: list[dict[str, Any]], path: Path) -> None:
    """Difference to the loss without compression against bits per value, a panel for each model."""
    models = [model for model in STUDIES if by_scheme(rows, model)]
    columns, lines = min(2, len(models)), -(-len(models) // 2)
    figure, axes = plt.subplots(
        lines, columns, figsize=(5.5 * columns, 4.2 * lines), squeeze=False, sharey=True
    )
    for axis in axes.flat[len(models) :]:
        axis.set_axis_off()
    for axis, model in zip(axes.flat, models, strict=False):
        schemes = by_scheme(rows, model)
        places = defaultdict(list)
        for scheme, found in schemes.items():
            bits = found[0]["bits_per_value"]
            if scheme != "none" and bits:
                middle, half, _ = difference(found, schemes.get("none", []))
                if not math.isfinite(middle):  # what diverges leaves the picture
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
        ticks = [1, 1.6, 2, 3, 4, 5, 10]
        axis.set_xticks(ticks, labels=[f"{bits:g}\n{32 / bits:.3g}x" for bits in ticks])
        # Straight where losses count as the same, logarithmic beyond.
        axis.set_yscale("symlog", linthresh=2 * LIMIT)
        ticks = [-LIMIT, 0, LIMIT, 0.1, 1, 4]
        axis.set_yticks(ticks, labels=[f"{loss:g}" for loss in ticks])
        axis.set_ylim(-2 * LIMIT, 6)
        axis.minorticks_off()
        axis.set_xlabel("stored bits per fp32 value, and the ratio")
        axis.set_title(STUDIES[model].title)
        axis.grid(alpha=0.3)
    for axis in axes[:, 0]:
        axis.set_ylabel("validation loss, less that without")
    axes[0][0].legend(fontsize=9)
    figure.suptitle("Trained through each compression: means of the seeds, 95 % intervals", fontsize=11)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def plot_curves(rows: list[dict[str, Any]], path: Path) -> None:
    """Validation loss against steps, the mean of the seeds, and beside it the same less that of none."""
    models = [model for model in STUDIES if by_scheme(rows, model)]
    figure, axes = plt.subplots(len(models), 2, figsize=(11, 4 * len(models)), squeeze=False)
    for (axis, beside), model in zip(axes, models, strict=True):
        schemes = by_scheme([row for row in rows if not _is_earlier(row["scheme"])], model)
        means = {
            scheme: [statistics.mean(losses) for losses in zip(*map(_losses, found), strict=True)]
            for scheme, found in schemes.items()
        }
        styles: dict[str, Iterator[str]] = defaultdict(lambda: cycle(("-", "--", "-.", ":")))
        for scheme, losses in means.items():
            steps = [step for step, _ in schemes[scheme][0]["curve"]]
            kind = _kind(scheme)
            style = {"color": COLOURS.get(kind, "black"), "ls": next(styles[kind]), "lw": 1.4}
            axis.plot(steps, losses, label=scheme, **style)
            exact = {row["seed"]: _losses(row) for row in schemes.get("none", [])}
            pairs = [(_losses(row), exact[row["seed"]]) for row in schemes[scheme] if row["seed"] in exact]
            if pairs:
                less = np.mean([np.subtract(*pair) for pair in pairs], axis=0)
                beside.plot(steps, less, **style)
        if "none" in means:  # what diverges leaves the picture
            axis.set_ylim(min(means["none"]) - 0.05, max(means["none"]) + 0.1)
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


def _is_earlier(scheme: str) -> bool:
    """Whether only an earlier release had a scheme."""
    return scheme.startswith(tuple(EARLIER))


def _label(scheme: str) -> str:
    """What tables and plots call a scheme, or a kind of schemes."""
    return next(
        (scheme.replace(*names, 1) for names in EARLIER.items() if scheme.startswith(names[0])), scheme
    )


def _kind(scheme: str) -> str:
    """A scheme's name without its rate."""
    return re.sub(",? [0-9.]+(x| bits)", "", scheme)


if __name__ == "__main__":
    main()
