"""What becomes of each tensor that a joint graph saves: what the policy decides, as far as a graph allows.

The decisions are those of ``Policy.decide`` for the same ``Facts`` as with hooks, in the order in which
the model saves. Some of what hooks ask of values a graph asks when it runs: ``measured.py``. Floats with
two values are told from others by the booleans that they are made of.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import nextafter, prod
from typing import Any, Literal

import torch
from torch.fx import Node

from ..backends.dtypes import AnyFormat
from ..facts.facts import Facts
from ..facts.geometry import Geometry
from ..facts.need import Need, Normed
from ..facts.watch import COPY, PARAMETER
from ..policy import Decision, Policy
from ..policy.decision import EXACT, Recompute, keeps_signs
from ..policy.policy import TABLE
from ..report.rows import BITS, COMPRESSED, INFINITIES, RECOMPUTED, SHORT_ROWS
from ..store.attention import may_be_again
from ..store.budget import Budget, bytes_in_format
from ..store.questions import AS_INFINITE
from .again import Made, Maker, is_checkpointed, is_repeatable
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

# Numbers beyond this may stand for infinities.
_FINITE = nextafter(AS_INFINITE, 0)
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
    def stored_bytes(self) -> int:
        if self.kind in ("recomputed", "again"):
            return 0
        if self.kind == "bits":
            return self.facts.elements // 8
        return bytes_in_format(self.facts, self.format)

    @property
    def format(self) -> AnyFormat | None:
        return self.decision.format if self.kind == "format" else None

    @property
    def is_exact(self) -> bool:
        if self.kind in ("recomputed", "again"):
            return self.made_of is not None and self.made_of.is_exact
        return self.kind in ("exact", "bits")


class Plan:
    """What becomes of every tensor that a graph saves.

    Args:
        joint: the graph.
        policy: decides.
        min_values: what has fewer stays as it is.
        saved: the tensors, in the order in which they are saved.
        budget: what may be recomputed by matrix products.
        is_captured: whether a GPU records what the graph does and replays it, so that nothing can be chosen.

    Attributes:
        entries: what was planned, in the order in which it is saved.
        outcome: the entry of each saved tensor.
        unknown: names of what saves tensors that no table knows, with an example's module and their bytes.
        remade: nodes whose memory is computed anew; recomputation takes all others as they are.
        anew: nodes made of indices or parameters alone that the partitioner is to compute anew.
        start: the first node of the backward pass; None if there is none.
    """

    def __init__(
        self,
        joint: Joint,
        policy: Policy,
        min_values: int,
        saved: list[Saved],
        budget: Budget,
        is_captured: bool = False,
    ) -> None:
        self._joint, self._policy, self._min_values = joint, policy, min_values
        self._budget, self._is_captured = budget, is_captured
        self._maker = Maker(joint, self._serving)
        self.entries: list[Entry] = []
        self.outcome: dict[Saved, Entry] = {}
        self.unknown: dict[str, tuple[str, int]] = {}
        self.remade, self.anew = set[Node](), set[Node]()
        self._held: dict[tuple[Node, Any], Entry] = {}
        self._tables = set[tuple[Node, Any]]()  # of indices, which the backward pass has
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

    @property
    def stored_bytes(self) -> int:
        """Bytes of what is kept, parameters and buffers left out; in the coarsest format that is measured."""
        kept = (one for one in self.entries if not one.facts.constant and one.node not in self.anew)
        joint = self._joint
        return sum(
            {(joint.root(one.node), joint.region(one.node)): one.stored_bytes for one in kept}.values()
        )

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
            if facts.constant == f"{PARAMETER}{COPY}":  # as autocast makes, which the parameter outlives
                self.anew |= set(joint.chain(node))
            return
        if decision.unknown and facts.elements >= self._min_values:
            module, nbytes = self.unknown.get(saved.saved_by, (saved.module, 0))
            self.unknown[saved.saved_by] = module, nbytes + facts.elements * facts.dtype.itemsize
        if is_checkpointed(joint, node):
            self._add(saved, Entry(node, "exact", facts, CHECKPOINTED))
            return
        if node in joint.of_indices:
            self._tables.add((joint.root(node), joint.region(node)))
            self._add(saved, Entry(node, "exact", facts, OF_INDICES))
            if facts.elements >= self._min_values and all(
                is_tensor(one) and is_repeatable(one) for one in joint.chain(node)
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
        """Whether the graph can measure how fine it has to be: of queries and keys, a softmax, an angle."""
        group = saved.group
        if self._is_captured or group is None:
            return False
        if saved.need is Need.PROBABILITIES:
            node = self._joint.canonical(saved.node)
            return geometry_of(node).size == geometry_of(saved.node).size
        if saved.need is Need.ANGLE:
            return True
        return group.op.is_attention and group.is_whole

    def _add(self, saved: Saved, entry: Entry) -> None:
        entry.uses.append(saved)
        self.entries.append(entry)
        self.outcome[saved] = entry

    def _serves(self, entry: Entry, saved: Saved, facts: Facts, decision: Decision) -> bool:
        """Whether what is kept of a tensor is good enough for one more operation, or was made so."""
        if entry.is_exact:
            return True
        if decision.exact_if_shared and entry.facts.layer != facts.layer:
            entry.kind, entry.kept = "exact", TABLE  # its error would be the same in all layers
            return True
        if entry.kind in ("recomputed", "again"):
            return decision.recompute == "lossy" or (not any(decision.least) and decision.normed is None)
        if decision.format is None:
            return False
        if decision.finer or entry.measured is not None:
            return self._serves_measured(entry, saved, decision)
        has, wants = entry.decision.strength, decision.least
        before, normed = entry.decision.normed, decision.normed
        if normed in (None, before) and has[0] >= wants[0] and has[1] >= wants[1]:
            return True
        if facts.elements != entry.facts.elements or (before is not None and before != normed):
            return False
        if before is None and normed is not None:
            if (
                entry.decision.of != "values"
                or has > decision.strength
                or not self._may_be_normed(saved, entry.node, normed)
            ):
                return False  # others need of it what it has
            entry.normed = saved.node
        entry.decision = replace(decision, of=entry.decision.of)
        entry.channels = entry.channels if decision.channels else None
        return self._fits(entry, geometry_of(entry.node))

    def _serves_measured(self, entry: Entry, saved: Saved, decision: Decision) -> bool:
        """Whether what is kept of a tensor is good enough where one of two nodes has it measured."""
        has, wants = entry.decision.strength, decision.least
        if not decision.finer:
            return decision.normed is None and has[0] >= wants[0] and has[1] >= wants[1]
        if entry.measured is not None:
            is_same_measure = entry.measured.group is saved.group or (
                entry.measured.need is Need.ANGLE and saved.need is Need.ANGLE
            )
            return is_same_measure and entry.decision.finer == decision.finer
        if entry.decision.normed is not None or has > decision.strength:
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
        if decision.recompute != "no" and (made := self._made(saved, facts, decision)) is not None:
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

    def _made(self, saved: Saved, facts: Facts, decision: Decision) -> Made | None:
        """How a tensor is recomputed; None if it cannot be, or by more products than there is time for."""
        made = self._maker.made(saved.node, decision.recompute == "exact", decision.products)
        if made is None or (facts.need is Need.TANH and not (made.is_exact or made.bends)):
            return None  # its argument may spread widely
        if not (made.flops and decision.products):
            return made
        nbytes = bytes_in_format(facts, decision.format)
        return made if self._budget.allows(facts, made.flops, nbytes) else None

    def _serving(self, node: Node) -> Made | None:
        """How what is kept of a tensor serves as an operand; None if nothing is kept of it."""
        if (self._joint.root(node), self._joint.region(node)) in self._tables:
            return Made()
        held = self.holder(node)
        if held is None:
            return None
        if held.made_of is not None and held.kind != "exact":
            return replace(held.made_of, product_flops={})  # they are done for that already
        if held.is_exact:
            return Made()
        return Made(is_exact=False, leaves=frozenset({held.node}), is_pointwise=True)

    def _of_repeated(self, saved: Saved) -> Made | None:
        """How a tensor is repeated anew, of what is kept of its values once."""
        source = self._joint.repeated(saved.node)
        if source is None:
            return None
        self._keep(replace(saved, node=source, users=[]))
        return self._maker.made(saved.node, only_exact=False)

    def _of_mask(self, saved: Saved, facts: Facts) -> Made | None:
        """How a float mask is made anew of booleans, which are kept as bits."""
        joint, mask = self._joint, self._joint.mask(saved.node)
        if mask is None or facts.requires_grad or not _is_dense(mask):
            return None
        if self.holder(mask) is None:
            of_mask = replace(facts, dtype=torch.bool, made_by=joint.made_by(mask))
            self._held[mask, joint.region(mask)] = Entry(mask, "bits", of_mask, BITS)
        return self._maker.made(saved.node, only_exact=True)

    def _fits(self, entry: Entry, geometry: Geometry) -> bool:
        """Give an entry the rows of its format; it is exact where that would not be smaller."""
        fmt, value, facts = entry.decision.format, entry.node.meta["val"], entry.facts
        assert fmt is not None
        if keeps_signs(fmt):
            entry.row = 0
            return True
        row = geometry.region.row(facts.row(geometry))
        if not is_static(value):
            other = otherwise(value)
            others = other.region.row(facts.row(other))
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


def _is_dense(node: Node) -> bool:
    """Whether every element of a tensor has memory of its own, in an order of its dimensions."""
    geometry = geometry_of(node)
    return geometry.count > 0 and geometry.count == geometry.region.count == prod(geometry.region.size)
