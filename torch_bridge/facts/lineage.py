"""Which operations made a tensor, as a graph tells it: autograd's, or the graph of a compiled model.

What a backward pass needs of a tensor may depend on that. Where a mask filled it, a number may stand for
infinity beside small values. Of a product with a logarithm, or of two quotients, only a difference may count.

An operation is told by its name without underscores before and behind: "log_softmax".
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar

import torch

# What is looked at of a graph; a tensor is rarely further from what made its values what they are.
MOST_OPERATIONS = 10

_Node = TypeVar("_Node")


class Made(NamedTuple):
    """An operation that made a tensor, or what that was made of.

    Attributes:
        op: its name.
        lacks: whether it was given something that requires no gradient, as a mask or a number.
    """

    op: str
    lacks: bool


Lineage = Callable[[frozenset[str]], Iterator[Made]]
"""The operations that made a tensor, nearest first; those before the named ones as well."""

COPIES = frozenset(
    [
        *("view", "unsafe_view", "reshape_alias", "t", "transpose", "permute", "expand", "unsqueeze"),
        *(
            "squeeze",
            "slice",
            "select",
            "narrow",
            "split",
            "split_with_sizes",
            "unbind",
            "unfold",
            "diagonal",
        ),
        *("as_strided", "alias", "to_copy", "clone"),
    ]
)
_SCALED = COPIES | {"neg", "mul", "div", "sub", "rsub", "clamp", "clamp_min", "clamp_max", "index", "gather"}
_PRODUCTS = frozenset(["mul", "mm", "bmm"])
_ADDED = _SCALED | {"add", "masked_fill", "where"}

_LOGARITHMS = frozenset(["log_softmax", "log", "logsumexp"])
_FILLING = frozenset(
    [
        *("masked_fill", "masked_scatter", "where", "index_put", "index_fill", "scatter", "slice_scatter"),
        *("select_scatter", "copy_slices"),
    ]
)
_ADDING = frozenset(["add", "sub", "rsub"])


def walk(
    start: _Node | None,
    through: frozenset[str],
    name_of: Callable[[_Node], str],
    given_to: Callable[[_Node], Sequence[_Node | None]],
) -> Iterator[Made]:
    """The operations that made a tensor, nearest first; of those that do not only copy ``MOST_OPERATIONS``.

    Args:
        start: the node of the graph that made it.
        through: names of operations behind which it goes on.
        name_of: the name of a node's operation.
        given_to: the nodes that made what an operation is given, None for what requires no gradient.
    """
    waiting, left = deque(() if start is None else (start,)), MOST_OPERATIONS
    while waiting and left:
        node = waiting.popleft()
        op, given = name_of(node), given_to(node)
        left -= op not in COPIES
        yield Made(op, any(one is None for one in given))
        if op in through:
            waiting += [one for one in given if one is not None]


def lineage_of(tensor: Any) -> Lineage | None:
    """What autograd's graph tells of a tensor; None of one without a gradient, or a number."""
    if not isinstance(tensor, torch.Tensor) or not tensor.requires_grad:
        return None

    return lambda through: walk(tensor.grad_fn, through, _name_of, _given_to)


def is_logarithm(lineage: Lineage) -> bool:
    """Whether a tensor is a logarithm, also if numbers were added to it, or it was cast, scaled or cut."""
    return any(made.op in _LOGARITHMS for made in lineage(_ADDED))


def is_quotient(lineage: Lineage) -> bool:
    """Whether a tensor was divided by another or a number, and no more."""
    return any(made.op == "div" for made in lineage(COPIES))


def is_filled(lineage: Lineage | None) -> bool:
    """Whether a mask may have put numbers into a tensor that stand for infinities."""
    return lineage is not None and any(map(_fills, lineage(_SCALED)))


def scales_filled(lineage: Lineage | None) -> bool:
    """Whether numbers that stand for infinities were multiplied with something that is trained."""
    is_scaled = False
    for made in () if lineage is None else lineage(_SCALED | _PRODUCTS):
        if is_scaled and _fills(made):
            return True
        is_scaled |= made.op in _PRODUCTS and not made.lacks
    return False


def _fills(made: Made) -> bool:
    return made.op in _FILLING or (made.op in _ADDING and made.lacks)


def _name_of(node: Any) -> str:
    return _named(node.name())


@cache
def _named(node: str) -> str:
    """The name of an operation by that of its node: "masked_fill" of "MaskedFillBackward0"."""
    name = re.sub(r"^.*::|Backward\d+$", "", node)
    return re.sub("(?<!^)(?=[A-Z])", "_", name).lower()


def _given_to(node: Any) -> list[Any]:
    return [one for one, _ in node.next_functions]
