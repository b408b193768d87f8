"""The files that a chip project takes: Verilog, lint waivers, constraints, a bench, a FuseSoC core.

Of ``x.v``: ``x.vlt`` has Verilator's waivers, one for each line; ``x.sdc`` the clock and the ports' delays;
``x_tb.sv`` a self-checking bench (:mod:`gen.testbench`); ``x.core`` names them all to FuseSoC.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from golden import Format

from . import toolchain
from .config import Config, kind_of
from .flat import flat
from .testbench import bench_name, testbench
from .verilog import bytes_per_cycle, geometry, module_name, parts, ports, verilog_text

VERSION = version("bitstash")
LICENSE = "SPDX-License-Identifier: Apache-2.0"

# Verilator warnings that generated code may give, each with the reason. Every other one is an error.
WAIVERS = {
    "DECLFILENAME": "one file holds both engines and all their submodules",
    "UNUSEDSIGNAL": "bits of a struct that go with the others, where only these are used",
    "PROCASSINIT": "registers have an initial value, for FPGAs and simulators, besides their reset",
    "CASEINCOMPLETE": "a case without a default keeps the value assigned before it",
    "WIDTHEXPAND": "Amaranth's operators widen their operands as far as the result needs",
    "WIDTHTRUNC": "Yosys writes 'no bit is set' as !vector; Amaranth truncates only where told to",
}
CLOCK_NS = 10.0  # of the constraints: to be set to the project's own


LINT = ("verilator", "--lint-only", "-Wall", "-Wno-MULTITOP")  # either engine may be the top


def write(config: Config, path: Path) -> None:
    """Write the Verilog of a configuration and what stands beside it, and lint it.

    Raises:
        gen.toolchain.ToolError: the linter has a complaint that is not in :data:`WAIVERS`.
    """
    formats = "; ".join(
        f"{fmt.dtype}, {fmt.block} values ({fmt.raw_bytes} bytes) to {fmt.target} bytes, {kind_of(fmt)}"
        for fmt in config.formats
    )
    title = f"{config.name}: blocks of {formats}; {config.bus_bytes}-byte buses"
    write_verilog(path, title, verilog_text(config))
    modules = {part: module_name(config, part) for part in parts(config)}
    write_constraints(path, "aclk" if "aclk" in ports(config, next(iter(modules))) else "clk")
    bench = path.with_name(f"{path.stem}_tb.sv")
    bench.write_text(_header("//", f"self-checking bench of {path.name}") + testbench(config))
    about = "Activation compression in hardware: compressor and decompressor"
    write_core(path, config.name, about, modules, bench_name(config))


def write_verilog(path: Path, title: str, text: str) -> None:
    """Write modules with plain names and their waivers, and lint them.

    Raises:
        gen.toolchain.ToolError: the linter has a complaint that is not in :data:`WAIVERS`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_header("//", title) + flat(text))
    path.with_suffix(".vlt").write_text(_header("//", f"lint waivers of {path.name}") + waivers(path))
    lint(path)


def _header(comment: str, title: str) -> str:
    return f"{comment} {LICENSE}\n{comment} bitstash {VERSION}, {title}\n"


def waivers(path: Path) -> str:
    """Waivers of the warnings that a Verilog file may give: each line's is its own."""
    done = subprocess.run(
        [*LINT, str(path)], env=toolchain.environment(), capture_output=True, text=True, check=False
    )
    text = "`verilator_config\n"
    for rule, reason in WAIVERS.items():
        found = re.findall(rf"^%Warning-{rule}: [^\n]*?:(\d+):\d+:", done.stderr, re.MULTILINE)
        if found:
            text += f"\n// {reason}\n"
        for line in sorted(set(map(int, found))):
            text += f'lint_off -rule {rule} -file "*{path.name}" -lines {line}\n'
    return text


def lint(path: Path) -> None:
    """``verilator --lint-only -Wall`` with the waivers beside the file."""
    toolchain.run([*LINT, str(path.with_suffix(".vlt")), str(path)])


def write_constraints(path: Path, clock: str) -> None:
    """Write an SDC file: one clock, and a quarter of its period for what is outside of the ports."""
    text = f"""set period {CLOCK_NS}
create_clock -name {clock} -period $period [get_ports {clock}]
set_input_delay -clock {clock} [expr $period / 4] [remove_from_collection [all_inputs] [get_ports {clock}]]
set_output_delay -clock {clock} [expr $period / 4] [all_outputs]
"""
    path.with_suffix(".sdc").write_text(_header("#", f"constraints of {path.name}") + text)


def write_core(path: Path, name: str, about: str, modules: dict[str, str], bench: str | None = None) -> None:
    """Write a FuseSoC core: each module to be taken or linted and, if there is one, the bench to be run.

    Args:
        path: of the Verilog.
        name, about: what FuseSoC calls it, and says of it.
        modules: those that can be the top, by what they are.
        bench: the top module of the bench beside it.
    """
    lints = "".join(
        f"""
  lint_{part}:
    description: Verilator's linter on the {part}
    filesets: [rtl, waivers]
    toplevel: {module}
    flow: lint
    flow_options: {{tool: verilator, verilator_options: [-Wall, -Wno-MULTITOP]}}
"""
        for part, module in modules.items()
    )
    files, run = "", ""
    if bench:
        files = f"""
  bench:
    files: [{path.stem}_tb.sv]
    file_type: systemVerilogSource"""
        run = f"""
  sim:
    description: Both engines against words of the golden model
    filesets: [rtl, waivers, bench]
    toplevel: {bench}
    flow: sim
    flow_options:
      tool: verilator
      mode: binary
      verilator_options: [--timing, -Wno-fatal, -CFLAGS, -std=c++20]
"""
    plain = re.sub(r"\W", "_", name)
    text = f"""name: "bitstash::{plain}:{VERSION}"
description: "{about}"

filesets:
  rtl:
    files: [{path.name}]
    file_type: verilogSource
  constraints:
    files: [{path.stem}.sdc]
    file_type: SDC
  waivers:
    files: [{path.stem}.vlt]
    file_type: vlt{files}

targets:
  default:
    filesets: [rtl, constraints]
{lints}{run}"""
    path.with_suffix(".core").write_text("CAPI=2:\n" + _header("#", f"of {path.name}") + text)


def manifest_entry(config: Config, path: Path) -> dict[str, Any]:
    """What an integrator needs to know of a configuration's engines."""
    bus = config.bus_bytes
    engine = geometry(config)
    return {
        "name": config.name,
        "file": path.name,
        "parameters": {
            **of_format(config.fmt),
            "bus_bytes": bus,
            "interface": config.interface,
        },
        **({"formats": [of_format(fmt) for fmt in config.formats]} if config.further else {}),
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


def of_format(fmt: Format) -> dict[str, Any]:
    """A format's parameters, the bytes of its raw blocks, and its ratio."""
    return {
        **asdict(fmt),
        "raw_bytes": fmt.raw_bytes,
        "ratio": fmt.raw_bytes / fmt.target if fmt.target else None,
    }


def write_presets(configs: list[Config], folder: Path, others: Sequence[dict[str, Any]] = ()) -> Path:
    """Write each configuration's files and a manifest of all; return the manifest's path.

    Args:
        others: entries of what is in the folder besides.
    """
    entries = []
    for config in configs:
        path = folder / f"{config.name}.v"
        write(config, path)
        entries.append(manifest_entry(config, path))
    manifest = folder / "manifest.json"
    lint_note = {"command": " ".join(LINT), "waivers": WAIVERS}
    manifest.write_text(
        json.dumps({"version": VERSION, "lint": lint_note, "configs": [*entries, *others]}, indent=2) + "\n"
    )
    return manifest
