"""``python -m gen.memories``: the memories of an engine, as they stand in what Amaranth elaborates."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from amaranth.back import rtlil
from amaranth.lib import wiring

from rtl.memory import MemoryEngine, MemoryParameters

from . import memory
from .synth.node import NODES

__all__ = ["Memory", "memories_of", "table"]

_TOP = "engine"
_PRESET = "gpt2-fp32-memory-64"
# NAND gates a bit: of a flip-flop, as in gen.synth; and of a macro, by the rule of gen.synth.node for ASAP7,
# whose NAND2xp5 has 0.05832 µm².
_FLIP_FLOP = 6.0
_MACRO = NODES["asap7sc7p5t"].memory_bit / 0.05832


@dataclass(frozen=True)
class Memory:
    """A memory of a design.

    Attributes:
        name: its component's, from the top on, with dots.
        width, depth: bits of a word, and words.
        reads, writes: how many ports of each kind it has.
        synchronous: each read takes a cycle.
        enables: parts of a word that a write may leave as they are.
    """

    name: str
    width: int
    depth: int
    reads: int = 0
    writes: int = 0
    synchronous: bool = True
    enables: int = 1

    @property
    def bits(self) -> int:
        return self.width * self.depth


def memories_of(design: wiring.Component) -> list[Memory]:
    """The memories of a design, in the order of their names.

    They are read from its RTLIL, which says of each port whether it has a clock.
    """
    text = rtlil.convert(design, name=_TOP, emit_src=False)
    found = [one for module in re.split(r"^module ", text, flags=re.M)[1:] for one in _of_module(module)]
    return sorted(found, key=lambda one: one.name)


def _of_module(text: str) -> Iterator[Memory]:
    name = text.split(maxsplit=1)[0].removeprefix(f"\\{_TOP}").removeprefix(".")
    for width, depth, which in re.findall(r"^  memory width (\d+) size (\d+) (\S+)", text, flags=re.M):
        one = Memory(re.sub(r"\.memory$", "", name), int(width), int(depth))
        for kind, body in re.findall(r"^  cell \$mem(rd|wr)_v2 \S+\n(.*?)^  end", text, flags=re.M | re.S):
            if not re.search(rf'MEMID "\\+{re.escape(which[1:])}"', body):
                continue
            if kind == "rd":
                clocked = bool(re.search(r"CLK_ENABLE 1$", body, flags=re.M)) and one.synchronous
                one = replace(one, reads=one.reads + 1, synchronous=clocked)
            else:
                one = replace(one, writes=one.writes + 1, enables=_enables(body))
        yield one


def _enables(cell: str) -> int:
    """Different bits of a write port's enable."""
    (port,) = re.findall(r"connect \\EN (.*)", cell)
    return max(1, len(set(re.findall(r"\\\S+ \[\d+\]", port))))


def table(memories: list[Memory]) -> str:
    """Rows of Markdown, the largest first, with the sums."""
    rows = [
        "| memory | words | bits each | ports | bits | kGE as flip-flops | as macros |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in sorted(memories, key=lambda one: (-one.bits, one.name)):
        ports = f"{one.writes} write, {one.reads} read"
        if one.enables > 1:
            ports += f", {one.enables} enables"
        cells = (f"`{one.name}`", one.depth, one.width, ports, one.bits, _kges(one.bits))
        rows.append(f"| {' | '.join(map(str, cells))} |")
    total = sum(one.bits for one in memories)
    return "\n".join([*rows, f"| all | | | | {total} | {_kges(total)} |"])


def _kges(bits: int) -> str:
    return " | ".join(f"{bits * gates / 1000:.1f}" for gates in (_FLIP_FLOP, _MACRO))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m gen.memories", description=__doc__)
    parser.add_argument("--preset", choices=memory.PRESETS, default=_PRESET, help=f"default: {_PRESET}")
    parameters: MemoryParameters = memory.PRESETS[parser.parse_args().preset]
    print(table(memories_of(MemoryEngine(parameters))))


if __name__ == "__main__":
    main()
