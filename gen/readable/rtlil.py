"""Amaranth's RTLIL as objects: modules, wires, cells, processes.

The text format is Yosys' (its manual, "RTLIL text representation"); what Amaranth 0.5 writes of it is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Const:
    """Bits that never change, the most significant first: characters "0" and "1", and "-" in patterns."""

    bits: str

    @property
    def width(self) -> int:
        return len(self.bits)


@dataclass(frozen=True)
class Slice:
    """``width`` bits of a wire from bit ``low`` on."""

    name: str
    low: int
    width: int


# Bits side by side, the least significant first.
Sig = tuple[Const | Slice, ...]


@dataclass
class Wire:
    """A wire or port of a module.

    Attributes:
        direction: "input" or "output" of a port, "" of any other wire.
        source: file and line.
        init: of a register the value before the first clock edge, as bits.
    """

    name: str
    width: int
    direction: str
    source: str
    init: str | None


@dataclass
class Cell:
    """An operator, a register, a memory's port, or an instance of a module."""

    kind: str
    name: str
    source: str
    parameters: dict[str, str] = field(default_factory=dict)
    ports: dict[str, Sig] = field(default_factory=dict)

    @property
    def memory(self) -> str:
        """The memory that a port is of."""
        return self.parameters["MEMID"].strip('"').replace("\\\\", "\\")

    def number(self, name: str) -> int:
        """A parameter that is a number."""
        value = self.parameters[name]
        return int(value.partition("'")[2], 2) if "'" in value else int(value)


@dataclass(frozen=True)
class Assign:
    """In a process: from here on the target has this value, unless it is assigned again."""

    target: Slice
    value: Sig


@dataclass
class Switch:
    """In a process: the first case with a pattern that matches, if any. No pattern matches all."""

    value: Sig
    cases: list[tuple[list[str], list[Assign | Switch]]] = field(default_factory=list)


Statements = list[Assign | Switch]


@dataclass
class Process:
    source: str
    body: Statements = field(default_factory=list)


@dataclass
class Memory:
    width: int
    depth: int
    source: str


@dataclass
class Module:
    name: str
    source: str
    wires: dict[str, Wire] = field(default_factory=dict)
    memories: dict[str, Memory] = field(default_factory=dict)
    cells: list[Cell] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    connects: list[tuple[Sig, Sig]] = field(default_factory=list)

    def ports(self) -> Iterator[Wire]:
        return (wire for wire in self.wires.values() if wire.direction)


def parse(text: str) -> list[Module]:
    """The modules of a design, the top one first."""
    return _Parser(text).modules


_TOKEN = re.compile(r'"[^"]*"|\S+')


class _Parser:
    def __init__(self, text: str) -> None:
        self._lines = iter(
            [tokens for line in text.splitlines() if (tokens := _TOKEN.findall(line)) and tokens[0] != "#"]
        )
        self._attributes: dict[str, str] = {}
        self.modules: list[Module] = []
        for words in self._lines:
            if words[0] == "attribute":
                self._attribute(words)
            elif words[0] == "module":
                self.modules.append(self._module(words[1]))

    def _attribute(self, words: list[str]) -> None:
        self._attributes[words[1][1:]] = words[2].strip('"')

    def _taken(self) -> dict[str, str]:
        """The attributes of what comes now."""
        taken, self._attributes = self._attributes, {}
        return taken

    def _module(self, name: str) -> Module:
        self._here = module = Module(name[1:], self._taken().get("src", ""))
        for words in self._lines:
            match words[0]:
                case "attribute":
                    self._attribute(words)
                case "wire":
                    self._wire(words)
                case "memory":
                    options = dict(zip(words[1:-1:2], words[2:-1:2], strict=True))
                    source = self._taken().get("src", "")
                    module.memories[words[-1]] = Memory(int(options["width"]), int(options["size"]), source)
                case "cell":
                    module.cells.append(self._cell(words))
                case "process":
                    process = Process(self._taken().get("src", ""))
                    self._statements(process.body)
                    module.processes.append(process)
                case "connect":
                    target, value = self._pair(words[1:])
                    if target:  # not of no bits
                        module.connects.append((target, value))
                case "end":
                    return module
                case other:
                    raise ValueError(f"RTLIL must have known statements, not {other!r}")
        raise ValueError(f"RTLIL must have an end of module {name!r}")

    def _wire(self, words: list[str]) -> None:
        name, taken = words[-1], self._taken()
        width = int(words[words.index("width") + 1]) if "width" in words else 1
        direction = next((word for word in ("input", "output") if word in words[:-1]), "")
        init = taken["init"].partition("'")[2] if "init" in taken else None
        self._here.wires[name] = Wire(name, width, direction, taken.get("src", ""), init)

    def _cell(self, words: list[str]) -> Cell:
        cell = Cell(words[1], words[2], self._taken().get("src", ""))
        for line in self._lines:
            if line[0] == "parameter":
                cell.parameters[line[-2][1:]] = line[-1]
            elif line[0] == "connect":
                cell.ports[line[1][1:]] = self._sig(line[2:])
            elif line[0] == "end":
                break
        return cell

    def _statements(self, into: Statements) -> list[str]:
        """Read statements up to the line that ends them, which is returned."""
        for words in self._lines:
            if words[0] == "attribute":
                continue
            if words[0] == "assign":
                target, value = self._pair(words[1:])
                self._assign(into, target, value)
            elif words[0] == "switch":
                switch = Switch(self._sig(words[1:]))
                into.append(switch)
                end = self._statements([])
                while end[0] == "case":
                    body: Statements = []
                    patterns = [word.rstrip(",").partition("'")[2] for word in end[1:]]
                    switch.cases.append((patterns, body))
                    end = self._statements(body)
            else:
                return words
        raise ValueError("RTLIL must have an end of each process")

    @staticmethod
    def _assign(into: Statements, target: Sig, value: Sig) -> None:
        low = 0
        for part in target:
            assert isinstance(part, Slice)
            into.append(Assign(part, cut(value, low, part.width)))
            low += part.width

    def _pair(self, words: list[str]) -> tuple[Sig, Sig]:
        """Two signals, one behind the other."""
        end = words.index("}") + 1 if words[0] == "{" else 2 if words[1].startswith("[") else 1
        return self._sig(words[:end]), self._sig(words[end:])

    def _sig(self, words: list[str]) -> Sig:
        if words in ([], ["{}"]):
            return ()
        parts: list[Const | Slice] = []
        words = words[1:-1] if words[0] == "{" else words
        for i, word in enumerate(words):
            if word.startswith("["):
                continue
            if word[0] in "\\$":
                bits = words[i + 1] if words[i + 1 : i + 2] and words[i + 1].startswith("[") else None
                parts.append(self._slice(word, bits))
            else:
                width, mark, bits = word.partition("'")
                parts.append(Const(bits if mark else f"{int(width):032b}"))
        return joined(reversed(parts))

    def _slice(self, name: str, bits: str | None) -> Slice:
        if bits is None:
            return Slice(name, 0, self._here.wires[name].width)
        high, _, low = bits.strip("[]").partition(":")
        return Slice(name, int(low or high), int(high) - int(low or high) + 1)


def width_of(sig: Sig) -> int:
    return sum(part.width for part in sig)


def joined(parts: Iterator[Const | Slice] | Sig) -> Sig:
    """Parts side by side, the least significant first; neighbours of one wire become one part."""
    found: list[Const | Slice] = []
    for part in parts:
        last = found[-1] if found else None
        if not part.width:
            continue
        if isinstance(part, Const) and isinstance(last, Const):
            found[-1] = Const(part.bits + last.bits)
        elif (
            isinstance(part, Slice)
            and isinstance(last, Slice)
            and (part.name, part.low) == (last.name, last.low + last.width)
        ):
            found[-1] = Slice(last.name, last.low, last.width + part.width)
        else:
            found.append(part)
    return tuple(found)


def cut(sig: Sig, low: int, width: int) -> Sig:
    """``width`` bits of a signal from bit ``low`` on."""
    found: list[Const | Slice] = []
    for part in sig:
        start, stop = max(low, 0), min(low + width, part.width)
        if start < stop:
            if isinstance(part, Const):
                found.append(Const(part.bits[part.width - stop : part.width - start]))
            else:
                found.append(Slice(part.name, part.low + start, stop - start))
        low -= part.width
    return joined(tuple(found))


def extended(sig: Sig, width: int, signed: bool = False) -> Sig:
    """A signal with zeros, or copies of its sign, above it."""
    missing = width - width_of(sig)
    if missing <= 0:
        return cut(sig, 0, width)
    if signed and sig:
        return joined((*sig, *cut(sig, width_of(sig) - 1, 1) * missing))
    return joined((*sig, Const("0" * missing)))
