"""A page that shows where a model's activation memory goes, and what could be done about it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, fields
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from golden import HadamardFormat, PlaneFormat

from ..backends.dtypes import StashFormat
from ..backends.quant_format import QuantFormat
from ..calibration import Calibration
from ..calibration.calibration import Loss
from ..policy import Policy
from ..stash import Report, compress_activations, page, plots
from . import peak, train

# Points of a plotted line, at most; of each stretch of time the highest stays.
_MOST_POINTS = 1500
_BUDGETS = 6


@dataclass(frozen=True, eq=False)
class Job:
    """What is explained: a model as it trains, a batch, and the loss of both."""

    name: str
    model: torch.nn.Module
    batch: Any
    loss: Loss


def load(what: str, batch: int = 4, length: int = 128) -> Job:
    """What a user names.

    Args:
        what: a JSON file with options of ``train.Options``, such as ``train`` writes; a Hugging Face
            config, the file or its folder; or "module:function", which returns model and batch, and the
            loss as a function of both if it is not ``model(**batch).loss``.
        batch, length: sequences, and tokens of each, for a Hugging Face config.

    Raises:
        ValueError: it is none of these.
        FileNotFoundError: there is no such file.
    """
    path = Path(what)
    if not path.exists() and ":" in what:
        return _from_function(what)
    if path.is_dir():
        path /= "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"there must be a config, or a function as module:name, not {what!r}")
    config = json.loads(path.read_text())
    if isinstance(config, dict) and "model_type" in config:
        return _from_transformers(what, config, batch, length)
    if isinstance(config, dict) and config.get("config") in train.CONFIGS:
        return _from_options(what, config)
    names = ", ".join(train.CONFIGS)
    raise ValueError(f"a config must have a model_type, or a config of {names}, which {what!r} has not")


def _from_function(what: str) -> Job:
    module, _, name = what.partition(":")
    sys.path.insert(0, "")
    try:
        function = getattr(import_module(module), name, None)
    finally:
        sys.path.remove("")
    if not callable(function):
        raise ValueError(f"{module} must have a function {name}, which it has not")
    made = function()
    if not isinstance(made, tuple) or len(made) not in (2, 3):
        raise ValueError(f"{what} must return model and batch, and the loss if need be, not {made!r}")
    model, batch, *loss = made
    return Job(what, model, batch, loss[0] if loss else _loss_of_transformers)


def _from_transformers(what: str, given: dict[str, Any], batch: int, length: int) -> Job:
    import transformers

    config = transformers.AutoConfig.for_model(**given)
    for name in ("CausalLM", "Seq2SeqLM", "MaskedLM"):
        kind = getattr(transformers, f"AutoModelFor{name}")
        if type(config) in kind._model_mapping:
            break
    else:
        raise ValueError(
            f"model_type must be a language model's, not {given['model_type']!r}: give a function"
        )
    tokens = torch.randint(config.vocab_size, (batch, length), generator=torch.Generator().manual_seed(0))
    model = kind.from_config(config).train()
    return Job(what, model, {"input_ids": tokens, "labels": tokens}, _loss_of_transformers)


def _from_options(what: str, config: dict[str, Any]) -> Job:
    names = {field.name for field in fields(train.Options)} - {"offload_dir", "data"}
    options = train.Options(**{name: value for name, value in config.items() if name in names})
    subject = train.subject_of(options)
    draws = torch.Generator().manual_seed(options.seed)
    tokens = train.draw(subject.seen, options.batch, subject.length, draws)
    return Job(what, subject.model, tokens, lambda model, batch: train.loss_of(model, options, batch))


def _loss_of_transformers(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    return model(**batch).loss


def format_of(scheme: str, bits: float) -> StashFormat:
    """The format of a scheme with so many bits a value of fp32; raises ValueError if there is none."""
    if scheme == QuantFormat.scheme:
        return QuantFormat("fp32", int(bits))
    block = 128 if scheme == HadamardFormat.scheme else 64
    kind = HadamardFormat if scheme == HadamardFormat.scheme else PlaneFormat
    return kind("fp32", block, round(block * bits / 8))


def explain(job: Job, fmt: StashFormat, out: Path, *, budgets: bool = True) -> Report:
    """Run a few steps on a CPU and write the page.

    Args:
        job: what to run.
        fmt: that the default policy compresses to.
        out: the page.
        budgets: also measure what smaller stashes do to the gradient, by a step for each kind of tensor.

    Returns:
        The report of a step.

    Raises:
        ModuleNotFoundError: plotly is not installed, which draws the plots.
    """
    policy = Policy.default(fmt)
    with compress_activations(job.model, policy, by_module=True) as stash:
        loss = job.loss(job.model, job.batch)
    loss.backward()  # gradients are there from now on: they are no activations
    report = stash.report()
    summary, *rest = plots.sections(report.rows)
    sections = [summary, _timeline(job, policy), *rest]
    if budgets:
        sections.insert(-1, _budgets(job))
    page.write(out, f"Activation memory of {job.name}", sections)
    return report


def _timeline(job: Job, policy: Policy) -> page.Section:
    policies = {"without": None, "with": policy}
    lines = {name: peak.timeline(partial(_step, job, one)) for name, one in policies.items()}
    traces = [
        {"type": "scatter", "mode": "lines", "name": f"{name} a stash", "line": {"color": color}}
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
        f"{most['without']:,.1f} MB without and {most['with']:,.1f} MB with a stash."
    )
    return page.Section("One step", text, page.plot(traces, layout))


def _step(job: Job, policy: Policy | None) -> Iterator[None]:
    with compress_activations(job.model, policy) if policy else nullcontext():
        loss = job.loss(job.model, job.batch)
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
    calibration = Calibration(job.model, job.batch, loss=job.loss)
    shrink = (calibration.least / calibration.most) ** (1 / (_BUDGETS - 1))
    rows, sizes, errors = [], [], []
    for i in range(_BUDGETS):
        budget = max(round(calibration.most * shrink**i), calibration.least)
        policy = calibration.policy(budget)
        sizes.append(calibration.stashed_bytes(policy) / 1e6)
        errors.append(calibration.error(policy))
        rows.append([f"{budget / 1e6:,.2f}", f"{sizes[-1]:,.2f}", f"{errors[-1]:.2g}"])
    trace: dict[str, Any] = {"type": "scatter", "mode": "lines+markers", "x": sizes, "y": errors}
    trace |= {"hovertemplate": "%{x:.2f} MB: %{y:.2g}<extra></extra>", "line": {"color": plots.AFTER}}
    layout = {
        "xaxis": {"title": {"text": "MB kept of a step"}, "type": "log"},
        "yaxis": {"title": {"text": "gradient error"}, "type": "log", "automargin": True},
        "height": 340,
    }
    head = ["budget, MB", "kept, MB", "gradient error"]
    text = (
        "What bitstash.calibrate chooses for budgets, and what that does to the gradient of this batch: the "
        "distance to the exact one over its length. Two batches differ by about 1."
    )
    shown = page.plot([trace], layout) + page.table(head, rows, numbers=3)
    return page.Section("What less would cost", text, shown)
