"""What a joint graph of forward and backward pass says of its nodes.

A tensor that autograd saves is here an edge from a node of the forward pass to a node of the backward pass.
Autograd's numbers tell which operation of the model saves it: nodes of an operation and of its backward
formula have the same ``seq_nr``, and ``original_aten`` names the operation that nodes were decomposed from.
"""

from __future__ import annotations

import operator
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import torch
from torch.fx import Graph, Node
from torch.utils.checkpoint import CheckpointPolicy

from ..facts.geometry import Geometry, Region
from ..facts.lineage import UNSEEN, UNTRAINED, Lineage, Lineages, power
from ..facts.operations import Operation, operation
from .sizes import hinted

_DETACH = torch.ops.aten.detach.default
_TAG, _BACKWARD = "partitioner_tag", ("is_backward", "must_be_in_backward")


@dataclass(frozen=True, eq=False)
class Group:
    """The nodes that one operation of the model became; several, where it was decomposed.

    Attributes:
        op: the operation.
        target: its overload.
        nodes: in their order, those that take results out of a tuple among them.
        module: in whose forward pass it ran.
    """

    op: Operation
    target: Any
    nodes: tuple[Node, ...]
    module: str
    inside: frozenset[Node] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "inside", frozenset(self.nodes))

    @property
    def is_whole(self) -> bool:
        """Whether it was not decomposed."""
        return self.nodes[0].target is self.target

    @cached_property
    def inputs(self) -> tuple[Node, ...]:
        """Tensors that it is given, in the order in which they are first used."""
        found = dict.fromkeys(one for node in self.nodes for one in node.all_input_nodes)
        return tuple(one for one in found if one not in self.inside and is_tensor(one))


class Joint:
    """A joint graph.

    Args:
        graph: of forward and backward pass, as a partitioner is given it.
        constants: numbers of the placeholders that are parameters or buffers of the model.

    Attributes:
        backward: nodes of the backward pass.
        tangents: those of them that depend on a gradient.
        groups: of an operation that has a node of autograd, by its number.
        requires_grad: nodes of which a gradient is wanted.
        statistics: nodes that have one value for a row.
        of_indices: nodes that are made of whole numbers and buffers alone, as masks and tables of angles.
    """

    def __init__(self, graph: Graph, constants: Any) -> None:
        self.graph = graph
        self.nodes = list(graph.nodes)
        self.place = {node: place for place, node in enumerate(self.nodes)}
        self.tangents = set[Node]()
        self.backward = self._find_backward()
        self._same: dict[tuple[Any, Any], list[Node]] = defaultdict(list)
        self._group: dict[Node, Group | None] = {}
        self.groups = self._find_groups()
        holders = [node for node in self.nodes if node.op == "placeholder" and node not in self.backward]
        self._constants = {holders[place] for place in constants or () if place < len(holders)}
        self.requires_grad, self.statistics, self.of_indices = set[Node](), set[Node](), set[Node]()
        self._lineages = Lineages(self._name_of, self._given_to, self._has_mask, self.root)
        for node in self.nodes:
            if node not in self.backward and node.op != "output":
                self._note_origin(node)
                if is_tensor(node):
                    self._note_statistic(node)

    def _find_backward(self) -> set[Node]:
        found: set[Node] = set()
        for node in self.nodes:
            is_tangent = node.op == "placeholder" and "tangents" in str(node.target)
            is_formula = node.meta.get("autograd_backward") or node.meta.get(_TAG) in _BACKWARD
            if is_tangent or any(one in self.tangents for one in node.all_input_nodes):
                self.tangents.add(node)
            if is_tangent or is_formula or any(one in found for one in node.all_input_nodes):
                found.add(node)
        return found

    def _find_groups(self) -> dict[int, Group]:
        first: dict[int, Node] = {}
        for node in self.nodes:
            number, made_for = node.meta.get("seq_nr"), original(node)
            if node.op != "call_function" or node in self.backward or made_for is None:
                continue
            self._same[number, made_for].append(node)
            if number is not None:
                first.setdefault(number, node)
        found = {}
        for number, node in first.items():
            group = self.group(node)
            if group is not None:
                found[number] = group
        return found

    def group(self, node: Node) -> Group | None:
        """The operation of the model that a node of the forward pass is a part of; None if not known."""
        if node not in self._group:
            self._group[node] = self._find_group(node)
        return self._group[node]

    def _find_group(self, node: Node) -> Group | None:
        made_for = original(node)
        if made_for is None:
            return None
        base = node.args[0] if node.target is operator.getitem else node
        if isinstance(base, Node) and base.target is made_for:
            results = [one for one in base.users if one.target is operator.getitem]
            nodes = [
                base,
                *sorted((one for one in results if one not in self.backward), key=self.place.__getitem__),
            ]
        else:
            nodes = self._same.get((node.meta.get("seq_nr"), made_for), [node])
        return Group(operation(made_for), made_for, tuple(nodes), module_of(node))

    # Tensors and their memory

    def parent(self, node: Node) -> Node | None:
        """The node that this is a view of, None if it has memory of its own, or other types of bits."""
        if node.op != "call_function":
            return None
        if node.target is operator.getitem:
            made = node.args[0]
            return self.parent(made) if isinstance(made, Node) and not is_tensor(made) else None
        if not isinstance(node.target, torch._ops.OpOverload) or not operation(node.target).is_view:
            return None
        base = node.args[0] if node.args else None
        if not isinstance(base, Node) or (
            is_tensor(node) and node.meta["val"].dtype != base.meta["val"].dtype
        ):
            return None
        return base

    def root(self, node: Node) -> Node:
        """The node that made the memory of a tensor."""
        while (parent := self.parent(node)) is not None:
            node = parent
        return node

    def region(self, node: Node) -> Region:
        """What memory of its root a tensor has; sizes that change are as they were first."""
        return geometry_of(node).region

    def canonical(self, node: Node) -> Node:
        """Of the tensor and those that it is a view of the first that has the same memory."""
        region, found = self.region(node), node
        while (parent := self.parent(found)) is not None and self.region(parent) == region:
            found = parent
        return found

    # Facts

    def _note_origin(self, node: Node) -> None:
        value = node.meta.get("val")
        is_float = not isinstance(value, torch.Tensor) or value.is_floating_point() or value.is_complex()
        if node.op == "placeholder":
            meta = node.meta.get("tensor_meta")
            needs = bool(getattr(meta, "requires_grad", False)) or getattr(value, "requires_grad", False)
            is_of_indices = not needs and (not is_float or node in self._constants)
        else:
            # Autograd detaches for itself what an operation saves of its results: only formulas read that.
            is_cut = node.target is _DETACH and any(one not in self.backward for one in node.users)
            needs = not is_cut and any(one in self.requires_grad for one in node.all_input_nodes)
            is_of_indices = all(one in self.of_indices for one in node.all_input_nodes)
            is_of_indices &= node.meta.get("recompute") is not CheckpointPolicy.MUST_SAVE
        if needs and is_float:
            self.requires_grad.add(node)
        if is_of_indices:
            self.of_indices.add(node)

    def _note_statistic(self, node: Node) -> None:
        inputs = [one for one in node.all_input_nodes if is_tensor(one)]
        count = geometry_of(node).count
        shape = geometry_of(node).size
        of_statistics = 0
        if _is_pointwise(node):
            of_statistics = max(
                (geometry_of(one).count for one in inputs if one in self.statistics), default=0
            )
        is_row = count > 1 and shape[-1:] == (1,)
        if is_row or self._reduces(node) or 0 < count <= of_statistics:
            self.statistics.add(node)

    def _reduces(self, node: Node) -> bool:
        made = node.args[0] if node.target is operator.getitem and node.args else node
        target = made.target if isinstance(made, Node) else None
        return isinstance(target, torch._ops.OpOverload) and operation(target).is_reduction

    def constant(self, node: Node) -> str:
        """ "parameter", "buffer", or a copy of one, if a tensor's memory has nothing else; "" if it has."""
        root = self.root(node)
        if root in self._constants:
            return "parameter" if root in self.requires_grad else "buffer"
        group = self.group(root)
        if group is None or not group.op.is_copy or not group.inputs:
            return ""
        source = group.inputs[0]
        repeats = geometry_of(source).count > self.region(source).count
        kind = "" if repeats else self.constant(source)
        return kind if not kind or kind.endswith(" copy") else f"{kind} copy"

    def repeated(self, node: Node) -> Node | None:
        """What a tensor is copied from, if it has values several times, as keys for groups of queries."""
        group = self.group(self.root(node))
        if group is None or not group.op.is_copy or not group.inputs:
            return None
        source = group.inputs[0]
        return source if geometry_of(source).count > self.region(source).count else None

    def mask(self, node: Node) -> Node | None:
        """The booleans that a tensor is made of, value by value and of nothing else; None without."""
        count = geometry_of(self.root(node)).count
        while (root := self.root(node)).meta["val"].dtype != torch.bool:
            group = self.group(root)
            if group is None or len(group.inputs) != 1 or not (group.op.is_pointwise or group.op.is_copy):
                return None
            node = group.inputs[0]
        return root if geometry_of(root).count == count else None

    def made_by(self, node: Node) -> str:
        """Name of the operation that filled a tensor's memory, as hooks would tell it."""
        root = self.root(node)
        group = self.group(root)
        if group is None:
            return ""
        if group.op.is_copy and group.inputs:
            return self.made_by(group.inputs[0]) or group.op.name
        is_result = group.is_whole and root.target is operator.getitem and root.args[1]
        return f"{group.op.name}.{root.args[1]}" if is_result else group.op.name

    def lineage(self, value: Any) -> Lineage:
        """What the graph tells of how a tensor was made; numbers are not trained."""
        return self._lineages.of(value) if value in self.requires_grad else UNTRAINED

    def _name_of(self, node: Node) -> str:
        root = self.root(node)
        if root.op == "placeholder":
            return "" if root in self._constants else UNSEEN
        group = self._made_in(node)
        name = "" if group is None else group.op.in_table.strip("_")
        if group is not None and name == "pow" and group.is_whole:
            return power(group.nodes[0].args[1])
        return name

    def _given_to(self, node: Node) -> list[Node | None]:
        group = self._made_in(node)
        if group is None:
            return []
        given = [one if one in self.requires_grad else None for one in group.inputs]
        return given if len(given) > 1 else [*given, None]

    def _has_mask(self, node: Node) -> bool:
        group = self._made_in(node)
        given = () if group is None else group.inputs
        return any(one not in self.requires_grad and geometry_of(one).size for one in given)

    def _made_in(self, node: Node) -> Group | None:
        """The operation that made a tensor; a node by itself that a compiler put in its place."""
        root = self.root(node)
        if root.meta.get("seq_nr") is None and isinstance(root.target, torch._ops.OpOverload):
            return Group(operation(root.target), root.target, (root,), "")
        return self.group(root)

    def _is_trained(self, group: Group) -> bool:
        return all(one in self.requires_grad for one in group.inputs)

    def is_summed(self, node: Node) -> bool:
        """Whether what an operation made is summed, or given to products with what is trained, no more."""
        waiting = [node]
        while waiting:
            one = waiting.pop()
            for user in one.users:
                group = self.group(user) if user not in self.backward else None
                if user.op == "output":
                    return False  # nobody knows what follows
                if group is None:
                    continue
                if self.parent(user) is not None or group.op.is_copy:
                    waiting.append(user)
                elif not (group.op.is_reduction or (group.op.is_product and self._is_trained(group))):
                    return False
        return True

    def chain(self, node: Node) -> list[Node]:
        """All operations of the graph that make a tensor, its own among them."""
        found, waiting = dict[Node, None](), [node]
        while waiting:
            one = waiting.pop()
            if one.op == "call_function" and one not in found:
                found[one] = None
                waiting += one.all_input_nodes
        return list(found)

    def edges(self) -> Iterator[tuple[Node, Node]]:
        """Tensors of the forward pass, and nodes of the backward pass that use them."""
        for node in self.nodes:
            if node not in self.backward and is_tensor(node):
                for user in node.users:
                    if user in self.backward and user.op == "call_function":
                        yield node, user


def flops_of_graph(joint: Joint) -> int:
    """Floating-point operations of a step, as hooks count them: products and attention, both passes."""

    def stand_in(node: Node) -> Any:
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            return None
        needs = node in joint.requires_grad
        size = geometry_of(node).size
        return torch.empty(size, dtype=value.dtype, device="meta", requires_grad=needs)

    found = 0
    with torch.enable_grad():
        for node in joint.nodes:
            if node in joint.backward or not isinstance(node.target, torch._ops.OpOverload):
                continue
            args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), stand_in)
            found += operation(node.target).flops_of_step(args, kwargs, stand_in(node))
    return found


def _is_pointwise(node: Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return node.target is operator.getitem
    op = operation(node.target)
    return op.is_pointwise or op.is_view or op.is_copy


def original(node: Node) -> torch._ops.OpOverload | None:
    """The operation that a node was decomposed from, or is; None if it is none of torch's."""
    made_for = node.meta.get("original_aten")
    if not isinstance(made_for, torch._ops.OpOverload):
        return None
    # Metadata is copied, and an operation's copy is not the operation.
    namespace, _, name = made_for._schema.name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name)
    return cast(torch._ops.OpOverload, getattr(packet, made_for._overloadname))


def is_tensor(node: Node) -> bool:
    """Whether a node gives one plain strided tensor."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_nested


def geometry_of(node: Node) -> Geometry:
    """Where a tensor lies in its memory; sizes that change are as they were first."""
    return hinted(node.meta["val"])


_ROOT = re.compile(r"^[LG]\[['\"].*?['\"]\]|^self")
_ITEM = re.compile(r"(?:\._modules|\._parameters)?\[['\"]?([^\]'\"]+)['\"]?\]")


def module_of(node: Node) -> str:
    """In whose forward pass a node ran, as in ``model.named_modules()``; "" is the model itself."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    path = str(list(stack.values())[-1][0])
    return _ITEM.sub(r".\1", _ROOT.sub("", path)).removeprefix(".")
