"""What is asked of a tensor's values before it is stored, as far as ``Verdicts`` knows the answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch

from ..backends.bits import BitsCodec
from ..facts.facts import Facts
from ..facts.geometry import Region
from ..facts.need import Need
from ..policy import Decision
from ..policy.decision import strength_of
from ..report.rows import LARGE_ANGLE, PEAKED, SPREAD
from .attention import Logits
from .softmaxes import amplification
from .verdicts import Flag, Verdicts

# A number as large as this stands for an infinity in what a mask filled, or what may be one.
AS_INFINITE = 1e3
# Smaller ones do if no value is between these parts of the largest magnitude, and values are below.
_GAP = 1 / 8, 3 / 8


def largest(values: torch.Tensor, is_filled: bool = False) -> torch.Tensor:
    """The largest magnitude: a number; NaN where there is one.

    Args:
        is_filled: whether a mask may have filled them: infinite if one left a gap between large values, which
            are its own, and small ones.
    """
    sizes = values.abs()
    most = sizes.amax()
    if not is_filled:
        return most
    below, above = (part * most for part in _GAP)
    has_gap = ~((sizes > below) & (sizes < above)).any() & ((sizes > 0) & (sizes <= below)).any()
    return torch.where(has_gap, torch.inf, most)


# What is measured of a tensor, or of the logits that it belongs to, and what is said where that is too much.
_MEASURES: dict[Any, Callable[[torch.Tensor], torch.Tensor]]
_MEASURES = {Need.PROBABILITIES: amplification, Need.ANGLE: largest}
TOO_MUCH: dict[Any, str] = {Need.LOGITS: SPREAD, Need.PROBABILITIES: PEAKED, Need.ANGLE: LARGE_ANGLE}


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
    return verdicts.holds(("finite", facts), lambda: largest(values, facts.is_filled) < AS_INFINITE)


def fine_enough(
    verdicts: Verdicts, facts: Facts, decision: Decision, tensor: torch.Tensor, logits: Logits | None
) -> tuple[Decision, Flag | None]:
    """What becomes of a tensor by how much its error would be amplified, as far as that is known.

    Args:
        verdicts: of all steps.
        facts, decision: of the tensor; the decision has ``finer`` formats.
        tensor: a softmax, an angle, or queries or keys.
        logits: of the attention that these belong to; None if only one of them is known.
    """
    doubt, chosen = None, decision.format
    measure: Callable[[], torch.Tensor]
    if facts.need in _MEASURES:
        measure = cache(partial(_MEASURES[facts.need], tensor))
    else:
        measure = (logits or Logits([tensor])).spread
    for bound, finer in decision.finer:
        holds, doubt = verdicts.holds((facts, bound), partial(_is_within, measure, bound))
        if holds:
            break
        chosen = finer
    if chosen is decision.format:
        return decision, doubt
    return replace(decision, format=chosen, least=strength_of(chosen), why=TOO_MUCH[facts.need]), doubt


def _is_within(measure: Callable[[], torch.Tensor], bound: float) -> torch.Tensor:
    return measure() <= bound
