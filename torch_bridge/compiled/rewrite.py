"""Carries a plan out in a joint graph.

Behind a tensor of the forward pass stands what compresses it. The backward pass starts with what decompresses
or recomputes it, which only the backward formulas read that the plan names. Everything else goes on reading
the exact tensor: what is not rewritten here cannot become lossy. To recompute, nodes of the forward pass are
repeated; PyTorch's partitioner moves all of them to where they are needed first.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch._decomp import get_decompositions
from torch._functorch.compile_utils import fx_graph_cse
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import CheckpointPolicy

from ..facts.need import Need
from ..facts.recompute import Recomputation
from ..internals import as_recorded, note_new_sizes
from ..store.centred import CHANNELS, channel_halvings, channel_means, row_sums
from . import operators
from .again import is_kept_result, way_of
from .joint import Group, Joint, geometry_of
from .measured import text_of_all
from .norms import means_of, spreads_of, with_means, without_means
from .plan import Entry, Plan
from .saved import Saved

_OPS = torch.ops.bitstash
_LARGEST_HALF = torch.finfo(torch.float16).max
# What Inductor has taken apart before it calls a partitioner, and does not know any more.
_DECOMPOSED: Any = get_decompositions(
    [
        torch.ops.aten.linalg_vector_norm.default,
        torch.ops.aten.clamp.default,
        torch.ops.aten._to_copy.default,
    ]
)
_APART = "_bitstash_apart"
_COPIED = ("stack_trace", "nn_module_stack", "custom")


class Rewriter:
    """Rewrites a graph.

    Args:
        joint: the graph.
        plan: what becomes of its tensors.
        backend: that compresses.

    Attributes:
        stored: by the node that gives the stored bytes, the entry that they are of.
        inserted: nodes of the backward pass that it made.
        places: of what is measured, by which the choice of its format is known.
    """

    def __init__(self, joint: Joint, plan: Plan, backend: str) -> None:
        assert plan.start is not None
        self._joint, self._plan, self._backend, self._start = joint, plan, backend, plan.start
        self._graph: Graph = joint.graph
        self._versions: dict[Node, Node] = {}
        self._again: dict[Node, Node] = {}
        self._measures: dict[tuple[Any, ...], Node] = {}
        self._first = next(node for node in joint.nodes if node.op not in ("placeholder", "get_attr"))
        self.stored: dict[Node, Entry] = {}
        self.places: dict[Entry, str] = {}
        self.inserted: list[Node] = []

    def run(self) -> None:
        """Rewrite what every backward formula reads that is not kept as it is."""
        for saved, entry in self._plan.outcome.items():
            if entry.kind == "exact":
                continue
            version = self._version(saved.node)
            for user in saved.users:
                user.replace_input_with(saved.node, version)
        for node in self._plan.anew:
            node.meta.setdefault("recompute", CheckpointPolicy.PREFER_RECOMPUTE)
        self._graph.lint()

    # What the backward pass has of a tensor

    def _version(self, node: Node) -> Node:
        """What the backward pass has in place of a tensor of the forward pass."""
        found = self._versions.get(node)
        if found is None:
            found = self._versions[node] = self._make(node)
        return found

    def _make(self, node: Node) -> Node:
        joint, held = self._joint, self._plan.holder(node)
        root = joint.root(node)
        if held is not None and held.kind == "again":
            return self._result(node)
        if held.kind == "exact" if held is not None else root not in self._plan.remade:
            return node
        if held is not None and held.kind in ("format", "bits") and held.node is node:
            return self._decompressed(held)
        parent = joint.parent(node)
        if parent is not None:
            if node.target is operator.getitem:  # of what a view made several of
                made = node.args[0]
                assert isinstance(made, Node)
                return self._copy(node, (self._copy(made, self._arguments(made)), node.args[1]))
            return self._copy(node, self._arguments(node))
        return self._redone(node)

    def _arguments(self, node: Node) -> tuple[Any, ...]:
        """Arguments of a node as the backward pass has them."""
        return torch.fx.map_arg(node.args, self._operand)

    def _operand(self, node: Node) -> Node:
        if isinstance(node.meta.get("val"), torch.Tensor):
            return self._version(node)
        return self._versions.get(node, node)  # several results, if they were made again

    def _decompressed(self, entry: Entry) -> Node:
        node, (size, order) = entry.node, self._layout(entry.node)
        arguments: tuple[Any, ...] = ()
        if entry.kind == "bits":
            stored = self._forward(node, _OPS.pack_bits.default, (node, order))
            made = _OPS.unpack_bits.default
        elif entry.normed is not None:
            return self._without_means(entry)
        elif entry.measured is not None:
            return self._measured(entry, entry.measured)
        elif entry.channels is not None:
            return self._without_means(entry)
        else:
            assert entry.format is not None
            text = operators.text_of(entry.format)
            arguments = (text, entry.decision.of, entry.row, self._backend)
            stored = self._forward(node, _OPS.compress.default, (node, *arguments, order))
            made = _OPS.decompress.default
        stored.meta["recompute"] = CheckpointPolicy.MUST_SAVE
        self.stored[stored] = entry
        return self._backward(made, (stored, *arguments, size, order), node)

    def _measured(self, entry: Entry, saved: Saved) -> Node:
        """A tensor in a format that is chosen when the graph runs."""
        node, (size, order) = entry.node, self._layout(entry.node)
        formats, bounds = text_of_all(entry.formats), [bound for bound, _ in entry.decision.finer]
        measure = self._measure(saved, entry.facts.is_filled)
        place = f"{entry.facts.module}#{node.name} {tuple(entry.facts.shape)}"
        args: tuple[Any, ...] = (node, measure, place, formats, bounds, entry.row, self._backend, order)
        stored = self._forward(measure, _OPS.compress_measured.default, args, like=node)
        stored.meta["recompute"] = CheckpointPolicy.MUST_SAVE
        self.stored[stored], self.places[entry] = entry, place
        args = (stored, formats, entry.row, self._backend, size, order)
        made = self._backward(_OPS.decompress_measured.default, args, node)
        if not entry.decision.sums:
            return made
        return self._traced(lambda rows: (rows / row_sums(rows)).to(rows.dtype), (made,), node)

    def _measure(self, saved: Saved, is_filled: bool) -> Node:
        """How far the logits of an attention spread, how much a softmax amplifies its error, or a maximum."""
        group, target = saved.group, _OPS.largest.default
        args: tuple[Any, ...] = (saved.node, is_filled)
        if saved.need is Need.PROBABILITIES:
            target, args = _OPS.softmax_amplification.default, (saved.node,)
        elif saved.need is Need.LOGITS:
            assert group is not None
            base, target = group.nodes[0], _OPS.logit_spread.default
            given = dict(zip(group.op.arguments, base.args, strict=False)) | base.kwargs
            args = (given["query"], given["key"], given.get("scale"))
        if (target, args) not in self._measures:
            last = max((one for one in args if isinstance(one, Node)), key=self._joint.place.__getitem__)
            self._measures[target, args] = self._forward(last, target, args)
        return self._measures[target, args]

    def _without_means(self, entry: Entry) -> Node:
        """A tensor that is compressed without its means, which are kept beside it and added again."""
        node, read = entry.node, entry.normed or entry.channels
        normed = entry.decision.normed if entry.normed is not None else CHANNELS
        assert read is not None
        assert normed is not None
        assert entry.format is not None
        behind = _Behind(self, read)
        compute = channel_means if entry.normed is None else partial(means_of, normed)
        means = self._traced(compute, (read,), read, behind)
        spreads = []
        if entry.normed is None:
            spreads = [self._traced(channel_halvings, (read, means), read, behind)]
        elif not normed.is_of_rows:
            spreads = [self._traced(partial(spreads_of, normed), (read, means), read, behind)]
        left = self._traced(partial(without_means, normed), (read, means, *spreads), read, behind)
        arguments = (operators.text_of(entry.format), entry.decision.of, entry.row, self._backend)
        size, order = self._layout(read)
        stored = behind(_OPS.compress.default, (left, *arguments, order), left)
        for one in (stored, means, *spreads):
            one.meta["recompute"] = CheckpointPolicy.MUST_SAVE
            self.stored[one] = entry
        made = self._backward(_OPS.decompress.default, (stored, *arguments, size, order), read)
        whole = self._traced(partial(with_means, normed), (made, means, *spreads), read)
        if node is read:
            return whole
        return self._backward(torch.ops.aten.view.default, (whole, self._layout(node)[0]), node)

    def _layout(self, node: Node) -> tuple[list[Any], list[int]]:
        """Sizes of a tensor, as nodes where they change, and its dimensions by falling strides."""
        size: list[Any] = []
        for dimension, one in enumerate(node.meta["val"].shape):
            if isinstance(one, torch.SymInt):
                size.append(self._forward(node, torch.ops.aten.sym_size.int, (node, dimension)))
            else:
                size.append(int(one))
        geometry = geometry_of(node)
        order = sorted(range(len(size)), key=lambda one: (-geometry.stride[one], -geometry.size[one]))
        return size, order

    def _redone(self, root: Node) -> Node:
        """What computes the memory of a tensor anew."""
        group = self._joint.group(root)
        assert group is not None
        way = way_of(group, products=True)
        assert way is not None
        made = self._whole(group, way) if group.is_whole else self._inner(group, way, root)
        if geometry_of(made).stride != geometry_of(root).stride:  # what views of it rely on
            made = self._traced(partial(_laid_out, self._layout(root)[1]), (made,), root)
        if root.meta["val"].dtype != torch.float16:
            return made
        return self._traced(lambda one: one.clamp(-_LARGEST_HALF, _LARGEST_HALF), (made,), root)

    def _inner(self, group: Group, way: Recomputation, node: Node) -> Node:
        """A node of a decomposed operation, with those that it needs; statistics and masks are kept ones."""
        args = []
        for one in node.all_input_nodes:
            if one not in group.inside:
                continue
            if one in self._versions:
                pass
            elif is_kept_result(self._joint, way, one):
                held = self._plan.holder(one)
                self._versions[one] = self._version(one) if held is not None else one
            else:
                self._versions[one] = self._inner(group, way, one)
            args.append(one)
        return self._copy(node, self._arguments(node))

    def _whole(self, group: Group, way: Recomputation) -> Node:
        base = group.nodes[0]
        if not way.results:
            return self._copy(base, self._arguments(base))
        results = {one.args[1]: one for one in group.nodes[1:]}
        given = list(base.args) if way.takes is None else [base.args[place] for place in way.takes]
        given += [results[place] for place in way.results]
        arguments = torch.fx.map_arg(tuple(given), self._result_or_operand(group))
        made = self._traced(lambda *args: way.compute(False, *args), arguments, base)
        # Said once more: a graph may think that a kernel's statistics are of a type that they are not.
        to = base.meta["val"][0].dtype
        return self._backward(torch.ops.prims.convert_element_type.default, (made, to), base)

    def _result_or_operand(self, group: Group) -> Callable[[Node], Node]:
        def of(node: Node) -> Node:
            if node in group.inside and self._plan.holder(node) is None:
                return node
            return self._operand(node)

        return of

    def _traced(
        self,
        compute: Callable[..., Any],
        arguments: Sequence[Any],
        like: Node,
        insert: Callable[..., Node] | None = None,
    ) -> Node:
        """The nodes of a computation on tensors, in the backward pass if nothing else inserts them."""
        insert = insert or self._backward
        nodes = [one for one in arguments if isinstance(one, Node)]
        values = [one.meta["val"] for one in nodes]

        def run(*tensors: torch.Tensor) -> torch.Tensor:
            left = iter(tensors)
            made: torch.Tensor = compute(*(next(left) if isinstance(one, Node) else one for one in arguments))
            return made

        with _fake_mode(like), as_recorded():
            traced = make_fx(run, _DECOMPOSED)(*values)
        copies: dict[Node, Node] = dict(zip(traced.graph.find_nodes(op="placeholder"), nodes, strict=True))
        result = None
        for node in traced.graph.nodes:
            if node.op == "call_function":
                args = torch.fx.map_arg(node.args, copies.__getitem__)
                kwargs = torch.fx.map_arg(node.kwargs, copies.__getitem__)
                copies[node] = insert(node.target, args, like, kwargs)
            elif node.op == "output":
                result = copies[node.args[0]]
        assert result is not None
        return result

    # Attention for its own backward pass

    def _result(self, node: Node) -> Node:
        """A result of an attention that is done again, or a view of one."""
        parent = self._joint.parent(node)
        if parent is not None:
            return self._copy(node, self._arguments(node))
        group = self._joint.group(node)
        assert group is not None
        base = group.nodes[0]
        if base not in self._again:
            self._again[base] = self._copy(base, self._arguments(base))
        return self._copy(node, (self._again[base], node.args[1]))

    # Nodes

    def _copy(self, node: Node, args: tuple[Any, ...]) -> Node:
        kwargs = torch.fx.map_arg(node.kwargs, self._operand)
        return self._backward(node.target, args, node, kwargs)

    def _backward(
        self, target: Any, args: tuple[Any, ...], like: Node, kwargs: dict[str, Any] | None = None
    ) -> Node:
        """A node of the backward pass."""
        with self._graph.inserting_before(self._start):
            node = self._graph.call_function(target, args, kwargs or {})
        self._describe(node, like)
        node.meta["partitioner_tag"] = "must_be_in_backward"
        self.inserted.append(node)
        return node

    def _forward(
        self,
        behind: Node,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None = None,
        like: Node | None = None,
    ) -> Node:
        """A node of the forward pass, as soon as a tensor is there."""
        if behind.op == "placeholder":
            context = self._graph.inserting_before(self._first)
        else:
            context = self._graph.inserting_after(behind)
        with context:
            node = self._graph.call_function(target, args, kwargs or {})
        self._describe(node, like or behind)
        node.meta["partitioner_tag"] = "is_forward"
        return node

    def _describe(self, node: Node, like: Node) -> None:
        node.meta.update({key: like.meta[key] for key in _COPIED if key in like.meta})
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda one: one.meta["val"])
        with _fake_mode(like), as_recorded():
            node.meta["val"] = cast(Callable[..., Any], node.target)(*args, **kwargs)
        note_new_sizes(node)


class _Behind:
    """Inserts nodes of the forward pass one behind the other, the first behind a tensor."""

    def __init__(self, rewriter: Rewriter, node: Node) -> None:
        self._rewriter, self._last = rewriter, node

    def __call__(
        self, target: Any, args: tuple[Any, ...], like: Node, kwargs: dict[str, Any] | None = None
    ) -> Node:
        self._last = self._rewriter._forward(self._last, target, args, kwargs, like)
        return self._last


def merged(graph: Graph, apart: Sequence[Node]) -> Graph:
    """A graph in which nodes that do the same are one, as PyTorch's partitioners start with.

    Args:
        graph: of both passes.
        apart: nodes that stay by themselves: what does again what the forward pass did.
    """
    for number, node in enumerate(apart):
        node.kwargs = node.kwargs | {_APART: number}  # no two are alike
    found = fx_graph_cse(graph)
    for node in found.nodes:
        if _APART in node.kwargs:
            node.kwargs = {name: value for name, value in node.kwargs.items() if name != _APART}
    return found


def _laid_out(order: list[int], values: torch.Tensor) -> torch.Tensor:
    """A copy whose dimensions, from that of the largest stride to that of the smallest, have this order."""
    inverse = [order.index(one) for one in range(len(order))]
    return values.permute(order).clone(memory_format=torch.contiguous_format).permute(inverse)


def _fake_mode(node: Node) -> Any:
    value = node.meta["val"]
    while isinstance(value, (tuple, list)):
        value = value[0]
    return value.fake_mode
