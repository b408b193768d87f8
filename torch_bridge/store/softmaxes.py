"""What a stored softmax has to bear: its own backward pass, and a logarithm that is taken of it later."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..facts.geometry import Geometry
from ..facts.origin import Operand, Origin

# How far sums of rows are from one that are not, in fp16 and bf16 too.
_FAR_FROM_ONE = 0.1
_SOFTMAXES = ("_softmax", "_safe_softmax")
_INVERSES: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "add": torch.sub,
    "sub": torch.add,
    "mul": torch.div,
    "div": torch.mul,
}


def amplification(softmax: torch.Tensor) -> torch.Tensor:
    """How much larger the relative error of its gradient is than its own, for a device to know: a number.

    The gradient of logits is ``p * (g - sum(p * g))``: small where a row is nearly all in one place, whatever
    the error of ``p`` is. The squares of both are taken for ``g`` of random signs, with the largest value
    of a row for all that count, and of the head where their ratio is largest.
    Infinite where rows do not sum to one, as of a softmax over another dimension than the last.

    Args:
        softmax: of any shape; of four dimensions the second one counts heads.
    """
    squares = torch.linalg.vector_norm(softmax, dim=-1).float().square()
    error = squares * (1 + squares)
    true = squares * (1 - 2 * softmax.amax(-1).float() + squares)
    sums = softmax.sum(-1, dtype=torch.float32)
    true = torch.where(((sums - 1).abs() < _FAR_FROM_ONE) | (squares == 0), true, -torch.inf)
    heads = (0, 2) if softmax.dim() == 4 else -1
    error, true = error.sum(heads), true.sum(heads)
    return torch.where(error == 0, 0, error / true.clamp(min=0)).max().sqrt()


def softmax_behind(origin: Origin, tensor: torch.Tensor) -> tuple[Operand, torch.Tensor] | None:
    """A softmax of which numbers made a tensor that fills its storage, and its values; None if none did.

    As of ``(x.softmax(-1) + 1e-8).log()``. The softmax is stored before anyone knows that. The logarithm's
    gradient is divided by its small values, which few bits lose. When the argument of the logarithm is saved,
    the softmax is mostly gone: it is what is left of the argument when the number is taken away again.
    """
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
