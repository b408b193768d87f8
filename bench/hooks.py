"""What the hooks cost in Python for each saved tensor, beside identity hooks: ``python -m bench.hooks``.

A step of 48 small GPT-2 blocks, forward and backward, less the same step without hooks, over the tensors that
it saves; the processor's time, of one thread, all policies in turn in one process. Codecs do nothing here.
A dispatch mode that does nothing, which PyTorch calls for each operation, is the least that they can cost.
The median leaves out the collections of garbage that a few steps pay for; the mean has them. Rows go to
build/bench/hooks.json.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from time import process_time
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch.utils._python_dispatch import TorchDispatchMode

from golden import PlaneFormat
from torch_bridge import Compressor, Policy, Rule, backends

BLOCKS, WIDTH, LENGTH = 48, 64, 32
OUTPUT = Path("build/bench/hooks.json")
FMT = PlaneFormat("fp32", 64, 80)
BY_MODULE = [Rule(FMT, module=f"transformer.h.{block}.*") for block in range(BLOCKS)]
POLICIES = {
    "every tensor exact": Policy([]),
    "every tensor compressed": Policy([Rule(FMT, unchecked=True)]),
    "default": Policy.default(FMT),
    "a rule for each block": Policy([Rule("recompute"), *BY_MODULE]),
}
PLAIN, IDENTITY, MODE = "no hooks", "identity hooks", "a dispatch mode that does nothing"


class Mode(TorchDispatchMode):
    """Runs every operation unchanged."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Nothing:
    """A codec in a backend's place."""

    fmt = FMT

    def __init__(self, *_: Any) -> None:
        self._stored = torch.zeros(1, 80, dtype=torch.uint8)

    def compress(self, values: torch.Tensor, *_: Any) -> torch.Tensor:
        return self._stored

    def decompress(self, stored: torch.Tensor, count: int, *_: Any) -> torch.Tensor:
        return torch.empty(count)

    def check(self) -> None:
        pass


def measure(steps: int, freeze: bool) -> dict[str, dict[str, float]]:
    """Microseconds that each kind of hooks adds for a saved tensor: the median of the steps, and the mean.

    Args:
        steps: that are measured.
        freeze: whether garbage is looked for only among what is made after the model.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    backends.get = Nothing  # type: ignore[assignment]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = {"n_layer": BLOCKS, "n_embd": WIDTH, "n_head": 2, "n_positions": LENGTH, "vocab_size": 64}
    model = GPT2LMHeadModel(GPT2Config(**sizes, use_cache=False, bos_token_id=0, eos_token_id=0)).eval()
    model.loss_type = "ForCausalLM"
    tokens = torch.zeros(1, LENGTH, dtype=torch.long)
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(saved.append, lambda _: None):
        model(tokens, labels=tokens)
    count = len(saved)
    saved.clear()
    savers = {name: Compressor(model, policy, min_values=256) for name, policy in POLICIES.items()}

    def around(name: str) -> AbstractContextManager[Any]:
        if name == IDENTITY:
            return torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), lambda t: t)
        if name == MODE:
            return Mode()
        return savers.get(name, nullcontext())

    def step(name: str) -> float:
        start = process_time()
        with around(name):
            loss = model(tokens, labels=tokens).loss
        loss.backward()
        seconds = process_time() - start
        model.zero_grad(set_to_none=True)
        return seconds

    if freeze:
        gc.collect()
        gc.freeze()
    names = (PLAIN, IDENTITY, MODE, *POLICIES)
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in track(range(steps + 2), "measuring", console=Console(stderr=True), transient=True):
        for name in names:
            times[name].append(step(name))
    found: dict[str, dict[str, float]] = {name: {} for name in names[1:]}
    for what, average in {"median": statistics.median, "mean": statistics.fmean}.items():
        plain = average(times[PLAIN][2:])
        for name in found:
            found[name][what] = 1e6 * (average(times[name][2:]) - plain) / count
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.hooks", description="Python's part of the hooks.")
    parser.add_argument("--steps", type=int, default=20, help="that are measured (default: 20)")
    parser.add_argument("--freeze", action="store_true", help="call gc.freeze() before the first step")
    given = parser.parse_args()
    if given.steps < 1:
        parser.error(f"--steps must be a number of steps, from 1, not {given.steps}")
    rows = measure(given.steps, given.freeze)
    table = Table("hooks", title=f"microseconds of Python for each saved tensor, {BLOCKS} small blocks")
    for heading in ("median", "mean"):
        table.add_column(heading, justify="right")
    for name, row in rows.items():
        table.add_row(name, *(f"{microseconds:.1f}" for microseconds in row.values()))
    Console(width=100).print(table)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"written to {OUTPUT}")


if __name__ == "__main__":
    main()
