"""The flow to gates: NAND and NOT for figures that compare, a real cell library where there is one."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
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

_LOAD = 2.0  # at a path's end, fF: a flip-flop and its wire
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


def measure_beside_memories(verilog: str, top: str, folder: Path) -> float:
    """Thousands of gate equivalents of a design without its memories; arguments of :func:`measure_gates`."""
    stat = folder / "gates.json"
    steps = [step.format(top=top) for step in _LOGIC_BESIDE_MEMORIES]
    script = [f"read_verilog {folder}/source.v", *steps, "abc -g NAND", "opt_clean -purge"]
    _run([*script, f"tee -q -o {stat} stat -json"], verilog, folder)
    cells = json.loads(stat.read_text())["design"]["num_cells_by_type"]
    return kilogates({cell: count for cell, count in cells.items() if not cell.startswith("$mem")})


@dataclass(frozen=True)
class Memory:
    """A memory of a design.

    Attributes:
        width: bits of a word.
        depth: words.
        reads: ports to read at.
        clocked: whether all of them give a word in the cycle after its address.
    """

    width: int
    depth: int
    reads: int
    clocked: bool

    @property
    def bits(self) -> int:
        return self.width * self.depth


def memories(netlist: Path) -> list[Memory]:
    """The memories of a design whose mapping kept them, from its ``netlist.json``."""
    (module,) = json.loads(netlist.read_text())["modules"].values()
    cells = (cell["parameters"] for cell in module["cells"].values() if cell["type"].startswith("$mem"))
    return [
        Memory(
            width=int(cell["WIDTH"], 2),
            depth=int(cell["SIZE"], 2),
            reads=int(cell["RD_PORTS"], 2),
            clocked="0" not in cell["RD_CLK_ENABLE"],
        )
        for cell in cells
    ]


def kilogates(cells: dict[str, int]) -> float:
    total = 0.0
    for cell, count in cells.items():
        if "DFF" in cell:
            total += FLIP_FLOP * count
        elif cell in GATE:
            total += GATE[cell] * count
        elif cell.startswith("$"):  # not an instance of another module
            raise ToolError(f"the netlist must be of NAND, NOT and flip-flops, not {cell!r}")
    return round(total / 1000, 3)


# As ``synth`` does, but for ``memory_map``: what is left of a design when its memories are macros.
_LOGIC_BESIDE_MEMORIES = [
    "hierarchy -check -top {top}",
    *("proc -norom", "flatten", "opt_expr", "opt_clean", "opt -nodffe -nosdff", "fsm", "opt", "wreduce"),
    *("peepopt", "opt_clean", "alumacc", "share", "opt", "memory -nomap", "opt_clean"),
    *("opt -fast -full", "opt -undriven -fine", "techmap", "opt -fast"),
]
_ALL_LOGIC = ["synth -flatten -top {top}"]


def write_libraries(texts: Sequence[str], folder: Path) -> list[Path]:
    """A library's files, which the tools do not read compressed, in a folder."""
    files = [folder / f"cells{number}.lib" for number in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    return files


@dataclass(frozen=True)
class Mapping:
    """How a design becomes a library's cells.

    Attributes:
        keep_memories: whether memories stay as they are, not counted; paths begin and end at them.
        driver: a cell that stands for the flip-flop at a path's start. With it, buffers and sizes are chosen
            for the library's wire load, see :mod:`gen.synth.wires`; without, there are no wires.
        dont_use: cells that are not to be used, as patterns.
    """

    keep_memories: bool = False
    driver: str = ""
    dont_use: tuple[str, ...] = ()


def library_script(top: str, folder: Path, files: Sequence[Path], mapping: Mapping) -> list[str]:
    """The Yosys commands of :func:`measure_cells`."""
    libraries = " ".join(f"-liberty {file}" for file in files)
    constraints = f"-constr {folder}/cells.constr" if mapping.driver else ""
    unused = " ".join(f"-dont_use {pattern}" for pattern in mapping.dont_use)
    # As abc does with a file of constraints: buffers and sizes, then static timing.
    abc = "+strash;&get,-n;&fraig,-x;&put;scorr;dc2;dretime;strash;&get,-n;&dch,-f;&nf;&put;"
    if mapping.driver:
        abc += "buffer,-c,-p;upsize,-c;dnsize,-c;stime,-p,-c"
    else:
        abc += "buffer;upsize;dnsize;stime,-p"
    return [
        f"read_verilog {folder}/source.v",
        *(step.format(top=top) for step in (_LOGIC_BESIDE_MEMORIES if mapping.keep_memories else _ALL_LOGIC)),
        f"dfflibmap {unused} {libraries}",
        f"abc {unused} {constraints} {libraries} -script {abc}",
        "opt_clean -purge",
        f"tee -q -o {folder}/cells.json stat {libraries} -json",
        f"write_json {folder}/netlist.json",
        "delete t:$mem*",  # OpenSTA reads nothing but instances of cells
        f"write_verilog -noattr -noexpr -nohex -nodec -simple-lhs {folder}/netlist.v",
    ]


def measure_cells(
    verilog: str, top: str, libraries: Sequence[str], folder: Path, mapping: Mapping = Mapping()
) -> dict[str, float]:
    """Map a design to the cells of a library.

    Args:
        verilog, top, folder: see :func:`measure_gates`.
        libraries: the texts of the library's files.

    Returns:
        "area" in the library's unit, "delay_ps" of the longest path as abc sees it, without what flip-flops
        take, and without wires unless the mapping is for them. In the folder stay ``netlist.json``,
        ``netlist.v`` without memories, and the library's files.

    Raises:
        gen.toolchain.ToolError: Yosys failed, for instance because the library lacks a cell.
    """
    files = write_libraries(libraries, folder)
    (folder / "cells.constr").write_text(f"set_driving_cell {mapping.driver}\nset_load {_LOAD}\n")
    printed = _run(library_script(top, folder, files, mapping), verilog, folder)
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
