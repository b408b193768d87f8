"""Linear layers of either kind: PyTorch's, and transformers' ``Conv1D``, of which it makes its GPT-2."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn


def weight_of(layer: Any) -> torch.Tensor:
    """The weight as [out_features, in_features]: of a ``Conv1D``, which has it transposed, a view."""
    return layer.weight if isinstance(layer, nn.Linear) else layer.weight.T


def may_have_conv1d() -> bool:
    """Whether any model can have a ``Conv1D``: whether what defines it was imported."""
    return "transformers.pytorch_utils" in sys.modules
