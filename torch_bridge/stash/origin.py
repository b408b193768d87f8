"""What is known of a storage: what wrote it, how it could be made anew, and what is stashed of it.

A storage is known by its ``StorageImpl``, and a weak reference is kept to it: while that is held no other
storage can have the same address, so a freed and reused address is never mistaken for the old tensor.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .entries import Source
from .layout import Geometry, Region
from .storages import StorageRef

# Recorded operations in a row, until how the first was given its arguments is forgotten.
LONGEST = 12

# From whether all tensors are exact, and an operation's arguments, one of its results.
Compute = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Operation:
    """An operation of which a result can be computed anew.

    Attributes:
        compute: that result, from whether all tensors are exact, and the operation's arguments.
        fits: whether it holds for these arguments.
        takes: places of the arguments that it is computed from; all if None.
        results: places of further results that it is computed from; they are arguments behind the others.
        makes: place of the result.
        takes_out: whether ``compute`` can be given memory to write to, as ``out``.
        is_light: whether it takes no longer than to read and write its tensors.
        may_cancel: whether its result may be small beside what it is computed from.
        saturates: whether its result nears an end and never passes it.
        for_its_node: whether that is done for the operation's own node in the graph alone, all results of
            what this holds of the arguments. ``compute`` is given a :class:`Node` then, as "node".
    """

    compute: Compute
    fits: Callable[[tuple[Any, ...]], bool] | None = None
    takes: tuple[int, ...] | None = None
    results: tuple[int, ...] = ()
    makes: int = 0
    takes_out: bool = False
    is_light: bool = False
    may_cancel: bool = False
    saturates: bool = False
    for_its_node: bool = False


class Origin:
    """What is known of one state of one storage: from one write to the next.

    Attributes:
        op: name of the operation that wrote it, without namespace, "" if not seen; with its number if it is
            not the first output: "native_layer_norm.1".
        constant: "parameter" or "buffer", or "parameter copy" or "buffer copy", or None.
        writes: in-place operations seen on the storage. Unlike ``Tensor._version`` this counts writes through
            ``.data`` and other tensors that share the memory and not the version counter.
        storage: a weak reference to it.
        parameter: the tensor, if it is a parameter that was there before, has the storage for itself, and was
            not gathered by FSDP.
        recipe: how it was made, if that is known and can be done again.
        sources: what was stashed of it, by version and dtype.
    """

    __slots__ = ("constant", "op", "parameter", "recipe", "sources", "storage", "writes")

    def __init__(
        self, storage: StorageRef, op: str = "", constant: str | None = None, writes: int = 0
    ) -> None:
        self.storage, self.op, self.constant, self.writes = storage, op, constant, writes
        self.parameter: torch.Tensor | None = None
        self.recipe: Recipe | None = None
        self.sources: dict[tuple[int, torch.dtype], weakref.ref[Source]] = {}

    def source(self, tensor: torch.Tensor, version: int) -> Source:
        """Where what is stashed of it is found, as a tensor of that version has it."""
        key = version, tensor.dtype
        ref = self.sources.get(key)
        source = ref() if ref is not None else None
        if source is None:
            elements = tensor.untyped_storage().nbytes() // tensor.element_size()
            source = Source(self.storage, elements)
            self.sources[key] = weakref.ref(source)
        return source

    def forget_recipe(self, stashed: Region) -> None:
        """A region is stashed: if it is all of the storage, what it was made of is not needed any more."""
        if self.recipe is not None and self.recipe.geometry.region.is_within(stashed):
            self.recipe = None


class StorageMap:
    """A map from live storages to their origins, which keeps no storage alive."""

    def __init__(self) -> None:
        self._origins: dict[int, Origin] = {}
        self._limit = 1024

    def get(self, storage: torch.UntypedStorage) -> Origin | None:
        return self._origins.get(storage._cdata)

    def has(self, origin: Origin) -> bool:
        """Whether the storage is there, and this is what is known of it."""
        return not origin.storage.is_dead and self._origins.get(origin.storage.address) is origin

    def add(
        self, storage: torch.UntypedStorage, op: str = "", constant: str | None = None, writes: int = 0
    ) -> Origin:
        """A new origin of a storage."""
        ref = StorageRef(storage)
        origin = self._origins[ref.address] = Origin(ref, op, constant, writes)
        if len(self._origins) > self._limit:
            self._let_go_of_the_dead()
        return origin

    def _let_go_of_the_dead(self) -> None:
        for key, origin in list(self._origins.items()):
            if origin.storage.is_dead:
                self._origins.pop(key, None)
        self._limit = max(1024, 2 * len(self._origins))


class Operand:
    """What an operation was given: a tensor, told by a state of its storage and where it lies in it.

    Attributes:
        origin: of the storage, as it was then.
        version: of the tensor then.
        dtype, geometry: of the tensor.
    """

    __slots__ = ("dtype", "geometry", "origin", "version")

    def __init__(self, origin: Origin, tensor: torch.Tensor) -> None:
        self.origin, self.version, self.dtype = origin, tensor._version, tensor.dtype
        self.geometry = Geometry.of(tensor)

    @property
    def source(self) -> Source | None:
        """Where what is stashed of it is found, if anything is."""
        ref = self.origin.sources.get((self.version, self.dtype))
        return ref() if ref is not None else None


class Recipe:
    """How a storage was filled.

    Attributes:
        operation: that filled it.
        args, kwargs: of the operation, as it is computed from, with an :class:`Operand` for each tensor.
        version: of the tensor then.
        dtype, geometry: of the tensor, which fills the storage.
        length: operations in all, with those that made the operands.
    """

    __slots__ = ("args", "dtype", "geometry", "kwargs", "length", "operation", "version")

    def __init__(
        self, operation: Operation, args: list[Any], kwargs: dict[str, Any], made: torch.Tensor
    ) -> None:
        self.operation, self.args, self.kwargs = operation, args, kwargs
        self.version, self.dtype = made._version, made.dtype
        self.geometry = Geometry.of(made)
        self.length = 1
        for operand in (*args, *kwargs.values()):
            if type(operand) is Operand and (recipe := operand.origin.recipe) is not None:
                if self.length + recipe.length > LONGEST:
                    operand.origin.recipe = None
                else:
                    self.length += recipe.length
