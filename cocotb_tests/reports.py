"""Tables of what was measured: on the terminal after a run, and in docs/ from the reports."""

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

Row = dict[str, Any]
DOCS = Path("docs")


@dataclass(frozen=True)
class Report:
    """A file of rows, how it is made, and how it is shown.

    Attributes:
        command: what makes it.
        path: where it lies, a JSON list of rows.
        title: of its table.
        columns: members of a row to show, with their headings.
        about: what to know of the figures.
    """

    command: str
    path: Path
    title: str
    columns: dict[str, str]
    about: str

    def write(self, rows: Sequence[Row], **further: Any) -> None:
        """Write the rows, and beside them what they were made with, and print their table.

        Rows that lack a column are another report's in the same file.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(rows, indent=2) + "\n")
        provenance.note(self.path, **further)
        self.show(rows)
        print(self.path)

    def show(self, rows: Sequence[Row]) -> None:
        """Print the table of its rows among these."""
        rows = self._own(rows)
        table = Table(title=self.title)
        for name, heading in self.columns.items():
            is_number = all(isinstance(row[name], int | float) for row in rows)
            table.add_column(
                heading, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold"
            )
        for row in rows:
            table.add_row(*(_text(row[name]) for name in self.columns))
        Console(width=max(Console().width, 120)).print(table)

    def rows(self) -> list[Row]:
        """The rows of the last run; none if there was none."""
        return self._own(json.loads(self.path.read_text())) if self.path.exists() else []

    def _own(self, rows: Sequence[Row]) -> list[Row]:
        return [row for row in rows if self.columns.keys() <= row.keys()]

    def made(self) -> dict[str, Any]:
        """What they were made with: see :mod:`gen.provenance`."""
        return provenance.read(self.path)

    def section(self) -> str:
        """The table under its title, with the command and what to know of it, as Markdown."""
        table = self.table() if self.path.exists() else "Not run to its end."
        return f"### {self.title}\n\n`{self.command}`. {self.about}\n\n{table}\n"

    def table(self) -> str:
        """The table as Markdown."""
        cells = [[row[name] for name in self.columns] for row in self.rows()]
        return as_markdown(list(self.columns.values()), cells)


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
)
BINS = Report(
    "make sim",
    Path("build/sim/coverage.json"),
    "Functional coverage",
    _ENGINE | {"bins": "bins", "met": "met", "rarest": "rarest bin", "hits": "its hits"},
    "Bins are the corners of [the format](format.md) that can occur in it, as monitors see them at the "
    "engine's ports: each width of the deltas, each class of flags, what fits, every kind of value, each "
    "place where a block can start in a bus word and a tensor end in a block; of compressors how values "
    "are rounded and saturate, flushing to each width, specials blocks; of decompressors each way in "
    "which a header is invalid, cleared memory, payloads that no encoder writes. Behind AXI4-Stream they "
    "are those of TKEEP and TUSER, of formats at run time each switch and each format's errors. Every "
    "corner counts three times: of what flows, of what comes after a pause of the source, of what the "
    "sink holds up. `cocotb_tests/corners.py` has them with the rules for corners that a format lacks. "
    "An empty bin fails the run.",
)
STREAMS = Report(
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
)
CODE = Report(
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
    "make netlist",
    Path("build/netlist/report.json"),
    "Gates in simulation",
    _ENGINE | {"simulator": "simulator", "blocks": "blocks", "mismatches": "mismatches", "cells": "cells"},
    "The same benches on the netlist of `synth -flatten` with Yosys' simulation cells.",
)
XSAFETY = Report(
    "make xsafety",
    Path("build/xsafety/report.json"),
    "Gates from unknown states",
    _ENGINE | {"simulator": "simulator", "seed": "seed", "blocks": "blocks", "mismatches": "mismatches"},
    "The same netlist without initial values. Verilator starts every flip-flop, and whatever is assigned "
    "an X, with random bits of the seed; Icarus starts them with X, and an X that reaches a valid output "
    "fails the bench.",
)
MUTATION = Report(
    "make mutate",
    Path("build/mutate/summary.json"),
    "Mutants",
    _ENGINE
    | {
        "mutants": "mutants",
        "equivalent": "proven equivalent",
        "killed": "killed",
        "killed_percent": "killed of the others, %",
        "bounded": "no difference in n cycles",
        "open": "differ",
    },
    "Single faults in operators and registers, spread evenly by Yosys' `mutate`, all in one model and "
    "selected at run time. A survivor goes to ABC, with inputs that keep the streams' rules: it is proven"
    " equivalent, or searched for a difference from reset on, any input, as many cycles as stated. "
    "`build/mutate/report.json` lists them all with the lines of `rtl/` they come from.",
)
FORMAL = Report(
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
)
SYNTH = Report(
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
    """Rows of :data:`MUTATION`, one for each engine and part and one for each part in all."""
    rows = []
    for part in dict.fromkeys(finding["part"] for finding in findings):
        of_part = [finding for finding in findings if finding["part"] == part]
        for config in [*dict.fromkeys(finding["config"] for finding in of_part), "all"]:
            fates = Counter(f["fate"] for f in of_part if config in ("all", f["config"]))
            faults = fates.total() - fates["equivalent"]
            rows.append(
                {"config": config, "part": part, "mutants": fates.total()}
                | {fate: fates[fate] for fate in ("equivalent", "killed", "bounded", "open")}
                | {"killed_percent": 100 * fates["killed"] / faults}
            )
    return rows


def write_datasheet() -> None:
    """Write the tables of docs/hardware.md from the reports of ``make synth`` and ``make sim``."""
    datasheet = DOCS / "hardware.md"
    text = datasheet.read_text()
    tables = {"sim": SIM.table(), "synth": SYNTH.table(), "submodules": submodules()}
    if MEMORY.rows():
        tables["memory"] = MEMORY.table()
    for name, table in tables.items():
        text, found = re.subn(
            rf"(<!-- {name} -->\n).*?(<!-- end -->)", rf"\g<1>{table}\n\g<2>", text, flags=re.DOTALL
        )
        if found != 1:
            raise ValueError(f"{datasheet} must have one place for the table {name}, not {found}")
    datasheet.write_text(text)


def submodules() -> str:
    """Where the gates of the 64-byte fp32 engines go, as Markdown."""
    details = json.loads(Path("build/synth/details.json").read_text())
    engines = [row for row in details if (row["preset"], row["bus_bytes"]) == ("gpt2-fp32-3.2x", 64)]
    rows = [
        (row["part"], name, kge, 100 * kge / sum(row["modules"].values()))
        for row in engines
        for name, kge in sorted(row["modules"].items(), key=lambda item: -item[1])
        if kge
    ]
    return as_markdown(("part", "submodule", "kGE", "%"), rows)
