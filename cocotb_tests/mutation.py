"""Mutants of the engines: each is one small fault, which some bench must find."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gen import netlist
from gen.config import Config
from gen.netlist import Mutant, Verdict

from . import runner


@dataclass(frozen=True)
class Finding:
    """What became of a mutant.

    Attributes:
        killed_by: the first bench that failed on it, if one did.
        verdict: on a mutant that survived, whether it is a fault at all.
    """

    config: str
    part: str
    mutant: Mutant
    killed_by: str | None
    verdict: Verdict | None

    @property
    def fate(self) -> str:
        """One of "killed", and of those that survived "equivalent", "undecided" and "open": see Verdict."""
        if self.verdict is None:
            return "killed"
        if self.verdict.differs:
            return "open"
        return "equivalent" if self.verdict.cycles is None else "undecided"

    def as_row(self) -> dict[str, Any]:
        cycles = self.verdict and self.verdict.cycles
        engine = {"config": self.config, "part": self.part, "fate": self.fate}
        return engine | {"killed_by": self.killed_by, "cycles": cycles} | asdict(self.mutant)


def run(
    config: Config, part: str, folder: Path, *, count: int, blocks: int, seed: int, keep: bool = False
) -> list[Finding]:
    """Put mutants of an engine to the benches, all in one simulator, and judge those that survive.

    Args:
        count: how many mutants.
        blocks: of each kind that a mutant has to survive.
        seed: of their choice and of the stimulus; the benches should not have been written for it.
        keep: what became of the same mutants before, in the same benches, is not tried again.

    Raises:
        cocotb_tests.runner.BenchError: a bench fails on the engine without a fault.
    """

    def write(config: Config, part: str, path: Path) -> list[Path]:
        netlist.write_mutants(config, part, path, count, seed)
        return []

    # A mutant may be several cases of a parallel one at a time; that is no end of the simulation.
    model = runner.Model(f"{count} mutants, seed {seed}", write, ("--no-assert",))
    (note,) = (
        note
        for note in runner.simulate(
            config,
            part,
            folder,
            model=model,
            bench="bench_mutants",
            blocks=blocks,
            seed=seed,
            mutants=count,
            keep=keep,
        )
        if "killed" in note
    )
    killed_by = {int(number): bench for number, bench in note["killed"].items()}
    if 0 in killed_by:
        raise runner.BenchError(f"{config.name} {part}: {killed_by[0]} fails without a fault (--seed {seed})")
    path = folder / "verilator" / config.slug / part / "engine.v"
    return [
        Finding(config.name, part, mutant, killer, None if killer else netlist.judge(path, mutant))
        for mutant in netlist.read_mutants(path)
        for killer in (killed_by.get(mutant.number),)
    ]
