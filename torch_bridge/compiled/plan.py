"""What becomes of each tensor that a joint graph saves: what the policy decides, as far as a graph allows.

The decisions are those of ``Policy.decide`` for the same ``Facts`` as with hooks, in the order in which
the model saves. Some of what hooks ask of values a graph asks when it runs: ``measured.py``. Floats with
two values are told from others by the booleans that they are made of, and a sum of lossy tensors is
recomputed only if it is known that it does not cancel.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import nextafter, prod
from typing import Any, Literal

import torch
from torch.fx import Node
from torch.utils.checkpoint import CheckpointPolicy

from ..backends.dtypes import AnyFormat
from ..facts.facts import Facts
from ..facts.geometry import Geometry
from ..facts.needs import Need, Normed
from ..facts.products import PRODUCTS, wide_input
from ..facts.recompute import RECOMPUTATIONS, Recomputation
from ..policy import Decision, Policy
from ..policy.decision import EXACT, Recompute, Strength, keeps_signs, strength_of
from ..policy.policy import TABLE
from ..report.rows import BITS, COMPRESSED, RECOMPUTED
from ..store.attention import may_be_again
from ..store.recomputed import MOST_OPERATIONS, MOST_WORK
from ..store.store import AS_INFINITE, INFINITIES, SHORT_ROWS, layer_of, row_of
from .joint import Group, Joint, geometry_of, is_tensor
from .saved import Saved, facts_of, is_same
from .sizes import is_static, otherwise

CHANGING_ROWS = "rows whose length changes"
OVERLAPS = "elements share memory"
BEHIND = "made in the backward pass"
NOT_MEASURED = "how fine it has to be is not known"
NORMED = "a norm reads it in another shape or order"
# The partitioner computes it anew where that is cheap.
OF_INDICES = "made of indices"
CHECKPOINTED = "recomputed by activation checkpointing"

_AGAIN = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)
# Numbers beyond this may stand for infinities.
_FINITE = nextafter(AS_INFINITE, 0)
# What is at most this part of what is recomputed is kept for it.
_SMALL = 1 / 64
# Of a decomposed operation that is recomputed only for some arguments: nodes under which errors stay small.
_ATEN, _PRIMS = torch.ops.aten, torch.ops.prims
_SMOOTH = (
    *(_ATEN.add.Tensor, _ATEN.sub.Tensor, _ATEN.mul.Tensor, _ATEN.add.Scalar, _ATEN.mul.Scalar),
    *(_ATEN.neg.default, _ATEN.clone.default, _ATEN.unsqueeze.default, _ATEN.squeeze.dims),
    *(_ATEN.view.default, _ATEN.expand.default, _PRIMS.convert_element_type.default),
)

Kind = Literal["exact", "format", "bits", "recomputed", "again"]


@dataclass(eq=False)
class Entry:
    """What becomes of one tensor's memory.

    Attributes:
        node: that has the memory, before views are made of it.
        kind: how it is kept.
        facts: of the first that saved it.
        kept: what the report says.
        decision: its format, and what of the values goes into it.
        row: values of memory that share blocks, 0 where there are no rows.
        made_of: how it is recomputed.
        uses: whose backward formulas read it.
        normed: the tensor that a norm reads, whose means are taken out; it has the node's memory.
        channels: the tensor whose channels' means are taken out; likewise.
        measured: whose backward pass needs it as finely as is measured when the graph runs; None without.
    """

    node: Node
    kind: Kind
    facts: Facts
    kept: str
    decision: Decision = field(default_factory=Decision)
    row: int = 0
    made_of: Made | None = None
    uses: list[Saved] = field(default_factory=list)
    normed: Node | None = None
    channels: Node | None = None
    measured: Saved | None = None

    @property
    def formats(self) -> list[AnyFormat | None]:
        """Its format, and those that are finer; None is for exact."""
        return [self.decision.format, *(fmt for _, fmt in self.decision.finer)]

    @property
    def format(self) -> AnyFormat | None:
        return self.decision.format if self.kind == "format" else None

    @property
    def is_exact(self) -> bool:
        if self.kind in ("recomputed", "again"):
            return self.made_of is not None and self.made_of.is_exact
        return self.kind in ("exact", "bits")


@dataclass(frozen=True)
class Made:
    """How a tensor is computed anew in the backward pass.

    Attributes:
        operations, work: done in all, and values that these compute.
        is_exact: whether all that it starts from comes back as it was.
        leaves: the lossy tensors that it starts from.
        is_pointwise: whether it is made of lossy tensors alone, value by value.
        saturates: whether it nears an end and never passes it.
        remade: nodes whose memory is computed anew for it.
    """

    operations: int = 0
    work: int = 0
    is_exact: bool = True
    leaves: frozenset[Node] = frozenset()
    is_pointwise: bool = False
    saturates: bool = False
    remade: frozenset[Node] = frozenset()


class Plan:
    """What becomes of every tensor that a graph saves.

    Args:
        joint: the graph.
        policy: decides.
        min_values: what has fewer stays as it is.
        saved: the tensors, in the order in which they are saved.
        is_captured: whether a GPU records what the graph does and replays it, so that nothing can be chosen.

    Attributes:
        entries: what was planned, in the order in which it is saved.
        outcome: the entry of each saved tensor.
        unknown: names of what saves tensors that no table knows, with an example's module and their bytes.
        remade: nodes whose memory is computed anew; recomputation takes all others as they are.
        anew: nodes made of indices alone that the partitioner is to compute anew.
        start: the first node of the backward pass; None if there is none.
    """

    def __init__(
        self, joint: Joint, policy: Policy, min_values: int, saved: list[Saved], is_captured: bool = False
    ) -> None:
        self._joint, self._policy, self._min_values = joint, policy, min_values
        self._is_captured = is_captured
        self.entries: list[Entry] = []
        self.outcome: dict[Saved, Entry] = {}
        self.unknown: dict[str, tuple[str, int]] = {}
        self.remade, self.anew = set[Node](), set[Node]()
        self._held: dict[tuple[Node, Any], Entry] = {}
        backward = (node for node in joint.nodes if node in joint.backward and node.op == "call_function")
        self.start = next(backward, None)
        self._again = self._attention(saved)
        if self.start is not None:
            for one in saved:
                self._keep(one)

    @property
    def changes(self) -> bool:
        """Whether anything is kept in another way than the graph would."""
        return any(entry.kind != "exact" for entry in self.entries)

    def holder(self, node: Node) -> Entry | None:
        """What is kept of a tensor's memory, or of all of it that a view is made of."""
        at: Node | None = node
        root = self._joint.root(node)
        while at is not None:
            entry = self._held.get((root, self._joint.region(at)))
            if entry is not None:
                return entry
            at = self._joint.parent(at)
        return None

    # What becomes of one

    def _keep(self, saved: Saved) -> None:
        joint, node = self._joint, saved.node
        facts = facts_of(joint, saved, is_again=saved.group in self._again)
        decision = self._policy.decide(facts)
        if decision.finer:
            how: Recompute = "no" if decision.recompute == "no" else "exact"
            decision = replace(decision, recompute=how)
            if not self._may_choose(saved):
                decision = replace(decision, format=None, finer=(), least=EXACT, why=NOT_MEASURED)
        if facts.constant:
            self._add(saved, Entry(node, "exact", facts, decision.why))
            return
        if decision.unknown and facts.elements >= self._min_values:
            module, nbytes = self.unknown.get(saved.saved_by, (saved.module, 0))
            self.unknown[saved.saved_by] = module, nbytes + facts.elements * facts.dtype.itemsize
        if is_checkpointed(joint, node):
            self._add(saved, Entry(node, "exact", facts, CHECKPOINTED))
            return
        if node in joint.of_indices:
            self._add(saved, Entry(node, "exact", facts, OF_INDICES))
            if facts.elements >= self._min_values and all(
                is_tensor(one) and _is_repeatable(one) for one in joint.chain(node)
            ):
                self.anew |= set(joint.chain(node))
            return
        held = self.holder(node)
        if held is not None and self._serves(held, saved, facts, decision):
            self.outcome[saved] = held
            held.uses.append(saved)
            return
        if held is not None and held.kind != "again":  # whose results belong together
            held.kind, held.kept = "exact", decision.why or "exact"
            self.outcome[saved] = held
            return
        is_again = saved.group in self._again and saved.place is None
        if facts.elements < self._min_values and not is_again:
            self._add(saved, Entry(node, "exact", facts, f"under {self._min_values} values"))
            return
        entry = self._entry(saved, facts, decision)
        self._held[joint.root(node), joint.region(node)] = entry
        self._add(saved, entry)

    def _may_choose(self, saved: Saved) -> bool:
        """Whether the graph can measure how fine a tensor has to be: of queries and keys, or a softmax."""
        group = saved.group
        if self._is_captured or group is None:
            return False
        if saved.need is Need.PROBABILITIES:
            node = self._joint.canonical(saved.node)
            return geometry_of(node).size == geometry_of(saved.node).size
        return group.op.is_attention and group.is_whole

    def _add(self, saved: Saved, entry: Entry) -> None:
        entry.uses.append(saved)
        self.entries.append(entry)
        self.outcome[saved] = entry

    def _serves(self, entry: Entry, saved: Saved, facts: Facts, decision: Decision) -> bool:
        """Whether what is kept of a tensor is good enough for one more operation, or was made so."""
        if entry.is_exact:
            return True
        if decision.exact_if_shared and layer_of(entry.facts.module) != layer_of(facts.module):
            entry.kind, entry.kept = "exact", TABLE  # its error would be the same in all layers
            return True
        if entry.kind in ("recomputed", "again"):
            return decision.recompute == "lossy" or (not any(decision.least) and decision.normed is None)
        if decision.format is None:
            return False
        if decision.finer or entry.measured is not None:
            return self._serves_measured(entry, saved, decision)
        has, wants = _strength(entry.decision), decision.least
        before, normed = entry.decision.normed, decision.normed
        if normed in (None, before) and has[0] >= wants[0] and has[1] >= wants[1]:
            return True
        if facts.elements != entry.facts.elements or (before is not None and before != normed):
            return False
        if before is None and normed is not None:
            if has > _strength(decision) or not self._may_be_normed(saved, entry.node, normed):
                return False  # others need of it what it has
            entry.normed = saved.node
        entry.decision = replace(decision, of=entry.decision.of)
        entry.channels = entry.channels if decision.channels else None
        return self._fits(entry, geometry_of(entry.node))

    def _serves_measured(self, entry: Entry, saved: Saved, decision: Decision) -> bool:
        """Whether what is kept of a tensor is good enough where one of two nodes has it measured."""
        has, wants = _strength(entry.decision), decision.least
        if not decision.finer:
            return decision.normed is None and has[0] >= wants[0] and has[1] >= wants[1]
        if entry.measured is not None:
            return entry.measured.group is saved.group and entry.decision.finer == decision.finer
        if entry.decision.normed is not None or has > _strength(decision):
            return False
        entry.decision, entry.measured = replace(decision, of=entry.decision.of), saved
        return entry.decision.of == "values" and self._fits(entry, geometry_of(entry.node))

    def _may_be_normed(self, saved: Saved, node: Node, normed: Normed) -> bool:
        """Whether the graph can take a norm's means out of a tensor, which lies as the norm reads it."""
        values = (saved.node.meta["val"], node.meta["val"])
        inputs = saved.group.inputs if saved.group is not None else ()
        size = geometry_of(saved.node).size
        is_input = any(
            is_same(self._joint, one, saved.node) and geometry_of(one).size == size for one in inputs
        )
        if not is_input or (normed.groups and not is_static(values[0])):
            return False
        return all(one.is_contiguous() for one in values)

    def _entry(self, saved: Saved, facts: Facts, decision: Decision) -> Entry:
        """A new entry, as far as what was decided can be done."""
        joint = self._joint
        node = joint.canonical(saved.node)
        exact = Entry(node, "exact", facts, decision.why or "exact", decision)
        assert self.start is not None
        if joint.place[node] > joint.place[self.start]:
            return replace(exact, kept=BEHIND)
        if saved.group in self._again and saved.place is None:
            return Entry(saved.node, "again", facts, RECOMPUTED, decision, made_of=Made(is_exact=False))
        is_dense = _is_dense(node)
        if facts.dtype == torch.bool and decision.bits and is_dense:
            return Entry(node, "bits", facts, BITS, decision)
        if decision.recompute in ("exact", "lossy"):
            made = self._made(saved.node, decision.recompute == "exact")
            if made is not None:
                self.remade |= made.remade
                return Entry(saved.node, "recomputed", facts, RECOMPUTED, decision, made_of=made)
        if decision.bits and (made := self._of_mask(saved, facts)) is not None:
            self.remade |= made.remade
            return Entry(saved.node, "recomputed", facts, RECOMPUTED, decision, made_of=made)
        if decision.format is None:
            return exact
        if decision.finite and (decision.finer or decision.normed is not None or self._is_captured):
            return replace(exact, kept=INFINITIES)
        if decision.finite:
            decision = replace(decision, finer=((_FINITE, None),))
        if (made := self._of_repeated(saved)) is not None:
            self.remade |= made.remade
            return Entry(saved.node, "recomputed", facts, RECOMPUTED, decision, made_of=made)
        if not is_dense:
            return replace(exact, kept=OVERLAPS)
        if decision.normed is not None and not self._may_be_normed(saved, node, decision.normed):
            return replace(exact, kept=NORMED)
        entry = Entry(node, "format", facts, COMPRESSED, decision)
        if decision.normed is not None:
            entry.normed = saved.node
        elif decision.channels and all(one.meta["val"].is_contiguous() for one in (saved.node, node)):
            entry.channels = saved.node
        if decision.finer:
            entry.measured = saved
        self._fits(entry, geometry_of(saved.node))
        return entry

    def _of_repeated(self, saved: Saved) -> Made | None:
        """How a tensor is repeated anew, of what is kept of its values once."""
        source = self._joint.repeated(saved.node)
        if source is None:
            return None
        self._keep(replace(saved, node=source, users=[]))
        return self._made(saved.node, only_exact=False)

    def _of_mask(self, saved: Saved, facts: Facts) -> Made | None:
        """How a float mask is made anew of booleans, which are kept as bits."""
        joint, mask = self._joint, self._joint.mask(saved.node)
        if mask is None or facts.requires_grad or not _is_dense(mask):
            return None
        if self.holder(mask) is None:
            of_mask = replace(facts, dtype=torch.bool, made_by=joint.made_by(mask))
            self._held[mask, joint.region(mask)] = Entry(mask, "bits", of_mask, BITS)
        return self._made(saved.node, only_exact=True)

    def _fits(self, entry: Entry, geometry: Geometry) -> bool:
        """Give an entry the rows of its format; it is exact where that would not be smaller."""
        fmt, value, facts = entry.decision.format, entry.node.meta["val"], entry.facts
        assert fmt is not None
        if keeps_signs(fmt):
            entry.row = 0
            return True
        row = geometry.region.row(row_of(facts, geometry))
        if not is_static(value):
            other = otherwise(value)
            others = other.region.row(row_of(facts, other))
            if row == geometry.region.count and others == other.region.count:
                entry.row = 0
                return True
            if row != others:
                entry.kind, entry.kept = "exact", CHANGING_ROWS
                return True
        in_rows = fmt.for_rows(row)
        padded = in_rows.padded_width(row) if row != geometry.region.count else row
        assert in_rows.target is not None
        if padded * in_rows.target >= row * in_rows.original_bytes:
            entry.kind, entry.kept = "exact", SHORT_ROWS
        entry.row = row
        return True

    # Attention that is done again

    def _attention(self, saved: list[Saved]) -> set[Group | None]:
        """Attentions that are done again for their own backward pass: it has all that they are given."""
        arguments: dict[Group, set[int | str]] = {}
        for one in saved:
            group = one.group
            if group is not None and group.op.is_attention and one.place is not None:
                arguments.setdefault(group, set()).add(one.place)
        return {group for group, places in arguments.items() if self._may_be_again(group, places)}

    def _may_be_again(self, group: Group, places: set[int | str]) -> bool:
        base, op = group.nodes[0], group.op
        given = {
            place
            for place, value in (*enumerate(base.args), *base.kwargs.items())
            if isinstance(value, Node) and is_tensor(value)
        }
        if not group.is_whole or given - places or not may_be_again(op, base.args, dict(base.kwargs)):
            return False
        if is_checkpointed(self._joint, base):
            return False
        results = {one.args[1]: one for one in group.nodes[1:]}
        for number in (0, 1):
            if number not in results:
                continue
            shape = geometry_of(results[number]).size
            name = f"{op.name}.{number}" if number else op.name
            facts = Facts(
                *(op.in_table, op.results.get(number, ""), Need.ATTENDED, name, "", group.module),
                *(results[number].meta["val"].dtype, shape, prod(shape), True),
            )
            if self._policy.decide(facts).recompute != "lossy":
                return False
        return True

    # Recomputation

    def _made(self, node: Node, only_exact: bool) -> Made | None:
        """How a tensor can be made of what is kept; None if it cannot, or not well enough."""
        joint = self._joint
        root, count = joint.root(node), joint.region(node).count
        if joint.region(root).has_gaps or geometry_of(root).count != joint.region(root).count:
            return None
        small = _SMALL * count * node.meta["val"].element_size()
        made = self._redo(root, small, only_exact)
        if made is None or made.operations > MOST_OPERATIONS or made.work > MOST_WORK * count:
            return None
        return made

    def _operand(self, node: Node, small: float, only_exact: bool) -> Made | None:
        """How what an operation is given is there in the backward pass."""
        joint = self._joint
        held = self.holder(node)
        if held is not None and (held.is_exact or not only_exact):
            if held.made_of is not None:
                return held.made_of
            return (
                Made()
                if held.is_exact
                else Made(is_exact=False, leaves=frozenset({held.node}), is_pointwise=True)
            )
        if joint.constant(node):
            return Made()
        made = self._redo(joint.root(node), small, only_exact) if held is None else None
        nbytes = joint.region(node).count * node.meta["val"].element_size()
        if made is None and nbytes <= small and not is_checkpointed(joint, node):
            return Made()
        return made

    def _redo(self, root: Node, small: float, only_exact: bool) -> Made | None:
        group = self._joint.group(root)
        way = way_of(group) if group is not None else None
        if group is None or way is None or root.op != "call_function":
            return None
        only_exact |= way.needs_exact
        if group.is_whole:
            if root not in (group.nodes[0], *(one for one in group.nodes if one.args[1:] == (0,))):
                return None
            values = tuple(_value(one) for one in group.nodes[0].args)
            if way.fits is not None and not way.fits(values):
                return None
            parts = self._parts(group, way, small, only_exact)
        else:
            parts = self._inner(group, way, root, small, only_exact)
        return None if parts is None else self._joined(group, way, root, parts)

    def _parts(self, group: Group, way: Recomputation, small: float, only_exact: bool) -> list[Made] | None:
        base = group.nodes[0]
        given = list(base.args) if way.takes is None else [base.args[place] for place in way.takes]
        operands = [one for one in (*given, *base.kwargs.values()) if isinstance(one, Node)]
        results = [one for one in group.nodes[1:] if one.args[1] in way.results]
        found = [self._operand(one, small, only_exact) for one in operands]
        if len(results) < len(way.results) or any(one is None for one in found):
            return None
        kept = [Made()] if results else []
        return [*(one for one in found if one is not None), *kept]

    def _inner(
        self, group: Group, way: Recomputation, root: Node, small: float, only_exact: bool
    ) -> list[Made] | None:
        """Of a decomposed operation: what the nodes that make its result are given from outside."""
        found: list[Made] = []
        waiting, seen = [root], {root}
        while waiting:
            node = waiting.pop()
            if node is not root and self.is_kept_result(way, node):
                found.append(Made())
                continue
            if not _is_repeatable(node) or (way.fits is not None and node.target not in _SMOOTH):
                return None
            for one in node.all_input_nodes:
                if one in group.inside:
                    if one not in seen:
                        seen.add(one)
                        waiting.append(one)
                elif not is_tensor(one):
                    return None
                else:
                    made = self._operand(one, small, only_exact)
                    if made is None:
                        return None
                    found.append(made)
        return found

    def is_kept_result(self, way: Recomputation, node: Node) -> bool:
        """Whether a node of a decomposed operation is a result that is kept: a statistic, or a mask."""
        if not way.results or not is_tensor(node):
            return False
        return node in self._joint.statistics or node.meta["val"].dtype == torch.bool

    def _joined(self, group: Group, way: Recomputation, root: Node, parts: list[Made]) -> Made | None:
        is_exact = all(part.is_exact for part in parts)
        lossy = [part for part in parts if not part.is_exact]
        leaves = frozenset[Node]().union(*(part.leaves for part in parts))
        is_pointwise = bool(lossy) and len(lossy) == len(parts) and all(part.is_pointwise for part in lossy)
        is_pointwise &= all(geometry_of(leaf).count == geometry_of(root).count for leaf in leaves)
        if way.may_cancel and not is_exact:
            numbers = [one for one in group.nodes[0].args if isinstance(one, (int, float)) and one]
            if numbers and not all(part.saturates for part in parts):
                return None
            if not numbers and not (is_pointwise and len(leaves) == 1):
                return None
        return Made(
            operations=1 + sum(part.operations for part in parts),
            work=geometry_of(root).count + sum(part.work for part in parts),
            is_exact=is_exact,
            leaves=leaves,
            is_pointwise=is_pointwise,
            saturates=way.saturates,
            remade=frozenset({root}).union(*(part.remade for part in parts)),
        )


def way_of(group: Group) -> Recomputation | None:
    """How an operation is done again: a cheap one, or a product as wide as a language model's head."""
    way = PRODUCTS.get(group.target)
    if way is None or not group.is_whole:
        return RECOMPUTATIONS.get(group.target)
    return way if wide_input(way, tuple(_value(one) for one in group.nodes[0].args)) >= 0 else None


def _strength(decision: Decision) -> Strength:
    """What is kept of the values: without their means they have no sign of their own."""
    keeps, bits = strength_of(decision.format)
    return keeps and decision.normed is None, bits


def _is_dense(node: Node) -> bool:
    """Whether every element of a tensor has memory of its own, in an order of its dimensions."""
    geometry = geometry_of(node)
    return geometry.count > 0 and geometry.count == geometry.region.count == prod(geometry.region.size)


def is_checkpointed(joint: Joint, node: Node) -> bool:
    """Whether activation checkpointing recomputes a tensor, or what made its memory."""
    return any(one.meta.get("recompute") in _AGAIN for one in (node, joint.root(node)))


def _is_repeatable(node: Node) -> bool:
    """Whether a node gives the same result once more: it draws no random numbers."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return getattr(target, "__name__", "") == "getitem"
    is_seeded = torch.Tag.nondeterministic_seeded in target.tags
    return not is_seeded and not any(word in target.name() for word in ("random", "seed", "rand"))


def _value(argument: Any) -> Any:
    return argument.meta.get("val") if isinstance(argument, Node) else argument
