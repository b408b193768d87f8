"""Whether mutants are faults at all: each is compared with its engine, in graphs of gates, by ABC."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from rtl.stream import word_layout

from . import aiger
from .aiger import Builder, Graph
from .netlist import ABC, Mutant
from .toolchain import ToolError, run
from .yosys import run_yosys

__all__ = ["Model", "Verdict", "escaped", "is_proven", "judge", "ports_of", "read_model", "wrapper"]


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


class Model(NamedTuple):
    """An engine with mutants, as gates.

    Attributes:
        graph: its last output says whether the others count.
        selects: the inputs whose number is that of a mutant.
        key: of all that it was made of.
    """

    graph: Graph
    selects: list[int]
    key: str

    def one_step(self, number: int) -> Graph:
        """Whose output is 1 where a mutant does something else than its engine, from a state of this one.

        If it never is, the mutant and its engine are in the same state for all time.
        """
        builder = Builder(self.graph.inputs - len(self.selects), len(self.graph.latches))
        engine = builder.copy(self.graph, self._leaves(builder, 0, builder.latches))
        mutant = builder.copy(self.graph, self._leaves(builder, number, builder.latches))
        builder.graph.latches = [engine(literal) for literal in self.graph.latches]
        *shown, counts = self.graph.outputs
        changes = (builder.differ(engine(one), mutant(one)) for one in [*self.graph.latches, *shown])
        builder.graph.outputs = [builder.both(builder.any(changes), engine(counts))]
        return builder.graph

    def side_by_side(self, number: int) -> Graph:
        """Whose output is 1 where a mutant shows something else than its engine, both from reset on."""
        count = len(self.graph.latches)
        builder = Builder(self.graph.inputs - len(self.selects), 2 * count)
        engine = builder.copy(self.graph, self._leaves(builder, 0, builder.latches[:count]))
        mutant = builder.copy(self.graph, self._leaves(builder, number, builder.latches[count:]))
        builder.graph.latches = [one(literal) for one in (engine, mutant) for literal in self.graph.latches]
        *shown, counts = self.graph.outputs
        changes = (builder.differ(engine(one), mutant(one)) for one in shown)
        builder.graph.outputs = [builder.both(builder.any(changes), engine(counts))]
        return builder.graph

    def _leaves(self, builder: Builder, number: int, latches: list[int]) -> list[int]:
        """The literals of inputs and latches, where a mutant is selected."""
        chosen = {place: number >> bit & 1 for bit, place in enumerate(self.selects)}
        others = iter(builder.inputs)
        inputs = [chosen[place] if place in chosen else next(others) for place in range(self.graph.inputs)]
        return [*inputs, *latches]


def wrapper(
    ports: Mapping[str, tuple[str, int]],
    values: Mapping[str, str],
    counts: str = "1'b1",
    lines: Sequence[str] = (),
) -> str:
    """Verilog of a module "shown" around a module "engine", for :func:`read_model`.

    Args:
        ports: of the engine, as :func:`ports_of` gives them, with ``mutant`` among them.
        values: what it shows for an output, by its name: an expression.
        counts: whether what it shows counts: an expression.
        lines: what else it has.
    """
    outputs = [name for name, (direction, _) in ports.items() if direction == "output"]
    header = [f"input [{ports[name][1]}-1:0] {escaped(name)}" for name in ports if name not in outputs]
    header += [f"output [{ports[name][1]}-1:0] {escaped(f'shown.{name}')}" for name in values]
    return "\n".join(
        [
            f"module shown({', '.join(header)}, output counts);",
            *(f"wire [{ports[name][1]}-1:0] {escaped(name)};" for name in outputs),
            f"engine engine({', '.join(f'.{escaped(name)}({escaped(name)})' for name in ports)});",
            *lines,
            f"assign counts = {counts};",
            *(f"assign {escaped(f'shown.{name}')} = {value};" for name, value in values.items()),
            "endmodule",
            "",
        ]
    )


def escaped(name: str) -> str:
    """A name as Verilog has it, whatever is in it."""
    return f"\\{name} "


def read_model(path: Path, text: str, around: str, commands: list[str]) -> Model:
    """An engine with mutants as gates; a register without an initial value begins with 0.

    Args:
        path: of the file that is made, unless there is one of the same text, wrapper and commands.
        text: of the engine.
        around: Verilog of what :func:`wrapper` gives.
        commands: of Yosys, which read the module "engine".
    """
    key = _key(text, around, *commands, version("pyosys"))
    gates = path.with_name(f"{path.stem}-{key}.aig")
    names = gates.with_suffix(".names")
    if not names.exists():
        source = path.with_suffix(".shown.v")
        source.write_text(around)
        more = [
            f"read_verilog {source}",
            *("hierarchy -top shown", "proc", "flatten", "opt", "simplemap", "techmap", "opt"),
            *("setundef -init -zero", "dfflegalize -cell $_DFF_P_ 0"),
            *("setundef -zero", "aigmap", "opt_clean -purge"),
            f"write_aiger -vmap {names}.part {gates}",
        ]
        run_yosys([*commands, *more], path.with_suffix(".log"))
        Path(f"{names}.part").replace(names)
    ports: dict[str, dict[tuple[str, int], int]] = {"input": {}, "output": {}}
    for kind, place, bit, name in re.findall(r"^(input|output) (\d+) (\d+) (\S+)", names.read_text(), re.M):
        ports[kind][name, int(bit)] = int(place)
    graph = aiger.read(gates)
    # Yosys writes no output that it finds to be constant.
    last = ports["output"].get(("counts", 0))
    graph.outputs.append(1 if last is None else graph.outputs.pop(last))
    selects = [place for (name, _), place in sorted(ports["input"].items()) if name == "mutant"]
    return Model(graph, selects, key)


def ports_of(module: str) -> dict[str, tuple[str, int]]:
    """Direction and width of the ports of a module in RTLIL, by name."""
    found = re.findall(r"^  wire (?:width (\d+) )?(input|output) \d+ \\(\S+)$", module, re.M)
    return {name: (direction, int(width or 1)) for width, direction, name in found}


def is_proven(model: Model, number: int, folder: Path, seconds: int) -> bool:
    """Whether ABC soon proves that a mutant is no fault.

    Args:
        folder: for its files.
        seconds: for one of the proofs.
    """
    one_step, both = folder / "one_step.aig", folder / "miter.aig"
    aiger.write(one_step, model.one_step(number))
    if _is_never(one_step, seconds):
        return True
    aiger.write(both, model.side_by_side(number))
    return _is_never(both, 0)


def judge(path: Path, mutant: Mutant, seconds: int = 30) -> Verdict:
    """Compare a mutant with its engine on every sequence of inputs that keeps the rules of rtl/stream.

    Both get the same inputs; compared are ``ready``, ``valid``, and payloads where they are valid. ABC tries
    to prove that from no state of the engine the fault changes anything in one cycle, or that both show the
    same for all time; else it searches for a difference. The verdict is kept.

    Args:
        path: of the model that :func:`gen.netlist.write_mutants` wrote.
        seconds: for each kind of proof; half as many for the search.
    """
    model = _model_of_streams(path, path.read_text())
    folder = path.with_name(f"mutant{mutant.number}")
    folder.mkdir(exist_ok=True)
    kept = folder / f"{_key(model.key, str(mutant.number), str(seconds))}.json"
    if not kept.exists():
        kept.write_text(json.dumps(_compare(model, mutant.number, folder, seconds)))
    return Verdict(*json.loads(kept.read_text()))


def _key(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]


@lru_cache(maxsize=1)
def _model_of_streams(path: Path, text: str) -> Model:
    """An engine with streams, whose text is given for the cache and for the key."""
    parsed = path.with_suffix(".parsed.il")
    commands = [f"read_verilog {path}", "hierarchy -auto-top", "proc -norom", "rename -top engine"]
    run_yosys([*commands, f"write_rtlil {parsed}"], parsed.with_suffix(".log"))
    around = _around_streams(ports_of(parsed.read_text()))
    return read_model(path.with_suffix(".gates"), text, around, [f"read_rtlil {parsed}"])


def _is_never(graph: Path, seconds: int) -> bool:
    """Whether the output of a graph is proven to be always 0.

    ABC merges what is the same by induction, which is quick; then it may look for an invariant.
    """
    commands = f"&r {graph}; &lcorr; &scorr; &write {_swept(graph)}"
    run([str(ABC), "-q", commands], graph.with_suffix(".merge.log"))
    if aiger.read(_swept(graph)).outputs == [0]:
        return True
    if not seconds:
        return False
    return "Property proved" in _pdr(_swept(graph), graph.with_suffix(".proof.log"), seconds)


def _swept(graph: Path) -> Path:
    return graph.with_suffix(".swept.aig")


def _pdr(graph: Path, log: Path, seconds: int, option: str = "") -> str:
    return run([str(ABC), "-q", f"&r {graph}; &put; pdr {option} -T {seconds}"], log)


def _compare(model: Model, number: int, folder: Path, seconds: int) -> Verdict:
    if is_proven(model, number, folder, seconds):
        return Verdict(differs=False)
    # The older sweep merges more, but may take minutes where much differs.
    graph, more = _swept(folder / "miter.aig"), folder / "miter.more.aig"
    with suppress(subprocess.TimeoutExpired):
        merge = f"&r {graph}; &put; lcorr; scorr; write_aiger {more}"
        run([str(ABC), "-q", merge], folder / "more.log", seconds)
        graph = more
        if aiger.read(graph).outputs == [0]:
            return Verdict(differs=False)
    proof = _pdr(graph, folder / "proof.log", seconds)
    if "was asserted" in proof:
        return Verdict(differs=True)
    if "Property proved" in proof or _is_proven_otherwise(graph, folder / "other.log", seconds):
        return Verdict(differs=False)
    search = run([str(ABC), "-q", f"&r {graph}; &put; bmc3 -T {-(-seconds // 2)}"], folder / "search.log")
    if "was asserted" in search:
        return Verdict(differs=True)
    (cycles,) = re.findall(r"No output asserted in (\d+) frames", search)
    return Verdict(differs=False, cycles=int(cycles))


def _is_proven_otherwise(graph: Path, log: Path, seconds: int) -> bool:
    """Whether PDR proves it with another simulation, which proves some more.

    A difference that it reports need not be one, and it may end with an error; a proof is checked in the end.
    """
    with suppress(ToolError):
        proof = _pdr(graph, log, seconds, "-u")
        return re.search(r"invariant with \d+ clauses was successful", proof) is not None
    return False


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


def _around_streams(ports: Mapping[str, tuple[str, int]]) -> str:
    """Verilog for :func:`read_model` of an engine with streams.

    It counts until an input breaks the rules of the streams. A payload that is not valid is shown as 0.
    """
    clock = "aclk" if "aclk" in ports else "clk"
    reset = "~aresetn" if "aresetn" in ports else "rst"
    values, lines, breaks, each_cycle = {}, [], ["1'b0"], []
    for stream in _streams(ports):
        if not stream.goes_in:
            values[stream.valid] = stream.valid
            values |= {name: f"{name} & {{{ports[name][1]}{{{stream.valid}}}}}" for name in stream.payload}
            continue
        values[stream.ready] = stream.ready
        width, payload = sum(ports[name][1] for name in stream.payload), f"{{{', '.join(stream.payload)}}}"
        waits = f"{stream.valid}_waits"
        lines.append(f"reg {waits} = 0; reg [{width}-1:0] {waits}_with = 0;")
        each_cycle.append(f"{waits} <= {stream.valid} & ~{stream.ready} & ~({reset});")
        each_cycle.append(f"{waits}_with <= {payload};")
        breaks.append(f"({waits} & (~{stream.valid} | {payload} != {waits}_with))")
        if stream.valid == "i_valid":
            breaks.append(f"({stream.valid} & ({_breaks_words(width)}))")
    lines.append(f"reg broken = 0; wire breaks = {' | '.join(breaks)};")
    lines.append(f"always @(posedge {clock}) begin broken <= broken | breaks; {' '.join(each_cycle)} end")
    return wrapper(ports, values, "~broken & ~breaks", lines)


def _breaks_words(width: int) -> str:
    """Whether the payload of ``i`` has no form that :func:`rtl.stream.word_layout` allows."""
    bus = 1 << width.bit_length() - 4
    last, empty = word_layout(bus)["last"], word_layout(bus)["empty"]
    field = f"i_payload[{empty.offset}+:{empty.width}]"
    data = f"i_payload[{8 * bus - 1}:0]"
    return f"({field} != 0 & ~i_payload[{last.offset}]) | {data} >> 8 * ({bus} - {field}) != 0"
