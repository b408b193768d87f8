"""Memory that kernels have for themselves while they run: what meta kernels say nothing of.

Only what grows with the tensors is here. Libraries for matrix products have scratch memory of their own: on a
CPU oneDNN takes up to 1.4 MB for a product of bf16 matrices, whatever their size.
"""

from __future__ import annotations

from typing import Any

import torch

from ..facts.operations import Operation

# They take operands of several types, and do not convert them first.
_MIXED = ("where", "_to_copy", "copy_", "lerp")


def temporary_bytes(op: Operation, args: Any, results: list[torch.Tensor]) -> int:
    """Bytes that PyTorch's kernel of an operation on a CPU allocates and frees again before it ends.

    Args:
        op: the operation.
        args: of it, without names.
        results: that it gives, on any device.
    """
    if op.is_pointwise and op.name not in _MIXED:
        return _converted(args)
    return 0


def _converted(args: Any) -> int:
    """What a kernel converts to the type that its operands have in common (``TensorIterator``)."""
    tensors = [one for one in args if isinstance(one, torch.Tensor) and one.dim()]
    if len({one.dtype for one in tensors}) < 2:
        return 0
    common = tensors[0].dtype
    for one in tensors[1:]:
        common = torch.promote_types(common, one.dtype)
    return sum(one.numel() * common.itemsize for one in tensors if one.dtype != common)
