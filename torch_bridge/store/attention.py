"""Fused attention that is done again in the backward pass, for its own node.

The node keeps queries, keys and values; its outputs and the log-sum-exps of its logits are computed anew of
what it holds of these, a small part of the work of a layer (3 % in GPT-2 with 1024 tokens). The backward pass
takes differences of what the five say of the same probabilities, and little is right of these unless they
belong together: so nothing else is used, whatever others have stored of the same tensors.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from ..backends import streams
from ..facts.facts import Facts
from ..facts.geometry import Geometry, Region, region_of
from ..facts.operations import Operation
from ..facts.recompute import Recipe, Recomputation
from .entries import Entry, Exact, Memory, Source
from .recomputed import Input, Recomputed, Redone


def may_be_again(op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an attention can be done again: it draws no random numbers."""
    arguments = dict(zip(op.arguments, args, strict=False)) | kwargs
    return op.is_attention and not arguments.get("dropout_p") and not arguments.get("return_debug_mask")


# Tokens whose queries and keys are looked at.
_SAMPLE = 64


class Logits:
    """How far logits of attention spread, for a device to know, from queries and keys.

    A query's error is a part of its length, and a key's too, so the error of a logit is that part of both
    lengths' product. So is the standard deviation of logits of random directions, which is
    ``scale * |q| * |k| / sqrt(width)``. That is taken, of the head where it is largest, from some tokens.

    Args:
        tensors: queries and keys, or one tensor that has both, of [batch, heads, tokens, width]; heads may
            also come just before the width.
        scale: that the products have; one over the root of the width if it is None.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], scale: float | None = None) -> None:
        self._tensors, self._scale = tensors, scale
        self._spread: torch.Tensor | None = None

    def spread(self) -> torch.Tensor:
        """The largest head's, a number; computed once."""
        if self._spread is None:
            width = self._tensors[0].shape[-1]
            scale = width**-0.5 if self._scale is None else self._scale
            squares = [_squares(one) for one in self._tensors]
            first, last = squares[0], squares[-1]
            product = first * last if len(first) == len(last) else first.max() * last.max()
            self._spread = product.max().sqrt() * (scale * width**0.5)
        return self._spread


def _squares(tensor: torch.Tensor) -> torch.Tensor:
    """The mean square of each head of some tokens, in fp32."""
    before = tensor.shape[-3] if tensor.dim() > 2 else 1
    heads = -3 if tensor.dim() == 4 and before < tensor.shape[-2] else -2
    tokens = -5 - heads
    if tensor.dim() > 2 and (step := tensor.shape[tokens] // _SAMPLE) > 1:
        tensor = tensor[..., ::step, :] if tokens == -2 else tensor[..., ::step, :, :]
    values = tensor.movedim(heads, 0) if tensor.dim() > 2 else tensor.unsqueeze(0)
    return values.float().square().flatten(1).mean(1)


def logits_of(op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Logits:
    """Of an attention of PyTorch."""
    arguments = dict(zip(op.arguments, args, strict=False)) | kwargs
    return Logits([arguments["query"], arguments["key"]], arguments.get("scale"))


class Node:
    """What the node of an attention holds, of which its results are computed anew.

    Whoever else asks for the outputs comes before the node in the backward pass: what was made with them is
    left here for it.

    Args:
        op: the attention.
        args, kwargs: that it was given.
        held: by the places or names of arguments what the node holds of them, and where they lie in it.
    """

    def __init__(
        self,
        op: Operation,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        held: dict[int | str, tuple[Entry | Exact, Geometry]],
    ) -> None:
        self._run = op.run
        self._args = [None if place in held else value for place, value in enumerate(args)]
        self._kwargs = {name: None if name in held else value for name, value in kwargs.items()}
        self._held = held
        self._outputs: weakref.ref[Recomputed] | None = None  # it holds this
        self._sums: torch.Tensor | None = None
        self._written: streams.Written | None = None

    @property
    def outputs(self) -> Recomputed | None:
        """What makes the outputs, once they are saved."""
        return None if self._outputs is None else self._outputs()

    def result(self, number: int, source: Source, tensor: torch.Tensor, facts: Facts) -> Recomputed:
        """A result that is computed anew: 0 for the outputs, 1 for the log-sum-exps."""
        recipe = Recipe(
            Recomputation(self._outputs_again if number == 0 else self._sums_again),
            list(self._args),
            dict(self._kwargs),
            tensor,
        )
        inputs: list[Input] = [(place, part, where) for place, (part, where) in self._held.items()]
        redone, region = Redone(recipe, inputs), region_of(tensor)
        if number:
            return _Sums(source, region, tensor, redone, self)
        entry = Recomputed(source, region, tensor, redone)
        self._outputs = weakref.ref(entry)
        return entry

    def _outputs_again(self, is_exact: bool, *args: Any, **kwargs: Any) -> torch.Tensor:
        made, sums = self._run(*args, **kwargs)[:2]
        self._sums, self._written = sums, streams.written(sums.device)
        if (outputs := self.outputs) is not None:
            outputs.memory.is_awaited = True
        return made

    def _sums_again(self, is_exact: bool, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self._run(*args, **kwargs)[1]

    def take(self) -> torch.Tensor | None:
        """The log-sum-exps that were made with the outputs, for the node, which needs them once, or None."""
        sums, self._sums = self._sums, None
        if sums is not None:
            streams.take(self._written, sums)
        if (outputs := self.outputs) is not None:
            outputs.memory.is_awaited = False
        return sums


class _Sums(Recomputed):
    """The log-sum-exps, made with the outputs."""

    def __init__(
        self, source: Source, region: Region, values: torch.Tensor, redone: Redone, node: Node
    ) -> None:
        super().__init__(source, region, values, redone)
        self._node = node

    @property
    def needs(self) -> list[Entry]:
        outputs = self._node.outputs
        return super().needs if outputs is None else [outputs]

    def forget(self) -> None:
        self._node.take()
        super().forget()

    def write_to(self, memory: torch.Tensor | None, where: Memory) -> torch.Tensor:
        made = self._node.take()
        if made is None:
            return super().write_to(memory, where)
        return self._put_into(memory, self.redone.finish(made), where)
