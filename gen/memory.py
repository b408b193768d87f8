"""Verilog of the memory engine."""

from __future__ import annotations

from pathlib import Path

from golden import Format
from rtl.memory import MemoryEngine, MemoryParameters

from . import project, verilog

TOP = "bitstash_memory"


def write(formats: tuple[Format, ...], bus_bytes: int, memory_bytes: int, path: Path) -> None:
    """Write the Verilog of an engine and lint it.

    Args:
        formats: that its regions can have.
        bus_bytes, memory_bytes: see :class:`rtl.memory.MemoryParameters`.

    Raises:
        ValueError: there is no such engine.
        gen.toolchain.ToolError: the linter has a complaint.
    """
    parameters = MemoryParameters(formats=formats, bus_bytes=bus_bytes, memory_bytes=memory_bytes)
    blocks = "; ".join(f"{fmt.scheme} {fmt.dtype}, {fmt.raw_bytes} to {fmt.target} bytes" for fmt in formats)
    title = f"memory engine: bypass; {blocks}; {bus_bytes}-byte port, {memory_bytes}-byte memory"
    project.write_verilog(path, title, verilog.convert(MemoryEngine(parameters), TOP))
