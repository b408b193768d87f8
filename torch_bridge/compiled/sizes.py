"""Sizes of tensors whose shapes may change from step to step."""

from __future__ import annotations

from typing import Any

import torch

from ..facts.geometry import Geometry

# Another size of every dimension that changes: no multiple of what hidden sizes are.
_OTHER = 7


def is_static(value: torch.Tensor) -> bool:
    """Whether a tensor has the same sizes and strides in every step."""
    return not any(isinstance(one, torch.SymInt) for one in (*value.shape, *value.stride()))


def hinted(value: torch.Tensor) -> Geometry:
    """Where a tensor lies in its memory in the first step."""
    return _geometry(value, _hint)


def otherwise(value: torch.Tensor) -> Geometry:
    """Where it would lie if all that changes were larger."""
    return _geometry(value, _other)


def _geometry(value: torch.Tensor, number: Any) -> Geometry:
    size = tuple(number(one) for one in value.shape)
    stride = tuple(number(one) for one in value.stride())
    return Geometry(size, stride, number(value.storage_offset()))


def _hint(size: Any) -> int:
    if not isinstance(size, torch.SymInt):
        return int(size)
    hint = size.node.hint
    return int(hint) if hint is not None else 1


def _other(size: Any) -> int:
    if not isinstance(size, torch.SymInt):
        return int(size)
    expression, known = size.node.expr, _values_of(size.node.shape_env)
    return int(expression.subs({one: int(known.get(one, 1)) * _OTHER for one in expression.free_symbols}))


def _values_of(shapes: Any) -> Any:
    """Values of symbols in the first step; torch 2.9 has another name for them."""
    found = getattr(shapes, "backed_var_to_val", None)
    return shapes.var_to_val if found is None else found
