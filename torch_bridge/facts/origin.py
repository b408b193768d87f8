"""What is known of a storage: what wrote it, how it could be computed anew, and what is stored of it.

An ``Origin`` describes one state of a storage, from one write to the next, and hangs on the storage
itself: it goes when the storage does, and no address is ever mistaken for another's.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from .geometry import Geometry, Region, geometry_of
from .recompute import Recipe

# Recorded operations in a row, until how the first was given its arguments is forgotten.
LONGEST = 12


class Origin:
    """What is known of one state of one storage.

    Attributes:
        step: of the watch that noted it; to another step it says nothing.
        op: name of the operation that wrote it, without namespace, "" if not seen; with its number if it is
            not the first output: "native_layer_norm.1".
        constant: "parameter" or "buffer", or "parameter copy" or "buffer copy", or that its owner empties and
            refills it, or "".
        is_statistic: whether it has one value for a row of another tensor: a mean, a norm, a loss.
        storage: a weak reference to it.
        parameter: a weak reference to the tensor, if it is a parameter that was there before, has the storage
            for itself, and was not gathered by FSDP.
        function: the number of the ``autograd.Function``'s node that gave it, -1 if none did.
        recipe: how it was made, if that is known and can be done again.
        sources: what is stored of it, one for each version and dtype, which they name.
    """

    __slots__ = (
        *(
            "__weakref__",
            "constant",
            "function",
            "is_statistic",
            "op",
            "parameter",
            "recipe",
            "sources",
            "step",
            "storage",
        ),
    )

    def __init__(self, step: object, storage: torch.UntypedStorage, op: str = "", constant: str = "") -> None:
        self.step, self.storage, self.op, self.constant = step, weakref.ref(storage), op, constant
        self.is_statistic = False
        self.function = -1
        self.parameter: weakref.ref[torch.Tensor] | None = None
        self.recipe: Recipe | None = None
        self.sources: tuple[Any, ...] = ()  # mostly one: a dict of it is two objects more

    def source(self, version: int, dtype: torch.dtype) -> Any:
        """What is stored of it as a tensor of that version and dtype has it, None if there is nothing."""
        for source in self.sources:
            if source.version == version and source.dtype is dtype:
                return source
        return None

    def forget_recipe(self, stored: Region) -> None:
        """A region is stored: if it is all of the storage, what it was made of is not needed any more."""
        if self.recipe is not None and self.recipe.geometry.region.is_within(stored):
            self.recipe = None


class Operand:
    """What an operation was given: a tensor, told by a state of its storage and where it lies in it.

    Attributes:
        origin: of the storage, as it was then.
        version: of the tensor then.
        dtype: of the tensor.
    """

    __slots__ = ("_lies", "dtype", "origin", "version")

    def __init__(self, origin: Origin, tensor: torch.Tensor) -> None:
        self.origin, self.version, self.dtype = origin, tensor._version, tensor.dtype
        self._lies = tensor.shape, tensor.stride(), tensor.storage_offset()

    @property
    def geometry(self) -> Geometry:
        """Of the tensor; few are asked for it."""
        return geometry_of(*self._lies)


def note_recipe(origin: Origin, recipe: Recipe, operands: list[Operand]) -> None:
    """Note how a storage was filled; of operations too many in a row the first are forgotten."""
    for operand in operands:
        if (other := operand.origin.recipe) is not None:
            if recipe.length + other.length > LONGEST:
                operand.origin.recipe = None
            else:
                recipe.length += other.length
    origin.recipe = recipe
