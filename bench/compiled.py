"""A compiled model with compressed tensors between its graphs: ``python -m bench.compiled``.

The small GPT-2, GPT-2 with 124 million parameters, or SmolLM2-135M where it is installed (``make finetune``),
one step at a time, on a CPU with one thread: not compiled, with hooks, with activation checkpointing of each
block; compiled by Inductor, with PyTorch's own ``activation_memory_budget``, and with
:class:`bitstash.Partitioner`. The model computes its loss, so that logits and log-softmax are in the graph.
All cases are compiled once and then timed in turns. The time is that of the processor, which other programs
hardly change. ``--losses`` trains exactly, with hooks and with the partitioner. Rows go to
docs/compiled.json, from which docs/guides/torch-compile.md has its tables.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch._functorch import config as functorch
from torch._inductor.compile_fx import compile_fx

import bitstash
from torch_bridge.job import peak, train

from . import smollm2

OUTPUT = Path("docs/compiled.json")
BITS = 4
BATCHES = {"small": 8, "gpt2": 1, "smollm2": 1}
STEPS, TRAINED_BATCH = 200, 8
TRAINED, SEEDS = ("exact", "Compressor", "Partitioner"), (0, 1, 2)
BUDGETS = (0.5, 0.3)
DTYPES = ("fp32", "bf16")
Context = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Case:
    """What a step is run with: what is called, the model in it, and the context around the forward pass."""

    name: str
    call: Any
    model: torch.nn.Module
    around: Context = nullcontext


def with_budget(budget: float) -> Callable[..., Any]:
    """Inductor with PyTorch's own budget for what is kept: 1 is all."""

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        with functorch.patch(activation_memory_budget=budget):
            return compile_fx(graph, inputs)

    return backend


def cases(model: torch.nn.Module) -> list[Case]:
    saver = bitstash.Compressor(model, bits=BITS)
    # Another one: each time that checkpointing is switched on, compiled graphs would have to be made anew.
    checkpointed = copy.deepcopy(model)
    checkpointed.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
    budgets = (
        Case(
            f"Inductor, activation_memory_budget {share}",
            torch.compile(model, backend=with_budget(share)),
            model,
        )
        for share in BUDGETS
    )
    return [
        Case("eager", model, model),
        Case(f"eager, Compressor at {BITS} bits", model, model, lambda: saver),
        Case("eager, activation checkpointing", checkpointed, checkpointed),
        Case("Inductor", torch.compile(model, backend=with_budget(1.0)), model),
        *budgets,
        Case(f"Inductor, Partitioner at {BITS} bits", bitstash.compile(model, bits=BITS), model),
    ]


def subject_of(name: str) -> train.Subject:
    """A model, and a text for it."""
    if name == "smollm2":
        return smollm2.subject()
    return train.subject_of(train.Options(config=name, batch=BATCHES[name]))


def rows(name: str, dtype: str, rounds: int) -> list[dict[str, Any]]:
    """Of a model; gradient errors and times are against the same one that is not compiled."""
    torch._dynamo.reset()  # or the limit for graphs of one function is met
    torch.manual_seed(0)
    subject = subject_of(name)
    model = subject.model.train()
    tokens = train.draw(subject.seen, BATCHES[name], subject.length, torch.Generator().manual_seed(0))

    def step(case: Case) -> Iterator[None]:
        with case.around(), torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
            loss = case.call(tokens, labels=tokens).loss
        yield
        loss.backward()

    def run(case: Case) -> float:
        """Processor seconds of a step."""
        began = time.process_time()
        for _ in step(case):
            pass
        return time.process_time() - began

    found, all_cases, exact = [], cases(model), None
    for case in all_cases:
        case.model.zero_grad()
        run(case)  # compiles
        gradient = torch.cat([one.grad.flatten() for one in case.model.parameters() if one.grad is not None])
        exact = gradient if exact is None else exact
        error = float((gradient - exact).norm() / exact.norm())
        del gradient
        case.model.zero_grad()  # as training does: the gradients are in the peak
        with torch._dynamo.config.patch(error_on_recompile=True):
            bytes_of = peak.measure(lambda case=case: step(case), torch.device("cpu"))
        kept, most = bytes_of.kept / 1e6, bytes_of.peak / 1e6
        row = {"model": name, "name": case.name, "dtype": dtype}
        found.append(row | {"kept": kept, "peak": most, "gradient_error": error})
        print(f"{name}, {dtype}, {case.name}: kept {kept:.1f} MB, peak {most:.1f} MB", flush=True)
    seconds: dict[str, list[float]] = {case.name: [] for case in all_cases}
    with torch._dynamo.config.patch(error_on_recompile=True):
        for case in all_cases * rounds:
            seconds[case.name].append(run(case))
    for row in found:
        row["milliseconds"] = 1e3 * median(seconds[row["name"]])
    return found


def losses(name: str, seed: int) -> float:
    """Validation loss after 200 steps of the small GPT-2: exact, with hooks, or with the partitioner."""
    torch._dynamo.reset()
    options = train.Options(steps=STEPS, batch=TRAINED_BATCH, seed=seed)
    subject = train.subject_of(options)
    model = subject.model
    call = bitstash.compile(model, bits=BITS) if name == "Partitioner" else model
    around = bitstash.Compressor(model, bits=BITS) if name == "Compressor" else nullcontext()
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1)
    batches = torch.Generator().manual_seed(seed)
    for step in range(STEPS):
        tokens = train.draw(subject.seen, TRAINED_BATCH, subject.length, batches)
        for group in optimizer.param_groups:
            group["lr"] = train.learning_rate(step, STEPS, subject.lr)
        with around:
            loss = call(tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return train.validate(model, options, subject.held_out, subject.length)


def table(found: list[dict[str, Any]]) -> Table:
    made = Table(title="a step")
    for heading in ("model", "", "type"):
        made.add_column(heading)
    for heading in ("kept, MB", "peak, MB", "time, ms", "gradient error"):
        made.add_column(heading, justify="right")
    for row in found:
        numbers = f"{row['kept']:.1f}", f"{row['peak']:.1f}", f"{row['milliseconds']:.0f}"
        made.add_row(row["model"], row["name"], row["dtype"], *numbers, f"{row['gradient_error']:.2g}")
    return made


def recorded(kind: str) -> list[dict[str, Any]]:
    """Rows that docs/compiled.json has of a kind: "steps" or "losses"."""
    kept: dict[str, Any] = json.loads(OUTPUT.read_text()) if OUTPUT.exists() else {}
    return list(kept.get(kind, []))


def record(kind: str, found: list[dict[str, Any]], *keys: str) -> None:
    """Write rows to docs/compiled.json, in place of those that have the same keys."""
    kept: dict[str, Any] = json.loads(OUTPUT.read_text()) if OUTPUT.exists() else {}
    new = {tuple(row[key] for key in keys) for row in found}
    before = [row for row in kept.get(kind, []) if tuple(row[key] for key in keys) not in new]
    OUTPUT.write_text(json.dumps(kept | {kind: before + found}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.compiled", description=__doc__.partition(":")[0])
    parser.add_argument("--model", choices=BATCHES, default="small", help="by default the small GPT-2")
    parser.add_argument("--dtype", choices=DTYPES, action="append", help="by default one after the other")
    parser.add_argument("--rounds", type=int, default=9, help="how often each step is timed")
    parser.add_argument("--losses", action="store_true", help="train 200 steps, with three seeds, instead")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.losses:
        done = {(row["name"], row["seed"]) for row in recorded("losses")}
        for seed, name in product(SEEDS, TRAINED):
            if (name, seed) not in done:
                row = {"name": name, "seed": seed, "val_loss": losses(name, seed)}
                print(row, flush=True)
                record("losses", [row], "name", "seed")
        return
    for dtype in arguments.dtype or DTYPES:
        found = rows(arguments.model, dtype, arguments.rounds)
        Console(width=110).print(table(found))
        record("steps", found, "model", "dtype")
    print(f"written to {OUTPUT}")


if __name__ == "__main__":
    main()
