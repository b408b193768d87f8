"""Timing diagrams of a read and a write of one block through the memory engine: see :mod:`gen.diagrams`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from amaranth.sim import Simulator

from golden import PlaneFormat
from rtl.memory import MemoryParameters
from rtl.memory.read.path import ReadPath
from rtl.memory.write.path import WritePath

from .diagrams import FOLDER, as_row, render

__all__ = ["DIAGRAMS", "draw"]

FORMAT = PlaneFormat("bf16", 32, 32)
PARAMETERS = MemoryParameters(formats=(FORMAT,), bus_bytes=16, memory_bytes=16, address_bits=20)
LATENCY = 3  # of the memory, in cycles
_STORED = 0x4000
_NAMES = {"aw": "s_axi_aw", "w": "s_axi_w", "b": "s_axi_b", "ar": "s_axi_ar", "r": "s_axi_r"}
_NAMES |= {"maw": "m_axi_aw", "mw": "m_axi_w", "mb": "m_axi_b", "mar": "m_axi_ar", "mr": "m_axi_r"}


def read() -> str:
    """A burst of four words, which are a block; memory has it in two beats."""
    path = ReadPath(PARAMETERS)
    stored = _block().reshape(2, 16)
    send = {"ar": [(1, "0", _burst(0, 3))], "mr": []}

    def answer(name: str, cycle: int) -> None:
        for i in range(2 if name == "mar" else 0):
            beat = {"data": int.from_bytes(stored[i].tobytes(), "little"), "last": i}
            send["mr"].append((cycle + LATENCY, f"a{i}", beat))

    labels = {"mar": ["4000"], "r": [f"A{i}" for i in range(4)]}
    names = ("ar", "mar", "mr", "r")
    return _record("memory engine: a read of one block", path, names, send, labels, answer, 19)


def write() -> str:
    """The same block, with an answer once memory has it."""
    path = WritePath(PARAMETERS)
    words = [{"data": 0, "strb": -1, "last": i == 3} for i in range(4)]
    data = [(1, f"A{i}", word) for i, word in enumerate(words)]
    send = {"aw": [(1, "0", _burst(0, 3))], "w": data, "mb": []}

    def answer(name: str, cycle: int) -> None:
        if name == "mw" and not labels["mw"]:
            send["mb"].append((cycle + 1 + LATENCY, "OKAY", {"resp": 0}))

    labels = {"maw": ["4000"], "mw": ["a0", "a1"], "b": ["OKAY"]}
    names = ("aw", "w", "maw", "mw", "mb", "b")
    return _record("memory engine: a write of one block", path, names, send, labels, answer, 32)


DIAGRAMS: dict[str, Callable[[], str]] = {"memory-read": read, "memory-write": write}


def draw(folder: Path = FOLDER) -> list[Path]:
    """Write WaveDrom sources and their SVG, and return their paths."""
    paths = []
    for name, make in DIAGRAMS.items():
        paths += [folder / f"{name}.json", folder / f"{name}.svg"]
        paths[-2].write_text(source := make())
        paths[-1].write_text(render(source))
    return paths


def _block() -> np.ndarray:
    values = np.random.default_rng(0).normal(size=FORMAT.block)
    return FORMAT.compress(values.astype(FORMAT.float_type.array))[0]


def _burst(address: int, length: int) -> dict[str, int]:
    return {"addr": address, "len": length, "size": 4, "burst": 1}


def _record(
    head: str,
    path: Any,
    names: tuple[str, ...],
    send: dict[str, list[tuple[int, str, dict[str, int]]]],
    labels: dict[str, list[str]],
    answer: Callable[[str, int], None],
    cycles: int,
) -> str:
    """Simulate a path of the engine.

    Args:
        names: its channels, in the order of the diagram.
        send: on channels that go in, from which cycle on, under which label, and what.
        labels: of what comes out.
        answer: called when something was taken from a channel, in the cycle.
    """
    seen: dict[str, list[dict[str, str]]] = {name: [] for name in names}

    async def bench(ctx: Any) -> None:
        ctx.set(path.map.regions[0], {"end": 8, "format": 1, "enabled": 1, "usable": 1})
        ctx.set(path.map.origin.stored, _STORED >> 12)
        if isinstance(path, WritePath):
            ctx.set(path.timeout, 1000)
        for name in names:
            if name not in send:
                ctx.set(getattr(path, name).ready, 1)
        for cycle in range(cycles):
            for name, queue in send.items():
                offers = bool(queue) and queue[0][0] <= cycle
                ctx.set(getattr(path, name).valid, offers)
                if offers:
                    ctx.set(getattr(path, name).payload, queue[0][2])
            for name in names:
                _see(ctx, path, name, cycle)
            await ctx.tick()

    def _see(ctx: Any, path: Any, name: str, cycle: int) -> None:
        port = getattr(path, name)
        valid, ready = ctx.get(port.valid), ctx.get(port.ready)
        queue = send[name] if name in send else labels[name]
        label = (queue[0][1] if name in send else queue[0]) if valid else "x"
        shown = f"={label}#{len(queue)}" if valid else "x"
        seen[name].append({"valid": str(valid), "ready": str(ready), "": shown})
        if valid and ready:
            queue.pop(0)
            answer(name, cycle)

    simulator = Simulator(path)
    simulator.add_clock(1e-9)
    simulator.add_testbench(bench)
    simulator.run()
    rows: list[dict[str, Any]] = [{"name": "aclk", "wave": "p" + "." * (cycles - 1)}]
    for name in names:
        rows.append({})
        data = {"aw": "addr", "ar": "addr", "b": "resp"}.get(name[-2:].lstrip("m"), "data")
        for field in ("valid", "ready", ""):
            tokens = [cycle[field] for cycle in seen[name]]
            rows.append(as_row(f"{_NAMES[name]}{field or data}", tokens))
    lines = ",\n    ".join(json.dumps(row) for row in rows)
    return f'{{"signal": [\n    {lines}\n  ],\n  {json.dumps({"head": {"text": head, "tick": 0}})[1:]}\n'
