"""What formats leave of the tensors that a forward pass saves."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from golden import Format

from ..backends import Backend
from ..backends.dtypes import TORCH_DTYPES, format_for
from ..facts.facts import Facts, name_of
from ..facts.geometry import Geometry, Region
from ..policy import Decision, Policy, Rule
from ..policy.decision import keeps_signs
from ..store.centred import Means, means_of
from ..store.entries import Entry
from ..store.questions import fine_enough
from ..store.saved import Saved
from ..store.store import Store

# Of a tensor that each format is tried on; all of a large one would take longer than training.
_TRIED_VALUES = 1 << 13


class Kind(NamedTuple):
    """What one rule can be about: tensors that one operation made in one module, of one dtype."""

    module: str
    op: str
    dtype: str

    @staticmethod
    def of(facts: Facts) -> Kind:
        return Kind(facts.module, facts.made_by, name_of(facts.dtype))


class Left(NamedTuple):
    """What a format leaves of a tensor.

    Attributes:
        nbytes: that it takes.
        error: the sum of its values' squared errors.
    """

    nbytes: float
    error: float


@dataclass
class Tried:
    """A compressed tensor, on which formats were tried.

    Attributes:
        entry: that has it.
        power: the sum of its values' squares.
        now: what is left of it in the entry.
        options: what the formats would leave of it, where it would not stay exact.
        own: those of them that are not too coarse for it, so that it would get no finer one.
    """

    entry: Switched
    power: float
    now: Left
    options: dict[Format | None, Left]
    own: set[Format]

    @property
    def kind(self) -> Kind:
        return Kind.of(self.entry.facts)

    @property
    def exact(self) -> Left:
        return Left(self.entry.region.count * self.entry.dtype.itemsize, 0)


class Switched(Entry):
    """A compressed tensor that stays in memory as well, and comes back exact unless its kind is lossy."""

    lossy: Lossy

    def __init__(self, source: Any, region: Region, codec: Any, values: torch.Tensor, *more: Any) -> None:
        super().__init__(source, region, codec, values, *more)
        self._exact = values

    @property
    def doubted(self) -> torch.Tensor | None:
        if self.is_exact or Kind.of(self.facts) in self.lossy.kinds:
            return super().doubted
        return self._exact.clone()


class Lossy:
    """Which kinds of tensors come back as they are compressed; all others come back exact."""

    kinds: Collection[Kind] = ()

    @contextmanager
    def only(self, *kinds: Kind) -> Iterator[None]:
        self.kinds = kinds
        try:
            yield
        finally:
            self.kinds = ()


class Trials:
    """Formats to try.

    Args:
        formats: all of them.
        bits: about so many a value has the one that tensors are compressed in.

    Attributes:
        policy: that has this one for everything.
        spare: one that has no rows; None if there is none.
    """

    def __init__(self, formats: Sequence[Format], bits: float) -> None:
        self._policies = {fmt: _named(fmt) for fmt in formats}
        self.policy = self._policies[min(formats, key=lambda fmt: abs(bits_of(fmt) - bits))]
        self.spare = next((fmt for fmt in formats if keeps_signs(fmt)), None)

    def decide(self, facts: Facts) -> dict[Format, Decision]:
        """What each would make of a tensor."""
        return {fmt: policy.decide(facts) for fmt, policy in self._policies.items()}


def bits_of(fmt: Format) -> float:
    """Bits of a value, in fp32."""
    assert fmt.target is not None
    return 32 * fmt.target / fmt.original_bytes


def _named(fmt: Format) -> Policy:
    """Everything in a format, by rules that name operations, as those of a calibration do."""
    return Policy([Rule("recompute"), Rule(fmt, op="?*"), Rule(fmt, op="")])


class TryingStore(Store):
    """Tries formats on each tensor that it compresses.

    Attributes:
        trials: which.
        lossy: which kind comes back with its error.
        tried: the tensors, in the order of the forward pass.
    """

    make_entry: type[Entry] = Switched
    trials: Trials
    lossy: Lossy
    tried: list[Tried]

    def _codec(self, decision: Decision, region: Region, row: int) -> Backend | None:
        codec = super()._codec(decision, region, row)
        if codec is not None or self.trials.spare is None:
            return codec
        # What has short rows would stay exact in this format; it is compressed in one without rows.
        assert decision.format is not None
        own = format_for(self.trials.spare, TORCH_DTYPES[decision.format.dtype])
        return super()._codec(replace(decision, format=own), region, row)

    def _entry(
        self,
        source: Any,
        region: Region,
        codec: Any,
        saved: Saved,
        step: Any,
        facts: Facts,
        *more: Any,
        follows: bool = False,
    ) -> Entry | None:
        entry = super()._entry(source, region, codec, saved, step, facts, *more)
        if isinstance(entry, Switched):
            entry.lossy = self.lossy
            if not entry.is_exact:
                assert saved.values is not None
                self.tried.append(self._try(entry, region, saved.values))
        return entry

    def _try(self, entry: Switched, region: Region, tensor: torch.Tensor) -> Tried:
        facts, row = entry.facts, region.row(entry.facts.row(Geometry.of(tensor)))
        samples: dict[Hashable, _Sample] = {}
        found: dict[Hashable, Left] = {}
        options: dict[Format | None, Left] = {}
        own: set[Format] = set()
        for fmt, decision in self.trials.decide(facts).items():
            if decision.format == format_for(fmt, facts.dtype):
                own.add(fmt)
            if decision.finer:
                decision, _ = fine_enough(self._verdicts, facts, decision, tensor, self.logits)
            if decision.format is None or (codec := super()._codec(decision, region, row)) is None:
                continue
            taken = decision.normed, decision.channels, decision.sums
            if taken not in samples:
                samples[taken] = _Sample.of(tensor, region, row, means_of(tensor, decision))
            key = codec, taken
            if key not in found:
                found[key] = samples[taken].left_by(codec)
            options[fmt] = found[key]
        values = _Sample.of(tensor, region, row, None)
        sample = values if entry.means is None else _Sample.of(tensor, region, row, entry.means)
        return Tried(entry, values.power, sample.left_by(entry.codec), options, own)


@dataclass
class _Sample:
    """Rows of a tensor, evenly spaced, of about ``_TRIED_VALUES`` values; all of a small one.

    Attributes:
        values: flat; without the means.
        share: how many times as many values the tensor has.
        means_bytes: that the tensor's means take.
    """

    values: torch.Tensor
    share: float
    means_bytes: int

    @classmethod
    def of(cls, tensor: torch.Tensor, region: Region, row: int, means: Means | None) -> _Sample:
        values = region.values(tensor) if means is None else means.without(tensor)
        means_bytes = 0 if means is None else means.nbytes
        step = len(values) // _TRIED_VALUES
        if step < 2 or not row or len(values) % row or len(values) // row < step:
            return cls(values, 1, means_bytes)
        rows = values.view(-1, row)[::step].reshape(-1)
        return cls(rows, len(values) / len(rows), means_bytes)

    @property
    def power(self) -> float:
        """The sum of the tensor's squared values."""
        return self.share * float(self.values.float().square().nan_to_num().sum())

    def left_by(self, codec: Any) -> Left:
        stored = codec.compress(self.values)
        lost = codec.decompress(stored, len(self.values)).float() - self.values
        error = self.share * float(lost.square().nan_to_num().sum())
        return Left(self.share * stored.nbytes + self.means_bytes, error)
