"""Tables of what was measured: on the terminal after a run, and in docs/ from docs/verification.json.

That file has the runs of each command that gave its rows: one, or several of some engines each. A row is
that of its engine's last run.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gen import provenance
from gen.config import PRESETS

Row = dict[str, Any]
STALE = "Of older sources: engines, benches or proofs have changed since."
DOCS = Path("docs")
RECORDS = DOCS / "verification.json"


@dataclass(frozen=True)
class Report:
    """A file of rows, how it is made, and how it is shown.

    Attributes:
        name: in docs/verification.json.
        command: what makes it.
        path: where a run leaves it, a JSON list of rows.
        title: of its table.
        columns: members of a row to show, with their headings.
        about: what to know of the figures.
        key: members of a row that say what was run.
    """

    name: str
    command: str
    path: Path
    title: str
    columns: dict[str, str]
    about: str
    key: tuple[str, ...] = ("config", "part")

    def write(self, rows: Sequence[Row], **further: Any) -> None:
        """Write the rows, and beside them what they were made with, and print their table.

        Rows that lack a column are another report's in the same file.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(rows, indent=2) + "\n")
        provenance.note(self.path, sources=provenance.sources(), **further)
        self.show(rows)
        print(self.path)

    def show(self, rows: Sequence[Row]) -> None:
        """Print the table of its rows among these."""
        rows = self.own(rows)
        if not rows:
            return
        table = Table(title=self.title)
        for name, heading in self.columns.items():
            is_number = all(isinstance(row[name], int | float) for row in rows)
            table.add_column(
                heading, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold"
            )
        for row in rows:
            table.add_row(*(_text(row[name]) for name in self.columns))
        Console(width=max(Console().width, 120)).print(table)

    def runs(self) -> list[Row]:
        """What was recorded: of each run its "rows", and with what they were "made" (gen/provenance.py)."""
        runs: list[Row] = _records().get(self.name, [])
        return runs

    def rows(self) -> list[Row]:
        """The rows of all runs, the oldest run's first."""
        return [row for run in self.runs() for row in run["rows"]]

    def stale_rows(self) -> list[Row]:
        """Those that were made from other sources than those that are here."""
        return [row for run in self.runs() for row in older_rows(run)]

    def take(self) -> list[Row]:
        """The runs with the one that has left its rows, without lists, in build/.

        A whole one is in place of all others. One of some engines is in place of these engines' rows, and
        goes on with the last run if that was made with the same. A short one is no record.
        """
        if not self.path.exists():
            return self.runs()
        made = provenance.read(self.path)
        is_short, is_whole = made.pop("short", False), not made.pop("only", None)
        left = [
            {name: value for name, value in row.items() if not isinstance(value, list | dict)}
            for row in self.own(json.loads(self.path.read_text()))
        ]
        if is_short or not left:
            return self.runs()
        new = {self._key(row) for row in left}
        runs = [
            {"made": run["made"], "rows": [row for row in run["rows"] if self._key(row) not in new]}
            for run in ([] if is_whole else self.runs())
        ]
        if runs and runs[-1]["made"] == made:
            left = runs.pop()["rows"] + left
        return [run for run in runs if run["rows"]] + [{"made": made, "rows": left}]

    def _key(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.key)

    def own(self, rows: Sequence[Row]) -> list[Row]:
        """Those of rows that are of this report."""
        return [row for row in rows if self.columns.keys() <= row.keys()]

    def section(self) -> str:
        """The table under its title, with the command and what to know of it, as Markdown."""
        table = self.table() if self.rows() else "Not run to its end."
        count = len(self.stale_rows())
        some = f"Of the first {count} rows: " if count < len(self.rows()) else ""
        stale = f"**{some}{STALE}**\n\n" if count else ""
        return f"### {self.title}\n\n`{self.command}`. {self.about}\n\n{stale}{table}\n"

    def table(self) -> str:
        """The table as Markdown."""
        cells = [
            [f"{row[name]:.2f}" if name == "kge_per_byte_per_cycle" else row[name] for name in self.columns]
            for row in self.rows()
        ]
        return as_markdown(list(self.columns.values()), cells)


class _Areas(Report):
    """Of presets with streams alone, and without memories: others are in other tables."""

    def take(self) -> list[Row]:
        """``make synth`` may have been about some presets, or have placed nothing."""
        presets = list(PRESETS)
        runs = super().take()
        for run in runs:
            rows = [row for row in run["rows"] if row["preset"] in presets]
            run["rows"] = sorted(
                rows, key=lambda row: (presets.index(row["preset"]), row["bus_bytes"], row["part"])
            )
        return [run for run in runs if run["rows"]]

    def own(self, rows: Sequence[Row]) -> list[Row]:
        """What was placed stays with gates that are the same."""
        old, found = {self._key(row): row for row in self.rows()}, []
        for row in rows:
            if row["preset"] not in PRESETS or row["memory_bits"]:
                continue
            row = {name: row[name] for name in self.columns}
            digits = {"kge": 1, "kge_per_byte_per_cycle": 2}
            row |= {name: round(row[name], places) for name, places in digits.items()}
            before = old.get(self._key(row), {})
            if row["ecp5_mhz"] is None and before.get("kge") == row["kge"]:
                row |= {name: before[name] for name in ("ecp5_luts", "ecp5_mhz")}
            found.append(row)
        return found


class _Submodules(Report):
    def own(self, rows: Sequence[Row]) -> list[Row]:
        """Those of the 64-byte fp32 engines."""
        engines = [row for row in rows if (row["preset"], row["bus_bytes"]) == ("gpt2-fp32-3.2x", 64)]
        return [
            {
                "part": row["part"],
                "submodule": name,
                "kge": round(kge, 1),
                "percent": round(100 * kge / total, 1),
            }
            for row in engines
            for total in [sum(row["modules"].values())]
            for name, kge in sorted(row["modules"].items(), key=lambda item: -item[1])
            if kge
        ]


def older_rows(run: Row) -> list[Row]:
    """Rows of a run of which what they depend on was not what it is here."""
    made, now = run["made"].get("sources", {}), provenance.sources()
    return [row for row in run["rows"] if made.get(_verified(row)) != now[_verified(row)]]


def _verified(row: Row) -> str:
    """On which of :func:`gen.provenance.sources` a row depends."""
    if "kge" in row:
        return "areas"
    if "part" not in row:
        return "proofs"
    return "memory engines" if row["part"] == "memory" else "codecs"


def as_markdown(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [headings, ["---"] * len(headings), *([_text(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, float):
        return f"{value:.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


_ENGINE = {"config": "config", "part": "part"}
SIM = Report(
    "engines",
    "make sim",
    Path("build/sim/summary.json"),
    "Engines in simulation against the golden model",
    _ENGINE
    | {
        "simulator": "simulator",
        "blocks": "blocks",
        "mismatches": "mismatches",
        "bytes_per_cycle": "bytes per cycle",
        "bytes_per_cycle_stalled": "with stalls",
        "latency_min": "latency, min",
        "latency_mean": "mean",
        "latency_max": "max",
    },
    "Of every kind of blocks under every pattern of idling and stalling at either end, with resets.",
)
MEMORY = Report(
    "memory engines",
    "make sim",
    SIM.path,
    "Memory engines in simulation against a model of the map",
    {
        "config": "engine",
        "region": "region",
        "bursts": "bursts",
        "bursts_cocotbext": "by cocotbext-axi",
        "mismatches": "mismatches",
        "read_bytes_per_cycle": "bytes read per cycle",
        "write_bytes_per_cycle": "written at once",
        "excess_bytes": "excess",
        "read_latency_added": "latency added",
    },
    "Random bursts of every kind, size, alignment and region, with strobes, IDs, stalls on every channel, "
    "errors of memory and invalid blocks, half of them one after the other and half from several masters at "
    "once; on the presets some are those of cocotbext-axi's bus master, with its memory. Rates are those of "
    "reads and writes of 1 KiB at once, behind a memory of 100 cycles; the excess is the share of memory's "
    "beats beyond the stored bytes; the latency is what a read of a word adds, in cycles.",
    key=("config", "region"),
)
BINS = Report(
    "corners",
    "make sim",
    Path("build/sim/coverage.json"),
    "Functional coverage",
    _ENGINE | {"bins": "bins", "met": "met", "rarest": "rarest bin", "hits": "its hits"},
    "Bins are the corners of [the format](format.md) that can occur in it, as monitors see them at the "
    "engine's ports: each width of the deltas, each class of flags, what fits, every kind of value, each "
    "place where a block can start in a bus word and a tensor end in a block; of compressors how values "
    "are rounded and saturate, flushing to each width, specials blocks; of decompressors each way in "
    "which a header is invalid, cleared memory, payloads that no encoder writes. Behind AXI4-Stream they "
    "are those of TKEEP and TUSER, of runtime-configurable engines each switch and each format's errors. "
    "Every corner counts three times: of what flows, of what comes after a pause of the source, of what the "
    "sink holds up. `plane_corners.py`, `hadamard_corners.py` and `shared_corners.py` in "
    "`cocotb_tests/` have them, `beats.py` those of AXI4-Stream, with the rules for corners that a format "
    "lacks. "
    "An empty bin fails the run.",
)
STREAMS = Report(
    "streams",
    "make sim",
    Path("build/sim/streams.json"),
    "Parts of the streams in simulation",
    {
        "config": "part",
        "simulator": "simulator",
        "words": "words",
        "mismatches": "mismatches",
        "words_per_cycle": "words per cycle",
        "words_per_cycle_stalled": "with stalls",
        "latency_min": "latency, min",
        "latency_max": "max",
    },
    "Register slices, and FIFOs between clocks of seven ratios and phases. Rates are at equal clocks; "
    "latency is the edge of the sink's clock, after a word was taken, that first sees it.",
    key=("config",),
)
CODE = Report(
    "coverage",
    "make coverage",
    Path("build/coverage/report.json"),
    "Line and toggle coverage",
    _ENGINE
    | {
        "lines": "branches",
        "lines_percent": "reached, %",
        "toggles": "toggles",
        "toggles_percent": "reached, %",
        "constant": "constant",
        "missed": "not reached, and why",
    },
    "As Verilator counts them: branches, and the rises and falls of the signals that `rtl/` names. Bits "
    "that ABC proves to be constant cannot toggle, nor can a branch be taken against them; they do not "
    "count. Behind AXI4-Stream only what is added to the engine counts.",
)
NETLIST = Report(
    "gates",
    "make netlist",
    Path("build/netlist/report.json"),
    "Gates in simulation",
    _ENGINE | {"simulator": "simulator", "blocks": "blocks", "mismatches": "mismatches", "cells": "cells"},
    "The same benches on the netlist of `synth -flatten` with Yosys' simulation cells.",
)
XSAFETY = Report(
    "unknown states",
    "make xsafety",
    Path("build/xsafety/report.json"),
    "Gates from unknown states",
    _ENGINE | {"simulator": "simulator", "seed": "seed", "blocks": "blocks", "mismatches": "mismatches"},
    "The same netlist without initial values. Verilator starts every flip-flop, and whatever is assigned "
    "an X, with random bits of the seed; Icarus starts them with X, and an X that reaches a valid output "
    "fails the bench; it runs all benches but those of thousands of chosen blocks.",
)
MUTATION = Report(
    "mutants",
    "make mutate",
    Path("build/mutate/summary.json"),
    "Mutants",
    _ENGINE
    | {
        "mutants": "mutants",
        "equivalent": "proven equivalent",
        "killed": "killed",
        "killed_percent": "killed of the others, %",
        "undecided": "undecided",
        "open": "differ",
    },
    "Single faults in operators and registers, spread evenly by Yosys' `mutate`, all in one model and "
    "selected at run time. Short benches come first. ABC then tries to prove a survivor equivalent, with "
    "inputs that keep the streams' rules; one that is not proven goes through long benches, in a memory "
    "engine through more bursts. Of what survives these ABC searches for a difference from reset on, for "
    "any input, but not in a memory engine. What is neither proven nor found is undecided and counts as not "
    "found: the search seldom goes farther than an engine's latency and a few words, so that it says "
    "nothing of blocks behind the first, nor of stalls. "
    "`build/mutate/report.json` lists them all with the lines of `rtl/` they come from.",
)
FORMAL = Report(
    "proofs",
    "make formal",
    Path("build/formal/report.json"),
    "Formal proofs",
    {
        "claim": "claim",
        "component": "component",
        "parameters": "parameters",
        "extent": "extent",
        "expected": "expected",
        "status": "result",
    },
    "With SymbiYosys. A component with a fault must be disproven (FAIL): it shows that the claim can be. The "
    "tiny floats, and blocks of 8 values, exist for proofs only.",
    key=("claim", "component", "parameters", "extent"),
)
SYNTH = _Areas(
    "area",
    "make synth",
    Path("build/synth/report.json"),
    "Area and depth",
    {
        "preset": "preset",
        "part": "part",
        "bus_bytes": "bus bytes",
        "kge": "kGE",
        "kge_per_byte_per_cycle": "per byte per cycle",
        "flip_flops": "flip-flops",
        "nand_levels": "NAND levels",
        "ecp5_luts": "ECP5 LUTs",
        "ecp5_mhz": "ECP5 MHz",
    },
    "NAND 1, NOT 0.67, flip-flop 6.",
    key=("preset", "bus_bytes", "part"),
)
SUBMODULES = _Submodules(
    "submodules",
    "make synth",
    Path("build/synth/details.json"),
    "Submodules",
    {"part": "part", "submodule": "submodule", "kge": "kGE", "percent": "%"},
    "Of the 64-byte fp32 engines, each submodule by itself.",
    key=("part", "submodule"),
)


def bins(figures: Sequence[Row]) -> list[Row]:
    """Rows of :data:`BINS` from rows with the bins of each engine: group, name and hits."""
    rows = []
    for row in figures:
        counted = sorted(row["coverage"], key=lambda bin: bin[2])
        rarest = counted[0]
        rows.append(
            {
                "config": row["config"],
                "part": row["part"],
                "bins": len(counted),
                "met": sum(hits > 0 for _, _, hits in counted),
                "rarest": f"{rarest[0]}: {rarest[1]}",
                "hits": rarest[2],
                "all": counted,
            }
        )
    return rows


def mutants(findings: Sequence[Row]) -> list[Row]:
    """Rows of :data:`MUTATION`, one for each engine and part."""
    rows = []
    for config, part in dict.fromkeys((finding["config"], finding["part"]) for finding in findings):
        fates = Counter(f["fate"] for f in findings if (f["config"], f["part"]) == (config, part))
        faults = fates.total() - fates["equivalent"]
        rows.append(
            {"config": config, "part": part, "mutants": fates.total()}
            | {fate: fates[fate] for fate in ("equivalent", "killed", "undecided", "open")}
            | {"killed_percent": 100 * fates["killed"] / faults}
        )
    return rows


def take() -> None:
    """Put what runs have left in build/ into docs/verification.json, in place of earlier rows."""
    records = {
        report.name: report.take()
        for report in (
            SIM,
            MEMORY,
            BINS,
            STREAMS,
            CODE,
            NETLIST,
            XSAFETY,
            MUTATION,
            FORMAL,
            SYNTH,
            SUBMODULES,
        )
    }
    RECORDS.write_text(
        _as_json({name: runs for name, runs in records.items() if any(run["rows"] for run in runs)})
    )


def _records() -> dict[str, Any]:
    records: dict[str, Any] = json.loads(RECORDS.read_text()) if RECORDS.exists() else {}
    return records


def _as_json(records: dict[str, Any]) -> str:
    """A row on a line, so that a difference shows what was run again."""
    parts = []
    for name, runs in records.items():
        texts = []
        for run in runs:
            rows = ",\n".join(f"   {json.dumps(row)}" for row in run["rows"])
            texts.append(f'{{\n  "made": {json.dumps(run["made"])},\n  "rows": [\n{rows}\n  ]\n }}')
        parts.append(f" {json.dumps(name)}: [{', '.join(texts)}]")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def datasheet() -> str:
    """docs/hardware.md with the tables that were recorded."""
    path = DOCS / "hardware.md"
    text = path.read_text()
    reports = {"sim": SIM, "memory": MEMORY, "synth": SYNTH, "submodules": SUBMODULES}
    tables = {name: report.table() for name, report in reports.items() if report.rows()}
    for name in tables:
        if reports[name].stale_rows():
            tables[name] = f"**{STALE}**\n\n{tables[name]}"
    measured = {row["preset"] for row in SYNTH.rows()}
    missing = [f"`{name}`" for name in PRESETS if name not in measured]
    if measured and missing:
        tables["synth"] += f"\n\nNot measured: {', '.join(missing)}."
    for name, table in tables.items():
        text, found = re.subn(
            rf"(<!-- {name} -->\n).*?(<!-- end -->)", rf"\g<1>{table}\n\g<2>", text, flags=re.DOTALL
        )
        if found != 1:
            raise ValueError(f"{path} must have one place for the table {name}, not {found}")
    return text
