"""What is left of a tensor without its means, which are kept beside it.

A format has an error of a part of its block's size. Where a mean is many times the spread around it, that is
many times the spread. So the input of a norm goes into the format without its means, and where values with
means of their own share a block, divided by their spreads as well. Both are in fp32, one for many values.

Of other tensors the means of the channels are taken, where there are many tokens: what a linear layer puts
out has half of its energy there, in the gates of a pretrained model. A channel that spreads many
times wider than most is made narrower: the others of its block would be lost beside it.
"""

from __future__ import annotations

import torch

from ..facts.geometry import Geometry
from ..facts.need import Normed, normed
from ..policy import Decision

_LARGEST_HALF = torch.finfo(torch.float16).max


class Means:
    """The means of a tensor's rows, groups or channels, and their spreads where blocks need them.

    Args:
        tensor: whose; it has each element of its memory once.
        normed: what has a mean.

    Attributes:
        normed: as given.
        is_needed: whether a norm needs the tensor without them.
    """

    is_needed = True

    def __init__(self, tensor: torch.Tensor, normed: Normed) -> None:
        self.normed, self._geometry = normed, Geometry.of(tensor)
        parts = normed.parted(tensor)
        dims = normed.dims(parts)
        means = parts.mean(dims, keepdim=True, dtype=torch.float32)
        self._means = torch.where(means.isfinite(), means, 0)
        self._spreads: torch.Tensor | None = None
        if not normed.is_of_rows or tensor.stride(-1) != 1:
            spreads = (parts - self._means).square_().mean(dims, keepdim=True).sqrt_()
            self._spreads = torch.where(spreads.isfinite() & (spreads > 0), spreads, 1)

    def has(self, normed: Normed) -> bool:
        """Whether it is what such a norm needs."""
        return self.normed == normed

    @staticmethod
    def fit(tensor: torch.Tensor) -> bool:
        """Whether they can be taken from a tensor."""
        return Geometry.of(tensor).count == Geometry.of(tensor).region.count

    @property
    def nbytes(self) -> int:
        """That they take."""
        return self._means.nbytes + (0 if self._spreads is None else self._spreads.nbytes)

    def tensors(self) -> list[torch.Tensor]:
        """All that is kept."""
        return [one for one in (self._means, self._spreads) if one is not None]

    def without(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor's region without them: flat, in the order of memory, in the tensor's type."""
        where, divisors = self._geometry, divisors_of(self._spreads)
        first, end = where.region.offset, where.region.end
        memory = tensor.new_empty(end - first)
        left = memory.as_strided(where.size, where.stride, where.offset - first)
        parts, to = self.normed.parted(tensor), self.normed.parted(left)
        if tensor.dtype == torch.float16:
            wide = parts.float() - self._means
            to.copy_(in_half(wide if divisors is None else wide.div_(divisors)))
        else:
            torch.sub(parts, self._means, out=to)
            if divisors is not None:
                to.div_(divisors)
        if not where.region.has_gaps:
            return memory
        return memory.as_strided(where.region.size, where.region.stride, 0).reshape(-1)

    def put_back_own(self, memory: torch.Tensor, start: int) -> None:
        """Add what is kept here to what was left, and nothing that other entries have."""
        self.put_back(memory, start)

    def put_back(self, memory: torch.Tensor, start: int) -> None:
        """Add them to what was left, in memory that begins at a place of the storage."""
        where, divisors = self._geometry, divisors_of(self._spreads)
        offset = memory.storage_offset() + where.offset - start
        parts = self.normed.parted(memory.as_strided(where.size, where.stride, offset))
        if memory.dtype == torch.float16:
            wide = parts.float() if divisors is None else parts.float() * divisors
            parts.copy_(in_half(wide + self._means))
        elif divisors is None:
            parts.add_(self._means)
        else:
            torch.addcmul(self._means, parts, divisors, out=parts)


class ChannelMeans(Means):
    """``channel_means`` and ``channel_halvings`` of a tensor.

    Args:
        tensor: whose; it has each element of its memory once.
    """

    is_needed = False

    def __init__(self, tensor: torch.Tensor) -> None:
        self.normed, self._geometry = CHANNELS, Geometry.of(tensor)
        self._means = channel_means(tensor)
        self._spreads = channel_halvings(tensor, self._means)

    def has(self, normed: Normed) -> bool:
        return False


CHANNELS = normed((-2,))
"""What has such means."""


def channel_means(tensor: torch.Tensor) -> torch.Tensor:
    """The means of a tensor's channels over its tokens, [..., tokens, channels], in the tensor's type.

    A token counts by its direction: the first tokens of a text are hundreds of times as large as the others,
    and means of theirs would be an outlier in every other token.
    """
    sizes = torch.linalg.vector_norm(tensor, dim=-1).float()
    weights = torch.where(sizes.isfinite() & (sizes > 0), 1 / sizes, 0).unsqueeze(-2)
    total = weights.sum(-1, keepdim=True)
    weights = weights / torch.where(total > 0, total, 1)
    means = weights.to(tensor.dtype) @ tensor  # a matrix product makes no copy of the tensor
    return torch.where(means.isfinite(), means, 0).to(tensor.dtype)


# Tokens that tell how widely a channel spreads, and how many times wider than the middle one it may.
_SAMPLE, _WIDE = 64, 8
# Exponents of powers of two that are finite in every type, and of fp32 as its bits have them.
_MOST_HALVINGS, _MANTISSA, _BIAS = 15, 23, 127


def channel_halvings(tensor: torch.Tensor, means: torch.Tensor) -> torch.Tensor:
    """How often each channel is halved, int8, as its means lie.

    So often that none is more than twice ``_WIDE`` times as wide as the middle one. Some tokens are asked,
    each for its direction. Narrower channels stay as they are: to divide all by the root of how wide they are
    made gradients better and training worse.
    """
    some = tensor[..., :: tensor.shape[-2] // _SAMPLE, :].float()
    sizes = torch.linalg.vector_norm(some, dim=-1, keepdim=True)
    left = (some - means) / sizes
    left = torch.where(left.isfinite(), left, 0)  # a token of zeros has no direction
    spreads = left.square().mean(-2, keepdim=True).sqrt()
    wider = spreads / spreads.median(-1, keepdim=True).values / _WIDE
    wider = torch.where(wider.isfinite(), wider.clamp(1, 2**_MOST_HALVINGS), 1)
    return (wider.view(torch.int32).bitwise_right_shift(_MANTISSA) - _BIAS).to(torch.int8)


def divisors_of(spreads: torch.Tensor | None) -> torch.Tensor | None:
    """What is left is divided by, in fp32: spreads as they are, or the power of two of halvings."""
    if spreads is None or spreads.dtype != torch.int8:
        return spreads
    return (spreads.int() + _BIAS).bitwise_left_shift(_MANTISSA).view(torch.float32)


class RowSums(Means):
    """That the rows of a softmax sum to one: nothing is kept for it.

    What a softmax is multiplied by may be nearly the same for a whole row, as the products with values that
    have a mean. Its gradient is then a small difference, which is wrong by as much as the sum is.

    Args:
        tensor: a softmax over its last dimension; it has each element of its memory once.
    """

    is_needed = False

    def __init__(self, tensor: torch.Tensor) -> None:
        self._geometry = Geometry.of(tensor)

    def has(self, normed: Normed) -> bool:
        return False

    @property
    def nbytes(self) -> int:
        return 0

    def tensors(self) -> list[torch.Tensor]:
        return []

    def without(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._geometry.region.values(tensor)

    def put_back(self, memory: torch.Tensor, start: int) -> None:
        where = self._geometry
        offset = memory.storage_offset() + where.offset - start
        rows = memory.as_strided(where.size, where.stride, offset)
        rows.div_(row_sums(rows))


# How far the sum of a softmax's row may be from one, in few bits.
_FAR_FROM_ONE = 0.5


def row_sums(rows: torch.Tensor) -> torch.Tensor:
    """Of a softmax that was decompressed; 1 for rows that were masked whole, and are 0."""
    sums = rows.sum(-1, keepdim=True, dtype=torch.float32)
    return torch.where((sums - 1).abs() < _FAR_FROM_ONE, sums, 1)


def has_means(tensor: torch.Tensor, decision: Decision) -> bool:
    """Whether means can be taken from a tensor, if they have to be."""
    return decision.normed is None or Means.fit(tensor)


def means_of(tensor: torch.Tensor, decision: Decision) -> Means | None:
    """The means that are taken from a tensor, None if it goes into its format as it is."""
    if decision.normed is not None:
        return Means(tensor, decision.normed)
    if not (decision.channels or decision.sums) or not Means.fit(tensor):
        return None
    return RowSums(tensor) if decision.sums else ChannelMeans(tensor)


def in_half(values: torch.Tensor) -> torch.Tensor:
    """Finite values stay finite in fp16."""
    return torch.where(values.isfinite(), values.clamp(-_LARGEST_HALF, _LARGEST_HALF), values)
