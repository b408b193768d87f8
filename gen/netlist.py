"""What Yosys makes of an engine for the benches: its gates, and mutants of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

from amaranth.back import rtlil

from . import aiger
from .config import Config
from .toolchain import run
from .verilog import make_component, module_name, named_ports, verilog_text
from .yosys import run_yosys

# Not imported: its compiled part and matplotlib's do not get along in one process.
_PYOSYS = Path(str(distribution("pyosys").locate_file("pyosys")))
SIMULATION_CELLS = _PYOSYS / "share" / "simcells.v"
ABC = _PYOSYS / "yosys-abc"
_ROOT = Path(__file__).resolve().parent.parent


def write_gates(config: Config, part: str, path: Path) -> None:
    """Synthesise an engine to gates and flip-flops, instances of :data:`SIMULATION_CELLS`.

    No flip-flop has an initial value: what a reset does not set starts unknown.

    Args:
        config, part: which engine: "compressor" or "decompressor".
        path: of the Verilog netlist; its source and Yosys' log are left beside it.
    """
    source = path.with_suffix(".rtl.v")
    source.write_text(verilog_text(config, part))
    commands = [
        f"read_verilog {source}",
        f"synth -flatten -top {module_name(config, part)}",
        "setattr -unset init w:*",
        "opt_clean -purge",
        # Else flip-flops are called after what they drive, and a[1] is a bit of one wire, and another wire.
        "rename -enumerate -pattern cell% t:$_*",
        f"write_verilog -noattr -noexpr {path}",
    ]
    run_yosys(commands, path.with_suffix(".log"))


def variable_bits(source: Path, top: str, signals: Sequence[str]) -> set[tuple[str, int]]:
    """The bits of an engine's signals but for those that provably never change, as name and bit.

    ABC's sequential sweep proves this by induction over all nodes at once, from the initial values on.

    Args:
        source: Verilog of an engine; what the tools write is left beside it.
        top: its top module.
        signals: hierarchical names, the submodules before the signal's own.
    """
    base = source.with_name("constants")
    selection, names, before, after = (
        base.with_suffix(suffix) for suffix in (".selection", ".names", ".aig", ".swept.aig")
    )
    selection.write_text("".join(f"{top}/{signal}\n" for signal in signals))
    commands = [
        f"read_verilog {source}",
        *(f"hierarchy -top {top}", "proc -norom", "flatten"),  # AIGER has no memories
        *(f"select -read {selection}", f"select -assert-count {len(signals)} %", "expose", "select -clear"),
        *("opt -noff", "simplemap", "techmap", "opt -noff", "dfflegalize -cell $_DFF_P_ 0"),
        *("setundef -zero -undriven", "aigmap", "opt_clean -purge"),
        f"write_aiger -vmap {names} {before}",
    ]
    run_yosys(commands, base.with_suffix(".log"))
    sweep = f"read_aiger {before}; strash; scorr; write_aiger {after}"
    run([str(ABC), "-q", sweep], base.with_suffix(".abc.log"))
    is_constant = [literal < 2 for literal in aiger.read(after).outputs]
    # What Yosys itself finds to be constant has no name in its list.
    found = re.findall(r"^output (\d+) (\d+) (\S+)", names.read_text(), re.M)
    return {(name, int(bit)) for index, bit, name in found if not is_constant[int(index)]}


@dataclass(frozen=True)
class Mutant:
    """One small fault in an engine.

    Attributes:
        number: value of the input ``mutant`` that turns it on; with 0 none is.
        mode: what happens to the bit: ``inv`` inverts it, ``const0`` and ``const1`` tie it, ``cnot0`` and
            ``cnot1`` invert it while another bit of the port is 0 or 1.
        cell: its name behind those of the submodules it lies in; "$auto$..." if Yosys made it of others.
        port: the cell's port and bit, and for ``cnot`` the other bit.
        wire: the wire and bit it drives or reads, where that has a name.
        source: lines of rtl/ that the cell comes from, if Yosys did not make it of others.
    """

    number: int
    mode: str
    cell: str
    port: str
    wire: str
    source: str


def write_mutants(config: Config, part: str, path: Path, count: int, seed: int) -> list[Mutant]:
    """Write one Verilog model with ``count`` mutants of an engine, of which the input ``mutant`` selects one.

    The faults sit in the engine's operators and registers, spread evenly over them by Yosys' ``mutate``.

    Args:
        config, part: which engine: "compressor" or "decompressor".
        path: of the model; what it is made from and Yosys' log are left beside it.
        seed: of the choice.
    """
    source, base, script = (path.with_suffix(suffix) for suffix in (".source.il", ".il", ".mutations"))
    top = module_name(config, part)
    source.write_text(_with_lines_of_switches(_rtlil(config, part, top)))
    commands = [
        f"read_rtlil {source}",
        f"hierarchy -top {top}",
        # A table stays logic: a fault in a memory's contents could not be selected.
        *("proc -norom", "flatten", "opt -full", "wreduce", "peepopt", "opt -full", "opt_clean -purge"),
        f"write_rtlil {base}",
        f"mutate -list {count} -seed {seed} -ctrl mutant {count.bit_length()} 1 -o {script}",
        f"script {script}",
        "opt_clean",
        f"write_verilog -noattr {path}",
    ]
    run_yosys(commands, path.with_suffix(".log"))
    return read_mutants(path)


def _rtlil(config: Config, part: str, top: str) -> str:
    component = make_component(config, part)
    return rtlil.convert(component, name=top, ports=named_ports(component))


def _with_lines_of_switches(text: str) -> str:
    """RTLIL in which switches have the lines of rtl/ of their process: what becomes of them has theirs."""
    lines, here, process = [], "", ""
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["attribute"]:
            here = line.strip() if words[1] == r"\src" else here
        elif words[:1] == ["process"]:
            process = here
        elif words[:1] == ["switch"] and process:
            lines.append(process)
        elif words:
            here = ""
        lines.append(line)
    return "\n".join(lines) + "\n"


def read_mutants(path: Path) -> list[Mutant]:
    """The mutants of a model that :func:`write_mutants` wrote."""
    return [_mutant(line) for line in path.with_suffix(".mutations").read_text().splitlines()]


def _mutant(line: str) -> Mutant:
    """A mutant from the command that makes it, as ``mutate -list`` writes it."""
    options: dict[str, list[str]] = {}
    for name, values in re.findall(r"-(\w+) (.+?)(?= -\w+ |$)", line):
        options.setdefault(name, []).append(values)
    port = f"{options['port'][0]}[{options['portbit'][0]}]"
    if "ctrlbit" in options:
        port += f" by [{options['ctrlbit'][0]}]"
    wire = f"{options['wire'][0]}[{options['wirebit'][0]}]" if "wire" in options else ""
    lines = [
        source.removeprefix(f"{_ROOT}/")
        for sources in options.get("src", [])
        for source in sources.split("|")
        if source.startswith(f"{_ROOT}/rtl/")
    ]
    number = int(options["ctrl"][0].split()[-1])
    return Mutant(number, options["mode"][0], options["cell"][0], port, wire, ", ".join(lines))
