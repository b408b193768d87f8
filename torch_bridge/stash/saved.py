"""What autograd saves, as the pack hook is given it, and what it holds until that is settled."""

from __future__ import annotations

from functools import cache

import torch

from .entries import Packed, Raw
from .origin import Origin


class Saved:
    """A tensor as autograd saves it.

    Attributes:
        values: the tensor without its history; it counts versions with the tensor.
        origin: what is known of its storage.
        module: in whose forward pass it was saved.
    """

    __slots__ = ("_tensor", "module", "origin", "values")

    def __init__(self, tensor: torch.Tensor, values: torch.Tensor, origin: Origin, module: str) -> None:
        self._tensor, self.values, self.origin, self.module = tensor, values, origin, module

    @property
    def requires_grad(self) -> bool:
        return self._tensor.requires_grad

    @property
    def op(self) -> str:
        """The operation that made it, "" if nothing says which."""
        return self.origin.op or node_of(self._tensor)

    @property
    def name(self) -> str:
        """What an error calls it."""
        op, shape = self.op, " x ".join(map(str, self.values.shape)) or "scalar"
        return f"{op + ', ' if op else ''}{shape}, {name_of(self.values.dtype)}"


class Sharded:
    """What autograd holds for a DTensor: what became of its local part, and how to wrap that again."""

    __slots__ = ("_kind", "_parts", "_rest", "_size", "_stride", "packed")

    def __init__(self, tensor: torch.Tensor, packed: Raw | Packed | Waiting) -> None:
        self.packed, self._kind = packed, type(tensor)
        names, self._rest = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
        self._parts = {name: getattr(tensor, name) for name in names if name != "_local_tensor"}
        self._size, self._stride = tensor.shape, tensor.stride()

    def wrap(self, local: torch.Tensor) -> torch.Tensor:
        """The DTensor of a local part."""
        parts = self._parts | {"_local_tensor": local}
        return self._kind.__tensor_unflatten__(parts, self._rest, self._size, self._stride)  # type: ignore


class Waiting:
    """What autograd holds for a tensor until it is known which operation saves it.

    Attributes:
        saved: until then.
        packed: what it became.
    """

    __slots__ = ("packed", "saved")

    def __init__(self, saved: Saved) -> None:
        self.saved: Saved | None = saved
        self.packed: Raw | Packed | None = None


def node_of(tensor: torch.Tensor) -> str:
    """What autograd calls the operation that made a tensor, "" without one."""
    return tensor.grad_fn.name() if tensor.grad_fn else ""


@cache
def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
