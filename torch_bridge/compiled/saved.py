"""The tensors that autograd saves in a joint graph, and the ``Facts`` of each, as hooks find them.

The needs are those of ``facts/needs.py``. A node of the backward pass belongs to the formula of one
operation. What it takes from the forward pass is an argument or a result of that operation, told by its
memory; a tensor that is neither is unknown and stays exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch.fx import Node

from ..facts.deciding import of_squared
from ..facts.facts import Facts
from ..facts.need import Exact, Known, Need, Normed, normed
from ..facts.operations import Operation, operation
from ..facts.products import wide_input
from .joint import Group, Joint, geometry_of, is_tensor, module_of, original

# Of these the lineage of what they are given decides, which is known.
SOFTMAXES = ("_softmax", "_safe_softmax")
# Entries of the table that look at arguments, which a decomposition does not have any more.
DECOMPOSED = Exact("decomposed, and its arguments decide")
# What backward formulas do with tensors that the table knows, beside calling an operation named for it:
# products, and the same values in another shape or type. An autograd.Function does what it likes.
_LINEAR = frozenset(
    [
        *(
            "mul",
            "mm",
            "bmm",
            "addmm",
            "baddbmm",
            "neg",
            "conj",
            "_conj",
            "sum",
            "clone",
            "_to_copy",
            "detach",
        ),
        *("t", "transpose", "permute", "view", "_unsafe_view", "reshape", "expand", "alias"),
        *("unsqueeze", "squeeze", "slice", "select"),
    ]
)
_FORMULAS = {
    "sin": {"cos"},
    "cos": {"sin"},
    "abs": {"sgn", "sign"},
    "log": {"div"},
    "sqrt": {"div"},
    "clamp": {"ge", "le", "logical_and", "where"},
    "clamp_min": {"ge", "where"},
    "clamp_max": {"le", "where"},
    "maximum": {"eq", "ge", "gt", "le", "lt", "masked_fill", "where"},
    "minimum": {"eq", "ge", "gt", "le", "lt", "masked_fill", "where"},
}
_STRICTNESS = {need: place for place, need in enumerate(Need)}


@dataclass(eq=False)
class Saved:
    """A tensor that one operation saves for its backward pass.

    Attributes:
        node: of the forward pass.
        group: the operation; None if that is not known.
        saved_by: its name, or that of the formula that reads it.
        slot, need: as of ``Facts``.
        place: number or name of the argument that it is; None for a result, and of what was decomposed.
        users: nodes of the backward pass that read it.
        module: in whose forward pass it is saved.
    """

    node: Node
    group: Group | None
    saved_by: str
    slot: str
    need: Known | None
    place: int | str | None
    module: str
    users: list[Node] = field(default_factory=list)


Match = tuple[str, Known | None, int | str | None]
"""Which tensor of an operation it is: slot, need, place among the arguments."""


def saved_tensors(joint: Joint) -> list[Saved]:
    """What the operations of a graph save, in the order in which they run: arguments, then results.

    Where one user in the backward pass does nothing that an operation's own backward does, that is another
    one, such as a Function's, and says nothing of what the other users need.
    """
    found: dict[tuple[Node, Any, str], Saved] = {}
    edges = [(node, user, joint.groups.get(user.meta.get("seq_nr", -1))) for node, user in joint.edges()]
    matches = [_match_of_edge(joint, *edge) for edge in edges]
    others = {id(group) for (_, _, group), match in zip(edges, matches, strict=True) if match is None}
    for (node, user, group), match in zip(edges, matches, strict=True):
        if match is None or group is None or id(group) in others:
            name = _name(original(user) or user.target)
            saved = Saved(node, None, name, "", None, None, module_of(user))
        else:
            slot, need, place = match
            saved = Saved(node, group, group.op.in_table, slot, need, place, group.module)
        found.setdefault((node, saved.group or saved.saved_by, saved.slot), saved).users.append(user)
    return sorted(found.values(), key=lambda saved: _order(joint, saved))


def _match_of_edge(joint: Joint, node: Node, user: Node, group: Group | None) -> Match | None:
    match = _match(joint, group, node) if group is not None else None
    if match is not None and not isinstance(match[1], Exact) and not _is_formula(joint, group, user):
        return None
    return match


def _is_formula(joint: Joint, group: Group | None, user: Node) -> bool:
    """Whether a node of the backward pass does what the formula of an operation does with what it saves."""
    if group is None:
        return False
    allowed = _LINEAR | _FORMULAS.get(group.op.in_table, set()) | {group.op.in_table}
    waiting, seen = [user], {user}
    while waiting:
        node = waiting.pop()
        formula = original(node)
        name = "" if formula is None else operation(formula).in_table
        if name not in allowed and not name.endswith(("_backward", "_backward_data")):
            return False
        if node not in joint.tangents:
            waiting += [one for one in node.users if one not in seen and one.op == "call_function"]
            seen.update(node.users)
    return True


def _order(joint: Joint, saved: Saved) -> tuple[int, bool, int]:
    first = saved.group.nodes[0] if saved.group is not None else saved.users[0]
    is_result = saved.group is not None and joint.root(saved.node) in saved.group.inside
    return joint.place[first], is_result, joint.place[saved.node]


def _match(joint: Joint, group: Group, node: Node) -> Match | None:
    """Which tensor of an operation it is; None if it is none."""
    if group.is_whole:
        return _match_whole(joint, group, node)
    return _match_decomposed(joint, group, node)


def _match_whole(joint: Joint, group: Group, node: Node) -> Match | None:
    base, op = group.nodes[0], group.op
    places: list[tuple[int | str, Any]] = [*enumerate(base.args), *base.kwargs.items()]
    found = []
    for place, value in places:
        for one in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(one, Node) and is_same(joint, one, node):
                slot = place if isinstance(place, str) else op.arguments[place]
                found.append((slot, _need(joint, op, slot, base), place))
    if found:
        return max(found, key=lambda match: _strictness(match[1]))
    root = joint.root(node)
    if root in group.inside:
        number = root.args[1] if root is not base else 0
        slot = op.results.get(number, "")  # type: ignore[arg-type]
        return slot, _need(joint, op, slot, base) if slot else None, None
    return None


def _need(joint: Joint, op: Operation, slot: str, base: Node) -> Known | None:
    nodes = {id(one.meta.get("val")): one for one in base.all_input_nodes}
    args, kwargs = torch.fx.map_arg((base.args, dict(base.kwargs)), lambda one: one.meta.get("val"))
    need = op.need(slot, args, kwargs, lambda value: joint.lineage(nodes.get(id(value))))
    return of_squared(joint.is_summed(base)) if need is Need.SQUARED else need


def _match_decomposed(joint: Joint, group: Group, node: Node) -> Match | None:
    saves, arguments = group.op.saves or {}, group.op.arguments
    if joint.root(node) in group.inside:
        slots = [slot for slot in saves if slot not in arguments]
    elif any(is_same(joint, one, node) for one in group.inputs):
        slots = [slot for slot in arguments if slot in saves]
        largest = max(geometry_of(one).count for one in group.inputs)
        if slots and slots[0] == arguments[0] and geometry_of(node).count == largest:
            slots = slots[:1]  # parameters and statistics are smaller
    else:
        return None
    if not slots:
        return "", None, None
    needs = [_need_decomposed(joint, group, saves[slot], node) for slot in slots]
    strictest = max(range(len(slots)), key=lambda one: _strictness(needs[one]))
    return slots[strictest], needs[strictest], None


def _need_decomposed(joint: Joint, group: Group, need: Any, node: Node) -> Known:
    """An entry of the table where the arguments are gone; a norm of rows is told by its statistics.

    Where an entry allows any loss, whichever input an argument was, it holds.
    """
    if not callable(need):
        return cast(Known, need)
    lineages = [joint.lineage(one) for one in group.inputs]
    found, *others = [need({}, lambda _, one=one: one) for one in lineages]
    if group.op.in_table in SOFTMAXES or {Need.VALUES} == {found, *others}:
        return cast(Known, found)
    size = geometry_of(node).size
    is_of_rows = any(
        one in joint.statistics and is_tensor(one) and geometry_of(one).size == (*size[:-1], 1)
        for one in group.nodes
    )
    is_norm = isinstance(found, Normed) and found.is_of_rows
    return normed((-1,)) if is_norm and is_of_rows else DECOMPOSED


def _strictness(need: Known | None) -> int:
    """Of several needs of one tensor the strictest holds; a slot that is not in the table is not saved."""
    if need is None:
        return -1
    if isinstance(need, Normed):
        need = Need.VALUES
    return len(_STRICTNESS) if isinstance(need, Exact) else _STRICTNESS[need]


def is_same(joint: Joint, one: Node, other: Node) -> bool:
    """Whether two tensors are the same memory."""
    return one is other or (joint.root(one) is joint.root(other) and joint.region(one) == joint.region(other))


def facts_of(joint: Joint, saved: Saved, is_again: bool = False) -> Facts:
    """What is known of a saved tensor."""
    node, op = saved.node, saved.group.op if saved.group is not None else None
    geometry, requires_grad = geometry_of(node), node in joint.requires_grad
    largest = max((geometry_of(one).count for one in _inputs(saved)), default=0)
    is_table = op is not None and op.is_pointwise and not requires_grad and geometry.count < largest
    return Facts(
        saved_by=saved.saved_by,
        slot=saved.slot,
        need=saved.need,
        made_by=joint.made_by(node),
        constant=joint.constant(node),
        module=saved.module,
        dtype=node.meta["val"].dtype,
        shape=geometry.size,
        elements=geometry.region.count,
        requires_grad=requires_grad,
        is_statistic=joint.root(node) in joint.statistics or node in joint.statistics,
        is_table=is_table,
        is_again=is_again,
        feeds_wide=_feeds_wide(saved),
        is_filled=saved.need in (Need.VALUES, None) and joint.lineage(node).filled > 0,
    )


def _feeds_wide(saved: Saved) -> bool:
    """Whether it is what a wide matrix product is given."""
    group = saved.group
    if group is None or not group.is_whole or saved.place is None:
        return False
    args = torch.fx.map_arg(group.nodes[0].args, lambda one: one.meta.get("val"))
    return wide_input(group.op.recomputation, args) == saved.place


def _name(target: Any) -> str:
    return str(getattr(target, "__name__", target)).partition(".")[0]


def _inputs(saved: Saved) -> Iterator[Node]:
    yield from saved.group.inputs if saved.group is not None else ()
