"""What is known of an operation of torch, looked up once: its names, what it writes to, what it saves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import needs
from .deciding import Entry
from .lineage import MASKING, Lineage
from .need import Known
from .products import PRODUCTS, flops_of_step
from .recompute import RECOMPUTATIONS, Recomputation

# Operations whose result is their first argument in other memory or another type.
_COPIES = ("_to_copy", "clone")
# Its result is its argument in other sizes, but it does not say so.
_UNSAFE_VIEW = "_unsafe_view"
# They give one value for many.
_REDUCTIONS = (
    *("sum", "mean", "amax", "amin", "max", "min", "aminmax", "median", "prod", "norm", "linalg_vector_norm"),
    *("var", "std", "var_mean", "std_mean", "logsumexp", "nll_loss_forward", "nll_loss2d_forward"),
)
ATTENTION = "_scaled_dot_product_"


# What a compiled graph has in the place of operations that write to buffers, which no formula reads.
_IN_GRAPHS = {"_native_batch_norm_legit_functional": "_native_batch_norm_legit"}


class Operation:
    """An operation.

    Attributes:
        run: what runs it.
        name: without namespace and overload.
        in_table: its name, in place or not.
        written: places and names of the arguments that it writes to.
        is_view: whether it only makes views.
        is_copy: whether its result is its first argument in other memory or another type.
        is_clone: whether nothing else is.
        is_pointwise: whether it takes tensors value by value, and broadcasts them.
        is_reduction: whether a result has one value for many of an argument.
        is_product: whether it is a matrix product.
        may_mask: whether it may be given a mask that is added.
        is_attention: whether it is fused attention.
        recomputation: how to do it again, if that is known.
        arguments: their names, by places.
        saves: what the backward pass needs of what it saves, by the names that torch gives that; None if it
            is not known.
        results: names of the results that it saves, by their places.
        numbers: places of these, by what the watch calls what wrote them.
        result_needs: what is needed of these, by their places; None if that depends on the arguments.
    """

    __slots__ = (
        *("_func", "arguments", "is_attention", "is_clone", "is_copy", "is_pointwise", "is_product"),
        *(
            "in_table",
            "is_reduction",
            "is_view",
            "may_mask",
            "name",
            "numbers",
            "recomputation",
            "result_needs",
            "results",
            "run",
            "saves",
        ),
        "written",
    )

    def __init__(self, func: Any) -> None:
        self._func, self.run = func, func._op if type(func) is torch._ops.OpOverload else func
        self.name = func.name().split("::")[-1].split(".")[0]
        name = self.name.removesuffix("_") if writes(self.name) else self.name
        self.in_table = _IN_GRAPHS.get(name, name)
        schema = getattr(func, "_schema", None)  # torch.cond and its like have none
        arguments = schema.arguments if schema else ()
        self.arguments = tuple(argument.name for argument in arguments)
        self.written = tuple(
            (place, argument.name)
            for place, argument in enumerate(arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        )
        aliases = any(result.alias_info is not None for result in schema.returns) if schema else False
        self.is_view = (aliases and not self.written) or self.name == _UNSAFE_VIEW
        self.is_copy, self.is_clone = self.name in _COPIES, self.name == "clone"
        self.is_pointwise = torch.Tag.pointwise in getattr(func, "tags", ())
        self.is_reduction = self.name in _REDUCTIONS
        self.is_attention = self.name.startswith(ATTENTION)
        self.is_product = func in PRODUCTS
        self.may_mask = self.in_table in MASKING
        self.recomputation: Recomputation | None = RECOMPUTATIONS.get(func) or PRODUCTS.get(func)
        of_aten = func.namespace == "aten" if hasattr(func, "namespace") else False
        self.saves = _saves(self.in_table, getattr(func, "_overloadname", "")) if of_aten else None
        self.results = _results(schema, self.saves or {})
        self.numbers = {name_of_result(self.name, place): place for place in self.results}
        needs_of = {place: self.saves[name] for place, name in self.results.items()} if self.saves else {}
        self.result_needs = None if any(map(callable, needs_of.values())) else needs_of

    def flops_of_step(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
        """Its floating-point operations and those of its backward pass, as far as torch counts them."""
        return flops_of_step(self._func, args, kwargs, result)

    def need(
        self, slot: str, args: tuple[Any, ...], kwargs: dict[str, Any], lineage_of: Callable[[Any], Lineage]
    ) -> Known | None:
        """What its backward pass needs of what it saves under a name; None if that is not known.

        Args:
            slot: the name.
            args, kwargs: that it is given.
            lineage_of: the lineage of one of these.
        """
        entry = None if self.saves is None else self.saves.get(slot)
        if callable(entry):
            arguments = dict(zip(self.arguments, args, strict=False)) | kwargs
            return entry(arguments, lambda name: lineage_of(arguments.get(name)))
        return entry

    def needs_of_results(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], lineage_of: Callable[[Any], Lineage]
    ) -> dict[int, Any]:
        """What its backward pass needs of the results that it saves, by their places."""
        if self.result_needs is not None:
            return self.result_needs
        return {place: self.need(name, args, kwargs, lineage_of) for place, name in self.results.items()}


def _saves(name: str, overload: str) -> dict[str, Entry] | None:
    return needs.TABLE.get(f"{name}.{overload}", needs.TABLE.get(name))


def _results(schema: Any, saves: dict[str, Any]) -> dict[int, str]:
    """The only result is "result"; others are named by their numbers, or as the schema names them."""
    found: dict[int, str] = {}
    for place, result in enumerate(schema.returns if schema else ()):
        names = ("result",) if len(schema.returns) == 1 else (f"result{place}",)
        for name in (*names, result.name, "result" if place == 0 else ""):
            if name and name in saves:
                found[place] = name
                break
    return found


def name_of_result(name: str, number: int) -> str:
    """What is said to have written a result of an operation: "native_layer_norm.1" of the second."""
    return f"{name}.{number}" if number else name


def writes(name: str) -> bool:
    """Whether an operation writes to its first argument, by its name."""
    return name.endswith("_") and not name.endswith("__")


KNOWN: dict[int, Operation] = {}  # by identity: a function's hash takes longer, and they hold it


def operation(func: Any) -> Operation:
    """What is known of a function that a dispatch mode is given."""
    found = KNOWN.get(id(func))
    if found is None:
        found = KNOWN[id(func)] = Operation(func)
    return found
