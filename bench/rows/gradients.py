"""What shows without training: effective bits by block, and gradient errors of single layers."""

from __future__ import annotations

import math
from typing import Any

import torch

from golden import HadamardFormat
from torch_bridge import backends

from .cuts import CUTS, Store, gradient_error
from .training import Again

Row = dict[str, Any]

TOKENS = 2048
SPREAD = 1.5  # deviation of the logarithm of a token's size


def gaussian(block: int, bits: float) -> Row:
    """Effective bits, ``0.5 * log2(variance / mean squared error)``, of 2**20 values, headers counted."""
    values = torch.randn(1 << 20, generator=torch.Generator().manual_seed(0))
    backend = backends.get("auto", HadamardFormat("fp32", block, int(block * bits / 8)))
    error = backend.decompress(backend.compress(values), len(values)) - values
    return {"effective_bits": 0.5 * math.log2(float(values.var() / error.square().mean()))}


def norm(width: int, cut: str, bits: float) -> Row:
    """Tokens of log-normal sizes before an RMSNorm and a linear layer, all of which have parameters."""
    torch.manual_seed(0)
    sizes = torch.exp(SPREAD * torch.randn(TOKENS, 1))
    tokens = torch.nn.Embedding.from_pretrained(sizes * torch.randn(TOKENS, width), freeze=False)
    model = torch.nn.Sequential(tokens, torch.nn.RMSNorm(width), torch.nn.Linear(width, width))
    direction = torch.randn(TOKENS, width) / TOKENS
    store = Store(CUTS[cut], bits, [*model[1:].parameters(), direction])

    def loss() -> torch.Tensor:
        return (model(torch.arange(TOKENS)) * direction).sum()

    def width_of(tensor: torch.Tensor) -> int | None:
        return width if tensor.shape[-1] == width and tensor.dim() == 2 else None

    return {"gradient_error": gradient_error(model, loss, store, width_of), "bits_stored": store.bits_stored}


class Attention(torch.nn.Module):
    """Attention with four heads of 64 values.

    Args:
        spread: deviation of the logarithm of heads' sizes, of queries, of keys and of values.
        by_heads: whether heads lie in memory one behind the other, and not tokens.
    """

    heads, tokens, batch = 4, 128, 8

    def __init__(self, spread: float, by_heads: bool) -> None:
        super().__init__()
        width = 64 * self.heads
        self.inner, self.outer = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        sizes = torch.exp(spread * torch.randn(3 * self.heads)).repeat_interleave(64)
        with torch.no_grad():
            self.inner.weight *= sizes[:, None]
        self.by_heads = by_heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.inner(x).view(self.batch, self.tokens, 3, self.heads, 64).unbind(2)
        parts = [part.transpose(1, 2) for part in parts]
        if self.by_heads:
            parts = [part.contiguous() for part in parts]
        return self.outer(Again.apply(*parts).transpose(1, 2).reshape(x.shape))


# Whether heads lie one behind the other, values of what counts as a row, and the cut.
LAYOUTS = {
    "tokens in memory, two heads a block": (False, 256, "rule"),
    "tokens in memory, one head a block": (False, 64, "rule"),
    "heads in memory, two tokens a block": (True, 64, "memory order"),
    "heads in memory, one token a block": (True, 64, "rule"),
}


def attention(layout: str, spread: float, bits: float) -> Row:
    """Queries, keys and values that share a block with another head, or with another token."""
    by_heads, width, cut = LAYOUTS[layout]
    torch.manual_seed(0)
    model = Attention(spread, by_heads)
    tokens = torch.randn(model.batch, model.tokens, 64 * model.heads)
    tokens *= torch.exp(0.3 * torch.randn(model.batch, model.tokens, 1))  # a norm leaves less than SPREAD
    direction = torch.randn(tokens.shape)
    store = Store(CUTS[cut], bits, [*model.parameters(), tokens, direction])

    def loss() -> torch.Tensor:
        return (model(tokens) * direction).sum()

    def width_of(tensor: torch.Tensor) -> int | None:
        return width if tensor.dim() == 4 else None

    return {"gradient_error": gradient_error(model, loss, store, width_of), "bits_stored": store.bits_stored}


# What counts as a row of [N, C, H, W], and the cut.
IMAGES = {"memory order": "memory order", "an image": "rule", "a channel": "rule"}


def convolution(row: str, size: int, bits: float) -> Row:
    """Channels of log-normal sizes before a batch normalisation, in images of so many rows and columns."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.Conv2d(32, 16, 1)
    )
    with torch.no_grad():
        model[0].weight *= torch.exp(torch.randn(32))[:, None, None, None]
    images = torch.randn(8, 16, size, size)
    direction = torch.randn(images.shape)
    store = Store(CUTS[IMAGES[row]], bits, [*model.parameters(), images, direction])

    def loss() -> torch.Tensor:
        return (model(images) * direction).sum()

    def width_of(tensor: torch.Tensor) -> int | None:
        if tensor.dim() != 4 or tensor.shape[-1] != size:
            return None
        return size**2 * (tensor.shape[1] if row == "an image" else 1)

    return {"gradient_error": gradient_error(model, loss, store, width_of), "bits_stored": store.bits_stored}
