"""Register slices and the FIFO between two clocks as Verilog of their own."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from amaranth.lib import wiring

from rtl import stream

from . import project
from .testbench import SINK, SOURCE
from .verilog import Ports, convert_readable, describe_ports

KINDS = ("FullSlice", "HalfSlice", "AsyncFifo")
_WORDS = 200  # of the bench
_DEPTH = 8
PERIODS = {"clk": 10, "write_clk": 10, "read_clk": 14}  # of the bench, in its units of time


@dataclass(frozen=True)
class Part:
    """A part that only moves words.

    Args:
        kind: "FullSlice", "HalfSlice" or "AsyncFifo", see :mod:`rtl.stream`.
        width: bits of a word, everything that travels with it included.
        depth: words of a FIFO; 8 by default.

    Raises:
        ValueError: a parameter is none of these.
    """

    kind: str
    width: int
    depth: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"part must be one of {', '.join(KINDS)}, not {self.kind!r}")
        if self.width < 1:
            raise ValueError(f"width must be at least one bit, not {self.width!r}")
        if self.is_fifo and self.depth is None:
            object.__setattr__(self, "depth", _DEPTH)
        elif self.depth is not None and not self.is_fifo:
            raise ValueError(f"depth must not be given for {self.kind}, not {self.depth!r}")

    @property
    def is_fifo(self) -> bool:
        return self.kind == "AsyncFifo"

    @property
    def slug(self) -> str:
        """The parameters as part of a Verilog or file name."""
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", self.kind).lower()
        return f"{name}_w{self.width}" + (f"_d{self.depth}" if self.is_fifo else "")

    @property
    def module(self) -> str:
        return f"bitstash_{self.slug}"

    @property
    def clocks(self) -> tuple[str, str]:
        """Of the end where words come in, and of the other."""
        return ("write_clk", "read_clk") if self.is_fifo else ("clk", "clk")

    def make(self) -> wiring.Component:
        if self.is_fifo:
            assert self.depth is not None
            return stream.AsyncFifo(self.width, self.depth)
        return getattr(stream, self.kind)(self.width)


# Bits of a 64-byte word, of all engines' ports: data with ``last`` and ``empty``, or TKEEP; then also with
# the decompressor's ``error``, or TUSER of its output; or with ``first``, or TUSER of Hadamard inputs.
WIDTHS = {"stream": (519, 520, 551), "axi": (577, 578, 609)}
# Beside the presets: for each of these words.
PARTS = [Part(kind, width) for kind in KINDS for widths in WIDTHS.values() for width in widths]


def writers(parts: Iterable[Part] = PARTS) -> list[tuple[str, project.Writer]]:
    """The files of parts, for :func:`gen.project.write_all`."""
    return [(f"{part.slug}.v", partial(write, part)) for part in parts]


def write(part: Part, path: Path) -> dict[str, Any]:
    """Write the Verilog of a part and what stands beside it, lint it, and return its manifest entry.

    Raises:
        ValueError: there is no such part.
        gen.toolchain.ToolError: the linter has a complaint.
    """
    title = f"{part.kind} of {part.width} bits" + (f", {part.depth} words" if part.depth else "")
    component = part.make()
    beside = project.Beside(
        name=part.slug,
        description=title,
        tops={"part": part.module},
        bench_top=f"{part.module}_tb",
        bench=bench(part),
        constraints=constraints(part, _ports(part, component)),
    )
    text = convert_readable(component, part.module, domains=("write", "read") if part.is_fifo else ())
    text = _SYNCHRONISER.sub(r'  (* ASYNC_REG = "TRUE" *)\n\g<0>', text)
    project.write_beside(path, title, text, beside)
    return {"name": part.slug, "file": path.name, "module": part.module, "ports": _ports(part, component)}


# The two flip-flops behind another clock, which some tools only place side by side if they are told to.
_SYNCHRONISER = re.compile(r"^  (?:output )?reg +(?:\[\d+:0\] )?stage[01]\b", re.MULTILINE)


def _ports(part: Part, component: wiring.Component) -> Ports:
    found = describe_ports(component)
    if part.is_fifo:
        clock, reset = (found.pop(name) for name in ("clk", "rst"))
        found = {
            "write_clk": clock,
            "write_rst": reset | {"note": "active high, synchronous to write_clk; also resets the read side"},
            "read_clk": clock,
            "read_rst": reset,
            **found,
        }
    return found


def constraints(part: Part, ports: Ports) -> str:
    """An SDC file; the FIFO has two clocks, and its pointers a cycle of the faster to cross."""
    if not part.is_fifo:
        return project.constraints(part=ports)
    ends = {"write": "i_", "read": "o_"}
    text = "".join(f"set {end}_period {project.CLOCK_NS}\n" for end in ends)
    text += "".join(
        f"create_clock -name {end}_clk -period ${end}_period [get_ports {end}_clk]\n" for end in ends
    )
    for end, stream_of in ends.items():
        own = {name: ports[name] for name in ports if name.startswith(stream_of) or name == f"{end}_rst"}
        text += project.delays(f"{end}_clk", f"{end}_period", own)
    text += "# Where the FIFO is a part of a chip, its two clocks need what follows there as well.\n"
    text += "set crossing [expr min($write_period, $read_period)]\n"
    for one, other in (("write", "read"), ("read", "write")):
        path = f"-from [get_clocks {one}_clk] -to [get_clocks {other}_clk]"
        text += f"set_max_delay $crossing {path}\nset_false_path -hold {path}\n"
    return text


def bench(part: Part) -> str:
    """SystemVerilog of a self-checking bench."""
    top, rng = f"{part.module}_tb", random.Random(0)
    words = [rng.getrandbits(part.width) for _ in range(_WORDS)]
    initial = "\n".join(
        f"    {end}.words[{number}] = {part.width}'h{word:x};"
        for end in ("source", "sink")
        for number, word in enumerate(words)
    )
    write, read = part.clocks
    clocks = dict.fromkeys(part.clocks)
    resets = ", ".join(f".{clock.replace('clk', 'rst')}(rst)" for clock in clocks)
    return (SOURCE + SINK).format(top=top) + _BENCH.format(
        top=top,
        module=part.module,
        slug=part.slug,
        width=part.width,
        words=_WORDS,
        clocks="\n".join(f"  reg {c} = 0;\n  always #{PERIODS[c] // 2} {c} = ~{c};" for c in clocks),
        clock_ports=", ".join(f".{clock}({clock})" for clock in clocks) + ", " + resets,
        initial=initial,
        write=write,
        read=read,
    )


_BENCH = """
module {top};
  reg rst = 1;
{clocks}
  wire [{width}-1:0] i, o;
  wire i_valid, i_ready, o_valid, o_ready, done;
  integer cycles = 0;
  {top}_source #(.WIDTH({width}), .WORDS({words})) source (
    .clk({write}), .rst(rst), .payload(i), .valid(i_valid), .ready(i_ready));
  {module} part (
    {clock_ports},
    .i_payload(i), .i_valid(i_valid), .i_ready(i_ready),
    .o_payload(o), .o_valid(o_valid), .o_ready(o_ready));
  {top}_sink #(.WIDTH({width}), .WORDS({words})) sink (
    .clk({read}), .rst(rst), .payload(o), .valid(o_valid), .ready(o_ready), .done(done));
  initial begin
{initial}
  end
  always @(posedge {read}) begin
    cycles <= cycles + 1;
    rst <= cycles < 12;
    if (done || cycles == 20 * {words}) begin
      if (sink.mismatches != 0 || !done)
        $fatal(1, "%0d mismatches after %0d cycles", sink.mismatches, cycles);
      $display("{slug}: {words} words, 0 mismatches");
      $finish;
    end
  end
endmodule
"""
