"""What errors of saved tensors do to the gradient, all measured in one backward pass.

Each node of autograd's graph runs with exact tensors, and once more for each kind of tensors that it has,
with these as they are compressed: the difference is the error that they add to the gradients which the node
gives. How far such an error is amplified on its way to the parameters is known from the nodes behind: each
runs once more with the signs of its gradients drawn anew, which makes noise of them that has their sizes. Of
what reaches a parameter the squares are added, as errors of different tensors have nothing to do with each
other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch

from ..compressor import Compressor
from ..hooks import Pass, Sharded
from ..store.entries import Entry, Exact, Joint, Packed
from ..store.saved import Saved
from .errors import Kind, Lossy, Switched, Trials, Tried, TryingStore

Gradients = Sequence[torch.Tensor | None]

# Signs that are drawn; a prime number, so that rows of no width have the same.
_SIGNS = 65_537


@dataclass
class Measured:
    """What was measured in a step.

    Attributes:
        tried: the tensors that are compressed.
        errors: by kinds of tensors, the squared error that they add to the gradient.
        gradients: of the parameters, exact; None where there is none.
        power: their squared length.
        stored_bytes: of the step.
        unknown: kinds of which a node could not be run again, as inside of a checkpoint.
    """

    tried: list[Tried]
    errors: dict[Kind, float]
    gradients: Gradients
    power: float
    stored_bytes: int
    unknown: set[Kind]

    def share_out(self, error: float) -> None:
        """Of the unknown kinds, the squared error of all together is known: it goes by their own errors."""
        own = dict.fromkeys(self.unknown, 0.0)
        for one in self.tried:
            if one.kind in own and one.power:
                own[one.kind] += one.now.error / one.power
        total = sum(own.values())
        self.errors |= {kind: error * part / total for kind, part in own.items() if total}


def measure(
    model: torch.nn.Module,
    forward: Callable[[], torch.Tensor],
    parameters: Sequence[torch.Tensor],
    trials: Trials,
    min_values: int,
) -> Measured:
    """Run a training step and measure.

    Args:
        model: of the step.
        forward: computes the loss.
        parameters: whose gradients count.
        trials: formats to try.
        min_values: as of a Compressor.
    """
    with _Measuring(model, trials, min_values) as saver:
        loss = forward()
    # Those that turned out to be shared by layers are exact by now.
    tried = [one for one in saver.tried if not one.entry.is_exact]
    nodes = _Nodes(saver.recording, saver.lossy, parameters)
    with nodes.watching(loss):
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
    power = sum(_square(one, torch.float64) for one in found if one is not None)
    errors = dict.fromkeys((one.kind for one in tried), 0.0) | nodes.errors()
    return Measured(tried, errors, found, power, saver.stored_bytes, nodes.unknown)


def lossy_gradients(
    model: torch.nn.Module,
    forward: Callable[[], torch.Tensor],
    parameters: Sequence[torch.Tensor],
    trials: Trials,
    min_values: int,
    kinds: Collection[Kind],
) -> list[torch.Tensor | None]:
    """The gradients of the same step with some kinds of tensors as they are compressed."""
    with _Measuring(model, trials, min_values) as saver:
        loss = forward()
    with saver.lossy.only(*kinds):
        return list(torch.autograd.grad(loss, parameters, allow_unused=True))


class _Recording(Pass):
    """Keeps the tensors as well, and notes what a node asks for.

    Attributes:
        lossy: which kinds come back as they are compressed.
        asked: the entries that a node asked for.
        is_asked: whether it asked for anything.
    """

    lossy: Lossy

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._exact: dict[int, Exact] = {}
        self.asked: list[Entry] = []
        self._done: list[int] = []
        self.is_asked = False

    def begin(self) -> None:
        """A node begins: what the one before had is not needed any more."""
        for number in self._done:
            self._exact.pop(number, None)
        self.asked, self._done, self.is_asked = [], [], False

    def _pack(self, tensor: torch.Tensor, function: str) -> Exact | Packed | Saved:
        held = super()._pack(tensor, function)
        if isinstance(held, Saved) and held.values is not None:
            self._exact[id(held)] = Exact(held.values, None)
        return held

    def unpack(self, packed: Exact | Packed | Saved | Sharded) -> torch.Tensor:
        self.is_asked = True
        return super().unpack(packed)

    def _unpack(self, packed: Exact | Packed | Saved) -> torch.Tensor:
        held = packed.packed if isinstance(packed, Saved) else packed
        if not isinstance(packed, Saved) or not isinstance(held, Packed):
            return super()._unpack(packed)
        self.asked.append(held.entry)
        self._done.append(id(packed))
        if self.lossy.kinds or (exact := self._exact.get(id(packed))) is None:
            return super()._unpack(packed)
        return exact.tensor().clone() if packed.function else exact.tensor()


class _Measuring(Compressor):
    """Saved tensors come back exact, but for one kind.

    Attributes:
        tried: the tensors that are compressed.
        lossy: which kind comes back with its error.
        recording: the forward pass.
    """

    make_store, make_pass = TryingStore, _Recording
    recording: _Recording

    def __init__(self, model: torch.nn.Module, trials: Trials, min_values: int) -> None:
        super().__init__(model, trials.policy, min_values=min_values)
        self.tried: list[Tried] = []
        self.lossy, self._trials = Lossy(), trials

    def __enter__(self) -> Self:
        super().__enter__()
        store, recording = self.store, self._pass
        assert isinstance(store, TryingStore)
        assert isinstance(recording, _Recording)
        store.trials, store.lossy, store.tried = self._trials, self.lossy, self.tried
        recording.lossy, self.recording = self.lossy, recording
        return self


class _Nodes:
    """The nodes of a backward pass: what each adds of error, and how far it amplifies what it is given.

    Args:
        recording: notes the entries that a node asks for.
        lossy: which kind comes back with its error.
        parameters: whose gradients count.

    Attributes:
        unknown: kinds of which a node could not be run again.
    """

    def __init__(self, recording: _Recording, lossy: Lossy, parameters: Sequence[torch.Tensor]) -> None:
        self._recording, self._lossy = recording, lossy
        self._ends = {id(parameter) for parameter in parameters}
        self.unknown: set[Kind] = set()
        self._reached: set[Any] = set()
        # In the order of the backward pass: squares of the gradients given, of those that each node makes of
        # them, and of the errors of these by kinds.
        self._ran: list[tuple[Any, torch.Tensor, torch.Tensor, dict[Kind, torch.Tensor]]] = []
        generator = torch.Generator().manual_seed(0)
        self._signs = torch.randint(0, 2, (_SIGNS,), generator=generator, dtype=torch.int8) * 2 - 1

    @contextmanager
    def watching(self, loss: torch.Tensor) -> Iterator[None]:
        """While hooks are on all nodes; a hook that stayed would hold its node, and that the hook."""
        nodes, hooks, rest = set(), [], [loss.grad_fn]
        while rest:
            node = rest.pop()
            if node is None or node in nodes:
                continue
            nodes.add(node)
            rest += [one for one, _ in node.next_functions]
            if not hasattr(node, "variable"):
                hooks.append(node.register_prehook(self._before))
                hooks.append(
                    node.register_hook(lambda made, given, node=node: self._after(node, made, given))
                )
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def errors(self) -> dict[Kind, float]:
        """The squared error that each kind adds to the gradients of all parameters."""
        gains: dict[Any, float] = {}
        errors: dict[Kind, float] = {}
        for node, given, made, added in reversed(self._ran):
            behind = torch.tensor(
                [self._gain(one, gains) for one, _ in node.next_functions], dtype=torch.float64
            )
            total = float(given)
            gains[node] = float(made @ behind) / total if total else 0.0
            for kind, squares in added.items():
                errors[kind] = errors.get(kind, 0.0) + float(squares @ behind)
        return errors

    def _gain(self, node: Any, gains: dict[Any, float]) -> float:
        variable = getattr(node, "variable", None)
        return float(id(variable) in self._ends) if variable is not None else gains.get(node, 0.0)

    def _before(self, given: Gradients) -> None:
        self._recording.begin()

    def _after(self, node: Any, made: Gradients, given: Gradients) -> None:
        asked, is_asked = self._recording.asked, self._recording.is_asked
        kinds, is_reached = _kinds(asked), node in self._reached
        if not (is_reached or kinds):
            return
        self._reached.update(one for one, _ in node.next_functions)
        # What a node that saves nothing does to noise, it does to gradients: it moves them.
        noise = None
        if is_reached and is_asked:
            noise = _run(node, [self._noise(one) for one in given], made)
        added = {}
        for kind in kinds:
            _forget(asked)
            with self._lossy.only(kind):
                lossy = _run(node, given, made)
            if lossy is None:
                self.unknown.add(kind)
            else:
                added[kind] = _squares([_difference(*pair) for pair in zip(lossy, made, strict=True)])
        if kinds:
            _forget(asked)
        self._ran.append((node, _squares(given).sum(), _squares(made if noise is None else noise), added))

    def _noise(self, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """A gradient with other signs."""
        if gradient is None or gradient.layout is not torch.strided or gradient.is_nested:
            return gradient
        count = gradient.numel()
        signs = self._signs.to(gradient.device, gradient.dtype).repeat(-(-count // _SIGNS))[:count]
        return gradient * signs.view(gradient.shape)


def _run(node: Any, given: Gradients, like: Gradients) -> Gradients | None:
    """What a node makes of gradients, of the shapes that it made before; None if it can only run once."""
    call: Callable[..., Any] = node if callable(node) else node.apply
    try:
        made = call(*given)
    except RuntimeError:
        return None
    made = made if isinstance(made, tuple) else (made,)
    # Autograd's engine sums what was broadcast, when a node has run.
    return [
        None if one is None or was is None else one if one.shape == was.shape else one.sum_to_size(was.shape)
        for one, was in zip(made, like, strict=True)
    ]


def _forget(entries: Sequence[Entry]) -> None:
    for entry in entries:
        entry.forget()


def _kinds(entries: Sequence[Entry]) -> dict[Kind, None]:
    """Of what is compressed among entries and what they are made of."""
    kinds: dict[Kind, None] = {}
    for entry in entries:
        if isinstance(entry, Switched) and not entry.is_exact:
            kinds[Kind.of(entry.facts)] = None
        kinds |= _kinds(entry.parts if isinstance(entry, Joint) else entry.needs)
    return kinds


def _difference(lossy: torch.Tensor | None, exact: torch.Tensor | None) -> torch.Tensor | None:
    return None if lossy is None or exact is None else lossy - exact


def _squares(gradients: Gradients) -> torch.Tensor:
    """float64[gradients]: the sum of the squares of each."""
    return torch.tensor([0.0 if one is None else _square(one) for one in gradients], dtype=torch.float64)


def _square(gradient: torch.Tensor, dtype: torch.dtype = torch.float32) -> float:
    if gradient.layout is not torch.strided:
        gradient = gradient.coalesce().values() if gradient.layout is torch.sparse_coo else gradient.values()
    return float(torch.linalg.vector_norm(gradient, dtype=dtype)) ** 2
