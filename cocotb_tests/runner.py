"""Builds a simulator for each engine, runs the benches in it and gathers what they measured."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree

from cocotb_tools.runner import Runner, Verilator, get_runner

from gen import toolchain
from gen.config import Config
from gen.verilog import PARTS, module_name, verilog_text

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
        return [[word for word in command if word != "--public-flat-rw"] for command in super()._build_command()]


def run(
    configs: list[Config],
    folder: Path,
    *,
    blocks: int,
    seed: int,
    simulator: str,
    waves: bool,
    activations: Path | None,
) -> Iterator[Row]:
    """Run all benches on both engines of each configuration.

    Args:
        folder: where simulators and logs go; a simulator is built again only if its Verilog changed.
        blocks: random and real blocks to compare with golden/, for each engine.
        seed: of stimulus and stalls.
        waves: leave a waveform beside the log.
        activations: an ``.npz`` of real activations to mix in.

    Raises:
        BenchError: a bench failed or found a mismatch.
        gen.toolchain.ToolError: there is no C++ compiler.
    """
    for config in configs:
        verilog = verilog_text(config)
        for part in PARTS:
            place = folder / simulator / config.slug / part
            runner = _build(verilog, module_name(config, part), place, simulator, waves)
            results = place / "results.json"
            results.unlink(missing_ok=True)
            task = {
                "part": part,
                "fmt": asdict(config.fmt),
                "bus_bytes": config.bus_bytes,
                "latency": PARTS[part](config.fmt, config.bus_bytes).latency,
                "blocks": blocks,
                "seed": seed,
                "activations": str(activations.resolve()) if activations else None,
                "results": str(results.resolve()),
            }
            _test(runner, task, module_name(config, part), place, waves)
            yield Row(config.name, part, simulator, **json.loads(results.read_text()))


def _build(verilog: str, top: str, place: Path, simulator: str, waves: bool) -> Runner:
    toolchain.cxx()
    os.environ |= toolchain.environment()
    os.environ["MAKEFLAGS"] = " ".join(toolchain.MAKE_VARIABLES)
    runner = _PortsOnlyVerilator() if simulator == "verilator" else get_runner(simulator)
    place.mkdir(parents=True, exist_ok=True)
    source, stamp = place / "engine.v", place / "built"
    ports = place / "ports.vlt"
    recipe = hashlib.sha256(f"{verilog}{waves}{Path(__file__).read_text()}".encode()).hexdigest()
    build_arguments = []
    sources = [source]
    if simulator == "verilator":
        ports.write_text(f'`verilator_config\npublic_flat_rw -module "{top}" -port "*"\n')
        sources = [ports, source]
        build_arguments = ["-Wno-fatal", "-O3", *(["--trace-fst"] if waves else [])]
    if not stamp.exists() or stamp.read_text() != recipe:
        shutil.rmtree(place / "model", ignore_errors=True)
        source.write_text(verilog)
    runner.build(
        sources=sources,
        hdl_toplevel=top,
        build_args=build_arguments,
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
