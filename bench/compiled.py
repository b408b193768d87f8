"""A compiled model with compressed tensors between its graphs: ``python -m bench.compiled``.

The small GPT-2, GPT-2 with 124 million parameters, or SmolLM2-135M where it is installed (``make finetune``),
one step at a time, on a CPU with one thread: not compiled, with hooks, with activation
checkpointing of each block; compiled by Inductor, with PyTorch's own ``activation_memory_budget``, and with
:class:`bitstash.Partitioner`. All cases are compiled once and then timed in turns, so that what else runs on
the machine is the same for all. ``--losses`` trains with the partitioner and with hooks. Rows go to
docs/compiled.json, from which docs/guides/torch-compile.md has its table.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
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
BUDGETS = (0.5, 0.3)
Context = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Case:
    """What a step is run with: what is called, and the context around the forward pass."""

    name: str
    call: Any
    around: Context = nullcontext


def with_budget(budget: float) -> Callable[..., Any]:
    """Inductor with PyTorch's own budget for what is kept: 1 is all."""

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        with functorch.patch(activation_memory_budget=budget):
            return compile_fx(graph, inputs)

    return backend


def cases(model: torch.nn.Module) -> list[Case]:
    saver = bitstash.Compressor(model, bits=BITS)

    @contextmanager
    def checkpoints() -> Iterator[None]:
        model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
        try:
            yield
        finally:
            model.gradient_checkpointing_disable()  # type: ignore[operator]

    budgets = (
        Case(f"Inductor, activation_memory_budget {share}", torch.compile(model, backend=with_budget(share)))
        for share in BUDGETS
    )
    return [
        Case("eager", model),
        Case(f"eager, Compressor at {BITS} bits", model, lambda: saver),
        Case("eager, activation checkpointing", model, checkpoints),
        Case("Inductor", torch.compile(model, backend=with_budget(1.0))),
        *budgets,
        Case(f"Inductor, Partitioner at {BITS} bits", bitstash.compile(model, bits=BITS)),
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
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)

    def step(case: Case) -> Iterator[None]:
        with case.around(), torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
            logits = case.call(tokens).logits[:, :-1].flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits.float(), tokens[:, 1:].flatten())
        yield
        loss.backward()

    found, all_cases, exact = [], cases(model), None
    for case in all_cases:
        for _ in range(2):  # the first compiles
            model.zero_grad(set_to_none=False)
            for _ in step(case):
                pass
        gradient = torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])
        exact = gradient if exact is None else exact
        bytes_of = peak.measure(lambda case=case: step(case), torch.device("cpu"))
        error = float((gradient - exact).norm() / exact.norm())
        kept, most = bytes_of.kept / 1e6, bytes_of.peak / 1e6
        row = {"model": name, "name": case.name, "dtype": dtype}
        found.append(row | {"kept": kept, "peak": most, "gradient_error": error})
        print(f"{name}, {dtype}, {case.name}: kept {kept:.1f} MB, peak {most:.1f} MB", flush=True)
    seconds: dict[str, list[float]] = {case.name: [] for case in all_cases}
    for _ in range(rounds):
        for case in all_cases:
            began = time.perf_counter()
            for _ in step(case):
                pass
            seconds[case.name].append(time.perf_counter() - began)
    for row in found:
        row["milliseconds"] = 1e3 * median(seconds[row["name"]])
    return found


def losses(seed: int) -> dict[str, Any]:
    """Mean loss of the last 20 of 200 steps: exact, with hooks and with the partitioner."""
    found: dict[str, Any] = {"seed": seed}
    for name in ("exact", "Compressor", "Partitioner"):
        torch._dynamo.reset()
        torch.manual_seed(seed)
        options = train.Options(batch=TRAINED_BATCH, seed=seed)
        model, subject = train.build(options).train(), train.subject_of(options)
        call = bitstash.compile(model, bits=BITS) if name == "Partitioner" else model
        around = bitstash.Compressor(model, bits=BITS) if name == "Compressor" else nullcontext()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        batches, values = torch.Generator().manual_seed(seed), []
        for _ in range(STEPS):
            tokens = train.draw(subject.seen, TRAINED_BATCH, subject.length, batches)
            with around:
                logits = call(tokens).logits[:, :-1].flatten(0, 1)
            loss = torch.nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            values.append(float(loss))
        found[name] = sum(values[-20:]) / 20
        print(f"seed {seed}, {name}: {found[name]:.4f}", flush=True)
    return found


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


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.compiled", description=__doc__.partition(":")[0])
    parser.add_argument("--model", choices=BATCHES, default="small", help="by default the small GPT-2")
    parser.add_argument("--rounds", type=int, default=9, help="how often each step is timed")
    parser.add_argument("--losses", action="store_true", help="train 200 steps, with three seeds, instead")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    kept: dict[str, Any] = json.loads(OUTPUT.read_text()) if OUTPUT.exists() else {}
    if arguments.losses:
        kept["losses"] = [losses(seed) for seed in (0, 1, 2)]
    else:
        found = [row for dtype in ("fp32", "bf16") for row in rows(arguments.model, dtype, arguments.rounds)]
        kept["steps"] = [row for row in kept.get("steps", []) if row["model"] != arguments.model] + found
        Console(width=110).print(table(found))
    OUTPUT.write_text(json.dumps(kept, indent=1) + "\n")
    print(f"written to {OUTPUT}")


if __name__ == "__main__":
    main()
