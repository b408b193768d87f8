"""The command line of ``python -m gen board``."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
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
from .device import About, Device, describe
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
    _add_port(parser)
    _add_engines(parser)
    parser.epilog = (
        "In this order: build, load, selftest, compress, decompress. docs/board.md has them as commands."
    )
    actions = parser.add_subparsers(dest="action", required=True)
    for name, text in (("build", "build a bitstream"), ("load", "load it over the board's cable")):
        on_board = actions.add_parser(name, help=text, description=text)
        on_board.add_argument("board", help=", ".join(bitstream.BOARDS))
    text = "openFPGALoader's name of the cable, if not the usual one: ft4232 for an ECPIX-5 of revision 3"
    actions.choices["load"].add_argument("--cable", help=text)
    text = "put blocks through the engines and compare"
    test = actions.add_parser("selftest", help=text, description=text)
    test.add_argument("--blocks", type=int, default=10_000, help="of each format (default: 10,000)")
    text = "compress an array on the board, and compare"
    compress = actions.add_parser("compress", help=text, description=text)
    compress.add_argument("file", type=Path, help="a .npy of one float32 array")
    compress.add_argument(
        "--scheme", choices=SCHEMES, help="of the board's formats (default: the first for the array's type)"
    )
    text = "decompress what compress wrote, and compare"
    decompress = actions.add_parser("decompress", help=text, description=text)
    decompress.add_argument("file", type=Path, help="the .npz")
    for action, on_file in (("compress", compress), ("decompress", decompress)):
        default = f"default: the file's name with {SUFFIXES[action]}"
        on_file.add_argument("-o", "--output", type=Path, help=default)
    for name, action_parser in actions.choices.items():  # options may stand behind the action, too
        if name not in ("build", "load"):
            _add_port(action_parser, default=argparse.SUPPRESS)
        _add_engines(action_parser, default=argparse.SUPPRESS)


def _add_port(parser: argparse.ArgumentParser, **default: Any) -> None:
    text = f"the board's serial port, /dev/ttyUSB0 for example, or {SIMULATION}: Verilator instead of a board"
    parser.add_argument("--port", help=text, **default)


def _add_engines(parser: argparse.ArgumentParser, **default: Any) -> None:
    text = f"bytes of a word of the engines (default: {_NARROW}; behind a port what the board has)"
    parser.add_argument("--bus-bytes", type=int, choices=BUS_BYTES, help=text, **default)
    text = "this format's engines only (default: both formats'; behind a port what the board has)"
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
    about = About.of(formats, arguments.bus_bytes or _NARROW, MEMORY_BYTES)
    if arguments.action in ("build", "load"):
        if arguments.port is not None:
            raise ValueError(f"--port must not be given with {arguments.action}, not {arguments.port!r}")
        _on_board(arguments, about)
        return
    if not arguments.port:
        raise ValueError(f"--port must be given: the board's, or {SIMULATION}")
    work = _work(arguments, about)
    with connected(arguments.port, about) as device, Progress(console=Console(stderr=True)) as progress:
        _check_engines(arguments, device.about)
        print(device.about)
        found = work(device, progress)
        errors = device.link.errors
    print(f"{found.mismatches} mismatches in {found.blocks} blocks, {errors} frames sent again")
    if found.mismatches:
        print(f"the first of them: {_said(found.first_mismatch or {})}")
        sys.exit(1)


def _check_engines(arguments: argparse.Namespace, about: About) -> None:
    """Raises ValueError if what was asked for is not what the board has."""
    if arguments.bus_bytes not in (None, about.bus_bytes):
        raise ValueError(f"--bus-bytes must be the board's, {about.bus_bytes}, not {arguments.bus_bytes}")
    schemes = [*dict.fromkeys(fmt.scheme for fmt in about.formats)]
    if arguments.engines and schemes != [arguments.engines]:
        raise ValueError(f"--engines must be the board's, {' and '.join(schemes)}, not {arguments.engines!r}")


def _said(mismatch: Mapping[str, Any]) -> str:
    """A :attr:`gen.board.check.Found.first_mismatch` in a line."""
    if "memory" not in mismatch:
        return (
            f"the checker differs, and what is in the memories is right; the run's request: {dict(mismatch)}"
        )
    byte = 2 * mismatch["byte"]
    expected, seen = (mismatch[name][byte : byte + 2] for name in ("expected", "seen"))
    return (
        f"block {mismatch['block']} behind the first, {mismatch['first']}, byte {mismatch['byte']} in memory "
        f"{mismatch['memory']!r}: it must be {expected}, not {seen}"
    )


def _work(arguments: argparse.Namespace, about: About) -> Callable[[Device, Progress], Found]:
    """What is to be done with the board; its file is read, and what is wrong is said, before there is one."""
    if arguments.action == "selftest":
        if arguments.blocks < 1:
            raise ValueError(f"--blocks must be at least 1, not {arguments.blocks}")
        return lambda device, progress: _selftest(device, arguments, progress)
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


def _others(about: About) -> dict[str, Any]:
    """Options that what is built is not as by default with, which has a place of its own in :data:`ROOT`."""
    others: dict[str, Any] = {} if about.bus_bytes == _NARROW else {"--bus-bytes": about.bus_bytes}
    return others if len(about.formats) > 1 else others | {"--engines": about.formats[0].scheme}


def _name(what: str, about: About) -> str:
    return "-".join([what, *map(str, _others(about).values())])


def _on_board(arguments: argparse.Namespace, about: About) -> None:
    name = _name(arguments.board, about)
    if arguments.action == "load":
        options = " ".join(f"{option} {value}" for option, value in _others(about).items())
        bitstream.load(arguments.board, ROOT / name, options, arguments.cable)
        return
    path = ROOT / f"{name}.json"
    path.unlink(missing_ok=True)
    found = bitstream.build(arguments.board, about, ROOT / name)
    _write(found, path)
    luts, rams = (found[kind] / found[f"{kind}_of"] for kind in ("luts", "block_rams"))
    print(
        f"{found['luts']:,} of {found['luts_of']:,} LUTs ({luts:.0%}), {found['block_rams']} of "
        f"{found['block_rams_of']} block RAMs ({rams:.0%}), {found['mhz']} MHz of {found['clock_mhz']} MHz, "
        f"{ROOT / name / 'board.bit'}; wrote {path}"
    )


def _selftest(device: Device, arguments: argparse.Namespace, progress: Progress) -> Found:
    simulated = arguments.port == SIMULATION
    path = ROOT / f"{_name('selftest' if simulated else 'selftest-on-board', device.about)}.json"
    path.unlink(missing_ok=True)
    found = selftest(device, arguments.blocks, progress)
    total, rows = Found(), []
    for fmt, part in found.items():
        rate = part.taken / part.cycles
        rows.append({"format": str(fmt), **vars(part), "bytes_per_cycle": round(rate, 2)})
        print(
            f"{describe(fmt)}: {part.mismatches} mismatches in {part.blocks} blocks, {rate:.1f} bytes a cycle"
        )
        total.blocks += part.blocks
        total.mismatches += part.mismatches
        total.first_mismatch = total.first_mismatch or part.first_mismatch
    report: dict[str, Any] = {"simulated": simulated, "bus_bytes": device.bus_bytes}
    report |= {"blocks": total.blocks, "mismatches": total.mismatches, "link_errors": device.link.errors}
    _write(report | {"formats": rows}, path)
    return total


def _write(report: dict[str, Any], path: Path) -> None:
    """Write a report, and beside it what it was made with."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n")
    provenance.note(path)


__all__ = ["LinkError", "add_arguments", "connected", "run"]
