"""Which operations can be done again in the backward pass, and how.

Recorded are operations that cost no more than to read and write their tensors, draw no random numbers, and
under which a small error of what they are given stays a small one: not a matrix product, an exponential, nor
a quotient of two tensors. They are recorded below autograd and autocast, with the sizes
and strides of their arguments, and computed anew like that, so that the same arguments give the same bits.

Of a sum or difference that is small beside what is added an error does not stay small: ``derive.py`` looks at
its size.

Attention is done again as well, a small part of the work of a layer (3 % in GPT-2 with 1024 tokens), but
for its own node alone. That takes differences of what queries, keys, values, outputs and log-sum-exps say of
the same probabilities, and little is right of these unless they belong together: so outputs and sums are made
of what the node itself holds, whatever others have stashed of the same tensors.

Norms take the statistics of the forward pass from where these are kept. From decompressed values new ones
would be too large, as noise raises every variance.
"""

from __future__ import annotations

from typing import Any

import torch

from .node import Node
from .origin import Compute, Operation

_ATEN = torch.ops.aten


def _plainly(func: Any, into: Any = None) -> Compute:
    """An operation as it is, and the one that does the same with memory to write to."""

    def compute(is_exact: bool, *args: Any, out: torch.Tensor | None = None, **kwargs: Any) -> torch.Tensor:
        return func(*args, **kwargs) if out is None else into(*args, out=out, **kwargs)

    return compute


def _tanh(is_exact: bool, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    if is_exact or x.device.type != "cpu" or x.dtype != torch.float32:
        return _ATEN.tanh.default(x) if out is None else _ATEN.tanh.out(x, out=out)
    # To 2e-7 the same in a third of the time: PyTorch has a vectorised exponential, but no such tanh.
    y = torch.mul(x, 2, out=out).sigmoid_()
    return torch.add(y.new_tensor(-1.0), y, alpha=2, out=y)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _is_natural(value: Any) -> bool:
    return _is_number(value) and value > 0 and float(value).is_integer()


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


def _is_like_without_statistics(args: tuple[Any, ...]) -> bool:
    """Whether it trains and is the same without running statistics, whose type may choose the kernel."""
    x, weight, _, mean, _, is_training, *_ = args
    return is_training is True and (weight is not None or mean is None or mean.dtype == x.dtype)


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


def _attention(name: str) -> tuple[Operation, ...]:
    """What fused attention without dropout gives: outputs, and the log-sum-exps of its logits."""
    func = getattr(_ATEN, name).default
    places = [argument.name for argument in func._schema.arguments]
    dropout = places.index("dropout_p")

    def outputs(is_exact: bool, *args: Any, node: Node, **kwargs: Any) -> torch.Tensor:
        made, sums = func(*args, **kwargs)[:2]
        node.leave(sums)
        return made

    def sums(is_exact: bool, *args: Any, node: Node, **kwargs: Any) -> torch.Tensor:
        return func(*args, **kwargs)[1]

    def fits(args: tuple[Any, ...]) -> bool:
        return not any(args[dropout : dropout + 1])

    return Operation(outputs, fits, for_its_node=True), Operation(sums, fits, makes=1, for_its_node=True)


# Activations in all their spellings are made of these, and of what follows.
_POINTWISE = (
    *("rsub.Scalar", "relu.default", "gelu.default", "silu.default", "glu.default"),
    *("_softmax.default", "constant_pad_nd.default"),
)
# These can write to memory that is there, by the names of what does.
_INTO = {"sigmoid.default": "sigmoid.out", "erf.default": "erf.out"}
_LIGHT = {
    **{f"{name}.Tensor": f"{name}.out" for name in ("add", "sub", "mul")},
    **{f"{name}.Scalar": f"{name}.Scalar_out" for name in ("add", "sub", "mul", "div")},
    "neg.default": "neg.out",
    "clone.default": "",
    "_to_copy.default": "",
}


def _named(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(_ATEN, packet), overload)


def _pointwise(name: str, into: str = "", fits: Any = None, is_light: bool = False) -> Operation:
    compute = _plainly(_named(name), _named(into) if into else None)
    packet = name.partition(".")[0]
    return Operation(
        compute,
        fits,
        takes_out=bool(into),
        is_light=is_light,
        may_cancel=packet in ("add", "sub", "rsub"),
        saturates=packet in ("sigmoid", "erf", "_softmax"),
    )


_ATTENTION = ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")

_OPERATIONS: dict[Any, Operation] = {
    **{_named(name): _pointwise(name) for name in _POINTWISE},
    **{_named(name): _pointwise(name, into) for name, into in _INTO.items()},
    **{_named(name): _pointwise(name, into, is_light=True) for name, into in _LIGHT.items()},
    _ATEN.tanh.default: Operation(_tanh, takes_out=True, saturates=True),
    _ATEN.div.Tensor: _pointwise("div.Tensor", "div.out", lambda args: _is_number(args[1]), is_light=True),
    _ATEN.pow.Tensor_Scalar: _pointwise(
        "pow.Tensor_Scalar", "pow.Tensor_Scalar_out", lambda args: _is_natural(args[1])
    ),
    _ATEN.native_layer_norm.default: Operation(_layer_norm, results=(1, 2)),
    _ATEN.native_batch_norm.default: Operation(
        _batch_norm, _is_like_without_statistics, takes=(0, 1, 2, 7), results=(1, 2)
    ),
    _ATEN.native_dropout.default: Operation(
        _dropout, lambda args: args[2] is True and args[1] < 1, takes=(0, 1), results=(1,)
    ),
}
if hasattr(_ATEN, "_fused_rms_norm"):  # from PyTorch 2.8 on
    _OPERATIONS[_ATEN._fused_rms_norm.default] = Operation(_rms_norm, results=(1,))

# Of each function what can be computed anew of its results.
OPERATIONS: dict[Any, tuple[Operation, ...]] = {func: (one,) for func, one in _OPERATIONS.items()}
for _name in _ATTENTION:
    OPERATIONS[_named(f"_scaled_dot_product_{_name}.default")] = _attention(f"_scaled_dot_product_{_name}")
