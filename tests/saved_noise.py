"""Noise on what autograd saves, tensor by tensor, as a format that meets its need may leave it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torchgen
from torchgen.packaged.autograd.load_derivatives import load_derivatives

from torch_bridge.facts.lineage import Autograd, Lineage
from torch_bridge.facts.need import Need
from torch_bridge.facts.needs import need

VALUES_NOISE = 0.03  # of a block's norm
BLOCK = 128
PROBABILITIES_NOISE = 0.1  # four bits a value of a normal distribution
SIGNS_NOISE = 0.1  # of each value
RELATIVE_NOISE = 2.0**-6  # of each value: planes of ten bits, half of them mantissa
LARGE_NOISE = 2.0**-8  # of each value: planes of twelve bits


_TENSOR = re.compile(r"\bTensor(List)?\b")


class Formula(NamedTuple):
    """One of derivatives.yaml, and the tensors that it saves."""

    op: str
    overload: str
    slots: tuple[str, ...]


class Saved(NamedTuple):
    """A tensor that a node of autograd's graph holds."""

    formula: Formula
    slot: str
    need: Need | None
    handle: torch._C._autograd.SavedTensor
    tensor: torch.Tensor


@cache
def formulas() -> dict[str, Formula]:
    """Of the installed PyTorch, by the names of their nodes; without those that save no tensor."""
    packaged = Path(torchgen.__file__).parent / "packaged"
    native = packaged / "ATen" / "native"
    files = (packaged / "autograd/derivatives.yaml", native / "native_functions.yaml", native / "tags.yaml")
    infos, _ = load_derivatives(*map(str, files))
    found = {}
    for schema, by_key in infos.items():
        for info in by_key.values():
            saved = (*info.all_saved_inputs, *info.all_saved_outputs)
            slots = tuple(_name(one) for one in saved if _TENSOR.search(one.nctype.type.cpp_type()))
            if slots:
                op, _, overload = str(schema.name).partition(".")
                found[info.op] = Formula(op.removesuffix("_"), overload, slots)
    return found


def _name(attribute):
    name = attribute.nctype.name
    return name if isinstance(name, str) else name.name


class Gradients:
    """Those of everything that needs one in a computation, which is done anew each time, from one seed.

    Args:
        compute: makes its own inputs, and gives a tensor or several.
    """

    def __init__(self, compute: Callable[[], Any]) -> None:
        self._compute = compute
        self._outputs = self._computed()
        self.saved = tuple(_saved_by(self._outputs))
        self._exact = self._found(self._outputs)

    def error(self, place: int, change: Callable[[torch.Tensor], torch.Tensor]) -> float:
        """The largest relative error of a gradient where one of what is saved has changed; inf for NaNs."""
        outputs = self._computed()
        saved = tuple(_saved_by(outputs))[place]
        saved.handle.register_hooks(lambda tensor: change(tensor.detach()), lambda tensor: tensor)
        found = self._found(outputs)
        return max(_relative(one, exact) for one, exact in zip(found, self._exact, strict=True))

    def _computed(self) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(0)
        made = self._compute()
        made = made if isinstance(made, tuple) else (made,)
        return tuple(one for one in made if isinstance(one, torch.Tensor) and one.requires_grad)

    def _found(self, outputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(1)
        given = [torch.randn_like(one) for one in outputs]
        leaves = [node.variable for node in _nodes(outputs) if hasattr(node, "variable")]
        return torch.autograd.grad(outputs, leaves, given)


def _relative(found: torch.Tensor, exact: torch.Tensor) -> float:
    size = exact.norm()
    error = (found - exact).norm() / size if size else found.norm()
    return float(error.nan_to_num(torch.inf))


def _nodes(outputs: Iterable[torch.Tensor]) -> Iterator[Any]:
    """All of autograd's graph behind some tensors."""
    waiting, seen = [one.grad_fn for one in outputs], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [behind for behind, _ in node.next_functions]
            yield node


def _saved_by(outputs: Iterable[torch.Tensor]) -> Iterator[Saved]:
    """All tensors but integers that the graph behind some tensors holds, by formulas that are known."""
    for node in _nodes(outputs):
        formula = formulas().get(node.name())
        for slot in formula.slots if formula else ():
            tensor = getattr(node, f"_saved_{slot}")
            if isinstance(tensor, torch.Tensor) and (
                tensor.is_floating_point() or tensor.dtype == torch.bool
            ):
                given = _arguments(node)
                made = defaultdict(Lineage, {name: Autograd().of_tensor(one) for name, one in given.items()})
                needed = need(formula.op, formula.overload, slot, given, made.__getitem__)
                yield Saved(formula, slot, needed, getattr(node, f"_raw_saved_{slot}"), tensor)


def _arguments(node):
    names = [name.removeprefix("_saved_") for name in dir(node) if name.startswith("_saved_")]
    return {name: getattr(node, f"_saved_{name}") for name in names}


def noisy(tensor: torch.Tensor, needed: Need) -> torch.Tensor:
    """A tensor as a format that meets a need may leave it; unchanged where nothing may be lost."""
    noise = torch.empty_like(tensor)
    if needed is Need.VALUES or needed is Need.PROBABILITIES:
        size = VALUES_NOISE if needed is Need.VALUES else PROBABILITIES_NOISE
        return tensor + size * noise.normal_() * _block_norms(tensor)
    noise.uniform_(-1, 1)
    if needed in (Need.SIGMOID, Need.TANH):
        to, back = (torch.logit, torch.sigmoid) if needed is Need.SIGMOID else (torch.atanh, torch.tanh)
        inner = to(tensor.double())
        return torch.where(inner.isfinite(), back(inner * (1 + RELATIVE_NOISE * noise)), tensor).to(
            tensor.dtype
        )
    sizes = {
        Need.SIGNS: SIGNS_NOISE,
        **dict.fromkeys((Need.RELATIVE, Need.LOGITS, Need.LOGITS_BIAS, Need.ATTENDED), RELATIVE_NOISE),
        Need.LOG_PROBABILITIES: LARGE_NOISE,
    }
    return tensor * (1 + sizes[needed] * noise) if needed in sizes else tensor


def _block_norms(tensor: torch.Tensor) -> torch.Tensor:
    """Of each value the root mean square of its block: consecutive values, never of two rows."""
    if not tensor.dim():
        return tensor.abs()
    rows = tensor.flatten(0, -2) if tensor.dim() > 1 else tensor.unsqueeze(0)
    parts = [part.square().mean(1, keepdim=True).sqrt().expand_as(part) for part in rows.split(BLOCK, 1)]
    return torch.cat(parts, 1).view(tensor.shape)
