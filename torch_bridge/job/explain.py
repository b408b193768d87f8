"""A page that shows where a model's activation memory goes, and what could be done about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from math import floor, isfinite, log10
from pathlib import Path
from typing import Any

import torch

from golden import HadamardFormat, PlaneFormat

from ..backends.dtypes import AnyFormat
from ..backends.quant_format import BITS, QuantFormat
from ..calibration import Calibration
from ..compiled import compile
from ..compressor import Compressor
from ..policy import Policy
from ..report import Report, page, plots
from . import peak
from .jobs import Job, saying

# Points of a plotted line, at most; of each stretch of time the highest stays.
_MOST_POINTS = 1500
_BUDGETS = 6
_APART = {"ticks": "outside", "ticklen": 8, "tickcolor": "#fff"}

_MOST_BITS = 4  # of a value, in the Hadamard format


def format_of(scheme: str, bits: float) -> AnyFormat:
    """The format of a scheme with so many bits a value of fp32; raises ValueError if there is none."""
    if scheme == QuantFormat.scheme:
        if bits not in BITS:
            raise ValueError(f"bits must be one of {', '.join(map(str, BITS))}, not {bits!r}")
        return QuantFormat("fp32", int(bits))
    if scheme == PlaneFormat.scheme:
        return PlaneFormat("fp32", 64, round(8 * bits))
    if bits > _MOST_BITS:
        raise ValueError(f"bits must be at most {_MOST_BITS} for {scheme}, not {bits!r}")
    return HadamardFormat("fp32", 128, round(16 * bits))


def explain(
    job: Job, fmt: AnyFormat, out: Path, *, budgets: bool = True, compiled: str | None = None
) -> Report:
    """Run a few steps on a CPU and write the page.

    Args:
        job: what to run.
        fmt: that the default policy compresses to.
        out: the page.
        budgets: also measure what smaller budgets do to the gradient, by a step for each kind of tensor; of a
            compiled model they are not measured.
        compiled: the backend of ``torch.compile`` that the model is compiled with, as of ``compile``; by
            default it is not compiled.

    Returns:
        The report of a step.

    Raises:
        JobError: a pass of the job fails, or its loss is none, or no compiled graph has a backward pass.
        ModuleNotFoundError: plotly is not installed, which draws the plots.
    """
    policy = Policy.default(fmt)
    # A graph from a cache was not partitioned here, and has no report.
    anew = torch.compiler.config.patch(force_disable_caches=True)  # type: ignore[attr-defined]
    with anew if compiled else nullcontext():
        report, runs = _compiled(job, policy, compiled) if compiled else _eager(job, policy)
        summary, *rest = plots.sections(report.rows)
        sections = [summary, _timeline(runs), *rest]
    if budgets and report.original_bytes and not compiled:
        sections.insert(-1, _budgets(job))
    page.write(out, f"Activation memory of {job.name}{', compiled' if compiled else ''}", sections)
    return report


Run = Callable[[], Iterator[None]]


def _eager(job: Job, policy: Policy) -> tuple[Report, dict[str, Run]]:
    """The report of a step with hooks; and what runs a step without and with them."""
    with Compressor(job.model, policy) as saver:
        loss = job.checked_loss(job.model, job.batch)
    with saying(f"the backward pass of {job.name} failed"):
        loss.backward()  # gradients are there from now on: they are no activations
    return saver.report(), {"without": partial(_step, job, None), "with": partial(_step, job, policy)}


def _compiled(job: Job, policy: Policy, backend: str) -> tuple[Report, dict[str, Run]]:
    """The report of compiled graphs; and what runs a step without and with compression inside of them."""
    call = compile(job.model, policy, backend=backend)
    models: dict[str, Any] = {"without": torch.compile(job.model, backend=backend), "with": call}
    runs: dict[str, Run] = {name: partial(_step, job, None, model) for name, model in models.items()}
    for name, run in runs.items():
        with saying(f"the step of {job.name}, compiled {name} compression, failed"):
            for _ in run():
                pass
    with saying(f"{job.name} cannot be explained"):
        report: Report = call.report()
    return report, runs


def _timeline(runs: dict[str, Run]) -> page.Section:
    lines = {name: peak.timeline(run) for name, run in runs.items()}
    traces = [
        {"type": "scatter", "mode": "lines", "name": f"{name} compression", "line": {"color": color}}
        | dict(zip("xy", _points(lines[name]), strict=True))
        | {"hovertemplate": f"{name}: %{{y:.1f}} MB<extra></extra>"}
        for name, color in (("without", plots.BEFORE), ("with", plots.AFTER))
    ]
    marks = {"tickvals": [0.5, 1.5], "ticktext": ["forward", "backward"]}
    layout = {
        "xaxis": {**marks, "range": [0, 2]},
        "yaxis": {"title": {"text": "MB"}, "rangemode": "tozero", "automargin": True},
        "shapes": [{"type": "line", "x0": 1, "x1": 1, "y0": 0, "y1": 1, "yref": "paper"}],
        "height": 380,
    }
    most = {name: max(line.live) / 1e6 for name, line in lines.items()}
    text = (
        "Bytes that are allocated during a step beside weights and gradients, as PyTorch's allocator has it; "
        "both passes are stretched to one width. The peak is "
        f"{most['without']:,.1f} MB without and {most['with']:,.1f} MB with compression."
    )
    return page.Section("One step", text, page.plot(traces, layout))


def _step(job: Job, policy: Policy | None, model: Any = None) -> Iterator[None]:
    with Compressor(job.model, policy) if policy else nullcontext():
        loss = job.checked_loss(job.model if model is None else model, job.batch)
    yield
    loss.backward()


def _points(line: peak.Timeline) -> tuple[list[float], list[float]]:
    """Time, the forward pass from 0 to 1 and the backward pass from 1 to 2, and MB."""
    end = max(line.when[-1], line.middle + 1)
    most: dict[int, tuple[float, float]] = {}
    for when, live in zip(line.when, line.live, strict=True):
        later = when - line.middle
        place = when / line.middle if later < 0 else 1 + later / (end - line.middle)
        stretch = int(place * _MOST_POINTS / 2)
        if stretch not in most or live / 1e6 > most[stretch][1]:
            most[stretch] = place, live / 1e6
    x, y = zip(*most.values(), strict=True)
    return list(x), list(y)


def _budgets(job: Job) -> page.Section:
    calibration = Calibration(job.model, [job.batch], loss=job.checked_loss)
    shrink = (calibration.least / calibration.most) ** (1 / (_BUDGETS - 1))
    rows, sizes, errors = [], [], []
    for i in range(_BUDGETS):
        budget = max(round(calibration.most * shrink**i), calibration.least)
        policy = calibration.policy(budget)
        sizes.append(calibration.stored_bytes(policy) / 1e6)
        errors.append(calibration.error(policy))
        rows.append([f"{budget / 1e6:,.2f}", f"{sizes[-1]:,.2f}", f"{errors[-1]:.2g}"])
    head = ["budget, MB", "kept, MB", "gradient error"]
    text = (
        "What bitstash.calibrate chooses for budgets, and what that does to the gradient of this batch: the "
        "distance to the exact one over its length. Two batches differ by about 1. What costs nothing is in "
        "the table alone."
    )
    # A logarithm has no place for what costs nothing, such as the largest budget: that is in the table alone.
    points = [point for point in zip(sizes, errors, strict=True) if min(point) > 0 and isfinite(point[1])]
    plot = _cost_plot(points) if points else ""
    return page.Section("What less would cost", text, plot + page.table(head, rows, numbers=3))


def _cost_plot(points: list[tuple[float, float]]) -> str:
    """Gradient errors over MB."""
    x, y = map(list, zip(*points, strict=True))
    trace: dict[str, Any] = {"type": "scatter", "mode": "lines+markers", "x": x, "y": y, "cliponaxis": False}
    trace |= {"hovertemplate": "%{x:.2f} MB: %{y:.2g}<extra></extra>", "line": {"color": plots.AFTER}}
    layout = {
        # Ticks that are not seen keep the axes' first numbers apart.
        "xaxis": {"title": {"text": "MB kept of a step"}, **_log_axis(x, (1, 2, 5)), **_APART},
        "yaxis": {
            "title": {"text": "gradient error", "standoff": 15},
            "automargin": True,
            **_log_axis(y, (1,)),
        },
        "height": 340,
    }
    return page.plot([trace], layout)


def _log_axis(values: list[float], steps: tuple[int, ...]) -> dict[str, Any]:
    """An axis from the tick at or below all values to the one above; each tick has its whole number."""
    decades = range(floor(log10(min(values))), floor(log10(max(values))) + 2)
    every = [step * 10.0**decade for decade in decades for step in steps]
    first = max(tick for tick in every if tick <= min(values))
    last = min(tick for tick in every if tick > max(values))
    ticks = [tick for tick in every if first <= tick <= last]
    names = [f"{tick:g}" for tick in ticks]
    return {"type": "log", "range": [log10(first), log10(last)], "tickvals": ticks, "ticktext": names}
