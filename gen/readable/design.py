"""A design's modules joined: what is read at all, and what everything is called."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .expressions import operands
from .keywords import KEYWORDS
from .rtlil import Cell, Memory, Module, Process, Sig, Slice, Statements, Switch, Wire, width_of

OUTPUTS = {"$dff": "Q", "$adff": "Q", "$memrd_v2": "DATA"}
CLOCKS = ("\\clk", "\\rst", "\\aclk", "\\aresetn")
Driver = Cell | Process | Sig


def output_of(cell: Cell) -> str:
    """The port that a cell which is no instance drives."""
    return OUTPUTS.get(cell.kind, "Y")


def inputs_of(cell: Cell) -> list[Sig]:
    """What a cell that is no instance reads."""
    if cell.kind in ("$dff", "$adff", "$memrd_v2", "$memwr_v2"):
        names = ("D", "CLK", "ARST", "ADDR", "EN", "DATA")
        used = [name for name in names if name in cell.ports and name != OUTPUTS.get(cell.kind)]
        if cell.kind == "$memrd_v2":
            used = ["ADDR", *(["EN", "CLK"] if cell.number("CLK_ENABLE") else [])]
        return [cell.ports[name] for name in used]
    return list(operands(cell).values())


def reads_of(body: Statements) -> Iterator[Sig]:
    """What statements read."""
    for statement in body:
        yield statement.value
        if isinstance(statement, Switch):
            for _, inner in statement.cases:
                yield from reads_of(inner)


def target_of(process: Process) -> str:
    """The wire that a process assigns."""
    first = process.body[0]
    assert not isinstance(first, Switch)
    return first.target.name


@dataclass(frozen=True)
class Parent:
    """Where a module's only instance is."""

    module: str
    cell: Cell


class Design:
    """The modules of a design, and which of their wires an output of the top one depends on."""

    def __init__(self, modules: list[Module]) -> None:
        self.modules = {module.name: module for module in modules}
        self.top = modules[0]
        self.parents = {
            cell.kind[1:]: Parent(module.name, cell)
            for module in modules
            for cell in module.cells
            if cell.kind[1:] in self.modules
        }
        self.drivers = {module.name: self._drivers(module) for module in modules}
        self.live: dict[str, set[str]] = defaultdict(set)
        self._mark()
        self._leave_out_ports()
        self.ports = {module.name: self._named_ports(module) for module in modules}

    def _drivers(self, module: Module) -> dict[str, Driver]:
        found: dict[str, Driver] = {}
        for target, value in module.connects:
            (whole,) = target
            assert isinstance(whole, Slice)
            found[whole.name] = value
        for process in module.processes:
            found[target_of(process)] = process
        for cell in sorted(module.cells, key=self._is_foreign):
            for name in self._driven(cell, module, found):
                for part in cell.ports[name]:
                    if isinstance(part, Slice):
                        found[part.name] = cell
        return found

    def _is_foreign(self, cell: Cell) -> bool:
        """Whether it is an instance of a module that is not of this design."""
        return cell.kind.startswith("\\") and cell.kind[1:] not in self.modules

    def _driven(self, cell: Cell, module: Module, drivers: dict[str, Driver]) -> list[str]:
        """The ports that a cell drives.

        Of another design's module RTLIL does not say it: they are on wires that nothing else drives.
        """
        if self._is_foreign(cell):
            wires = module.wires
            return [
                name
                for name, sig in cell.ports.items()
                if is_whole(sig, wires)
                and wires[first_name(sig)].direction != "input"
                and drivers.get(first_name(sig), cell) is cell
            ]
        if cell.kind.startswith("\\"):
            wires = self.modules[cell.kind[1:]].wires
            return [name for name in cell.ports if wires[f"\\{name}"].direction == "output"]
        return [] if cell.kind in ("$memwr_v2", "$meminit_v2") else [output_of(cell)]

    def _leave_out_ports(self) -> None:
        """What only its own module reads is no output."""
        for name, parent in self.parents.items():
            for wire in self.modules[name].ports():
                above = names_in([parent.cell.ports.get(wire.name[1:], ())])
                if wire.direction == "output" and not self.live[parent.module].intersection(above):
                    wire.direction = ""

    def _named_ports(self, module: Module) -> dict[str, str]:
        """What the ports that are read are called: clock and reset first, those of a stream together."""
        ports = [
            wire.name for wire in module.ports() if module is self.top or self.is_live(module, wire.name)
        ]
        streams = [re.sub(r"_+(payload|valid|ready)$", "", name) for name in ports]
        roles = ("payload", "valid", "ready")

        def place(name: str) -> tuple[bool, int, int]:
            stream = re.sub(r"_+(payload|valid|ready)$", "", name)
            role = name.rpartition("_")[2]
            return name not in CLOCKS, streams.index(stream), roles.index(role) if role in roles else 0

        ports.sort(key=place)
        names = Names()
        return {name: names.new(plain(name)) for name in ports}

    def is_live(self, module: Module, name: str) -> bool:
        return name in self.live[module.name]

    def _mark(self) -> None:
        waiting = [(self.top.name, wire.name) for wire in self.top.ports()]
        while waiting:
            place, name = waiting.pop()
            if name in self.live[place]:
                continue
            self.live[place].add(name)
            module = self.modules[place]
            waiting += [(place, read) for read in names_in(self._causes(module, name))]
            if name in self.drivers[place]:
                driver = self.drivers[place][name]
                if isinstance(driver, Cell) and driver.kind[1:] in self.modules:
                    ports = self._driven(driver, module, self.drivers[place])
                    waiting += [
                        (driver.kind[1:], f"\\{port}")
                        for port in ports
                        if name in names_in([driver.ports[port]])
                    ]
            if module.wires[name].direction == "input" and place in self.parents:
                parent = self.parents[place]
                above = parent.cell.ports.get(name[1:], ())
                waiting += [(parent.module, read) for read in names_in([above])]

    def _causes(self, module: Module, name: str) -> list[Sig]:
        """What the driver of a wire reads."""
        driver = self.drivers[module.name].get(name)
        if driver is None:
            return []
        if isinstance(driver, tuple):
            return [driver]
        if isinstance(driver, Process):
            return list(reads_of(driver.body))
        if driver.kind.startswith("\\"):
            if driver.kind[1:] in self.modules:
                return []
            outputs = self._driven(driver, module, self.drivers[module.name])
            return [sig for port, sig in driver.ports.items() if port not in outputs]
        found = inputs_of(driver)
        if driver.kind == "$memrd_v2":
            writes = writes_to(module, driver.memory)
            found += [sig for write in writes for sig in inputs_of(write)]
        return found


def writes_to(module: Module, memory: str) -> list[Cell]:
    """The write ports of a memory."""
    return [cell for cell in module.cells if cell.kind == "$memwr_v2" and cell.memory == memory]


def contents_of(module: Module, memory: str, shape: Memory) -> list[str]:
    """The words that a memory begins with, as bits."""
    for cell in module.cells:
        if cell.kind == "$meminit_v2" and cell.memory == memory:
            bits = "".join(part.bits for part in reversed(cell.ports["DATA"]))  # type: ignore[union-attr]
            words = [bits[i : i + shape.width] for i in range(0, len(bits), shape.width)]
            return words[::-1]
    return []


def names_in(sigs: Iterable[Sig]) -> list[str]:
    return [part.name for sig in sigs for part in sig if isinstance(part, Slice)]


def is_whole(sig: Sig, wires: dict[str, Wire]) -> bool:
    """Whether a signal is a wire, all of it."""
    return (
        len(sig) == 1
        and isinstance(sig[0], Slice)
        and sig[0].width == wires[sig[0].name].width == width_of(sig)
    )


def first_name(sig: Sig) -> str:
    return names_in([sig])[0]


class Names:
    """Verilog's names in one module, none of them given twice."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = {*KEYWORDS, *taken}

    def new(self, wanted: str) -> str:
        """The name, with a number behind it if it is taken."""
        name, number = wanted, 1
        while name in self._taken:
            number += 1
            name = f"{wanted}_{number}"
        self._taken.add(name)
        return name


def plain(name: str) -> str:
    """A name of RTLIL as one of Verilog: ``\\word.values[3]`` is ``word_values_3``.

    Without the number that Amaranth puts behind names that are there already.
    """
    name = re.sub(r"\$\d+", "", name.removeprefix("\\"))
    name = re.sub(r"_+", "_", re.sub(r"\W+", "_", name)).rstrip("_")
    return name if re.match(r"[A-Za-z_]", name) else f"n{name}"
