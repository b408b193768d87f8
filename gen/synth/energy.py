"""Energy of an engine as cells of a library, from what switches while it works.

The mapped netlist is simulated without delays: in each cycle every net of 64 independent streams at once, a
bit of an integer each. All have the same handshakes, for no control depends on data. A memory
engine, whose control depends on addresses, has one stream (gen/synth/traffic.py). What is counted:

- half of C V^2 for each toggle of a net, C being the input pins that it drives, and wires if they are given;
- the library's internal energy for each toggle of a cell's output, and of a flip-flop's data pin;
- for each flip-flop in each cycle both edges at its clock pin: there are no clock gates.

So there are no glitches and no clock tree in it: it is a lower bound. Leakage is counted apart.

Where a library gives internal energy and leakage for each rail, those of its power rail count: the ground
rail carries the same charge, so that the sum of both would be twice the energy.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from graphlib import TopologicalSorter
from math import gcd
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from ..config import Config
from . import kept_memory, liberty
from .kept_memory import Bit, KeptMemory
from .liberty import Group, expression, parse, table

STREAMS = 64
FLOW = "".join(Path(file).read_text() for file in (__file__, liberty.__file__, kept_memory.__file__))
_RESET, _WARM_UP, _MEASURED = 4, 100, 64  # cycles
_LOAD = "total_output_net_capacitance"

# See :meth:`Netlist.run`.
Drive = Callable[[int, Callable[[str], list[int]]], Mapping[str, Sequence[int]]]


@dataclass(frozen=True)
class Cell:
    """A cell of a library.

    Attributes:
        area: in the library's unit.
        leakage: mW.
        capacitances: of its input pins, pF.
        functions: of its output pins, see :func:`gen.synth.liberty.expression`; none of a flip-flop.
        energies: of its pins, pJ for each toggle at a load in pF.
        clock, data: pins of a flip-flop, empty if it is none.
        outputs: those of a flip-flop, and whether they give what it took inverted.
        clock_energy: of a cycle at its clock pin, pJ.
    """

    area: float
    leakage: float
    capacitances: dict[str, float]
    functions: dict[str, str]
    energies: dict[str, Callable[[float], float]]
    clock: str = ""
    data: str = ""
    outputs: Mapping[str, bool] = field(default_factory=dict)
    clock_energy: float = 0.0


@dataclass(frozen=True)
class Units:
    """What a library's numbers are in.

    Attributes:
        capacitance: pF.
        energy: of its internal energies, pJ: capacitance by the square of the voltage's unit.
        leakage: mW.
    """

    capacitance: float
    energy: float
    leakage: float

    @classmethod
    def of(cls, library: Group) -> Units:
        """Those of a library's group.

        Raises:
            ValueError: a unit is not one of F, V and W.
        """
        number, unit = library.attributes.get("capacitive_load_unit", "1 pf").split()
        capacitance = _scaled(f"{number}{unit}", "f") * 1e12
        volt = _scaled(library.attributes.get("voltage_unit", "1V"), "v")
        leakage = _scaled(library.attributes.get("leakage_power_unit", "1mW"), "w") * 1e3
        return cls(capacitance, capacitance * volt**2, leakage)


_PREFIXES = {"": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9, "p": 1e-12, "f": 1e-15}


def _scaled(text: str, unit: str) -> float:
    """A unit such as "1ff" in terms of the one without a prefix."""
    found = re.fullmatch(rf"([\d.]+)\s*([munpf]?){unit}", text.strip().lower())
    if not found:
        raise ValueError(f"a library's units must be numbers of {unit.upper()}, not {text!r}")
    return float(found[1]) * _PREFIXES[found[2]]


@dataclass(frozen=True)
class Library:
    """The cells of a library, by name, and its voltage in V."""

    cells: dict[str, Cell]
    voltage: float

    @classmethod
    def parse(cls, *texts: str) -> Library:
        """What is in a library's files.

        Raises:
            ValueError: one of them is no library, or its units are unknown.
        """
        cells: dict[str, Cell] = {}
        voltage = 0.0
        for text in texts:
            top = parse(text)
            tables = _Tables(Units.of(top), {group.name: group for group in top.all("power_lut_template")})
            cells |= {cell.name: _cell(cell, tables) for cell in top.all("cell")}
            voltage = float(top.attributes.get("nom_voltage", voltage))
        return cls(cells, voltage)


@dataclass(frozen=True)
class _Tables:
    """How a library's numbers are read: their units, and the templates of its tables by name."""

    units: Units
    templates: Mapping[str, Group]

    def energy(self, edge: Group) -> Callable[[float], float]:
        """Energy in pJ at a load in pF; at the slew a third up the table, of gates that drive few others."""
        template = self.templates.get(edge.name, Group("", ""))
        axes, rows = table(edge, template)
        if len(axes) == 2 and template.attributes.get("variable_1") != _LOAD:
            axes, rows = axes[::-1], [list(column) for column in zip(*rows, strict=True)]
        loads, slews = axes if len(axes) == 2 else ([0.0], axes[0] if axes else [0.0])
        values = [row[len(slews) // 3] * self.units.energy for row in rows]
        return lambda load: values[_nearest(loads, load / self.units.capacitance)]


@lru_cache(maxsize=1)
def library_of(*texts: str) -> Library:
    """:meth:`Library.parse`, which takes seconds, remembered."""
    return Library.parse(*texts)


def _cell(group: Group, tables: _Tables) -> Cell:
    pins = {pin.name: pin for pin in group.all("pin")}
    rails = {pin.name for pin in group.all("pg_pin") if pin.attributes.get("pg_type") == "primary_power"}
    area, leakage = float(group.attributes.get("area", 0)), _leakage(group, rails) * tables.units.leakage
    inputs = {
        name: float(pin.attributes.get("capacitance", 0)) * tables.units.capacitance
        for name, pin in pins.items()
        if pin.attributes.get("direction") == "input"
    }
    functions = {
        name: pin.attributes["function"] for name, pin in pins.items() if "function" in pin.attributes
    }
    energies = {name: _energy(pin, rails, tables) for name, pin in pins.items()}
    for state in group.all("ff"):
        clock, following = state.attributes["clocked_on"], state.attributes["next_state"]
        data = following.removeprefix("!")
        if clock in pins and data in pins and "clear" not in state.attributes:
            _, inverse = state.name.split()
            inverted = following.startswith("!")
            outputs = {name: inverted != (function == inverse) for name, function in functions.items()}
            return Cell(area, leakage, inputs, {}, energies, clock, data, outputs, 2 * energies[clock](0))
    return Cell(area, leakage, inputs, functions, energies)


def _of_rails(groups: Iterable[Group], rails: set[str]) -> list[Group]:
    """Those of the power rails, or of no rail."""
    return [group for group in groups if group.attributes.get("related_pg_pin") in {None, *rails}]


def _leakage(group: Group, rails: set[str]) -> float:
    """Of a cell, in the library's unit: what holds whatever its state, or the mean of its states."""
    found = _of_rails(group.all("leakage_power"), rails)
    always = [state for state in found if "when" not in state.attributes]
    values = [float(state.attributes["value"]) for state in always or found]
    return fmean(values) if values else float(group.attributes.get("cell_leakage_power", 0))


def _energy(pin: Group, rails: set[str], tables: _Tables) -> Callable[[float], float]:
    """Energy of a toggle at a load: the mean over edges and related pins."""
    powers = _of_rails(pin.all("internal_power"), rails)
    edges = [tables.energy(edge) for power in powers for edge in power.groups]
    return lambda load: fmean(edge(load) for edge in edges) if edges else 0.0


def _nearest(numbers: Sequence[float], wanted: float) -> int:
    return min(range(len(numbers)), key=lambda i: abs(numbers[i] - wanted))


class Netlist:
    """A mapped netlist that can be run.

    Args:
        path: what Yosys' ``write_json`` left, of one module of a library's cells.
        library: the cells.
        wire: capacitance of the wire to each pin that a net drives, pF.

    Attributes:
        ports: the bits of each.

    Raises:
        ValueError: it has a cell that the library lacks.
    """

    def __init__(self, path: Path, library: Library, wire: float = 0.0):
        (module,) = json.loads(path.read_text())["modules"].values()
        self.ports: dict[str, list[Bit]] = {name: port["bits"] for name, port in module["ports"].items()}
        self._library, self._wire = library, wire
        self._gates: dict[Bit, tuple[str, str, dict[str, Bit]]] = {}  # cell, output pin, pins
        self._registers: list[tuple[Cell, dict[str, Bit]]] = []
        self._states: list[tuple[Bit, Bit, bool]] = []  # a flip-flop's output, its data, whether inverted
        self._loads: Counter[Bit] = Counter()
        self._memories: list[KeptMemory] = []
        for instance in module["cells"].values():
            if instance["type"] != "$scopeinfo":
                self._add(instance)
        order = TopologicalSorter({out: gate[2].values() for out, gate in self._gates.items()})
        self._step = self._compiled([out for out in order.static_order() if out in self._gates])

    def _add(self, instance: dict[str, Any]) -> None:
        kind = instance["type"]
        if kind == "$mem_v2":
            memory = KeptMemory(instance)
            self._memories.append(memory)
            self._loads.update(dict.fromkeys(memory.inputs, self._wire))
            return
        if kind not in self._library.cells:
            raise ValueError(f"cells must be the library's, not {kind!r}")
        cell = self._library.cells[kind]
        pins = {name: bits[0] for name, bits in instance["connections"].items()}
        for name, capacitance in cell.capacitances.items():
            self._loads[pins[name]] += capacitance + self._wire  # type: ignore[assignment]
        if cell.clock:
            self._registers.append((cell, pins))
            self._states += [
                (pins[name], pins[cell.data], inverted)
                for name, inverted in cell.outputs.items()
                if name in pins
            ]
            return
        inputs = {name: pins[name] for name in cell.capacitances}
        for output in cell.functions:
            if output in pins:
                self._gates[pins[output]] = kind, output, inputs

    def _compiled(self, order: list[Bit]) -> Callable[[dict[Bit, int], int], None]:
        """A function that gives each gate's output its value, from those of inputs and registers."""
        lines = []
        for out in order:
            kind, output, pins = self._gates[out]
            text, _ = expression(self._library.cells[kind].functions[output])
            lines.append(f"  v[{out!r}]=M&(" + text.format(**{p: f"v[{b!r}]" for p, b in pins.items()}) + ")")
        scope: dict[str, Any] = {}
        # Python's compiler needs much memory for one function of so many lines.
        starts = range(0, len(lines), 2000)
        for start in starts:
            exec("\n".join([f"def f{start}(v,M):", *lines[start : start + 2000]]), scope)
        steps = [scope[f"f{start}"] for start in starts]

        def step(values: dict[Bit, int], mask: int) -> None:
            for run in steps:
                run(values, mask)

        return step

    def run(
        self, drive: Drive, streams: int = STREAMS, warm_up: int = _WARM_UP, measured: int = _MEASURED
    ) -> Energy:
        """Energy of a cycle, the mean of those that are measured, behind those of reset and of the warm-up.

        Args:
            drive: what the input ports carry in a cycle, for each of their bits an integer of all streams;
                it is given the cycle's number, and what ports carried at the end of the one before.
            streams: at once; one if there are memories.
        """
        assert streams == 1 or not self._memories
        mask = (1 << streams) - 1
        values: dict[Bit, int] = {"0": 0, "1": mask, "x": 0}
        values |= dict.fromkeys((bit for bits in self.ports.values() for bit in bits), 0) | values
        values |= dict.fromkeys((out for out, _, _ in self._states), 0)
        values |= dict.fromkeys((bit for memory in self._memories for bit in memory.outputs), 0)
        toggles: Counter[Bit] = Counter()
        before = dict(values)

        def output(port: str) -> list[int]:
            return [before[bit] for bit in self.ports[port]]

        for cycle in range(_RESET + warm_up + measured):
            driven = drive(cycle - _RESET, output)
            for name, bits in driven.items():
                values.update(zip(self.ports[name], bits, strict=True))
            self._step(values, mask)
            if cycle >= _RESET + warm_up:
                toggles.update({bit: (now ^ before[bit]).bit_count() for bit, now in values.items()})
            before = dict(values)
            values.update((out, before[data] ^ mask * inverted) for out, data, inverted in self._states)
            for memory in self._memories:
                values.update(memory.edge(before))
        return self._energy({bit: count / streams / measured for bit, count in toggles.items()})

    def _energy(self, toggles: dict[Bit, float]) -> Energy:
        """Of a cycle with so many toggles of each net."""
        half = self._library.voltage**2 / 2
        clock = sum(
            cell.clock_energy + 2 * half * (cell.capacitances[cell.clock] + self._wire)
            for cell, _ in self._registers
        )
        clocks = {pins[cell.clock] for cell, pins in self._registers}
        switching = sum(
            toggles.get(bit, 0) * half * load for bit, load in self._loads.items() if bit not in clocks
        )
        for out, (kind, output, _) in self._gates.items():
            internal = self._library.cells[kind].energies[output](self._loads[out])
            switching += toggles.get(out, 0) * internal
        for cell, pins in self._registers:
            for name in cell.outputs.keys() & pins:
                out = pins[name]
                switching += toggles.get(out, 0) * cell.energies[name](self._loads[out])
            switching += toggles.get(pins[cell.data], 0) * cell.energies[cell.data](0)
        return Energy(clock, switching)


def leakage(path: Path, library: Library) -> float:
    """Of all cells of a mapped netlist, mW; what is no cell, such as a memory that was kept, has none."""
    (module,) = json.loads(path.read_text())["modules"].values()
    kinds = (cell["type"] for cell in module["cells"].values())
    return sum(library.cells[kind].leakage for kind in kinds if not kind.startswith("$"))


@dataclass(frozen=True)
class Energy:
    """Of a cycle, pJ: at the clock pins of flip-flops, and of all else that switches."""

    clock: float
    switching: float


def of_stream(netlist: Netlist, words: Sequence[Sequence[int]]) -> Energy:
    """Energy of a cycle of an engine with streams ``i`` and ``o``, that nothing stalls.

    Args:
        netlist: of the engine.
        words: for each of :data:`STREAMS` streams, the payloads that it is offered, again and again.
    """
    mask = (1 << STREAMS) - 1
    payload = len(netlist.ports["i_payload"])
    count = len(words[0])
    offered = [columns([stream[index] for stream in words], payload) for index in range(count)]
    index = 0

    def drive(cycle: int, output: Callable[[str], list[int]]) -> dict[str, list[int]]:
        nonlocal index
        if cycle > 0 and output("i_ready")[0]:
            index = (index + 1) % count
        runs = mask * (cycle >= 0)
        return {
            "rst": [mask - runs],
            "i_valid": [runs],
            "o_ready": [runs],
            "i_payload": offered[index],
        }

    return netlist.run(drive)


def columns(words: Sequence[int], width: int) -> list[int]:
    """For each bit of a word, that bit of all words."""
    texts = [format(word, f"0{width}b")[::-1] for word in words]
    return [int("".join(column)[::-1], 2) for column in zip(*texts, strict=True)]


def normal_blocks(count: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Normal values, each block of another scale."""
    return rng.standard_normal((count, size)) * np.exp2(rng.integers(-8, 8, (count, 1)))


def stimulus(config: Config, part: str, arrays: Path | None = None) -> list[list[int]]:
    """Words for each stream: blocks cut from arrays, or what they are stored as.

    Args:
        arrays: an ``.npz``; without it, normal values, each block of another scale.

    Raises:
        ValueError: there is no such file, or it has no block of values.
    """
    fmt, size = config.fmt, config.bus_bytes
    assert fmt.target
    rng = np.random.default_rng(0)
    # Whole blocks in whole words, so that a stream can begin again.
    blocks = size // gcd(size, fmt.target) * 8
    rows = _rows(arrays, fmt.block) if arrays else None
    found = []
    for _ in range(STREAMS):
        if rows is None:
            values = normal_blocks(blocks, fmt.block, rng)
        else:
            values = rows[rng.integers(0, len(rows), blocks)]
        floats = values.astype(fmt.float_type.array)
        content = floats.tobytes() if part == "compressor" else np.asarray(fmt.compress(floats)).tobytes()
        pieces = range(0, len(content), size)
        found.append([int.from_bytes(content[start : start + size], "little") for start in pieces])
    return found


def _rows(path: Path, block: int) -> np.ndarray:
    """The arrays' values in blocks; what is left of each is not among them."""
    try:
        with np.load(path) as arrays:
            flat = [arrays[name].reshape(-1) for name in arrays.files]
    except (EOFError, OSError, ValueError, AttributeError) as error:
        raise ValueError(f"ACTIVITY must be an .npz of arrays, not {str(path)!r}: {error}") from error
    whole = [array[: len(array) // block * block].reshape(-1, block) for array in flat]
    rows = np.concatenate([np.empty((0, block)), *whole])
    if not len(rows):
        raise ValueError(f"ACTIVITY must have arrays of at least {block} values: {str(path)!r} has none")
    return rows
