"""Engines in the cell library of a named node: area, clock, energy and leakage.

Each engine is mapped twice: for area, without wires, and for the wire load of its size, with buffers and
sizes to match. OpenSTA gives the clocks of both.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from .. import memory
from ..config import PRESETS
from ..verilog import module_name, parts
from . import energy, gates, jobs, liberty, sta, traffic, wires
from .wires import Wire

SHOWN = ("gpt2-fp32-3.2x", "gpt2-bf16-2x", "gpt2-fp32-16x")
WIDTHS = (64, 16)
FLOW = Path(__file__).read_text() + Path(sta.__file__).read_text() + Path(wires.__file__).read_text()


@dataclass(frozen=True)
class Node:
    """What a cell library does not say of its process.

    Attributes:
        name: for the page.
        wire: of a signal net before its route is known.
        dont_use: cells too weak for any wire.
        driver: a buffer about as strong as a flip-flop.
        memory_bit: of a small memory with a port to write and one to read, periphery included, µm² a bit.
        source: of the numbers.
    """

    name: str
    wire: Wire
    dont_use: tuple[str, ...]
    driver: str
    memory_bit: float
    source: str


# By how the library's name begins.
NODES = {
    "asap7sc7p5t": Node(
        name="ASAP7, a predictive 7 nm process",
        wire=Wire(resistance=0.0323151, capacitance=0.173323),
        dont_use=("*xp*",),
        driver="BUFx4_ASAP7_75t_R",
        # The register file of 32 words of 46 bits that OpenROAD's flow has for ASAP7: 6.08 by 16.8 µm.
        memory_bit=6.08 * 16.8 / (32 * 46),
        source="OpenROAD-flow-scripts, flow/platforms/asap7: setRC.tcl, config.mk, lef/fakeregfile_32x46.lef",
    )
}


@dataclass(frozen=True)
class Design:
    """What is mapped.

    Attributes:
        preset, part, bus_bytes: which engine, for its row.
        source: makes its Verilog.
        top: its module.
        energy: :func:`gen.synth.jobs.energy_of` but for the library's files, the folder and the wire.
        clock: the port of its clock.
        has_memories: whether it has memories of its own, which stay.
    """

    preset: str
    part: str
    bus_bytes: int
    source: Callable[[], str]
    top: str
    energy: Callable[..., dict[str, float | None]]
    clock: str = "clk"
    has_memories: bool = False


def node_of(texts: Sequence[str]) -> tuple[str, Node]:
    """The name of a library and its node.

    Raises:
        ValueError: it is no library of :data:`NODES`.
    """
    found = re.search(r"^\s*library\s*\(\s*\"?([^)\"]*)", texts[0], re.MULTILINE)
    name = found[1].strip() if found else ""
    for prefix, node in NODES.items():
        if name.lower().startswith(prefix):
            return name, node
    raise ValueError(f"LIBERTY must be a library of {', '.join(NODES)}, not {name!r}")


def measure(design: Design, verilog: str, texts: Sequence[str], node: Node, folder: Path) -> dict[str, Any]:
    """Both mappings of a design, and its memories.

    Args:
        verilog: its source.
        texts: files of the library.
        folder: an empty one to work in.

    Returns:
        For each mapping area in µm², abc's delay and OpenSTA's period with wires in ps, leakage in mW. Only
        the smallest has a period without wires, only the sized one an energy.

    Raises:
        gen.toolchain.ToolError: a tool failed.
    """
    small, large = folder / "smallest", folder / "sized"
    small.mkdir()
    large.mkdir()
    mapping = gates.Mapping(keep_memories=design.has_memories)
    found = gates.measure_cells(verilog, design.top, texts, small, mapping)
    cells = sum(json.loads((small / "cells.json").read_text())["design"]["num_cells_by_type"].values())
    length = wires.length_per_sink(found["area"], cells)
    wired = [wires.with_wires(text, node.wire, length) for text in texts]
    mapping = replace(mapping, driver=node.driver, dont_use=node.dont_use)
    sized = gates.measure_cells(verilog, design.top, wired, large, mapping)
    picofarad = node.wire.capacitance * length * 1e-3

    def period(netlist: Path, libraries: Path) -> float:
        files = sorted(libraries.glob("cells*.lib"))
        return sta.shortest_period(netlist / "netlist.v", design.top, files, clock=design.clock)

    return {
        "cells": cells,
        "wire_um_per_sink": round(length, 2),
        "smallest": found
        | {"period_ps": period(small, small), "period_with_wires_ps": period(small, large)}
        | {"leakage_mw": _leakage(texts, small)},
        "sized": sized
        | {"period_with_wires_ps": period(large, large)}
        | design.energy(texts, large, picofarad),
        "memories": [asdict(kept) for kept in gates.memories(small / "netlist.json")],
    }


def _leakage(texts: Sequence[str], folder: Path) -> float:
    return jobs.rounded(energy.leakage(folder / "netlist.json", energy.library_of(*texts)))


def designs(activity: Path | None, widths: Sequence[int] = WIDTHS) -> list[Design]:
    """The engines of the shown presets with buses of these bytes, and the memory engines with such ports."""
    found = []
    for width in widths:
        for preset in SHOWN:
            config = replace(PRESETS[preset], bus_bytes=width)
            for part in parts(config):
                source, top = partial(jobs.source, config, part), module_name(config, part)
                driven = partial(jobs.energy_of, config, part, activity)
                found.append(Design(preset, part, width, source, top, driven))
    for preset, parameters in memory.PRESETS.items():
        source, top = partial(memory.verilog_text, parameters), memory.module_name(parameters)
        width = parameters.bus_bytes
        if width in widths:
            driven = partial(jobs.energy_of_memory_engine, parameters)
            found.append(
                Design(preset, "memory engine", width, source, top, driven, "aclk", has_memories=True)
            )
    return found


def measure_row(design: Design, libraries: Sequence[Path], activity: Path | None) -> dict[str, Any]:
    """:func:`measure` of a design, kept until something changes; of memory engines also their NAND gates."""
    texts = [liberty.read(path) for path in libraries]
    verilog, (_, node) = design.source(), node_of(texts)
    content = hashlib.sha256(activity.read_bytes()).hexdigest() if activity else ""
    key = [verilog, FLOW, gates.FLOW, energy.FLOW, *texts, content, sta.version() or ""]
    key += [traffic.FLOW] * design.has_memories
    found = jobs.cached(key, lambda folder: measure(design, verilog, texts, node, folder))
    row = {"preset": design.preset, "part": design.part, "bus_bytes": design.bus_bytes} | found
    if design.has_memories:
        row["kge"] = jobs.cached(
            [verilog, gates.FLOW, gates.measure_beside_memories.__name__],
            lambda folder: gates.measure_beside_memories(verilog, design.top, folder),
        )
    return row
