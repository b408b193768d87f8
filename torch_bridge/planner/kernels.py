"""What kernels of a CPU do otherwise than meta kernels say, which go by CUDA's.

Kernels have memory for themselves while they run. Only what grows with the tensors is here: for a product of
bf16 matrices oneDNN takes up to 1.4 MB, whatever their size.
"""

from __future__ import annotations

from typing import Any

import torch

from ..facts.operations import Operation

# They take operands of several types, and do not convert them first.
_MIXED = ("where", "_to_copy", "copy_", "lerp")


def temporary_bytes(op: Operation, args: Any, written: Any = ()) -> int:
    """Bytes that an operation's kernel allocates and frees again before it ends.

    Args:
        written: operands that the result is written to; of another type it is there in both.
    """
    if op.is_pointwise and op.name not in _MIXED:
        return _converted(args, written)
    return 0


def results_of(op: Operation, args: Any, made: Any) -> Any:
    """What an operation gives on a CPU, from what the meta kernel says that it gives."""
    if op.name == "native_layer_norm":
        x, _, weight = args[:3]
        if weight is None or weight.dtype == x.dtype:  # of mixed types the statistics are in fp32
            return made[0], *(one.to(x.dtype) for one in made[1:])
    return made


def _converted(args: Any, written: Any) -> int:
    """What a kernel converts to the type that its operands have in common (``TensorIterator``)."""
    tensors = [one for one in args if isinstance(one, torch.Tensor) and one.dim()]
    if len({one.dtype for one in tensors}) < 2:
        return 0
    common = tensors[0].dtype
    for one in tensors[1:]:
        common = torch.promote_types(common, one.dtype)
    return sum(one.numel() * common.itemsize for one in (*tensors, *written) if one.dtype != common)
