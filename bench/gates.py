"""How the gates of a gated MLP may be kept in 4 bits: ``python -m bench.gates``.

The gradient error ``||g - g_exact|| / ||g_exact||`` over all parameters of one step of SmolLM2-135M in bf16
autocast, where the outputs of the gate projections are kept in several ways and all others exactly. ``make
finetune`` installs the model. Leaves build/bench/gates.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import linear, silu

from golden import HadamardFormat
from torch_bridge import backends

from . import smollm2
from .products import step

Way = Callable[[torch.Tensor], torch.Tensor]
OUT = Path("build/bench/gates.md")


def hadamard(block: int = 128) -> Way:
    codec = backends.get("auto", HadamardFormat("bf16", block, block // 2))

    def lossy(x: torch.Tensor) -> torch.Tensor:
        return codec.decompress(codec.compress(x.reshape(-1)), x.numel()).view(x.shape)

    return lossy


def centred(way: Way) -> Way:
    """Without the means of channels."""

    def lossy(x: torch.Tensor) -> torch.Tensor:
        means = x.float().mean(-2, keepdim=True).to(x.dtype)
        return way(x - means) + means

    return lossy


def scaled(way: Way) -> Way:
    """Over the channels' root mean squares."""

    def lossy(x: torch.Tensor) -> torch.Tensor:
        sizes = x.float().square().mean(-2, keepdim=True).sqrt().clamp_min(1e-6).to(x.dtype)
        return way(x / sizes) * sizes

    return lossy


def levels(x: torch.Tensor) -> torch.Tensor:
    """16 levels from the least to the most of each channel."""
    least, most = x.float().amin(-2, keepdim=True), x.float().amax(-2, keepdim=True)
    size = ((most - least) / 15).clamp_min(1e-12)
    return (((x.float() - least) / size).round() * size + least).to(x.dtype)


WAYS: dict[str, Way] = {
    "as they are": hadamard(),
    "without the means of channels": centred(hadamard()),
    "the same, over the channels' spreads": centred(scaled(hadamard())),
    "over the channels' sizes": scaled(hadamard()),
    "blocks of 64 values": hadamard(64),
    "nothing below -5, where SiLU is flat": lambda x: hadamard()(x.clamp_min(-5)),
    "16 levels from the least to the most of each channel": levels,
}


class GatedProduct(torch.autograd.Function):
    """``(silu(gate) * up) W^T`` whose backward pass has the gate as it was kept."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, way: Way) -> torch.Tensor:
        ctx.save_for_backward(way(gate), up, down)
        return linear(silu(gate) * up, down)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gate, up, down = ctx.saved_tensors
        grad, active = grad.to(gate.dtype), silu(gate)
        inner = grad @ down.to(grad.dtype)
        down_grad = grad.flatten(0, -2).T @ (active * up).flatten(0, -2)
        return torch.ops.aten.silu_backward(inner * up, gate), inner * active, down_grad.to(down.dtype), None


def keep_gates(model: torch.nn.Module, way: Way) -> None:
    """Have all MLPs of a Llama keep their gates in one way."""
    for layer in model.model.layers:  # type: ignore[union-attr]

        def forward(x: torch.Tensor, mlp: Any = layer.mlp) -> Any:
            return GatedProduct.apply(mlp.gate_proj(x), mlp.up_proj(x), mlp.down_proj.weight, way)

        layer.mlp.forward = forward


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gates", description="Gates in 4 bits.")
    parser.add_argument("--tokens", type=int, default=512, help="of the sequence (default: 512)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    subject = smollm2.subject()
    model, tokens = subject.model, subject.text[: given.tokens][None]
    keep_gates(model, lambda gate: gate)
    exact, _ = step(model, tokens, torch.bfloat16, nullcontext())
    lines = ["| gates at 4 bits | gradient error |", "| --- | ---: |"]
    print(*lines, sep="\n", flush=True)
    for name, way in WAYS.items():
        keep_gates(model, way)
        found, _ = step(model, tokens, torch.bfloat16, nullcontext())
        lines.append(f"| {name} | {float((found - exact).norm() / exact.norm()):.3f} |")
        print(lines[-1], flush=True)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
