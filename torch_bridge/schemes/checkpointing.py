"""Activations that are computed anew in the backward pass: ``torch.utils.checkpoint`` for each block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ..facts.layers import layers

# By module and name.
_Buffers = dict[tuple[nn.Module, str], torch.Tensor | None]


@contextmanager
def checkpoint_activations(model: nn.Module) -> Iterator[list[str]]:
    """Keep only what each block of a model is given, and run the block once more in the backward pass.

    Blocks are the members of each ``nn.ModuleList`` that is in no block: the layers of a transformer. The
    forward pass goes inside; the backward pass may run inside or after, and leaves buffers, such as running
    statistics, as they are. A cache of keys and values, which blocks fill as they run, has to be off
    (``use_cache=False``). Inside ``Compressor`` what the blocks are given is compressed, or
    offloaded.

    Args:
        model: in whose blocks nothing is kept.

    Yields:
        The names of the blocks.

    Raises:
        ValueError: the model has no ``nn.ModuleList``.

    Examples:
        >>> model = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])})
        >>> with checkpoint_activations(model) as names:
        ...     x = model["layers"][1](model["layers"][0](torch.ones(2, 8)).tanh())
        >>> x.sum().backward()
        >>> names
        ['layers.0', 'layers.1']
    """
    found = dict(layers(model))
    if not found:
        raise ValueError(f"model must have its blocks in an nn.ModuleList, {type(model).__name__} has none")
    own = {block: vars(block).get("forward") for block in found.values()}
    for block in own:
        block.forward = partial(_run, block, block.forward)
    try:
        yield list(found)
    finally:
        for block, forward in own.items():
            del block.forward
            if forward is not None:
                block.forward = forward


def _run(block: nn.Module, forward: Any, *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    # What the compiler computes anew writes to no buffer.
    run = forward if torch.compiler.is_compiling() else _Passes(block, forward)
    return checkpoint(run, *args, use_reentrant=False, **kwargs)


class _Passes:
    """A block's forward pass; when it runs again, it does so on copies of the buffers that it first found."""

    def __init__(self, block: nn.Module, forward: Any) -> None:
        self._block, self._forward = block, forward
        self._found: _Buffers | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        own = _buffers(self._block)
        if self._found is None:
            copies, writes = _copied(own), {place: _writes(buffer) for place, buffer in own.items()}
            result = self._forward(*args, **kwargs)
            # Of a large mask, which nobody writes to, no copy is kept.
            self._found = {
                place: buffer if _writes(buffer) == writes[place] else copies[place]
                for place, buffer in own.items()
            }
            return result
        _put(_copied(self._found))
        try:
            return self._forward(*args, **kwargs)
        finally:
            _put(own)


def _buffers(block: nn.Module) -> _Buffers:
    return {(part, name): buffer for part in block.modules() for name, buffer in part._buffers.items()}


def _copied(buffers: _Buffers) -> _Buffers:
    """Of what stands in several places there is one copy."""
    copies = {buffer: buffer.clone() for buffer in buffers.values() if buffer is not None}
    return {place: None if buffer is None else copies[buffer] for place, buffer in buffers.items()}


def _put(buffers: _Buffers) -> None:
    for (module, name), buffer in buffers.items():
        module._buffers[name] = buffer


def _writes(buffer: torch.Tensor | None) -> int:
    """How often it was written to; what was made in inference mode does not count that, and cannot be."""
    return 0 if buffer is None or buffer.is_inference() else buffer._version
