"""Builds a simulator for each engine, runs the benches in it and gathers what they measured."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import cocotb
from cocotb_tools.runner import Runner, Verilator, get_runner

from gen import netlist, provenance, toolchain
from gen.config import Config
from gen.verilog import (
    DELAY_MEMORY_TEXT,
    convert_readable,
    digest,
    module_name,
    readable_text,
    verilog_text,
)

from .configs import StreamPart
from .waves import vcd_to_fst

SIMULATORS = ("verilator", "icarus")
_ROOT = Path(__file__).resolve().parent.parent
BENCHES = {"stream": "bench_engines", "axi": "bench_axi", "runtime": "bench_runtime"}  # of an interface
STREAM_BENCH = "bench_stream"  # of parts of rtl/stream
MUTANT_BENCH = "finds/"  # how names begin of those of bench_mutants, one for each mutant and bench
# What runs outside the simulator; the benches do not depend on it.
_OUTSIDE = {"__main__", "claims", "code_coverage", "configs", "mutation", "plan", "reports", "waves"}
FEW_BLOCKS = 2000  # a model of fewer is compiled for longer than it runs, if the compiler optimises


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
        make: variables of the makefile that compiles what Verilator wrote.
    """

    name: str
    write: Callable[[Config, str, Path], list[Path]]
    verilator: tuple[str, ...] = ()
    make: tuple[str, ...] = toolchain.MAKE_VARIABLES


def _write_rtl(config: Config, part: str, path: Path) -> list[Path]:
    """What a chip project is given."""
    path.write_text(readable_text(config, part) + ("\n" + DELAY_MEMORY_TEXT) * config.memories)
    return []


def _write_amaranth(config: Config, part: str, path: Path) -> list[Path]:
    """The same as Amaranth writes it, in which every field has a signal of its own."""
    path.write_text(verilog_text(config, part))
    return []


def _write_gates(config: Config, part: str, path: Path) -> list[Path]:
    netlist.write_gates(config, part, path)
    return [netlist.SIMULATION_CELLS]


RTL = Model("rtl", _write_rtl)
# Without initial values: Verilator fills what no reset has set with random bits, Icarus with X.
GATES = Model("gates", _write_gates, ("--x-initial", "unique", "--x-assign", "unique"))
COVERAGE = Model(
    "coverage",
    _write_amaranth,
    ("--coverage-line", "--coverage-toggle", "--coverage-max-width", "100000"),
    toolchain.MAKE_IN_PIECES,
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
    mutants: Sequence[int] = (),
    benches: str = "",
    keep: bool = False,
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
        mutants: those of the model to try; benches are meant to fail on them.
        benches: for mutants, which: "quick" or "long".
        keep: what the same benches noted before of the same Verilog, with the same options, is returned.

    Raises:
        BenchError: a bench failed on an engine without mutants.
        gen.toolchain.ToolError: there is no C++ compiler, or a tool failed.
    """
    place = folder / simulator / config.slug / part
    task = {
        "part": part,
        "formats": [(type(fmt).__name__, asdict(fmt)) for fmt in config.formats],
        "bus_bytes": config.bus_bytes,
        "interface": config.interface,
        "memories": config.memories,
        "blocks": blocks,
        "seed": seed,
        "activations": str(activations.resolve()) if activations else None,
        "mutants": [*mutants],
        "benches": benches,
    }
    design = Design(
        module_name(config, part),
        f"{digest(config)} {model.name}",
        partial(model.write, config, part),
        model.verilator,
        model.make,
    )
    notes = run_benches(
        design,
        place,
        task,
        bench or BENCHES[config.interface],
        only,
        simulator,
        waves,
        MUTANT_BENCH if mutants else None,
        keep,
    )
    if waves and simulator == "verilator":
        vcd_to_fst(place / "dump.vcd", place / f"{part}.fst")
    return notes


@dataclass(frozen=True)
class PartRow:
    """What the benches found of a part of rtl/stream.

    Attributes:
        words_per_cycle, words_per_cycle_stalled: of equal clocks, without stalls and while each end pauses
            every other cycle at random.
        latency_min, latency_max: which edge of the sink's clock after a word was taken sees it offered.
    """

    config: str
    simulator: str
    words: int
    mismatches: int
    words_per_cycle: float
    words_per_cycle_stalled: float
    latency_min: int
    latency_max: int


def run_part(
    part: StreamPart, folder: Path, *, words: int, seed: int, simulator: str = "verilator", keep: bool = False
) -> PartRow:
    """Run all benches on a part of rtl/stream; see :func:`run`."""
    top = f"bitstash_{part.slug}"

    def write(path: Path) -> list[Path]:
        path.write_text(convert_readable(part.make(), top))
        return []

    task = asdict(part) | {"words": words, "seed": seed}
    figures: dict[str, Any] = {"words": 0, "mismatches": 0}
    design = Design(top, digest(part), write)
    place = folder / simulator / part.slug
    for note in run_benches(design, place, task, STREAM_BENCH, None, simulator, keep=keep):
        for name in ("words", "mismatches"):
            figures[name] += note.pop(name, 0)
        figures |= note
    return PartRow(part.slug, simulator, **figures)


@dataclass(frozen=True)
class Design:
    """A module to simulate.

    Attributes:
        top: its name.
        recipe: changes whenever what is written may.
        write: writes its Verilog to a path; returns further sources it needs.
        verilator, make: as in :class:`Model`.
    """

    top: str
    recipe: str
    write: Callable[[Path], list[Path]]
    verilator: tuple[str, ...] = ()
    make: tuple[str, ...] = toolchain.MAKE_VARIABLES


def run_benches(
    design: Design,
    place: Path,
    task: dict[str, Any],
    bench: str,
    only: str | None,
    simulator: str,
    waves: bool = False,
    meant_to_fail: str | None = None,
    keep: bool = False,
) -> list[dict[str, Any]]:
    """Build a simulator and run a module of benches in it; return what they noted, or with ``keep`` had.

    Args:
        meant_to_fail: how the names of benches begin that may.
    """
    place.mkdir(parents=True, exist_ok=True)
    few = task.get("blocks", FEW_BLOCKS) < FEW_BLOCKS and not task.get("mutants")
    optimise = "-O0" if few else "-O1"
    source = _write(design, place, f"{waves} {optimise}")
    notes = place / f"{_key(source, design, task, bench, only, simulator)}.jsonl"
    if not (keep and notes.exists()):
        results = place / "results.jsonl"
        results.unlink(missing_ok=True)
        runner = _build(design, place, simulator, waves, optimise)
        noting = task | {"results": str(results.resolve())}
        failed = _test(runner, noting, design.top, place, bench, only, waves, meant_to_fail is not None)
        failed = [name for name in failed if meant_to_fail is None or not name.startswith(meant_to_fail)]
        if failed:
            tail = "\n".join((place / "bench.log").read_text().splitlines()[-40:])
            raise BenchError(f"{place}: {', '.join(failed)} (--seed {task['seed']})\n{tail}")
        results.replace(notes)
    return [json.loads(line) for line in notes.read_text().splitlines()]


def _write(design: Design, place: Path, how: str) -> Path:
    """Write the Verilog, if it may have changed, and forget a model of another or built in another way."""
    source, stamp = place / "engine.v", place / "digest"
    recipe = f"{design.recipe} {how} {cocotb.__version__}"
    if not stamp.exists() or stamp.read_text() != recipe:
        stamp.unlink(missing_ok=True)
        shutil.rmtree(place / "model", ignore_errors=True)
        further = design.write(source)
        (place / "further").write_text("\n".join(map(str, further)))
        (place / "ports.vlt").write_text(
            f'`verilator_config\npublic_flat_rw -module "{design.top}" -port "*"\n'
        )
        stamp.write_text(recipe)
    return source


def _key(
    source: Path, design: Design, task: dict[str, Any], bench: str, only: str | None, simulator: str
) -> str:
    """What the benches' notes depend on."""
    folder = Path(__file__).parent
    benches = {*folder.glob("*.py"), *(folder / bench.replace(".", os.sep)).parent.glob("*.py")}
    benches = {path for path in benches if path.stem not in _OUTSIDE}
    files = [source, *sorted(benches), *([Path(task["activations"])] if task.get("activations") else [])]
    how = repr((task, bench, only, simulator, design.verilator, provenance.tools()))
    words = [digest(how, ["golden"]).encode(), *(file.read_bytes() for file in files)]
    return hashlib.sha256(b"\0".join(words)).hexdigest()[:16]


def _build(design: Design, place: Path, simulator: str, waves: bool, optimise: str) -> Runner:
    toolchain.cxx()
    os.environ |= toolchain.environment()
    os.environ["MAKEFLAGS"] = " ".join([*design.make, f"OPT_FAST={optimise}"])
    built = place / "model" / "built"
    if not built.exists():
        shutil.rmtree(place / "model", ignore_errors=True)  # what was interrupted may have left half a file
    is_verilator = simulator == "verilator"
    runner = _PortsOnlyVerilator() if is_verilator else get_runner(simulator)
    sources = [*([place / "ports.vlt"] if is_verilator else []), place / "engine.v"]
    runner.build(
        sources=[*sources, *map(Path, (place / "further").read_text().splitlines())],
        hdl_toplevel=design.top,
        build_args=["-Wno-fatal", "-O3", *design.verilator] if is_verilator else [],
        build_dir=place / "model",
        waves=waves,
        timescale=("1ns", "1ns"),
        log_file=place / "build.log",
    )
    built.touch()
    return runner


def _test(
    runner: Runner,
    task: dict[str, Any],
    top: str,
    place: Path,
    bench: str,
    only: str | None,
    waves: bool,
    may_fail: bool,
) -> list[str]:
    """Run the benches; return the names of those that failed."""
    report = (place / "results.xml").resolve()
    report.unlink(missing_ok=True)
    # The runner's end where a bench failed and pytest is about: the report tells more. Where benches are
    # meant to fail, what they leave behind can make the simulator abort once the report is written.
    with suppress(SystemExit, *([RuntimeError] if may_fail else [])):
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
                "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")]),
                "COCOTB_LOG_LEVEL": "WARNING",
                "COCOTB_REWRITE_ASSERTION_FILES": "bench_*.py",  # else all that is imported, seconds a run
            },
            log_file=place / "bench.log",
        )
    cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    if not cases:
        raise BenchError(f"{place}: no bench ran, or the simulator crashed; see bench.log")
    return [case.get("name", "") for case in cases if case.find("failure") is not None]
