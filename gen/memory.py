"""Memory engines as files: Verilog, waivers, constraints, a FuseSoC core, and the manifest's entry."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from golden import HadamardFormat, PlaneFormat
from rtl.memory import MemoryEngine, MemoryParameters

from . import project, verilog
from .config import format_slugs

_GPT2 = (PlaneFormat("fp32", block=64, target=80), HadamardFormat("fp32", block=128, target=32))

# 3.2x and 16x in one engine, behind a memory as wide as the port and behind one a quarter as wide.
PRESETS = {
    f"gpt2-fp32-memory-{memory_bytes}": MemoryParameters(formats=_GPT2, memory_bytes=memory_bytes)
    for memory_bytes in (64, 16)
}


def slug(parameters: MemoryParameters) -> str:
    """The parameters as part of a Verilog or file name."""
    widths = [f"b{parameters.bus_bytes}", f"m{parameters.memory_bytes}"]
    return "_".join(["memory", *format_slugs(parameters.formats), *widths, *["merging"] * parameters.merging])


def module_name(parameters: MemoryParameters) -> str:
    return f"bitstash_{slug(parameters)}"


def verilog_text(parameters: MemoryParameters) -> str:
    """Self-contained Verilog of an engine."""
    return verilog.convert(MemoryEngine(parameters), module_name(parameters))


def write(parameters: MemoryParameters, path: Path) -> dict[str, Any]:
    """Write the Verilog of an engine and what stands beside it, lint it, and return its manifest entry.

    Raises:
        ValueError: there is no such engine.
        gen.toolchain.ToolError: the linter has a complaint that is not in :data:`gen.project.WAIVERS`.
    """
    formats = "; ".join(
        ["bypass", *(f"{f.scheme} {f.dtype}, {f.raw_bytes} to {f.target} bytes" for f in parameters.formats)]
    )
    width = f"{parameters.bus_bytes}-byte port, {parameters.memory_bytes}-byte memory"
    beside = project.Beside(
        name=slug(parameters),
        description="Memory engine: plain values at plain AXI4 addresses, compressed in memory",
        tops={"memory": module_name(parameters)},
        constraints=project.constraints("aclk"),
    )
    project.write_beside(path, f"memory engine: {formats}; {width}", verilog_text(parameters), beside)
    return manifest_entry(parameters, path)


def manifest_entry(parameters: MemoryParameters, path: Path) -> dict[str, Any]:
    """What an integrator needs to know of an engine."""
    sizes = {name: value for name, value in asdict(parameters).items() if name != "formats"}
    engine = {
        "module": module_name(parameters),
        "ports": verilog.describe_ports(MemoryEngine(parameters)),
        "uncompressed_bytes_per_cycle": parameters.bus_bytes,
    }
    return {
        "name": path.stem,
        "file": path.name,
        "parameters": {**sizes, "interface": "memory"},
        "formats": [project.of_format(fmt) for fmt in parameters.formats],
        "engines": {"memory": engine},
    }


def writers() -> list[tuple[str, project.Writer]]:
    """The files of the presets, for :func:`gen.project.write_all`."""
    return [(f"{name}.v", partial(write, parameters)) for name, parameters in PRESETS.items()]
