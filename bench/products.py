"""What recomputation by matrix products gives in one step of SmolLM2-135M: ``python -m bench.products``.

Bytes kept, gradient error ``||g - g_exact|| / ||g_exact||`` over all parameters, and time, of what the same
step takes without bitstash; in fp32 and in bf16 autocast. The time is that of the processor with one thread,
so other programs hardly change it. ``make finetune`` installs the model. Leaves build/bench/products.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from torch_bridge import Compressor, Policy

from . import smollm2

OUT = Path("build/bench/products.md")


def cases(model: torch.nn.Module) -> dict[str, dict[str, Any]]:
    """Options of a Compressor, by the table's first column."""
    return {
        "4 bits": {"bits": 4},
        "4 bits, time 1.2": {"bits": 4, "time": 1.2},
        "4 bits, time 1.35": {"bits": 4, "time": 1.35},
        "the same, inputs of layers at 10 bits": {"policy": Policy.layer_inputs(model), "time": 1.35},
        "2 bits": {"bits": 2},
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.products", description="Products done again.")
    parser.add_argument("--tokens", type=int, default=512, help="of the sequence (default: 512)")
    parser.add_argument("--rounds", type=int, default=2, help="that are timed; the best counts (default: 2)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    subject = smollm2.subject()
    tokens = subject.text[: given.tokens][None]
    head = [
        "| | type | kept, MB | of the same type | gradient error | processor time | counted time |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines = list(head)
    print(*head, sep="\n", flush=True)
    for dtype in (torch.bfloat16, torch.float32):
        for line in rows(subject.model, tokens, dtype, given.rounds):
            lines.append(line)
            print(line, flush=True)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text("\n".join(lines) + "\n")


def rows(model: torch.nn.Module, tokens: torch.Tensor, dtype: torch.dtype, rounds: int) -> Iterator[str]:
    """A line of the table for each case."""
    name = "bf16 autocast" if dtype == torch.bfloat16 else "fp32"
    plain = Compressor(model, Policy([]))
    with plain:
        loss(model, tokens, dtype)
    exact, _ = step(model, tokens, dtype, nullcontext())
    baseline = min(step(model, tokens, dtype, nullcontext())[1] for _ in range(rounds))
    yield f"| baseline | {name} | {plain.stored_bytes / 1e6:.1f} | 1.0x | 0 | 1.00 | 1.000 |"
    for case, options in cases(model).items():
        saver = Compressor(model, **options)
        step(model, tokens, dtype, saver)  # the first says what fits the time
        found, seconds = min(
            (step(model, tokens, dtype, saver) for _ in range(rounds)), key=lambda one: one[1]
        )
        error = float((found - exact).norm() / exact.norm())
        curve = saver.report().curve
        cells = (
            *(
                case,
                name,
                f"{saver.stored_bytes / 1e6:.2f}",
                f"{plain.stored_bytes / saver.stored_bytes:.1f}x",
            ),
            *(f"{error:.3f}", f"{seconds / baseline:.2f}", "" if curve is None else f"{curve.time:.3f}"),
        )
        yield f"| {' | '.join(cells)} |"


def step(
    model: torch.nn.Module, tokens: torch.Tensor, dtype: torch.dtype, context: AbstractContextManager[Any]
) -> tuple[torch.Tensor, float]:
    """The gradient of all parameters, and the seconds that the processor took."""
    model.zero_grad(set_to_none=True)
    began = time.process_time()
    with context:
        value = loss(model, tokens, dtype)
    value.backward()
    seconds = time.process_time() - began
    grads = [one.grad.flatten() for one in model.parameters() if one.grad is not None]
    return torch.cat(grads), seconds


def loss(model: torch.nn.Module, tokens: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        found: torch.Tensor = model(tokens, labels=tokens).loss
    return found


if __name__ == "__main__":
    main()
