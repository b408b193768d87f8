"""How tensors of a joint graph are computed anew in the backward pass, of what is kept of others.

The operations are those of ``facts/recompute.py`` and ``facts/products.py``, and the limits those of hooks
(``store/recomputed.py``). A sum of lossy tensors is done again only where it is known that it does not
cancel: nobody can look at its size before the graph is made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import Node
from torch.utils.checkpoint import CheckpointPolicy

from ..facts.products import PRODUCTS, wide_input
from ..facts.recompute import RECOMPUTATIONS, Recomputation
from ..store.recomputed import (
    MOST_BEHIND_PRODUCTS,
    MOST_OPERATIONS,
    MOST_PRODUCTS,
    MOST_WORK,
    SMALL,
    SMALL_FACTOR,
)
from .joint import Group, Joint, geometry_of, is_tensor

_AGAIN = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)
# Of a decomposed operation that is recomputed only for some arguments: nodes under which errors stay small.
_ATEN, _PRIMS = torch.ops.aten, torch.ops.prims
_SMOOTH = (
    *(_ATEN.add.Tensor, _ATEN.sub.Tensor, _ATEN.mul.Tensor, _ATEN.add.Scalar, _ATEN.mul.Scalar),
    *(_ATEN.neg.default, _ATEN.clone.default, _ATEN.unsqueeze.default, _ATEN.squeeze.dims),
    *(_ATEN.view.default, _ATEN.expand.default, _PRIMS.convert_element_type.default),
)


@dataclass(frozen=True)
class Made:
    """How a tensor is computed anew in the backward pass.

    Attributes:
        operations, work: done in all, and values that these compute.
        is_exact: whether all that it starts from comes back as it was.
        leaves: the lossy tensors that it starts from.
        is_pointwise: whether it is made of lossy tensors alone, value by value.
        saturates: whether it nears an end and never passes it.
        bends: whether it is given a lossy tensor, or a product's result, more than once: ``x + x ** 3``.
        remade: nodes whose memory is computed anew for it.
        products: matrix products of which one was given what another made.
        product_flops: of matrix products that nothing else does, by the node of each.
    """

    operations: int = 0
    work: int = 0
    is_exact: bool = True
    leaves: frozenset[Node] = frozenset()
    is_pointwise: bool = False
    saturates: bool = False
    bends: bool = False
    remade: frozenset[Node] = frozenset()
    products: int = 0
    product_flops: dict[Node, int] = field(default_factory=dict)

    @property
    def flops(self) -> int:
        """Floating-point operations of its matrix products."""
        return sum(self.product_flops.values())

    def is_near(self, count: int) -> bool:
        """Whether few operations are between so many values and what is kept."""
        if self.products:
            return self.products <= MOST_PRODUCTS and self.operations <= MOST_BEHIND_PRODUCTS
        return self.operations <= MOST_OPERATIONS and self.work <= MOST_WORK * count


@dataclass(frozen=True)
class _Terms:
    """On which a tensor is to be made.

    Attributes:
        nbytes: of the tensor.
        only_exact: whether nothing lossy may be among what it is made of.
        products: whether matrix products that are not wide may be among the operations.
        feeds: whether a matrix product is given what is made.
    """

    nbytes: int
    only_exact: bool
    products: bool
    feeds: bool = False


class Maker:
    """Finds what tensors can be made of.

    Args:
        joint: the graph.
        held: how what is kept of a tensor serves as an operand; None if nothing is kept of it.
    """

    def __init__(self, joint: Joint, held: Callable[[Node], Made | None]) -> None:
        self._joint, self._held = joint, held

    def made(self, node: Node, only_exact: bool, products: bool = False) -> Made | None:
        """How a tensor can be made of what is kept; None if it cannot, or not well enough.

        Args:
            only_exact: whether nothing lossy may be among what it is made of.
            products: whether matrix products that are not wide may be among the operations.
        """
        joint = self._joint
        root, count = joint.root(node), joint.region(node).count
        if joint.region(root).has_gaps or geometry_of(root).count != joint.region(root).count:
            return None
        made = self._redo(root, _Terms(count * node.meta["val"].element_size(), only_exact, products))
        return made if made is not None and made.is_near(count) else None

    def _operand(self, node: Node, terms: _Terms) -> Made | None:
        """How what an operation is given is there in the backward pass."""
        joint = self._joint
        held = self._held(node)
        if held is not None and (held.is_exact or not terms.only_exact):
            return held
        if joint.constant(node):
            return Made()
        made = self._redo(joint.root(node), terms) if held is None else None
        nbytes = joint.region(node).count * node.meta["val"].element_size()
        most = (SMALL_FACTOR if terms.feeds else SMALL) * terms.nbytes
        if made is None and nbytes <= most and not is_checkpointed(joint, node):
            return Made()
        return made

    def _redo(self, root: Node, terms: _Terms) -> Made | None:
        group = self._joint.group(root)
        way = way_of(group, terms.products) if group is not None else None
        if group is None or way is None or root.op != "call_function":
            return None
        if way.factors is not None and is_checkpointed(self._joint, root):
            return None  # it is done again by checkpointing
        is_single = len(group.inputs) == 1
        feeds = way.factors is not None or (terms.feeds and is_single)
        terms = replace(terms, only_exact=terms.only_exact or way.needs_exact, feeds=feeds)
        if group.is_whole:
            if root not in (group.nodes[0], *(one for one in group.nodes if one.args[1:] == (0,))):
                return None
            if way.fits is not None and not way.fits(_values(group)):
                return None
            parts = self._parts(group, way, terms)
        else:
            parts = self._inner(group, way, root, terms)
        return None if parts is None else self._joined(group, way, root, parts)

    def _parts(self, group: Group, way: Recomputation, terms: _Terms) -> list[Made] | None:
        base = group.nodes[0]
        given = list(base.args) if way.takes is None else [base.args[place] for place in way.takes]
        operands = [one for one in (*given, *base.kwargs.values()) if isinstance(one, Node)]
        results = [one for one in group.nodes[1:] if one.args[1] in way.results]
        found = [self._operand(one, terms) for one in operands]
        if len(results) < len(way.results) or any(one is None for one in found):
            return None
        kept = [Made()] if results else []
        return [*(one for one in found if one is not None), *kept]

    def _inner(self, group: Group, way: Recomputation, root: Node, terms: _Terms) -> list[Made] | None:
        """Of a decomposed operation: what the nodes that make its result are given from outside."""
        if is_kept_result(self._joint, way, root):
            return None
        found: list[Made] = []
        waiting, seen = [root], {root}
        while waiting:
            node = waiting.pop()
            if is_kept_result(self._joint, way, node):
                found.append(Made())
                continue
            if not is_repeatable(node) or (way.fits is not None and node.target not in _SMOOTH):
                return None
            for one in node.all_input_nodes:
                if one in group.inside:
                    if one not in seen:
                        seen.add(one)
                        waiting.append(one)
                elif not is_tensor(one):
                    return None
                else:
                    made = self._operand(one, terms)
                    if made is None:
                        return None
                    found.append(made)
        return found

    def _joined(self, group: Group, way: Recomputation, root: Node, parts: list[Made]) -> Made | None:
        is_exact = all(part.is_exact for part in parts)
        lossy = [part for part in parts if not part.is_exact]
        leaves = frozenset[Node]().union(*(part.leaves for part in parts))
        is_pointwise = bool(lossy) and len(lossy) == len(parts) and all(part.is_pointwise for part in lossy)
        is_pointwise &= all(geometry_of(leaf).count == geometry_of(root).count for leaf in leaves)
        is_pointwise &= way.factors is None
        if way.may_cancel and not is_exact:
            numbers = [one for one in group.nodes[0].args if isinstance(one, (int, float)) and one]
            if numbers and not all(part.saturates for part in parts):
                return None
            if not numbers and not (is_pointwise and len(leaves) == 1):
                return None
        flops: dict[Node, int] = {}
        for part in parts:
            flops |= part.product_flops
        if way.factors is not None:
            flops[root] = 2 * _inner_of(way, group) * geometry_of(root).count
        return Made(
            operations=1 + sum(part.operations for part in parts),
            work=geometry_of(root).count + sum(part.work for part in parts),
            is_exact=is_exact,
            leaves=leaves,
            is_pointwise=is_pointwise,
            saturates=way.saturates,
            bends=way.factors is None
            and (any(part.bends for part in parts) or sum(len(part.leaves) for part in lossy) > len(leaves)),
            remade=frozenset({root}).union(*(part.remade for part in parts)),
            products=max((part.products for part in parts), default=0) + (way.factors is not None),
            product_flops=flops,
        )


def way_of(group: Group, products: bool) -> Recomputation | None:
    """How an operation is done again: a cheap one, or a matrix product.

    Args:
        products: whether products count that are not as wide as a language model's head.
    """
    way = PRODUCTS.get(group.target)
    if way is None or not group.is_whole:
        return RECOMPUTATIONS.get(group.target)
    return way if products or wide_input(way, _values(group)) >= 0 else None


def is_kept_result(joint: Joint, way: Recomputation, node: Node) -> bool:
    """Whether a node of a decomposed operation is a result that is kept: a statistic, or a mask."""
    if not way.results or not is_tensor(node):
        return False
    return node in joint.statistics or node.meta["val"].dtype == torch.bool


def is_checkpointed(joint: Joint, node: Node) -> bool:
    """Whether activation checkpointing recomputes a tensor, or what made its memory."""
    return any(one.meta.get("recompute") in _AGAIN for one in (node, joint.root(node)))


def is_repeatable(node: Node) -> bool:
    """Whether a node gives the same result once more: it draws no random numbers."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return getattr(target, "__name__", "") == "getitem"
    is_seeded = torch.Tag.nondeterministic_seeded in target.tags
    return not is_seeded and not any(word in target.name() for word in ("random", "seed", "rand"))


def _inner_of(way: Recomputation, group: Group) -> int:
    """How many products are summed for a value; a size that changes is as it was first."""
    assert way.factors is not None
    factor = group.nodes[0].args[way.factors[0]]
    assert isinstance(factor, Node)
    return geometry_of(factor).size[-1]


def _values(group: Group) -> tuple[Any, ...]:
    """Arguments of an operation, as they are in the first step."""
    return tuple(one.meta.get("val") if isinstance(one, Node) else one for one in group.nodes[0].args)
