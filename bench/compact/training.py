"""CompAct's loss and memory by rank, in pre-training and fine-tuning: ``python -m bench.compact --train``.

Pre-training, as in Table 2 of the paper (arXiv 2410.15352), on a LLaMA-60M scaled down to 4 layers of 128
and on bytes of Python's help topics: all weights by AdamW, then with ranks of 1/2, 1/4 and 1/8 of each
layer's width. All have the same learning rate, weights and batches. The paper has perplexities of 34.06,
32.78, 34.41 and 36.42 in this order, for words; these here are for bytes. Fine-tuning goes on from the
weights that plain AdamW found, on Python source, with ranks 8 and 4, for half as many steps.

Columns: loss on held-out text, in nats a byte, and its perplexity; median seconds of a step; MB that autograd
keeps between the passes, parameters left out; MB at the peak of a step, with parameters, moments, gradients
and all (on a CPU from the profiler's record of every allocation).
"""

from __future__ import annotations

import argparse
import copy
import math
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import nn

from torch_bridge import Compressor, Policy
from torch_bridge.job import train
from torch_bridge.job.peak import measure
from torch_bridge.schemes import compact

SIZES = {"hidden_size": 128, "intermediate_size": 344, "num_hidden_layers": 4, "num_attention_heads": 4}
PRETRAINING = {"full": None, "n/2": 1 / 2, "n/4": 1 / 4, "n/8": 1 / 8}
FINE_TUNING = {"full": None, "8": 8, "4": 4}
OPTIONS = train.Options(config="small", batch=8)  # for the length of its windows, 128


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model: nn.Module = LlamaForCausalLM(LlamaConfig(**SIZES, vocab_size=256, use_cache=False))
    return model.to(OPTIONS.torch_device)


def split(text: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What to train on, and the tenth that is held out."""
    return text[: -(len(text) // 10)], text[-(len(text) // 10) :]


def optimizer_for(model: nn.Module, rank: float | None, given: argparse.Namespace) -> torch.optim.Optimizer:
    """AdamW, or that of CompAct after the model is converted in place."""
    options: dict[str, Any] = {"lr": given.lr, "betas": (0.9, 0.95), "weight_decay": 0.1}
    if rank is None:
        return torch.optim.AdamW(model.parameters(), **options)
    compact.convert(model, rank)
    return compact.CompActAdamW(model, scale=given.scale, period=given.period, **options)


def row(
    model: nn.Module,
    rank: float | None,
    text: torch.Tensor,
    steps: int,
    given: argparse.Namespace,
    bar: Progress,
) -> dict[str, Any]:
    """Train a model in place, and measure; a rank of None is plain AdamW."""
    optimizer = optimizer_for(model, rank, given)
    seen, held_out = split(text)
    generator, seconds = torch.Generator().manual_seed(0), []

    def step() -> Iterator[Compressor | None]:
        """Yields between the passes."""
        tokens = train.draw(seen, OPTIONS.batch, 128, generator).to(OPTIONS.torch_device)
        loss = train.loss_of(model, OPTIONS, tokens)
        yield None
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    task = bar.add_task(f"rank {rank}", total=steps)
    for number in range(steps):
        start = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = train.learning_rate(number, steps, given.lr)
        for _between in step():
            pass
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - start)
        bar.advance(task)
    loss = train.validate(model, OPTIONS, held_out, 128)
    moments = (value for state in optimizer.state.values() for value in state.values())
    resting = sum(tensor.untyped_storage().nbytes() for tensor in [*model.parameters(), *moments])
    peak = measure(step, OPTIONS.torch_device).peak
    optimizer.zero_grad(set_to_none=True)
    with Compressor(model, Policy([])) as saver:
        next(step())
    return {
        "val_loss": loss,
        "perplexity": math.exp(loss),
        "seconds_per_step": statistics.median(seconds),
        "kept_bytes": saver.original_bytes,
        "resting_bytes": resting,
        "peak_bytes": resting + peak,
    }


def run(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Train all, print a table, and return the rows.

    Args:
        given: steps of every pre-training, lr at its peak, scale of the steps of converted weights, and the
            period of projections in steps.
    """
    topics, source = train.read_text(None), train.read_text(Path(argparse.__file__))
    rows, start = [], llama()
    with Progress(console=Console(stderr=True), transient=True) as bar:
        for name, rank in PRETRAINING.items():
            model = copy.deepcopy(start)
            result = row(model, rank, topics, given.steps, given, bar)
            rows.append({"phase": "pre-training", "rank": name} | result)
            if rank is None:
                trained = model
        for name, rank in FINE_TUNING.items():
            result = row(copy.deepcopy(trained), rank, source, given.steps // 2, given, bar)
            rows.append({"phase": "fine-tuning", "rank": name} | result)
    _show(rows, given.steps)
    return rows


def _show(rows: list[dict[str, Any]], steps: int) -> None:
    table = Table("phase", "rank", title=f"CompAct, {steps} and {steps // 2} steps")
    for heading in ("loss", "perplexity", "of full", "seconds", "kept MB", "peak MB", "less peak"):
        table.add_column(heading, justify="right")
    full = {each["phase"]: each for each in rows if each["rank"] == "full"}
    for each in rows:
        base = full[each["phase"]]
        table.add_row(
            each["phase"],
            each["rank"],
            f"{each['val_loss']:.3f}",
            f"{each['perplexity']:.3f}",
            f"{each['perplexity'] / base['perplexity']:.3f}",
            f"{each['seconds_per_step']:.3f}",
            f"{each['kept_bytes'] / 1e6:.1f}",
            f"{each['peak_bytes'] / 1e6:.1f}",
            f"{1 - each['peak_bytes'] / base['peak_bytes']:.0%}",
        )
    Console(width=110).print(table)
