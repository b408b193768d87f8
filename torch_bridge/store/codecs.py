"""Which backend compresses what."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch

from .. import backends
from ..backends import Backend
from ..backends.dtypes import AnyFormat
from ..backends.rows import pad_rows, unpad_rows
from ..facts.geometry import Region
from ..policy import Decision, Of, Policy
from ..policy.decision import keeps_signs


class Codecs:
    """One backend for each format that is met: that of a rule, a finer one, or the same for another dtype.

    Those of rules are made at once, so that what is wrong shows before the training; but not of rules for
    large tensors or for some dtypes, for which a library of simulated hardware need not be built if there
    are none.

    Args:
        policy: whose rules have the formats.
        name: of the backend.
    """

    def __init__(self, policy: Policy, name: str) -> None:
        backends.check_name(name)
        self._name = name
        self._backends: dict[AnyFormat, Backend] = {}
        self._wrapped: dict[Hashable, Backend] = {}
        self._found: dict[tuple[Of, AnyFormat, int | None], Backend] = {}
        for rule in policy.rules:
            if isinstance(rule.keep, AnyFormat) and not rule.least and rule.dtype == "*":
                self.get(rule.keep)

    def get(self, fmt: AnyFormat, of: Of = "values", row: int | None = None) -> Backend:
        """What compresses tensors in a format.

        Args:
            fmt: the format.
            of: what of the values goes into it.
            row: values of a row, where no block is to hold values of two; None where there are no rows, or
                where a memory engine has the format that it has.
        """
        key = of, fmt, row
        found = self._found.get(key)
        if found is None:
            if row is not None and self._name not in backends.IN_PLACE:
                fmt = fmt.for_rows(row)
            if fmt not in self._backends:
                self._backends[fmt] = self.make(fmt)
            codec = self._backends[fmt]
            if of != "values":
                codec = self._wrapped.setdefault((of, fmt), Unsquashed(codec, of))
            if row is not None and self._name not in backends.IN_PLACE and fmt.padded_width(row) != row:
                codec = self._wrapped.setdefault((of, row, fmt), PaddedRows(codec, row))
            found = self._found[key] = codec
        return found

    def smaller(self, decision: Decision, region: Region, row: int) -> Backend | None:
        """What compresses a region whose rows have so many values; None if it would not be smaller."""
        fmt = decision.format
        assert fmt is not None
        assert fmt.target is not None
        if keeps_signs(fmt):
            return self.get(fmt, decision.of)
        row = region.row(row)
        codec = self.get(fmt, decision.of, row)
        padded = codec.fmt.padded_width(row) if row != region.count else row
        return codec if padded * fmt.target < row * fmt.original_bytes else None

    def make(self, fmt: AnyFormat) -> Backend:
        """A backend for a format that is met for the first time."""
        return backends.get(self._name, fmt)

    def check(self) -> None:
        """Raises ValueError if a block that was decompressed on a GPU had an invalid header."""
        for backend in self._backends.values():
            backend.check()


class PaddedRows(Backend):
    """Compresses rows whose ends are padded to whole blocks.

    Args:
        backend: that compresses them.
        row: values of a row.
    """

    def __init__(self, backend: Backend, row: int) -> None:
        super().__init__(backend.fmt)
        self._backend, self._row = backend, row

    def compress(self, values: torch.Tensor, first: int = 0) -> torch.Tensor:
        return self._backend.compress(pad_rows(values, self._row, self.fmt), first)

    def decompress(self, stored: torch.Tensor, count: int, first: int = 0) -> torch.Tensor:
        padded = count // self._row * self.fmt.padded_width(self._row)
        return unpad_rows(self._backend.decompress(stored, padded, first), self._row, self.fmt)

    def _compress(self, values: torch.Tensor, first: int) -> torch.Tensor:
        raise AssertionError("rows are padded before their blocks are checked")

    def _decompress(self, stored: torch.Tensor, count: int, first: int) -> torch.Tensor:
        raise AssertionError("rows are padded before their blocks are checked")


class Unsquashed(Backend):
    """Compresses what a sigmoid or a tanh was given, computed from what it gave.

    Of a storage only the operation that wrote to it last is known, and that may have written to a part of it:
    values that it cannot have given come back as well, if less exactly.

    Args:
        backend: that compresses it.
        of: the inverse, "logit" or "atanh".
    """

    def __init__(self, backend: Backend, of: Of) -> None:
        super().__init__(backend.fmt)
        self._backend, self._squash = backend, _SQUASHES[of]

    def _compress(self, values: torch.Tensor, first: int) -> torch.Tensor:
        given = self._squash.undone(values.float())
        if values.dtype == torch.float16:  # beyond the ends there is less room than it has
            given = torch.where(values.isfinite(), given.clamp(-_LARGEST_HALF, _LARGEST_HALF), given)
        return self._backend.compress(given.to(values.dtype), first)

    def _decompress(self, stored: torch.Tensor, count: int, first: int) -> torch.Tensor:
        given = self._backend.decompress(stored, count, first)
        return self._squash.done(given.float()).to(given.dtype)


@dataclass(frozen=True)
class _Squash:
    """A function onto an interval and its inverse; values beyond the ends become arguments beyond all others.

    Attributes:
        function, inverse: as torch has them.
        low, high: ends of the interval.
        least, most: arguments from which on there is nothing but the ends in any type. An infinity would cost
            its block bits.
    """

    function: Callable[[torch.Tensor], torch.Tensor]
    inverse: Callable[[torch.Tensor], torch.Tensor]
    low: float
    high: float
    least: float
    most: float

    def undone(self, values: torch.Tensor) -> torch.Tensor:
        given = self.inverse(values).clamp_(self.least, self.most)
        given = torch.where(values > self.high, values + (2 * self.most - self.high), given)
        return torch.where(values < self.low, values + (2 * self.least - self.low), given)

    def done(self, given: torch.Tensor) -> torch.Tensor:
        values = self.function(given)
        above = (given - 2 * self.most).clamp_(min=0) + self.high
        values = torch.where(given > 1.5 * self.most, above, values)
        below = (given - 2 * self.least).clamp_(max=0) + self.low
        return torch.where(given < 1.5 * self.least, below, values)


_LARGEST_HALF = torch.finfo(torch.float16).max
_SQUASHES: dict[Of, _Squash] = {
    "logit": _Squash(torch.sigmoid, torch.logit, 0, 1, -110, 20),
    "atanh": _Squash(torch.tanh, torch.atanh, -1, 1, -10, 10),
}
