"""What a stash kept of a model's saved tensors, as rows and as a table."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

COMPRESSED, BITS = "compressed", "bits"


@dataclass(frozen=True)
class Row:
    """Saved tensors that are alike: same operation, shape, dtype and treatment.

    Attributes:
        op: operation that produced them, "" if it was not seen.
        shape, dtype: of the tensor that was saved first.
        kept: "compressed", "bits" (of a tensor with two values), or the reason why the tensor stayed raw.
        counted: whether the totals count it; parameters and buffers are in neither.
        tensors: how many there are, each storage and version counted once.
        raw_bytes: bytes of all of them as they were.
        stored_bytes: bytes of all of them as they are kept.
    """

    op: str
    shape: tuple[int, ...]
    dtype: str
    kept: str
    counted: bool
    tensors: int
    raw_bytes: int
    stored_bytes: int


@dataclass(frozen=True)
class Report:
    """Everything a stash has seen, with totals; ``print`` it for a table.

    Attributes:
        rows: in the order in which the first of each kind was saved.
        raw_bytes, stored_bytes: totals over the rows that are counted.
    """

    rows: tuple[Row, ...]

    @property
    def raw_bytes(self) -> int:
        return sum(row.raw_bytes for row in self.rows if row.counted)

    @property
    def stored_bytes(self) -> int:
        return sum(row.stored_bytes for row in self.rows if row.counted)

    @property
    def ratio(self) -> float:
        """Raw over stored bytes of all that is counted, headers and what stays raw included."""
        return self.raw_bytes / self.stored_bytes if self.stored_bytes else float("nan")

    def table(self) -> Table:
        """The report as a table of rich."""
        table = Table(title="saved tensors")
        for heading in ("operation", "shape", "dtype", "kept"):
            table.add_column(heading, overflow="fold")
        for heading in ("tensors", "raw kB", "stored kB", "ratio"):
            table.add_column(heading, justify="right", no_wrap=True)
        for row in self.rows:
            shape = " x ".join(map(str, row.shape)) or "scalar"
            cells = [row.op, shape, row.dtype, row.kept if row.counted else f"{row.kept} (not counted)"]
            table.add_row(*cells, str(row.tensors), *_sizes(row.raw_bytes, row.stored_bytes))
        table.add_section()
        tensors = sum(row.tensors for row in self.rows if row.counted)
        table.add_row("total", "", "", "", str(tensors), *_sizes(self.raw_bytes, self.stored_bytes))
        return table

    def __str__(self) -> str:
        text = io.StringIO()
        Console(file=text, width=120).print(self.table())
        return text.getvalue().rstrip()


class Tally:
    """Counts saved tensors into rows. Holds numbers and names, never a tensor."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, tuple[int, ...], str, str, bool], list[int]] = {}
        self.raw_bytes = 0
        self.stored_bytes = 0

    def add(
        self, op: str, shape: Iterable[int], dtype: str, kept: str, counted: bool, raw: int, stored: int
    ) -> None:
        sums = self._sums.setdefault((op, tuple(shape), dtype, kept, counted), [0, 0, 0])
        for i, more in enumerate((1, raw, stored)):
            sums[i] += more
        if counted:
            self.raw_bytes += raw
            self.stored_bytes += stored

    def report(self) -> Report:
        return Report(tuple(Row(*key, *sums) for key, sums in self._sums.items()))


def _sizes(raw: int, stored: int) -> tuple[str, str, str]:
    return f"{raw / 1e3:,.1f}", f"{stored / 1e3:,.1f}", f"{raw / stored:.2f}" if stored else "-"
