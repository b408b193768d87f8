"""The decompressed storages that are kept until others are needed."""

from __future__ import annotations

import weakref

import torch

from .entries import NOBODY, Entry, Memory

# Nodes that follow each other in the backward pass often need the same storage, and what is recomputed later
# may start from it. More would give back the memory that compressing saved; beside them only the outputs of
# one attention stay, until its own node has had them.
_KEEP_DECOMPRESSED = 2
# What matrix products made stays until all nodes have had it: a layer has so many that are needed at once. A
# graph that is retained keeps no more.
_KEEP_PRODUCTS = 8


class Decompressed:
    """The last few of one compressor."""

    def __init__(self) -> None:
        self._kept: list[weakref.ref[Memory]] = []
        self._products: list[weakref.ref[Memory]] = []

    def values(self, entry: Entry, number: int = NOBODY) -> torch.Tensor:
        """The memory that has an entry's values; the last few are kept.

        Args:
            entry: whose values.
            number: of the node that asks, if it is an ``autograd.Function``'s.
        """
        memory = entry.memory
        memory.lend(number)
        values = memory.find(entry)
        if values is None:
            parts = [self.values(part) for part in entry.needs]  # they stay until it is computed
            values = memory.of(entry)
            del parts
        if entry.is_product:
            self._keep_product(memory, values)
        elif entry.is_made_anew:
            self._keep(memory, values, entry.is_light)
        return values

    def _keep_product(self, memory: Memory, values: torch.Tensor) -> None:
        memory.keep(values, False)
        kept = [one for ref in self._products if (one := ref()) is not None and one is not memory]
        kept.append(memory)
        if len(kept) > _KEEP_PRODUCTS:
            kept.pop(0).give_up()
        self._products = [weakref.ref(one) for one in kept]

    def _keep(self, memory: Memory, values: torch.Tensor, is_light: bool) -> None:
        """Keep a few decompressed storages, and let go of a light one, or of the one used longest ago."""
        memory.keep(values, is_light)
        known = self._kept
        if known and known[-1]() is memory:
            return
        kept = [one for ref in known if (one := ref()) is not None and one is not memory]
        kept.append(memory)
        awaited = [one for one in kept if one.is_awaited][-1:]
        others = [one for one in kept if one not in awaited]
        if len(others) > _KEEP_DECOMPRESSED:
            given_up = next((one for one in others if one.is_light), others[0])
            given_up.give_up()
            kept.remove(given_up)
        self._kept = [weakref.ref(one) for one in kept]
