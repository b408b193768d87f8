"""Storages, known by their addresses and not kept alive."""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import Any

import torch

_free: Any = torch.UntypedStorage._free_weak_ref


class StorageRef:
    """A weak reference to a storage: while it is held, no other storage gets the address.

    It does what ``torch.multiprocessing.reductions.StorageWeakRef`` does, in half the time.

    Attributes:
        address: of the storage, as ``UntypedStorage._cdata`` has it.
    """

    __slots__ = ("_free", "address")

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.address: int = storage._weak_ref()  # type: ignore[assignment]
        self._free = partial(_free, self.address)

    # No Python code: a Ctrl-C that fell into it would be ignored, as all exceptions of finalisers are.
    __del__ = property(attrgetter("_free"))

    def __call__(self) -> torch.UntypedStorage | None:
        """The storage, if it is still there."""
        return torch.UntypedStorage._new_with_weak_ptr(self.address)

    @property
    def is_dead(self) -> bool:
        return torch.UntypedStorage._expired(self.address)  # type: ignore[return-value]
