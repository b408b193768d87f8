"""What compressed checkpoint boundaries give in one step of SmolLM2-135M: ``python -m bench.boundaries``.

transformers' gradient checkpointing keeps what each layer is given, its boundary, and runs the layer once
more in the backward pass. Inside a ``Compressor`` the boundaries are compressed, each as its difference from
the one before, or for comparison each by itself; the head, which is in no layer, is recomputed. Bytes of the
boundaries and of all that is kept, the peak of a step as PyTorch's allocator has it, and the gradient error
``||g - g_exact|| / ||g_exact||``, in bf16 autocast. ``make finetune`` installs the model. Leaves
build/bench/boundaries.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from torch_bridge import Compressor, Policy
from torch_bridge.job import peak
from torch_bridge.store.store import Store

from . import smollm2
from .products import loss

EXACT = Policy([])
OUT = Path("build/bench/boundaries.md")


class ByItself(Store):
    """Stores no differences."""

    def _difference(self, *_: object) -> None:
        return None


class EachByItself(Compressor):
    make_store = ByItself


CASES: dict[str, Callable[[torch.nn.Module], Compressor]] = {
    "exact": lambda model: Compressor(model, EXACT),
    "4 bits": lambda model: Compressor(model, bits=4),
    "4 bits, each by itself": lambda model: EachByItself(model, bits=4),
    "2 bits": lambda model: Compressor(model, bits=2),
    "2 bits, each by itself": lambda model: EachByItself(model, bits=2),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.boundaries", description="Checkpoint boundaries, compressed."
    )
    parser.add_argument("--tokens", type=int, default=512, help="of the sequence (default: 512)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    subject = smollm2.subject()
    lines = []
    for line in table(subject.model, subject.text[: given.tokens][None]):
        lines.append(line)
        print(line, flush=True)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text("\n".join(lines) + "\n")


def table(model: torch.nn.Module, tokens: torch.Tensor) -> Iterator[str]:
    """The table, line by line."""
    yield "| boundaries | use_reentrant | MB | ratio | all that is kept, MB | peak, MB | gradient error |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: |"
    for use_reentrant in (False, True):
        model.activation_checkpointing_enable({"use_reentrant": use_reentrant})  # type: ignore[operator]
        exact: torch.Tensor | None = None
        original = 0.0
        for name, make in CASES.items():
            saver = make(model)
            model.zero_grad(set_to_none=True)
            found = peak.measure(lambda saver=saver: step(model, tokens, saver), torch.device("cpu"))
            gradient = torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])
            exact = gradient if exact is None else exact
            error = float((gradient - exact).norm() / exact.norm())
            kept = boundaries(saver)
            original = original or kept
            cells = (
                *(name, str(use_reentrant), f"{kept / 1e6:.2f}", f"{original / kept:.1f}x"),
                *(f"{saver.stored_bytes / 1e6:.2f}", f"{found.peak / 1e6:.0f}", f"{error:.3f}"),
            )
            yield f"| {' | '.join(cells)} |"


def boundaries(saver: Compressor) -> int:
    """Bytes that are kept of what layers are given."""
    savers = ("CheckpointFunction", "_NoopSaveInputs")
    rows = [row for row in saver.report().rows if row.saved_by in savers and row.counted]
    return sum(row.stored_bytes for row in rows if len(row.shape) == 3)


def step(model: torch.nn.Module, tokens: torch.Tensor, saver: Compressor) -> Iterator[None]:
    """A step, which yields between its passes."""
    with saver:
        value = loss(model, tokens, torch.bfloat16)
    yield
    value.backward()


if __name__ == "__main__":
    main()
