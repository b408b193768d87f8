"""What is left of a tensor without its means, which are kept beside it.

A format has an error of a part of its block's size. Where a mean is many times the spread around it, that is
many times the spread. So the input of a norm goes into the format without its means, and where values with
means of their own share a block, divided by their spreads as well. Both are in fp32, one for many values.

Of other tensors the means of the channels are taken, where there are many tokens: what a linear layer puts
out has half of its energy there, in the gates of a pretrained model.
"""

from __future__ import annotations

import torch

from ..facts.geometry import Geometry
from ..facts.needs import Normed, normed

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
        where = self._geometry
        first, end = where.region.offset, where.region.end
        memory = tensor.new_empty(end - first)
        left = memory.as_strided(where.size, where.stride, where.offset - first)
        parts, to = self.normed.parted(tensor), self.normed.parted(left)
        if tensor.dtype == torch.float16:
            to.copy_(_in_half((parts - self._means).div_(1 if self._spreads is None else self._spreads)))
        elif self._spreads is None:
            torch.sub(parts, self._means, out=to)
        else:
            torch.div(parts - self._means, self._spreads, out=to)
        if not where.region.has_gaps:
            return memory
        return memory.as_strided(where.region.size, where.region.stride, 0).reshape(-1)

    def put_back(self, memory: torch.Tensor, start: int) -> None:
        """Add them to what was left, in memory that begins at a place of the storage."""
        where = self._geometry
        offset = memory.storage_offset() + where.offset - start
        parts = self.normed.parted(memory.as_strided(where.size, where.stride, offset))
        if memory.dtype == torch.float16:
            parts.copy_(_in_half((parts * (1 if self._spreads is None else self._spreads)) + self._means))
        elif self._spreads is None:
            parts.add_(self._means)
        else:
            torch.addcmul(self._means, parts, self._spreads, out=parts)


class ChannelMeans(Means):
    """``channel_means`` of a tensor.

    Args:
        tensor: whose; it has each element of its memory once.
    """

    is_needed = False

    def __init__(self, tensor: torch.Tensor) -> None:
        self.normed, self._geometry, self._spreads = CHANNELS, Geometry.of(tensor), None
        self._means = channel_means(tensor)

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


def _in_half(values: torch.Tensor) -> torch.Tensor:
    """Finite values stay finite in fp16."""
    return torch.where(values.isfinite(), values.clamp(-_LARGEST_HALF, _LARGEST_HALF), values)
