"""The memory engine's registers as SystemRDL, and as a page, a C header and a Python package by PeakRDL."""

from __future__ import annotations

from pathlib import Path

from peakrdl_cheader.exporter import CHeaderExporter
from peakrdl_html import HTMLExporter
from peakrdl_python import PythonExporter
from systemrdl import RDLCompiler

from rtl.memory.registers.map import REGISTERS, Field, Group, Register

from . import project

NAME = "bitstash_memory"
_ABOUT = "registers of the memory engine"

_ACCESS = {
    "r": "sw = r; hw = w;",
    "rw": "sw = rw; hw = r;",
    "w1c": "sw = rw; hw = rw; woclr;",
}


def _field(field: Field) -> str:
    high = field.low + field.width - 1
    properties = f'desc = "{field.about}"; {_ACCESS[field.access]}'
    reset = "" if field.reset is None else f" = {field.reset:#x}"
    return f"field {{ {properties} }} {field.name}[{high}:{field.low}]{reset};"


def _register(register: Register, start: int = 0) -> str:
    fields = "\n".join(f"    {_field(field)}" for field in register.fields)
    at = f"@ {register.offset - start:#x}"
    return f'reg {{\n    desc = "{register.about}";\n{fields}\n}} {register.name} {at};'


def _group(group: Group) -> str:
    start = group.registers[0].offset
    registers = "\n".join(_register(register, start) for register in group.registers)
    place = f"{group.name}[{group.count}] @ {start:#x} += {group.stride:#x}"
    return f'regfile {{\ndesc = "{group.about}";\n{registers}\n}} {place};'


def system_rdl() -> str:
    """The register map in SystemRDL 2.0."""
    parts = [_group(entry) if isinstance(entry, Group) else _register(entry) for entry in REGISTERS]
    head = 'name = "bitstash memory engine";\ndefault regwidth = 32;'
    return project.header("//", _ABOUT) + f"addrmap {NAME} {{\n{head}\n" + "\n".join(parts) + "\n};\n"


def write(folder: Path) -> None:
    """Write ``bitstash_memory.rdl``, ``.h``, the package ``bitstash_memory`` and the page in ``html``."""
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / f"{NAME}.rdl"
    source.write_text(system_rdl())
    compiler = RDLCompiler()
    compiler.compile_file(str(source))
    top = compiler.elaborate().top
    c_header = folder / f"{NAME}.h"
    CHeaderExporter().export(top, str(c_header))
    c_header.write_text(project.header("//", _ABOUT) + c_header.read_text())
    HTMLExporter().export(top, str(folder / "html"))  # with PeakRDL's own scripts and fonts
    PythonExporter().export(top, str(folder), skip_test_case_generation=True)
