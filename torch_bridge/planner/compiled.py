"""What a training step needs that torch.compile has compiled.

Dynamo traces the model, our ``Partitioner`` cuts its graph in two, and the compiler compiles these, on
tensors that are dry: none of that looks at a value. What it made then runs dry, as an eager step does: with
``aot_eager`` the two graphs, with Inductor the code around its kernels, which allocates, frees and uses
memory again in Inductor's own order. Kernels are neither built nor run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any
from unittest import mock

import torch

from ..compiled import Partitioner, measured, operators
from ..internals import functions_of, inductor_without_kernels, under_always
from ..policy import Policy
from ..schemes.checkpointing import checkpoint_activations
from .dry import DryRun, DryRunError
from .estimates import Estimate, Step, Training, quiet
from .sizes import SizesCodecs, Traffic
from .treatments import Treatment


def estimate_compiled(training: Training, treatments: Iterable[Treatment]) -> list[Estimate]:
    """What a step needs with each treatment, compiled by the training's compiler.

    The model is compiled once for each treatment, which forgets what torch.compile has compiled before in
    this process. Whatever runs between two graphs, where a model breaks into several, is not counted.
    Operations are those of a CPU, whatever the device.

    Raises:
        DryRunError: the model cannot be compiled or run without values.
        ValueError: as of ``estimate``, or a treatment has a time.
        RuntimeError: this torch has another Inductor.
    """
    traffic = Traffic()
    dry = DryRun(training.device, {**functions_of(operators), **functions_of(measured)})
    with torch.random.fork_rng(devices=[]), quiet(), ExitStack() as stack:
        stack.enter_context(_dry_operators(traffic))
        if training.compiler == "inductor":
            stack.enter_context(inductor_without_kernels(dry.empty, dry.kernel))
        with under_always(dry):
            step = _CompiledStep(training, dry, traffic)
        stack.callback(torch._dynamo.reset)
        return [step.estimate(treatment) for treatment in treatments]


@contextmanager
def _dry_operators(traffic: Traffic) -> Iterator[None]:
    """While codecs inside graphs have sizes and no values, and choices of formats are not remembered."""

    def codecs(_: str) -> SizesCodecs:
        return SizesCodecs(Policy(()), traffic)

    with (
        mock.patch.object(operators, "codecs", codecs),
        mock.patch.object(measured, "codecs", codecs),
        mock.patch.object(measured, "CHOICES", measured.Choices()),
    ):
        yield


class _CompiledStep(Step):
    """A step whose model is compiled. Dynamo must see no mode, so only what it made runs dry."""

    def __init__(self, training: Training, dry: DryRun, traffic: Traffic) -> None:
        super().__init__(training, dry)
        self._traffic = traffic

    def dry(self) -> AbstractContextManager[Any]:
        return under_always(self._dry)

    def estimate(self, treatment: Treatment) -> Estimate:
        torch._dynamo.reset()
        is_plain = treatment.options is None
        options = {"policy": Policy(())} if is_plain else treatment.options_for(self.model)
        if "time" in options:
            raise ValueError(f"time must be none of a compiled model's options, not {options['time']!r}")
        partitioner = Partitioner(**options, min_values=self._training.min_values)
        model = torch.compile(self.model, backend=self._backend(partitioner))
        with checkpoint_activations(self.model) if treatment.is_checkpointed else nullcontext():
            try:
                self.run(model)  # compiles
            except torch._dynamo.exc.TorchDynamoException as error:
                why = str(error).partition("\n")[0]
                raise DryRunError(f"the model cannot be compiled without values: {why}") from error
            found = self.count(treatment, model, traffic=self._traffic)
        return found if is_plain else replace(found, stored=partitioner.report().stored_bytes)

    def _backend(self, partitioner: Partitioner) -> Callable[..., Any]:
        """A backend of torch.compile: what the training's compiler makes of a graph runs dry."""
        if self._training.compiler == "inductor":
            from torch._inductor.compile_fx import compile_fx

            options = {"custom_partitioner_fn": partitioner}

            def compile(graph: torch.fx.GraphModule, inputs: Any) -> Any:
                return compile_fx(graph, inputs, config_patches=options)
        else:
            compile = partitioner.aot_eager()

        def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
            compiled = compile(graph, inputs)

            def run(*args: Any) -> Any:
                with self.dry():
                    return compiled(*args)

            return run

        return backend
