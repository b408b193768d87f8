"""``python -m gen``: see ``python -m gen --help``."""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from golden import FORMATS, Format, PlaneFormat
from rtl.memory import MemoryParameters
from rtl.stream import DELAY_MEMORY

from . import library, memory, parts, project, release, system, verilog
from .arguments import interruptible
from .board import command as board_command
from .board.link import LinkError
from .config import INTERFACES, PRESETS, Config
from .formal import command as formal_command
from .sizes import SIZES, add_sizes, sizes
from .synth import command as synth_command
from .toolchain import ToolError

OF_FORMAT = ("dtype", "block", "target", "rounding")
_OF_ENGINE = {"scheme", *OF_FORMAT, "bus_bytes", "interface", "further"}
_OF_MEMORY = {"memory_bytes", "merging", *SIZES}
_OF_PART = {"part", "width", "depth"}
_BUS_BYTES = 64


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m gen", description=sys.modules["gen"].__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    of_format = argparse.ArgumentParser(add_help=False)
    of_format.add_argument("--scheme", choices=FORMATS, help="the format (default: planes)")
    of_format.add_argument("--dtype", help="fp32, bf16 or fp16 (default: fp32)")
    of_format.add_argument("--block", type=int, help="values in a block (default: 64, Hadamard 128)")
    of_format.add_argument("--target", type=int, help="its bytes, compressed (default: 80, Hadamard 32)")
    of_format.add_argument("--rounding", help="nearest or truncate (default: nearest)")
    of_bus = argparse.ArgumentParser(add_help=False)
    of_bus.add_argument("--bus-bytes", type=int, help="bytes of a bus word: 16, 32, 64 or 128 (default: 64)")

    make = commands.add_parser(
        "verilog",
        parents=[of_format, of_bus],
        help="write Verilog of both engines (default: of every preset)",
    )
    make.add_argument("--interface", choices=(*INTERFACES, "memory"), help="of the ports (default: stream)")
    make.add_argument(
        "--further",
        action="append",
        metavar="SCHEME:DTYPE:BLOCK:TARGET[:ROUNDING]",
        help="another format of the same engine, of interface runtime or memory; can be given several times",
    )
    make.add_argument(
        "--memory-bytes", type=int, help="of a memory engine: bytes of the memory's bus (default: the port's)"
    )
    make.add_argument(
        "--merging",
        action="store_true",
        default=None,
        help="of a memory engine: regions can merge parts of blocks",
    )
    make.add_argument(
        "--memories",
        action="store_true",
        default=None,
        help="delay lines as memories (all presets: in build/verilog-memories)",
    )
    make.add_argument("--part", choices=parts.KINDS, help="a register slice or the FIFO instead of engines")
    make.add_argument("--width", type=int, help="of a part: bits of a word, with all that travels with it")
    make.add_argument("--depth", type=int, help="of the FIFO: words, a power of two (default: 8)")
    make.add_argument("--preset", choices=[*PRESETS, *memory.PRESETS], help="one preset instead of a format")
    make.add_argument(
        "-o", "--output", type=Path, help="file.v (default: build/verilog/NAME.v; all presets: all of them)"
    )

    add_sizes(make)

    build = commands.add_parser(
        "library", parents=[of_format, of_bus], help="build the library of the verilated backend"
    )
    build.add_argument(
        "--preset", choices=memory.PRESETS, help="instead, the libraries of the memory backend"
    )
    build.add_argument(
        "-o", "--output", type=Path, help="file, of a preset folder (default: where the backend looks for it)"
    )
    build.set_defaults(interface=None, further=None)

    of_registers = commands.add_parser(
        "registers",
        help="write the memory engine's registers as SystemRDL, page, C header and Python package",
    )
    of_registers.add_argument(
        "-o", "--output", type=Path, default=Path("build/registers"), help="folder (default: build/registers)"
    )

    commands.add_parser("diagrams", help="record the timing diagrams of docs/hardware.md")

    synth = commands.add_parser(
        "synth",
        parents=[of_format],
        help="area, depth, speed (default: of every preset), in build/synth; $LIBERTY: a library to map to; "
        "$ACTIVITY: an .npz of values for its energy",
    )
    synth_command.add_arguments(synth)

    release_of = commands.add_parser("release", help="all that a chip project takes, as one archive")
    release_of.add_argument(
        "-o", "--output", type=Path, default=Path("build/release"), help="folder (default: build/release)"
    )

    of_board = commands.add_parser(
        "board", help="the self-test on an FPGA board: bitstream, simulation, host"
    )
    board_command.add_arguments(of_board)

    formal = commands.add_parser("formal", help="proofs about the hardware, in build/formal")
    formal_command.add_arguments(formal)
    return parser


def _format(arguments: argparse.Namespace) -> Format:
    given = {name: getattr(arguments, name) for name in OF_FORMAT if getattr(arguments, name) is not None}
    return _make(FORMATS[arguments.scheme or PlaneFormat.scheme], given)


def _make(kind: type[Format], given: dict[str, Any]) -> Format:
    """A format; raises ValueError for what it has no parameter of."""
    known = {field.name for field in fields(kind)}
    for name, value in given.items():
        if name not in known:
            raise ValueError(f"{name} must not be given for {kind.scheme}, not {value!r}")
    return kind(**given)


def _part(arguments: argparse.Namespace) -> parts.Part:
    if not arguments.part:
        raise ValueError("--part must be given with --width or --depth")
    if arguments.width is None:
        raise ValueError(f"--width must be given for {arguments.part}")
    return parts.Part(arguments.part, arguments.width, arguments.depth)


def _further(text: str) -> Format:
    """A format as --further has it."""
    scheme, *values = text.split(":")
    if scheme not in FORMATS or not 3 <= len(values) <= len(OF_FORMAT):
        raise ValueError(f"--further must be SCHEME:DTYPE:BLOCK:TARGET[:ROUNDING], not {text!r}")
    numbered = [int(value) if value.isdecimal() else value for value in values]
    return _make(FORMATS[scheme], dict(zip(OF_FORMAT, numbered, strict=False)))


def _formats(arguments: argparse.Namespace) -> tuple[Format, ...]:
    """All that an engine is to have."""
    return (_format(arguments), *map(_further, arguments.further or ()))


def _bus_bytes(arguments: argparse.Namespace) -> int:
    return _BUS_BYTES if arguments.bus_bytes is None else arguments.bus_bytes


def _config(arguments: argparse.Namespace) -> Config:
    fmt, *further = _formats(arguments)
    config = Config(fmt, _bus_bytes(arguments), arguments.interface or "stream", tuple(further))
    verilog.ports(config, "compressor")  # raises if there is no such engine
    return config


def _memory(arguments: argparse.Namespace) -> MemoryParameters:
    bus, narrow = _bus_bytes(arguments), arguments.memory_bytes
    return MemoryParameters(
        formats=_formats(arguments),
        bus_bytes=bus,
        memory_bytes=bus if narrow is None else narrow,
        merging=bool(arguments.merging),
        **sizes(arguments),
    )


def _library(arguments: argparse.Namespace) -> Path:
    """Build a library; what was built."""
    from torch_bridge.backends.simulated import memory_engine, verilated  # Verilog needs no PyTorch

    if arguments.preset:
        folder = arguments.output or memory_engine.library_path(arguments.preset).parent
        return system.build(memory.PRESETS[arguments.preset], folder)
    config = _config(arguments)
    path = arguments.output or verilated.library_path(config.fmt)
    library.build(config, path)
    return path


def _check_options(arguments: argparse.Namespace, given: set[str]) -> None:
    """Raise ValueError for an option that says nothing about what is to be written."""
    if given & _OF_PART:
        what, known = "--part", _OF_PART
    elif arguments.preset in memory.PRESETS:
        what, known = f"--preset {arguments.preset}", {"preset"}
    elif arguments.interface == "memory":
        what, known = "--interface memory", _OF_ENGINE | _OF_MEMORY
    else:
        what, known = "", _OF_ENGINE | {"preset", "memories"}
    for name in sorted(given - known - {"command", "output"}):
        option = f"--{name.replace('_', '-')}"
        if what:
            raise ValueError(f"{option} must not be given with {what}")
        engine = f"--preset {arguments.preset}" if arguments.preset else arguments.interface or "stream"
        raise ValueError(f"{option} is of --interface memory, not {engine}")


def _verilog(arguments: argparse.Namespace, given: set[str]) -> Path:
    """Write one file, or those of all presets; what was written."""
    _check_options(arguments, given)
    if arguments.output:
        _check_output(arguments.output)
    folder, has_memories = Path("build/verilog"), bool(arguments.memories)
    if given & _OF_PART:
        part = _part(arguments)
        path = arguments.output or folder / f"{part.slug}.v"
        return _alone(path, parts.write(part, path))
    if arguments.interface == "memory" or arguments.preset in memory.PRESETS:
        parameters = memory.PRESETS[arguments.preset] if arguments.preset else _memory(arguments)
        path = arguments.output or folder / f"{arguments.preset or memory.slug(parameters)}.v"
        return _alone(path, memory.write(parameters, path))
    if given & {"preset", "output", *_OF_ENGINE}:
        config = PRESETS[arguments.preset] if arguments.preset else _config(arguments)
        config = replace(config, memories=has_memories)
        path = arguments.output or folder / f"{config.name}.v"
        return _alone(path, project.write(config, path))
    if has_memories:  # a folder's manifest has all that is in it
        folder = folder.with_name(f"{folder.name}-memories")
    return project.write_all(folder, **release.presets(has_memories))


def _check_output(path: Path) -> None:
    """Raise ValueError for a name that cannot be that of a Verilog file and of what stands beside it."""
    if path.suffix != ".v":  # beside it are .sdc, .core and others
        raise ValueError(f"--output must end in .v, not {str(path)!r}")
    if not re.fullmatch(r"[\w.+-]+", path.name):
        raise ValueError(f"--output must have letters, digits and _.+- in its name, not {path.name!r}")
    if path.stem == DELAY_MEMORY:
        raise ValueError(f"--output must not be {path.name}, which is the delay lines' memory")


def _alone(path: Path, entry: dict[str, Any]) -> Path:
    """Write what a manifest has of a file beside it; the file."""
    path.with_suffix(".json").write_text(json.dumps(project.ABOUT | entry, indent=2) + "\n")
    return path


def main(argv: list[str] | None = None) -> None:
    parser = _parser()
    arguments = parser.parse_args(argv)
    given = {name for name, value in vars(arguments).items() if value is not None}
    of_whole = _OF_ENGINE if arguments.command in ("verilog", "library") else {"scheme", *OF_FORMAT}
    format_given = not given.isdisjoint(of_whole)
    if format_given and "preset" in given:
        option = min(f"--{name.replace('_', '-')}" for name in given & of_whole)
        parser.error(
            f"{option} must not be given with --preset, which stands for all of an engine: "
            "give --scheme and what else is another"
        )
    try:
        with interruptible():
            _run(arguments, given, format_given)
    except (ValueError, OSError, ToolError, LinkError) as error:
        sys.exit(f"python -m gen: {error}")


def _run(arguments: argparse.Namespace, given: set[str], format_given: bool) -> None:
    """Do what a command line asks for."""
    if arguments.command == "synth":
        synth_command.run(arguments, _format(arguments) if format_given else None)
        return
    if arguments.command == "formal":
        formal_command.run(arguments)
        return
    if arguments.command == "board":
        board_command.run(arguments)
        return
    if arguments.command == "diagrams":
        from . import diagrams, memory_diagrams  # Verilog needs no WaveDrom

        print(*diagrams.draw(), *memory_diagrams.draw(), sep="\n")
        return
    if arguments.command == "registers":
        from . import registers  # Verilog needs no PeakRDL

        registers.write(arguments.output)
        print(arguments.output)
        return
    if arguments.command == "library":
        print(_library(arguments))
        return
    if arguments.command == "release":
        print(release.write(arguments.output))
        return
    print(_verilog(arguments, given))


if __name__ == "__main__":
    main()
