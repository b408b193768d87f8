"""Which backend compresses what."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .. import backends
from ..backends import Backend
from ..backends.dtypes import StashFormat, format_for
from ..policy import Of, Policy, Rule


class Codecs:
    """One backend for each format that is met: that of a rule, or the same for another dtype.

    Those of rules are made at once, so that what is wrong shows before the training; but not of rules for
    large tensors or for some dtypes, for which a library of simulated hardware need not be built if there
    are none.

    Args:
        policy: whose rules have the formats.
        name: of the backend.
    """

    def __init__(self, policy: Policy, name: str) -> None:
        self._name = name
        keeps = [rule.keep for rule in policy.rules if not rule.least and rule.dtype == "*"]
        self._backends = {keep: backends.get(name, keep) for keep in keeps if isinstance(keep, StashFormat)}
        self._of: dict[tuple[Of, StashFormat], Backend] = {}
        # By identity, with what it is of: a rule's hash takes longer than all else here.
        self._found: dict[tuple[int, torch.dtype], tuple[Rule, Backend]] = {}

    def get(self, rule: Rule, dtype: torch.dtype) -> Backend:
        """What compresses tensors of a dtype that a rule keeps in a format."""
        found = self._found.get((id(rule), dtype))
        if found is None:
            assert isinstance(rule.keep, StashFormat)
            own = format_for(rule.keep, dtype)
            if own not in self._backends:
                self._backends[own] = backends.get(self._name, own)
            codec = self._backends[own]
            if rule.of != "values":
                codec = self._of.setdefault((rule.of, own), Unsquashed(codec, rule.of))
            found = self._found[id(rule), dtype] = rule, codec
        return found[1]

    def check(self) -> None:
        """Raises ValueError if a block that was decompressed on a GPU had an invalid header."""
        for backend in self._backends.values():
            backend.check()


class Unsquashed(Backend):
    """Compresses what a sigmoid or a tanh was given, computed from what it gave.

    Args:
        backend: that compresses it.
        of: the inverse, "logit" or "atanh".
    """

    def __init__(self, backend: Backend, of: Of) -> None:
        super().__init__(backend.fmt)
        self._backend = backend
        self._squash, self._unsquash, self._least, self._most = _SQUASHES[of]

    def _compress(self, values: torch.Tensor, first: int) -> torch.Tensor:
        given = self._unsquash(values.float()).clamp_(self._least, self._most)
        return self._backend.compress(given.to(values.dtype), first)

    def _decompress(self, stored: torch.Tensor, count: int, first: int) -> torch.Tensor:
        given = self._backend.decompress(stored, count, first)
        return self._squash(given.float()).to(given.dtype)


# From these arguments on there is nothing but the ends in any type. An infinity would cost its block bits.
_SQUASHES: dict[Of, tuple[Callable, Callable, float, float]] = {
    "logit": (torch.sigmoid, torch.logit, -110, 20),
    "atanh": (torch.tanh, torch.atanh, -10, 10),
}
