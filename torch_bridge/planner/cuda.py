"""What PyTorch does otherwise on CUDA than on a CPU, as far as saved tensors are concerned.

Dropout is one operation there, which saves a mask of booleans; on a CPU it is a product with a mask of floats.
Fused attention drops probabilities itself there; on a CPU attention with dropout is not fused.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class CudaKernels(TorchFunctionMode):
    """Operations that CUDA has and a CPU has not, for a :class:`DryRun`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.dropout:
            return _dropout(*args, **kwargs)
        if func is functional.scaled_dot_product_attention and kwargs.get("dropout_p"):
            return _attention(*args, **kwargs)
        return func(*args, **kwargs)


def _dropout(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    if not training or p == 0:
        return x
    return torch.native_dropout(x, p, True)[0]


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Saves queries, keys, values, outputs and the log-sum-exps of the logits, and a seed."""
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (one.repeat_interleave(groups, -3) for one in (key, value))
    return torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, attn_mask, True, dropout_p, is_causal, scale=scale
    )[0]
