"""Builds a simulator for each engine, runs the benches in it and gathers what they measured."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree

import cocotb
from cocotb_tools.runner import Runner, Verilator, get_runner

from gen import toolchain
from gen.config import Config
from gen.verilog import PARTS, digest, module_name, verilog_text
from rtl import Engine

from .waves import vcd_to_fst

SIMULATORS = ("verilator", "icarus")


class BenchError(RuntimeError):
    """A bench failed; the message says which."""


@dataclass(frozen=True)
class Row:
    """What the benches found of one engine; ``latency_cycles`` is from a block's last word in to its
    first word out, ``bytes_per_cycle`` of uncompressed data without stalls."""

    config: str
    part: str
    simulator: str
    blocks: int
    mismatches: int
    bytes_per_cycle: float
    latency_cycles: int


class _PortsOnlyVerilator(Verilator):
    """Verilator with access to the ports alone: cocotb's own runner makes every signal public, which
    costs several times in speed."""

    def _build_command(self) -> list[list[str]]:
        return [
            [word for word in command if word != "--public-flat-rw"] for command in super()._build_command()
        ]


def run(
    config: Config,
    part: str,
    folder: Path,
    *,
    blocks: int,
    seed: int,
    simulator: str,
    waves: bool,
    activations: Path | None,
) -> Row:
    """Run all benches on one engine.

    Args:
        config, part: which engine: "compressor" or "decompressor".
        folder: where simulators and logs go; a simulator is built again only if its sources changed.
        blocks: random and real blocks to compare with golden/.
        seed: of stimulus and stalls.
        waves: leave a waveform beside the log.
        activations: an ``.npz`` of real activations to mix in.

    Raises:
        BenchError: a bench failed or found a mismatch.
        gen.toolchain.ToolError: there is no C++ compiler.
    """
    place = folder / simulator / config.slug / part
    place.mkdir(parents=True, exist_ok=True)
    runner = _build(config, part, place, simulator, waves)
    results = place / "results.json"
    results.unlink(missing_ok=True)
    task = {
        "part": part,
        "fmt": asdict(config.fmt),
        "bus_bytes": config.bus_bytes,
        "latency": PARTS[part].latency(Engine(config.fmt, config.bus_bytes)),
        "blocks": blocks,
        "seed": seed,
        "activations": str(activations.resolve()) if activations else None,
        "results": str(results.resolve()),
    }
    _test(runner, task, module_name(config, part), place, waves)
    if waves and simulator == "verilator":
        vcd_to_fst(place / "dump.vcd", place / f"{part}.fst")
    return Row(config.name, part, simulator, **json.loads(results.read_text()))


def _build(config: Config, part: str, place: Path, simulator: str, waves: bool) -> Runner:
    toolchain.cxx()
    os.environ |= toolchain.environment()
    os.environ["MAKEFLAGS"] = " ".join([*toolchain.MAKE_VARIABLES, "OPT_FAST=-O1"])  # quicker to build
    runner = _PortsOnlyVerilator() if simulator == "verilator" else get_runner(simulator)
    top = module_name(config, part)
    source, ports, stamp = place / "engine.v", place / "ports.vlt", place / "digest"
    recipe = f"{digest(config)} {waves} {cocotb.__version__}"
    if not stamp.exists() or stamp.read_text() != recipe:
        stamp.unlink(missing_ok=True)
        shutil.rmtree(place / "model", ignore_errors=True)
        source.write_text(verilog_text(config))
        ports.write_text(f'`verilator_config\npublic_flat_rw -module "{top}" -port "*"\n')
    is_verilator = simulator == "verilator"
    runner.build(
        sources=[ports, source] if is_verilator else [source],
        hdl_toplevel=top,
        build_args=["-Wno-fatal", "-O3"] if is_verilator else [],
        build_dir=place / "model",
        waves=waves,
        timescale=("1ns", "1ns"),
        log_file=place / "build.log",
    )
    stamp.write_text(recipe)
    return runner


def _test(runner: Runner, task: dict, top: str, place: Path, waves: bool) -> None:
    log = place / "bench.log"
    root = str(Path(__file__).resolve().parent.parent)
    report = runner.test(
        hdl_toplevel=top,
        test_module="cocotb_tests.bench_engines",
        build_dir=place / "model",
        test_dir=place,
        waves=waves,
        seed=task["seed"],
        extra_env={
            "BITSTASH_BENCH": json.dumps(task),
            "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]),
            "COCOTB_LOG_LEVEL": "WARNING",
        },
        log_file=log,
    )
    cases = list(ElementTree.parse(report).iter("testcase"))
    failed = [case.get("name") for case in cases if case.find("failure") is not None]
    if failed or not cases:
        tail = "\n".join(log.read_text().splitlines()[-40:])
        raise BenchError(f"{place}: {', '.join(map(str, failed)) or 'no bench ran'}\n{tail}")
