"""The node in autograd's graph of an operation that is done again for it, in the backward pass."""

from __future__ import annotations

import weakref

import torch

from ..backends import streams
from .entries import Entry, Raw


class Node:
    """What the node of an attention holds, of which its results are computed anew.

    Whoever else asks for the outputs comes before the node in the backward pass: what was made with them is
    left here for it.

    Args:
        held: what the operation was given, tensor for tensor.

    Attributes:
        held: as given.
    """

    __slots__ = ("_outputs", "_sums", "_written", "held")

    def __init__(self, held: list[Entry | Raw]) -> None:
        self.held = held
        self._outputs: weakref.ref[Entry] | None = None  # it holds this
        self._sums: torch.Tensor | None = None
        self._written: streams.Written | None = None

    @property
    def outputs(self) -> Entry | None:
        """What makes the outputs, once they are saved."""
        return None if self._outputs is None else self._outputs()

    @outputs.setter
    def outputs(self, entry: Entry) -> None:
        self._outputs = weakref.ref(entry)

    def leave(self, sums: torch.Tensor) -> None:
        """The log-sum-exps that were made with the outputs."""
        self._sums, self._written = sums, streams.written(sums.device)
        if (outputs := self.outputs) is not None:
            outputs.memory.is_awaited = True

    def take(self) -> torch.Tensor | None:
        """These, for the node, which needs them once; None if none were left."""
        sums, self._sums = self._sums, None
        if sums is not None:
            streams.take(self._written, sums)
        if (outputs := self.outputs) is not None:
            outputs.memory.is_awaited = False
        return sums
