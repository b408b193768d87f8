"""Linear layers of either kind: PyTorch's, and transformers' ``Conv1D``, of which it makes its GPT-2."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn


def weight_of(layer: Any) -> torch.Tensor:
    """The weight as [out_features, in_features]: of a ``Conv1D``, which has it transposed, a view."""
    return layer.weight if isinstance(layer, nn.Linear) else layer.weight.T


def conv1d() -> Any:
    """transformers' ``Conv1D``, or None if no model can have one: if what defines it was not imported."""
    return getattr(sys.modules.get("transformers.pytorch_utils"), "Conv1D", None)
