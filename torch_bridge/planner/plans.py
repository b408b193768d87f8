"""What fits into a device's memory: the table of a plan, what it recommends, and the code to paste."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from rich.table import Table

from .. import backends
from ..backends.dtypes import TORCH_DTYPES, AnyFormat
from . import treatments
from .compiled import estimate_compiled
from .estimates import Estimate, Training, estimate
from .treatments import Treatment

FrontEnd = Callable[[Training, Iterable[Treatment]], list[Estimate]]

_PARTS = ("parameters", "gradients", "optimizer", "activations", "workspace")
_VALUES = 1 << 22  # that a codec is measured on
_RUNS = 5


@dataclass(frozen=True)
class Plan:
    """Estimates for a training, and what of them fits.

    Attributes:
        name: of the model.
        training: that they are of.
        estimates: of each treatment, those that change the training least first.
        memory: bytes that the device has.
        reserve: bytes of these that are kept free.
        largest: the largest batch that fits, by the treatment's name; where it was asked for.
    """

    name: str
    training: Training
    estimates: Sequence[Estimate]
    memory: int
    reserve: int
    largest: Mapping[str, int] | None = None

    @property
    def room(self) -> int:
        """Bytes that a step may need."""
        return self.memory - self.reserve

    @property
    def recommended(self) -> Estimate | None:
        """The first that fits; None if none does."""
        return next((one for one in self.estimates if one.peak <= self.room), None)

    @property
    def exact(self) -> Estimate | None:
        """The first that fits and changes no gradient, if what is recommended changes them."""
        best = self.recommended
        if best is None or best.treatment.is_exact:
            return None
        return next((one for one in self.estimates if one.peak <= self.room and one.treatment.is_exact), None)

    def table(self, rates: Mapping[AnyFormat, tuple[float, float]] | None = None) -> Table:
        """The estimates as a table of rich, in GB of 10^9 bytes.

        Args:
            rates: bytes a second that codecs compress and decompress, by format, where they were measured.
        """
        table = Table(title=self.title)
        table.add_column("policy")
        for heading in ("kept", *_PARTS, "peak", "FLOPs", "traffic"):
            table.add_column(heading, justify="right")
        if rates:
            table.add_column("codec, s", justify="right")
        if self.largest is not None:
            table.add_column("batch", justify="right")
        table.add_column("fits")
        for one in self.estimates:
            sizes = (one.kept, *(getattr(one, part) for part in _PARTS), one.peak)
            cells = [one.treatment.name, *(f"{size / 1e9:,.2f}" for size in sizes), *self._extra(one)]
            if rates:
                cells.append(f"{seconds(one, rates):.2f}" if one.compressed else "")
            if self.largest is not None:
                cells.append(str(self.largest[one.treatment.name]))
            table.add_row(*cells, "yes" if one.peak <= self.room else "no")
        return table

    def _extra(self, one: Estimate) -> tuple[str, str]:
        """What a treatment computes and moves beyond the first one."""
        first = self.estimates[0]
        flops = one.flops / first.flops - 1 if first.flops else 0.0
        return (
            f"+{flops:.0%}" if flops else "",
            f"+{(one.traffic - first.traffic) / 1e9:,.0f} GB" if one is not first else "",
        )

    @property
    def title(self) -> str:
        """Model, batch and how it trains."""
        training = self.training
        parts = [
            f"{self.name}, {training.batch} x {training.length:,} tokens",
            training.dtype,
            training.optimizer,
        ]
        if training.compiler:
            parts.append(f"compiled by {training.compiler}")
        if training.zero:
            parts.append(f"ZeRO-{training.zero} of {training.processes} processes")
        if training.lora:
            parts.append(f"LoRA of rank {training.lora}")
        if training.loss_chunk:
            parts.append(f"loss of {training.loss_chunk:,} tokens at a time")
        return f"{', '.join(parts)}: GB on a {training.device} device of {self.memory / 1e9:g} GB"

    @property
    def advice(self) -> str:
        """What to do, with code."""
        best = self.recommended
        if best is None:
            least = min(self.estimates, key=lambda one: one.peak)
            remedies = ["a smaller batch, or shorter sequences"]
            if least.parameters + least.gradients + least.optimizer > self.room:
                remedies = ["--zero or --lora"]
            elif least.workspace > least.activations:
                remedies += ["--loss-chunk"] if self.training.could_chunk_loss else []
                remedies += ["--optimizer adamw-fused"] if self.training.optimizer == "adamw" else []
            return (
                f"Nothing fits into {self.room / 1e9:,.1f} GB. The least is {least.peak / 1e9:,.1f} GB, with "
                f"{least.treatment.name}. Try {'; '.join(remedies)}."
            )
        lines = [f"Recommended: {best.treatment.name}, {best.peak / 1e9:,.1f} of {self.room / 1e9:,.1f} GB."]
        if (exact := self.exact) is not None:
            lines.append(f"{exact.treatment.name} fits as well, and changes no gradient.")
        compiler = self.training.compiler
        code = best.treatment.compiled_code(compiler) if compiler else best.treatment.code
        return "\n".join([*lines, "", code])

    def record(self) -> dict[str, Any]:
        """The plan as JSON has it."""
        training = {name: value for name, value in vars(self.training).items() if name != "config"}
        rows = []
        for one in self.estimates:
            numbers = {
                part: getattr(one, part) for part in ("kept", "stored", *_PARTS, "peak", "flops", "traffic")
            }
            row = {"policy": one.treatment.name, **numbers, "fits": one.peak <= self.room}
            rows.append(row | ({"largest_batch": self.largest[one.treatment.name]} if self.largest else {}))
        best = self.recommended
        return {
            "model": self.name,
            **training,
            "memory": self.memory,
            "reserve": self.reserve,
            "rows": rows,
            "recommended": None if best is None else best.treatment.name,
        }


def plan(
    name: str,
    training: Training,
    memory: int,
    reserve: int = 0,
    *,
    is_checkpointed: bool = False,
    largest: bool = False,
    front_end: FrontEnd | None = None,
) -> Plan:
    """Estimate a training with each treatment.

    Args:
        name: of the model, for the table.
        training: the step.
        memory: bytes that the device has.
        reserve: bytes of these that are kept free, for what no one computes: the CUDA context, scratch
            memory of libraries, fragmentation.
        is_checkpointed: whether it is to be checkpointed in any case.
        largest: also find the largest batch that fits.
        front_end: that makes the estimates; by default ``estimate``, or ``estimate_compiled`` where the
            training has a compiler.

    Raises:
        ValueError: the reserve leaves nothing, or as of ``estimate``.
        DryRunError: as of ``estimate``.
    """
    if not 0 <= reserve < memory:
        raise ValueError(f"reserve must be less than the device's {memory:,} bytes, not {reserve!r}")
    compared = treatments.COMPILED if training.compiler else treatments.TREATMENTS
    if is_checkpointed:
        compared = treatments.CHECKPOINTED
    if front_end is None:
        front_end = estimate_compiled if training.compiler else estimate
    found = front_end(training, compared)
    batches = None
    if largest:
        batches = {one.treatment.name: _largest(training, one, memory - reserve, front_end) for one in found}
    return Plan(name, training, found, memory, reserve, batches)


def _largest(training: Training, found: Estimate, room: int, front_end: FrontEnd) -> int:
    """The largest batch that fits, 0 if none does. Peaks are straight lines in pieces, so few are tried."""
    peaks = {training.batch: found.peak}
    low, high, batch = 0, 0, training.batch
    while True:
        if batch not in peaks:
            peaks[batch] = front_end(replace(training, batch=batch), [found.treatment])[0].peak
        if peaks[batch] <= room:
            low = batch
        else:
            high = batch
        if high and high - low <= 1:
            return low
        batch = _next_guess(peaks, room, low, high)


def _next_guess(peaks: dict[int, int], room: int, low: int, high: int) -> int:
    if len(peaks) == 1:
        return 2 * low if low else max(1, high // 2)
    (first, at_first), (second, at_second) = sorted(peaks.items(), key=lambda one: abs(one[1] - room))[:2]
    slope = (at_second - at_first) / (second - first)
    guess = int(first + (room - at_first) / slope) if slope > 0 else 2 * max(low, 1)
    if high:
        return min(max(guess, low + 1), high - 1)
    return min(max(guess, low + 1), 16 * low)


def rates_of(found: Iterable[Estimate], device: torch.device) -> dict[AnyFormat, tuple[float, float]]:
    """Bytes a second that codecs compress and decompress here, by format; medians of some runs."""
    formats = {fmt for one in found for fmt in (*one.compressed, *one.decompressed)}
    return {fmt: _measured(fmt, device) for fmt in formats}


def _measured(fmt: AnyFormat, device: torch.device) -> tuple[float, float]:
    backend, dtype = backends.get("auto", fmt), TORCH_DTYPES[fmt.dtype]
    values = torch.randn(_VALUES, device=device).to(dtype)
    stored = backend.compress(values)
    compress = _seconds(lambda: backend.compress(values), device)
    decompress = _seconds(lambda: backend.decompress(stored, len(values)), device)
    return values.nbytes / compress, values.nbytes / decompress


def _seconds(run: Callable[[], Any], device: torch.device) -> float:
    run()
    found = []
    for _ in range(_RUNS):
        began = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def seconds(one: Estimate, rates: Mapping[AnyFormat, tuple[float, float]]) -> float:
    """What codecs take in a step, at measured rates."""
    compress = sum(nbytes / rates[fmt][0] for fmt, nbytes in one.compressed.items())
    return compress + sum(nbytes / rates[fmt][1] for fmt, nbytes in one.decompressed.items())
