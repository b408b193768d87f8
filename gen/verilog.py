"""Verilog from the Amaranth components: text, modules and ports."""

from __future__ import annotations

import gc
import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import amaranth
from amaranth import ClockDomain, Shape, Signal, Value
from amaranth.back import rtlil, verilog
from amaranth.hdl import Fragment
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In

from rtl import (
    COMPRESSORS,
    DECOMPRESSORS,
    AxiStreamCompressor,
    AxiStreamDecompressor,
    Engine,
    RuntimeCompressor,
    RuntimeDecompressor,
    core_of,
)
from rtl.stream import DELAY_MEMORY, DelayMemories

from . import readable
from .config import Config
from .toolchain import ToolError

# By name: direction, width, and of a struct where each of its fields lies.
Ports = dict[str, dict[str, Any]]

# What stands around an engine, by interface and part.
PORTS: dict[str, dict[str, Any]] = {
    "axi": {"compressor": AxiStreamCompressor, "decompressor": AxiStreamDecompressor},
    "runtime": {"compressor": RuntimeCompressor, "decompressor": RuntimeDecompressor},
}

# Of a delay memory: the module that a macro replaces.
DELAY_MEMORY_TEXT = f"""module {DELAY_MEMORY} #(
  parameter WIDTH = 1, parameter DEPTH = 1, parameter ADDRESS_BITS = 1
) (
  input clk,
  input write, input [ADDRESS_BITS-1:0] write_address, input [WIDTH-1:0] write_data,
  input read, input [ADDRESS_BITS-1:0] read_address, output reg [WIDTH-1:0] read_data
);
  reg [WIDTH-1:0] words [0:DEPTH-1];
  always @(posedge clk) begin
    if (write) words[write_address] <= write_data;
    if (read) read_data <= words[read_address];
  end
endmodule
"""
_DELAY_MEMORY_INSTANCE = re.compile(
    rf"{DELAY_MEMORY} #\(.*?\.DEPTH\(32'd(\d+)\).*?\.WIDTH\(32'd(\d+)\)", re.DOTALL
)
# The same as a box that synthesis leaves alone.
DELAY_MEMORY_BOX = f"(* blackbox *) {DELAY_MEMORY_TEXT.partition('  reg')[0]}endmodule\n"


def delay_memories(verilog: str) -> list[tuple[int, int]]:
    """Width and depth of each delay memory that a design has an instance of."""
    return [(int(width), int(depth)) for depth, width in _DELAY_MEMORY_INSTANCE.findall(verilog)]


def parts(config: Config) -> dict[str, Any]:
    """The engines of a configuration's format behind whatever interface, by what they are."""
    return {
        "compressor": core_of(COMPRESSORS, config.fmt),
        "decompressor": core_of(DECOMPRESSORS, config.fmt),
    }


def geometry(config: Config) -> Engine:
    """How the engines of a configuration cut blocks into words."""
    return parts(config)["compressor"].geometry(config.formats, config.bus_bytes)


def make_component(config: Config, part: str) -> wiring.Component:
    """A part of a configuration, with the ports of its interface."""
    engine = PORTS.get(config.interface, parts(config))[part]
    return engine(config.formats if config.interface == "runtime" else config.fmt, config.bus_bytes)


def module_name(config: Config, part: str) -> str:
    """The top module of a part: "compressor" or "decompressor"."""
    return f"bitstash_{part}_{config.slug}"


def verilog_text(config: Config, *of: str) -> str:
    """Self-contained Verilog of the engines of a configuration; ``of``: of these parts only."""
    return engines_text(config, *of) + ("\n" + DELAY_MEMORY_TEXT) * config.memories


def engines_text(config: Config, *of: str) -> str:
    """The same without the module of delay memories."""
    return "\n".join(_text_and_ports(config, part)[0] for part in of or parts(config))


@cache
def readable_text(config: Config, *of: str) -> str:
    """The same for people to read, with the same ports, as :func:`convert_readable` writes it."""
    return "\n".join(
        convert_readable(make_component(config, part), module_name(config, part), config.memories)
        for part in of or parts(config)
    )


@cache
def _text_and_ports(config: Config, part: str) -> tuple[str, Ports]:
    """A part's modules, and what an integrator needs to know of the top one's ports."""
    component = make_component(config, part)
    return convert(component, module_name(config, part), config.memories), describe_ports(component)


def ports(config: Config, part: str) -> Ports:
    """The ports of a part's top module: direction, width, and of a payload where each of its fields lies."""
    return _text_and_ports(config, part)[1]


@contextmanager
def rare_collections() -> Iterator[None]:
    """Amaranth makes millions of objects that stay: to look for garbage in them takes a third of the time."""
    usual = gc.get_threshold()
    gc.set_threshold(100_000, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


@rare_collections()
def convert(
    component: wiring.Component, top: str, memories: bool = False, domains: Sequence[str] = ()
) -> str:
    """Verilog of a component and all that is in it; the same text whenever it is made.

    Args:
        component: what to convert.
        top: name of its module.
        memories: make delay lines instances of one module.
        domains: names of its clock domains, if they are several: the order of their ports.

    Raises:
        gen.toolchain.ToolError: Amaranth's Yosys failed, as it does when 4 GiB are not enough.
    """
    fragment, ports, platform = _prepared(component, memories, domains)
    try:
        return verilog.convert(fragment, name=top, platform=platform, ports=ports, emit_src=False)
    except verilog.YosysError as error:
        reason = "it can have no more than 4 GiB of memory" if "bad_alloc" in str(error) else str(error)
        raise ToolError(f"Yosys made no Verilog of {top}: {reason}") from error


@rare_collections()
def convert_readable(
    component: wiring.Component, top: str, memories: bool = False, domains: Sequence[str] = ()
) -> str:
    """The same design as of :func:`convert` as Verilog for people: see :mod:`gen.readable`."""
    fields = {name: port["fields"] for name, port in describe_ports(component).items() if "fields" in port}
    fragment, ports, platform = _prepared(component, memories, domains)
    return readable.verilog(rtlil.convert(fragment, name=top, platform=platform, ports=ports), fields)


_Prepared = tuple[Any, list[tuple[str, Signal, None]], DelayMemories | None]


def _prepared(component: wiring.Component, memories: bool, domains: Sequence[str]) -> _Prepared:
    """What Amaranth's back ends take of a component: itself or its fragment, its ports, and a platform."""
    ports: list[tuple[str, Signal, None]] = named_ports(component)
    platform = DelayMemories() if memories else None
    if not domains:
        return component, ports, platform
    fragment = Fragment.get(component, platform)  # Amaranth would take missing domains in a set's order
    clocks = [ClockDomain(name) for name in domains]
    fragment.add_domains(clocks)
    ports += [(signal.name, signal, None) for clock in clocks for signal in (clock.clk, clock.rst)]
    return fragment, ports, platform


def port_name(path: Sequence[str | int]) -> str:
    """The name of a port at a path in a signature: ``i_payload``. Amaranth's own would be ``i__payload``,
    of which C++ and VHDL make other names."""
    return "_".join(map(str, path))


def named_ports(component: wiring.Component) -> list[tuple[str, Signal, None]]:
    """A component's ports as Amaranth's back ends take them; their directions they find themselves."""
    members = component.signature.flatten(component)
    return [(port_name(path), Value.cast(value), None) for path, _, value in members]


def describe_ports(component: wiring.Component) -> Ports:
    """A component's ports: direction, width, and of a struct where each of its fields lies."""
    found: Ports = {}
    for path, member, _ in component.signature.flatten(component):
        port: dict[str, Any] = {"direction": "input" if member.flow == In else "output"}
        port["width"] = Shape.cast(member.shape).width
        if isinstance(member.shape, data.Layout):
            port["fields"] = {}
            for name, field in member.shape:
                low, high = field.offset, field.offset + field.width - 1
                port["fields"][name] = f"[{high}:{low}]" if high > low else f"[{low}]"
        found[port_name(path)] = port
    if "aresetn" in found:
        found["aresetn"]["note"] = "synchronous, active low"
        return found
    clock = {"direction": "input", "width": 1}
    return {"clk": clock, "rst": clock | {"note": "synchronous, active high"}} | found


def digest(config: object, packages: Sequence[str] = ("golden", "rtl", "gen")) -> str:
    """Changes whenever the Verilog of a configuration may: what is built from it can be kept until then."""
    root = Path(__file__).resolve().parent.parent
    kinds = ("*.py", "*.cpp", "*.h")
    sources = sorted(path for package in packages for kind in kinds for path in (root / package).rglob(kind))
    text = [repr(config), amaranth.__version__, *(path.read_text() for path in sources)]
    return hashlib.sha256("\0".join(text).encode()).hexdigest()


def bytes_per_cycle(config: Config) -> int:
    """Uncompressed bytes that an engine takes or gives in a cycle, in the slowest of its formats."""
    engine = geometry(config)
    return min(config.bus_bytes, *(engine.bytes_as(float_type) for float_type in engine.types))
