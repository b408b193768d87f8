"""A self-checking SystemVerilog bench for those who take the Verilog: any simulator runs it.

It puts tensors through both engines of a configuration, with idle cycles and back-pressure, in each format
and bypass where these are chosen at run time, and compares every word with what the golden model has. The
benches that verify the engines are those of ``cocotb_tests``; this one tells an integrator that what arrived
is what was sent.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from golden import Format
from golden.floats import FLOAT_TYPES

from .config import Config
from .verilog import module_name, parts, ports

_BLOCKS = (1, 7, 20)  # of each tensor

Word = dict[str, int]

SOURCE = """
module {top}_source #(parameter WIDTH = 1, parameter WORDS = 1) (
  input clk, input rst, output [WIDTH-1:0] payload, output reg valid, input ready);
  reg [WIDTH-1:0] words [0:WORDS-1];
  reg [15:0] noise;
  integer index;
  assign payload = words[index < WORDS ? index : 0];
  always @(posedge clk) begin
    noise <= {{noise[14:0], noise[15] ^ noise[13] ^ noise[12] ^ noise[10]}};
    if (rst) begin
      noise <= 16'hACE1;
      index <= 0;
      valid <= 0;
    end else if (valid && ready) begin
      index <= index + 1;
      valid <= index + 1 < WORDS && noise[1:0] != 0;
    end else if (!valid)
      valid <= index < WORDS && noise[0];
  end
endmodule
"""

SINK = """
module {top}_sink #(parameter WIDTH = 1, parameter WORDS = 1) (
  input clk, input rst, input [WIDTH-1:0] payload, input valid, output ready, output done);
  reg [WIDTH-1:0] words [0:WORDS-1];
  reg [15:0] noise;
  integer index, mismatches;
  assign ready = noise[1:0] != 0;
  assign done = index == WORDS;
  always @(posedge clk) begin
    noise <= {{noise[14:0], noise[15] ^ noise[13] ^ noise[12] ^ noise[10]}};
    if (rst) begin
      noise <= 16'hBEEF;
      index <= 0;
      mismatches <= 0;
    end else if (valid && ready) begin
      if (done || payload !== words[index]) begin
        $display("%m: word %0d is %h, not %h", index, payload, done ? {{WIDTH{{1'bx}}}} : words[index]);
        mismatches <= mismatches + 1;
      end
      index <= done ? index : index + 1;
    end
  end
endmodule
"""

_TEXT = """
module {top};
  reg clk = 0, rst = 1;
  wire {dones};
  integer cycles = 0;
  always #5 clk = ~clk;
{engines}
  initial begin
{words}
  end
  always @(posedge clk) begin
    cycles <= cycles + 1;
    rst <= cycles < 4;
    if ({all_done} || cycles == {most}) begin
      if ({mismatches} != 0 || !({all_done}))
        $fatal(1, "%0d mismatches after %0d cycles", {mismatches}, cycles);
      $display("{name}: {count} words, 0 mismatches");
      $finish;
    end
  end
endmodule
"""

_ENGINE = """
  wire [{in_width}-1:0] {part}_i;
  wire [{out_width}-1:0] {part}_o;
  wire {part}_i_valid, {part}_i_ready, {part}_o_valid, {part}_o_ready;
{more}  {top}_source #(.WIDTH({in_width}), .WORDS({in_words})) {part}_source (
    .clk(clk), .rst(rst), .payload({part}_i), .valid({part}_i_valid), .ready({part}_i_ready));
  {module} {part} (
{ports});
  {top}_sink #(.WIDTH({out_width}), .WORDS({out_words})) {part}_sink (
    .clk(clk), .rst(rst), .payload({part}_o), .valid({part}_o_valid), .ready({part}_o_ready),
    .done({part}_done));
"""


def bench_name(config: Config) -> str:
    """The top module."""
    return f"bitstash_{config.slug}_tb"


def testbench(config: Config) -> str:
    """SystemVerilog of the bench, with its words."""
    top, found = bench_name(config), {part: words(config, part) for part in parts(config)}
    connect = _CONNECTIONS[config.interface]
    connections = {part: connect(config, part) for part in found}
    initial = []
    for part, sides in found.items():
        for side, direction, port in zip(sides, "io", ("source", "sink"), strict=True):
            width = connections[part].width(direction)
            initial += [
                f"    {part}_{port}.words[{number}] = {width}'h{connections[part].pack(word, direction):x};"
                for number, word in enumerate(side)
            ]
    engines = "".join(
        _ENGINE.format(
            top=top,
            part=part,
            module=module_name(config, part),
            in_width=connections[part].width("i"),
            out_width=connections[part].width("o"),
            in_words=len(taken),
            out_words=len(given),
            more=connections[part].more(),
            ports=",\n".join(f"    .{name}({wire})" for name, wire in connections[part].ports().items()),
        )
        for part, (taken, given) in found.items()
    )
    count = sum(len(given) for _, given in found.values())
    return (SOURCE + SINK + _TEXT).format(
        top=top,
        name=config.name,
        dones=", ".join(f"{part}_done" for part in found),
        engines=engines,
        words="\n".join(initial),
        all_done=" && ".join(f"{part}_done" for part in found),
        mismatches="(" + " + ".join(f"{part}_sink.mismatches" for part in found) + ")",
        most=1000 + 100 * count,
        count=count,
    )


def words(config: Config, part: str) -> tuple[list[Word], list[Word]]:
    """What a part takes, and what it must give: the fields of each word.

    Those of a tensor's first word that say how it is configured mean nothing to engines of one format.
    """
    rng = np.random.default_rng(0)
    taken, given = [], []
    for number, fmt in enumerate(config.formats):
        tensors, stored = _tensors(fmt, config.bus_bytes, part, rng)
        for tensor in tensors:
            tensor[0] |= {"configures": 1, "format": number}
        taken += [word for tensor in tensors for word in tensor]
        given += stored
    if config.interface == "runtime":
        for blocks in _BLOCKS:
            passed = _words(rng.bytes(blocks * config.fmt.original_bytes - 1), config.bus_bytes)
            taken += [passed[0] | {"configures": 1, "bypass": 1}, *passed[1:]]
            given += passed
    return taken, given


def _tensors(
    fmt: Format, size: int, part: str, rng: np.random.Generator
) -> tuple[list[list[Word]], list[Word]]:
    """The words of each tensor that a part takes in a format, and all that it must give."""
    float_type = FLOAT_TYPES[fmt.dtype]
    taken, given = [], []
    for number, blocks in enumerate(_BLOCKS):
        values = rng.standard_normal((blocks, fmt.block)) * np.exp2(rng.integers(-30, 30, (blocks, 1)))
        values[blocks // 2, ::2] = 0
        floats = np.clip(values, -6e4, 6e4).astype(float_type.array)
        bits = floats.view(float_type.bits).reshape(-1)
        bits[:: fmt.block + 1] = rng.integers(0, 1 << float_type.width, len(bits[:: fmt.block + 1]))
        floats[-1, fmt.block // 2 :] = 0
        first = number * 0x1234567
        stored = np.asarray(fmt.compress(floats, first))
        whole = stored.tobytes(), fmt.decompress(stored, floats.shape, first).tobytes()
        if part == "compressor":
            # The last block comes without its second half, which is zeros.
            taken.append(_words(floats.tobytes()[: -fmt.original_bytes // 2], size, first))
            given += _words(whole[0], size)
        else:
            taken.append(_words(whole[0], size, first))
            given += _words(whole[1], size)
    return taken, given


def _words(content: bytes, size: int, first: int = 0) -> list[Word]:
    pieces = [content[start : start + size] for start in range(0, len(content), size)]
    return [
        {
            "data": int.from_bytes(piece, "little"),
            "last": int(number == len(pieces) - 1),
            "empty": size - len(piece),
            "first": first if number == 0 else 0,
            "error": 0,
        }
        for number, piece in enumerate(pieces)
    ]


class _Connection:
    """How a bench is connected to an engine's ports, and in which bits of its words what stands."""

    def __init__(self, config: Config, part: str) -> None:
        self._config, self._part = config, part
        self._ports = ports(config, part)

    def ports(self) -> dict[str, str]:
        """What is at each port."""
        streams = {
            f"{direction}_{role}": f"{self._part}_{direction}{suffix}"
            for direction in "io"
            for role, suffix in {"payload": "", "valid": "_valid", "ready": "_ready"}.items()
        }
        known = {"clk": "clk", "rst": "rst", **streams}
        return {name: known[name] for name in self._ports if name in known}

    def more(self) -> str:
        """What else stands beside the engine."""
        return ""

    def width(self, direction: str) -> int:
        return self._ports[f"{direction}_payload"]["width"]

    def pack(self, word: Word, direction: str) -> int:
        return _packed(word, self._ports[f"{direction}_payload"])


class _RuntimeConnection(_Connection):
    """The same with a configuration above each word, which is given before a tensor's first."""

    def ports(self) -> dict[str, str]:
        word = f"{self._part}_i"
        low = super().width("i")
        high = low + self._ports["config_payload"]["width"]
        return super().ports() | {
            "i_payload": f"{word}[{low - 1}:0]",
            "config_payload": f"{word}[{high - 1}:{low}]",
            "config_valid": f"{self._part}_configures",
            "config_ready": f"{self._part}_configured",
        }

    def more(self) -> str:
        return _CONFIGURES.format(part=self._part, top=self.width("i") - 1)

    def width(self, direction: str) -> int:
        above = 1 + int(self._ports["config_payload"]["width"]) if direction == "i" else 0
        return super().width(direction) + above

    def pack(self, word: Word, direction: str) -> int:
        packed = super().pack(word, direction)
        if direction == "i":
            packed |= _packed(word, self._ports["config_payload"]) << super().width("i")
            packed |= word.get("configures", 0) << self.width("i") - 1
        return packed


# A word whose upmost bit is set waits for its configuration: the engine takes it between two tensors.
_CONFIGURES = """\
  reg {part}_was_configured;
  wire {part}_configures = {part}_i_valid && {part}_i[{top}] && !{part}_was_configured;
  wire {part}_configured;
  always @(posedge clk)
    {part}_was_configured <= !rst && !({part}_i_valid && {part}_i_ready)
      && ({part}_was_configured || {part}_configures && {part}_configured);
"""


def _packed(word: Word, port: dict[str, Any]) -> int:
    """The fields of a port's payload in their places."""
    fields: dict[str, str] = port["fields"]
    return sum(word.get(name, 0) << int(place.strip("[]").split(":")[-1]) for name, place in fields.items())


class _AxiConnection(_Connection):
    """The same for AXI4-Stream, whose signals stand side by side in a word."""

    def ports(self) -> dict[str, str]:
        known = {"aclk": "clk", "aresetn": "~rst"}
        for direction, prefix in (("i", "s_axis"), ("o", "m_axis")):
            name = f"{self._part}_{direction}"
            known |= {f"{prefix}_tvalid": f"{name}_valid", f"{prefix}_tready": f"{name}_ready"}
            known |= {
                port: f"{name}[{low + width - 1}:{low}]"
                for port, (low, width) in self._places(direction).items()
            }
        return {name: known[name] for name in self._ports}

    def width(self, direction: str) -> int:
        return sum(width for _, width in self._places(direction).values())

    def pack(self, word: Word, direction: str) -> int:
        size = self._config.bus_bytes
        user = word["first"] if direction == "i" else word["error"]
        keep = (1 << (size - word["empty"])) - 1
        of = {"tdata": word["data"], "tkeep": keep, "tlast": word["last"], "tuser": user}
        return sum(of[port.rpartition("_")[2]] << low for port, (low, _) in self._places(direction).items())

    def _places(self, direction: str) -> dict[str, tuple[int, int]]:
        """By port: its lowest bit in a word, and its width."""
        prefix, places, low = {"i": "s_axis", "o": "m_axis"}[direction], {}, 0
        for role in ("tdata", "tkeep", "tlast", "tuser"):
            port: dict[str, Any] | None = self._ports.get(f"{prefix}_{role}")
            if port:
                places[f"{prefix}_{role}"] = (low, port["width"])
                low += port["width"]
        return places


_CONNECTIONS: dict[str, type[_Connection]] = {
    "stream": _Connection,
    "axi": _AxiConnection,
    "runtime": _RuntimeConnection,
}
