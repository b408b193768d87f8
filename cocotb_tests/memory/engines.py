"""The memory engines that are simulated, and what the benches in cocotb find of them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gen import memory
from gen.verilog import convert
from golden import HadamardFormat, PlaneFormat
from rtl.memory import MemoryEngine, MemoryParameters

from ..runner import BenchError, Design, run_benches
from .faults import FAULTS, verilog_of

BENCHES = ("memory.bench_engine", "memory.bench_bursts")

# Bypass alone; one format and two in small, and those that merge; training's planes, behind a memory as wide
# and a narrower one; the presets.
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
    "wide-merging": MemoryParameters(formats=(PlaneFormat("bf16", 64, 56),), merging=True),
    "planes": MemoryParameters(formats=(PlaneFormat("fp32", 64, 80),)),
    "planes-narrow": MemoryParameters(formats=(PlaneFormat("fp32", 64, 80),), memory_bytes=16),
} | memory.PRESETS


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


def run_cocotbext(name: str, folder: Path, *, bursts: int, seed: int) -> list[int]:
    """Run the bench with cocotbext-axi at both ends; how many bursts each region had, bypass last.

    What it noted before of the same Verilog, with the same options, is returned.
    """
    text = convert(MemoryEngine(ENGINES[name]), TOP)
    only, place = ".*a_bus_master_of_others.*", folder / "memory" / name
    (note,) = _run(name, text, place, ["memory.bench_bursts"], bursts, seed, only, keep=True)
    return note["by_region"]


def _run(
    name: str,
    text: str,
    place: Path,
    benches: Sequence[str],
    bursts: int,
    seed: int,
    only: str | None,
    keep: bool = False,
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
    return [
        note
        for bench in benches
        for note in run_benches(design, place, task, bench, only, "verilator", keep=keep)
    ]


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
            _run(FAULTY_ENGINE, text, place, ["memory.bench_bursts"], bursts, seed, only)
        except BenchError as error:
            yield fault.name, str(error).splitlines()[0]
        else:
            yield fault.name, None
