"""The whole bridge in one run: losses with and without compression, through the RTL too, and the ratios.

Writes loss.png and summary.json. Takes minutes; ``demo`` says what it does.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.transforms import Bbox
from rich.console import Console
from rich.table import Table

from .. import backends
from . import train
from .ratios import PAPER, WORKLOAD, ratios

# At 3.2x and 16x, by their targets: None is the default.
SCHEMES: dict[str, int | None] = {"planes": None, "hadamard": 32}

# The length is chosen so that the demo takes about ten minutes on two cores.
LONG = train.Options(steps=200, batch=4, recompute=False)
# Few, because a simulation is slow: 22 MB go both ways through the RTL in every step.
SHORT = train.Options(recompute=False, steps=3, batch=2, validations=1)

# Of the small GPT-2's rows, which blocks of 128 values do not divide.
_WIDTH = 192

PARTS = ("sign", "exponent", "mantissa", "whole")


class MismatchError(Exception):
    """Two backends that must agree to the last bit did not."""


def demo(
    out: Path = Path("build/train"),
    *,
    long: train.Options = LONG,
    short: train.Options = SHORT,
    workload: train.Options = WORKLOAD,
    hardware: str = "verilated",
    memory: str = "memory",
) -> dict[str, Any]:
    """Train without compression, at 3.2x and at 16x, compare the RTL's losses with golden's, account ratios.

    Last come steps whose saved tensors live in a memory behind the simulated memory engine.

    Args:
        out: directory of loss.png and summary.json.
        long: the training run, done with scheme "baseline" and with each of ``SCHEMES``.
        short: the steps of each of these that go through ``hardware`` and through golden.
        workload: what ``ratios`` accounts.
        hardware: the backend that must agree with golden, bit for bit.
        memory: the backend that must agree with golden with the block numbers of regions, likewise.

    Returns:
        What summary.json holds: "runs" and "ratios".

    Raises:
        FileNotFoundError: a library of the simulated Verilog is not built.
        MismatchError: the losses through ``hardware`` or ``memory`` differ from those through golden.
    """
    console = Console()
    started = time.perf_counter()
    for scheme, target in SCHEMES.items():  # a missing library is found before minutes have passed
        fmt = replace(short, scheme=scheme, target=target).format
        backends.get(memory, fmt)
        for one in (fmt, fmt.for_rows(_WIDTH)):
            backends.get(hardware, one)

    schemes = {"baseline": None, **SCHEMES}
    runs = [_run(replace(long, scheme=name, target=target)) for name, target in schemes.items()]
    summary: dict[str, Any] = {"runs": runs, "ratios": {}}
    pairs = [*((scheme, hardware, "golden") for scheme in SCHEMES), ("hadamard", memory, "regions")]
    for scheme, *names in pairs:
        ours, golden = (
            _run(replace(short, scheme=scheme, target=SCHEMES[scheme], backend=name)) for name in names
        )
        runs += [ours, golden]
        train.write(summary, out / "summary.json")
        for field in ("train_loss", "val_loss"):
            if ours[field] != golden[field]:
                through = f"{field} of {scheme} through {names[0]}"
                raise MismatchError(f"{through} is {ours[field]}, through {names[1]} {golden[field]}")

    with console.status("accounting the saved tensors of a wider GPT-2"):
        summary["ratios"] = ratios(workload)
    train.write(summary, out / "summary.json")
    plot(summary, out / "loss.png")

    console.print(runs_table(runs))
    for scheme, *names in pairs:
        console.print(
            f"{scheme}, {' and '.join(names)}: equal losses in {short.steps} steps, to the last bit"
        )
    console.print(ratios_table(summary["ratios"]))
    minutes = (time.perf_counter() - started) / 60
    console.print(f"wrote {out / 'loss.png'} and {out / 'summary.json'} in {minutes:.1f} minutes")
    console.print(memory_line(runs[-2]))
    return summary


def memory_line(run: dict[str, Any]) -> str:
    """What the memory engine saved in a step of a run, for a stranger."""
    ours, theirs = (f"{run[name] / 1e6:.1f} MB" for name in ("accelerator_bytes", "memory_bytes"))
    took, without = (f"{run[name] / 1e6:.2f}" for name in ("cycles", "cycles_without"))
    dram = run["dram"]
    pauses = f"{dram['refresh_cycles']} of {dram['refresh_period']} cycles for refreshes"
    memory = f"{dram['bytes_per_cycle']:g} bytes a cycle ({dram['latency']} cycles of latency, {pauses})"
    return (
        f"in a step the accelerator moved {ours}, the memory {theirs}; behind a memory of {memory} that took "
        f"{took} instead of {without} million cycles"
    )


def _run(options: train.Options) -> dict[str, Any]:
    result = train.run(options, progress=True)
    if result["interrupted"]:
        raise KeyboardInterrupt
    return result


def runs_table(runs: list[dict[str, Any]]) -> Table:
    """One row a run: bytes of one step's saved tensors, losses and time."""
    table = Table(title="training")
    table.add_column("scheme, backend")
    for heading in (
        "steps",
        "batch",
        "saved\nMB",
        "stored\nMB",
        "ratio",
        "train\nloss",
        "val\nloss",
        "s/step",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for run in runs:
        table.add_row(
            run["scheme"] if run["scheme"] == "baseline" else f"{run['scheme']}, {run['backend']}",
            str(len(run["train_loss"])),
            str(run["batch"]),
            f"{run['original_bytes'] / 1e6:.1f}",
            f"{run['stored_bytes'] / 1e6:.1f}",
            f"{run['ratio']:.2f}",
            f"{run['train_loss'][-1]:.4f}",
            f"{run['val_loss']:.4f}",
            f"{run['seconds_per_step']:.2f}",
        )
    return table


def ratios_table(found: dict[str, Any]) -> Table:
    """Ratios of the lossless mode beside the paper's."""
    table = Table(title="ratios of GPT-2's saved tensors, lossless, blocks of 64")
    for heading in ("", *PARTS):
        table.add_column(heading, justify="right" if heading else "left")
    for name, row in _ratio_rows(found):
        table.add_row(name, *row)
    return table


def _ratio_rows(found: dict[str, Any]) -> list[tuple[str, list[str]]]:
    rows = [("zero code", found), ("plain base-delta", found["plain"]), ("paper", PAPER)]
    return [(name, [f"{row[part]:.2f}" if part in row else "" for part in PARTS]) for name, row in rows]


def plot(summary: dict[str, Any], path: Path) -> None:
    """Loss curves of the two long runs side by side, and the table of ratios below."""
    runs = summary["runs"][: 1 + len(SCHEMES)]
    labels = ["no compression"]
    labels += [f"{run['scheme']}, {run['ratio']:.2f}x over all saved tensors" for run in runs[1:]]
    figure, axes = plt.subplot_mosaic(
        [["train", "val"], ["table", "table"]], figsize=(11, 6.4), height_ratios=[4, 1.3]
    )
    for run, label, style in zip(runs, labels, ("-", "--", ":"), strict=True):
        losses = run["train_loss"]
        axes["train"].plot(range(1, len(losses) + 1), _smoothed(losses), style, label=label, lw=1.8)
        steps, values = zip(*run["val_curve"], strict=True)
        end = f"{label}: {run['val_loss']:.3f}"
        axes["val"].plot(steps, values, style, marker="o", ms=4, label=end, lw=1.8)
    axes["train"].set_title("training loss (mean of the last 10 steps)")
    axes["val"].set_title("validation loss")
    for name in ("train", "val"):
        axes[name].set_xlabel("step")
        axes[name].set_ylabel("cross-entropy (nats per byte)")
        axes[name].grid(alpha=0.3)
        axes[name].legend(fontsize=9)
    rows = _ratio_rows(summary["ratios"])
    axes["table"].axis("off")
    axes["table"].set_title(
        "lossless ratios of the saved tensors of one step, GPT-2-small's width", fontsize=10
    )
    axes["table"].table(
        [cells for _, cells in rows],
        rowLabels=[name for name, _ in rows],
        colLabels=PARTS,
        cellLoc="center",
        bbox=Bbox.from_bounds(0.2, 0.0, 0.65, 0.95),
    )
    figure.suptitle("GPT-2 (4 layers, 192 wide) trained with and without compressed activations")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _smoothed(losses: list[float], window: int = 10) -> list[float]:
    parts = (losses[max(0, i + 1 - window) : i + 1] for i in range(len(losses)))
    return [sum(part) / len(part) for part in parts]
