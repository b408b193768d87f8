"""Chooses how far each kind of saved tensor is compressed, by what that does to the gradient.

As in GACT (Liu et al., ICML 2022, section 4): the effect of each tensor on the gradient is measured, by
compressing it alone, and bits are then taken away greedily where they matter least. GACT scales the effect
to other rates by a model of its quantiser; here it scales with the tensor's own squared error, which is
measured at every rate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

from golden import Format, HadamardFormat, PlaneFormat

from .. import backends
from ..backends.dtypes import TORCH_DTYPES, format_for
from ..policy import LOG_SOFTMAX, SIGNS_AND_ZEROS, Policy, Rule
from ..stash import Report, Stash, compress_activations
from .capture import Saved, visit

Loss = Callable[[torch.nn.Module, Any], torch.Tensor]

FORMATS: tuple[Format, ...] = (
    *(PlaneFormat("fp32", 64, 8 * bits) for bits in (16, 14, 12, 10, 9, 8, 7, 6, 5)),
    *(HadamardFormat("fp32", 128, target) for target in (64, 48, 32, 26)),
)
_MEASURED_BITS = 8  # a value, at which a tensor's effect on the gradient is measured
_MIN_VALUES = 1024


@dataclass
class _Kind:
    """All tensors that one rule will be about: those of one module, operation and dtype.

    Attributes:
        options: what could be done with them: by format its bytes a step, and its squared error.
        effect: squared gradient error over squared error, as measured.
    """

    module: str
    op: str
    dtype: str
    raw_bytes: float = 0
    power: float = 0
    options: dict[Format, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.0, 0.0]))
    effect: float = 0

    def rule(self, fmt: Format | None, error: float = 0) -> Rule:
        """The rule that keeps them in a format, or raw."""
        why = f"gradient error {error**0.5:.2g}" if fmt else "worth its bytes"
        return Rule(fmt or "raw", module=_escape(self.module), op=_escape(self.op), dtype=self.dtype, why=why)

    def keep(self, share: float) -> None:
        """Only a share of them is stored."""
        self.raw_bytes *= share
        self.power *= share
        for sizes in self.options.values():
            sizes[:] = (size * share for size in sizes)

    def bytes_of(self, fmt: Format | None) -> float:
        return self.options[fmt][0] if fmt else self.raw_bytes

    def error_of(self, fmt: Format | None) -> float:
        """Squared relative error that compressing them in this format adds to the gradient."""
        return self.options[fmt][1] * self.effect if fmt else 0.0


def calibrate(
    model: torch.nn.Module,
    batch: Any,
    *,
    budget: int,
    formats: Sequence[Format] = FORMATS,
    loss: Loss | None = None,
) -> Policy:
    """The policy with the least gradient error whose stash fits a budget.

    Weights, their gradients, buffers and the state of random numbers are left as they were. Every batch
    is run once for each kind of tensor, and five times besides.

    Args:
        model: as it trains: its weights, and train() or eval().
        batch: one batch, or a list of several, whose errors are averaged.
        budget: bytes that a step's stash may have, with all that stays raw.
        formats: to choose from, all with a target; by default planes of 5 to 16 bits a value, and Hadamard
            formats of 4, 3, 2 and 1.625.
        loss: computes a batch's loss; by default ``model(**batch).loss``.

    Returns:
        Behind what is exact, needs its signs or can be derived, rules for each module and operation, with the
        reason for each, and those of :meth:`Policy.default` in the format of the most bits. Print it for a
        table.

    Raises:
        ValueError: no choice fits the budget, and the message says what would; there are no formats, or
            lossless ones, no batches or nothing to train; or a batch's gradient is zero or not finite.
    """
    if not budget >= 1:
        raise ValueError(f"budget must be a positive number of bytes, not {budget!r}")
    return Calibration(model, batch, formats, loss).policy(budget)


class Calibration:
    """What :func:`calibrate` measures; it serves for any number of budgets.

    Args:
        model, batch, formats, loss: as of :func:`calibrate`.

    Attributes:
        least, most: bytes of the smallest budget that can be met, and of one with which all that could be
            compressed stays raw.
    """

    least: int
    most: int

    def __init__(
        self,
        model: torch.nn.Module,
        batch: Any,
        formats: Sequence[Format] = FORMATS,
        loss: Loss | None = None,
    ) -> None:
        if not formats or any(fmt.target is None for fmt in formats):
            raise ValueError(f"formats must be some with a target, not {list(formats)!r}")
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ValueError("model must have a parameter that is trained, not none")
        batches = batch if isinstance(batch, list) else [batch]
        if not batches:
            raise ValueError("batch must be one batch or a list of some, not []")
        runs = [_Run(model, one, loss or _loss_of_transformers) for one in batches]
        finest = max(formats, key=_bits)
        blind = next((fmt for fmt in formats if isinstance(fmt, HadamardFormat)), finest)

        # There is no choice about what is exact, or needs signs that a Hadamard format loses. What can be
        # derived takes no bits; what it starts from errs for both.
        settled = [
            rule
            for rule in Policy.default(blind).rules
            if rule.why == SIGNS_AND_ZEROS
            or rule.saved_by != "*"
            or (isinstance(rule.keep, str) and rule.why != LOG_SOFTMAX)
        ]
        kinds = _stored(runs, _survey(runs, formats), settled)
        before = [run.gradients(Policy(settled)) for run in runs]
        for number, own in enumerate(before):
            is_finite = all(bool(gradient.isfinite().all()) for gradient in own)
            if not is_finite or not any(bool(gradient.any()) for gradient in own):
                raise ValueError(f"loss must have a gradient, finite and not zero; not so on batch {number}")
        for kind in track(kinds, "calibrating", console=Console(stderr=True), transient=True):
            if not kind.options:
                continue
            measured = min(kind.options, key=lambda fmt: abs(_bits(fmt) - _MEASURED_BITS))
            error = _mean_error(runs, before, Policy([*settled, kind.rule(measured)]))
            noise = kind.options[measured][1]
            # What this rate stores without loss may lose at others: then all of it might matter.
            kind.effect = error / noise if noise else 1 / kind.power if kind.power else 0

        self._runs, self._settled, self._kinds = runs, settled, kinds
        self._exact = [run.gradients(Policy([])) for run in runs]
        self._defaults = Policy.default(finest).rules
        all_raw = Policy([*settled, *(kind.rule(None) for kind in kinds), *self._defaults])
        self.most = max(run.stashed_bytes(all_raw) for run in runs)
        self._fixed = self.most - sum(kind.raw_bytes for kind in kinds)
        smallest = sum(min(map(kind.bytes_of, (None, *kind.options))) for kind in kinds)
        self.least = round(self._fixed + smallest)

    def policy(self, budget: int) -> Policy:
        """The policy for a budget in bytes; raises ValueError if no choice fits it."""
        chosen = _choose(self._kinds, budget - self._fixed, self._fixed)
        rules = (kind.rule(one, kind.error_of(one)) for kind, one in zip(self._kinds, chosen, strict=True))
        return Policy([*self._settled, *rules, *self._defaults])

    def error(self, policy: Policy) -> float:
        """The gradient error of a policy on the batches, as it is when all of it is compressed at once."""
        return _mean_error(self._runs, self._exact, policy) ** 0.5

    def stashed_bytes(self, policy: Policy) -> int:
        """Of the batch that takes the most."""
        return max(run.stashed_bytes(policy) for run in self._runs)


def _mean_error(runs: list[_Run], exact: list[list[torch.Tensor]], policy: Policy) -> float:
    """Squared, over the runs."""
    errors = (_relative_error(run.gradients(policy), own) for run, own in zip(runs, exact, strict=True))
    return sum(errors) / len(runs)


def _bits(fmt: Format) -> float:
    """A value's, in fp32."""
    assert fmt.target is not None
    return 32 * fmt.target / fmt.raw_bytes


def _choose(kinds: list[_Kind], budget: float, fixed: float) -> list[Format | None]:
    """Start with everything raw, and take the step that costs least error for its bytes until all fits."""
    chosen: list[Format | None] = [None] * len(kinds)
    size = sum(kind.raw_bytes for kind in kinds)
    while size > budget:
        steps = [
            ((kind.error_of(one) - kind.error_of(chosen[i])) / saved, i, one, saved)
            for i, kind in enumerate(kinds)
            for one in kind.options
            if (saved := kind.bytes_of(chosen[i]) - kind.bytes_of(one)) > 0
        ]
        if not steps:
            raise ValueError(
                f"budget must be at least {round(size + fixed):,} bytes for this batch, not "
                f"{round(budget + fixed):,}"
            )
        _, i, one, saved = min(steps, key=lambda step: step[:2])
        chosen[i] = one
        size -= saved
    return chosen


def _survey(runs: list[_Run], formats: Sequence[Format]) -> list[_Kind]:
    """What a step saves and could lose, and what it would take up in each format; means over the runs."""
    kinds: dict[tuple[str, str, str], _Kind] = {}

    def look(saved: Saved) -> None:
        if saved.exact not in (None, LOG_SOFTMAX) or len(saved.values) < _MIN_VALUES:
            return
        dtype = TORCH_DTYPES[saved.dtype]
        name = (saved.module, saved.op, str(dtype).removeprefix("torch."))
        kind = kinds.setdefault(name, _Kind(*name))
        values = torch.from_numpy(saved.values.view("u1")).view(dtype)
        kind.raw_bytes += values.nbytes / len(runs)
        kind.power += float(values.double().square().nan_to_num().sum()) / len(runs)
        for fmt in formats:
            if saved.op == "_log_softmax" and isinstance(fmt, HadamardFormat):
                continue  # its backward formula takes the exponential, which small errors are blown up by
            backend = backends.get("auto", format_for(fmt, dtype))
            stored = backend.compress(values)
            lost = backend.decompress(stored, len(values)).double() - values
            kind.options[fmt][0] += stored.nbytes / len(runs)
            kind.options[fmt][1] += float(lost.square().nan_to_num().sum()) / len(runs)

    for run in runs:
        run.visit(look)
    return list(kinds.values())


def _stored(runs: list[_Run], kinds: list[_Kind], settled: list[Rule]) -> list[_Kind]:
    """The kinds of which anything has to be stored, with the bytes of that; the others are derived."""
    names = {str(number): kind for number, kind in enumerate(kinds)}
    policy = Policy([*settled, *(replace(kind.rule(None), why=name) for name, kind in names.items())])
    found = dict.fromkeys(names, 0.0)
    for run in runs:
        for row in run.report(policy).rows:
            if row.kept in found:
                found[row.kept] += row.raw_bytes / len(runs)
    for name, kind in names.items():
        kind.keep(found[name] / kind.raw_bytes)
    return [kind for kind in kinds if kind.raw_bytes]


@dataclass
class _Run:
    """One batch, which always runs with the same random numbers and leaves no trace."""

    model: torch.nn.Module
    batch: Any
    loss: Loss

    def visit(self, use: Callable[[Saved], None]) -> None:
        self._alone(lambda: visit(self.model, lambda: self.loss(self.model, self.batch), use))

    def stashed_bytes(self, policy: Policy) -> int:
        return self.report(policy).stored_bytes

    def report(self, policy: Policy) -> Report:
        return self._alone(lambda: self._forward(policy)[1].report())

    def gradients(self, policy: Policy) -> list[torch.Tensor]:
        parameters = [p for p in self.model.parameters() if p.requires_grad]

        def run() -> list[torch.Tensor]:
            found = torch.autograd.grad(self._forward(policy)[0], parameters, allow_unused=True)
            return [g for g in found if g is not None]

        return self._alone(run)

    def _forward(self, policy: Policy) -> tuple[torch.Tensor, Stash]:
        with compress_activations(self.model, policy, min_values=_MIN_VALUES) as stash:
            return self.loss(self.model, self.batch), stash

    def _alone(self, work: Callable[[], Any]) -> Any:
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
