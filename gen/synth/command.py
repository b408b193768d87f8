"""The command line of ``python -m gen synth``."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

from golden import Format
from rtl.stream import BUS_BYTES

from ..arguments import add_jobs
from ..config import PRESETS, Config
from ..verilog import geometry
from . import ecp5
from .report import synthesise
from .scaling import measure_scaling

# Place and route takes minutes: one preset at two widths says what an FPGA is like.
PLACED = "gpt2-fp32-3.2x"
PLACED_BYTES = (16, 64)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--preset", nargs="+", choices=PRESETS, help="these presets instead of a format")
    parser.add_argument("--bus-bytes", nargs="+", type=int, help="bytes of a bus word (default: all widths)")
    parser.add_argument(
        "--memories", action="store_true", help="delay lines as memories, whose bits are no gates"
    )
    parser.add_argument("--gates-only", action="store_true", help="no place and route, which takes minutes")
    parser.add_argument(
        "--place-all",
        action="store_true",
        help="place every engine of 16 and 64 bytes, with one seed, which takes hours",
    )
    parser.add_argument("--paths", action="store_true", help="also print the longest paths")
    parser.add_argument(
        "--scaling",
        type=Path,
        metavar="FOLDER",
        help="instead, measure sizes of bus and block, and write scaling.json there",
    )
    add_jobs(parser, "engines")


def run(arguments: argparse.Namespace, fmt: Format | None = None) -> None:
    """Do what was asked for.

    Args:
        arguments: those of :func:`add_arguments`.
        fmt: what to measure instead of presets.

    Raises:
        ValueError: an argument, $LIBERTY or $ACTIVITY is wrong.
        gen.toolchain.ToolError: a tool failed.
    """
    configs = [
        replace(config, bus_bytes=width, memories=arguments.memories)
        for config in ([Config(fmt)] if fmt else [PRESETS[name] for name in arguments.preset or PRESETS])
        for width in arguments.bus_bytes or BUS_BYTES
    ]
    for config in configs:
        geometry(config)  # raises if there is no such engine
    libraries = [Path(name) for name in os.environ.get("LIBERTY", "").split()]
    activity = os.environ.get("ACTIVITY")
    if arguments.scaling:
        measure_scaling(arguments.jobs, arguments.scaling)
        return
    synthesise(
        configs,
        arguments.jobs,
        placed={config: seeds for config in configs if (seeds := _seeds(config, arguments))},
        libraries=libraries,
        activity=Path(activity) if activity else None,
        show_paths=arguments.paths,
    )


def _seeds(config: Config, arguments: argparse.Namespace) -> tuple[int, ...]:
    """Of what is placed and routed; of the one preset that always is, as many as make a median."""
    if arguments.gates_only or config.memories or config.bus_bytes not in PLACED_BYTES:
        return ()
    return ecp5.SEEDS if config.preset == PLACED else ecp5.SEEDS[:1] * arguments.place_all
