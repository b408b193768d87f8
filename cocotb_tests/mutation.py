"""Mutants of the engines: each is one small fault, which some bench must find."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gen import equivalence, netlist
from gen.config import Config
from gen.equivalence import Verdict
from gen.netlist import Mutant

from . import runner

_SECONDS = 5  # for a first proof that a mutant is no fault


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
        return "equivalent" if self.verdict.is_equivalent else "undecided"

    def as_row(self) -> dict[str, Any]:
        cycles = self.verdict and self.verdict.cycles
        engine = {"config": self.config, "part": self.part, "fate": self.fate}
        return engine | {"killed_by": self.killed_by, "cycles": cycles} | asdict(self.mutant)


def run(
    config: Config, part: str, folder: Path, *, count: int, blocks: int, seed: int, keep: bool = False
) -> list[Finding]:
    """Put mutants of an engine to the benches, all in one simulator, and judge those that survive.

    The long benches are for those that survive the quick ones and are not soon proven to be no fault.

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
    simulate = partial(
        runner.simulate,
        config,
        part,
        folder,
        model=model,
        bench="bench_mutants",
        blocks=blocks,
        seed=seed,
        keep=keep,
    )

    def killed_by(benches: str, numbers: Sequence[int]) -> dict[int, str]:
        notes = simulate(mutants=[0, *numbers], benches=benches)
        (found,) = (
            {int(number): bench for number, bench in note["killed"].items()}
            for note in notes
            if "killed" in note
        )
        if 0 in found:
            raise runner.BenchError(f"{config.name} {part}: {found[0]} fails without a fault (--seed {seed})")
        return found

    path = folder / "verilator" / config.slug / part / "engine.v"
    killed = killed_by("quick", range(1, count + 1))
    mutants = netlist.read_mutants(path)
    survivors = [mutant for mutant in mutants if mutant.number not in killed]
    verdicts = {mutant.number: equivalence.judge(path, mutant, _SECONDS) for mutant in survivors}
    doubtful = [mutant for mutant in survivors if not verdicts[mutant.number].is_equivalent]
    if doubtful:
        killed |= killed_by("long", [mutant.number for mutant in doubtful])
    for mutant in doubtful:
        if mutant.number not in killed:
            verdicts[mutant.number] = equivalence.judge(path, mutant)
    return [
        Finding(config.name, part, mutant, killer, None if killer else verdicts[mutant.number])
        for mutant in mutants
        for killer in (killed.get(mutant.number),)
    ]
