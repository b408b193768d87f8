"""What a training step writes to memory in its forward pass and reads back in its backward pass."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Norm statistics and log-sum-exps are smaller: they stay as they are.
_LEAST = 1 << 16  # bytes
# The loss's gradient is the softmax itself, so that an error there is an error of every gradient.
_EXACT = "LogSoftmaxBackward0"


@dataclass(frozen=True)
class Tensor:
    """A saved tensor.

    Attributes:
        values: its bytes, uint8[size].
        exact: whether no engine compresses it with loss.
    """

    values: np.ndarray
    exact: bool

    @property
    def size(self) -> int:
        return len(self.values)


class Access(NamedTuple):
    """A whole tensor written or read."""

    tensor: int
    writes: bool


@dataclass(frozen=True)
class Step:
    """A step's saved tensors, in the order in which they were saved, and its accesses to them.

    Attributes:
        parameters: bytes of each of the model, none of which are among the tensors.
    """

    tensors: list[Tensor]
    accesses: list[Access]
    parameters: list[int]

    @property
    def saved_bytes(self) -> int:
        return sum(tensor.size for tensor in self.tensors)

    @property
    def moved_bytes(self) -> int:
        """Both ways."""
        return sum(self.tensors[access.tensor].size for access in self.accesses)


def record(model: torch.nn.Module, forward: Callable[[], torch.Tensor]) -> Step:
    """Run a forward and a backward pass, and record what autograd saves and takes back.

    A tensor is written once, when it is saved first, whatever saves it again: in memory there is one. It is
    read each time that the backward pass asks for it. Views of one that are asked for together, as queries,
    keys and values are, are one read. Parameters and buffers are left out, and what is not a float.

    Args:
        model: whose parameters and buffers are left out.
        forward: computes the loss.
    """
    owned = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
    tensors: list[Tensor] = []
    accesses: list[Access] = []
    seen: dict[tuple[Hashable, ...], int] = {}

    def pack(tensor: torch.Tensor) -> tuple[torch.Tensor, int | None]:
        kept = tensor.detach()
        storage = tensor.untyped_storage()
        if tensor.dtype not in _DTYPES or storage._cdata in owned or not tensor.numel():
            return kept, None
        # A view of what was saved before is in memory already; ``kept`` keeps that and its address alive.
        key = storage._cdata, tensor._version, tensor.dtype, storage.nbytes()
        if key not in seen:
            seen[key] = len(tensors)
            octets = torch.empty(0, dtype=torch.uint8).set_(storage).numpy().copy()
            exact = len(octets) < _LEAST or (tensor.grad_fn is not None and tensor.grad_fn.name() == _EXACT)
            tensors.append(Tensor(octets, exact))
            accesses.append(Access(seen[key], True))
        return kept, seen[key]

    def unpack(packed: tuple[torch.Tensor, int | None]) -> torch.Tensor:
        tensor, number = packed
        if number is not None and accesses[-1] != Access(number, False):
            accesses.append(Access(number, False))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        loss = forward()
    loss.backward()
    return Step(tensors, accesses, [parameter.nbytes for parameter in model.parameters()])
