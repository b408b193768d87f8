"""Builds a simulator for each engine, runs the benches in it and gathers what they measured."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import cocotb
from cocotb_tools.runner import Runner, Verilator, get_runner

from gen import netlist, toolchain
from gen.config import Config
from gen.verilog import digest, module_name, verilog_text

from .waves import vcd_to_fst

SIMULATORS = ("verilator", "icarus")
BENCHES = {"stream": "bench_engines", "axi": "bench_axi", "runtime": "bench_runtime"}


class BenchError(RuntimeError):
    """A bench failed; the message says which, and with which seed."""


@dataclass(frozen=True)
class Row:
    """What the benches found of one engine.

    Attributes:
        bytes_per_cycle: of uncompressed data, without stalls.
        bytes_per_cycle_stalled: the same while each end pauses every other cycle, at random.
        latency_min, latency_mean, latency_max: cycles from a block's last word in to its first word out.
        coverage: group, name and hits of each bin, see :mod:`cocotb_tests.coverage`.
    """

    config: str
    part: str
    simulator: str
    blocks: int
    mismatches: int
    bytes_per_cycle: float
    bytes_per_cycle_stalled: float
    latency_min: int
    latency_mean: float
    latency_max: int
    coverage: list[tuple[str, str, int]]


@dataclass(frozen=True)
class Model:
    """What a simulator is made from.

    Attributes:
        name: tells models apart.
        write: writes the Verilog of a configuration's part to a path; returns further sources it needs.
        verilator: options of its build.
    """

    name: str
    write: Callable[[Config, str, Path], list[Path]]
    verilator: tuple[str, ...] = ()


def _write_rtl(config: Config, part: str, path: Path) -> list[Path]:
    path.write_text(verilog_text(config))
    return []


def _write_gates(config: Config, part: str, path: Path) -> list[Path]:
    netlist.write_gates(config, part, path)
    return [netlist.SIMULATION_CELLS]


RTL = Model("rtl", _write_rtl)
# Without initial values: Verilator fills what no reset has set with random bits, Icarus with X.
GATES = Model("gates", _write_gates, ("--x-initial", "unique", "--x-assign", "unique"))
COVERAGE = Model(
    "coverage", _write_rtl, ("--coverage-line", "--coverage-toggle", "--coverage-max-width", "100000")
)


class _PortsOnlyVerilator(Verilator):
    """Verilator with access to the ports alone: cocotb's own runner makes every signal public, which
    costs several times in speed."""

    def _build_command(self) -> list[list[str]]:
        return [
            [word for word in command if word != "--public-flat-rw"] for command in super()._build_command()
        ]


def run(config: Config, part: str, folder: Path, **options: Any) -> Row:
    """Run all benches on one engine; see :func:`simulate` for the options.

    Raises:
        BenchError: a bench failed or found a mismatch.
        gen.toolchain.ToolError: there is no C++ compiler, or a tool failed.
    """
    figures: dict[str, Any] = {"blocks": 0, "mismatches": 0}
    coverage: dict[tuple[str, str], int] = {}
    for note in simulate(config, part, folder, **options):
        for name in ("blocks", "mismatches"):
            figures[name] += note.pop(name, 0)
        for group, name, hits in note.pop("coverage", []):
            coverage[group, name] = coverage.get((group, name), 0) + hits
        figures |= note
    figures["coverage"] = [(*place, hits) for place, hits in coverage.items()]
    return Row(config.name, part, options.get("simulator", "verilator"), **figures)


def simulate(
    config: Config,
    part: str,
    folder: Path,
    *,
    blocks: int,
    seed: int,
    model: Model = RTL,
    bench: str | None = None,
    only: str | None = None,
    simulator: str = "verilator",
    waves: bool = False,
    activations: Path | None = None,
    mutants: int = 0,
) -> list[dict[str, Any]]:
    """Run the benches of a module on one engine and return what they noted.

    Args:
        config, part: which engine: "compressor" or "decompressor".
        folder: where simulators and logs go; a simulator is built again only if its sources changed.
        bench: the module of the benches (default: that of the configuration's interface).
        blocks: random and real blocks to compare with golden/.
        seed: of stimulus, stalls and unknown initial values.
        only: a regular expression for the names of the benches to run (default: all).
        waves: leave a waveform beside the log.
        activations: an ``.npz`` of real activations to mix in.
        mutants: how many the model has; benches are meant to fail on them.

    Raises:
        BenchError: a bench failed on an engine without mutants.
        gen.toolchain.ToolError: there is no C++ compiler, or a tool failed.
    """
    place = folder / simulator / config.slug / part
    place.mkdir(parents=True, exist_ok=True)
    runner = _build(config, part, place, model, simulator, waves)
    results = place / "results.jsonl"
    results.unlink(missing_ok=True)
    task = {
        "part": part,
        "formats": [(type(fmt).__name__, asdict(fmt)) for fmt in config.formats],
        "bus_bytes": config.bus_bytes,
        "blocks": blocks,
        "seed": seed,
        "activations": str(activations.resolve()) if activations else None,
        "mutants": mutants,
        "results": str(results.resolve()),
    }
    bench = bench or BENCHES[config.interface]
    failed = _test(runner, task, module_name(config, part), place, bench, only, waves)
    if failed and not mutants:
        tail = "\n".join((place / "bench.log").read_text().splitlines()[-40:])
        raise BenchError(f"{place}: {', '.join(failed)} (--seed {seed})\n{tail}")
    if waves and simulator == "verilator":
        vcd_to_fst(place / "dump.vcd", place / f"{part}.fst")
    return [json.loads(line) for line in results.read_text().splitlines()]


def _build(config: Config, part: str, place: Path, model: Model, simulator: str, waves: bool) -> Runner:
    toolchain.cxx()
    os.environ |= toolchain.environment()
    os.environ["MAKEFLAGS"] = " ".join([*toolchain.MAKE_VARIABLES, "OPT_FAST=-O1"])  # quicker to build
    runner = _PortsOnlyVerilator() if simulator == "verilator" else get_runner(simulator)
    top = module_name(config, part)
    source, ports, stamp = place / "engine.v", place / "ports.vlt", place / "digest"
    recipe = f"{digest(config)} {model.name} {waves} {cocotb.__version__}"
    if not stamp.exists() or stamp.read_text() != recipe:
        stamp.unlink(missing_ok=True)
        shutil.rmtree(place / "model", ignore_errors=True)
        further = model.write(config, part, source)
        ports.write_text(f'`verilator_config\npublic_flat_rw -module "{top}" -port "*"\n')
        (place / "further").write_text("\n".join(map(str, further)))
    is_verilator = simulator == "verilator"
    sources = [*([ports] if is_verilator else []), source]
    runner.build(
        sources=[*sources, *map(Path, (place / "further").read_text().splitlines())],
        hdl_toplevel=top,
        build_args=["-Wno-fatal", "-O3", *model.verilator] if is_verilator else [],
        build_dir=place / "model",
        waves=waves,
        timescale=("1ns", "1ns"),
        log_file=place / "build.log",
    )
    stamp.write_text(recipe)
    return runner


def _test(
    runner: Runner, task: dict[str, Any], top: str, place: Path, bench: str, only: str | None, waves: bool
) -> list[str]:
    """Run the benches; return the names of those that failed."""
    root = str(Path(__file__).resolve().parent.parent)
    report = (place / "results.xml").resolve()
    with suppress(
        SystemExit
    ):  # the runner's end where a bench failed and pytest is about: the report tells more
        runner.test(
            hdl_toplevel=top,
            test_module=f"cocotb_tests.{bench}",
            test_filter=only,
            build_dir=place / "model",
            test_dir=place,
            waves=waves,
            seed=task["seed"],
            results_xml=report,
            plusargs=["+verilator+rand+reset+2", f"+verilator+seed+{task['seed']}"],
            extra_env={
                "BITSTASH_BENCH": json.dumps(task),
                "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]),
                "COCOTB_LOG_LEVEL": "WARNING",
            },
            log_file=place / "bench.log",
        )
    cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    if not cases:
        raise BenchError(f"{place}: no bench ran, or the simulator crashed; see bench.log")
    return [case.get("name", "") for case in cases if case.find("failure") is not None]
