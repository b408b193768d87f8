"""``python -m cocotb_tests.memory``: the memory engines against golden/memory.py, in Verilator."""

from __future__ import annotations

import argparse
import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gen.verilog import convert
from golden import HadamardFormat, PlaneFormat
from rtl.memory import MemoryEngine, MemoryParameters

from .runner import Design, _simulate

BENCHES = ("bench_memory", "bench_bursts")

# Bypass alone; one format and two in small; those of training, behind memories as wide and narrower ones.
ENGINES = {
    "bypass": MemoryParameters(bus_bytes=16, memory_bytes=16),
    "bypass-narrow": MemoryParameters(bus_bytes=64, memory_bytes=16),
    "small-quarter": MemoryParameters(formats=(PlaneFormat("bf16", 32, 21),), bus_bytes=16, memory_bytes=4),
    "small": MemoryParameters(formats=(PlaneFormat("bf16", 32, 24),), bus_bytes=16, memory_bytes=16),
    "small-narrow": MemoryParameters(
        formats=(PlaneFormat("bf16", 32, 24), HadamardFormat("bf16", 64, 9)), bus_bytes=32, memory_bytes=16
    ),
    "planes": MemoryParameters(formats=(PlaneFormat("fp32", 64, 80),)),
    "planes-narrow": MemoryParameters(formats=(PlaneFormat("fp32", 64, 80),), memory_bytes=16),
    "two": MemoryParameters(formats=(PlaneFormat("fp32", 64, 80), HadamardFormat("fp32", 128, 32))),
}


def run(name: str, folder: Path, *, bursts: int, seed: int, only: str | None = None) -> list[dict[str, Any]]:
    """Run the benches on an engine and return what they noted.

    Args:
        bursts: random ones, one after the other; an eighth as many of several masters at once.
        only: a regular expression for the names of the benches to run (default: all).

    Raises:
        cocotb_tests.runner.BenchError: a bench failed.
    """
    parameters, top = ENGINES[name], "bitstash_memory"
    text = convert(MemoryEngine(parameters), top)

    def write(path: Path) -> list[Path]:
        path.write_text(text)
        return []

    task = {
        "formats": [(fmt.scheme, asdict(fmt)) for fmt in parameters.formats],
        "bus_bytes": parameters.bus_bytes,
        "memory_bytes": parameters.memory_bytes,
        "bursts": bursts,
        "seed": seed,
    }
    design = Design(top, hashlib.sha256(text.encode()).hexdigest(), write)
    place = folder / "memory" / name
    return [note for bench in BENCHES for note in _simulate(design, place, task, bench, only, "verilator")]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m cocotb_tests.memory", description=__doc__)
    parser.add_argument(
        "names", nargs="*", default=list(ENGINES), help=f"of {', '.join(ENGINES)} (default: all)"
    )
    parser.add_argument("--bursts", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    for name in arguments.names:
        for note in run(name, Path("build/sim"), bursts=arguments.bursts, seed=arguments.seed):
            print(name, json.dumps(note), flush=True)


if __name__ == "__main__":
    main()
