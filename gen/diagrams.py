"""Timing diagrams for docs/hardware.md, recorded from the engines: WaveDrom sources and their SVG."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import wavedrom
from amaranth import ClockDomain, Module
from amaranth.sim import Simulator

from golden import PlaneFormat

from .config import Config
from .verilog import make_component

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "waves"


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What is done at the ports of an engine.

    Args:
        head: the diagram's title.
        config, part: the engine.
        cycles: how many are shown. From cycle 1 on a word a cycle is offered.
        packets: bytes of each tensor, one after the other.
        broken: blocks, counted from 0, that get an invalid header.
        stall: cycles in which the sink is not ready.
        reset: cycles in which reset is asserted, in the middle of a packet, of which no more is sent.
        latency: draw an arrow from the first block's last word to the first word that comes out.
    """

    head: str
    config: Config
    part: str
    cycles: int
    packets: tuple[int, ...]
    broken: Collection[int] = ()
    stall: Collection[int] = ()
    reset: Collection[int] = ()
    latency: bool = False


_FP32, _BF16 = PlaneFormat("fp32", 64, 80), PlaneFormat("bf16", 64, 64)
SCENARIOS = {
    "compressor": Scenario(
        head="compressor: a tensor of two blocks, A and B",
        config=Config(_FP32),
        part="compressor",
        cycles=19,
        packets=(512,),
        latency=True,
    ),
    "decompressor": Scenario(
        head="decompressor: the same tensor",
        config=Config(_FP32),
        part="decompressor",
        cycles=16,
        packets=(160,),
        latency=True,
    ),
    "back-pressure": Scenario(
        head="decompressor: the sink stalls",
        config=Config(_FP32),
        part="decompressor",
        cycles=23,
        packets=(240,),
        stall=(8, 9, 10, 14),
    ),
    "axi-tail": Scenario(
        head="AXI4-Stream compressor: packets of 100 and of 256 bytes",
        config=Config(_FP32, interface="axi"),
        part="compressor",
        cycles=19,
        packets=(100, 256),
    ),
    "axi-error": Scenario(
        head="AXI4-Stream decompressor: block B has an invalid header, block E breaks off after 20 bytes",
        config=Config(_BF16, interface="axi"),
        part="decompressor",
        cycles=18,
        packets=(192, 84),
        broken=(1,),
    ),
    "axi-reset": Scenario(
        head="AXI4-Stream compressor: a reset in the middle of a packet",
        config=Config(_BF16, interface="axi"),
        part="compressor",
        cycles=23,
        packets=(1024, 128),
        stall=(10, 11, 12),
        reset=(11, 12),
    ),
}


@dataclass(frozen=True)
class _Word:
    label: str
    data: bytes
    last: bool


def draw(folder: Path = FOLDER) -> list[Path]:
    """Record every scenario, write its WaveDrom source and its SVG, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, scenario in SCENARIOS.items():
        source = record(scenario)
        paths += [folder / f"{name}.json", folder / f"{name}.svg"]
        paths[-2].write_text(source)
        paths[-1].write_text(render(source))
    return paths


def render(source: str) -> str:
    """A WaveDrom source as SVG on white, without those of WaveDrom's shapes that it does not use."""
    drawing = wavedrom.render(source)
    used = set(re.findall(r"#([\w-]+)", drawing.tostring()))
    drawing.defs.elements = [shape for shape in drawing.defs.elements if shape.attribs.get("id") in used]
    drawing.elements.insert(1, drawing.rect(size=("100%", "100%"), fill="white"))
    return drawing.tostring() + "\n"


def record(scenario: Scenario) -> str:
    """Simulate a scenario and return what was seen at the ports as a WaveDrom source."""
    config = scenario.config
    dut = make_component(config, scenario.part)
    i, o = _port(dut, config, "i"), _port(dut, config, "o")
    sync = ClockDomain("sync")
    top = Module()
    top.domains += sync
    top.submodules += dut
    if config.interface == "axi":
        top.d.comb += [dut.aclk.eq(sync.clk), dut.aresetn.eq(~sync.rst)]

    sent, expected = _words(scenario)
    resets: list[str] = []
    seen_i: list[dict[str, str]] = []
    seen_o: list[dict[str, str]] = []

    async def bench(ctx) -> None:
        for cycle in range(scenario.cycles):
            in_reset = cycle in scenario.reset
            if in_reset and cycle - 1 not in scenario.reset:
                _drop_packet(sent)
                _drop_packet(expected)
            ctx.set(sync.rst, in_reset)
            ctx.set(o["ready"], cycle not in scenario.stall)
            offered = sent[0] if sent and cycle > 0 and not in_reset else None
            _offer(ctx, i, offered, config.bus_bytes)
            resets.append(str(int(in_reset != (config.interface == "axi"))))
            seen_i.append(_see(ctx, i, sent))
            seen_o.append(_see(ctx, o, expected))
            await ctx.tick()

    simulator = Simulator(top)
    simulator.add_clock(1e-9)
    simulator.add_testbench(bench)
    simulator.run()
    return _source(scenario, resets, seen_i, seen_o)


def _words(scenario: Scenario) -> tuple[list[_Word], list[_Word]]:
    """The words of all packets, and those that must come out."""
    fmt = scenario.config.fmt
    assert fmt.target is not None
    in_bytes, out_bytes = fmt.original_bytes, fmt.target
    if scenario.part == "decompressor":
        in_bytes, out_bytes = out_bytes, in_bytes
    sent: list[_Word] = []
    expected: list[_Word] = []
    rng = np.random.default_rng(0)
    first = 0
    for size in scenario.packets:
        blocks = -(-size // in_bytes)
        values = rng.normal(size=(blocks, fmt.block)).astype(fmt.float_type.array)
        stored = np.asarray(fmt.compress(values))
        for block in scenario.broken:
            if first <= block < first + blocks:
                stored[block - first, 0] = 0  # which is no base
        data = values.tobytes() if in_bytes == fmt.original_bytes else stored.tobytes()
        sent += _cut(scenario, data[:size], in_bytes, first)
        expected += _cut(scenario, bytes(blocks * out_bytes), out_bytes, first)
        first += blocks
    return sent, expected


def _cut(scenario: Scenario, packet: bytes, block_bytes: int, first: int) -> list[_Word]:
    """A packet's words. Their labels are letters, one for each block; those of values are capitals."""
    bus, original_bytes = scenario.config.bus_bytes, scenario.config.fmt.original_bytes
    words = []
    for start in range(0, len(packet), bus):
        data = packet[start : start + bus]
        last_block, byte = divmod(start + len(data) - 1, block_bytes)
        blocks = range(start // block_bytes, last_block + 1)
        label = "".join(chr(ord("a") + first + block) for block in blocks)
        if block_bytes == original_bytes:
            label = f"{label.upper()}{byte // bus}"
        words.append(_Word(label, data, start + bus >= len(packet)))
    return words


def _drop_packet(words: list[_Word]) -> None:
    del words[: 1 + [word.last for word in words].index(True)]


def _port(dut: Any, config: Config, side: str) -> dict[str, Any]:
    """The signals of a port, by what they are for."""
    if config.interface == "axi":
        prefix = "s_axis_t" if side == "i" else "m_axis_t"
        roles = ("valid", "ready", "data", "last", "keep", "user")
        return {role: getattr(dut, prefix + role) for role in roles if hasattr(dut, prefix + role)}
    port = getattr(dut, side)
    fields = {role: port.payload[role] for role, _ in port.payload.shape()}
    return {"valid": port.valid, "ready": port.ready, **fields}


def _offer(ctx: Any, port: dict[str, Any], word: _Word | None, bus_bytes: int) -> None:
    ctx.set(port["valid"], word is not None)
    if word:
        size = len(word.data)
        fields = {"data": int.from_bytes(word.data, "little"), "last": word.last}
        fields |= {"empty": bus_bytes - size, "keep": (1 << size) - 1}
        for role, value in fields.items():
            if role in port:
                ctx.set(port[role], value)


def _see(ctx: Any, port: dict[str, Any], words: list[_Word]) -> dict[str, str]:
    """What a port shows in this cycle, as :func:`as_row` takes it. A word that is taken goes off the list."""
    seen = {role: ctx.get(signal) for role, signal in port.items()}
    bits = {role: str(seen[role]) for role in ("valid", "ready")}
    if not seen["valid"]:
        return dict.fromkeys(seen, "x") | bits
    shown = {role: str(seen[role]) for role in seen if role in ("last", "error", "user")} | bits
    is_error = seen.get("error", 0) or seen.get("user", 0)
    shown["data"] = f"={'0' if is_error else words[0].label}#{len(words)}"
    if "empty" in seen:
        shown["empty"] = f"={seen['empty']}"
    if "keep" in seen:
        shown["keep"] = f"={seen['keep'].bit_count()}"
    if seen["ready"]:
        words.pop(0)
    return shown


def _source(
    scenario: Scenario, resets: list[str], seen_i: list[dict[str, str]], seen_o: list[dict[str, str]]
) -> str:
    is_axi = scenario.config.interface == "axi"
    rows: list[dict[str, Any]] = []
    rows.append({"name": "aclk" if is_axi else "clk", "wave": "p" + "." * (len(resets) - 1)})
    if scenario.reset:
        rows.append(as_row("aresetn" if is_axi else "rst", resets))
    for side, seen in (("i", seen_i), ("o", seen_o)):
        rows.append({})
        for role in seen[0]:
            if is_axi:
                name = f"{'s' if side == 'i' else 'm'}_axis_t{role}"
            else:
                name = f"{side}_{role}" if role in ("valid", "ready") else f".{role}"
            rows.append(as_row(name, [cycle[role] for cycle in seen]))
    source: dict[str, Any] = {"head": {"text": scenario.head, "tick": 0}}
    if scenario.latency:
        taken = max(i for i, cycle in enumerate(seen_i) if "a" in cycle["data"].lower())
        offered = next(i for i, cycle in enumerate(seen_o) if cycle["valid"] == "1")
        between = max(i for i, row in enumerate(rows) if not row)
        rows[between] = {"node": ("." * taken + "A").ljust(offered, ".") + "B"}
        source["edge"] = [f"A<->B {offered - taken} cycles"]
    lines = ",\n    ".join(json.dumps(row) for row in rows)
    return f'{{"signal": [\n    {lines}\n  ],\n  {json.dumps(source)[1:]}\n'


def as_row(name: str, tokens: list[str]) -> dict[str, Any]:
    """A row of a diagram, from a token for each cycle: a bit, "x", or "=", a label and a word's number."""
    wave, labels = "", []
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token == before:
            wave += "."
        elif token.startswith("="):
            labels.append(token[1:].split("#")[0])
            wave += "345"[ord(token[1].lower()) % 3] if token[1].isalpha() else "2"
        else:
            wave += token
    return {"name": name, "wave": wave, **({"data": labels} if labels else {})}
