"""What a norm reads of its input, as operations of a graph; ``store/centred.py`` has the same in place."""

from __future__ import annotations

import torch

from ..facts.need import Normed
from ..store.centred import divisors_of

_LARGEST_HALF = torch.finfo(torch.float16).max


def means_of(normed: Normed, values: torch.Tensor) -> torch.Tensor:
    """The mean of each row, group or channel: fp32, with the dimensions of :meth:`Normed.parted`."""
    parts = normed.parted(values)
    means = parts.mean(normed.dims(parts), keepdim=True, dtype=torch.float32)
    return torch.where(means.isfinite(), means, 0)


def spreads_of(normed: Normed, values: torch.Tensor, means: torch.Tensor) -> torch.Tensor:
    """The standard deviation around each mean, 1 where there is none: fp32."""
    parts = normed.parted(values)
    spreads = (parts - means).square().mean(normed.dims(parts), keepdim=True).sqrt()
    return torch.where(spreads.isfinite() & (spreads > 0), spreads, 1)


def without_means(
    normed: Normed, values: torch.Tensor, means: torch.Tensor, spreads: torch.Tensor | None = None
) -> torch.Tensor:
    """What is left of values without their means, over their spreads if they are given; in their type."""
    left, divisors = _wide(normed.parted(values)) - means, divisors_of(spreads)
    return _as(normed, values, left if divisors is None else left / divisors)


def with_means(
    normed: Normed, values: torch.Tensor, means: torch.Tensor, spreads: torch.Tensor | None = None
) -> torch.Tensor:
    """The inverse of :func:`without_means`."""
    parts, divisors = _wide(normed.parted(values)), divisors_of(spreads)
    return _as(normed, values, (parts if divisors is None else parts * divisors) + means)


def _wide(values: torch.Tensor) -> torch.Tensor:
    """fp16 as fp32: a difference of two may be too large for it."""
    return values.float() if values.dtype == torch.float16 else values


def _as(normed: Normed, like: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    """In the shape and type of a tensor; finite values stay finite in fp16."""
    if like.dtype == torch.float16:
        made = torch.where(made.isfinite(), made.clamp(-_LARGEST_HALF, _LARGEST_HALF), made)
    made = made.to(like.dtype)
    return made.reshape(like.shape) if normed.groups else made
