"""Verilog from the Amaranth components, checked by Verilator's linter, with a manifest of what it holds."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import amaranth
from amaranth.back import verilog

from rtl import Compressor, Decompressor, Engine

from . import toolchain
from .config import Config

# Verilator warnings that generated code may give, each with the reason. Every other one is an error.
WAIVERS = {
    "DECLFILENAME": "one file holds both engines and all their submodules",
    "UNUSEDSIGNAL": "a struct's fields are named as signals of their own, also where only the whole is used",
    "PROCASSINIT": "registers have an initial value, for FPGAs and simulators, besides their reset",
    "CASEINCOMPLETE": "a case without a default keeps the value assigned before it",
    "WIDTHEXPAND": "Amaranth's operators widen their operands as far as the result needs",
    "WIDTHTRUNC": "Yosys writes 'no bit is set' as !vector; Amaranth truncates only where told to",
}

PARTS: dict[str, type[Compressor] | type[Decompressor]] = {
    "compressor": Compressor,
    "decompressor": Decompressor,
}


def module_name(config: Config, part: str) -> str:
    """The top module of a part: "compressor" or "decompressor"."""
    return f"bitstash_{part}_{config.slug}"


def verilog_text(config: Config) -> str:
    """Self-contained Verilog of both engines of a configuration."""
    modules = [
        verilog.convert(
            PARTS[part](config.fmt, config.bus_bytes), name=module_name(config, part), emit_src=False
        )
        for part in PARTS
    ]
    fmt = config.fmt
    title = f"bitstash {config.name}: {fmt.dtype}, blocks of {fmt.block} values ({fmt.raw_bytes} bytes) to "
    return f"// {title}{fmt.target} bytes, {fmt.rounding}, {config.bus_bytes}-byte buses\n" + "\n".join(
        modules
    )


def digest(config: Config) -> str:
    """Changes whenever the Verilog of a configuration may: what is built from it can be kept until then."""
    root = Path(__file__).resolve().parent.parent
    sources = sorted(path for room in ("golden", "rtl", "gen") for path in (root / room).iterdir())
    text = [repr(config), amaranth.__version__, *(path.read_text() for path in sources if path.is_file())]
    return hashlib.sha256("\0".join(text).encode()).hexdigest()


def write(config: Config, path: Path) -> None:
    """Write the Verilog of a configuration and lint it.

    Raises:
        gen.toolchain.ToolError: the linter has a complaint that is not in :data:`WAIVERS`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(verilog_text(config))
    for part in PARTS:
        lint(path, module_name(config, part))


def lint(path: Path, top: str) -> None:
    """``verilator --lint-only -Wall`` with nothing but :data:`WAIVERS` allowed."""
    waivers = [f"-Wno-{name}" for name in WAIVERS]
    toolchain.run(["verilator", "--lint-only", "-Wall", *waivers, "--top-module", top, str(path)])


def manifest_entry(config: Config, path: Path) -> dict[str, Any]:
    """What an integrator needs to know of a configuration's engines."""
    fmt = config.fmt
    raw, target, bus = fmt.raw_bytes, fmt.target, config.bus_bytes
    engine = Engine(fmt, bus)
    return {
        "name": config.name,
        "file": path.name,
        "parameters": {
            "dtype": fmt.dtype,
            "block": fmt.block,
            "target": target,
            "rounding": fmt.rounding,
            "bus_bytes": bus,
            "raw_bytes": raw,
            "ratio": fmt.raw_bytes / target if target else None,
        },
        "engines": {
            part: {
                "module": module_name(config, part),
                "ports": _ports(bus, error=part == "decompressor"),
                "uncompressed_bytes_per_cycle": engine.word_bytes,
                "latency_cycles": PARTS[part].latency(engine),
            }
            for part in PARTS
        },
    }


def _ports(bus: int, *, error: bool) -> dict[str, dict[str, Any]]:
    flags = {"last": f"[{8 * bus}]"}
    out_flags = flags | ({"error": f"[{8 * bus + 1}]"} if error else {})

    def payload(direction: str, flags: dict[str, str]) -> dict[str, Any]:
        fields = {"data": f"[{8 * bus - 1}:0]", **flags}
        return {"direction": direction, "width": 8 * bus + len(flags), "fields": fields}

    def bit(direction: str) -> dict[str, Any]:
        return {"direction": direction, "width": 1}

    return {
        "clk": bit("input"),
        "rst": bit("input") | {"note": "synchronous, active high"},
        "i__payload": payload("input", flags),
        "i__valid": bit("input"),
        "i__ready": bit("output"),
        "o__payload": payload("output", out_flags),
        "o__valid": bit("output"),
        "o__ready": bit("input"),
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
