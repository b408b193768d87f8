"""CompAct: linear layers that keep a random projection of their input, and an AdamW for them.

After Shamshoum et al., "CompAct: Compressed Activations for Memory-Efficient LLM Training" (arXiv
2410.15352). Of a layer ``o = x Wᵀ`` with ``W`` of m x n the backward pass needs ``x``, tokens x n, for the
gradient of the weight alone. The layer keeps ``z = x P`` instead, with ``P`` of n x r and entries
N(0, 1/r), so that ``E[P Pᵀ] = I``:

==================  ====================  =============================
                    plain                 CompAct
==================  ====================  =============================
output              ``x Wᵀ``              the same
kept                ``x``, tokens x n     ``z = x P``, tokens x r
gradient of ``x``   ``dO W``              the same
gradient            ``dOᵀ x``, m x n      ``dOᵀ z = (dOᵀ x) P``, m x r
moments             2 m x n               2 m x r
step                ``W += S``            ``W += scale S Pᵀ``
==================  ====================  =============================

``P`` is drawn anew from a seed wherever it is needed and never kept. After every ``period`` steps the seed is
another, and so is the subspace; the moments stay what they are.
"""

from __future__ import annotations

import reprlib
import weakref
from collections import defaultdict
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import torch
from torch import nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn.functional import linear

from .linear import conv1d, weight_of

# All but the attention's output projection, as in the paper: of LLaMA, GPT-2, BERT and T5.
NAMES = (
    *("*q_proj", "*k_proj", "*v_proj", "*gate_proj", "*up_proj", "*down_proj"),
    *("*.c_attn", "*.mlp.c_fc", "*.mlp.c_proj"),
    *("*.self.query", "*.self.key", "*.self.value", "*.intermediate.dense", "*.layer.[0-9].output.dense"),
    *("*.layer.[0-9][0-9].output.dense", "*Attention.[qkv]", "*.DenseReluDense.w[io]*"),
)


def convert(
    model: nn.Module,
    rank: float = 1 / 4,
    *,
    names: str | Sequence[str] = NAMES,
    seed: int = 0,
    shared: bool = True,
) -> list[str]:
    """Make linear layers keep projections of their inputs, in place.

    Each ``nn.Linear`` that is converted becomes a ``CompActLinear``, and each ``Conv1D``, of which
    transformers makes its GPT-2, a ``CompActConv1D``. Its ``weight`` gets no gradient any more; a
    parameter ``subspace`` beside it does, and that is what is clipped and what DDP reduces. It takes
    ``CompActAdamW`` to train the weight; other optimizers leave it as it is. The model's ``state_dict``
    stays that of the plain model. Convert before the model is wrapped for DDP, and with the same seed on
    all ranks, whose devices must be of one kind.

    Layers of one parent module with inputs of one width share their projection; those that are called with
    the same tensor (q, k and v, or gate and up) share what they keep, too. In the paper each layer has a
    projection of its own, which keeps more: of the input of q, k and v three times the rank, and not once.

    Args:
        model: whose layers to convert.
        rank: a share of each layer's input width, up to 1.0, or an int, which is the rank itself.
        names: shell patterns, or one; a layer is converted if its name fits one of them, if it is of one of
            these classes and no subclass, and if its weight is trained.
        seed: of all projections, 0 or more; each has one of its own, from it and the parent's name.
        shared: False for a projection of each layer's own, as in the paper.

    Returns:
        The names of the layers that were converted.

    Raises:
        ValueError: the model is none; the rank is not one of any matrix, or too large for a layer; the seed
            is negative; a weight belongs to two modules; no layer fits.

    Examples:
        >>> model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 10))
        >>> convert(model, rank=1 / 8, names=["*"])
        ['0', '2']
        >>> optimizer = CompActAdamW(model, lr=1e-3)
        >>> model(torch.randn(32, 64)).square().mean().backward()
        >>> model[0].weight.grad is None, model[0].subspace.grad.shape
        (True, torch.Size([128, 8]))
        >>> optimizer.step()
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"model must be a torch.nn.Module, not {reprlib.repr(model)}")
    if seed < 0:
        raise ValueError(f"seed must not be negative, not {seed!r}")
    patterns = [names] if isinstance(names, str) else names
    classes = _classes()
    layers = {
        name: layer
        for name, layer in model.named_modules()
        if type(layer) in classes
        and any(fnmatchcase(name, pattern) for pattern in patterns)
        and layer.weight.is_leaf
        and layer.weight.requires_grad
    }
    if not layers:
        raise ValueError(f"names must fit a linear layer that is trained, not {names!r}")
    _check_untied(model, layers)
    widths = {name: weight_of(layer).shape[1] for name, layer in layers.items()}
    ranks = {name: _rank(rank, widths[name], name) for name in layers}
    projections: dict[tuple[str, int], Projection] = {}
    for name, layer in layers.items():
        owner, width = name.rpartition(".")[0] if shared else name, widths[name]
        if (key := (owner, width)) not in projections:
            projections[key] = Projection(width, ranks[name], (seed, crc32(owner.encode()), width))
        layer.__class__ = classes[type(layer)]
        assert isinstance(layer, CompActLayer)
        layer._enter(projections[key])
    return list(layers)


class CompActLayer(nn.Module):
    """A linear layer whose weight moves in a subspace; made by ``convert``, not by hand.

    Attributes:
        weight: without a gradient.
        subspace: [out_features, rank], of the weight's dtype. The layer computes ``x (W + S Pᵀ)ᵀ`` for an
            ``S`` that is zero, so that what autograd finds here is the gradient of the weight times ``P``.
            It is zero outside of the optimizer's step, and from the first step on one zero, expanded, that
            takes no memory. It is no part of the ``state_dict``.
        projection: what draws ``P``; other layers may share it.
    """

    weight: Any  # the plain layers' types differ
    bias: Any
    subspace: nn.Parameter
    projection: Projection

    def _enter(self, projection: Projection) -> None:
        self.projection = projection
        # Of its full size until the first step: DDP writes to it when the model is wrapped.
        self.subspace = nn.Parameter(self.weight.new_zeros(len(weight_of(self)), projection.rank))
        self.weight.requires_grad_(False)
        self.weight.grad = None

    def _leave_zero(self) -> None:
        """Make the subspace zero in the memory of one value; what is sharded keeps its memory."""
        if hasattr(self.subspace, "to_local"):
            self.subspace.data.zero_()
        else:
            self.subspace.data = self.subspace.new_zeros(()).expand(self.subspace.shape)

    def _give_memory(self) -> None:
        """Make the subspace one that can be written to."""
        if 0 in self.subspace.stride():
            self.subspace.data = self.subspace.new_zeros(self.subspace.shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """float[..., in_features] -> float[..., out_features], what the plain layer computes, bit for bit."""
        if not (torch.is_grad_enabled() and self.subspace.requires_grad):
            return super().forward(x)
        return CompActLinearFunction.apply(
            x, self.projection.project(x), weight_of(self), self.bias, self.subspace
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, rank={self.projection.rank}"

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        del destination[prefix + "subspace"]

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, metadata: Any, strict: bool, missing: list[str], *others: Any
    ) -> None:
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, *others)
        if (name := prefix + "subspace") in missing:
            missing.remove(name)


class CompActLinear(CompActLayer, nn.Linear):
    """An ``nn.Linear`` whose weight, [out_features, in_features], moves in a subspace."""


class Projection:
    """Draws the ``P`` of one or several layers, and projects what they are given.

    Args:
        width, rank: of ``P``, which is width x rank.
        seed: integers that no other projection of the model has.

    Attributes:
        number: how many matrices came before this one; each has a seed of its own.
    """

    def __init__(self, width: int, rank: int, seed: tuple[int, ...]) -> None:
        self.width, self.rank, self.number = width, rank, 0
        self._seed = seed
        self._last: _Projected | None = None

    def matrix(self, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """``P``, float[width, rank] of entries N(0, 1/rank); the same on all devices of one kind."""
        seed = np.random.SeedSequence([*self._seed, self.number]).generate_state(1, np.uint64)
        generator = torch.Generator(device).manual_seed(int(seed[0]))
        normal = torch.randn(self.width, self.rank, generator=generator, device=device)
        return normal.mul_(self.rank**-0.5).to(dtype)

    @torch.no_grad()
    def project(self, x: torch.Tensor) -> torch.Tensor:
        """``x P``: float[..., width] -> float[..., rank], in the dtype in which a layer computes.

        The same tensor gives the same result, not a copy, for as long as it is alive and unchanged.
        """
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        state = (x._version, dtype, self.number)
        if (last := self._last) is not None and last.source() is x and last.state == state:
            return last.z
        with torch.autocast(kind, enabled=False):
            z = x.to(dtype) @ self.matrix(dtype, x.device)
        self._last = _Projected(weakref.ref(x, self._forget), state, z)
        return z

    def _forget(self, source: weakref.ref[torch.Tensor]) -> None:
        if self._last is not None and self._last.source is source:
            self._last = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_last": None}


class _Projected(NamedTuple):
    """A result and what it was made of: told by the object, for an address may be used again."""

    source: weakref.ref[torch.Tensor]
    state: tuple[int, torch.dtype, int]
    z: torch.Tensor


class CompActLinearFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx,
        x: torch.Tensor,
        z: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        subspace: torch.Tensor,
    ) -> torch.Tensor:
        ctx.save_for_backward(z, weight)
        return linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        z, weight = ctx.saved_tensors
        shape, grad = grad.shape, grad.reshape(-1, grad.shape[-1])
        x_grad = bias_grad = subspace_grad = None
        # Under autocast grad is narrower than the parameters; autograd casts what is returned to their dtype.
        if ctx.needs_input_grad[0]:
            x_grad = (grad @ weight.to(grad.dtype)).view(*shape[:-1], weight.shape[1])
        if ctx.needs_input_grad[3]:
            bias_grad = grad.sum(0)
        if ctx.needs_input_grad[4]:
            subspace_grad = grad.T @ z.reshape(-1, z.shape[-1]).to(grad.dtype)
        return x_grad, None, None, bias_grad, subspace_grad


class CompActAdamW(torch.optim.AdamW):
    """AdamW that moves converted weights in their subspaces, and is ``torch.optim.AdamW`` for all others.

    Of a converted layer its ``subspace`` is what AdamW steps, with moments of out_features x rank; then the
    step goes into the weight and ``subspace`` is zero again. Weight decay is that of the whole weight.
    Schedulers, ``GradScaler``, clipping and accumulation over several backward passes work as with AdamW.

    ``state_dict`` has what the projections need: with it and the model's, training goes on as if it had
    not stopped.

    Args:
        model: its converted layers; wrapped by DDP or not.
        params: parameters or groups of them, as of AdamW; None for all of the model that are trained. A
            converted layer is trained if its ``subspace`` is in it.
        lr, betas, eps, weight_decay, amsgrad, foreach: as of AdamW.
        scale: of a converted weight's step; a group may have its own.
        period: steps between one projection and the next.

    Raises:
        ValueError: period is not positive, or the model has no converted layers, or AdamW refuses an option.
    """

    def __init__(
        self,
        model: nn.Module,
        params: Iterable[Any] | None = None,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        scale: float = 1.0,
        period: int = 200,
        amsgrad: bool = False,
        foreach: bool | None = None,
    ) -> None:
        if period < 1:
            raise ValueError(f"period must be positive, not {period!r}")
        layers = [layer for layer in model.modules() if isinstance(layer, CompActLayer)]
        if not layers:
            raise ValueError("model must have converted layers, not none")
        if params is None:
            params = [parameter for parameter in model.parameters() if parameter.requires_grad]
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, foreach=foreach)
        self._layers = {id(layer.subspace): layer for layer in layers}
        own = {"scale": scale, "period": period, "steps": 0}
        self.defaults |= own
        for group in self.param_groups:
            group.update({key: group.get(key, value) for key, value in own.items()})
        self.register_step_pre_hook(CompActAdamW._before_step)
        self.register_step_post_hook(CompActAdamW._after_step)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As of AdamW; the projections of the model become those of that time, too."""
        super().load_state_dict(state_dict)
        self._number_projections()

    def _before_step(self, *_: Any) -> None:
        """Give the subspaces their memory; which of them make a step, a closure may say only later."""
        for layer in self._stepped():
            layer._give_memory()

    def _after_step(self, *_: Any) -> None:
        """Move the weights, and the projections by a step."""
        with torch.no_grad():
            for projection, pairs in self._by_projection().items():
                self._move(projection, pairs)
            for layer in self._stepped():
                layer._leave_zero()
        for group in self.param_groups:
            group["steps"] += 1
        self._number_projections()

    def _stepped(self) -> list[CompActLayer]:
        """The layers in its groups."""
        parameters = (parameter for group in self.param_groups for parameter in group["params"])
        return [self._layers[id(parameter)] for parameter in parameters if id(parameter) in self._layers]

    def _by_projection(self) -> dict[Projection, list[tuple[CompActLayer, dict[str, Any]]]]:
        """The layers that have made a step, with their groups."""
        found = defaultdict(list)
        for group in self.param_groups:
            for parameter in group["params"]:
                if (layer := self._layers.get(id(parameter))) is not None and parameter.grad is not None:
                    found[layer.projection].append((layer, group))
        return found

    @staticmethod
    def _move(projection: Projection, pairs: list[tuple[CompActLayer, dict[str, Any]]]) -> None:
        """Add the steps of layers with one projection to their weights."""
        matrix = projection.matrix(torch.float32, pairs[0][0].weight.device)
        for layer, group in pairs:
            decay = 1 - float(group["lr"]) * group["weight_decay"]
            transposed = matrix.T.to(layer.weight.device, layer.weight.dtype)
            weight_of(layer).addmm_(layer.subspace, transposed, beta=decay, alpha=group["scale"])

    def _number_projections(self) -> None:
        number = self.param_groups[0]["steps"] // self.param_groups[0]["period"]
        for layer in self._layers.values():
            layer.projection.number = number


def _classes() -> dict[type[nn.Module], type[CompActLayer]]:
    """What becomes what."""
    classes: dict[type[nn.Module], type[CompActLayer]] = {nn.Linear: CompActLinear}
    if (kind := conv1d()) is not None:
        classes[kind] = _of_conv1d(kind)
    return classes


@cache
def _of_conv1d(kind: Any) -> type[CompActLayer]:
    class CompActConv1D(CompActLayer, kind):
        """A ``Conv1D`` whose weight, [in_features, out_features], moves in a subspace."""

    return CompActConv1D


def _rank(rank: float, width: int, name: str) -> int:
    """The rank for a layer with inputs of this width."""
    if isinstance(rank, float) and 0 < rank <= 1:
        return max(1, round(rank * width))
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        raise ValueError(f"rank must be a share up to 1.0 or an int from 1, not {rank!r}")
    if rank > width:
        raise ValueError(f"rank must be at most {width}, the width of {name}'s input, not {rank!r}")
    return rank


def _check_untied(model: nn.Module, layers: dict[str, nn.Module]) -> None:
    """Raise ValueError if another module has the weight of one of the layers."""
    owners = {id(layer.weight): (name, layer) for name, layer in layers.items()}
    for other, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            name, layer = owners.get(id(parameter), (other, module))
            if layer is not module:
                raise ValueError(f"the weight of {name} must be its own, not that of {other} as well")
