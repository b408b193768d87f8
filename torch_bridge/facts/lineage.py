"""Which operations made a tensor, as a graph tells it: autograd's, or the graph of a compiled model.

What a backward pass needs of a tensor may depend on that. Where a mask filled it, a number may stand for
infinity beside small values. Of a product with a logarithm, or of two quotients, only a difference may count.
A product with an exponential may be a division: then an error of the other factor grows where that is small.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import torch

_MOST_KNOWN = 1 << 16  # nodes that are remembered
# Operations, copies not counted, behind which a logarithm or a mask is not looked for any more.
FURTHEST = 6

_COPIES = frozenset(
    [
        *("view", "unsafe_view", "reshape_alias", "t", "transpose", "permute", "expand", "unsqueeze"),
        *("squeeze", "slice", "select", "narrow", "split", "split_with_sizes", "unbind", "unfold"),
        *("diagonal", "as_strided", "alias", "to_copy", "clone"),
    ]
)
_KEEPING = frozenset(
    [
        *("neg", "mul", "div", "add", "sub", "rsub", "clamp", "clamp_min", "clamp_max", "maximum"),
        *("minimum", "index", "gather", "cat", "stack", "roll", "flip"),
    ]
)
_ADDING = frozenset(["add", "sub", "rsub", "addcmul", "addcdiv"])
_PRODUCTS = frozenset(["mm", "bmm", "baddbmm"])
_SCALING = frozenset(["mul", "div", "addcmul", "addcdiv"])
_LOGARITHMS = frozenset(["log_softmax", "log", "logsumexp"])
_INVERSES = frozenset(["rsqrt", "reciprocal"])
_EXPONENTIALS = frozenset(["exp", "exp2", "expm1"])
_FILLING = frozenset(
    [
        *("masked_fill", "masked_scatter", "where", "index_put", "index_fill", "scatter", "slice_scatter"),
        *("select_scatter", "diagonal_scatter", "as_strided_scatter", "copy_slices", "copy", "fill"),
        *("fill_diagonal", "constant_pad_nd"),
    ]
)
# Of a masked tensor an operation may be given the mask.
MASKING = _ADDING | {"maximum", "minimum", "baddbmm", "cat", "stack"}
_THROUGH = _COPIES | _KEEPING | _PRODUCTS | _ADDING | _FILLING


class Lineage(NamedTuple):
    """What is known of how a tensor was made.

    Attributes:
        is_trained: whether it requires a gradient.
        log: above 0 if it is a logarithm, also if that was scaled, masked, cut or added to something.
        filled: above 0 if a mask may have put numbers into it that stand for infinities.
        scaled: above 0 if such numbers were multiplied with something that is trained.
        product: above 0 if it is a product of two activations, as attention's logits, likewise.
        wide: above 0 if it is an exponential or a reciprocal, which may be of any magnitude, also if that was
            added to something, or scaled by what is not trained.
        is_quotient: whether it was divided, and no more.
        is_inverse: whether it is a reciprocal, also of a root.
    """

    is_trained: bool = True
    log: int = 0
    filled: int = 0
    scaled: int = 0
    product: int = 0
    wide: int = 0
    is_quotient: bool = False
    is_inverse: bool = False


NO_LINEAGE = Lineage()
UNTRAINED = Lineage(is_trained=False)
UNSEEN = "unseen"
"""Stands for operations where the graph does not reach: they may have filled anything."""

LineageOf = Callable[[str], Lineage]
"""The lineage of an operation's argument, by its name."""

_Node = TypeVar("_Node")


class Lineages(Generic[_Node]):
    """Lineages by nodes of a graph, each of which is looked at once.

    Args:
        name_of: the name of a node's operation, without underscores before it.
        given_to: nodes that made what an operation is given, None for what requires no gradient.
        has_mask: whether an operation is given a tensor, no number, that requires no gradient.
        key_of: what tells a node from others.
    """

    def __init__(
        self,
        name_of: Callable[[_Node], str],
        given_to: Callable[[_Node], Sequence[_Node | None]],
        has_mask: Callable[[_Node], bool],
        key_of: Callable[[_Node], Hashable],
    ) -> None:
        self._name_of, self._given_to = name_of, given_to
        self._has_mask, self._key_of = has_mask, key_of
        self._known: dict[Hashable, Lineage] = {}

    def of(self, node: _Node | None) -> Lineage:
        """The lineage of what a node made; None stands for a parameter."""
        if node is None:
            return NO_LINEAGE
        found = self._known.get(self._key_of(node))
        if found is not None:
            return found
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        waiting: list[_Node] = [node]
        while waiting:  # a graph may be deeper than Python's stack
            one = waiting[-1]
            name, parts, is_ready = self._name_of(one), [], True
            for other in self._given_to(one) if name in _THROUGH else ():
                part = UNTRAINED if other is None else self._known.get(self._key_of(other))
                if part is None:
                    assert other is not None
                    waiting.append(other)
                    is_ready = False
                else:
                    parts.append(part)
            if is_ready:
                fills = name in _FILLING or (name in MASKING and self._has_mask(one))
                found = self._known[self._key_of(one)] = _made(name, parts, fills)
                waiting.pop()
        assert found is not None
        return found


def _made(name: str, parts: list[Lineage], fills: bool) -> Lineage:
    """The lineage of what an operation makes of such tensors, and whether it fills them by a mask."""
    if name == UNSEEN:
        return Lineage(filled=FURTHEST)
    if name not in _THROUGH:
        return _FIRST.get(name, NO_LINEAGE)
    if name in _COPIES:
        return parts[0] if parts and parts[0].is_trained else NO_LINEAGE
    log = filled = scaled = product = wide = 0
    is_trained, is_quotient = True, name == "div"
    for part in parts:
        if part is UNTRAINED:
            is_trained = False
        elif part is not NO_LINEAGE:
            log, filled = max(log, part.log), max(filled, part.filled)
            scaled, product, wide = max(scaled, part.scaled), max(product, part.product), max(wide, part.wide)
            is_quotient = is_quotient or (name == "mul" and part.is_inverse)
    if name in _PRODUCTS:  # what a linear layer gives has none of it; heads of attention may be mixed
        scaled = FURTHEST if filled and product and is_trained else 0
        if not scaled and name == "mm":
            return NO_LINEAGE
        return Lineage(filled=FURTHEST if fills else 0, scaled=scaled, product=FURTHEST)
    if name in _SCALING and is_trained and filled:
        scaled = FURTHEST + 1
    if name in _SCALING and is_trained:
        wide = 0
    if fills:
        filled = FURTHEST + 1
    elif name not in _KEEPING:
        filled = 0
    if not (log or filled or scaled or product or wide or is_quotient):
        return NO_LINEAGE
    log, filled, scaled, product, wide = (max(0, one - 1) for one in (log, filled, scaled, product, wide))
    return Lineage(True, log, filled, scaled, product, wide, is_quotient)


def power(exponent: Any) -> str:
    """The name of the operation that a power is like: "reciprocal", "exp2" or, else, "pow".

    Args:
        exponent: a number, or what stands for a tensor.
    """
    if isinstance(exponent, int | float):
        return "reciprocal" if exponent < 0 else "pow"
    return "exp2"


_FIRST = {
    **dict.fromkeys(_LOGARITHMS, Lineage(log=FURTHEST)),
    **dict.fromkeys(_EXPONENTIALS, Lineage(wide=FURTHEST)),
    **dict.fromkeys(_INVERSES, Lineage(wide=FURTHEST, is_inverse=True)),
}


class Autograd(Lineages[Any]):
    """Lineages by autograd's nodes, of one thread, whose numbers tell them apart.

    Attributes:
        masked: numbers of the nodes of operations that were given a tensor that requires no gradient.
    """

    def __init__(self) -> None:
        self.masked = set[int]()
        super().__init__(_name_of, _given_to, lambda node: node._sequence_nr() in self.masked, _number_of)

    def note(self, args: Sequence[Any], number: int) -> None:
        """Note what an operation was given whose node has a number."""
        if len(self.masked) >= _MOST_KNOWN:
            self.masked.clear()
        for one in args:
            if isinstance(one, list):
                self.note(one, number)
            elif isinstance(one, torch.Tensor) and not one.requires_grad and one.dim():
                self.masked.add(number)

    def of_tensor(self, value: Any) -> Lineage:
        """The lineage of a tensor; numbers are not trained."""
        if not isinstance(value, torch.Tensor) or not value.requires_grad:
            return UNTRAINED
        return self.of(value.grad_fn)


_names: dict[type, str] = {}


def _name_of(node: Any) -> str:
    """The name of an operation by its node: "masked_fill" of "MaskedFillBackward0"."""
    kind = type(node)
    found = _names.get(kind)
    if found is None:
        name = node.name()
        found = re.sub(r"^.*::|Backward\d+$", "", name)
        found = re.sub("(?<!^)(?=[A-Z])", "_", found).lower()
        if kind.__name__ == name:  # else nodes of several kinds have the type
            _names[kind] = found
    if found == "pow":  # a tensor that it saved is not to be unpacked
        return power(node._saved_exponent if node.name() == "PowBackward0" else None)
    return found


def _given_to(node: Any) -> list[Any]:
    return [one for one, _ in node.next_functions]


def _number_of(node: Any) -> Hashable:
    return node._sequence_nr()  # all that gather a leaf's gradient have the same
