"""What PyTorch does otherwise on CUDA than on a CPU, as far as saved tensors are concerned.

Dropout is one operation there, which saves a mask of booleans; on a CPU it is a product with a mask of
floats.
Fused attention drops probabilities itself there; on a CPU attention with dropout is not fused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch.nn import functional


@contextmanager
def kernels() -> Iterator[None]:
    """Where modules call the operations that CUDA has, for a ``DryRun``."""
    attention = partial(_attention, functional.scaled_dot_product_attention)
    with (
        mock.patch.object(functional, "dropout", _dropout),
        mock.patch.object(functional, "scaled_dot_product_attention", attention),
    ):
        yield


def _dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    return torch.native_dropout(input, p, True)[0] if training and p else input


def _attention(
    otherwise: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Saves queries, keys, values, outputs, log-sum-exps of the logits, and a seed."""
    if not dropout_p:
        options = {"scale": scale, "enable_gqa": enable_gqa}
        result: torch.Tensor = otherwise(query, key, value, attn_mask, 0.0, is_causal, **options)
        return result
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (one.repeat_interleave(groups, -3) for one in (key, value))
    return torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, attn_mask, True, dropout_p, is_causal, scale=scale
    )[0]
