"""What Yosys makes of an engine for the benches: its gates, and mutants of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import NamedTuple

from amaranth.back import rtlil

from rtl.stream import word_layout

from .config import Config
from .toolchain import run
from .verilog import make_component, module_name, verilog_text
from .yosys import run_yosys

# Not imported: its compiled part and matplotlib's do not get along in one process.
_PYOSYS = Path(str(distribution("pyosys").locate_file("pyosys")))
SIMULATION_CELLS = _PYOSYS / "share" / "simcells.v"
_ABC = _PYOSYS / "yosys-abc"
_ROOT = Path(__file__).resolve().parent.parent


def write_gates(config: Config, part: str, path: Path) -> None:
    """Synthesise an engine to gates and flip-flops, instances of :data:`SIMULATION_CELLS`.

    No flip-flop has an initial value: what a reset does not set starts unknown.

    Args:
        config, part: which engine: "compressor" or "decompressor".
        path: of the Verilog netlist; its source and Yosys' log are left beside it.
    """
    source = path.with_suffix(".rtl.v")
    source.write_text(verilog_text(config))
    commands = [
        f"read_verilog {source}",
        f"synth -flatten -top {module_name(config, part)}",
        "setattr -unset init w:*",
        "opt_clean -purge",
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
        *(f"hierarchy -top {top}", "proc", "flatten"),
        *(f"select -read {selection}", f"select -assert-count {len(signals)} %", "expose", "select -clear"),
        *("opt", "simplemap", "techmap", "opt", "dfflegalize -cell $_DFF_P_ 0"),
        *("setundef -zero -undriven", "aigmap", "opt_clean -purge"),
        f"write_aiger -vmap {names} {before}",
    ]
    run_yosys(commands, base.with_suffix(".log"))
    sweep = f"read_aiger {before}; strash; scorr; write_aiger {after}"
    run([str(_ABC), "-q", sweep], base.with_suffix(".abc.log"))
    # An AIGER file starts with "aig" and the numbers of variables, inputs, latches, outputs and gates; a line
    # for each latch and each output follows. The literals 0 and 1 are constants.
    lines = after.read_bytes().split(b"\n")
    latches, outputs = map(int, lines[0].split()[3:5])
    is_constant = [line in (b"0", b"1") for line in lines[1 + latches : 1 + latches + outputs]]
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
        port: the cell's port and bit, and for ``cnot`` the other bit.
        wire: the wire and bit it drives or reads, where that has a name.
        source: lines of rtl/ that the cell comes from.
    """

    number: int
    mode: str
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
    source.write_text(rtlil.convert(make_component(config, part), name=top))
    commands = [
        f"read_rtlil {source}",
        f"hierarchy -top {top}",
        *("proc", "flatten", "opt -full", "wreduce", "peepopt", "opt -full", "opt_clean -purge"),
        f"write_rtlil {base}",
        f"mutate -list {count} -seed {seed} -ctrl mutant {count.bit_length()} 1 -o {script}",
        f"script {script}",
        "opt_clean",
        f"write_verilog -noattr {path}",
    ]
    run_yosys(commands, path.with_suffix(".log"))
    return read_mutants(path)


def read_mutants(path: Path) -> list[Mutant]:
    """The mutants of a model that :func:`write_mutants` wrote."""
    return [_mutant(line) for line in path.with_suffix(".mutations").read_text().splitlines()]


class Verdict(NamedTuple):
    """Whether some input tells a mutant from the engine.

    Attributes:
        differs: one does.
        cycles: without one in that many cycles from reset on; None if it is proven for all time.
    """

    differs: bool
    cycles: int | None = None


def judge(path: Path, mutant: Mutant, seconds: int = 30) -> Verdict:
    """Compare a mutant with its engine on every sequence of inputs that keeps the rules of rtl/stream.

    Both get the same inputs; compared are ``ready``, ``valid``, and the payload where it is valid. ABC merges
    what is provably the same, tries to prove that there is no difference, and else searches for one.

    Args:
        path: of the model that :func:`write_mutants` wrote.
        seconds: for the proof, and as many for the search.
    """
    base = path.with_suffix(".il")
    folder = path.with_name(f"mutant{mutant.number}")
    folder.mkdir(exist_ok=True)
    command = path.with_suffix(".mutations").read_text().splitlines()[mutant.number - 1]
    (top,) = set(re.findall(r"-module (\S+)", command))
    miter, aiger = folder / "miter.v", folder / "miter.aig"
    ports = re.findall(r"^  wire width (\d+) \w+put \d+ \\([io])__payload$", base.read_text(), re.M)
    widths = {name: int(width) for width, name in ports}
    bus = 1 << widths["i"].bit_length() - 4
    layout = word_layout(bus)
    miter.write_text(_MITER.format(**widths, bus=bus, last=layout["last"], empty=layout["empty"]))
    wire = mutant.wire.partition("[")[0]
    commands = [
        f"read_rtlil {base}",
        re.sub(r"-ctrl \S+ \S+ \S+ ", "", command),
        # A wire that no register drives any more has no use for its initial value, and may contradict it.
        *([f"setattr -unset init w:{wire}"] if mutant.port.startswith("Q[") and wire else []),
        f"rename {top} changed",
        f"read_rtlil {base}",
        f"rename {top} engine",
        f"read_verilog {miter}",
        *("hierarchy -top miter", "proc", "flatten", "opt", "simplemap", "techmap", "opt"),
        *("dfflegalize -cell $_DFF_P_ 0", "setundef -zero", "aigmap", "opt_clean -purge"),
        f"write_aiger {aiger}",
    ]
    run_yosys(commands, folder / "miter.log")
    # Registers that are provably the same first: it is all that most equivalent mutants need.
    swept = f"&r {aiger}; &put; lcorr; scorr"
    proof = run([str(_ABC), "-q", f"{swept}; print_stats; pdr -T {seconds}"], folder / "proof.log")
    # No gate is left if the sweep merged the mutant with the engine.
    if "Property proved" in proof or re.search(r"and =\s+0\b", proof):
        return Verdict(differs=False)
    search = run([str(_ABC), "-q", f"{swept}; bmc3 -T {seconds}"], folder / "search.log")
    if "was asserted" in search:
        return Verdict(differs=True)
    (cycles,) = re.findall(r"No output asserted in (\d+) frames", search)
    return Verdict(differs=False, cycles=int(cycles))


# Inputs count until one breaks the rules of rtl/stream. A payload that is not valid may differ.
_MITER = """
module miter(
    input clk, input rst, input [{i}-1:0] i__payload, input i__valid, input o__ready, output differs
);
  wire ready_a, ready_b, valid_a, valid_b;
  wire [{o}-1:0] payload_a, payload_b;
  engine a(
    .clk(clk), .rst(rst), .i__payload(i__payload), .i__valid(i__valid), .i__ready(ready_a),
    .o__payload(payload_a), .o__valid(valid_a), .o__ready(o__ready)
  );
  changed b(
    .clk(clk), .rst(rst), .i__payload(i__payload), .i__valid(i__valid), .i__ready(ready_b),
    .o__payload(payload_b), .o__valid(valid_b), .o__ready(o__ready)
  );
  wire [8*{bus}-1:0] data = i__payload;
  wire last = i__payload[{last.offset}];
  wire [{empty.width}-1:0] empty = i__payload[{empty.offset}+:{empty.width}];
  reg waits = 0, broken = 0;
  reg [{i}-1:0] waiting = 0;
  wire breaks = (waits & (~i__valid | i__payload != waiting))
    | (i__valid & (empty != 0 & ~last | data >> 8 * ({bus} - empty) != 0));
  always @(posedge clk) begin
    waits <= i__valid & ~ready_a & ~rst;
    waiting <= i__payload;
    broken <= broken | breaks;
  end
  assign differs = ~broken & ~breaks
    & (ready_a != ready_b | valid_a != valid_b | (valid_a & payload_a != payload_b));
endmodule
"""


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
    return Mutant(number, options["mode"][0], port, wire, ", ".join(lines))
