"""Tensors that are stored as their differences: what activation checkpointing keeps, layer by layer.

A layer of a transformer adds to what it is given: most of its input, outliers above all, is in the input of
the layer before. So the first of these inputs is stored as it is, and of each other one the difference from
what is stored of the one before. Errors do not add up, for the difference is from what the backward pass will
see, not from what there was (differential pulse-code modulation: C. C. Cutler, US patent 2,605,361, 1952).

The backward pass asks for the last one first. It is a sum of all; for each before it one difference is
subtracted, so that one tensor beside what is stored is enough.
"""

from __future__ import annotations

import weakref

import torch

from ..backends import streams
from ..facts.geometry import Geometry
from .centred import ChannelMeans, Means, in_half
from .entries import Entry

# Tokens that tell how far two tensors are apart, and how much of its energy a difference may have.
_SAMPLE, _FAR = 64, 0.5


class RunningSum:
    """What is stored up to one of a row of tensors, summed in fp32; it moves along the row."""

    def __init__(self) -> None:
        self._at: weakref.ref[Entry] | None = None
        self._total: torch.Tensor | None = None
        self._written: streams.Written | None = None

    def forget(self) -> None:
        """Let go of the sum: it is made anew when it is asked for."""
        self._at = self._total = None

    def move(self, entry: Entry, values: torch.Tensor) -> None:
        """On to the entry that was stored last, by what its codec makes of it: flat, which is changed."""
        if entry.means is not None:
            entry.means.put_back_own(values, entry.region.offset)
        if isinstance(entry.means, Difference):
            self._put(entry, self.of(entry.means.before).add_(values))
        else:
            self._put(entry, values.to(torch.float32, copy=True))

    def of(self, entry: Entry) -> torch.Tensor:
        """The sum up to an entry: flat, in the order of memory; not to be written to."""
        missing: list[Entry] = []
        one: Entry | None = entry
        at = self._at() if self._at is not None else None
        while one is not None and one is not at:
            missing.append(one)
            one = one.means.before if isinstance(one.means, Difference) else None
        total = self._taken() if one is not None else None
        for one in reversed(missing):
            own = one.own_values()
            total = own.to(torch.float32, copy=True) if total is None else total.add_(own)
        assert total is not None
        return self._put(entry, total)

    def before(self, difference: Difference, own: torch.Tensor) -> torch.Tensor:
        """The sum up to the entry before a difference, whose own values these are."""
        at = self._at() if self._at is not None else None
        if at is difference.before:
            return self.of(at)
        is_there = at is not None and at.means is difference
        # Added and subtracted, it has the bits that it has if it was kept since the forward pass.
        total = self._taken() if is_there else self.of(difference.before).add_(own)
        return self._put(difference.before, total.sub_(own))

    def _taken(self) -> torch.Tensor:
        assert self._total is not None
        streams.take(self._written, self._total)
        return self._total

    def _put(self, entry: Entry, total: torch.Tensor) -> torch.Tensor:
        self._at, self._total = weakref.ref(entry), total
        self._written = streams.written(total.device)
        return total


class Difference(Means):
    """A tensor's difference from what is stored of another one, with the means of its channels.

    Args:
        tensor: that ``fits``.
        before: the entry of the other one, which lives as long as this.
        sum: of the row of tensors.
        channels: whether means of the difference's channels are kept apart.
    """

    is_needed = False

    def __init__(self, tensor: torch.Tensor, before: Entry, sum: RunningSum, channels: bool) -> None:
        self._geometry, self.before, self._sum = Geometry.of(tensor), before, sum
        before.is_followed = True
        where = self._geometry
        left = where.region.values(tensor) - sum.of(before)
        left = (in_half(left) if tensor.dtype == torch.float16 else left).to(tensor.dtype)
        self._left: torch.Tensor | None = left
        shaped = left.as_strided(where.size, where.stride)
        self._inner = ChannelMeans(shaped) if channels and Means.fit(shaped) else None

    def has(self, normed: object) -> bool:
        return False

    @property
    def nbytes(self) -> int:
        return 0 if self._inner is None else self._inner.nbytes

    def tensors(self) -> list[torch.Tensor]:
        return [] if self._inner is None else self._inner.tensors()

    def without(self, tensor: torch.Tensor) -> torch.Tensor:
        left, self._left = self._left, None
        assert left is not None
        if self._inner is None:
            return left
        return self._inner.without(left.as_strided(self._geometry.size, self._geometry.stride))

    def put_back_own(self, memory: torch.Tensor, start: int) -> None:
        if self._inner is not None:
            self._inner.put_back(self._flat(memory, start), 0)

    def put_back(self, memory: torch.Tensor, start: int) -> None:
        self.put_back_own(memory, start)
        flat = self._flat(memory, start)
        total = self._sum.before(self, flat) + flat
        flat.copy_(in_half(total) if flat.dtype == torch.float16 else total)

    def _flat(self, memory: torch.Tensor, start: int) -> torch.Tensor:
        region = self._geometry.region
        return memory.as_strided(region.size, region.stride, memory.storage_offset() + region.offset - start)


def fits(tensor: torch.Tensor, before: Entry) -> bool:
    """Whether a tensor, [..., tokens, channels], has the shape of what an entry stores, and no gaps."""
    where = Geometry.of(tensor)
    return (
        not where.region.has_gaps
        and where.count == where.region.count
        and (where.size, where.stride) == (before.facts.shape, before.stride)
        and (tensor.dtype, tensor.device) == (before.dtype, before.device)
    )


def are_apart(tensor: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """Whether a tensor, [..., tokens, channels], is too far from a sum for its difference to be smaller.

    A token counts by how its difference compares with itself; some of them are asked.
    """
    where = Geometry.of(tensor)
    step = max(1, tensor.shape[-2] // _SAMPLE)
    some = tensor[..., ::step, :].float()
    others = total.as_strided(where.size, where.stride)[..., ::step, :]
    parts = (some - others).square().sum(-1) / some.square().sum(-1)
    return ~(parts.nanmean() <= _FAR)
