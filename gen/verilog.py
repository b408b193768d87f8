"""Verilog from the Amaranth components, checked by Verilator's linter, with a manifest of what it holds."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import amaranth
from amaranth import Shape
from amaranth.back import verilog
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In

from golden import Format
from rtl import (
    COMPRESSORS,
    DECOMPRESSORS,
    AxiStreamCompressor,
    AxiStreamDecompressor,
    Engine,
    RuntimeCompressor,
    RuntimeDecompressor,
    core_of,
)

from . import toolchain
from .config import Config, kind_of

# Verilator warnings that generated code may give, each with the reason. Every other one is an error.
WAIVERS = {
    "DECLFILENAME": "one file holds both engines and all their submodules",
    "UNUSEDSIGNAL": "a struct's fields are named as signals of their own, also where only the whole is used",
    "PROCASSINIT": "registers have an initial value, for FPGAs and simulators, besides their reset",
    "CASEINCOMPLETE": "a case without a default keeps the value assigned before it",
    "WIDTHEXPAND": "Amaranth's operators widen their operands as far as the result needs",
    "WIDTHTRUNC": "Yosys writes 'no bit is set' as !vector; Amaranth truncates only where told to",
}

# What stands around an engine, by interface and part.
PORTS: dict[str, dict[str, Any]] = {
    "axi": {"compressor": AxiStreamCompressor, "decompressor": AxiStreamDecompressor},
    "runtime": {"compressor": RuntimeCompressor, "decompressor": RuntimeDecompressor},
}


def parts(config: Config) -> dict[str, Any]:
    """The engines of a configuration's format behind whatever interface, by what they are."""
    return {
        "compressor": core_of(COMPRESSORS, config.fmt),
        "decompressor": core_of(DECOMPRESSORS, config.fmt),
    }


def geometry(config: Config) -> Engine:
    """How the engines of a configuration cut blocks into words."""
    return parts(config)["compressor"].geometry(config.formats, config.bus_bytes)


def make_component(config: Config, part: str) -> wiring.Component:
    """A part of a configuration, with the ports of its interface."""
    engine = PORTS.get(config.interface, parts(config))[part]
    return engine(config.formats if config.interface == "runtime" else config.fmt, config.bus_bytes)


def module_name(config: Config, part: str) -> str:
    """The top module of a part: "compressor" or "decompressor"."""
    return f"bitstash_{part}_{config.slug}"


def verilog_text(config: Config) -> str:
    """Self-contained Verilog of all engines of a configuration."""
    modules = [_text_and_ports(config, part)[0] for part in parts(config)]
    formats = [
        f"{fmt.dtype}, {fmt.block} values ({fmt.raw_bytes} bytes) to {fmt.target} bytes, {kind_of(fmt)}"
        for fmt in config.formats
    ]
    title = f"// bitstash {config.name}: blocks of {'; '.join(formats)}; {config.bus_bytes}-byte buses"
    return "\n".join([title, *modules])


@cache
def _text_and_ports(config: Config, part: str) -> tuple[str, dict[str, dict[str, Any]]]:
    """A part's modules, and what an integrator needs to know of the top one's ports."""
    component = make_component(config, part)
    return convert(component, module_name(config, part)), _ports(component)


def ports(config: Config, part: str) -> dict[str, dict[str, Any]]:
    """The ports of a part's top module: direction, width, and of a payload where each of its fields lies."""
    return _text_and_ports(config, part)[1]


def convert(component: wiring.Component, top: str) -> str:
    """Verilog of a component and all that is in it."""
    return verilog.convert(component, name=top, emit_src=False)


def _ports(component: wiring.Component) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for path, member, _ in component.signature.flatten(component):
        port: dict[str, Any] = {"direction": "input" if member.flow == In else "output"}
        port["width"] = Shape.cast(member.shape).width
        if isinstance(member.shape, data.Layout):
            port["fields"] = {}
            for name, field in member.shape:
                low, high = field.offset, field.offset + field.width - 1
                port["fields"][name] = f"[{high}:{low}]" if high > low else f"[{low}]"
        found["__".join(map(str, path))] = port
    if "aresetn" in found:
        found["aresetn"]["note"] = "synchronous, active low"
        return found
    clock = {"direction": "input", "width": 1}
    return {"clk": clock, "rst": clock | {"note": "synchronous, active high"}} | found


def digest(config: object) -> str:
    """Changes whenever the Verilog of a configuration may: what is built from it can be kept until then."""
    root = Path(__file__).resolve().parent.parent
    rooms = [root / room for room in ("golden", "rtl", "gen")]
    sources = sorted(path for room in rooms for kind in ("*.py", "*.cpp") for path in room.rglob(kind))
    text = [repr(config), amaranth.__version__, *(path.read_text() for path in sources)]
    return hashlib.sha256("\0".join(text).encode()).hexdigest()


def write(config: Config, path: Path) -> None:
    """Write the Verilog of a configuration and lint it.

    Raises:
        gen.toolchain.ToolError: the linter has a complaint that is not in :data:`WAIVERS`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(verilog_text(config))
    for part in parts(config):
        lint(path, module_name(config, part))


def lint(path: Path, top: str) -> None:
    """``verilator --lint-only -Wall`` with nothing but :data:`WAIVERS` allowed."""
    waivers = [f"-Wno-{name}" for name in WAIVERS]
    toolchain.run(["verilator", "--lint-only", "-Wall", *waivers, "--top-module", top, str(path)])


def bytes_per_cycle(config: Config) -> int:
    """Uncompressed bytes that an engine takes or gives in a cycle, in the slowest of its formats."""
    engine = geometry(config)
    return min(config.bus_bytes, *(engine.bytes_as(float_type) for float_type in engine.types))


def manifest_entry(config: Config, path: Path) -> dict[str, Any]:
    """What an integrator needs to know of a configuration's engines."""
    bus = config.bus_bytes
    engine = geometry(config)
    return {
        "name": config.name,
        "file": path.name,
        "parameters": {
            **_parameters(config.fmt),
            "bus_bytes": bus,
            "interface": config.interface,
        },
        **({"formats": [_parameters(fmt) for fmt in config.formats]} if config.further else {}),
        "engines": {
            part: {
                "module": module_name(config, part),
                "ports": ports(config, part),
                "uncompressed_bytes_per_cycle": bytes_per_cycle(config),
                "latency_cycles": component.latency(engine),
            }
            for part, component in parts(config).items()
        },
    }


def _parameters(fmt: Format) -> dict[str, Any]:
    return {
        **asdict(fmt),
        "raw_bytes": fmt.raw_bytes,
        "ratio": fmt.raw_bytes / fmt.target if fmt.target else None,
    }


def write_presets(configs: list[Config], folder: Path) -> Path:
    """Write each configuration's Verilog and a manifest of all; return the manifest's path."""
    entries = []
    for config in configs:
        path = folder / f"{config.name}.v"
        write(config, path)
        entries.append(manifest_entry(config, path))
    manifest = folder / "manifest.json"
    lint_note = {"command": "verilator --lint-only -Wall", "waivers": WAIVERS}
    manifest.write_text(json.dumps({"lint": lint_note, "configs": entries}, indent=2) + "\n")
    return manifest
