"""Chooses how far each kind of saved tensor is compressed, by what that does to the gradient.

As in GACT (Liu et al., ICML 2022, section 4): the effect of each tensor on the gradient is measured, and bits
are then taken away greedily where they matter least. GACT compresses one tensor at a time and runs the model
for each; here one backward pass measures all. GACT scales the effect to other rates by a model of its
quantiser; here it scales with the tensor's own squared error, which is measured at every rate.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any

import numpy as np
import torch

from golden import Format, HadamardFormat, PlaneFormat

from ..compressor import Compressor
from ..policy import Policy, Rule
from .effects import Measured, lossy_gradients, measure
from .errors import Kind, Trials, bits_of

Loss = Callable[[torch.nn.Module, Any], torch.Tensor]

FORMATS: tuple[Format, ...] = (
    *(PlaneFormat("fp32", 64, 8 * bits) for bits in (16, 14, 12, 10, 9, 8, 7, 6, 5)),
    *(HadamardFormat("fp32", 128, target) for target in (64, 48, 32, 26)),
)
# A value, at which a tensor's effect on the gradient is measured; at many bits bf16 rounds by more than that.
_MEASURED_BITS = 4
_MIN_VALUES = 1024


def calibrate(
    model: torch.nn.Module,
    batch: Any,
    *,
    budget: int,
    formats: Iterable[Format] = FORMATS,
    loss: Loss | None = None,
) -> Policy:
    """The policy with the least gradient error whose saved tensors fit a budget.

    Weights, their gradients, buffers and the state of random numbers are left as they were. It takes
    about as long as five training steps on the same batches, and as much memory as they without compression.

    Args:
        model: as it trains: its weights, and train() or eval().
        batch: one batch, or a list of several, whose errors are averaged.
        budget: bytes that the saved tensors of each batch may take, with all that stays exact.
        formats: to choose from, all with a target; by default planes of 5 to 16 bits a value, and Hadamard
            formats of 4, 3, 2 and 1.625. What the table of operations has in a finer one keeps that.
        loss: computes a batch's loss; by default ``model(**batch).loss``.

    Returns:
        Rules for each module and operation, with the reason for each, and those of ``Policy.default`` in
        the format of the most bits. Print it for a
        table.

    Raises:
        ValueError: no choice fits the budget, and the message says what would; it is no positive number;
            there are no formats, or lossless ones, no batches or nothing to train; or a batch's gradient is
            zero or not finite.
    """
    if not (isinstance(budget, Real) and budget >= 1):
        raise ValueError(f"budget must be a positive number of bytes, not {budget!r}")
    return Calibration(model, batch, formats, loss).policy(budget)


class Calibration:
    """What ``calibrate`` measures; it serves for any number of budgets.

    Args:
        model, batch, formats, loss: as of ``calibrate``.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        batch: Any,
        formats: Iterable[Format] = FORMATS,
        loss: Loss | None = None,
    ) -> None:
        choice = list(formats) if isinstance(formats, Iterable) else []
        if not choice or not all(isinstance(fmt, Format) and fmt.target is not None for fmt in choice):
            raise ValueError(f"formats must be a list of some with a target, not {choice or formats!r}")
        if not isinstance(model, torch.nn.Module):
            raise ValueError(f"model must be a torch.nn.Module, not {reprlib.repr(model)}")
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ValueError("model must have a parameter that is trained, not none")
        batches = batch if isinstance(batch, list) else [batch]
        if not batches:
            raise ValueError("batch must be one batch or a list of some, not []")
        self._runs = [_Run(model, one, loss or _loss_of_transformers) for one in batches]
        self._choices: tuple[Format | None, ...] = (None, *choice)
        self._defaults = Policy.default(max(choice, key=bits_of)).rules
        trials = Trials(choice, _MEASURED_BITS)
        found = [run.measure(trials) for run in self._runs]
        for number, one in enumerate(found):
            if not 0 < one.power < np.inf:
                raise ValueError(f"loss must have a gradient, finite and not zero; not so on batch {number}")
        self._exact = [_dense(one.gradients) for one in found]
        self._kinds = list(dict.fromkeys(kind for one in found for kind in one.errors))
        self._bytes, self._errors, self._bytes_of_one, self._error_of_one = self._costs(found)
        # What is left exact takes so many bytes, unless tensors share memory.
        exact = [one.stored_bytes - sum(tried.now.nbytes for tried in one.tried) for one in found]
        self._exact_sizes = np.array(exact) + self._bytes[:, 0].sum(0)

    def _costs(self, found: list[Measured]) -> tuple[np.ndarray, ...]:
        """What each choice costs for each kind.

        Returns:
            float[kinds, choices, runs], the bytes, infinite of what is no choice, float[kinds, choices],
            the squared relative error of the gradient; and of one choice for all kinds both, float[choices,
            runs] and float[choices].
        """
        shape = len(self._kinds), len(self._choices), len(found)
        places = {kind: place for place, kind in enumerate(self._kinds)}
        sizes, lost = np.zeros(shape), np.zeros(shape)
        fits = np.zeros(shape[:2], bool)
        measured, power, error = np.zeros((3, shape[0]))
        for run, one in enumerate(found):
            for tried in one.tried:
                place = places[tried.kind]
                measured[place] += tried.now.error
                power[place] += tried.power
                for number, fmt in enumerate(self._choices):
                    left = tried.options.get(fmt, tried.exact)
                    sizes[place, number, run] += left.nbytes
                    lost[place, number, run] += left.error
                    fits[place, number] |= fmt in tried.own
            for kind, squared in one.errors.items():
                error[places[kind]] += squared / one.power
        # A format too coarse for all of a kind is another one in its place: no choice, if there is one.
        of_one = sizes.sum(0)
        fits[:, 0] = True
        sizes[~fits & (fits.sum(1) > 1)[:, None]] = np.inf
        # What this rate stores without loss may lose at others: then all of it might matter.
        effect = np.divide(error, measured, out=1 / np.maximum(power, 1e-300), where=measured > 0)
        errors = lost.mean(2) * effect[:, None]
        return sizes, errors, of_one, errors.sum(0)

    @cached_property
    def least(self) -> int:
        """Bytes of the smallest budget that can be met, of the batch that takes the most."""
        return self.stored_bytes(self._policy(self._bytes.sum(2).argmin(1)))

    @cached_property
    def most(self) -> int:
        """Bytes of a budget with which all that could be compressed stays exact, of that batch."""
        return self.stored_bytes(self._policy(np.zeros(len(self._kinds), int)))

    def policy(self, budget: int) -> Policy:
        """The policy for a budget in bytes, which every batch fits; raises ValueError if no choice does."""
        chosen, sizes = np.zeros(len(self._kinds), int), self._exact_sizes
        smaller = self._grown(self._shrunk(chosen, sizes, budget), budget)
        while True:
            policy = self._policy(smaller)
            # Kinds that share memory take up other sizes together than each alone.
            found = self._sizes(policy)
            if found.max() <= budget:
                return self._checked(policy, budget)
            if (smaller == chosen).all() and (found == sizes).all():
                raise ValueError(
                    f"budget must be at least {found.max():,} bytes for this batch, not {budget:,}"
                )
            chosen, sizes = smaller, found
            smaller = self._shrunk(chosen, sizes, budget)

    def _checked(self, policy: Policy, budget: int) -> Policy:
        """A policy that was chosen by what its errors should add up to; one format for all if that is better.

        Errors of kinds that amplify each other add up to more than the sum.
        """
        free = budget - self._exact_sizes + self._bytes[:, 0].sum(0)
        for number in self._error_of_one[1:].argsort() + 1:
            if (self._bytes_of_one[number] <= free).all():
                break
        else:
            return policy
        error = self.error(policy)
        if error**2 <= self._error_of_one[number]:
            return policy
        fmt = self._choices[number]
        assert fmt is not None
        plain = Policy.default(fmt)
        is_better = self.stored_bytes(plain) <= budget and self.error(plain) < error
        return plain if is_better else policy

    def _shrunk(self, chosen: np.ndarray, sizes: np.ndarray, budget: int) -> np.ndarray:
        """Take the step that costs least error for its bytes until all runs fit or nothing gets smaller.

        Args:
            chosen: int[kinds], where to start in the choices.
            sizes: [runs], the bytes of that.

        Returns:
            int[kinds], where it ends.
        """
        chosen, totals = chosen.copy(), self._bytes.sum(2)
        while (over := sizes > budget).any():
            kind, choice = np.nonzero(totals < totals[range(len(chosen)), chosen][:, None])
            if not len(kind):
                break
            saved = self._bytes[kind, chosen[kind]] - self._bytes[kind, choice]
            error = self._errors[kind, choice] - self._errors[kind, chosen[kind]]
            useful = saved[:, over].sum(1)
            cost = np.divide(error, useful, out=np.full_like(error, np.inf), where=useful > 0)
            best = np.nan_to_num(cost, nan=np.inf).argmin()
            chosen[kind[best]] = choice[best]
            sizes = sizes - saved[best]
        return chosen

    def _grown(self, chosen: np.ndarray, budget: int) -> np.ndarray:
        """Spend what is left of a budget where it takes most of the error for its bytes.

        Args:
            chosen: int[kinds], where to start in the choices.

        Returns:
            int[kinds], where it ends.
        """
        chosen = chosen.copy()
        every = np.arange(len(chosen))
        while True:
            more = self._bytes - self._bytes[every, chosen][:, None]
            free = budget - self._exact_sizes - (self._bytes[every, chosen] - self._bytes[:, 0]).sum(0)
            less = self._errors[every, chosen][:, None] - self._errors
            kind, choice = np.nonzero((less > 0) & (more <= free).all(2))
            if not len(kind):
                return chosen
            best = (less[kind, choice] / np.maximum(more[kind, choice].sum(1), 1)).argmax()
            chosen[kind[best]] = choice[best]

    def _policy(self, chosen: np.ndarray) -> Policy:
        """int[kinds]: which of the choices each kind has."""
        rules = [
            self._rule(kind, self._choices[choice], errors[choice])
            for kind, choice, errors in zip(self._kinds, chosen, self._errors, strict=True)
        ]
        return Policy([Rule("recompute"), *rules, *self._defaults])

    def _rule(self, kind: Kind, fmt: Format | None, error: float) -> Rule:
        why = f"gradient error {error**0.5:.2g}" if fmt else "worth its bytes"
        module, op = _escape(kind.module), _escape(kind.op)
        return Rule(fmt or "exact", module=module, op=op, dtype=kind.dtype, why=why)

    def _sizes(self, policy: Policy) -> np.ndarray:
        """int[runs]."""
        return np.array([run.stored_bytes(policy) for run in self._runs])

    def error(self, policy: Policy) -> float:
        """The gradient error of a policy on the batches, as it is when all of it is compressed at once."""
        pairs = zip(self._runs, self._exact, strict=True)
        errors = [_relative_error(run.gradients(policy), exact) for run, exact in pairs]
        return (sum(errors) / len(errors)) ** 0.5

    def stored_bytes(self, policy: Policy) -> int:
        """Of the batch that takes the most."""
        return int(self._sizes(policy).max())


@dataclass
class _Run:
    """One batch, which always runs with the same random numbers and leaves no trace."""

    model: torch.nn.Module
    batch: Any
    loss: Loss

    @property
    def _parameters(self) -> list[torch.nn.Parameter]:
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def measure(self, trials: Trials) -> Measured:
        def forward() -> torch.Tensor:
            return self.loss(self.model, self.batch)

        step = self.model, forward, self._parameters, trials, _MIN_VALUES
        measured = self._alone(lambda: measure(*step))
        if measured.unknown:
            lossy = self._alone(lambda: lossy_gradients(*step, measured.unknown))
            exact = self.gradients(Policy([]))
            measured.share_out(measured.power * _relative_error(_dense(lossy), exact))
        return measured

    def stored_bytes(self, policy: Policy) -> int:
        return self._alone(lambda: self._forward(policy)[1].stored_bytes)

    def gradients(self, policy: Policy) -> list[torch.Tensor]:
        def run() -> list[torch.Tensor]:
            return _dense(torch.autograd.grad(self._forward(policy)[0], self._parameters, allow_unused=True))

        return self._alone(run)

    def _forward(self, policy: Policy) -> tuple[torch.Tensor, Compressor]:
        with Compressor(self.model, policy, min_values=_MIN_VALUES) as saver:
            return self.loss(self.model, self.batch), saver

    def _alone(self, work: Callable[[], Any]) -> Any:
        places = [(part, *place) for part in self.model.modules() for place in part._buffers.items()]
        buffers = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        gradients = [(parameter, parameter.grad) for parameter in self.model.parameters()]
        for parameter, _ in gradients:
            parameter.grad = None
        try:
            with torch.random.fork_rng():
                torch.manual_seed(0)
                return work()
        finally:
            for parameter, gradient in gradients:
                parameter.grad = gradient
            for module, name, buffer in places:
                module._buffers[name] = buffer  # the forward pass may have assigned another
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)


def _loss_of_transformers(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    return model(**batch).loss


def _dense(gradients: Iterable[torch.Tensor | None]) -> list[torch.Tensor]:
    return [one if one.layout is torch.strided else one.to_dense() for one in gradients if one is not None]


def _relative_error(gradients: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    """Squared: ``||g - g_exact||^2 / ||g_exact||^2``."""
    error = sum(float((g - e).double().square().sum()) for g, e in zip(gradients, exact, strict=True))
    return error / sum(float(e.double().square().sum()) for e in exact)


def _escape(name: str) -> str:
    """A shell pattern that fits this name only."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)
