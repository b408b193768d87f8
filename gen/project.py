"""The files that a chip project takes: Verilog, lint waivers, constraints, a bench, a FuseSoC core.

Of ``x.v``: ``x.vlt`` has Verilator's waivers, one for each line; ``x.sdc`` the clock and the ports' delays;
``x_tb.sv`` a self-checking bench (:mod:`gen.testbench`); ``x.core`` names them all to FuseSoC.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from golden import Format
from rtl.stream import DELAY_MEMORY

from . import toolchain
from .config import Config, kind_of
from .flat import flat
from .testbench import bench_name, testbench
from .verilog import (
    DELAY_MEMORY_TEXT,
    Ports,
    bytes_per_cycle,
    engines_text,
    geometry,
    module_name,
    parts,
    ports,
)

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
_MEMORY_CORE = f"bitstash::{DELAY_MEMORY.removeprefix('bitstash_')}:{VERSION}"
CLOCK_NS = 10.0  # of the constraints: to be set to the project's own


# Writes a Verilog file and what stands beside it, and returns what the manifest says of it.
Writer = Callable[[Path], dict[str, Any]]

LINT = ("verilator", "--lint-only", "-Wall", "-Wno-MULTITOP")  # either engine may be the top


@dataclass(frozen=True)
class Beside:
    """What stands beside a Verilog file.

    Attributes:
        name, description: of the FuseSoC core.
        tops: the modules to be taken or linted, by what they are.
        constraints: SDC.
        bench_top, bench: the self-checking bench's module and text, if there is one.
        needs_memory: its delay lines are instances of a memory, a core of its own.
    """

    name: str
    description: str
    tops: dict[str, str]
    constraints: str
    bench_top: str = ""
    bench: str = ""
    needs_memory: bool = False


def write(config: Config, path: Path) -> dict[str, Any]:
    """Write the Verilog of a configuration and what stands beside it, lint it, and return its manifest entry.

    Raises:
        gen.toolchain.ToolError: the linter has a complaint that is not in :data:`WAIVERS`.
    """
    formats = "; ".join(
        f"{fmt.dtype}, {fmt.block} values ({fmt.raw_bytes} bytes) to {fmt.target} bytes, {kind_of(fmt)}"
        for fmt in config.formats
    )
    title = f"{config.name}: blocks of {formats}; {config.bus_bytes}-byte buses"
    tops = {part: module_name(config, part) for part in parts(config)}
    beside = Beside(
        name=config.name,
        description="Activation compression in hardware: compressor and decompressor",
        tops=tops,
        bench_top=bench_name(config),
        bench=testbench(config),
        constraints=constraints(**{part: ports(config, part) for part in tops}),
        needs_memory=config.memories,
    )
    write_beside(path, title, engines_text(config), beside)
    return manifest_entry(config, path)


def write_beside(path: Path, title: str, text: str, beside: Beside) -> None:
    """Write Verilog and what stands beside it, and lint it; see :func:`write`."""
    write_verilog(path, title, text, (_write_memory(path.parent),) if beside.needs_memory else ())
    sdc = _header("#", f"constraints of {path.name}") + beside.constraints
    path.with_suffix(".sdc").write_text(sdc)
    if beside.bench:
        bench = path.with_name(f"{path.stem}_tb.sv")
        bench.write_text(_header("//", f"self-checking bench of {path.name}") + beside.bench)
    path.with_suffix(".core").write_text("CAPI=2:\n" + _header("#", f"of {path.name}") + core(beside, path))


def _write_memory(folder: Path) -> Path:
    """Write the module of delay memories and its core, which engines of one project have in common."""
    path, about = folder / f"{DELAY_MEMORY}.v", "delay memory, to be replaced by a macro"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(_header("//", about) + DELAY_MEMORY_TEXT)
    path.with_suffix(".core").write_text(f"""CAPI=2:
{_header("#", f"of {path.name}")}name: "{_MEMORY_CORE}"
description: "{about.capitalize()}"

filesets:
  rtl:
    files: [{path.name}]
    file_type: verilogSource

targets:
  default:
    filesets: [rtl]
""")
    return path


def write_verilog(path: Path, title: str, text: str, others: tuple[Path, ...] = ()) -> None:
    """Write modules with plain names and their waivers, and lint them, with other files that they need.

    Raises:
        gen.toolchain.ToolError: the linter has a complaint that is not in :data:`WAIVERS`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_header("//", title) + flat(text))
    path.with_suffix(".vlt").write_text(_header("//", f"lint waivers of {path.name}") + waivers(path, others))
    lint(path, others)


def _header(comment: str, title: str) -> str:
    return f"{comment} {LICENSE}\n{comment} bitstash {VERSION}, {title}\n"


def waivers(path: Path, others: tuple[Path, ...] = ()) -> str:
    """Waivers of the warnings that a Verilog file may give: each line's is its own."""
    command = [*LINT, str(path), *map(str, others)]
    done = subprocess.run(command, env=toolchain.environment(), capture_output=True, text=True, check=False)
    text = "`verilator_config\n"
    for rule, reason in WAIVERS.items():
        warning = rf"^%Warning-{rule}: [^\n]*?{re.escape(path.name)}:(\d+):\d+:"
        found = re.findall(warning, done.stderr, re.MULTILINE)
        if found:
            text += f"\n// {reason}\n"
        for line in sorted(set(map(int, found))):
            text += f'lint_off -rule {rule} -file "*{path.name}" -lines {line}\n'
    return text


def lint(path: Path, others: tuple[Path, ...] = ()) -> None:
    """``verilator --lint-only -Wall`` with the waivers beside the file."""
    toolchain.run([*LINT, str(path.with_suffix(".vlt")), str(path), *map(str, others)])


def constraints(**tops: Ports) -> str:
    """An SDC file: one clock, and a quarter of its period for what is outside of the ports.

    Args:
        tops: the modules that it is for, of which one is taken: the ports of each, by its name.
    """
    first, *others = tops.values()
    shared = {name: port for name, port in first.items() if all(name in other for other in others)}
    clock = "aclk" if "aclk" in shared else "clk"
    del shared[clock]
    text = f"set period {CLOCK_NS}\ncreate_clock -name {clock} -period $period [get_ports {clock}]\n"
    text += delays(clock, "period", shared)
    for top, its_ports in tops.items():
        if own := {name: its_ports[name] for name in its_ports if name not in (clock, *shared)}:
            text += f"# Of the {top} alone.\n" + delays(clock, "period", own)
    return text


def delays(clock: str, period: str, some: Ports) -> str:
    """SDC of what is outside of some ports: a quarter of their clock's period, which a variable has.

    Ports have their names, a bus a star for its bits: tools differ in how to leave a clock out of all inputs.
    """
    text = ""
    for direction in ("input", "output"):
        chosen = [name for name, port in some.items() if port["direction"] == direction]
        names = " ".join(f"{name}*" if some[name]["width"] > 1 else name for name in chosen)
        if names:
            text += f"set_{direction}_delay -clock {clock} [expr ${period} / 4] [get_ports {{{names}}}]\n"
    return text


def core(beside: Beside, path: Path) -> str:
    """A FuseSoC core: its modules to be taken or linted and, if there is one, the bench to be run."""
    name = re.sub(r"\W", "_", beside.name)
    depend = f'\n    depend: ["{_MEMORY_CORE}"]' if beside.needs_memory else ""
    lints = "".join(
        f"""
  lint_{part}:
    description: Verilator's linter on the {part}
    filesets: [rtl, waivers]
    toplevel: {top}
    flow: lint
    flow_options: {{tool: verilator, verilator_options: [-Wall, -Wno-MULTITOP]}}
"""
        for part, top in beside.tops.items()
    )
    files_of_bench, run = "", ""
    if beside.bench:
        files_of_bench = f"""
  bench:
    files: [{path.stem}_tb.sv]
    file_type: systemVerilogSource"""
        run = f"""
  sim:
    description: The bench
    filesets: [rtl, waivers, bench]
    toplevel: {beside.bench_top}
    flow: sim
    flow_options:
      tool: verilator
      mode: binary
      verilator_options: [--timing, -Wno-fatal, -CFLAGS, -std=c++20]
"""
    return f"""name: "bitstash::{name}:{VERSION}"
description: "{beside.description}"

filesets:
  rtl:
    files: [{path.name}]
    file_type: verilogSource{depend}
  constraints:
    files: [{path.stem}.sdc]
    file_type: SDC
  waivers:
    files: [{path.stem}.vlt]
    file_type: vlt{files_of_bench}

targets:
  default:
    filesets: [rtl, "is_toplevel? (constraints)", "tool_verilator? (waivers)"]
{lints}{run}"""


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
            "memories": config.memories,
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
    """A format's entry in the manifest."""
    return {
        **asdict(fmt),
        "raw_bytes": fmt.raw_bytes,
        "ratio": fmt.raw_bytes / fmt.target if fmt.target else None,
    }


def writers(configs: Iterable[Config]) -> list[tuple[str, Writer]]:
    """The files of configurations, for :func:`write_all`."""
    return [(f"{config.name}.v", partial(write, config)) for config in configs]


def write_all(folder: Path, **sections: Iterable[tuple[str, Writer]]) -> Path:
    """Write Verilog files and a manifest of all; return the manifest's path.

    Args:
        folder: where.
        sections: of the manifest: the name of each file, and what writes it; see :data:`Writer`.
    """
    found = {
        section: [writer(folder / name) for name, writer in files] for section, files in sections.items()
    }
    lint_note = {"command": " ".join(LINT), "waivers": WAIVERS}
    manifest = folder / "manifest.json"
    manifest.write_text(json.dumps({"version": VERSION, "lint": lint_note, **found}, indent=2) + "\n")
    return manifest
