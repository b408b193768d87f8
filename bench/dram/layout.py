"""Where a step's saved tensors are in memory, and which bytes an access to one of them moves.

Layouts of this project need no metadata: a block's address follows from its number. Those of variable rate
do. They are modelled in their own favour: their allocator wastes nothing but what its granularity takes,
every pointer is read once for all that stand in its burst, and waiting for it costs no time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from golden import HadamardFormat, PlaneFormat

from . import lossless
from .step import Step, Tensor

ALIGNMENT = 512  # bytes, of PyTorch's allocators on accelerators
_REGION = 1 << 31  # where compressed blocks begin
_TABLE = 1 << 32  # where metadata begins, behind all data


class Span(NamedTuple):
    """Bytes that are moved together."""

    address: int
    size: int


@dataclass(frozen=True)
class Place:
    """Of one tensor: what an access moves, in this order.

    Attributes:
        before: metadata, which is read before it is used and written when it changes.
        data: the tensor itself.
        stored: bytes that are taken for it, metadata included.
    """

    before: tuple[Span, ...]
    data: tuple[Span, ...]
    stored: int


class Layout(Protocol):
    """A way to keep tensors.

    Attributes:
        name: of its row.
        is_lossless: whether a tensor is read as it was written.
    """

    name: str
    is_lossless: bool

    def place(self, tensors: Sequence[Tensor]) -> list[Place]:
        """Places for tensors that are written in this order and stay until the end."""
        ...


class _Bump:
    """An allocator that never frees."""

    def __init__(self, start: int = 0) -> None:
        self.end = start

    def take(self, size: int, alignment: int = 1) -> Span:
        start = -(-self.end // alignment) * alignment
        self.end = start + size
        return Span(start, size)


@dataclass(frozen=True)
class Plain:
    """Every tensor as it is."""

    name: str = "as they are"
    is_lossless: bool = True

    def place(self, tensors: Sequence[Tensor]) -> list[Place]:
        memory = _Bump()
        return [Place((), (memory.take(tensor.size, ALIGNMENT),), tensor.size) for tensor in tensors]


@dataclass(frozen=True)
class FixedRate:
    """This project's engine: blocks of ``target`` bytes one behind the other, exact tensors in bypass.

    Args:
        fmt: a format with a fixed target.
    """

    name: str
    fmt: PlaneFormat | HadamardFormat
    is_lossless: bool = False

    def place(self, tensors: Sequence[Tensor]) -> list[Place]:
        assert self.fmt.target
        plain, region = _Bump(), _Bump()
        places = []
        for tensor in tensors:
            if tensor.exact:
                span = plain.take(tensor.size, ALIGNMENT)
            else:
                # The region holds the accelerator's addresses that are aligned as the allocator has them.
                blocks = -(-tensor.size // self.fmt.original_bytes)
                per_alignment = max(1, ALIGNMENT // self.fmt.original_bytes)
                taken = region.take(blocks * self.fmt.target, per_alignment * self.fmt.target)
                span = Span(_REGION + taken.address, taken.size)
            places.append(Place((), (span,), span.size))
        return places


@dataclass(frozen=True)
class Pages:
    """Pages compressed without loss to as many bytes as each needs, with an entry of a table for each.

    Args:
        name: of its row.
        codec: sizes of pages, bytes.
        page: uncompressed bytes of a page.
        entry: bytes of its metadata.
        granularity: of what the allocator gives out, bytes.
    """

    name: str
    codec: lossless.Codec
    page: int
    entry: int
    granularity: int
    is_lossless: bool = True

    def place(self, tensors: Sequence[Tensor]) -> list[Place]:
        memory, table = _Bump(), _Bump(_TABLE)
        places = []
        for tensor in tensors:
            sizes = np.minimum(self.codec(tensor.values, self.page), self.page)
            taken = -(-sizes // self.granularity) * self.granularity
            entries = table.take(len(sizes) * self.entry, self.entry)
            starts = [memory.take(int(size)).address for size in taken]
            data = tuple(Span(start, int(size)) for start, size in zip(starts, sizes, strict=True) if size)
            places.append(Place((entries,), data, int(taken.sum()) + entries.size))
        return places


def spans(step: Step, places: Sequence[Place]) -> Iterator[tuple[bool, Span]]:
    """What a step's accesses move, in order, and whether each is a write."""
    for access in step.accesses:
        place = places[access.tensor]
        for span in (*place.before, *place.data):
            yield access.writes, span
