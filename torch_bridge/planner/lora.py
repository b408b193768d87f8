"""Low-rank adapters in place of training all weights: Hu et al., "LoRA" (arXiv 2106.09685)."""

from __future__ import annotations

from fnmatch import fnmatchcase

import torch
from torch import nn

from ..schemes.linear import conv1d, weight_of


class LowRank(nn.Module):
    """A layer whose weights are frozen, and beside it a product of two small matrices that are trained.

    Its values are ``layer(x) + up(down(x))``; what autograd saves is what peft's ``LoraLayer`` without
    dropout has it save, with adapters of the layer's dtype.

    Args:
        layer: linear, of any number of features in and out.
        rank: of the product.
    """

    def __init__(self, layer: nn.Module, rank: int) -> None:
        super().__init__()
        features_out, features_in = weight_of(layer).shape
        dtype = next(layer.parameters()).dtype
        self.layer = layer
        self.down = nn.Linear(features_in, rank, bias=False, dtype=dtype)
        self.up = nn.Linear(rank, features_out, bias=False, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        adapted: torch.Tensor = self.layer(x)
        return adapted + self.up(self.down(x))


def add_adapters(model: nn.Module, rank: int, names: str = "*") -> int:
    """Freeze a model, and give its linear layers adapters; the head, which gives logits, has none.

    Args:
        model: is changed.
        rank: of the adapters.
        names: a shell pattern for the layers, as in ``model.named_modules()``.

    Returns:
        The number of layers that have one.

    Raises:
        ValueError: no layer fits the pattern.
    """
    model.requires_grad_(False)
    kinds = (nn.Linear,) if conv1d() is None else (nn.Linear, conv1d())
    head = getattr(model, "get_output_embeddings", lambda: None)()
    found = [
        (parent, name, child)
        for path, parent in model.named_modules()
        for name, child in parent.named_children()
        if isinstance(child, kinds)
        and child is not head
        and fnmatchcase(f"{path}.{name}" if path else name, names)
    ]
    if not found:
        raise ValueError(f"lora-layers must fit the name of a linear layer, not {names!r}")
    for parent, name, child in found:
        setattr(parent, name, LowRank(child, rank))
    return len(found)
