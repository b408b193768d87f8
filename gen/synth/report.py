"""What ``python -m gen synth`` prints and writes: a row for each engine, its submodules and its paths."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .. import provenance
from ..config import Config
from ..verilog import bytes_per_cycle, parts
from . import jobs, liberty
from .gates import Gates

_WIDEST = 1000  # no table is


def synthesise(
    configs: Sequence[Config],
    processes: int,
    *,
    placed: Mapping[Config, Sequence[int]] | None = None,
    libraries: Sequence[Path] = (),
    activity: Path | None = None,
    show_paths: bool = False,
    out: Path = jobs.ROOT,
) -> list[dict[str, Any]]:
    """Measure engines, print the tables, and write report.json and details.json.

    Args:
        configs: what to measure; of each, all parts.
        processes: how many engines are measured at a time.
        placed: those of ``configs`` that are also placed on the ECP5, which takes minutes, with their seeds.
        libraries: files of a cell library to map to as well.
        activity: an ``.npz`` of arrays whose values switch the cells; see :func:`gen.synth.energy.stimulus`.
        show_paths: also print the longest paths.
        out: folder of the two files.

    Returns:
        The rows of report.json.

    Raises:
        ValueError: there is no such library, or no such file of arrays.
        gen.toolchain.ToolError: a tool failed; then nothing is written.
    """
    for path in libraries:
        liberty.read(path)  # raises if it is none
    if activity and not activity.is_file():
        raise ValueError(f"ACTIVITY must be a file of arrays, not {str(activity)!r}")
    if activity and not libraries:
        raise ValueError("ACTIVITY is for the energy of a cell library: set LIBERTY, too")
    engines = [(config, part) for config in configs for part in parts(config)]
    todo: dict[tuple[str, Config, str], Callable[[], Any]] = {}  # the slowest first
    for config, part in engines:
        if placed and config in placed:
            todo["ecp5", config, part] = partial(jobs.place, config, part, placed[config])
    for config, part in engines:
        todo["gates", config, part] = partial(jobs.measure_gates, config, part)
        if libraries:
            todo["cells", config, part] = partial(
                jobs.measure_cells, config, part, tuple(libraries), activity
            )
    found = jobs.run(todo, processes)

    rows, details = [], []
    for config, part in engines:
        gates: Gates = found["gates", config, part]
        ecp5, cells = (found.get((flow, config, part)) for flow in ("ecp5", "cells"))
        rows.append(_row(config, part, gates, ecp5) | (cells or {}))
        details.append(_detail(config, part, gates, ecp5))
    out.mkdir(parents=True, exist_ok=True)
    only = list(dict.fromkeys(config.name for config in configs))
    for name, content, further in (("report.json", rows, {"only": only}), ("details.json", details, {})):
        (out / name).write_text(json.dumps(content, indent=2, default=vars) + "\n")
        provenance.note(out / name, sources=provenance.sources(), **further)

    table = _table(rows)
    console = Console(width=max(Console().width, 132, Console(width=_WIDEST).measure(table).maximum))
    console.print(table)
    for same in _by_engine(details):
        console.print(_modules_table(same))
    if show_paths:
        for detail in details:
            console.print(_paths_text(detail), highlight=False, markup=False, soft_wrap=True)
    console.print(f"wrote {out / 'report.json'} and {out / 'details.json'}")
    return rows


def _row(config: Config, part: str, gates: Gates, ecp5: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "preset": config.name,
        "part": part,
        "bus_bytes": config.bus_bytes,
        "kge": gates.kge,
        "kge_per_byte_per_cycle": round(gates.kge / bytes_per_cycle(config), 3),
        "flip_flops": gates.flip_flops,
        "memory_bits": gates.memory_bits,
        "nand_levels": gates.nand_levels,
        "ecp5_luts": ecp5 and ecp5["luts"],
        "ecp5_mhz": ecp5 and ecp5["mhz"],
    }


def _detail(config: Config, part: str, gates: Gates, ecp5: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "preset": config.name,
        "part": part,
        "bus_bytes": config.bus_bytes,
        "plain_kge": gates.plain_kge,
        "modules": gates.modules,
        "paths": gates.paths,
        "ecp5": ecp5,
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="synthesis: NAND 1, NOT 0.67, flip-flop 6 gate equivalents")
    for heading in ("preset", "part"):
        table.add_column(heading, no_wrap=True)
    headings = ["bus\nbytes", "kGE", "kGE per\nbyte/cycle", "flip-\nflops", "memory\nbits", "NAND\nlevels"]
    headings += ["ECP5\nLUTs", "ECP5\nMHz"]
    if "area" in rows[0]:
        headings += ["area\nµm²", "delay\nps", "leakage\nmW", "pJ per\nbyte", "clock's"]
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    formats = {"kge": ".1f", "kge_per_byte_per_cycle": ".2f", "area": ".0f", "delay_ps": ".0f"}
    for row in rows:
        texts = ["" if v is None else format(v, formats.get(name, "")) for name, v in row.items()]
        table.add_row(*texts, end_section=row["part"] == "decompressor")
    return table


def _by_engine(details: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The same engine at all bus widths together."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for detail in details:
        groups.setdefault((detail["preset"], detail["part"]), []).append(detail)
    return list(groups.values())


def _modules_table(details: list[dict[str, Any]]) -> Table:
    preset, part = details[0]["preset"], details[0]["part"]
    table = Table(title=f"{preset}, {part}: kGE of each submodule, none optimised across its border")
    table.add_column("submodule", no_wrap=True)
    for detail in details:
        table.add_column(f"{detail['bus_bytes']} bytes", justify="right", no_wrap=True)
    for name in sorted({name for detail in details for name, kge in detail["modules"].items() if kge}):
        sizes = [detail["modules"].get(name) for detail in details]
        table.add_row(name, *("" if size is None else f"{size:.2f}" for size in sizes))
    table.add_section()
    table.add_row("all", *(f"{sum(detail['modules'].values()):.2f}" for detail in details))
    plain = "all in one, enables and resets as gates"
    table.add_row(plain, *(f"{detail['plain_kge']:.2f}" for detail in details))
    return table


def _paths_text(detail: dict[str, Any]) -> str:
    """The longest paths, a paragraph each; and the longest in the FPGA."""
    name = f"{detail['preset']}, {detail['part']}, {detail['bus_bytes']} bytes"
    lines = [f"{name}: the longest path into each register"]
    for path in detail["paths"]:
        lines.append(f"{path.levels:3} levels from {path.start} to {path.end}")
        lines += [f"{level:15} {name}" for level, name in path.nets]
    if detail["ecp5"]:
        seeds = ", ".join(map(str, detail["ecp5"]["mhz_of_seeds"]))
        lines.append(f"the longest path on the ECP5 (MHz of each seed: {seeds})")
        lines += [f"{reached:12.2f} ns {net}" for reached, net in detail["ecp5"]["path"]]
    return "\n".join(lines)
