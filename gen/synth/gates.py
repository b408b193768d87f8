"""The flow to gates: NAND and NOT for figures that compare, a real cell library where there is one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rtl.stream import DELAY_MEMORY

from ..toolchain import ToolError
from ..verilog import delay_memories
from ..yosys import run_yosys
from . import paths
from .paths import LongestPath, Netlist, longest_paths

# In areas of a two-input NAND, as such figures are usually given. A flip-flop counts the same with and
# without enable and reset: in silicon, a clock gate serves the enable of a whole word.
GATE = {"$_NAND_": 1.0, "$_NOT_": 0.67}
FLIP_FLOP = 6.0

PATHS = 12  # how many of the longest are kept
FLOW = Path(__file__).read_text() + Path(paths.__file__).read_text()


@dataclass(frozen=True)
class Gates:
    """What the flow to NAND gates finds.

    Attributes:
        kge: thousands of gate equivalents.
        plain_kge: the same with each enable and reset as gates in front of a plain flip-flop: an upper bound.
        flip_flops: bits of state, those of memories included, but not of delay memories.
        memory_bits: of memories of either kind, but of no tables of constants, which are gates.
        nand_levels: gates on the longest path between registers or ports.
        modules: kGE of each submodule, without those in it, when none is optimised across its border.
        paths: the longest into each of the deepest registers.
    """

    kge: float
    plain_kge: float
    flip_flops: int
    memory_bits: int
    nand_levels: int
    modules: dict[str, float]
    paths: list[LongestPath]

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Gates:
        return cls(**fields | {"paths": [LongestPath(**path) for path in fields["paths"]]})


def nand_script(top: str, folder: Path) -> list[str]:
    """The Yosys commands of :func:`measure_gates`."""

    def mapped(result: str) -> list[str]:
        return ["abc -g NAND", "opt_clean -purge", f"tee -q -o {folder}/{result}.json stat -json"]

    return [
        f"read_verilog {folder}/source.v",
        f"hierarchy -check -top {top}",
        "design -save source",
        *("proc -noopt -norom", "flatten", f"tee -q -o {folder}/memories.json stat -json"),
        *("memory_collect", "memory_map", "techmap", f"write_json {folder}/named.json"),
        "design -load source",
        *(f"synth -flatten -top {top}", *mapped("gates"), f"write_json {folder}/flat.json"),
        *("dfflegalize -cell $_DFF_P_ 01", *mapped("plain")),
        "design -load source",
        *(f"synth -top {top}", *mapped("modules")),
    ]


def measure_gates(verilog: str, top: str, folder: Path) -> Gates:
    """Map a design to NAND gates and count.

    Args:
        verilog: its source.
        top: its top module.
        folder: an empty one to work in.

    Raises:
        gen.toolchain.ToolError: Yosys failed.
    """
    _run(nand_script(top, folder), verilog, folder)

    def stat(name: str) -> dict[str, Any]:
        return json.loads((folder / f"{name}.json").read_text())

    flat = stat("gates")["design"]["num_cells_by_type"]
    source = Netlist(folder / "named.json")
    longest = longest_paths(Netlist(folder / "flat.json", source), source)
    return Gates(
        kge=kilogates(flat),
        plain_kge=kilogates(stat("plain")["design"]["num_cells_by_type"]),
        flip_flops=sum(count for cell, count in flat.items() if "DFF" in cell),
        memory_bits=stat("memories")["design"]["num_memory_bits"]
        + sum(width * depth for width, depth in delay_memories(verilog)),
        nand_levels=longest[0].levels,
        modules={
            name.removeprefix(f"\\{top}").removeprefix(".") or "top": kilogates(module["num_cells_by_type"])
            for name, module in stat("modules")["modules"].items()
            if DELAY_MEMORY not in name
        },
        paths=longest[:PATHS],
    )


def kilogates(cells: Mapping[str, int]) -> float:
    total = 0.0
    for cell, count in cells.items():
        if "DFF" in cell:
            total += FLIP_FLOP * count
        elif cell in GATE:
            total += GATE[cell] * count
        elif cell.startswith("$"):  # not an instance of another module
            raise ToolError(f"the netlist must be of NAND, NOT and flip-flops, not {cell!r}")
    return round(total / 1000, 3)


def library_script(top: str, folder: Path) -> list[str]:
    """The Yosys commands of :func:`measure_cells`."""
    liberty = folder / "cells.lib"
    # As abc does with a file of constraints: buffers and sizes, then static timing.
    abc = "+strash;&get,-n;&fraig,-x;&put;scorr;dc2;dretime;strash;&get,-n;&dch,-f;&nf;&put;"
    abc += "buffer;upsize;dnsize;stime,-p"
    return [
        f"read_verilog {folder}/source.v",
        f"synth -flatten -top {top}",
        f"dfflibmap -liberty {liberty}",
        f"abc -liberty {liberty} -script {abc}",
        "opt_clean -purge",
        f"tee -q -o {folder}/cells.json stat -liberty {liberty} -json",
        f"write_json {folder}/netlist.json",
    ]


def measure_cells(verilog: str, top: str, liberty: str, folder: Path) -> dict[str, float]:
    """Map a design to the cells of a library.

    Args:
        verilog, top, folder: see :func:`measure_gates`.
        liberty: the library's text.

    Returns:
        "area" in the library's unit, "delay_ps" of the longest path as abc sees it, without wires. The
        netlist stays in the folder.

    Raises:
        gen.toolchain.ToolError: Yosys failed, for instance because the library lacks a cell.
    """
    (folder / "cells.lib").write_text(liberty)
    printed = _run(library_script(top, folder), verilog, folder)
    delays = re.findall(r"Delay = *([\d.]+) ps", printed)
    if not delays:
        raise ToolError(f"abc reported no delay; Yosys printed:\n{printed[-4000:]}")
    found = json.loads((folder / "cells.json").read_text())["design"]
    for cell in found["num_cells_by_type"]:
        if cell.startswith("$_"):
            raise ToolError(f"the library must have what every cell needs, but nothing maps {cell!r}")
    return {"area": found["area"], "delay_ps": float(delays[-1])}


def _run(script: list[str], verilog: str, folder: Path) -> str:
    (folder / "source.v").write_text(verilog)
    return run_yosys(script, folder / "yosys.log")
