"""What is asked of a tensor's values before it is stored, as far as ``Verdicts`` knows the answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import torch

from ..backends.bits import BitsCodec
from ..facts.facts import Facts
from ..facts.geometry import Region
from ..facts.needs import Need
from ..policy import Decision
from ..policy.decision import strength_of
from ..report.rows import PEAKED, SPREAD
from .attention import Logits
from .softmaxes import amplification
from .verdicts import Flag, Verdicts

# What requires no gradient and has a number as large as this may be a mask that attention adds.
AS_INFINITE = 1e3


def two_values(
    verdicts: Verdicts, facts: Facts, values: torch.Tensor
) -> tuple[BitsCodec, Flag | None] | None:
    """What stores two values as bits, and what tells later whether they are two; None if they are not."""
    key = "bits", facts
    if verdicts.known(key) is False or (found := BitsCodec.levels_of(values)) is None:
        return None
    codec, are_two = found
    holds, flag = verdicts.holds(key, lambda: are_two)
    return (codec, flag) if holds else None


def is_finite(
    verdicts: Verdicts, facts: Facts, tensor: torch.Tensor, region: Region
) -> tuple[bool, Flag | None]:
    """Whether a tensor has no infinities, nor what stands for them, as far as is known; a flag if not."""
    values = tensor.as_strided(region.size, region.stride, region.offset)
    return verdicts.holds(("finite", facts), lambda: ~(values.abs() >= AS_INFINITE).any())


def fine_enough(
    verdicts: Verdicts, facts: Facts, decision: Decision, tensor: torch.Tensor, logits: Logits | None
) -> tuple[Decision, Flag | None]:
    """What becomes of a tensor by how much its error would be amplified, as far as that is known.

    Args:
        verdicts: of all steps.
        facts, decision: of the tensor; the decision has ``finer`` formats.
        tensor: a softmax, or queries or keys.
        logits: of the attention that these belong to; None if only one of them is known.
    """
    is_softmax = facts.need is Need.PROBABILITIES
    doubt, chosen = None, decision.format
    measure: Callable[[], torch.Tensor]
    measure = cache(partial(amplification, tensor)) if is_softmax else (logits or Logits([tensor])).spread
    for bound, finer in decision.finer:
        holds, doubt = verdicts.holds((facts, bound), partial(_is_within, measure, bound))
        if holds:
            break
        chosen = finer
    if chosen is decision.format:
        return decision, doubt
    why = PEAKED if is_softmax else SPREAD
    return replace(decision, format=chosen, least=strength_of(chosen), why=why), doubt


def _is_within(measure: Callable[[], torch.Tensor], bound: float) -> torch.Tensor:
    return measure() <= bound
