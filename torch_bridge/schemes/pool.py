"""Pooled activations: convolutions that keep an average-pooled copy of their input, ReLUs that keep bits.

After Barley and Fröning, "Less Memory Means smaller GPUs: Backpropagation with Compressed Activations" (arXiv
2409.11902). The forward pass is what it was, and so is the gradient of every input:

===================  ==============================  =====================================================
layer                kept                            gradient of the weight
===================  ==============================  =====================================================
``nn.Conv2d``        means of k x k pixels           that of the input with each pixel replaced by its mean
``nn.Linear``        means of k tokens, an option    the same, along the tokens
``nn.ReLU``          a bit for each value            has none
===================  ==============================  =====================================================

Batch norms stay as they are: the gradient of a batch norm's *input* needs each value of it, not its weight's
alone, and an error there would reach all layers before it. So of a convolution, a norm and a ReLU in turn,
which keep two tensors, the norm's input remains, and at k = 2 the convolution's 1/4 and the bits' 1/32: at
most 36 % of the activations are saved, at k = 4 45 %.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ..backends.bits import BitsCodec
from .linear import conv1d, weight_of

KERNELS = (2, 4)


def convert(
    model: nn.Module, kernel: int = 2, *, tokens: bool = False, names: str | Sequence[str] = "*"
) -> list[str]:
    """Make layers keep pooled inputs, or bits, in place.

    Each ``nn.Conv2d`` becomes a ``PooledConv2d``, each ``nn.ReLU`` a ``BitReLU``, and with
    ``tokens`` each ``nn.Linear`` a ``PooledLinear``, each ``Conv1D``, of which transformers makes its
    GPT-2, a ``PooledConv1D``; subclasses of these stay. Parameters, hooks and
    the model's ``state_dict`` stay what they are. Functions such as ``torch.nn.functional.relu`` are not
    reached.

    Args:
        model: whose layers to convert.
        kernel: 2 or 4, the pixels or tokens whose mean is kept, along each dimension.
        tokens: pool the inputs of linear layers as well, [batch, tokens, features], along the tokens.
        names: shell patterns, or one; a layer is converted if its name fits one of them.

    Returns:
        The names of the layers that were converted.

    Raises:
        ValueError: the model is none, the kernel is another, or no layer fits.

    Examples:
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        >>> convert(model, kernel=2)
        ['0', '2']
        >>> model(torch.randn(4, 3, 32, 32)).sum().backward()
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"model must be a torch.nn.Module, not {reprlib.repr(model)}")
    if not isinstance(kernel, int) or kernel not in KERNELS:
        raise ValueError(f"kernel must be 2 or 4, not {kernel!r}")
    classes: dict[type[nn.Module], type[nn.Module]] = {nn.Conv2d: PooledConv2d, nn.ReLU: BitReLU}
    if tokens:
        classes[nn.Linear] = PooledLinear
        if (kind := conv1d()) is not None:
            classes[kind] = _of_conv1d(kind)
    patterns = [names] if isinstance(names, str) else names
    converted = []
    for name, layer in model.named_modules():
        if type(layer) in classes and any(fnmatchcase(name, pattern) for pattern in patterns):
            layer.__class__ = classes[type(layer)]
            if not isinstance(layer, BitReLU):
                layer.pool = kernel
            converted.append(name)
    if not converted:
        raise ValueError(f"names must fit a layer that can be converted, not {names!r}")
    return converted


class PooledConv2d(nn.Conv2d):
    """A convolution that keeps the means of ``pool`` x ``pool`` pixels of its input; made by ``convert``.

    At the lower and right edge of sizes that ``pool`` does not divide they are means of fewer.
    """

    pool: int

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """float[batch, channels, height, width], what ``nn.Conv2d`` computes, bit for bit."""
        if not (torch.is_grad_enabled() and self.weight.requires_grad and x.is_floating_point()):
            return super().forward(x)
        if x.dim() == 3:
            return self.forward(x[None])[0]
        x, padding = self._pad(x)
        return PooledConv2dFunction.apply(
            x, self.weight, self.bias, self.pool, self.stride, padding, self.dilation, self.groups
        )

    def _pad(self, x: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
        """The input with what padding is not zeros on both sides alike, and the rest of the padding."""
        left, right, top, bottom = self._reversed_padding_repeated_twice
        if self.padding_mode != "zeros":
            return functional.pad(x, (left, right, top, bottom), self.padding_mode), (0, 0)
        # Of "same" with an even kernel, as in PyTorch itself.
        if right > left or bottom > top:
            x = functional.pad(x, (0, right - left, 0, bottom - top))
        return x, (top, left)


class PooledLayer(nn.Module):
    """A linear layer that keeps the means of ``pool`` tokens of its input; made by ``convert``.

    The last of tokens that ``pool`` does not divide is a mean of fewer; no mean is of two sequences.
    """

    pool: int
    weight: Any  # the plain layers' types differ
    bias: Any

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """float[..., tokens, features], what the plain layer computes, bit for bit.

        An input without tokens, [batch, features], is kept as it is.
        """
        if not (torch.is_grad_enabled() and self.weight.requires_grad and x.dim() > 2):
            return super().forward(x)
        return PooledLinearFunction.apply(x, weight_of(self), self.bias, self.pool)


class PooledLinear(PooledLayer, nn.Linear):
    """An ``nn.Linear`` that keeps the means of ``pool`` tokens of its input."""


@cache
def _of_conv1d(kind: Any) -> type[PooledLayer]:
    class PooledConv1D(PooledLayer, kind):
        """A ``Conv1D`` that keeps the means of ``pool`` tokens of its input."""

    return PooledConv1D


class BitReLU(nn.ReLU):
    """A ReLU that keeps for each value whether it was positive; made by ``convert``."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """float[...] of any shape, what ``nn.ReLU`` computes, in place if it does; the gradient is exact."""
        if not (torch.is_grad_enabled() and x.requires_grad):
            return super().forward(x)
        return _ReLU.apply(x, self.inplace)


class PooledConv2dFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        kernel: int,
        stride: tuple[int, ...],
        padding: tuple[int, ...],
        dilation: tuple[int, ...],
        groups: int,
    ) -> torch.Tensor:
        values = x.to(_computed_in(x))
        with torch.autocast(x.device.type, enabled=False):
            pooled = functional.avg_pool2d(values, kernel, ceil_mode=True, count_include_pad=False)
        ctx.save_for_backward(pooled, weight)
        ctx.size, ctx.kernel = x.shape[-2:], kernel
        ctx.how = stride, padding, dilation, groups
        ctx.bias_size = None if bias is None else list(bias.shape)
        ctx.channels_last = not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
        return functional.conv2d(x, weight, bias, stride, padding, dilation, groups)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        pooled, weight = ctx.saved_tensors
        height, width = ctx.size
        x = functional.interpolate(pooled, scale_factor=ctx.kernel, mode="nearest")[..., :height, :width]
        memory_format = torch.channels_last if ctx.channels_last else torch.contiguous_format
        x = x.to(grad.dtype).contiguous(memory_format=memory_format)
        stride, padding, dilation, groups = ctx.how
        grads = torch.ops.aten.convolution_backward(
            grad,
            x,
            weight.to(grad.dtype),
            ctx.bias_size,
            stride,
            padding,
            dilation,
            False,  # not transposed
            [0, 0],
            groups,
            ctx.needs_input_grad[:3],
        )
        return (*grads, None, None, None, None, None)


class PooledLinearFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, kernel: int
    ) -> torch.Tensor:
        values = x.to(_computed_in(x))
        with torch.autocast(x.device.type, enabled=False):  # it would have sums in fp32
            pooled = _token_sums(values, kernel, mean=True)
        ctx.save_for_backward(pooled, weight)
        ctx.kernel = kernel
        return functional.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        pooled, weight = ctx.saved_tensors
        rows = grad.reshape(-1, grad.shape[-1])
        x_grad = weight_grad = bias_grad = None
        if ctx.needs_input_grad[0]:
            x_grad = (rows @ weight.to(grad.dtype)).view(*grad.shape[:-1], weight.shape[1])
        if ctx.needs_input_grad[1]:
            # Tokens with one mean: their gradients may be added before they are multiplied by it.
            sums = _token_sums(grad, ctx.kernel).flatten(0, -2)
            weight_grad = sums.T @ pooled.flatten(0, -2).to(grad.dtype)
        if ctx.needs_input_grad[2]:
            bias_grad = rows.sum(0)
        return x_grad, weight_grad, bias_grad, None


class _ReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, inplace: bool) -> torch.Tensor:
        if inplace:
            ctx.mark_dirty(x)
        out = functional.relu(x, inplace)
        mask = (out <= 0).logical_not_().flatten()  # NaN lets the gradient pass, as in PyTorch
        ctx.save_for_backward(_mask_codec(mask).compress(mask))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        (stored,) = ctx.saved_tensors
        mask = _mask_codec(stored).decompress(stored, grad.numel())
        return grad.masked_fill(mask.logical_not_().view(grad.shape), 0), None


def _mask_codec(like: torch.Tensor) -> BitsCodec:
    return BitsCodec(torch.tensor([0, 1], dtype=torch.int8, device=like.device), torch.bool)


def _computed_in(x: torch.Tensor) -> torch.dtype:
    """The dtype in which a layer computes, autocast's if there is one."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def _token_sums(x: torch.Tensor, kernel: int, *, mean: bool = False) -> torch.Tensor:
    """float[..., tokens, features] -> [..., tokens / kernel rounded up, features], sums or means."""
    count = x.shape[-2]
    windows = functional.pad(x, (0, 0, 0, -count % kernel)).unflatten(-2, (-1, kernel))
    sums = windows.sum(-2)
    if mean:
        sizes = torch.full((sums.shape[-2], 1), kernel, device=x.device)
        sizes[-1:] -= -count % kernel
        sums /= sizes
    return sums
