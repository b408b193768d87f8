"""Which operations can be done again in the backward pass, and how.

Recorded are operations that cost no more than to read and write their tensors, draw no random numbers, and
under which a small error of what they are given stays a small one: not an exponential, nor a quotient of two
tensors. They are recorded below autograd and autocast, with the sizes
and strides of their arguments, and computed anew like that, so that the same arguments give the same bits.
Matrix products, which cost more, are in ``products.py``. A log-softmax takes exponentials: it is only done
again with exact arguments.

Of a sum or difference that is small beside what is added an error does not stay small: the planner looks at
its size. Attention, which is done again for its own node alone, is in ``store/attention.py``.

Norms take the statistics of the forward pass from where these are kept. From decompressed values new ones
would be too large, as noise raises every variance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .geometry import Geometry

_ATEN = torch.ops.aten

# From whether all tensors are exact, and an operation's arguments, one of its results.
Compute = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Recomputation:
    """How the first result of an operation is computed anew.

    Attributes:
        compute: that result, from whether all tensors are exact, and the operation's arguments.
        fits: whether it holds for these arguments.
        takes: places of the arguments that it is computed from; all if None.
        results: places of further results that it is computed from; they are arguments behind the others.
        takes_out: whether ``compute`` can be given memory to write to, as ``out``.
        is_light: whether it takes no longer than to read and write its tensors.
        may_cancel: whether its result may be small beside what it is computed from.
        saturates: whether its result nears an end and never passes it.
        needs_exact: whether it is only done again with arguments that are as they were.
        spreads: whether its first argument is a list, whose tensors are arguments of their own here.
        factors: of a matrix product: places of its two factors among its arguments.
    """

    compute: Compute
    fits: Callable[[tuple[Any, ...]], bool] | None = None
    takes: tuple[int, ...] | None = None
    results: tuple[int, ...] = ()
    takes_out: bool = False
    is_light: bool = False
    may_cancel: bool = False
    saturates: bool = False
    needs_exact: bool = False
    spreads: bool = False
    factors: tuple[int, int] | None = None


class Recipe:
    """How a storage was filled.

    Attributes:
        way: of computing it anew.
        args, kwargs: of the operation, as it is computed from, with an ``Operand`` for each tensor.
        version: of the tensor then.
        dtype, geometry: of the tensor, which fills the storage.
        length: operations in all, with those that made the operands.
        inner: of a matrix product: how many products are summed for a value; 0 for others.
    """

    __slots__ = ("args", "dtype", "geometry", "inner", "kwargs", "length", "version", "way")

    def __init__(
        self, way: Recomputation, args: list[Any], kwargs: dict[str, Any], made: torch.Tensor
    ) -> None:
        self.way, self.args, self.kwargs = way, args, kwargs
        self.version, self.dtype = made._version, made.dtype
        self.geometry = Geometry.of(made)
        self.length, self.inner = 1, 0

    @property
    def flops(self) -> int:
        """Floating-point operations of a matrix product: a multiplication and an addition count as two."""
        return 2 * self.inner * self.geometry.count


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


def _cat(is_exact: bool, *args: Any) -> torch.Tensor:
    tensors = [one for one in args if isinstance(one, torch.Tensor)]
    return _ATEN.cat.default(tensors, *args[len(tensors) :])


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
    """An operation of ATen, None where this torch has none of that name."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(_ATEN, packet, None), overload, None)


def _plain(name: str, into: str = "", fits: Any = None, is_light: bool = False) -> Recomputation:
    packet, out = name.partition(".")[0], _named(into) if into else None
    return Recomputation(
        _plainly(_named(name), out),
        fits,
        takes_out=out is not None,
        is_light=is_light,
        may_cancel=packet in ("add", "sub", "rsub"),
        saturates=packet in ("sigmoid", "erf", "_softmax"),
    )


_BY_NAME: dict[str, Recomputation] = {
    **{name: _plain(name) for name in _POINTWISE},
    **{name: _plain(name, into) for name, into in _INTO.items()},
    **{name: _plain(name, into, is_light=True) for name, into in _LIGHT.items()},
    "tanh.default": Recomputation(_tanh, takes_out=True, saturates=True),
    "div.Tensor": _plain("div.Tensor", "div.out", lambda args: _is_number(args[1]), is_light=True),
    "pow.Tensor_Scalar": _plain(
        "pow.Tensor_Scalar", "pow.Tensor_Scalar_out", lambda args: _is_natural(args[1])
    ),
    "native_layer_norm.default": Recomputation(_layer_norm, results=(1, 2)),
    "_fused_rms_norm.default": Recomputation(_rms_norm, results=(1,)),
    "native_batch_norm.default": Recomputation(
        _batch_norm, _is_like_without_statistics, takes=(0, 1, 2, 7), results=(1, 2)
    ),
    "native_dropout.default": Recomputation(
        _dropout, lambda args: args[2] is True and args[1] < 1, takes=(0, 1), results=(1,)
    ),
    "_log_softmax.default": Recomputation(_plainly(_ATEN._log_softmax.default), needs_exact=True),
    "cat.default": Recomputation(_cat, spreads=True),
}

# By operation how its first result can be computed anew.
RECOMPUTATIONS: dict[Any, Recomputation] = {
    operation: way for name, way in _BY_NAME.items() if (operation := _named(name)) is not None
}
