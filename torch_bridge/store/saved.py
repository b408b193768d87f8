"""A tensor that autograd saves, while it waits for what becomes of it, and after."""

from __future__ import annotations

import torch

from ..facts.geometry import Geometry
from ..facts.need import Exact as NeedsExact
from ..facts.need import Need
from ..facts.operations import Operation
from ..facts.origin import Origin
from .entries import Exact, Packed


class Saved:
    """A tensor as autograd saves it, and what autograd holds for it.

    Args:
        tensor: as the pack hook is given it; held until it is kept.
        values: the tensor without its history; it counts versions with the tensor.
        origin: what is known of its storage.
        module: in whose forward pass it was saved.
        number: of the node that saves it, as autograd counts.
        function: the name of the ``autograd.Function`` that saves it, "" if none does.

    Attributes:
        requires_grad: whether a gradient is wanted of it.
        geometry: how it lies in its storage, once it was decided what becomes of it.
        result_of: the operation that made it just now and whose own node saves it, None if there is none.
        needs: what that needs of its results, by their places.
        squared: operation and slot if that made its square, and whether it is a table: it waits for what is
            done with the square then.
        square: what is known of the square, once that was summed.
        packed: what it became.
    """

    __slots__ = (
        *("function", "geometry", "module", "needs", "number", "origin", "packed"),
        *("requires_grad", "result_of", "square", "squared", "tensor", "values"),
    )

    def __init__(
        self,
        tensor: torch.Tensor,
        values: torch.Tensor,
        origin: Origin,
        module: str,
        number: int,
        function: str,
    ) -> None:
        self.tensor: torch.Tensor | None = tensor
        self.values: torch.Tensor | None = values
        self.origin, self.module, self.number, self.function = origin, module, number, function
        self.requires_grad = tensor.requires_grad
        self.geometry: Geometry
        self.result_of: Operation | None = None
        self.needs: dict[int, Need | NeedsExact | None]
        self.squared: tuple[str, str, bool] | None = None
        self.square: Origin | None = None
        self.packed: Exact | Packed | None = None

    def become(self, packed: Exact | Packed) -> None:
        """It is kept: the tensor is not needed any more."""
        self.packed = packed
        self.tensor = self.values = None

    @property
    def op(self) -> str:
        """The operation that made it, "" if nothing says which, while it is not kept."""
        assert self.tensor is not None
        return self.origin.op or node_of(self.tensor)

    @property
    def parameter(self) -> torch.Tensor | None:
        """The tensor itself, if it is a parameter that was not kept yet."""
        tensor = self.tensor
        return tensor if isinstance(tensor, torch.nn.Parameter) and tensor.is_leaf else None


def node_of(tensor: torch.Tensor) -> str:
    """What autograd calls the operation that made a tensor, "" without one."""
    return tensor.grad_fn.name() if tensor.grad_fn else ""
