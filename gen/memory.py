"""Memory engines as files: Verilog, waivers, constraints, a FuseSoC core, and the manifest's entry."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

from golden import HadamardFormat, PlaneFormat
from rtl import DECOMPRESSORS, core_of
from rtl.memory import MemoryEngine, MemoryParameters

from . import project, verilog
from .config import format_slugs
from .sizes import SIZES, default

_GPT2 = (PlaneFormat("fp32", block=64, target=80), HadamardFormat("fp32", block=128, target=32))

# 3.2x and 16x in one engine, behind a memory as wide as the port and behind one a quarter as wide.
PRESETS = {
    f"gpt2-fp32-memory-{memory_bytes}": MemoryParameters(formats=_GPT2, memory_bytes=memory_bytes)
    for memory_bytes in (64, 16)
}

# What a read adds, in cycles: a word in bypass; a block, beside its decompressor. The benches hold both.
_BYPASS_LATENCY, _FORMAT_LATENCY = 3, 4


def slug(parameters: MemoryParameters) -> str:
    """The parameters as part of a Verilog or file name; sizes if they are not those by default."""
    widths = [f"b{parameters.bus_bytes}", f"m{parameters.memory_bytes}"]
    sizes = {name: getattr(parameters, name) for name in SIZES}
    others = [f"{name}{size}" for name, size in sizes.items() if size != default(name)]
    merging = ["merging"] * parameters.merging
    return "_".join(["memory", *format_slugs(parameters.formats), *widths, *others, *merging])


def name_of(parameters: MemoryParameters) -> str:
    """The preset's, or the slug."""
    return next((name for name, preset in PRESETS.items() if preset == parameters), slug(parameters))


def module_name(parameters: MemoryParameters) -> str:
    return f"bitstash_{slug(parameters)}"


def verilog_text(parameters: MemoryParameters) -> str:
    """Self-contained Verilog of an engine."""
    return _text_and_ports(parameters)[0]


def readable_text(parameters: MemoryParameters) -> str:
    """The same for people to read."""
    return verilog.convert_readable(MemoryEngine(parameters), module_name(parameters))


@cache
def _text_and_ports(parameters: MemoryParameters) -> tuple[str, verilog.Ports]:
    engine = MemoryEngine(parameters)
    return verilog.convert(engine, module_name(parameters)), verilog.describe_ports(engine)


def write(parameters: MemoryParameters, path: Path) -> dict[str, Any]:
    """Write the Verilog of an engine and what stands beside it, lint it, and return its manifest entry.

    Raises:
        ValueError: there is no such engine.
        gen.toolchain.ToolError: the linter has a complaint that is not in :data:`gen.project.WAIVERS`.
    """
    formats = "; ".join(
        [
            "bypass",
            *(f"{f.scheme} {f.dtype}, {f.original_bytes} to {f.target} bytes" for f in parameters.formats),
        ]
    )
    width = f"{parameters.bus_bytes}-byte port, {parameters.memory_bytes}-byte memory"
    beside = project.Beside(
        name=name_of(parameters),
        description="Memory engine: plain values at plain AXI4 addresses, compressed in memory",
        tops={"memory": module_name(parameters)},
        constraints=project.constraints(engine=_text_and_ports(parameters)[1]),
    )
    project.write_beside(path, f"memory engine: {formats}; {width}", readable_text(parameters), beside)
    return manifest_entry(parameters, path)


def manifest_entry(parameters: MemoryParameters, path: Path) -> dict[str, Any]:
    """What an integrator needs to know of an engine."""
    sizes = {name: value for name, value in asdict(parameters).items() if name != "formats"}
    engine = {
        "module": module_name(parameters),
        "ports": _text_and_ports(parameters)[1],
        "uncompressed_bytes_per_cycle": bytes_per_cycle(parameters),
        "latency_cycles": read_latency(parameters),
    }
    return {
        "name": name_of(parameters),
        "file": path.name,
        "parameters": {**sizes, "interface": "memory"},
        "formats": [project.of_format(fmt) for fmt in parameters.formats],
        "engines": {"memory": engine},
    }


def bytes_per_cycle(parameters: MemoryParameters) -> list[float]:
    """At the port, each way, by the number of the format, bypass first: what port, codec and memory allow."""
    rates: list[float] = [parameters.memory_bytes]
    for fmt in parameters.formats:
        datapath = core_of(DECOMPRESSORS, fmt).geometry(fmt, parameters.bus_bytes).bytes_as(fmt.float_type)
        assert fmt.target
        rates.append(
            min(parameters.bus_bytes, datapath, parameters.memory_bytes * fmt.original_bytes / fmt.target)
        )
    return rates


def read_latency(parameters: MemoryParameters) -> list[int]:
    """Cycles that a read of one block adds to the memory's own, by the number of the format, bypass first."""
    cores = ((core_of(DECOMPRESSORS, fmt), fmt) for fmt in parameters.formats)
    added = [core.latency(core.geometry(fmt, parameters.bus_bytes)) for core, fmt in cores]
    return [_BYPASS_LATENCY, *(_FORMAT_LATENCY + cycles for cycles in added)]


def writers() -> list[tuple[str, project.Writer]]:
    """The files of the presets, for :func:`gen.project.write_all`."""
    return [(f"{name}.v", partial(write, parameters)) for name, parameters in PRESETS.items()]
