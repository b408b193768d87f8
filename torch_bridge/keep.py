"""A piece of a model whose saved tensors stay as they are."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# What the report says of a tensor that was saved inside keep_activations.
OPTED_OUT = "keep_activations"


@contextmanager
def keep_activations() -> Iterator[None]:
    """Leave what is saved inside as it is; goes into a ``Compressor``'s context, also in a forward pass.

    It holds for the thread that enters it; a ``Compressor`` entered inside it compresses. What is compressed
    already, and is saved once more inside, is kept as it is as well. Without a ``Compressor`` around it, it
    does nothing. ``torch.compile`` leaves what is inside uncompiled. A decorator as well.

    Examples:
        >>> class Router(torch.nn.Linear):
        ...     @keep_activations()
        ...     def forward(self, x):
        ...         return super().forward(x).softmax(-1)
    """
    if torch.compiler.is_compiling():
        torch._dynamo.graph_break()  # what a graph saves is packed when all of it has run
    with opt_out.set(True):
        yield


class _OptOut(threading.local):
    """Whether what a thread saves is to stay as it is."""

    holds = False

    @contextmanager
    def set(self, holds: bool) -> Iterator[None]:
        before, self.holds = self.holds, holds
        try:
            yield
        finally:
            self.holds = before


opt_out = _OptOut()
