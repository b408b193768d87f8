"""Simulate the engines against golden/: ``python -m cocotb_tests --help``."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from gen.config import PRESETS, Config
from gen.toolchain import ToolError
from gen.verilog import PARTS

from . import configs, runner, stimulus


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m cocotb_tests", description=__doc__)
    parser.add_argument("--presets", action="store_true", help="only the presets, not the spread of others")
    parser.add_argument("--blocks", type=int, default=10_000, help="blocks for each engine (default: 10000)")
    parser.add_argument("--seed", type=int, default=1, help="of stimulus and stalls (default: 1)")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="engines at a time (default: all cores)"
    )
    parser.add_argument("--folder", type=Path, default=Path("build/sim"), help="default: build/sim")
    return parser


def print_table(rows: list[runner.Row]) -> None:
    table = Table(title="Engines in simulation against the golden model")
    for name in ("config", "part", "simulator"):
        table.add_column(name, no_wrap=True)
    for name in ("blocks", "mismatches", "bytes per cycle", "latency (cycles)"):
        table.add_column(name, justify="right")
    for row in rows:
        figures = (
            f"{row.blocks:,}",
            str(row.mismatches),
            f"{row.bytes_per_cycle:.1f}",
            str(row.latency_cycles),
        )
        table.add_row(row.config, row.part, row.simulator, *figures)
    Console(width=max(Console().width, 120)).print(table)


def main(argv: list[str] | None = None) -> None:
    parser = _parser()
    arguments = parser.parse_args(argv)
    simulator = os.environ.get("SIM", "verilator")
    if simulator not in runner.SIMULATORS:
        sys.exit(f"SIM must be one of {', '.join(runner.SIMULATORS)}, not {simulator!r}")
    if simulator == "icarus" and not shutil.which("iverilog"):
        sys.exit("SIM=icarus needs Icarus Verilog: install the package iverilog")
    if arguments.blocks < 100:
        parser.error(f"--blocks must be at least 100, not {arguments.blocks}")

    chosen: list[Config] = list(PRESETS.values()) if arguments.presets else configs.ALL
    engines = [(config, part) for config in chosen for part in PARTS]
    run = partial(
        runner.run,
        folder=arguments.folder,
        blocks=arguments.blocks,
        seed=arguments.seed,
        simulator=simulator,
        waves=os.environ.get("WAVES", "0") not in ("", "0"),
        activations=stimulus.capture_activations(arguments.folder / "activations.npz"),
    )
    rows: dict[int, runner.Row] = {}
    with ProcessPoolExecutor(max_workers=arguments.jobs) as pool:
        futures = {pool.submit(run, config, part): i for i, (config, part) in enumerate(engines)}
        try:
            for future in track(as_completed(futures), "simulating", total=len(futures)):
                rows[futures[future]] = future.result()
        except (runner.BenchError, ToolError) as error:
            pool.shutdown(cancel_futures=True)
            sys.exit(str(error))
    ordered = [rows[i] for i in range(len(engines))]
    summary = arguments.folder / "summary.json"
    summary.write_text(json.dumps([asdict(row) for row in ordered], indent=2) + "\n")
    print_table(ordered)
    print(f"seed {arguments.seed}; {summary}")


if __name__ == "__main__":
    main()
