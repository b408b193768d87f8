"""Logic depth of a flat netlist of gates and flip-flops, and the longest paths through it."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from rtl.stream import DELAY_MEMORY

Bit = int | str  # a net's number, or a constant: "0", "1" or "x"

_FUNCTIONS: dict[str, Callable[..., int]] = {
    "$_BUF_": lambda a: a,
    "$_NOT_": lambda a: ~a,
    "$_AND_": lambda a, b: a & b,
    "$_NAND_": lambda a, b: ~(a & b),
    "$_OR_": lambda a, b: a | b,
    "$_NOR_": lambda a, b: ~(a | b),
    "$_XOR_": lambda a, b: a ^ b,
    "$_XNOR_": lambda a, b: ~(a ^ b),
    "$_ANDNOT_": lambda a, b: a & ~b,
    "$_ORNOT_": lambda a, b: a | ~b,
    "$_MUX_": lambda a, b, s: (b & s) | (a & ~s),
}


def _obscurity(name: str) -> tuple[bool, bool, int, str]:
    """Of a net's names, the least obscure is one that somebody gave, not of a whole payload, and short."""
    return "$" in name, "payload[" in name, len(name), name


@dataclass(frozen=True)
class LongestPath:
    """The longest path into a register or port.

    Attributes:
        levels: gates on it.
        start, end: registers or ports, a bit of each; the end also says into which pin, if not into its data.
        nets: what is known by a name on the way: level and name.
    """

    levels: int
    start: str
    end: str
    nets: list[tuple[int, str]]


class Netlist:
    """A module as Yosys' ``write_json`` leaves it, flat and without memories.

    Args:
        path: of the JSON file, which holds one module.
        source: the same design with more of its names, if there is one.

    Raises:
        ValueError: it holds a cell that is neither a gate nor a flip-flop.
    """

    def __init__(self, path: Path, source: Netlist | None = None):
        modules = json.loads(path.read_text())["modules"].values()
        (module,) = (module for module in modules if "blackbox" not in module["attributes"])
        self.gates: dict[Bit, tuple[str, list[Bit]]] = {}
        self.ends: dict[str, Bit] = {}
        self.names: dict[Bit, str] = {}
        self._bits: dict[str, Bit] = {}
        for name, net in module["netnames"].items():
            for i, bit in enumerate(net["bits"]):
                full = f"{name}[{i}]" if len(net["bits"]) > 1 else name
                self._bits[full] = bit
                self.names[bit] = min(self.names.get(bit, full), full, key=_obscurity)
        if source:
            known = {bit: source._bits[name] for bit, name in self.names.items() if name in source._bits}
            self.names |= {bit: source.names[original] for bit, original in known.items()}
        for cell in module["cells"].values():
            self._add(cell)
        for name, port in module["ports"].items():
            if port["direction"] == "output":
                bits = enumerate(port["bits"])  # those that are no register themselves
                self.ends |= {f"{name}[{i}]": bit for i, bit in bits if bit in self.gates}

    def _add(self, cell: dict[str, Any]) -> None:
        kind = cell["type"]
        pins = {pin: bits[0] for pin, bits in cell["connections"].items()}
        if kind in _FUNCTIONS:
            self.gates[pins["Y"]] = kind, [pins[pin] for pin in "ABS" if pin in pins]
        elif "DFF" in kind:
            register = self.names[pins["Q"]]
            for pin, suffix in (("D", ""), ("E", ", enable"), ("R", ", reset")):
                if pin in pins:
                    self.ends[register + suffix] = pins[pin]
        elif kind == DELAY_MEMORY:
            for pin, bits in cell["connections"].items():
                if cell["port_directions"][pin] == "input":
                    self.ends |= {f"{self.names.get(bit, pin)} of a memory": bit for bit in bits}
        elif kind != "$scopeinfo":
            raise ValueError(f"cells must be gates or flip-flops, not {kind!r}")

    def _in_order(self) -> Iterator[tuple[Bit, str, list[Bit]]]:
        """The gates, each after those that drive it."""
        graph = {out: inputs for out, (_, inputs) in self.gates.items()}
        for out in TopologicalSorter(graph).static_order():
            if out in self.gates:
                yield out, *self.gates[out]

    def levels(self) -> dict[Bit, int]:
        """For the output of each gate, the largest number of gates on a way to it, itself included."""
        levels: dict[Bit, int] = {}
        for out, _, inputs in self._in_order():
            levels[out] = 1 + max(levels.get(bit, 0) for bit in inputs)
        return levels

    def values(self, states: int) -> dict[Bit, int]:
        """What each net carries in random states of registers and inputs, the same for the same names.

        Args:
            states: how many; bit ``i`` of a value is the net's in state ``i``.
        """
        ones = (1 << states) - 1
        values: dict[Bit, int] = {"0": 0, "1": ones, "x": 0}
        for out, kind, inputs in self._in_order():
            for bit in inputs:
                if bit not in values:
                    values[bit] = random.Random(self.names.get(bit)).getrandbits(states)
            values[out] = _FUNCTIONS[kind](*(values[bit] for bit in inputs)) & ones
        return values


def longest_paths(netlist: Netlist, named: Netlist) -> list[LongestPath]:
    """The longest path into each register and port, whatever its bit, the longest of all first.

    Of paths that are alike but for their ends only one is given.

    Args:
        netlist: where they are.
        named: the same design before the mapper took the names from its nets. A net gets the name of one
            that carries the same bits in 2048 random states, or all of them inverted ("not").
    """
    levels = netlist.levels()
    deepest: dict[str, tuple[int, str]] = {}
    for end, bit in netlist.ends.items():
        register = re.sub(r"\[\d+\]|\d+", "", end)
        deepest[register] = max(deepest.get(register, (0, "")), (levels.get(bit, 0), end))

    names = _names(netlist, named)
    paths: dict[tuple[Any, ...], LongestPath] = {}
    for depth, end in sorted(deepest.values(), reverse=True):
        bit = netlist.ends[end]
        nets: list[tuple[int, str]] = []
        while bit in netlist.gates:
            name = names.get(bit, "")
            if name and (not nets or name.removeprefix("not ") != nets[-1][1].removeprefix("not ")):
                nets.append((levels[bit], name))
            bit = max(netlist.gates[bit][1], key=lambda driver: levels.get(driver, 0))
        path = LongestPath(depth, netlist.names.get(bit, str(bit)), end, nets[::-1])
        paths.setdefault((depth, path.start, *nets), path)
    return list(paths.values())


def _names(netlist: Netlist, named: Netlist, states: int = 2048) -> dict[Bit, str]:
    """Names for the gates' outputs of one netlist from another of the same design."""
    rare = 8  # what hardly ever changes would be taken for anything else that does not
    ones = (1 << states) - 1
    names: dict[int, str] = {}
    for bit, value in named.values(states).items():
        name = named.names.get(bit, "$")
        if bit in named.gates and "$" not in name and rare < value.bit_count() < states - rare:
            names.setdefault(value, name)
    names = {value ^ ones: f"not {name}" for value, name in names.items()} | names
    found = netlist.values(states)
    return {bit: names[found[bit]] for bit in netlist.gates if found[bit] in names}
