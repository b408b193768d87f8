"""Bytes against time, as matrix products are done again in the backward pass instead of keeping results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.table import Table


@dataclass(frozen=True)
class Point:
    """One more kind of saved tensors that is recomputed by matrix products.

    Attributes:
        module: in whose forward pass they are saved.
        op: that made them.
        saved_by: the operation that saves them.
        time: of a step with this and all points before it, if a step without has 1.
        stored_bytes: that are kept then.
        is_picked: whether it is within the time that was given.
    """

    module: str
    op: str
    saved_by: str
    time: float
    stored_bytes: int
    is_picked: bool


@dataclass(frozen=True)
class Curve:
    """What could be recomputed by matrix products, most bytes for a unit of time first.

    Attributes:
        limit: of the time, as it was given.
        stored_bytes: without any of it.
        points: one for each kind of tensor and module.
        time: with what was picked.
    """

    limit: float
    stored_bytes: int
    points: tuple[Point, ...]
    time: float

    def table(self) -> Table:
        """The curve as a table of rich, a row for points that are alike in all but their modules' numbers."""
        table = Table(title=f"recomputed by matrix products, time at most {self.limit:g}")
        for heading in ("operation", "saved by", "module"):
            table.add_column(heading, overflow="fold")
        for heading in ("modules", "picked", "time", "stored kB"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_row("none", "", "", "", "", "1.000", f"{self.stored_bytes / 1e3:,.1f}")
        for run in self._runs():
            first, last = run[0], run[-1]
            picked = sum(point.is_picked for point in run)
            module = first.module if len(run) == 1 else f"{first.module} ..."
            numbers = str(len(run)), str(picked), f"{last.time:.3f}", f"{last.stored_bytes / 1e3:,.1f}"
            table.add_row(first.op, first.saved_by, module, *numbers)
        return table

    def _runs(self) -> list[list[Point]]:
        runs: list[list[Point]] = []
        for point in self.points:
            if runs and (runs[-1][0].op, runs[-1][0].saved_by) == (point.op, point.saved_by):
                runs[-1].append(point)
            else:
                runs.append([point])
        return runs


def together(curves: Sequence[tuple[int, Curve]]) -> Curve:
    """The curve of a step that several graphs make: what saves most bytes for an operation comes first.

    Args:
        curves: floating-point operations of each graph, and its own curve; all have the same limit.
    """
    total = sum(flops for flops, _ in curves)
    steps = []
    for flops, curve in curves:
        time, stored = 1.0, curve.stored_bytes
        for point in curve.points:
            steps.append(((point.time - time) * flops / total, stored - point.stored_bytes, point))
            time, stored = point.time, point.stored_bytes
    steps.sort(key=lambda step: -step[1] / step[0])
    time, stored, points = 1.0, sum(curve.stored_bytes for _, curve in curves), []
    spent = 1 + sum((curve.time - 1) * flops for flops, curve in curves) / total
    for more, less, point in steps:
        time, stored = time + more, stored - less
        points.append(replace(point, time=time, stored_bytes=stored))
    return Curve(curves[0][1].limit, sum(curve.stored_bytes for _, curve in curves), tuple(points), spent)
