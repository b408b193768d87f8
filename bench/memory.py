"""Saved activations and the memory's bandwidth, with and without the engine: ``python -m bench.memory``.

A training step of the small GPT-2 goes through the simulated engine; what its saved tensors wrote and
read is then replayed behind memories of several bandwidths, in the formats and in bypass, with
each engine that is built (``python -m gen library --preset NAME``). Writes docs/memory.json and memory.png.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from rich.console import Console
from rich.table import Table

from torch_bridge.backends.simulated import memory_system
from torch_bridge.backends.simulated.memory_engine import DRAM, MemoryEngine, library_path
from torch_bridge.backends.simulated.regions import region_of
from torch_bridge.job import train

from .convergence.runs import Everything

# Everything in one format: how far bandwidth goes is a question of its ratio.
OPTIONS = Everything(scheme="hadamard", target=32, steps=1, batch=1, validations=1, backend="memory")
# Engines, and the cycles from one beat of memory to the next.
ENGINES, INTERVALS = ("gpt2-fp32-memory-64", "gpt2-fp32-memory-16"), (1, 2, 4)
FOLDER = Path("docs")


def main() -> None:
    argparse.ArgumentParser(prog="python -m bench.memory", description=__doc__.partition(":")[0]).parse_args()
    result = train.run(OPTIONS)
    accesses = memory_system.system().last
    built = [name for name in ENGINES if library_path(name).exists()]
    rows = [row for name in built for row in measure(name, accesses)]
    table = Table(title="writing and reading back a step's saved tensors")
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="right", no_wrap=name == "engine")
    for row in rows:
        table.add_row(*(value if isinstance(value, str) else f"{value:,.0f}" for value in row.values()))
    Console().print(table)
    about = {"config": OPTIONS.config, "batch": OPTIONS.batch, "scheme": OPTIONS.scheme, "dram": asdict(DRAM)}
    moved = {name: result[name] for name in ("accelerator_bytes", "memory_bytes")}
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "memory.json").write_text(json.dumps(about | moved | {"points": rows}, indent=1) + "\n")
    plot(rows, moved["accelerator_bytes"], FOLDER / "memory.png")


def measure(name: str, accesses: list[Any]) -> list[dict[str, Any]]:
    """Cycles with and without an engine behind memories whose beats are so far apart, and the least."""
    folder, rows = library_path(name).parent, []
    for interval in INTERVALS:
        engine = MemoryEngine(folder / "libmemory.so", replace(DRAM, interval=interval))
        regions = [region_of(fmt, i) for i, fmt in enumerate(engine.formats)]
        ours = memory_system.replay(engine, regions, accesses)
        plain = memory_system.in_bypass(regions)
        figures = replace(DRAM, interval=interval, size=sum(region.size for region in plain))
        theirs = memory_system.replay(MemoryEngine(folder / "libbypass.so", figures), plain, accesses)
        width = engine.bytes_per_cycle
        rows.append(
            {
                "engine": name,
                "bytes_per_cycle": width,
                "cycles": ours.cycles,
                "cycles_without": theirs.cycles,
                "limit": max(ours.accelerator_bytes / engine.bus_bytes, ours.memory_bytes / width),
                "limit_without": theirs.accelerator_bytes / min(width, engine.bus_bytes),
            }
        )
    return rows


def plot(rows: list[dict[str, Any]], moved: int, path: Path) -> None:
    """Cycles against bandwidth: points measured, lines what is possible."""
    figure, axes = plt.subplots(figsize=(7, 4.2))
    rows = sorted(rows, key=lambda row: row["bytes_per_cycle"])
    widths = [row["bytes_per_cycle"] for row in rows]
    lines = (("_without", "without the engine", "s", "#D55E00"), ("", "with the engine", "o", "#0072B2"))
    for suffix, label, marker, colour in lines:
        cycles = [row[f"cycles{suffix}"] / 1e6 for row in rows]
        axes.plot(widths, cycles, marker, color=colour)
        axes.annotate(label, (widths[1], cycles[1]), (8, 8), textcoords="offset points", color=colour)
        limits = [row[f"limit{suffix}"] / 1e6 for row in rows]
        axes.plot(widths, limits, "--", color=colour, lw=1.2)
    axes.set_xscale("log", base=2)
    ticks = sorted({*widths})
    axes.set_xticks(ticks, [f"{width:g}" for width in ticks])
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("bandwidth of the memory, bytes a cycle; the accelerator's port has 64")
    axes.set_ylabel(f"million cycles to write and read {moved / 1e6:.1f} MB")
    axes.set_title("With the engine a slow memory costs hardly any time", loc="left", weight="bold")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    main()
