"""The bridge in a dry run: nothing is compressed, only allocated, and questions about values are assumed."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch

from ..backends import Backend
from ..backends.bits import BitsCodec
from ..backends.dtypes import TORCH_DTYPES, AnyFormat
from ..compressor import Compressor
from ..facts.facts import Facts
from ..policy import Policy
from ..store.codecs import Codecs
from ..store.store import Store
from ..store.verdicts import Flag, Verdicts
from .dry import has_two_values


class Traffic:
    """What went through codecs.

    Attributes:
        compressed, decompressed: bytes of values, by format.
    """

    def __init__(self) -> None:
        self.compressed: dict[AnyFormat, int] = {}
        self.decompressed: dict[AnyFormat, int] = {}

    def clear(self) -> None:
        """Count anew."""
        self.compressed.clear()
        self.decompressed.clear()


class SizesBackend(Backend):
    """Allocates what a backend allocates, the blocks and the values, and computes neither.

    Args:
        fmt: of the blocks.
        traffic: where it counts what it is given.
    """

    def __init__(self, fmt: AnyFormat, traffic: Traffic) -> None:
        super().__init__(fmt)
        self._traffic = traffic

    def _compress(self, values: torch.Tensor, first: int) -> torch.Tensor:
        done = self._traffic.compressed
        done[self.fmt] = done.get(self.fmt, 0) + values.nbytes
        return values.new_empty((self.fmt.blocks(len(values)), self._target), dtype=torch.uint8)

    def _decompress(self, stored: torch.Tensor, count: int, first: int) -> torch.Tensor:
        dtype = TORCH_DTYPES[self.fmt.dtype]
        done = self._traffic.decompressed
        done[self.fmt] = done.get(self.fmt, 0) + count * dtype.itemsize
        return stored.new_empty(len(stored) * self.fmt.block, dtype=dtype)[:count]


class SizesCodecs(Codecs):
    """A ``SizesBackend`` for each format."""

    def __init__(self, policy: Policy, traffic: Traffic) -> None:
        self._traffic = traffic
        super().__init__(policy, "auto")

    def make(self, fmt: AnyFormat) -> Backend:
        return SizesBackend(fmt, self._traffic)


class DryVerdicts(Verdicts):
    """The usual answers: no infinities, nor numbers in their place; logits are not wide, sums not small.

    What it takes to find out is allocated all the same.
    """

    def holds(self, key: Hashable, compute: Callable[[], torch.Tensor]) -> tuple[bool, Flag | None]:
        compute()
        return True, None

    def ask(self, key: Hashable, compute: Callable[[], torch.Tensor | bool]) -> bool:
        answer = compute()  # known without values where an operand's memory is gone
        return self.note(key, answer if isinstance(answer, bool) else False)


class DryStore(Store):
    """A store that looks at no value: which tensors have two of them is known by how they were made."""

    def _bits(self, facts: Facts, values: torch.Tensor) -> tuple[BitsCodec, Flag | None] | None:
        found = BitsCodec.levels_of(values) if has_two_values(values) else None
        return None if found is None else (found[0], None)


class DryCompressor(Compressor):
    """A Compressor for a ``DryRun``; what it keeps has the sizes that a Compressor's has.

    Args:
        model, options: as of ``Compressor``.
    """

    make_store = DryStore

    def __init__(self, model: torch.nn.Module, **options: Any) -> None:
        super().__init__(model, **options)
        self.traffic = Traffic()
        self._codecs, self._verdicts = SizesCodecs(self._policy, self.traffic), DryVerdicts()
