"""Chooses how far each kind of saved tensor is compressed, by what that does to the gradient.

As in GACT (Liu et al., ICML 2022, section 4): the effect of each tensor on the gradient is measured, by
compressing it alone, and bits are then taken away greedily where they matter least. GACT scales the effect
to other rates by a model of its quantiser; here it scales with the tensor's own squared error, which is
measured at every rate.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Real
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from golden import Format, HadamardFormat, PlaneFormat

from ..backends.dtypes import TORCH_DTYPES, format_for
from ..compressor import Compressor
from ..facts.needs import Need
from ..policy import Policy, Rule
from ..report import Report
from ..store.codecs import Codecs
from .capture import Saved, visit

Loss = Callable[[torch.nn.Module, Any], torch.Tensor]

FORMATS: tuple[Format, ...] = (
    *(PlaneFormat("fp32", 64, 8 * bits) for bits in (16, 14, 12, 10, 9, 8, 7, 6, 5)),
    *(HadamardFormat("fp32", 128, target) for target in (64, 48, 32, 26)),
)
_MEASURED_BITS = 8  # a value, at which a tensor's effect on the gradient is measured
_MIN_VALUES = 1024
# Of a tensor that each format is tried on; all of a large one would take longer than training.
_TRIED_VALUES = 1 << 14


@dataclass
class _Kind:
    """All tensors that one rule will be about: those of one module, operation and dtype.

    Attributes:
        original_bytes, power: float[runs], their bytes and the sum of their squares.
        options: what could be done with them: by format float[2, runs], its bytes and its squared error.
        effect: squared gradient error over squared error, as measured.
    """

    module: str
    op: str
    dtype: str
    original_bytes: np.ndarray
    power: np.ndarray
    options: dict[Format, np.ndarray] = field(default_factory=dict)
    effect: float = 0

    def rule(self, fmt: Format | None, error: float = 0) -> Rule:
        """The rule that keeps them in a format, or exact."""
        why = f"gradient error {error**0.5:.2g}" if fmt else "worth its bytes"
        module, op = _escape(self.module), _escape(self.op)
        return Rule(fmt or "exact", module=module, op=op, dtype=self.dtype, why=why)

    def keep(self, share: np.ndarray) -> None:
        """Only a share of them is stored: float[runs]."""
        self.original_bytes *= share
        self.power *= share
        for option in self.options.values():
            option *= share

    def bytes_of(self, fmt: Format | None) -> np.ndarray:
        """float[runs], infinite in a format that is no option."""
        if fmt is None:
            return self.original_bytes
        return self.options[fmt][0] if fmt in self.options else np.full_like(self.original_bytes, np.inf)

    def noise_of(self, fmt: Format | None) -> float:
        """Squared error of compressing them in this format, the mean over the runs."""
        return float(self.options[fmt][1].mean()) if fmt in self.options else 0.0

    def error_of(self, fmt: Format | None) -> float:
        """Squared relative error that compressing them in this format adds to the gradient."""
        return self.noise_of(fmt) * self.effect


def calibrate(
    model: torch.nn.Module,
    batch: Any,
    *,
    budget: int,
    formats: Iterable[Format] = FORMATS,
    loss: Loss | None = None,
) -> Policy:
    """The policy with the least gradient error whose saved tensors fit a budget.

    Weights, their gradients, buffers and the state of random numbers are left as they were. Every batch
    is run once for each kind of tensor, and a few times besides.

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

    Attributes:
        least, most: bytes of the smallest budget that can be met, and of one with which all that could be
            compressed stays exact; of the batch that takes the most.
    """

    least: int
    most: int

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
        runs = [_Run(model, one, loss or _loss_of_transformers) for one in batches]
        finest = max(choice, key=_bits)

        # What can be recomputed takes no bits; what it starts from errs for both.
        settled = [Rule("recompute")]
        found = _survey(runs, choice)
        # What every format of the choice is too coarse for has what the table of operations says.
        coarsest = min(choice, key=_bits)
        why = "as fine as is needed"
        settled += [replace(kind.rule(coarsest), why=why) for kind in found if not kind.options]
        kinds = _stored(runs, found, settled)
        before = [run.gradients(Policy(settled)) for run in runs]
        for number, own in enumerate(before):
            is_finite = all(bool(gradient.isfinite().all()) for gradient in own)
            if not is_finite or not any(bool(gradient.any()) for gradient in own):
                raise ValueError(f"loss must have a gradient, finite and not zero; not so on batch {number}")
        for kind in track(kinds, "calibrating", console=Console(stderr=True), transient=True):
            measured = min(kind.options, key=lambda fmt: abs(_bits(fmt) - _MEASURED_BITS))
            error = _mean_error(runs, before, Policy([*settled, kind.rule(measured)]))
            noise, power = kind.noise_of(measured), float(kind.power.mean())
            # What this rate stores without loss may lose at others: then all of it might matter.
            kind.effect = error / noise if noise else 1 / power if power else 0

        self._runs, self._settled, self._kinds = runs, settled, kinds
        self._exact = [run.gradients(Policy([])) for run in runs]
        self._defaults = Policy.default(finest).rules
        self._choices: tuple[Format | None, ...] = (None, *choice)
        shape = len(kinds), len(self._choices)
        self._bytes = np.array([kind.bytes_of(fmt) for kind in kinds for fmt in self._choices])
        self._bytes = self._bytes.reshape(*shape, len(runs))
        self._errors = np.array([kind.error_of(fmt) for kind in kinds for fmt in self._choices])
        self._errors = self._errors.reshape(shape)
        self._exact_sizes = self._sizes(self._policy(np.zeros(len(kinds), int)))
        self.most = int(self._exact_sizes.max())
        self.least = int(self._sizes(self._policy(self._bytes.sum(2).argmin(1))).max())

    def policy(self, budget: int) -> Policy:
        """The policy for a budget in bytes, which every batch fits; raises ValueError if no choice does."""
        chosen, sizes = np.zeros(len(self._kinds), int), self._exact_sizes
        while sizes.max() > budget:
            smaller = self._shrunk(chosen, sizes, budget)
            if (smaller == chosen).all():
                raise ValueError(
                    f"budget must be at least {sizes.max():,} bytes for this batch, not {budget:,}"
                )
            # Kinds that share memory take up other sizes together than each alone.
            chosen, sizes = smaller, self._sizes(self._policy(smaller))
        return self._policy(chosen)

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

    def _policy(self, chosen: np.ndarray) -> Policy:
        picked = zip(self._kinds, (self._choices[choice] for choice in chosen), strict=True)
        rules = (kind.rule(fmt, kind.error_of(fmt)) for kind, fmt in picked)
        return Policy([*self._settled, *rules, *self._defaults])

    def _sizes(self, policy: Policy) -> np.ndarray:
        """int[runs]."""
        return np.array([run.stored_bytes(policy) for run in self._runs])

    def error(self, policy: Policy) -> float:
        """The gradient error of a policy on the batches, as it is when all of it is compressed at once."""
        return _mean_error(self._runs, self._exact, policy) ** 0.5

    def stored_bytes(self, policy: Policy) -> int:
        """Of the batch that takes the most."""
        return int(self._sizes(policy).max())


def _mean_error(runs: list[_Run], exact: list[list[torch.Tensor]], policy: Policy) -> float:
    """Squared, over the runs."""
    errors = (_relative_error(run.gradients(policy), own) for run, own in zip(runs, exact, strict=True))
    return sum(errors) / len(runs)


def _bits(fmt: Format) -> float:
    """A value's, in fp32."""
    assert fmt.target is not None
    return 32 * fmt.target / fmt.original_bytes


def _survey(runs: list[_Run], formats: Sequence[Format]) -> list[_Kind]:
    """What a step saves and could lose, and what it would take up in each format."""
    kinds: dict[tuple[str, str, str], _Kind] = {}
    codecs = Codecs(Policy([]), "auto")

    def look(number: int, saved: Saved) -> None:
        if saved.exact not in (None, Need.LOG_PROBABILITIES.value) or len(saved.values) < _MIN_VALUES:
            return
        dtype = TORCH_DTYPES[saved.dtype]
        name = (saved.module, saved.op, str(dtype).removeprefix("torch."))
        kind = kinds.setdefault(name, _Kind(*name, *np.zeros((2, len(runs)))))
        values = torch.from_numpy(saved.values.view("u1")).view(dtype)
        kind.original_bytes[number] += values.nbytes
        kind.power[number] += float(values.double().square().nan_to_num().sum())
        tried = _some_rows(values, saved.row)
        share = len(values) / len(tried)
        for fmt in formats:
            decision = Policy([Rule("recompute"), kind.rule(fmt)]).decide(saved.facts)
            if decision.format != format_for(fmt, dtype):
                continue  # it needs a finer one, about which there is no choice
            codec = codecs.get(decision.format, decision.of, saved.row)
            stored = codec.compress(tried)
            lost = codec.decompress(stored, len(tried)).double() - tried
            option = kind.options.setdefault(fmt, np.zeros((2, len(runs))))
            option[0, number] += share * stored.nbytes
            option[1, number] += share * float(lost.square().nan_to_num().sum())

    for number, run in enumerate(runs):
        run.visit(partial(look, number))
    return list(kinds.values())


def _some_rows(values: torch.Tensor, row: int) -> torch.Tensor:
    """Rows of a tensor, evenly spaced, of about ``_TRIED_VALUES`` values; all of a small one."""
    step = len(values) // _TRIED_VALUES
    if step < 2 or not row or len(values) % row or len(values) // row < step:
        return values
    return values.view(-1, row)[::step].reshape(-1)


def _stored(runs: list[_Run], kinds: list[_Kind], settled: list[Rule]) -> list[_Kind]:
    """The kinds of which anything has to be stored and there is a choice, with the bytes of that."""
    names = {str(number): kind for number, kind in enumerate(kinds)}
    policy = Policy([*settled, *(replace(kind.rule(None), why=name) for name, kind in names.items())])
    found = {name: np.zeros(len(runs)) for name in names}
    for number, run in enumerate(runs):
        for row in run.report(policy).rows:
            if row.kept in found:
                found[row.kept][number] += row.original_bytes
    for name, kind in names.items():
        kind.keep(found[name] / np.maximum(kind.original_bytes, 1))
    return [kind for kind in kinds if kind.original_bytes.any() and kind.options]


@dataclass
class _Run:
    """One batch, which always runs with the same random numbers and leaves no trace."""

    model: torch.nn.Module
    batch: Any
    loss: Loss

    def visit(self, use: Callable[[Saved], None]) -> None:
        self._alone(lambda: visit(self.model, lambda: self.loss(self.model, self.batch), use))

    def stored_bytes(self, policy: Policy) -> int:
        return self.report(policy).stored_bytes

    def report(self, policy: Policy) -> Report:
        return self._alone(lambda: self._forward(policy)[1].report())

    def gradients(self, policy: Policy) -> list[torch.Tensor]:
        parameters = [p for p in self.model.parameters() if p.requires_grad]

        def run() -> list[torch.Tensor]:
            found = torch.autograd.grad(self._forward(policy)[0], parameters, allow_unused=True)
            return [g if g.layout is torch.strided else g.to_dense() for g in found if g is not None]

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


def _relative_error(gradients: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    """Squared: ``||g - g_exact||^2 / ||g_exact||^2``."""
    error = sum(float((g - e).double().square().sum()) for g, e in zip(gradients, exact, strict=True))
    return error / sum(float(e.double().square().sum()) for e in exact)


def _escape(name: str) -> str:
    """A shell pattern that fits this name only."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)
