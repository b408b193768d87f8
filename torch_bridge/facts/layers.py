"""Which modules are a model's layers, and which of their parts read what a layer is given."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

_TOKENS = 8  # of the sequence that a language model is run on


def layers(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Names and modules of a model's layers: the members of each ``nn.ModuleList`` that is in no layer."""
    for name, child in model.named_children():
        if isinstance(model, nn.ModuleList) and not isinstance(child, nn.ModuleList):
            yield f"{prefix}{name}", child
        else:
            yield from layers(child, f"{prefix}{name}.")


def input_readers(model: nn.Module, example: Any = None) -> dict[str, list[str]]:
    """The modules of each layer that are given what the layer is given, found by running the model once.

    It runs without gradients, in evaluation mode, so that no random numbers are drawn and no running
    statistics change. What a layer is given is its first argument of floats, and a module reads it if its own
    first such argument has the same memory: the norm that a layer of Llama starts with; the linear layers of
    queries, keys and values, where the norm comes last. Of a module and its parts the parts are named.

    Args:
        model: with its layers in an ``nn.ModuleList``.
        example: what it is run on: keyword arguments as a mapping, positional ones as a tuple, or one tensor.
            By default a few tokens as ``input_ids``, as language models of transformers take them.

    Returns:
        Names of modules by the layer's name, both as in ``model.named_modules()``. A layer that did not run,
        or was given no floats, is left out.

    Raises:
        ValueError: the model has no layers, none of them ran, or it takes other arguments.
    """
    found = dict(layers(model))
    if not found:
        raise ValueError(f"model must have its layers in an nn.ModuleList, {type(model).__name__} has none")
    args, kwargs = _arguments(model, example)
    seen = _Seen(model, found)
    with _in_evaluation(model), seen.watching(), torch.no_grad():
        model(*args, **kwargs)
    if not seen.readers:
        raise ValueError(
            f"model must run one of its layers, {next(iter(found))!r} or others, on floats: "
            f"{type(model).__name__} did not"
        )
    return {layer: _deepest(names) for layer, names in seen.readers.items()}


class _Seen:
    """Which modules were given what their layer was given."""

    def __init__(self, model: nn.Module, found: Mapping[str, nn.Module]) -> None:
        self._names = {part: name for name, part in model.named_modules()}
        self._layers = found
        self._running: list[tuple[str, torch.Tensor | None]] = []
        self.readers: dict[str, list[str]] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While hooks are on all parts of all layers."""
        hooks = []
        for layer in self._layers.values():
            hooks.append(layer.register_forward_pre_hook(self._enter, with_kwargs=True))
            hooks.append(layer.register_forward_hook(self._leave, always_call=True))
            parts = [part for part in layer.modules() if part is not layer]
            hooks += [part.register_forward_pre_hook(self._read, with_kwargs=True) for part in parts]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _enter(self, layer: nn.Module, args: Any, kwargs: Any) -> None:
        name, given = self._names[layer], _first_of_floats(args, kwargs)
        self._running.append((name, given))
        if given is not None:
            self._note(name, name)

    def _leave(self, *_: Any) -> None:
        self._running.pop()

    def _read(self, part: nn.Module, args: Any, kwargs: Any) -> None:
        if not self._running:
            return
        layer, given = self._running[-1]
        own = _first_of_floats(args, kwargs)
        if given is not None and own is not None and _is_same(own, given):
            self._note(layer, self._names[part])

    def _note(self, layer: str, name: str) -> None:
        names = self.readers.setdefault(layer, [])
        if name not in names:
            names.append(name)


def _deepest(names: list[str]) -> list[str]:
    """Those of the modules that are not around another one."""
    return [name for name in names if not any(other.startswith(f"{name}.") for other in names)]


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are all of the same memory, in whichever shape."""
    return (
        one.untyped_storage()._cdata == other.untyped_storage()._cdata
        and one.storage_offset() == other.storage_offset()
        and one.numel() == other.numel()
    )


def _first_of_floats(args: Any, kwargs: Any) -> torch.Tensor | None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.layout is torch.strided:
            return value
    return None


def _arguments(model: nn.Module, example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a model is called with."""
    if isinstance(example, Mapping):
        return (), dict(example)
    if isinstance(example, (tuple, list)):
        return tuple(example), {}
    if isinstance(example, torch.Tensor):
        return (example,), {}
    if example is not None:
        raise ValueError(f"example must be a mapping, a tuple or a tensor, not {example!r}")
    names = inspect.signature(model.forward).parameters
    if "input_ids" not in names and not _is_wrapper(model):
        raise ValueError(
            f"example must be given, as a batch of one: {type(model).__name__} takes no input_ids"
        )
    device = next((one.device for one in model.parameters()), None)
    tokens = torch.ones((1, _TOKENS), dtype=torch.int64, device=device)
    config = getattr(model, "config", None)
    extra = {"decoder_input_ids": tokens} if getattr(config, "is_encoder_decoder", False) else {}
    return (), {"input_ids": tokens, **extra}


def _is_wrapper(model: nn.Module) -> bool:
    """Whether it hands on whatever it is given, as DDP does."""
    kinds = {one.kind for one in inspect.signature(model.forward).parameters.values()}
    return {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD} <= kinds


@contextmanager
def _in_evaluation(model: nn.Module) -> Iterator[None]:
    """While all modules are in evaluation mode; after it each is as it was."""
    training = [part for part in model.modules() if part.training]
    model.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True
