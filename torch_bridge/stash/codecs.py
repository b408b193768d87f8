"""Which backend compresses what."""

from __future__ import annotations

import torch

from .. import backends
from ..backends.dtypes import StashFormat, format_for
from ..policy import Policy


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
        # By identity, with what it is of: a format's hash takes longer than all else here.
        self._found: dict[tuple[int, torch.dtype], tuple[StashFormat, backends.Backend]] = {}

    def get(self, fmt: StashFormat, dtype: torch.dtype) -> backends.Backend:
        """The backend for tensors of a dtype that a rule keeps in a format."""
        found = self._found.get((id(fmt), dtype))
        if found is None:
            own = format_for(fmt, dtype)
            if own not in self._backends:
                self._backends[own] = backends.get(self._name, own)
            found = self._found[id(fmt), dtype] = fmt, self._backends[own]
        return found[1]

    def check(self) -> None:
        """Raises ValueError if a block that was decompressed on a GPU had an invalid header."""
        for backend in self._backends.values():
            backend.check()
