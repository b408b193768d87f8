"""What memory a tensor covers, and in which order its values are compressed.

Blocks are cut in the order of memory, so that a transpose shares its storage's blocks, and the values
behind a broadcast dimension are taken once. What a tensor does not cover is in none of its blocks: large
values beside small ones would take the small ones' bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from math import prod

import torch

from .. import internals
from ..internals import dispatch_keys

# Rows of fewer values are those of images, in tensors of four and more dimensions, unless attention has them.
_LEAST_ROW = 64
# Channels of fewer values would take twice their bytes in blocks of their own.
_LEAST_PLANE = 32


class Geometry:
    """How a tensor lies in a storage: sizes, strides and offset, in elements.

    Attributes:
        size, stride, offset: as given.
        count: elements that the tensor has.
        region: what the tensor covers; where its elements overlap without a pattern, all from the first to
            the last.
    """

    def __init__(self, size: tuple[int, ...], stride: tuple[int, ...], offset: int) -> None:
        self.size, self.stride, self.offset = size, stride, offset
        self.count = prod(size)
        self.region = _covered(size, stride, offset)

    @cached_property
    def row(self) -> int:
        """Values of memory that belong to one row, as to a token: what may have a scale of its own.

        Of the last two dimensions the one that is consecutive in memory has a row's values, and the other one
        counts rows: a row reaches from one of these to the next, with all heads that lie between. All of the
        region where there are no rows: in one dimension.
        """
        size, stride = self.size, self.stride
        run = self.region.size[-1] if self.region.stride[-1] == 1 else 1
        if len(size) < 2:
            return run
        if 1 not in stride[-2:]:  # channels that lie beside each other
            channels = size[stride.index(1)] if 1 in stride else run
            return channels if channels >= _LEAST_ROW and run % channels == 0 else run
        is_last = stride[-1] == 1
        values, step = (size[-1], stride[-2]) if is_last else (size[-2], stride[-1])
        count = size[-2] if is_last else size[-1]
        if count == 1 or step == 0 or step >= run:
            return run
        return step if values <= step and run % step == 0 else values

    @cached_property
    def plane(self) -> int:
        """Values of memory that belong to one row where the last two dimensions may be those of an image.

        Then a channel has a scale of its own, all channels together if they are as small as a few pixels.
        """
        row, size = self.row, self.size
        if len(size) < 4 or row >= _LEAST_ROW or self.region.has_gaps or row != size[-1]:
            return row
        plane = row * size[-2]
        return plane if plane >= _LEAST_PLANE else self.region.count

    @staticmethod
    def of(tensor: torch.Tensor) -> Geometry:
        """The tensor's; tensors that lie alike mostly have the same one."""
        return geometry_of(tensor.shape, tensor.stride(), tensor.storage_offset())


geometry_of = lru_cache(4096)(Geometry)


@dataclass(frozen=True)
class Region:
    """Elements of a storage, each once, in the order of their addresses.

    ``size`` and ``stride`` walk them from ``offset``; the strides fall. Dimensions that can be one are one:
    a run of memory has a single one of stride 1, and views of the same elements have the same region.
    """

    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    @classmethod
    def run(cls, offset: int, count: int) -> Region:
        """Consecutive elements."""
        return cls(offset, (count,), (1,))

    @cached_property
    def count(self) -> int:
        """Elements that it has."""
        return prod(self.size)

    @cached_property
    def end(self) -> int:
        """Where the memory behind its last element begins."""
        return self.offset + _span(self.size, self.stride)

    @property
    def has_gaps(self) -> bool:
        return self.stride != (1,)

    def row(self, values: int) -> int:
        """Values of a row of the region, where a row of what it is a part of has so many."""
        run = self.size[-1] if self.has_gaps and self.stride[-1] == 1 else self.count
        return values if values and run % values == 0 else run

    def room(self, elements: int) -> tuple[int, int]:
        """The run of memory, of a storage of so many elements, that is made for the region: offset and count.

        With gaps it is whole periods of the largest stride: as much as other regions in these gaps need.
        """
        if not self.has_gaps:
            return self.offset, self.count
        period = self.stride[0]
        start, end = self.offset // period * period, -(-self.end // period) * period
        return start, min(end, elements) - start

    def values(self, tensor: torch.Tensor) -> torch.Tensor:
        """The region's values, taken from a tensor of its storage: flat, contiguous, a view if it can be."""
        values = tensor.as_strided(self.size, self.stride, self.offset)
        return values.reshape(-1).contiguous() if self.has_gaps else values

    def overlaps(self, other: Region) -> bool:
        """Whether both have an element; also true where that cannot be told."""
        return self is other or _overlap(self, other)

    def split(self, other: Region) -> tuple[Region | None, list[Region]]:
        """What of this region another has as well, and what it has not.

        Where strides are no multiples of each other, or rows begin elsewhere, nothing counts as common.
        """
        if self is other:
            return self, []
        common, rest = _split(self, other)
        return common, list(rest)

    def is_within(self, other: Region) -> bool:
        """Whether another is known to have all of its elements."""
        if self is other:
            return True
        lies_in = other.offset <= self.offset and self.end <= other.end
        return lies_in and not _split(self, other)[1]

    def common(self, other: Region) -> tuple[list[int], list[range], list[range]] | None:
        """Strides of a grid, this region along its axes, and what of it is the other's; None if not known."""
        grid = sorted({*self.stride, *other.stride}, reverse=True)
        if self.offset >= other.end or other.offset >= self.end:
            return grid, [], [range(0)]
        box, others = self._box(grid), other._box(grid)
        if box is None or others is None:
            return None
        both = zip(box, others, strict=True)
        return grid, box, [range(max(a.start, b.start), min(a.stop, b.stop)) for a, b in both]

    def _box(self, grid: Sequence[int]) -> list[range] | None:
        """The region along each axis of a grid, strides that fall, from address 0; None if it is no box."""
        if any(large % small for large, small in pairwise(grid)):
            return None
        sizes = [0, *(large // small for large, small in pairwise(grid))]  # the first axis has no end
        box, offset = [], self.offset
        for stride in grid:
            box.append(range(offset // stride, offset // stride + 1))
            offset %= stride
        if offset:
            return None
        for size, stride in zip(self.size, self.stride, strict=True):
            axis = grid.index(stride)
            while axis and size > sizes[axis]:  # several rows, and so whole ones
                if size % sizes[axis] or box[axis] != range(1):
                    return None
                box[axis], size, axis = range(sizes[axis]), size // sizes[axis], axis - 1
            start = box[axis].start
            if len(box[axis]) > 1 or (axis and start + size > sizes[axis]):
                return None
            box[axis] = range(start, start + size)
        return box


def region_of(tensor: torch.Tensor) -> Region:
    """What a tensor covers."""
    return Geometry.of(tensor).region


def _covered(size: Sequence[int], stride: Sequence[int], offset: int) -> Region:
    span = _span(size, stride)
    dims = _merged(zip(size, stride, strict=True)) if span else None
    return _same((offset, *(((span,), (1,)) if dims is None else dims)))


@lru_cache(4096)
def _same(place: tuple[int, tuple[int, ...], tuple[int, ...]]) -> Region:
    """A region that is asked for often, mostly the same object."""
    return Region(*place)


@lru_cache(4096)
def _overlap(one: Region, other: Region) -> bool:
    common = one.common(other)
    return common is None or all(common[2])


@lru_cache(4096)
def _split(one: Region, other: Region) -> tuple[Region | None, tuple[Region, ...]]:
    if one == other or (not other.has_gaps and other.offset <= one.offset and one.end <= other.end):
        return one, ()
    common = one.common(other)
    if common is None or not all(common[2]):
        return None, (one,)
    grid, box, shared = common
    rest = []
    for axis, (whole, part) in enumerate(zip(box, shared, strict=True)):
        for side in (range(whole.start, part.start), range(part.stop, whole.stop)):
            if side:
                rest.append(_region([*shared[:axis], side, *box[axis + 1 :]], grid))
    return _region(shared, grid), tuple(rest)


def _region(box: Sequence[range], grid: Sequence[int]) -> Region:
    dims = _merged((len(side), stride) for side, stride in zip(box, grid, strict=True))
    assert dims is not None  # a box does not overlap itself
    return Region(sum(side.start * stride for side, stride in zip(box, grid, strict=True)), *dims)


def _merged(dims: Iterable[tuple[int, int]]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Sizes and strides -> those of the distinct elements, the largest stride first; None if not known.

    Dimensions of size 1 and broadcast ones (stride 0) go; windows that overlap or touch become one.
    """
    merged: list[tuple[int, int]] = []
    reach = 1
    for stride, size in sorted((stride, size) for size, stride in dims if size > 1 and stride > 0):
        inner_size, inner_stride = merged[-1] if merged else (1, stride)
        steps, rest = divmod(stride, inner_stride)
        if merged and rest == 0 and steps <= inner_size:
            merged[-1] = inner_size + (size - 1) * steps, inner_stride
        elif stride >= reach:
            merged.append((size, stride))
        else:
            return None
        reach += (size - 1) * stride
    if not merged:
        return (1,), (1,)
    return tuple(size for size, _ in reversed(merged)), tuple(stride for _, stride in reversed(merged))


def _span(size: Sequence[int], stride: Sequence[int]) -> int:
    """Elements of memory from the first to the last."""
    if 0 in size:
        return 0
    return 1 + sum((count - 1) * step for count, step in zip(size, stride, strict=True))


_PLAIN: dict[int, bool] = {}
_USUAL = (torch.Tensor, torch.nn.Parameter)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor is memory with strides and no more: no subclass, no lazy bit, not sparse."""
    keys = dispatch_keys(tensor).raw_repr()
    found = _PLAIN.get(keys)
    if found is None:
        found = _PLAIN[keys] = _is_plain(tensor)
    return found


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor is memory with strides and no more: no subclass, no lazy bit, not sparse."""
    return (
        type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
        and tensor.layout == torch.strided
        and not tensor.is_nested
        and tensor.device.type != "meta"
        and not internals.is_wrapped(tensor)
        and not tensor.is_neg()
        and not tensor.is_conj()
        and not tensor._is_zerotensor()
        and not tensor.is_quantized
    )


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """What a rank has of a DTensor, of any other the tensor itself."""
    if type(tensor) in _USUAL:
        return tensor
    local = getattr(tensor, "_local_tensor", tensor)
    return local.trigger_wait() if hasattr(local, "trigger_wait") else local  # a collective's result
