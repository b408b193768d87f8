"""Matrix products that can be done again in the backward pass, and how many operations a step has.

A product is done by the same kernel with the same sizes and strides, so that the same arguments give the same
bits. A small error of one of its tensors stays a small one: what a linear layer puts out has about the
relative error of what it is given.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from .recompute import Recomputation

_ATEN = torch.ops.aten

# Of a wide product: values that it puts out for each that it is given, as a language model's head does, and
# the least that it is given. Low ranks are not meant, whose results nobody saves.
WIDE, _LEAST_INNER = 8, 64


def _again(operation: Any, factors: tuple[int, int], fits: Any = None) -> Recomputation:
    def compute(is_exact: bool, *args: Any, **kwargs: Any) -> torch.Tensor:
        return operation(*args, **kwargs)

    return Recomputation(compute, fits, factors=factors)


# What linear layers and matmul become, and einsum of what they do. Other batches of products are attention's.
PRODUCTS: dict[Any, Recomputation] = {
    _ATEN.mm.default: _again(_ATEN.mm.default, (0, 1)),
    _ATEN.addmm.default: _again(_ATEN.addmm.default, (1, 2)),
    _ATEN.bmm.default: _again(_ATEN.bmm.default, (0, 1), lambda args: args[0].shape[0] == 1),
}


def inner_of(way: Recomputation, args: tuple[Any, ...]) -> int:
    """How many products are summed for a value of a matrix product; 0 of other operations."""
    return int(args[way.factors[0]].shape[-1]) if way.factors is not None else 0


def is_wide(inner: int, columns: int) -> bool:
    """Whether a product puts out many values for each that it is given."""
    return columns >= WIDE * inner >= WIDE * _LEAST_INNER


def wide_input(way: Recomputation | None, args: tuple[Any, ...]) -> int:
    """The place of what a wide product is given among its arguments, -1 of all other operations."""
    if way is None or way.factors is None or (way.fits is not None and not way.fits(args)):
        return -1
    place, other = way.factors
    return place if is_wide(inner_of(way, args), args[other].shape[-1]) else -1


@cache
def _formulas() -> dict[Any, Any]:
    from torch.utils.flop_counter import flop_registry, sdpa_flop_count

    def attention(query: Any, key: Any, value: Any, *args: Any, out_val: Any = None, **kwargs: Any) -> int:
        return int(sdpa_flop_count(query.shape, key.shape, value.shape))

    return {**flop_registry, _ATEN._scaled_dot_product_flash_attention_for_cpu: attention}


def flops_of_step(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """Floating-point operations of products and attention, and of their backward passes; 0 of all else.

    For each factor that needs a gradient the backward pass has a product as large as that of the forward
    pass; attention has two such pairs.
    """
    formula = _formulas().get(getattr(func, "overloadpacket", None))
    if formula is None:
        return 0
    forward = int(formula(*args, **kwargs, out_val=result))
    if not torch.is_grad_enabled():
        return forward
    tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor) and one.dim() > 1]
    return forward * (1 + min(2, sum(one.requires_grad for one in tensors)))
