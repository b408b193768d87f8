"""``python -m cocotb_tests.memory.mutants``: does the harness find small faults in a memory engine?

Yosys puts them into all that is not a codec, and one model has them all: an input selects one. What no burst
tells from the engine without a fault is printed with its place.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from amaranth.back import rtlil

from gen import system, toolchain
from gen.arguments import at_least, interruptible
from gen.memory import module_name
from gen.netlist import Mutant, read_mutants
from gen.yosys import run_yosys
from rtl.memory import MemoryEngine, MemoryParameters

from ..runner import BenchError
from .engines import ENGINES
from .harness import LATENCY, SOURCES, Harness

ENGINE = "small-merging"
_LATENCIES = (2, 30)  # of the memory, in cycles: bursts one by one, and many at once


def write_mutants(parameters: MemoryParameters, path: Path, count: int, seed: int) -> list[Mutant]:
    """Write Verilog of an engine with so many mutants, of which the input ``mutant`` selects one."""
    top = module_name(parameters)
    source, script = path.with_suffix(".source.il"), path.with_suffix(".mutations")
    source.write_text(rtlil.convert(MemoryEngine(parameters), name=top))
    commands = [
        f"read_rtlil {source}",
        f"hierarchy -top {top}",
        # A table stays logic: a fault in a memory's contents could not be selected.
        *("proc -norom", "flatten", "opt -full", "wreduce", "peepopt", "opt -full", "opt_clean -purge"),
        "select -set engine */c:* */c:*compressor?.* %d */t:$meminit* %d",
        f"mutate -list {count} -seed {seed} -ctrl mutant {count.bit_length()} 1 -o {script} @engine",
        "select -clear",
        f"script {script}",
        "opt_clean",
        f"write_verilog -noattr {path}",
    ]
    run_yosys(commands, path.with_suffix(".log"))
    return read_mutants(path)


def build(parameters: MemoryParameters, folder: Path, count: int, seed: int) -> tuple[Path, list[Mutant]]:
    """The library of a harness around so many mutants, and what they are."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "engine.h").write_text(system.header(parameters))
    mutants = write_mutants(parameters, folder / "engine.v", count, seed)
    options = ["-CFLAGS", "-fPIC", "--prefix", "Vengine", "--output-split-cfuncs", "1000", "--no-assert"]
    toolchain.verilate(
        folder / "engine.v",
        module_name(parameters),
        folder / "Vengine",
        optimise="-O1",
        options=options,
        log=folder / "verilate.log",
    )
    path = folder / "libharness.so"
    system.link(SOURCES[0], folder, path)
    return path, mutants


class Tried:
    """What the harness makes of an engine with mutants.

    Args:
        path: of its library.
        bursts: for each mutant, with either latency of the memory.
        seed: of what is random.

    Raises:
        BenchError: the engine without a fault is not what the model says.
    """

    def __init__(self, path: Path, parameters: MemoryParameters, bursts: int, seed: int) -> None:
        self._path, self._formats = path, parameters.formats
        self._bursts, self._seed = bursts, seed
        self._rates = self._measure(0)
        if wrong := self.find(0):
            raise BenchError(f"without a fault: {wrong}")

    def find(self, mutant: int) -> str | None:
        """What tells a mutant from the engine; None if nothing does."""
        for latency in _LATENCIES:
            try:
                run = Harness(self._path, self._formats, self._seed, latency, mutant)
                run.run(self._bursts // 2, self._bursts // 2)
            except BenchError as error:
                return str(error).splitlines()[0]
            if run.message:
                return run.message.splitlines()[0]
        try:
            rates = self._measure(mutant)
        except BenchError as error:
            return str(error).splitlines()[0]
        return None if rates == self._rates else f"rates and latencies {rates}, not {self._rates}"

    def _measure(self, mutant: int) -> list[dict[str, float]]:
        run = Harness(self._path, self._formats, self._seed, LATENCY, mutant)
        return [run.measure(region) for region in range(len(self._formats) + 1)]


def survivors(folder: Path, *, count: int, bursts: int, seed: int) -> Iterator[tuple[Mutant, str | None]]:
    """Each mutant, and what found it.

    Raises:
        BenchError: the engine without a fault is not what the model says.
    """
    parameters = ENGINES[ENGINE]
    path, mutants = build(parameters, folder / "mutants" / f"{ENGINE}-{count}-{seed}", count, seed)
    tried = Tried(path, parameters, bursts, seed)
    for mutant in mutants:
        yield mutant, tried.find(mutant.number)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m cocotb_tests.memory.mutants", description=__doc__)
    parser.add_argument("--count", type=at_least(1), default=60, help="mutants (default: 60)")
    parser.add_argument("--bursts", type=at_least(2), default=2000, help="for each (default: 2000)")
    parser.add_argument("--seed", type=at_least(0), default=1, help="of all that is random (default: 1)")
    arguments = parser.parse_args()
    options = {"count": arguments.count, "bursts": arguments.bursts, "seed": arguments.seed}
    alive = 0
    with interruptible():
        for mutant, found in survivors(Path("build/sim"), **options):
            alive += found is None
            print(f"{mutant.number}: {found or f'ALIVE {mutant}'}", flush=True)
    print(f"{arguments.count - alive} of {arguments.count} found")
    if alive:
        sys.exit(1)


if __name__ == "__main__":
    main()
