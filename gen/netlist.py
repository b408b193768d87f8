"""What Yosys makes of an engine for the benches: its gates, and mutants of it."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import distribution, version
from pathlib import Path
from typing import NamedTuple

from amaranth.back import rtlil

from rtl.stream import word_layout

from .config import Config
from .toolchain import run
from .verilog import make_component, module_name, named_ports, verilog_text
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
    run([str(_ABC), "-q", sweep], base.with_suffix(".abc.log"))
    is_constant = [literal in (b"0", b"1") for literal in _outputs(after)]
    # What Yosys itself finds to be constant has no name in its list.
    found = re.findall(r"^output (\d+) (\d+) (\S+)", names.read_text(), re.M)
    return {(name, int(bit)) for index, bit, name in found if not is_constant[int(index)]}


def _outputs(aiger: Path) -> list[bytes]:
    """The literals of a file's outputs, of which 0 and 1 are constants.

    It starts with "aig" and the numbers of variables, inputs, latches, outputs and gates; a line for each
    latch and each output follows.
    """
    lines = aiger.read_bytes().split(b"\n")
    latches, outputs = map(int, lines[0].split()[3:5])
    return lines[1 + latches : 1 + latches + outputs]


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


class Verdict(NamedTuple):
    """Whether some input tells a mutant from the engine.

    Attributes:
        differs: one does.
        cycles: without one in that many cycles from reset on; None if it is proven for all time.
    """

    differs: bool
    cycles: int | None = None

    @property
    def is_equivalent(self) -> bool:
        """Whether the mutant is proven to be no fault."""
        return not self.differs and self.cycles is None


def judge(path: Path, mutant: Mutant, seconds: int = 60) -> Verdict:
    """Compare a mutant with its engine on every sequence of inputs that keeps the rules of rtl/stream.

    Both get the same inputs; compared are ``ready``, ``valid``, and payloads where they are valid. ABC merges
    what is provably the same, tries to prove that there is no difference, and else searches for one. The
    verdict is kept, for the same change of the same engine by the same tools.

    Args:
        path: of the model that :func:`write_mutants` wrote.
        seconds: for merging and for each of two proofs; half as many for the search.
    """
    base = path.with_suffix(".il")
    folder = path.with_name(f"mutant{mutant.number}")
    folder.mkdir(exist_ok=True)
    top, change = commands_of(path, mutant)
    rtlil = base.read_text()
    miter, aiger = folder / "miter.v", folder / "miter.aig"
    miter.write_text(_miter(rtlil))
    changed = [f"read_rtlil {base}", *change, f"rename {top} changed"]
    engine = [f"read_rtlil {base}", f"rename {top} engine"]
    commands = [*changed, *engine, *commands_of_miter(miter, aiger)]
    words = [rtlil, miter.read_text(), *commands, version("pyosys"), str(seconds)]
    kept = folder / f"{hashlib.sha256(chr(0).join(words).encode()).hexdigest()[:16]}.json"
    if not kept.exists():
        run_yosys(commands, folder / "miter.log")
        kept.write_text(json.dumps(_compare(aiger, folder, seconds)))
    return Verdict(*json.loads(kept.read_text()))


def commands_of(path: Path, mutant: Mutant) -> tuple[str, list[str]]:
    """The module that a mutant is in, and the Yosys commands that put it there for good.

    Args:
        path: of the model that has it and others, as in :func:`read_mutants`.
    """
    command = path.with_suffix(".mutations").read_text().splitlines()[mutant.number - 1]
    (top,) = set(re.findall(r"-module (\S+)", command))
    mutate = re.sub(r"-ctrl \S+ \S+ \S+ ", "", command)
    if not mutant.port.startswith("Q["):
        return top, [mutate]
    # Wires that no register drives any more need no initial value, which could contradict a constant.
    wires = f"select -set driven {top}/c:{mutant.cell} %co1:+[Q] {top}/w:* %i"
    return top, [wires, mutate, "setattr -unset init @driven"]


def commands_of_miter(miter: Path, aiger: Path) -> list[str]:
    """Yosys commands that write AIGER of a miter, a file of Verilog: its modules were read before.

    A register without an initial value begins with 0.
    """
    return [
        f"read_verilog {miter}",
        *("hierarchy -top miter", "proc", "flatten", "opt", "simplemap", "techmap", "opt"),
        *("setundef -init -zero", "dfflegalize -cell $_DFF_P_ 0"),
        *("setundef -zero", "aigmap", "opt_clean -purge"),
        f"write_aiger {aiger}",
    ]


def ports_of(module: str) -> dict[str, tuple[str, int]]:
    """Direction and width of the ports of a module in RTLIL, by name."""
    found = re.findall(r"^  wire (?:width (\d+) )?(input|output) \d+ \\(\S+)$", module, re.M)
    return {name: (direction, int(width or 1)) for width, direction, name in found}


def merges_to_nothing(aiger: Path, log: Path) -> bool:
    """Whether a miter's output is 0 once ABC has merged what is the same by induction: quick on any."""
    swept = aiger.with_suffix(".swept.aig")
    run([str(_ABC), "-q", f"&r {aiger}; &lcorr; &scorr; &write {swept}"], log)
    return _outputs(swept) == [b"0"]


def _compare(aiger: Path, folder: Path, seconds: int) -> Verdict:
    """What ABC finds in a miter, whose logs go into a folder."""
    # Registers that are provably the same first: it is all that most equivalent mutants need.
    if merges_to_nothing(aiger, folder / "merge.log"):
        return Verdict(differs=False)
    # The older sweep merges more, but may take minutes where much differs.
    merged, more = aiger.with_suffix(".swept.aig"), aiger.with_suffix(".merged.aig")
    with suppress(subprocess.TimeoutExpired):
        sweep = f"&r {merged}; &put; lcorr; scorr; write_aiger {more}"
        run([str(_ABC), "-q", sweep], folder / "more.log", seconds)
        merged = more
    swept = f"&r {merged}; &put"
    proof = run([str(_ABC), "-q", f"{swept}; print_stats; pdr -T {seconds}"], folder / "proof.log")
    if "was asserted" in proof:
        return Verdict(differs=True)
    # No gate is left if the sweep merged the mutant with the engine.
    if "Property proved" in proof or re.search(r"and =\s+0\b", proof):
        return Verdict(differs=False)
    # Another way of generalising proves some more. A difference that it reports need not be one; a proof is
    # checked in the end.
    other = run([str(_ABC), "-q", f"{swept}; pdr -u -T {seconds}"], folder / "other.log")
    if re.search(r"invariant with \d+ clauses was successful", other) and "Property proved" in other:
        return Verdict(differs=False)
    search = run([str(_ABC), "-q", f"{swept}; bmc3 -T {-(-seconds // 2)}"], folder / "search.log")
    if "was asserted" in search:
        return Verdict(differs=True)
    (cycles,) = re.findall(r"No output asserted in (\d+) frames", search)
    return Verdict(differs=False, cycles=int(cycles))


@dataclass(frozen=True)
class _Stream:
    """The ports of a stream by their names, and whether it goes in."""

    valid: str
    ready: str
    payload: list[str]
    goes_in: bool


def _streams(ports: Mapping[str, tuple[str, int]]) -> Iterator[_Stream]:
    """Those that have a valid and a ready, in Amaranth's names or in AXI4-Stream's."""
    for name, (direction, _) in ports.items():
        if found := re.fullmatch(r"(.*_)t?valid", name):
            stem = found[1] + ("t" if name.endswith("tvalid") else "")
            others = {f"{stem}valid", f"{stem}ready"}
            payload = [port for port in ports if port.startswith(stem) and port not in others]
            yield _Stream(name, f"{stem}ready", payload, direction == "input")


def _miter(rtlil: str) -> str:
    """Verilog that compares the modules "engine" and "changed", which have the ports of a module in RTLIL.

    Inputs count until one breaks the rules of the streams. A payload that is not valid may differ.
    """
    ports = ports_of(rtlil)
    clock = "aclk" if "aclk" in ports else "clk"
    reset = "~aresetn" if "aresetn" in ports else "rst"
    inputs = [name for name, (direction, _) in ports.items() if direction == "input"]
    outputs = [name for name in ports if name not in inputs]
    lines, breaks, differs, each_cycle = [], [], [], []
    for stream in _streams(ports):
        if not stream.goes_in:
            others = " | ".join(f"{name}_a != {name}_b" for name in stream.payload)
            differs.append(f"{stream.valid}_a != {stream.valid}_b")
            differs.append(f"({stream.valid}_a & ({others}))")
            continue
        differs.append(f"{stream.ready}_a != {stream.ready}_b")
        width, payload = sum(ports[name][1] for name in stream.payload), f"{{{', '.join(stream.payload)}}}"
        waits = f"{stream.valid}_waits"
        lines.append(f"reg {waits} = 0; reg [{width}-1:0] {waits}_with = 0;")
        each_cycle.append(f"{waits} <= {stream.valid} & ~{stream.ready}_a & ~({reset});")
        each_cycle.append(f"{waits}_with <= {payload};")
        breaks.append(f"({waits} & (~{stream.valid} | {payload} != {waits}_with))")
        if stream.valid == "i_valid":
            breaks.append(f"({stream.valid} & ({_breaks_words(width)}))")
    wires = [f"wire [{ports[name][1]}-1:0] {name}_a, {name}_b;" for name in outputs]
    both = ", ".join(f".{name}({name})" for name in inputs)
    engines = [
        f"{kind} {end}({', '.join([both, *(f'.{name}({name}_{end})' for name in outputs)])});"
        for kind, end in (("engine", "a"), ("changed", "b"))
    ]
    header = ", ".join(f"input [{ports[name][1]}-1:0] {name}" for name in inputs)
    return "\n".join(
        [
            f"module miter({header}, output differs);",
            *wires,
            *engines,
            *lines,
            f"reg broken = 0; wire breaks = {' | '.join(breaks)};",
            f"always @(posedge {clock}) begin broken <= broken | breaks; {' '.join(each_cycle)} end",
            f"assign differs = ~broken & ~breaks & ({' | '.join(differs)});",
            "endmodule",
        ]
    )


def _breaks_words(width: int) -> str:
    """Whether the payload of ``i`` has no form that :func:`rtl.stream.word_layout` allows."""
    bus = 1 << width.bit_length() - 4
    last, empty = word_layout(bus)["last"], word_layout(bus)["empty"]
    field = f"i_payload[{empty.offset}+:{empty.width}]"
    data = f"i_payload[{8 * bus - 1}:0]"
    return f"({field} != 0 & ~i_payload[{last.offset}]) | {data} >> 8 * ({bus} - {field}) != 0"


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
