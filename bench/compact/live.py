"""Counts the bytes that tensors have, by kind, with no memory for them: under PyTorch's fake tensors.

What is counted are the storages that operations return, from then to when they are freed. What a kernel has
for itself while it runs is not; tests/test_bench_compact.py holds the sum to a CPU's allocator.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

PARAMETERS, GRADIENTS, OPTIMIZER = "parameters", "gradients", "optimizer"
INPUTS, COPIES, HEAD, ACTIVATIONS = "projected inputs", "copies of weights", "head and loss", "activations"
WORKSPACE = "workspace"
KINDS = (PARAMETERS, GRADIENTS, OPTIMIZER, INPUTS, COPIES, HEAD, ACTIVATIONS, WORKSPACE)


class Live(TorchDispatchMode):
    """Counts while it is entered.

    Args:
        vocabulary: whose logits and their kin count as of the head.

    Attributes:
        kind: of what is made from now on.
        bytes: that are alive, by kind.
        peak: the most bytes since :meth:`restart`.
        at_peak: of these, those of each kind.
    """

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.kind, self.bytes, self._vocabulary = WORKSPACE, Counter[str](), vocabulary
        self._known: dict[int, tuple[int, str]] = {}
        self.restart()

    def restart(self) -> None:
        """Begin to look for a peak."""
        self.peak, self.at_peak = 0, dict[str, int]()
        self._note()

    def count(self, tensor: torch.Tensor, kind: str | None = None) -> None:
        """Count a tensor's storage once, or as of another kind than so far."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            if kind is not None:
                nbytes, old = self._known[key]
                self._known[key] = nbytes, kind
                self.bytes[old] -= nbytes
                self.bytes[kind] += nbytes
            return
        nbytes = storage.nbytes()
        self._known[key] = nbytes, kind = nbytes, kind or self._kind_of(tensor)
        self.bytes[kind] += nbytes
        weakref.finalize(storage, self._freed, key).atexit = False
        self._note()

    def kind_of(self, tensor: torch.Tensor) -> str:
        """As what it counts."""
        return self._known[tensor.untyped_storage()._cdata][1]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if isinstance(each, torch.Tensor):
                self.count(each)
        return result

    def _kind_of(self, tensor: torch.Tensor) -> str:
        is_logits = tensor.dim() > 1 and tensor.shape[-1] == self._vocabulary
        return HEAD if is_logits and self.kind in (ACTIVATIONS, WORKSPACE) else self.kind

    def _freed(self, key: int) -> None:
        nbytes, kind = self._known.pop(key)
        self.bytes[kind] -= nbytes

    def _note(self) -> None:
        if (total := self.bytes.total()) > self.peak:
            self.peak, self.at_peak = total, {kind: self.bytes[kind] for kind in KINDS}


class MaskOfBytes(TorchFunctionMode):
    """Dropout keeps a byte for each value, as it does on a GPU; on a CPU it keeps a float."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.dropout:
            return self._dropout(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    @staticmethod
    def _dropout(
        x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> torch.Tensor:
        return torch.native_dropout(x, p, True)[0] if training and p else x


@dataclass(frozen=True)
class Step:
    """Bytes of a training step.

    Attributes:
        at_peak: by kind, when they were most of all.
        kept: by kind, between the passes.
    """

    at_peak: dict[str, int]
    kept: dict[str, int]


def count(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_of: Callable[[], torch.Tensor],
    projected: Sequence[str],
    *,
    vocabulary: int,
    accumulate: int = 1,
) -> Step:
    """What the last backward pass of a second step takes: there are moments, and gradients of those before.

    Args:
        model: that is trained.
        optimizer: of it.
        loss_of: the forward pass.
        projected: names of the layers whose inputs, or projections of these, have a kind of their own.
        vocabulary: of its head; 0 if it has none that is large.
        accumulate: passes for a step of the optimizer.
    """
    live = Live(vocabulary)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with ExitStack() as stack:
        stack.enter_context(live)
        stack.enter_context(MaskOfBytes())
        stack.enter_context(_saved_by(live, [model.get_submodule(name) for name in projected]))
        for parameter in trained:
            hook = parameter.register_post_accumulate_grad_hook(lambda one: live.count(one.grad, GRADIENTS))
            stack.callback(hook.remove)
        for _ in range(2):
            for tensor in [*model.parameters(), *model.buffers()]:
                live.count(tensor, PARAMETERS)
            for _ in range(accumulate):
                live.kind = ACTIVATIONS
                live.restart()
                loss = loss_of()
                kept, live.kind = dict(live.bytes), WORKSPACE
                loss.backward()
                del loss
            at_peak, live.kind = live.at_peak, OPTIMIZER
            optimizer.step()
            optimizer.zero_grad()
    return Step(at_peak, kept)


@contextmanager
def _saved_by(live: Live, layers: Sequence[nn.Module]) -> Iterator[None]:
    """What autograd saves in linear layers is an input of them, or a copy of a weight."""
    inside: list[Any] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if inside and live.kind_of(tensor) not in (PARAMETERS, INPUTS):
            weight = inside[-1].weight
            is_copy = sorted(tensor.shape) == sorted(weight.shape) and tensor.dim() == 2
            live.count(tensor, COPIES if is_copy else INPUTS)
        return tensor.detach()

    hooks = [layer.register_forward_pre_hook(lambda layer, _: inside.append(layer)) for layer in layers]
    hooks += [layer.register_forward_hook(lambda *_: _drop_last(inside)) for layer in layers]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield
    for hook in hooks:
        hook.remove()


def _drop_last(items: list[Any]) -> None:
    items.pop()
