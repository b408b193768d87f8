"""GPT-2's linear layers, which transformers writes with transposed weights, for CompAct and for pooling."""

from __future__ import annotations

from transformers.pytorch_utils import Conv1D

from .compact import CompActLayer
from .pool import PooledLayer


class CompActConv1D(CompActLayer, Conv1D):
    """A ``Conv1D`` whose weight, [in_features, out_features], moves in a subspace."""


class PooledConv1D(PooledLayer, Conv1D):
    """A ``Conv1D`` that keeps the means of ``pool`` tokens of its input."""
