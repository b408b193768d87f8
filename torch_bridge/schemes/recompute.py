"""Activations that are computed anew in the backward pass: ``torch.utils.checkpoint`` for each block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


@contextmanager
def recompute_activations(model: nn.Module) -> Iterator[list[str]]:
    """Keep only what each block of a model is given, and run the block once more in the backward pass.

    Blocks are the members of each ``nn.ModuleList`` that is in no block: the layers of a transformer. The
    forward pass goes inside; the backward pass may run inside or after. A cache of keys and values, which
    blocks fill as they run, has to be off (``use_cache=False``). Inside :func:`compress_activations` what the
    blocks are given is compressed, or offloaded.

    Args:
        model: in whose blocks nothing is kept.

    Yields:
        The names of the blocks.

    Raises:
        ValueError: the model has no ``nn.ModuleList``.

    Example:
        >>> model = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])})
        >>> with recompute_activations(model) as names:
        ...     x = model["layers"][1](model["layers"][0](torch.ones(2, 8)).tanh())
        >>> x.sum().backward()
        >>> names
        ['layers.0', 'layers.1']
    """
    blocks = dict(_blocks(model))
    if not blocks:
        raise ValueError(f"model must have its blocks in an nn.ModuleList, {type(model).__name__} has none")
    own = {block: vars(block).get("forward") for block in blocks.values()}
    for block in own:
        block.forward = partial(_run, block.forward)
    try:
        yield list(blocks)
    finally:
        for block, forward in own.items():
            del block.forward
            if forward is not None:
                block.forward = forward


def _run(forward: Any, *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)


def _blocks(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    for name, child in module.named_children():
        if isinstance(module, nn.ModuleList) and not isinstance(child, nn.ModuleList):
            yield f"{prefix}{name}", child
        else:
            yield from _blocks(child, f"{prefix}{name}.")
