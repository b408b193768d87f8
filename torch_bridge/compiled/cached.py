"""Which graphs came out of a cache of torch.compile, so that no partitioner saw them."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from ..internals import cache_hits, compilation


class Cached:
    """Counts the graphs of a partitioner that were found in a cache.

    PyTorch asks for the partitioner's name just before it looks for a graph with its backward pass. Without
    one, as in a validation, nothing is missing; a graph that saves nothing may be counted nevertheless.
    """

    def __init__(self) -> None:
        self._count, self._hits_before = 0, -1
        self._split: weakref.ref[Any] | None = None

    def __reduce__(self) -> tuple[type[Cached], tuple[()]]:
        """PyTorch pickles a partitioner for the keys of graphs, which do not depend on this."""
        return Cached, ()

    def look_up(self) -> None:
        """A graph may be looked for now."""
        self._settle()
        is_split = self._split is not None and self._split() is compilation()
        self._hits_before = cache_hits() if torch.is_grad_enabled() and not is_split else -1

    def miss(self) -> None:
        """The graph was not found: it is split now, and what is looked for next are its parts."""
        self._settle()
        context = compilation()
        self._split = None if context is None else weakref.ref(context)

    @property
    def count(self) -> int:
        """Graphs that were found."""
        self._settle()
        return self._count

    def _settle(self) -> None:
        if 0 <= self._hits_before < cache_hits():
            self._count += 1
        self._hits_before = -1
