"""Engines in the cell library of a named node: ``make node LIBERTY=file``.

Writes docs/node.json and its tables in docs/hardware.md and docs/dram.md, and goes on where it stopped.
With ACTIVITY the arrays of a file switch the cells, see ``python -m gen synth``. OpenSTA has to be there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cocotb_tests.promises import promise
from cocotb_tests.reports import SYNTH
from gen import memory
from gen.arguments import add_jobs, interruptible
from gen.config import PRESETS
from gen.synth import energy, jobs, liberty, sta
from gen.synth.node import WIDTHS, designs, measure_row, node_of
from gen.toolchain import ToolError

from . import page
from .dram.page import fill_engine

FOLDER = Path("docs")

# What has been published, in the same terms. None is what is not.
RIVALS = (
    {
        "name": "ZeroPoint, decompressor alone [1]",
        "node": "Samsung 4 nm",
        "format": "lossless, 1.5x on bf16 weights, size varies",
        "mm2": 0.04,
        "gb_per_s": 64 * 1.2,
        "pj_per_byte": 57e-3 / (64 * 1.2e9) * 1e12,
        "latency": "21 cycles",
    },
    {
        "name": "Xie et al., arXiv 2503.18869 [2]",
        "node": "7 nm",
        "format": "lossless, bit planes with LZ4 or ZSTD, size varies",
        "mm2": 3.8,
        "gb_per_s": 8000.0,
        "pj_per_byte": None,
        "latency": None,
    },
    {
        "name": "Xie et al., arXiv 2509.03377 [3]",
        "node": "7 nm",
        "format": "the same, in a CXL memory",
        "mm2": 5.7,
        "gb_per_s": 2000.0,
        "pj_per_byte": None,
        "latency": None,
    },
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.node", description=__doc__.partition(":")[0])
    parser.add_argument("--bus-bytes", nargs="+", type=int, choices=WIDTHS, default=list(WIDTHS))
    add_jobs(parser, "designs")
    arguments = parser.parse_args()
    libraries = [Path(name) for name in os.environ.get("LIBERTY", "").split()]
    activity = os.environ.get("ACTIVITY")
    try:
        with interruptible():
            results = measure(
                libraries, Path(activity) if activity else None, arguments.bus_bytes, arguments.jobs
            )
    except (ValueError, OSError, ToolError) as error:
        sys.exit(f"python -m bench.node: {error}")
    path = FOLDER / "node.json"
    if path.exists():
        results["rows"] = _with_rows_of(json.loads(path.read_text()), results)
    path.write_text(json.dumps(results, indent=1) + "\n")
    document(results)
    fill_engine(FOLDER)
    print(f"wrote {FOLDER / 'node.json'}, {FOLDER / 'hardware.md'} and {FOLDER / 'dram.md'}")


def measure(
    libraries: Sequence[Path], activity: Path | None, widths: Sequence[int], processes: int
) -> dict[str, Any]:
    """Measure designs in a library.

    Args:
        libraries: its files, see :func:`gen.synth.liberty.read`.
        activity: see :func:`gen.synth.energy.stimulus`.
        widths: bytes of the engines' buses, of :data:`gen.synth.node.WIDTHS`.
        processes: how many designs are measured at a time.

    Returns:
        What docs/node.json has: library, node, tools, and a row for each design.

    Raises:
        ValueError: there is no library, or it is of no node in :data:`gen.synth.node.NODES`.
        gen.toolchain.ToolError: a tool is missing or failed.
    """
    texts = [liberty.read(path) for path in libraries]
    if not texts:
        raise ValueError("a node needs a cell library: set LIBERTY")
    name, node = node_of(texts)
    if sta.version() is None:
        raise ToolError(f"no {sta.PROGRAM} found, which gives the clocks: apt install opensta")
    todo = {
        (design.preset, design.part, design.bus_bytes): partial(measure_row, design, libraries, activity)
        for design in designs(activity, widths)
    }
    rows = list(jobs.run(todo, processes).values())
    cells = energy.library_of(*texts).cells.values()
    return {
        "library": name,
        "library_sha256": hashlib.sha256("".join(texts).encode()).hexdigest(),
        "node": asdict(node),
        "flip_flop_um2": min(cell.area for cell in cells if cell.clock),
        "tools": {"yosys": f"pyosys {version('pyosys')}", "opensta": sta.version()},
        "activity": activity.name if activity else "normal values, each block of another scale",
        "rows": rows,
    }


def _with_rows_of(before: dict[str, Any], results: dict[str, Any]) -> list[dict[str, Any]]:
    """New rows, and of earlier ones those of other designs, if they were measured with the same."""
    if any(before.get(name) != results[name] for name in ("library_sha256", "tools", "activity")):
        return list(results["rows"])

    def design(row: dict[str, Any]) -> tuple[str, str, int]:
        return row["preset"], row["part"], row["bus_bytes"]

    found = {design(row): row for row in (*before["rows"], *results["rows"])}
    return list(found.values())


def document(results: dict[str, Any]) -> None:
    """Put the tables of docs/node.json into docs/hardware.md."""
    path = FOLDER / "hardware.md"
    page.fill(path, "datasheet", "\n".join(_datasheet(results)))
    page.fill(path, "node", "\n".join(_engines(results)))
    page.fill(path, "node memories", "\n".join(_memories(results)))
    page.fill(path, "node rivals", "\n".join(_rivals(results)))


def _datasheet(results: dict[str, Any]) -> Iterator[str]:
    """What an architect asks first. Rates and latencies are what the benches hold engines to."""
    yield "| engine | bytes a cycle | latency, cycles | logic, kGE | memories, kbit | mm² | GHz | pJ a byte |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    gates = {(row["preset"], row["bus_bytes"], row["part"]): row["kge"] for row in SYNTH.rows()}
    for row in results["rows"]:
        sized, bits = row["sized"], sum(one["width"] * one["depth"] for one in row["memories"])
        if row["preset"] in PRESETS:
            config = replace(PRESETS[row["preset"]], bus_bytes=row["bus_bytes"])
            promised = promise(row["part"], config.fmt, config.formats, config.bus_bytes)
            rate, latency = str(config.bus_bytes // promised.word_cycles), str(promised.latency)
            kge = gates.get((row["preset"], row["bus_bytes"], row["part"]))
        else:
            parameters = memory.PRESETS[row["preset"]]
            rate = ", ".join(f"{each:g}" for each in memory.bytes_per_cycle(parameters)) + ", each way"
            latency = ", ".join(map(str, memory.read_latency(parameters))) + ", added to a read"
            kge = row["kge"]
        cells = [
            f"`{row['preset']}`, {row['bus_bytes']} bytes, {row['part']}",
            rate,
            latency,
            _number(kge, ".1f"),
            f"{bits / 1000:.1f}" if bits else "none",
            f"{(sized['area'] + bits * results['node']['memory_bit']) * 1e-6:.4f}",
            _ghz(sized["period_with_wires_ps"]),
            _number(sized["pj_per_byte"], ".3f"),
        ]
        yield f"| {' | '.join(cells)} |"


def _engines(results: dict[str, Any]) -> Iterator[str]:
    tools = results["tools"]
    yield (
        f"`{results['library']}`, {results['node']['name']}; {tools['yosys']}, OpenSTA {tools['opensta']}; "
        f"activity: {results['activity']}."
    )
    yield ""
    yield (
        "| preset | bus bytes | part | smallest, mm² | GHz without wires | with wires | sized, mm² "
        "| GHz with wires | leakage, µW | pJ a byte | of it clock pins |"
    )
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for row in results["rows"]:
        small, sized = row["smallest"], row["sized"]
        cells = [
            row["preset"],
            str(row["bus_bytes"]),
            row["part"],
            f"{small['area'] * 1e-6:.4f}",
            _ghz(small["period_ps"]),
            _ghz(small["period_with_wires_ps"]),
            f"{sized['area'] * 1e-6:.4f}",
            _ghz(sized["period_with_wires_ps"]),
            f"{sized['leakage_mw'] * 1e3:.1f}",
            *(_number(sized[name], ".3f") for name in ("pj_per_byte", "clock_pj_per_byte")),
        ]
        yield f"| {' | '.join(cells)} |"


def _memories(results: dict[str, Any]) -> Iterator[str]:
    yield (
        "| preset | logic beside memories, kGE | logic, sized, mm² | bits of memories | of them read "
        "without a clock | as macros, mm² | as flip-flops, mm² |"
    )
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for row in results["rows"]:
        if "kge" not in row:
            continue
        bits = [one["width"] * one["depth"] for one in row["memories"]]
        unclocked = [one["width"] * one["depth"] for one in row["memories"] if not one["clocked"]]
        cells = [
            row["preset"],
            f"{row['kge']:.1f}",
            f"{row['sized']['area'] * 1e-6:.4f}",
            f"{sum(bits):,}",
            f"{sum(unclocked):,}",
            f"{sum(bits) * results['node']['memory_bit'] * 1e-6:.4f}",
            f"{sum(bits) * results['flip_flop_um2'] * 1e-6:.4f}",
        ]
        yield f"| {' | '.join(cells)} |"


def _rivals(results: dict[str, Any]) -> Iterator[str]:
    yield "| | node | format | mm² | GB/s | mm² for 1 TB/s | pJ a byte | latency |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for row in (*RIVALS, *_ours(results)):
        per_terabyte = row["mm2"] / row["gb_per_s"] * 1000
        cells = [
            row["name"],
            row["node"],
            row["format"],
            f"{row['mm2']:.3g}",
            f"{row['gb_per_s']:,.0f}",
            f"{per_terabyte:.3f}",
            _number(row["pj_per_byte"], ".2f"),
            row["latency"] or "",
        ]
        yield f"| {' | '.join(cells)} |"


def _ours(results: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Compressor and decompressor of 64 bytes together, at 1 GHz: cells without a floorplan."""
    wide = [row for row in results["rows"] if row["bus_bytes"] == 64 and row["preset"] in PRESETS]
    for preset in dict.fromkeys(row["preset"] for row in wide):
        fmt = PRESETS[preset].fmt
        assert fmt.target
        both = [row["sized"] for row in wide if row["preset"] == preset]
        if len(both) < 2:
            continue
        yield {
            "name": f"`{preset}`, both engines",
            "node": results["node"]["name"].partition(",")[0],
            "format": f"lossy, {fmt.original_bytes / fmt.target:g}x, size fixed",
            "mm2": sum(part["area"] for part in both) * 1e-6,
            "gb_per_s": 64.0,
            "pj_per_byte": max(part["pj_per_byte"] for part in both),
            "latency": None,
        }


def _ghz(period: float) -> str:
    return f"{1000 / period:.2f}"


def _number(value: float | None, digits: str) -> str:
    return "" if value is None else format(value, digits)


if __name__ == "__main__":
    main()
