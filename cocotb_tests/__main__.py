"""The benches: ``python -m cocotb_tests --help``. Each command leaves its figures as JSON in build/.

One that was stopped goes on, all but coverage: what the same benches noted of the same engine is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from gen import memory, processes
from gen.arguments import add_jobs, at_least, interruptible
from gen.config import Config
from gen.toolchain import ToolError
from gen.verilog import parts

from . import code_coverage, configs, mutation, plan, reports, runner, stimulus
from .memory import engines, harness
from .memory import mutants as memory_mutants
from .mutation import Finding

MUTANTS = 100  # of each engine and part
MUTANTS_SEED = 197  # for whose mutants no bench was written
SIMULATED = [*configs.ALL, *configs.IN_MEMORIES]
# All benches but those of thousands of chosen blocks, as reports.XSAFETY says. By name, those that are
# skipped would run as well.
_COMMON = "matches_golden/|takes_|sustains_|waits_|reset_"
_IN_ICARUS = {
    "compressor": rf"\.({_COMMON})",
    "decompressor": rf"\.({_COMMON}|a_stall_|invalid_|a_stream_|any_)",
}
_MEMORY_SHARE = 2  # as many times more of a memory engine, which has more than a part of the others


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m cocotb_tests", description=__doc__)
    common = argparse.ArgumentParser(add_help=False)
    add_jobs(common, "engines")
    commands = parser.add_subparsers(dest="command", required=True)

    def add(
        name: str,
        run: Callable[[argparse.Namespace], None],
        text: str,
        blocks: int,
        engines: Sequence[str],
        seed: int = 1,
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(name, parents=[common], help=text, description=text)
        command.add_argument(
            "--seed", type=at_least(0), default=seed, help=f"of what is random (default: {seed})"
        )
        command.add_argument(
            "--blocks", type=at_least(100), default=blocks, help=f"of each engine (default: {blocks})"
        )
        text = f"only these, of {', '.join(engines)} (default: all)"
        command.add_argument("--engines", nargs="+", choices=engines, metavar="NAME", help=text)
        command.set_defaults(run=run, all_blocks=blocks, mutants=MUTANTS)
        return command

    text = "every engine against the golden model (SIM=icarus, WAVES=1)"
    in_streams = [part.slug for part in configs.STREAM_PARTS]
    add("sim", _sim, text, 10_000, [*_names(SIMULATED), *in_streams, *harness.SHARES])
    text = "line and toggle coverage of the presets' Verilog"
    add("coverage", _coverage, text, 10_000, _names(configs.COVERED))
    add("netlist", _netlist, "the benches on gates", 5_000, _names(configs.GATES))
    text = "the benches on gates that start in an unknown state"
    add("xsafety", _xsafety, text, 1_000, _names(configs.GATES))
    text = "mutants of all engines: do the benches find each fault?"
    mutated = [*_names(configs.MUTATED), *memory_mutants.MUTATED]
    mutate = add("mutate", _mutate, text, 5_000, mutated, MUTANTS_SEED)
    text = f"of each engine and part, of memory engines {_MEMORY_SHARE} times as many (default: {MUTANTS})"
    mutate.add_argument("--mutants", type=at_least(1), default=MUTANTS, help=text)
    text = "take reports into docs/verification.json; write verification.md and tables of hardware.md"
    document = commands.add_parser("document", help=text)
    text = "fail unless all rows are of the sources of this commit"
    document.add_argument("--one-commit", action="store_true", help=text)
    document.set_defaults(run=_document)
    return parser


def _names(engines: Sequence[Config]) -> list[str]:
    return [config.name for config in engines]


def _chosen(arguments: argparse.Namespace, engines: Sequence[Config]) -> list[Config]:
    return [config for config in engines if arguments.engines is None or config.name in arguments.engines]


def _made(arguments: argparse.Namespace) -> dict[str, Any]:
    """What to note of a run beside a report."""
    is_short = arguments.blocks < arguments.all_blocks or arguments.mutants < MUTANTS
    return {"seed": arguments.seed, "only": arguments.engines, "short": is_short}


def _run_all(calls: Sequence[Callable[[], Any]], jobs: int, text: str) -> list[Any]:
    """The results of the calls, in their order; so many run at a time."""
    try:
        return list(processes.run(dict(enumerate(calls)), jobs, text, Path("build")).values())
    except (runner.BenchError, ToolError) as error:
        sys.exit(str(error))


def _engines(chosen: Sequence[Config]) -> list[tuple[Config, str]]:
    return [(config, part) for config in chosen for part in parts(config)]


def _sim(arguments: argparse.Namespace) -> None:
    simulator = os.environ.get("SIM", "verilator")
    if simulator not in runner.SIMULATORS:
        sys.exit(f"SIM must be one of {', '.join(runner.SIMULATORS)}, not {simulator!r}")
    if simulator == "icarus" and not shutil.which("iverilog"):
        sys.exit("SIM=icarus needs Icarus Verilog: install the package iverilog")
    folder = Path("build/sim")
    waves = os.environ.get("WAVES", "0") not in ("", "0")
    run = partial(
        runner.run,
        folder=folder,
        blocks=arguments.blocks,
        seed=arguments.seed,
        simulator=simulator,
        waves=waves,
        activations=stimulus.capture_activations(folder / "activations.npz"),
        keep=not waves,
    )
    calls = [partial(run, config, part) for config, part in _engines(_chosen(arguments, SIMULATED))]
    rows = [asdict(row) for row in _run_all(calls, arguments.jobs, "simulating")]
    _sim_stream_parts(arguments, folder, simulator)
    bins = reports.bins(rows)
    reports.BINS.write(bins, **_made(arguments))
    shown = [{name: row[name] for name in row if name != "coverage"} for row in rows]
    if simulator == "verilator":
        shown += _sim_memory(arguments, folder)
    reports.SIM.write(shown, **_made(arguments))
    empty = [f"{row['config']} {row['part']}: {bin[:2]}" for row in bins for bin in row["all"] if not bin[2]]
    if empty:
        sys.exit("\n".join(["bins that no block met:", *empty]))


def _sim_memory(arguments: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Rows of the memory engines.

    For each block that the other engines have, a hundred bursts of the harness in all, and one through
    cocotbext-axi on each preset.
    """
    bursts, seed = 100 * arguments.blocks, arguments.seed
    names = [name for name in harness.SHARES if name in (arguments.engines or harness.SHARES)]
    presets = [name for name in names if name in memory.PRESETS]
    by_others = [
        partial(engines.run_cocotbext, name, folder, bursts=arguments.blocks, seed=seed) for name in presets
    ]
    found = _run_all(by_others, arguments.jobs, "simulating memory engines in cocotb")
    cocotbext = dict(zip(presets, found, strict=True))
    calls = [
        partial(harness.run, name, folder, bursts=round(bursts * harness.SHARES[name]), seed=seed)
        for name in names
    ]
    rows = []
    for of_engine in _run_all(calls, arguments.jobs, "simulating memory engines by the million"):
        for i, row in enumerate(of_engine):
            through = cocotbext[row["config"]][i] if row["config"] in cocotbext else 0
            rows.append(row | {"bursts": row["bursts"] + through, "bursts_cocotbext": through})
    reports.MEMORY.show(rows)
    return rows


def _sim_stream_parts(arguments: argparse.Namespace, folder: Path, simulator: str) -> None:
    options = {"words": arguments.blocks, "seed": arguments.seed, "simulator": simulator, "keep": True}
    calls = [
        partial(runner.run_part, part, folder, **options)
        for part in configs.STREAM_PARTS
        if part.slug in (arguments.engines or [part.slug])
    ]
    rows = _run_all(calls, arguments.jobs, "simulating parts of the streams")
    reports.STREAMS.write([asdict(row) for row in rows], **_made(arguments))


def _coverage(arguments: argparse.Namespace) -> None:
    folder = Path("build/coverage")
    engines = _engines(_chosen(arguments, configs.COVERED))
    # Nothing is kept: what is counted lies beside the simulator, where the next run writes over it.
    run = partial(
        runner.run, folder=folder, model=runner.COVERAGE, blocks=arguments.blocks, seed=arguments.seed
    )
    _run_all([partial(run, config, part) for config, part in engines], arguments.jobs, "simulating")
    found = [
        code_coverage.read(config, part, folder / "verilator" / config.slug / part)
        for config, part in engines
    ]
    reports.CODE.write([coverage.as_row() for coverage in found], **_made(arguments))
    wrong = [complaint for coverage in found for complaint in coverage.complaints()]
    if wrong:
        sys.exit("\n".join(wrong))


def _netlist(arguments: argparse.Namespace) -> None:
    folder = Path("build/netlist")
    options = {"blocks": arguments.blocks, "seed": arguments.seed, "keep": True}
    run = partial(runner.run, folder=folder, model=runner.GATES, **options)
    gates = _engines(_chosen(arguments, configs.GATES))
    calls = [partial(run, config, part) for config, part in gates]
    rows = [asdict(row) for row in _run_all(calls, arguments.jobs, "simulating gates")]
    for row, (config, part) in zip(rows, gates, strict=True):
        del row["coverage"]
        verilog = folder / "verilator" / config.slug / part / "engine.v"
        row["cells"] = verilog.read_text().count("\\$_")
    reports.NETLIST.write(rows, **_made(arguments))


def _xsafety(arguments: argparse.Namespace) -> None:
    # Verilator's models are those of the netlist run. Icarus is slow: small engines only, fewer blocks, and
    # not all benches.
    three, few = range(arguments.seed, arguments.seed + 3), max(100, arguments.blocks // 5)
    runs = [("verilator", config, three, arguments.blocks) for config in _chosen(arguments, configs.GATES)]
    if shutil.which("iverilog"):
        runs += [("icarus", config, three[:1], few) for config in _chosen(arguments, configs.SMALL)]
    else:
        print("Icarus Verilog is not installed: only Verilator's random bits, no X")
    rows = []
    for turn in range(len(three)):  # an engine's seeds one after the other: they share a simulator
        calls = [
            partial(
                runner.run,
                config,
                part,
                Path("build/netlist"),
                model=runner.GATES,
                simulator=simulator,
                only=_IN_ICARUS[part] if simulator == "icarus" else None,
                blocks=blocks,
                seed=seeds[turn],
                keep=True,
            )
            for simulator, config, seeds, blocks in runs
            if turn < len(seeds)
            for part in parts(config)
        ]
        found = _run_all(calls, arguments.jobs, "simulating unknown states")
        seed = {"seed": three[turn]}
        rows += [
            seed | {name: value for name, value in asdict(row).items() if name != "coverage"} for row in found
        ]
    rows.sort(key=lambda row: (row["simulator"] != "verilator", row["config"], row["part"]))
    reports.XSAFETY.write(rows, **_made(arguments))


def _mutate(arguments: argparse.Namespace) -> None:
    folder, count = Path("build/mutate"), arguments.mutants
    options = {"blocks": arguments.blocks, "seed": arguments.seed, "keep": True}
    run = partial(mutation.run, folder=folder, count=count, **options)
    engines = _engines(_chosen(arguments, configs.MUTATED))
    calls: list[Callable[[], list[Finding]]] = [partial(run, *engine) for engine in engines]
    for name in filter((arguments.engines or memory_mutants.MUTATED).__contains__, memory_mutants.MUTATED):
        of_memory = {"count": _MEMORY_SHARE * count, "bursts": arguments.blocks // 2, "seed": arguments.seed}
        calls.append(partial(memory_mutants.run, name, folder / "memory", **of_memory))
    findings = [finding for found in _run_all(calls, arguments.jobs, "mutating") for finding in found]
    (folder / "report.json").write_text(
        json.dumps([finding.as_row() for finding in findings], indent=2) + "\n"
    )
    rows = reports.mutants([finding.as_row() for finding in findings])
    reports.MUTATION.write(rows, **_made(arguments))
    for finding in findings:
        if finding.fate not in ("killed", "equivalent"):
            print(finding.fate, finding.config, finding.part, finding.mutant)
    if any(row["open"] for row in rows):
        sys.exit("some mutants differ from the engine and no bench finds them")
    faults = sum(row["mutants"] - row["equivalent"] for row in rows)
    if sum(row["killed"] for row in rows) < 0.95 * faults:
        sys.exit("fewer than 95 % of the faults are found")


def _document(arguments: argparse.Namespace) -> None:
    reports.take()
    (reports.DOCS / "verification.md").write_text(plan.page())
    (reports.DOCS / "hardware.md").write_text(reports.datasheet())
    if arguments.one_commit and (mixed := plan.mixed()):
        sys.exit("\n".join(["the record is not of this commit:", *mixed]))


def main(argv: list[str] | None = None) -> None:
    arguments = _parser().parse_args(argv)
    if "seed" in arguments:
        print(f"seed {arguments.seed}")
    with interruptible():
        arguments.run(arguments)


if __name__ == "__main__":
    main()
