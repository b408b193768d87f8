"""Short training runs of small GPTs, their saved tensors stored in one of the cuts."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean
from typing import Any

import torch
from torch.nn import functional

from torch_bridge.job import train

from .cuts import CUTS, Store, gradient_error

VOCABULARY = 256


@dataclass(frozen=True)
class Size:
    """A GPT, whose heads have 64 values, and its training."""

    width: int
    layers: int
    batch: int
    steps: int
    lr: float
    tokens: int = 128


SIZES = {192: Size(192, 2, 4, 100, 1e-3), 576: Size(576, 2, 2, 30, 5e-4)}
STARTS = ("outlier", "plain")
# The cuts that are trained, by width.
TRAINED = {192: ("memory order", "rule", "padded to 128"), 576: ("memory order", "rule")}


class Again(torch.autograd.Function):
    """Causal attention whose backward pass computes it anew, so that it fits the queries and keys it has."""

    @staticmethod
    def forward(ctx: Any, *parts: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*parts)
        return functional.scaled_dot_product_attention(*parts, is_causal=True)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        parts = [part.detach().requires_grad_() for part in ctx.saved_tensors]
        with torch.enable_grad():
            found = functional.scaled_dot_product_attention(*parts, is_causal=True)
        return torch.autograd.grad(found, parts, gradient)


class Layer(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList([torch.nn.RMSNorm(width), torch.nn.RMSNorm(width)])
        self.inner, self.outer = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.inner(self.norms[0](x)).unflatten(2, (3, -1, 64)).unbind(2)
        found = Again.apply(*(part.transpose(1, 2) for part in parts))
        x = x + self.outer(found.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


class GPT(torch.nn.Module):
    """A decoder with RMSNorm before each part.

    Args:
        outlier: whether the space begins a thousand times as large as the other tokens.
    """

    def __init__(self, size: Size, outlier: bool) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(VOCABULARY, size.width)
        self.places = torch.nn.Embedding(size.tokens, size.width)
        self.layers = torch.nn.Sequential(*(Layer(size.width) for _ in range(size.layers)))
        self.norm, self.head = torch.nn.RMSNorm(size.width), torch.nn.Linear(size.width, VOCABULARY)
        with torch.no_grad():
            self.places.weight *= 0.1
            if outlier:
                self.tokens.weight[ord(" ")] *= 1000

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The loss of int64[batch, length]."""
        x = self.tokens(tokens[:, :-1]) + self.places.weight[: tokens.shape[1] - 1]
        logits = self.head(self.norm(self.layers(x)))
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def width_of(tensor: torch.Tensor) -> int | None:
    """Values of one token in what a :class:`GPT` saves; None for statistics, and what the loss needs."""
    if not tensor.is_floating_point() or tensor.dim() < 3 or tensor.shape[-1] in (1, VOCABULARY):
        return None
    return tensor.shape[1] * tensor.shape[3] if tensor.dim() == 4 else tensor.shape[-1]


def run(width: int, start: str, seed: int, cut: str, bits: float) -> dict[str, Any]:
    """Validation loss after a training, and the gradient error of one batch before it.

    Args:
        width: a size in ``SIZES``.
        start: one of ``STARTS``.
        seed: of weights and batches, which are alike for all cuts.
        cut: one in ``CUTS``, or "exact" for no compression.
        bits: of a value.
    """
    size = SIZES[width]
    torch.manual_seed(seed)
    model, batches = GPT(size, start == "outlier"), torch.Generator().manual_seed(seed)
    text = train.read_text(None)
    seen, held_out = text[: -(len(text) // 10)], text[-(len(text) // 10) :]
    if cut == "exact":
        _train(model, size, seen, batches, None)
        return {"val_loss": _validate(model, size, held_out)}
    store = Store(CUTS[cut], bits, model.parameters())
    tokens = train.draw(seen, size.batch, size.tokens + 1, torch.Generator().manual_seed(99))
    error = gradient_error(model, lambda: model(tokens), store, width_of)
    _train(model, size, seen, batches, store)
    found = {"gradient_error": error, "val_loss": _validate(model, size, held_out)}
    return found | {"bits_stored": store.bits_stored}


def _train(model: GPT, size: Size, text: torch.Tensor, batches: torch.Generator, store: Store | None) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=size.lr)
    for step in range(size.steps):
        for group in optimizer.param_groups:
            group["lr"] = train.learning_rate(step, size.steps, size.lr)
        tokens = train.draw(text, size.batch, size.tokens + 1, batches)
        if store is None:
            loss = model(tokens)
        else:
            with store.saving(width_of):
                loss = model(tokens)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


@torch.no_grad()
def _validate(model: GPT, size: Size, text: torch.Tensor) -> float:
    """Mean loss over the first 64 windows of the held-out text."""
    windows = text[: 64 * (size.tokens + 1)].view(64, -1)
    return mean(float(model(some)) for some in windows.split(16))
