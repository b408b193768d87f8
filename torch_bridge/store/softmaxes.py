"""A softmax whose logarithm is taken of it and a number: ``(x.softmax(-1) + 1e-8).log()``.

The softmax is stored before anyone knows that. The logarithm's gradient is divided by its small values, which
few bits lose. When the argument of the logarithm is saved, the softmax is mostly gone: it is what is left of
the argument when the number is taken away again.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..facts.geometry import Geometry
from ..facts.origin import Operand, Origin

_SOFTMAXES = ("_softmax", "_safe_softmax")
_INVERSES: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "add": torch.sub,
    "sub": torch.add,
    "mul": torch.div,
    "div": torch.mul,
}


def softmax_behind(origin: Origin, tensor: torch.Tensor) -> tuple[Operand, torch.Tensor] | None:
    """A softmax of which numbers made a tensor that fills its storage, and its values; None if none did."""
    values = tensor
    while (recipe := origin.recipe) is not None and origin.op in _INVERSES:
        operand, number = recipe.args[0], recipe.args[-1]
        is_plain = type(operand) is Operand and isinstance(number, (int, float)) and not recipe.kwargs
        if not is_plain or not number or not _lies_like(operand.geometry, tensor):
            return None
        values = _INVERSES[origin.op](values, number)
        origin = operand.origin
        if origin.op in _SOFTMAXES:
            return operand, values
    return None


def _lies_like(geometry: Geometry, tensor: torch.Tensor) -> bool:
    return geometry is Geometry.of(tensor) and not geometry.offset
