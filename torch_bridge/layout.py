"""What memory a tensor covers, and in which order its values are compressed.

Blocks are cut in the order of memory, so that a transpose shares its storage's blocks, and the values
behind a broadcast dimension are taken once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Geometry:
    """How a tensor lies in a storage: sizes, strides and offset, in elements."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Geometry:
        return cls(tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()))

    @property
    def span(self) -> int:
        """Elements from the first to the last that the tensor touches; 0 for an empty tensor."""
        if 0 in self.size:
            return 0
        return 1 + sum((size - 1) * stride for size, stride in zip(self.size, self.stride, strict=True))

    def distinct(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Sizes and strides of the distinct elements, the largest stride first; None if they overlap.

        Dimensions of size 1 and broadcast dimensions (stride 0) are left out.
        """
        pairs = zip(self.size, self.stride, strict=True)
        dims = sorted(((t, s) for s, t in pairs if s > 1 and t > 0), reverse=True)
        reach = 1
        for stride, size in reversed(dims):
            if stride < reach:
                return None
            reach = stride * (size - 1) + reach
        return tuple(size for _, size in dims), tuple(stride for stride, _ in dims)


@dataclass(frozen=True)
class Region:
    """The values of a storage that are stashed for a tensor, and their order.

    ``size`` and ``stride`` walk the region's elements from ``offset`` in the order in which they are
    stashed; ``span`` elements of memory lie under it. A region without gaps is one run of memory.
    """

    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    span: int

    @classmethod
    def run(cls, offset: int, count: int) -> Region:
        """Consecutive elements."""
        return cls(offset, (count,), (1,), count)

    @property
    def count(self) -> int:
        """Values that are stashed."""
        count = 1
        for size in self.size:
            count *= size
        return count

    @property
    def has_gaps(self) -> bool:
        return self.count < self.span

    def values(self, tensor: torch.Tensor) -> torch.Tensor:
        """The region's values, taken from a tensor of its storage: flat, contiguous, a view if it can be."""
        return tensor.as_strided(self.size, self.stride, self.offset).reshape(-1).contiguous()

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """Flat values -> the run of memory under the region; what lies in the gaps is undefined."""
        if not self.has_gaps:
            return values
        memory = values.new_empty(self.span)
        memory.as_strided(self.size, self.stride).copy_(values.view(self.size))
        return memory


def region_of(tensor: torch.Tensor) -> Region:
    """The region to stash for a tensor.

    A tensor that covers at least half of its storage stands for the whole storage, so that other views
    of it find what they need. A smaller one is stashed alone: the run of memory it spans, or, where that
    is mostly gaps, its own elements in the order of their addresses.
    """
    geometry = Geometry.of(tensor)
    elements = tensor.untyped_storage().nbytes() // tensor.element_size()
    span, distinct = geometry.span, geometry.distinct()
    covered = span
    if distinct is not None:
        covered = 1 if span else 0
        for size in distinct[0]:
            covered *= size
    if 2 * covered >= elements:
        return Region.run(0, elements)
    if distinct is not None and covered < span:
        return Region(geometry.offset, *distinct, span)
    return Region.run(geometry.offset, span)
