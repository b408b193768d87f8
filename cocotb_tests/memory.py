"""``python -m cocotb_tests.memory``: the memory engines against golden/memory.py, in Verilator."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gen.verilog import convert
from golden import HadamardFormat, PlaneFormat
from rtl.memory import MemoryEngine, MemoryParameters

from .memory_faults import FAULTS, verilog_of
from .runner import BenchError, Design, _simulate

BENCHES = ("bench_memory", "bench_bursts")

# Bypass alone; one format and two in small, and one that merges; those of training, behind memories as wide
# and narrower ones.
ENGINES = {
    "bypass": MemoryParameters(bus_bytes=16, memory_bytes=16),
    "bypass-narrow": MemoryParameters(bus_bytes=64, memory_bytes=16),
    "small-quarter": MemoryParameters(formats=(PlaneFormat("bf16", 32, 21),), bus_bytes=16, memory_bytes=4),
    "small": MemoryParameters(formats=(PlaneFormat("bf16", 32, 24),), bus_bytes=16, memory_bytes=16),
    "small-narrow": MemoryParameters(
        formats=(PlaneFormat("bf16", 32, 24), HadamardFormat("bf16", 64, 9)), bus_bytes=32, memory_bytes=16
    ),
    "small-merging": MemoryParameters(
        formats=(PlaneFormat("bf16", 32, 21),), bus_bytes=16, memory_bytes=4, merging=True
    ),
    "planes": MemoryParameters(formats=(PlaneFormat("fp32", 64, 80),)),
    "planes-narrow": MemoryParameters(formats=(PlaneFormat("fp32", 64, 80),), memory_bytes=16),
    "two": MemoryParameters(formats=(PlaneFormat("fp32", 64, 80), HadamardFormat("fp32", 128, 32))),
}


TOP = "bitstash_memory"
FAULTY_ENGINE = "small-quarter"  # has formats, and a narrower memory


def run(name: str, folder: Path, *, bursts: int, seed: int, only: str | None = None) -> list[dict[str, Any]]:
    """Run the benches on an engine and return what they noted.

    Args:
        bursts: random ones, one after the other; half as many of several masters at once.
        only: a regular expression for the names of the benches to run (default: all).

    Raises:
        cocotb_tests.runner.BenchError: a bench failed.
    """
    text = convert(MemoryEngine(ENGINES[name]), TOP)
    return _run(name, text, folder / "memory" / name, BENCHES, bursts, seed, only)


def _run(
    name: str, text: str, place: Path, benches: Sequence[str], bursts: int, seed: int, only: str | None
) -> list[dict[str, Any]]:
    parameters = ENGINES[name]

    def write(path: Path) -> list[Path]:
        path.write_text(text)
        return []

    task = {
        "formats": [(fmt.scheme, asdict(fmt)) for fmt in parameters.formats],
        "bus_bytes": parameters.bus_bytes,
        "memory_bytes": parameters.memory_bytes,
        "merging": parameters.merging,
        "bursts": bursts,
        "seed": seed,
    }
    design = Design(TOP, hashlib.sha256(text.encode()).hexdigest(), write)
    return [note for bench in benches for note in _simulate(design, place, task, bench, only, "verilator")]


def rows(name: str, notes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the benches noted of an engine, for each kind of region: see docs/memory.md.

    A mismatch ends a run, so that there is none.
    """
    (rates,) = [note["rates"] for note in notes if "rates" in note]
    (latency,) = [note["latency"] for note in notes if "latency" in note]
    bursts = sum(note.get("bursts", 0) for note in notes)
    return [
        {
            "config": name,
            "part": "memory",
            "simulator": "verilator",
            "region": region,
            "bursts": bursts,
            "mismatches": 0,
            "read_bytes_per_cycle": rates[f"{region}_1024"]["read"],
            "write_bytes_per_cycle": rates[f"{region}_1024"]["write"],
            "excess_bytes": max(rates[f"{region}_1024"][f"{way}_excess"] for way in ("read", "write")),
            "read_latency_added": sum(latency[region].values()),
        }
        for region in latency
    ]


def find_faults(names: str, folder: Path, *, bursts: int, seed: int) -> Iterator[tuple[str, str | None]]:
    """Put an engine with each fault to the benches; yield its name and what found it, None if nothing did.

    Args:
        names: a regular expression for the names of the faults.
    """
    for i, fault in enumerate(FAULTS):
        if not re.search(names, fault.name):
            continue
        text = verilog_of(fault, ENGINES[FAULTY_ENGINE], TOP)
        place, only = folder / "memory" / f"fault{i}", f".*({fault.bench}).*"
        try:
            _run(FAULTY_ENGINE, text, place, ["bench_bursts"], bursts, seed, only)
        except BenchError as error:
            yield fault.name, str(error).splitlines()[0]
        else:
            yield fault.name, None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m cocotb_tests.memory", description=__doc__)
    parser.add_argument(
        "names", nargs="*", default=list(ENGINES), help=f"of {', '.join(ENGINES)} (default: all)"
    )
    parser.add_argument("--bursts", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", help="put faults with such names, as '.*', into an engine instead")
    arguments = parser.parse_args()
    options = {"bursts": arguments.bursts, "seed": arguments.seed}
    if arguments.faults:
        missed = 0
        for name, bench in find_faults(arguments.faults, Path("build/sim"), **options):
            print(f"{name}: {bench or 'NOT FOUND'}", flush=True)
            missed += bench is None
        sys.exit(f"{missed} faults that no bench finds" if missed else 0)
    for name in arguments.names:
        notes = run(name, Path("build/sim"), **options)
        for note in [*notes, *rows(name, notes)]:
            print(name, json.dumps(note), flush=True)


if __name__ == "__main__":
    main()
