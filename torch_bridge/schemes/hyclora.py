"""HyC-LoRA: layers of a Llama with LoRA that keep quantised activations.

After Wang et al., "HyC-LoRA: Memory Efficient LoRA Fine-tuning with Hybrid Activation Compression" (MLSys
2025), sections 4.1 to 4.3, with flash attention. The forward pass is what it was. Of a layer is kept:

=================================  ==========================================================================
input of both norms                the channels of the largest norm exactly, the others quantised
input of q, k and v, of gate and   quantised, once
up, and of o
q, k and v before RoPE, gate, up   what the frozen weight puts out, quantised; LoRA's part is computed anew
                                   from ``x A``
``x A`` of each adapter            exactly
SiLU's output, and its product     nothing: computed anew
with up
=================================  ==========================================================================

A channel is quantised to so many bits with a scale of its own, q and k with a zero point as well. Scales and
the channels that stay exact are those of the first batches, and do not change after that. What is outside of
the layers, the head and the loss, stays as it is.

One thing differs from the paper: attention's outputs and log-sum-exps are computed anew in the backward pass,
from the q, k and v that were quantised. The paper keeps both for the backward pass of flash attention.
"""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear, silu

BITS = (2, 4, 8)
# Of the paper's section 5.1.
OUTLIERS, BATCHES = 0.005, 5


def convert(
    model: nn.Module, bits: int = 4, *, outliers: float = OUTLIERS, batches: int = BATCHES
) -> list[str]:
    """Make the layers of transformers' Llama, with LoRA of peft, keep what HyC-LoRA keeps, in place.

    Parameters and the model's ``state_dict`` stay what they are. All seven linear layers of a layer must have
    one adapter without dropout, and its norms must be frozen.

    Args:
        model: whose layers to convert, as ``peft.get_peft_model`` gives it.
        bits: of a quantised value: 2, 4 or 8.
        outliers: share of a norm's channels that stay exact.
        batches: forward passes that scales are taken from.

    Returns:
        The names of the layers that were converted.

    Raises:
        ValueError: an argument is none of these, or the model has no such layers.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"model must be a torch.nn.Module, not {reprlib.repr(model)}")
    if bits not in BITS:
        raise ValueError(f"bits must be 2, 4 or 8, not {bits!r}")
    if not 0 <= outliers < 1:
        raise ValueError(f"outliers must be a share from 0 to 1, not {outliers!r}")
    if batches < 1:
        raise ValueError(f"batches must be positive, not {batches!r}")
    quantiser = partial(Channels, bits, batches)
    layers = {name: one for name, one in model.named_modules() if type(one).__name__ == "LlamaDecoderLayer"}
    if not layers:
        raise ValueError(f"model must have layers of transformers' Llama, {type(model).__name__} has none")
    parts = [part for layer in layers.values() for part in _parts(layer, quantiser, outliers)]
    for part in parts:
        part.module.forward = part
    return list(layers)


def _parts(
    layer: Any, quantiser: Callable[..., Channels], outliers: float
) -> list[_Norm | _MLP | _Attention]:
    return [
        _Norm(layer.input_layernorm, quantiser(outliers)),
        _Attention(layer.self_attn, quantiser),
        _Norm(layer.post_attention_layernorm, quantiser(outliers)),
        _MLP(layer.mlp, quantiser),
    ]


@dataclass(frozen=True)
class _Scales:
    """How channels are quantised: float[channels], both; int64[outliers], the channels that stay exact."""

    step: torch.Tensor
    zero: torch.Tensor
    exact: torch.Tensor


class Channels:
    """Quantises tensors of one place, [batch, tokens, channels], each channel with a scale of its own.

    Args:
        bits: of a value.
        batches: tensors that the scales are taken from; their mean holds from then on.
        outliers: share of the channels, those of the largest norm, that stay exact.
        has_zero: whether a channel has a zero point as well.
    """

    def __init__(self, bits: int, batches: int, outliers: float = 0.0, *, has_zero: bool = False) -> None:
        self._bits, self._batches, self._outliers, self._has_zero = bits, batches, outliers, has_zero
        self._seen, self._norms, self._scales = 0, torch.zeros(()), _Scales(*torch.zeros(3, 1))

    def compress(self, x: torch.Tensor) -> tuple[tuple[torch.Tensor, torch.Tensor], _Scales]:
        """uint8 codes and the exact channels, to be kept, and what else ``decompress`` needs."""
        scales, half = self._scales_for(x), 1 << (self._bits - 1)
        levels = torch.addcdiv(scales.zero, x.float(), scales.step).round_().clamp_(-half, half - 1)
        codes = levels.add_(half).to(torch.uint8)
        return (_pack(codes, self._bits), x[..., scales.exact]), scales

    def decompress(
        self,
        kept: tuple[torch.Tensor, torch.Tensor],
        scales: _Scales,
        shape: tuple[int, ...],
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """The tensor of this shape, as far as it was kept."""
        codes, exact = kept
        half = 1 << (self._bits - 1)
        levels = _unpack(codes, self._bits, shape).float().sub_(half)
        x = levels.sub_(scales.zero).mul_(scales.step).to(dtype)
        x[..., scales.exact] = exact.to(dtype)
        return x

    def _scales_for(self, x: torch.Tensor) -> _Scales:
        """Those of a tensor while it is one of the first, else the mean of theirs."""
        if self._seen >= self._batches:
            return self._scales
        own = x[0].float()  # the first sequence speaks for all, as in the authors' code
        least, most = own.amin(0), own.amax(0)
        step = (most - least) / ((1 << self._bits) - 1)
        step = torch.where(step > 0, step, torch.ones_like(step))
        zero = -(least / step).round() - (1 << (self._bits - 1)) if self._has_zero else torch.zeros_like(step)
        before, self._seen = self._seen, self._seen + 1

        def mean(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
            return new if before == 0 else old + (new - old) / self._seen

        self._norms = mean(self._norms, own.norm(dim=0))
        count = max(1, round(self._outliers * x.shape[-1])) if self._outliers else 0
        exact = self._norms.topk(count).indices
        self._scales = _Scales(mean(self._scales.step, step), mean(self._scales.zero, zero).round(), exact)
        return _Scales(step, zero, exact)


def _pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Several codes to a byte, the first in its lowest bits: uint8[values * bits / 8 rounded up]."""
    each = 8 // bits
    codes = codes.flatten()
    groups = nn.functional.pad(codes, (0, -len(codes) % each)).view(-1, each)
    packed = groups[:, 0].clone()
    for place in range(1, each):
        packed |= groups[:, place] << (bits * place)
    return packed


def _unpack(packed: torch.Tensor, bits: int, shape: tuple[int, ...]) -> torch.Tensor:
    places = range(0, 8, bits)
    codes = torch.stack([(packed >> place) & ((1 << bits) - 1) for place in places], -1)
    return codes.flatten()[: torch.Size(shape).numel()].view(shape)


class _Adapted:
    """A linear layer of peft: ``x W^T + bias + scale * (x A^T) B^T``.

    Args:
        layer: of peft.

    Raises:
        ValueError: it is none with one adapter of LoRA, without dropout.
    """

    def __init__(self, layer: Any) -> None:
        names = [*getattr(layer, "lora_A", ())]
        if len(names) != 1 or not isinstance(getattr(layer, "base_layer", None), nn.Linear):
            raise ValueError(f"model must have one adapter at each linear layer, not {layer!r}")
        (name,) = names
        if not isinstance(layer.lora_dropout[name], nn.Identity) or name in layer.lora_variant:
            raise ValueError(f"model must have plain LoRA without dropout, not {layer!r}")
        self._base = layer.base_layer
        self.a, self.b, self._scale = (
            layer.lora_A[name].weight,
            layer.lora_B[name].weight,
            layer.scaling[name],
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """What the layer puts out, what the frozen weight does, and ``x A^T``."""
        main, low = self._base(x), linear(x, self.a)
        return main + linear(low, self.b) * self._scale, main, low

    def whole(self, main: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
        """What the layer puts out, of what the frozen weight does and ``x A^T``."""
        return main + linear(low, self.b.to(low.dtype)) * self._scale

    def backward(
        self, x: torch.Tensor, low: torch.Tensor, grad: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The gradients of x, of A and of B."""
        weight, a, b = (one.to(grad.dtype) for one in (self._base.weight, self.a, self.b))
        inner = (grad @ b) * self._scale
        a_grad = inner.flatten(0, -2).T @ x.flatten(0, -2)
        b_grad = grad.flatten(0, -2).T @ low.flatten(0, -2) * self._scale
        return grad @ weight + inner @ a, a_grad, b_grad


class _Norm:
    """In place of the forward pass of an RMSNorm."""

    def __init__(self, norm: Any, channels: Channels) -> None:
        if norm.weight.requires_grad:
            raise ValueError(f"model must have frozen norms, not {norm!r}")
        self.module, self.channels, self.run = norm, channels, norm.forward

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if not (torch.is_grad_enabled() and x.requires_grad):
            return self.run(x)
        return _NormFunction.apply(x, self)


class _NormFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, norm: _Norm) -> torch.Tensor:
        kept, ctx.scales = norm.channels.compress(x)
        scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + norm.module.variance_epsilon)
        ctx.save_for_backward(*kept, scale)
        ctx.norm, ctx.shape, ctx.dtype = norm, x.shape, x.dtype
        return norm.run(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        *kept, scale = ctx.saved_tensors
        x = ctx.norm.channels.decompress(kept, ctx.scales, ctx.shape, torch.float32) * scale
        grad = grad.float() * ctx.norm.module.weight
        x_grad = (grad - x * (grad * x).mean(-1, keepdim=True)) * scale
        return x_grad.to(ctx.dtype), None


class _MLP:
    """In place of the forward pass of a gated MLP."""

    def __init__(self, mlp: Any, quantiser: Callable[..., Channels]) -> None:
        if mlp.config.hidden_act != "silu":
            raise ValueError(f"model must have gated MLPs with SiLU, not {mlp.config.hidden_act!r}")
        self.module, self.run = mlp, mlp.forward
        self.gate, self.up, self.down = map(_Adapted, (mlp.gate_proj, mlp.up_proj, mlp.down_proj))
        self.adapters = [one for layer in (self.gate, self.up, self.down) for one in (layer.a, layer.b)]
        self.x, self.gates, self.ups = quantiser(), quantiser(), quantiser()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.is_grad_enabled():
            return self.run(x)
        return _MLPFunction.apply(x, self, *self.adapters)


class _MLPFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mlp: _MLP, *adapters: torch.Tensor) -> torch.Tensor:
        gate, gate_main, gate_low = mlp.gate.forward(x)
        up, up_main, up_low = mlp.up.forward(x)
        out, _, down_low = mlp.down.forward(silu(gate) * up)
        kept = _Kept(gate.dtype)
        kept.add(mlp.x, x)
        kept.add(mlp.gates, gate_main)
        kept.add(mlp.ups, up_main)
        ctx.save_for_backward(*kept.tensors, gate_low, up_low, down_low, *adapters)
        kept.tensors, ctx.kept, ctx.mlp, ctx.dtype = [], kept, mlp, x.dtype
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        mlp, (*saved, gate_low, up_low, down_low) = ctx.mlp, ctx.saved_tensors[: -len(ctx.mlp.adapters)]
        x, gate, up = ctx.kept.values(saved)
        gate, up = mlp.gate.whole(gate, gate_low), mlp.up.whole(up, up_low)
        active = silu(gate)
        inner, *down_grads = mlp.down.backward(active * up, down_low, grad)
        gate_grad = torch.ops.aten.silu_backward(inner * up, gate)
        x_grad, *gate_grads = mlp.gate.backward(x, gate_low, gate_grad)
        from_up, *up_grads = mlp.up.backward(x, up_low, inner * active)
        return (x_grad + from_up).to(ctx.dtype), None, *gate_grads, *up_grads, *down_grads


class _Attention:
    """In place of the forward pass of attention with rotary embeddings."""

    def __init__(self, attention: Any, quantiser: Callable[..., Channels]) -> None:
        self.module, self.run = attention, attention.forward
        self.q, self.k, self.v, self.o = (
            _Adapted(layer)
            for layer in (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
        )
        self.layers = (self.q, self.k, self.v, self.o)
        self.adapters = [one for layer in self.layers for one in (layer.a, layer.b)]
        self.x, self.vs, self.outs = quantiser(), quantiser(), quantiser()
        self.qs, self.ks = (quantiser(has_zero=True) for _ in range(2))

    def __call__(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: Any = None,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Any = None,
        **options: Any,
    ) -> tuple[torch.Tensor, None]:
        if not torch.is_grad_enabled():
            rest = position_embeddings, attention_mask, past_key_values
            return self.run(hidden_states, *rest, **options)
        if past_key_values is not None:
            raise ValueError("use_cache must be False in training, not True")
        attend = partial(self.attend, attention_mask=attention_mask, **options)
        return _AttentionFunction.apply(
            hidden_states, self, attend, *position_embeddings, *self.adapters
        ), None

    def attend(
        self, projected: list[torch.Tensor], cos: torch.Tensor, sin: torch.Tensor, **options: Any
    ) -> torch.Tensor:
        """Attention of q, k and v before RoPE, [batch, tokens, channels] each."""
        own, module = sys.modules[type(self.module).__module__], self.module
        heads = [one.unflatten(-1, (-1, module.head_dim)).transpose(1, 2) for one in projected]
        query, key = own.apply_rotary_pos_emb(heads[0], heads[1], cos, sin)
        run = own.ALL_ATTENTION_FUNCTIONS.get_interface(
            module.config._attn_implementation, own.eager_attention_forward
        )
        made, _ = run(module, query, key, heads[2], dropout=0.0, scaling=module.scaling, **options)
        return made.flatten(2).contiguous()


class _AttentionFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        attention: _Attention,
        attend: Callable[..., torch.Tensor],
        cos: torch.Tensor,
        sin: torch.Tensor,
        *adapters: torch.Tensor,
    ) -> torch.Tensor:
        wholes, mains, lows = zip(*(one.forward(x) for one in attention.layers[:3]), strict=True)
        mixed = attend(list(wholes), cos, sin)
        out, _, low = attention.o.forward(mixed)
        kept = _Kept(mixed.dtype)
        channels = attention.x, attention.qs, attention.ks, attention.vs, attention.outs
        for one, values in zip(channels, (x, *mains, mixed), strict=True):
            kept.add(one, values)
        ctx.save_for_backward(*kept.tensors, *lows, low, cos, sin, *adapters)
        kept.tensors, ctx.kept, ctx.attention, ctx.attend, ctx.dtype = [], kept, attention, attend, x.dtype
        kind = x.device.type
        ctx.autocast = torch.autocast(
            kind, torch.get_autocast_dtype(kind), enabled=torch.is_autocast_enabled(kind)
        )
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        attention = ctx.attention
        *saved, q_low, k_low, v_low, o_low, cos, sin = ctx.saved_tensors[: -len(attention.adapters)]
        x, *mains, mixed = ctx.kept.values(saved)
        inner, *o_grads = attention.o.backward(mixed, o_low, grad)
        lows = q_low, k_low, v_low
        with torch.enable_grad():
            wholes = [
                layer.whole(main, low).detach().requires_grad_()
                for layer, main, low in zip(attention.layers[:3], mains, lows, strict=True)
            ]
            with ctx.autocast:
                again = ctx.attend(wholes, cos, sin)
        x_grad, grads = torch.zeros_like(x), []
        own = torch.autograd.grad(again, wholes, inner.to(again.dtype))
        for layer, low, one in zip(attention.layers[:3], lows, own, strict=True):
            more, *adapter_grads = layer.backward(x, low, one)
            x_grad += more
            grads += adapter_grads
        return x_grad.to(ctx.dtype), None, None, None, None, *grads, *o_grads


class _Kept:
    """Quantised tensors of a Function, whose bytes go with ``save_for_backward``.

    Args:
        dtype: in which the backward pass computes.

    Attributes:
        tensors: of which a quantised one has two.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._places: list[tuple[Channels, _Scales, torch.Size]] = []
        self.tensors: list[torch.Tensor] = []

    def add(self, channels: Channels, x: torch.Tensor) -> None:
        kept, scales = channels.compress(x)
        self.tensors += kept
        self._places.append((channels, scales, x.shape))

    def values(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors again, of their bytes."""
        pairs = zip(tensors[::2], tensors[1::2], strict=True)
        return [
            channels.decompress(kept, scales, shape, self._dtype)
            for kept, (channels, scales, shape) in zip(pairs, self._places, strict=True)
        ]
