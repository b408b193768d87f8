"""The command line of ``python -m gen board``."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from golden import FORMATS as SCHEMES
from rtl.stream import BUS_BYTES

from .. import provenance
from ..config import PRESETS
from . import bitstream, simulation
from .check import Found
from .device import About, Device
from .files import (
    Compressed,
    check_format,
    compress_array,
    decompress_array,
    format_for,
    read_array,
    read_compressed,
)
from .link import Link, LinkError, open_port
from .selftest import selftest

ROOT = Path("build/board")
SIMULATION = "simulation"
FORMATS = tuple(PRESETS[name].fmt for name in ("gpt2-fp32-3.2x", "gpt2-fp32-16x"))
MEMORY_BYTES = 32768
_NARROW = 16  # bytes of a bus word, unless another is asked for
SUFFIXES = {"compress": ".npz", "decompress": ".out.npy"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _add_options(parser)
    actions = parser.add_subparsers(dest="action", required=True)
    for name, text in (("build", "build a bitstream"), ("load", "load it over the board's cable")):
        on_board = actions.add_parser(name, help=text)
        on_board.add_argument("board", help=", ".join(bitstream.BOARDS))
    test = actions.add_parser("selftest", help="put blocks through the engines and compare")
    test.add_argument("--blocks", type=int, default=10_000, help="of each format (default: 10,000)")
    compress = actions.add_parser("compress", help="compress an array on the board, and compare")
    compress.add_argument("file", type=Path, help=".npy")
    compress.add_argument(
        "--scheme", choices=SCHEMES, help="of the board's formats (default: the first for the array's type)"
    )
    decompress = actions.add_parser("decompress", help="decompress what compress wrote, and compare")
    decompress.add_argument("file", type=Path, help=".npz")
    for action, on_file in (("compress", compress), ("decompress", decompress)):
        default = f"default: the file's name with {SUFFIXES[action]}"
        on_file.add_argument("-o", "--output", type=Path, help=default)
    for action_parser in actions.choices.values():  # options may stand behind the action, too
        _add_options(action_parser, default=argparse.SUPPRESS)


def _add_options(parser: argparse.ArgumentParser, **default: Any) -> None:
    """What every action takes."""
    text = f"the board's serial port, or {SIMULATION}: Verilator instead of a board"
    parser.add_argument("--port", help=text, **default)
    text = f"of what is built, loaded or simulated (default: {_NARROW})"
    default_bus = {"default": _NARROW} | default
    parser.add_argument("--bus-bytes", type=int, choices=BUS_BYTES, help=text, **default_bus)
    text = "in what is built, loaded or simulated, those of one format (default: both)"
    parser.add_argument("--engines", choices=SCHEMES, help=text, **default)


def run(arguments: argparse.Namespace) -> None:
    """Do what was asked for.

    Raises:
        ValueError: an argument is wrong.
        gen.toolchain.ToolError: a tool failed, or the clock is missed.
        gen.board.link.LinkError: the board does not answer, or is another design.
        SystemExit: a block was wrong.
    """
    formats = tuple(fmt for fmt in FORMATS if arguments.engines in (None, fmt.scheme))
    about = About.of(formats, arguments.bus_bytes, MEMORY_BYTES)
    if arguments.action in ("build", "load"):
        if arguments.port is not None:
            raise ValueError(f"--port must not be given with {arguments.action}, not {arguments.port!r}")
        _on_board(arguments, about)
        return
    if not arguments.port:
        raise ValueError(f"--port must be given: the board's, or {SIMULATION}")
    work = _work(arguments, about)
    with connected(arguments.port, about) as device, Progress(console=Console(stderr=True)) as progress:
        found = work(device, progress)
        errors = device.link.errors
    print(f"{found.mismatches} mismatches in {found.blocks} blocks, {errors} frames sent again")
    if found.mismatches:
        sys.exit(1)


def _work(arguments: argparse.Namespace, about: About) -> Callable[[Device, Progress], Found]:
    """What is to be done with the board; its file is read, and what is wrong is said, before there is one."""
    if arguments.action == "selftest":
        if arguments.blocks < 1:
            raise ValueError(f"--blocks must be at least 1, not {arguments.blocks}")
        path = ROOT / f"{_name('selftest', arguments)}.json"
        path.unlink(missing_ok=True)
        return lambda device, progress: _selftest(device, arguments, path, progress)
    source: Path = arguments.file
    read = read_array if arguments.action == "compress" else read_compressed
    content = read(source)
    target = arguments.output or source.with_suffix(SUFFIXES[arguments.action])
    _check_output(target, source)
    formats = about.formats if arguments.port == SIMULATION else FORMATS  # of some bitstream at least
    if isinstance(content, Compressed):
        check_format(formats, content.fmt)
        return lambda device, progress: decompress_array(device, content, target, progress)
    format_for(formats, content.dtype, arguments.scheme)
    return lambda device, progress: compress_array(device, content, target, arguments.scheme, progress)


def _check_output(target: Path, source: Path) -> None:
    """Raise ValueError for what could not be written in the end, or would take the source's place."""
    if target.is_dir():
        raise ValueError(f"--output must be a file, not the folder {str(target)!r}")
    if not target.parent.is_dir():
        raise ValueError(f"--output must be in a folder that there is, not {str(target)!r}")
    if target.exists() and target.samefile(source):
        raise ValueError(f"--output must be another file than the one that is read, not {str(target)!r}")
    try:
        tempfile.TemporaryFile(dir=target.parent).close()
    except OSError as error:
        raise ValueError(
            f"--output must be in a folder that can be written to, not {str(target)!r}: {error.strerror}"
        ) from None


@contextmanager
def connected(port: str, about: About) -> Iterator[Device]:
    """A device behind a port; behind ``simulation`` that of ``about``."""
    if port != SIMULATION:
        with open_port(port) as opened:
            yield Device(Link(opened))
        return
    kind = "-".join([f"{about.bus_bytes}", *(fmt.scheme for fmt in about.formats)])
    program = simulation.build(about, ROOT / f"simulation-{kind}")
    with simulation.running(program) as name, open_port(name) as opened:
        yield Device(Link(opened, simulation.PATIENCE))


def _others(arguments: argparse.Namespace) -> dict[str, Any]:
    """Options that are not as they are by default, which have a place of their own in :data:`ROOT`."""
    given = {"--bus-bytes": arguments.bus_bytes, "--engines": arguments.engines}
    return {option: value for option, value in given.items() if value not in (None, _NARROW)}


def _name(what: str, arguments: argparse.Namespace) -> str:
    return "-".join([what, *map(str, _others(arguments).values())])


def _on_board(arguments: argparse.Namespace, about: About) -> None:
    name = _name(arguments.board, arguments)
    if arguments.action == "load":
        options = " ".join(f"{option} {value}" for option, value in _others(arguments).items())
        bitstream.load(arguments.board, ROOT / name, options)
        return
    path = ROOT / f"{name}.json"
    path.unlink(missing_ok=True)
    found = bitstream.build(arguments.board, about, ROOT / name)
    _write(found, path)
    full = found["luts"] / found["luts_of"]
    print(
        f"{found['luts']:,} of {found['luts_of']:,} LUTs ({full:.0%}), {found['mhz']} MHz of "
        f"{found['clock_mhz']} MHz, {ROOT / name / 'board.bit'}; wrote {path}"
    )


def _selftest(device: Device, arguments: argparse.Namespace, path: Path, progress: Progress) -> Found:
    found = selftest(device, arguments.blocks, progress)
    total, rows = Found(), []
    for fmt, part in found.items():
        rate = part.taken / part.cycles
        rows.append({"format": str(fmt), **vars(part), "bytes_per_cycle": round(rate, 2)})
        print(f"{fmt}: {part.mismatches} mismatches in {part.blocks} blocks, {rate:.1f} bytes a cycle")
        total.blocks += part.blocks
        total.mismatches += part.mismatches
    report: dict[str, Any] = {"simulated": arguments.port == SIMULATION, "bus_bytes": device.bus_bytes}
    report |= {"blocks": total.blocks, "mismatches": total.mismatches, "link_errors": device.link.errors}
    _write(report | {"formats": rows}, path)
    return total


def _write(report: dict[str, Any], path: Path) -> None:
    """Write a report, and beside it what it was made with."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n")
    provenance.note(path)


__all__ = ["LinkError", "add_arguments", "connected", "run"]
