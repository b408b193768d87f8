"""Which operations can be done again in the backward pass, and how.

Recorded are operations that cost no more than to read and write their tensors, draw no random numbers, and
under which a small error of what they are given stays a small one: a matrix product, an exponential or a
quotient of two tensors is never computed anew. They are recorded below autograd and autocast, with the sizes
and strides of their arguments, and computed anew like that, so that the same arguments give the same bits.

Norms take the statistics of the forward pass from where these are kept. From decompressed values new ones
would be too large, as noise raises every variance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .origin import Compute

_ATEN = torch.ops.aten


@dataclass(frozen=True)
class Operation:
    """An operation whose first result can be computed anew.

    Attributes:
        compute: that result, from whether all tensors are exact, and the operation's arguments.
        fits: whether it holds for these arguments.
        takes: places of the arguments that it is computed from; all if None.
        results: places of further results that it is computed from; they are arguments behind the others.
    """

    compute: Compute
    fits: Callable[[tuple[Any, ...]], bool] | None = None
    takes: tuple[int, ...] | None = None
    results: tuple[int, ...] = ()


def _plainly(func: Any) -> Compute:
    def compute(is_exact: bool, *args: Any, **kwargs: Any) -> torch.Tensor:
        return func(*args, **kwargs)

    return compute


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _layer_norm(
    is_exact: bool,
    x: torch.Tensor,
    shape: list[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    mean: torch.Tensor,
    rstd: torch.Tensor,
) -> torch.Tensor:
    if is_exact:
        return _ATEN.native_layer_norm.default(x, shape, weight, bias, eps)[0]
    return _scaled(x, mean, rstd, weight, bias).to(x.dtype)


def _rms_norm(
    is_exact: bool,
    x: torch.Tensor,
    shape: list[int],
    weight: torch.Tensor | None,
    eps: float | None,
    rstd: torch.Tensor,
) -> torch.Tensor:
    if is_exact:
        return _ATEN._fused_rms_norm.default(x, shape, weight, eps)[0]
    return _scaled(x, None, rstd, weight, None).to(x.dtype)


def _batch_norm(
    is_exact: bool,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    mean: torch.Tensor,
    rstd: torch.Tensor,
) -> torch.Tensor:
    if is_exact:  # without what the operation does to running statistics
        return _ATEN._native_batch_norm_legit.no_stats(x, weight, bias, True, 0.0, eps)[0]
    channels = [-1] + [1] * (x.dim() - 2)
    factor, shift = (one if one is None else one.view(channels) for one in (weight, bias))
    return _scaled(x, mean.view(channels), rstd.view(channels), factor, shift).to(x.dtype)


def _scaled(
    x: torch.Tensor,
    mean: torch.Tensor | None,
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """``(x - mean) * rstd * weight + bias`` in the type of the statistics."""
    y = x.to(rstd.dtype, copy=True) if mean is None else x.to(rstd.dtype) - mean
    y.mul_(rstd)
    if weight is not None:
        y.mul_(weight)
    return y if bias is None else y.add_(bias)


def _dropout(is_exact: bool, x: torch.Tensor, p: float, mask: torch.Tensor) -> torch.Tensor:
    scale = 1 / (1 - p)
    return x * (mask.to(x.dtype) * scale) if x.device.type == "cpu" else x.mul(mask).mul_(scale)


# Activations in all their spellings are made of these.
_POINTWISE = (
    *("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar", "rsub.Scalar", "mul.Tensor", "mul.Scalar"),
    *("neg.default", "tanh.default", "sigmoid.default", "erf.default", "relu.default", "gelu.default"),
    *("silu.default", "glu.default", "div.Scalar", "clone.default", "_to_copy.default", "_softmax.default"),
    "constant_pad_nd.default",
)


def _named(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(_ATEN, packet), overload)


OPERATIONS: dict[Any, Operation] = {
    **{func: Operation(_plainly(func)) for func in map(_named, _POINTWISE)},
    _ATEN.div.Tensor: Operation(_plainly(_ATEN.div.Tensor), lambda args: _is_number(args[1])),
    _ATEN.pow.Tensor_Scalar: Operation(
        _plainly(_ATEN.pow.Tensor_Scalar), lambda args: args[1] > 0 and args[1] == int(args[1])
    ),
    _ATEN.native_layer_norm.default: Operation(_layer_norm, results=(1, 2)),
    _ATEN.native_batch_norm.default: Operation(
        _batch_norm, lambda args: args[5] is True, takes=(0, 1, 2, 7), results=(1, 2)
    ),
    _ATEN.native_dropout.default: Operation(
        _dropout, lambda args: args[2] is True and args[1] < 1, takes=(0, 1), results=(1,)
    ),
}
if hasattr(_ATEN, "_fused_rms_norm"):  # from PyTorch 2.8 on
    OPERATIONS[_ATEN._fused_rms_norm.default] = Operation(_rms_norm, results=(1,))
