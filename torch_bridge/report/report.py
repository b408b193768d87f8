"""What was kept of a model's saved tensors, as rows and as a table."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..facts.facts import Facts, name_of
from .curve import Curve
from .rows import RECOMPUTED, Row, merged, sum_up


@dataclass(frozen=True)
class Report:
    """Every tensor that a forward pass saved, with totals; ``print`` it for a table.

    Attributes:
        rows: in the order in which the first of each kind was saved.
        original_bytes, stored_bytes: totals over the rows that are counted.
        curve: what could be recomputed by matrix products, and what is; None if that is nobody's question.
    """

    rows: tuple[Row, ...]
    curve: Curve | None = None

    @property
    def original_bytes(self) -> int:
        return sum(row.original_bytes for row in self.rows if row.counted)

    @property
    def stored_bytes(self) -> int:
        return sum(row.stored_bytes for row in self.rows if row.counted)

    @property
    def ratio(self) -> float:
        """Original over stored bytes of all that is counted, headers and what stays exact included."""
        return self.original_bytes / self.stored_bytes if self.stored_bytes else float("nan")

    @property
    def recomputed_bytes(self) -> int:
        """Bytes of what is not stored, as others make it."""
        return sum(row.original_bytes for row in self.rows if row.kept == RECOMPUTED)

    @property
    def recomputed_seconds(self) -> float:
        """Spent so far to compute it anew; on a GPU to give it the work."""
        return sum(row.seconds for row in self.rows)

    def save(self, path: str | Path) -> None:
        """Write it as a page of plots and tables, a single file that needs no network.

        Raises:
            ModuleNotFoundError: plotly is not installed, which draws the plots.
        """
        from . import page, plots

        page.write(Path(path), "Saved tensors", plots.sections(self.rows))

    def table(self) -> Table:
        """The report as a table of rich, with all modules together."""
        table = Table(title="saved tensors")
        for heading in ("operation", "saved by", "shape", "dtype", "kept"):
            table.add_column(heading, overflow="fold")
        for heading in ("tensors", "saved kB", "stored kB", "ratio"):
            table.add_column(heading, justify="right", no_wrap=True)
        seconds = self.recomputed_seconds
        if seconds:
            table.add_column("seconds", justify="right", no_wrap=True)
        for row in merged(self.rows):
            shape = " x ".join(map(str, row.shape)) or "scalar"
            cells = [
                row.op,
                row.saved_by,
                shape,
                row.dtype,
                row.kept if row.counted else f"{row.kept} (not counted)",
            ]
            cells += [str(row.tensors), *_sizes(row.original_bytes, row.stored_bytes)]
            table.add_row(*cells, *([f"{row.seconds:.4f}" if row.seconds else ""] if seconds else []))
        table.add_section()
        tensors = sum(row.tensors for row in self.rows if row.counted)
        cells = ["total", "", "", "", "", str(tensors), *_sizes(self.original_bytes, self.stored_bytes)]
        table.add_row(*cells, *([f"{seconds:.4f}"] if seconds else []))
        return table

    def __str__(self) -> str:
        text = io.StringIO()
        console = Console(file=text, width=120)
        console.print(self.table())
        if self.curve is not None:
            console.print(self.curve.table())
        return text.getvalue().rstrip()


@dataclass(slots=True)
class Sums:
    """Of the tensors of a row."""

    op: str
    facts: Facts
    kept: str
    tensors: int = 0
    original_bytes: int = 0
    stored_bytes: int = 0
    seconds: float = 0.0

    @property
    def row(self) -> Row:
        facts = self.facts
        return Row(
            self.op,
            tuple(facts.shape),
            name_of(facts.dtype),
            self.kept,
            not facts.constant,
            self.tensors,
            self.original_bytes,
            self.stored_bytes,
            self.seconds,
            facts.module,
            facts.saved_by,
        )


class Tally:
    """Counts saved tensors into rows. Holds numbers and names, never a tensor."""

    def __init__(self) -> None:
        self._sums: dict[
            tuple[str, int, str], Sums
        ] = {}  # which hold the facts: equal ones are summed up later
        self.original_bytes = 0
        self.stored_bytes = 0

    def add(self, facts: Facts, op: str, kept: str, original: int, stored: int) -> Sums:
        """Add a tensor to its row, and give that."""
        key = op, id(facts), kept
        sums = self._sums.get(key)
        if sums is None:
            sums = self._sums[key] = Sums(op, facts, kept)
        sums.tensors += 1
        sums.original_bytes += original
        sums.stored_bytes += stored
        if not facts.constant:
            self.original_bytes += original
            self.stored_bytes += stored
        return sums

    def more(self, sums: Sums, original: int) -> None:
        """More bytes of a tensor that was added, of which none are stored."""
        sums.original_bytes += original
        if not sums.facts.constant:
            self.original_bytes += original

    def move(self, before: Sums, kept: str, original: int, stored: tuple[int, int]) -> Sums:
        """A tensor is kept in another way than its row says: the row that it is in now.

        Args:
            original: bytes of it.
            stored: that it took, and takes now.
        """
        before.tensors -= 1
        before.original_bytes -= original
        before.stored_bytes -= stored[0]
        self.original_bytes -= original
        self.stored_bytes -= stored[0]
        return self.add(before.facts, before.op, kept, original, stored[1])

    def report(self) -> Report:
        """Rows of like tensors, whatever places of the model with facts of their own they are from."""
        return Report(tuple(sum_up(sums.row for sums in self._sums.values() if sums.tensors)))


def _sizes(original: int, stored: int) -> tuple[str, str, str]:
    return f"{original / 1e3:,.1f}", f"{stored / 1e3:,.1f}", f"{original / stored:.2f}" if stored else "-"
