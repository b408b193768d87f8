"""Carries out what was decided of a saved tensor."""

from __future__ import annotations

import weakref
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ..backends import Backend, streams
from ..backends.bits import BitsCodec
from ..backends.checksum import checksums
from ..facts.facts import Facts, name_of
from ..facts.geometry import Geometry, Region
from ..facts.need import Need
from ..facts.origin import Origin
from ..facts.watch import COPY, PARAMETER, Watch
from ..offload import Handle, Step
from ..policy import Decision
from ..policy.decision import EXACT
from ..policy.policy import TABLE
from ..report.report import Sums, Tally
from ..report.rows import BITS, COMPRESSED, INFINITIES, INPUT, RECOMPUTED, REPEATED, SHORT_ROWS
from .attention import Logits, Node
from .budget import Budget, bytes_in_format
from .centred import Means, has_means, means_of
from .codecs import Codecs
from .differences import Difference, RunningSum, are_apart, fits
from .entries import Entry, Exact, Joint, Packed, Source
from .questions import fine_enough, is_finite, two_values
from .recomputed import Planner, Recomputed, source_of
from .saved import Saved
from .softmaxes import softmax_behind
from .verdicts import MOST_ANSWERS, Flag, Verdicts


class Store:
    """Stores tensors of one forward pass, and holds none: what is stored goes with autograd's graph.

    Args:
        codecs: what compresses.
        watch: that knows of storages.
        verdicts: answers about values, of all steps.
        shared: what turned out to be a table that several layers share, of all steps.
        tally: where it is counted.
        min_values: what has fewer stays exact.
        verify: whether blocks have checksums.
        step: where tensors go, None if they stay in their memory.
        budget: what may be recomputed by matrix products, of all steps.

    Attributes:
        logits: of the attention whose queries and keys are kept now; None if only one of them is known.
    """

    make_entry: type[Entry] = Entry

    def __init__(
        self,
        codecs: Codecs,
        watch: Watch,
        verdicts: Verdicts,
        shared: set[Facts],
        tally: Tally,
        min_values: int,
        verify: bool,
        step: Step | None,
        budget: Budget,
    ) -> None:
        self._budget = budget
        self._codecs, self._verdicts, self._shared, self._tally = codecs, verdicts, shared, tally
        self._min_values, self._verify, self._step = min_values, verify, step
        self._planner = Planner(watch, verdicts)
        self._too_small = f"under {max(min_values, 1)} values"
        self._doubted: list[weakref.ref[Entry]] = []
        self._last: weakref.ref[Entry] | None = None  # of the tensors that follow each other
        self._sum = RunningSum()
        self.logits: Logits | None = None

    def end(self) -> None:
        """The forward pass is over.

        The sum is made anew in the backward pass, but from a disk: what is there is read once.
        """
        if self._step is None:
            self._sum.forget()
        self._sum, self._last = RunningSum(), None  # the backward pass has it as long as it needs it

    def keep(self, saved: Saved, facts: Facts, decision: Decision) -> Exact | Packed:
        """Keep a saved tensor as was decided; what autograd holds in its place."""
        tensor, origin = saved.values, saved.origin
        assert tensor is not None
        if self._doubted:  # their values go as soon as they are not needed
            self._doubted = [ref for ref in self._doubted if (one := ref()) is not None and one.is_doubtful]
        geometry = saved.geometry
        region = geometry.region
        source = source_of(origin, tensor, tensor._version)
        if facts.constant:
            if (cast := self._cast_again(saved, facts, source, region)) is not None:
                return Packed(cast, geometry)
            return self.leave(saved, facts, source, region, decision.why)
        if not facts.elements:  # as the tokens of an expert that gets none
            return self._keep_small(saved, facts, source, geometry)
        if self._shared and facts in self._shared:
            decision = replace(decision, format=None, finer=(), recompute="no", why=TABLE)
        doubt = None
        if decision.finer:
            decision, doubt = fine_enough(self._verdicts, facts, decision, tensor, self.logits)
        for entry in source.holding(region):
            if self._serves(entry, facts, decision, tensor) and self._may_doubt(entry, doubt, region, tensor):
                if isinstance(entry, Recomputed):
                    self._count_more(entry, region)
                return Packed(entry, geometry)
        if source.is_left(region):
            return self.leave(saved, facts, source, region, decision.why)
        if facts.elements < self._min_values:
            return self._keep_small(saved, facts, source, geometry)

        if decision.format is not None and facts.need is Need.RELATIVE:
            self._refine_softmax(origin, tensor, decision)
        new, kept = self._entry_for(saved, facts, decision, source, geometry)
        if new is not None:
            self._may_doubt(new, doubt, region, tensor)
            return Packed(new, geometry)
        return self.leave(saved, facts, source, region, kept, self._step)

    def leave(
        self,
        saved: Saved,
        facts: Facts,
        source: Source,
        region: Region,
        why: str,
        step: Step | None = None,
    ) -> Exact:
        """A tensor that stays as it is."""
        tensor = saved.values
        assert tensor is not None
        if facts.constant and (parameter := saved.parameter) is not None:
            tensor = parameter
        exact = Exact(tensor, source, bool(saved.function))
        if count := source.leave(region, exact):
            nbytes = count * tensor.element_size()
            held = nbytes
            if not facts.constant:  # a part keeps all of the storage alive
                held = 0 if source.is_held else source.elements * tensor.element_size()
                source.is_held = True
            if step is not None:
                step.keep(source, held)
            self.count(saved, facts, why, nbytes, held)
        return exact

    def keep_result(self, node: Node, number: int, saved: Saved, facts: Facts) -> Packed | None:
        """A result of an attention that is done again, for its own node; None if it cannot be made so."""
        tensor = saved.values
        assert tensor is not None
        geometry = Geometry.of(tensor)
        if geometry.region.has_gaps:
            return None
        entry = node.result(number, source_of(saved.origin, tensor, tensor._version), tensor, facts)
        entry.facts, entry.sums = facts, self.count(saved, facts, RECOMPUTED, 0, 0)
        saved.origin.recipe = None
        self._count_more(entry, geometry.region)
        return Packed(entry, geometry)

    def _serves(self, entry: Entry, facts: Facts, decision: Decision, tensor: torch.Tensor) -> bool:
        """Whether what is stored of a tensor is good enough for one more node, or was made so."""
        if entry.is_exact:
            return True
        if decision.exact_if_shared and entry.facts.layer != facts.layer:
            # Its error would be the same in all layers.
            if len(self._shared) >= MOST_ANSWERS:
                self._shared.clear()
            self._shared |= {entry.facts, facts}
            return self._finer(entry, Decision(why=TABLE), tensor)
        if decision.format is None and not isinstance(entry, Recomputed):
            return False
        return entry.serves(decision) or self._finer(entry, decision, tensor)

    def _finer(self, entry: Entry, decision: Decision, tensor: torch.Tensor) -> bool:
        """Store a tensor anew for a node that needs more of it, if its entry has no more than the tensor."""
        region = Geometry.of(tensor).region
        if isinstance(entry, (Recomputed, Joint)) or entry.region != region or not entry.is_alone:
            return False
        if entry.is_followed:  # what follows is the difference from what it has
            return False
        is_normed = entry.means is not None and entry.means.is_needed
        is_other = is_normed and decision.normed is None  # a norm needs it without means
        is_coarser = decision.normed is not None and not is_normed and entry.strength > decision.strength
        if decision.format is not None and (is_other or is_coarser):
            return False  # others need of it what it has
        values, means = region.values(tensor), None
        codec = None
        if entry.of != "values":  # which says more of what is near an end
            if decision.normed is not None:
                return False
            decision = replace(decision, of=entry.of)
        if decision.format is not None and has_means(tensor, decision):
            codec = self._codec(decision, region, entry.facts.row(Geometry.of(tensor)))
        if codec is not None and (means := means_of(tensor, decision)) is not None:
            values = means.without(tensor)
        stored = values.clone() if codec is None else codec.compress(values)
        sums = checksums(stored) if codec is not None and self._verify else None
        handle = self._step.put(stored, entry.name, stored) if self._step is not None else None
        kept = COMPRESSED if codec is not None else decision.why or SHORT_ROWS
        before = entry.nbytes
        strength = decision.strength if codec is not None else EXACT
        entry.become(codec, stored if handle is None else handle, sums, strength, means)
        if self._last is not None and self._last() is entry:
            self._sum = RunningSum()  # which had its values as they were
        kept = kept if handle is None else f"{kept}, offloaded"
        entry.sums = self._tally.move(entry.sums, kept, entry.original, (before, entry.nbytes))
        return True

    def _keep_small(self, saved: Saved, facts: Facts, source: Source, geometry: Geometry) -> Exact | Packed:
        # A small tensor inside a large storage is copied, so that it does not keep all of it alive.
        if facts.elements < source.elements:
            why = self._too_small
            return Packed(
                self._store(saved, facts, source, geometry.region, None, why, None, Decision()), geometry
            )
        return self.leave(saved, facts, source, geometry.region, self._too_small)

    def _entry_for(
        self, saved: Saved, facts: Facts, decision: Decision, source: Source, geometry: Geometry
    ) -> tuple[Entry | None, str]:
        """A new entry as was decided, None if the tensor stays as it is; and what the report says of it."""
        tensor, region = saved.values, geometry.region
        assert tensor is not None
        flag, kept = None, decision.why
        codec: Backend | BitsCodec | None = None
        if tensor.dtype == torch.bool and decision.bits:
            codec, kept = BitsCodec.of(region.values(tensor)), BITS
        elif decision.recompute != "no" and (entry := self._recompute(saved, facts, decision)) is not None:
            return entry, RECOMPUTED
        elif decision.bits and (found := self._bits(facts, region.values(tensor))) is not None:
            (codec, flag), kept = found, BITS
        elif decision.format is not None and not has_means(tensor, decision):
            kept = REPEATED
        elif decision.format is not None:
            kept = COMPRESSED
            if decision.finite:
                holds, flag = is_finite(self._verdicts, facts, tensor, region)
                kept = COMPRESSED if holds else INFINITIES
            if kept is COMPRESSED and (codec := self._codec(decision, region, facts.row(geometry))) is None:
                kept = SHORT_ROWS
        saved.origin.forget_recipe(region)
        if codec is None and self._step is None:
            return None, kept
        streams.hold(tensor)
        step, row = self._step, facts.row(geometry)
        return self._store(saved, facts, source, region, codec, kept, step, decision, flag, row), kept

    def _cast_again(self, saved: Saved, facts: Facts, source: Source, region: Region) -> Entry | None:
        """What casts a parameter again, as autocast did; None if the copy has to stay."""
        if facts.constant != f"{PARAMETER}{COPY}" or facts.elements < self._min_values:
            return None
        for entry in source.holding(region):
            if entry.is_exact:
                return entry
        return None if source.is_left(region) else self._recompute(saved, facts, Decision(recompute="exact"))

    def _codec(self, decision: Decision, region: Region, row: int) -> Backend | None:
        """What compresses a region whose rows have so many values; None if it stays exact."""
        return self._codecs.smaller(decision, region, row)

    def _bits(self, facts: Facts, values: torch.Tensor) -> tuple[BitsCodec, Flag | None] | None:
        """What stores two values as bits, as ``two_values`` finds it."""
        return two_values(self._verdicts, facts, values)

    def _recompute(self, saved: Saved, facts: Facts, decision: Decision) -> Recomputed | None:
        """What a tensor is recomputed from; None if it has to be kept."""
        tensor, origin = saved.values, saved.origin
        assert tensor is not None
        only_exact = decision.recompute == "exact"
        planned = self._planner.plan(tensor, origin, facts, only_exact, decision.products)
        if planned is None:
            return None
        redone, whole = planned
        if facts.need is Need.LOGITS and redone.products and redone.bits < decision.least[1]:
            return None  # fewer bits than attention bears
        is_counted = redone.flops > 0 and decision.products
        if is_counted and not self._budget.allows(
            facts, redone.flops, bytes_in_format(facts, decision.format)
        ):
            return None
        if self._planner.copied:
            self.count(saved, facts, INPUT, 0, self._planner.copied)
        origin.recipe = None
        entry = Recomputed(source_of(origin, tensor, tensor._version), whole, tensor, redone)
        entry.facts, entry.sums = facts, self.count(saved, facts, RECOMPUTED, 0, 0)
        self._count_more(entry, Geometry.of(tensor).region)
        return entry

    def _count_more(self, entry: Recomputed, region: Region) -> None:
        """Count what was not saved before of a region that is recomputed."""
        if count := entry.save(region):
            self._tally.more(entry.sums, count * entry.dtype.itemsize)

    def _refine_softmax(self, origin: Origin, tensor: torch.Tensor, decision: Decision) -> None:
        """Store a softmax anew, as finely as what numbers made of it."""
        if (found := softmax_behind(origin, tensor)) is None:
            return
        softmax, values = found
        source: Source | None = softmax.origin.source(softmax.version, softmax.dtype)
        for entry in () if source is None else source.holding(softmax.geometry.region):
            if not entry.serves(decision):
                self._finer(entry, decision, values)

    def _may_doubt(self, entry: Entry, flag: Flag | None, region: Region, tensor: torch.Tensor) -> bool:
        """Whether an entry will do until a flag is there; its values stay until then."""
        if flag is None or entry.is_exact:
            return True
        if isinstance(entry, Joint) or entry.region != region:
            return False
        entry.doubt(flag, region.values(tensor))
        self._doubted.append(weakref.ref(entry))
        return True

    def _store(
        self,
        saved: Saved,
        facts: Facts,
        source: Source,
        region: Region,
        codec: Backend | BitsCodec | None,
        kept: str,
        step: Step | None,
        decision: Decision,
        flag: Flag | None = None,
        row: int = 0,
    ) -> Any:
        """Store what others have not stored of a tensor's region, and say so in the report.

        None if it stays where it is, as it may, unless it is offloaded.
        """
        tensor = saved.values
        assert tensor is not None
        may_stay = codec is None and step is not None
        is_lossy = codec is not None and not isinstance(codec, BitsCodec)
        means: Means | None = None
        if is_lossy and region.count >= self._min_values:
            means = self._difference(facts, decision, tensor) if decision.follows else None
            means = means or means_of(tensor, decision)
        strength = decision.strength if is_lossy else EXACT
        parts, rest = ([], [region]) if means is not None else source.shared(region, codec)
        new: list[Entry] = []
        original, stored, is_away = 0, 0, False
        for one in rest if parts else [region]:
            if parts and codec is not None and not isinstance(codec, BitsCodec):
                codec = self._codec(decision, one, row)
            entry = self._entry(
                *(source, one, codec, saved, step, facts, flag, may_stay and not parts, means),
                follows=decision.follows and is_lossy and not parts,
            )
            if entry is None:
                return None
            entry.strength, entry.is_alone = strength, not parts
            entry.of = decision.of if is_lossy else "values"
            entry.original = one.count * tensor.element_size()
            original, stored = original + entry.original, stored + entry.nbytes
            is_away = is_away or isinstance(entry.stored, Handle)
            new.append(entry)
        if is_away:
            kept = f"{kept if codec is not None else 'exact'}, offloaded"
        if new:
            sums = self.count(saved, facts, kept, original, stored)
            for entry in new:
                entry.sums = sums
        if not parts:
            return new[0]
        joint = Joint(source, region, tensor, [*parts, *((entry, entry.region) for entry in new)])
        joint.facts = facts
        return joint

    def _difference(self, facts: Facts, decision: Decision, tensor: torch.Tensor) -> Difference | None:
        """The difference from what is stored of the last such tensor, None if that is not smaller."""
        before = self._last() if self._last is not None else None
        if before is not None and fits(tensor, before):
            total = self._sum.of(before)
            if not self._verdicts.ask(("apart", facts), partial(are_apart, tensor, total)):
                return Difference(tensor, before, self._sum, decision.channels)
        self._sum, self._last = RunningSum(), None
        return None

    def _entry(
        self,
        source: Source,
        region: Region,
        codec: Backend | BitsCodec | None,
        saved: Saved,
        step: Step | None,
        facts: Facts,
        flag: Flag | None,
        may_stay: bool,
        means: Means | None = None,
        follows: bool = False,
    ) -> Entry | None:
        """Store a region that no one has; as it is if it is small. None if it stays and is not offloaded."""
        tensor = saved.values
        assert tensor is not None
        if region.count < self._min_values:
            codec = step = flag = None
        values = region.values(tensor)
        left = values if means is None else means.without(tensor)
        stored = values if codec is None else codec.compress(left)
        sums = checksums(stored) if codec is not None and self._verify else None
        is_same = codec is None and not region.has_gaps  # memory, which what has gaps is copied out of
        name = _title(saved.op, tensor) if self._verify or step is not None else ""
        handle = step.put(stored, name, tensor if is_same else stored) if step is not None else None
        if handle is not None:
            entry = self.make_entry(source, region, codec, values, handle, sums, name)
        elif may_stay:
            return None
        else:
            stored = stored.clone() if is_same else stored
            entry = self.make_entry(source, region, codec, values, stored, sums, name)
            if step is not None:
                step.keep(entry, entry.nbytes)
        entry.facts, entry.means, entry.stride = facts, means, tensor.stride()
        if follows and codec is not None and fits(tensor, entry):
            self._last = weakref.ref(entry)
            self._sum.move(entry, codec.decompress(stored, region.count))
        if flag is not None:
            entry.doubt(flag, values)
            self._doubted.append(weakref.ref(entry))
        return entry

    def count(self, saved: Saved, facts: Facts, kept: str, original: int, stored: int) -> Sums:
        """Count a tensor in its row of the report."""
        return self._tally.add(facts, saved.op, kept, original, stored)


def _title(op: str, tensor: torch.Tensor) -> str:
    """What an error calls a tensor."""
    shape = " x ".join(map(str, tensor.shape)) or "scalar"
    return f"{op + ', ' if op else ''}{shape}, {name_of(tensor.dtype)}"
