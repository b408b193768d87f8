"""What a training step needs, found by running it dry."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ..backends.dtypes import AnyFormat
from ..facts.layers import layers
from ..internals import under_always
from ..schemes.checkpointing import checkpoint_activations
from . import cuda, models
from .dry import DryRun, DryRunError
from .lora import add_adapters
from .sizes import DryCompressor, Traffic
from .treatments import Treatment

Dtype = Literal["fp32", "bf16", "bf16-autocast"]
DTYPES: tuple[Dtype, ...] = ("fp32", "bf16", "bf16-autocast")
DEVICES = ("cuda", "cpu")
COMPILERS = ("inductor", "aot_eager")
Optimizer = Callable[..., torch.optim.Optimizer]
_IGNORED = -100  # a target that no loss looks at
_MOST_TOKENS = 1 << 40  # of a step; the bytes of their logits are still an int64


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training step of a language model.

    Args:
        config: of transformers.
        batch, length: sequences of a step, and tokens of each.
        dtype: "fp32"; "bf16" for weights, gradients and the optimizer's moments in bf16; "bf16-autocast" for
            those in fp32, and autocast to bf16 in the forward pass.
        optimizer: one of ``OPTIMIZERS``.
        device: whose kernels run: "cuda" or "cpu".
        attention: "sdpa" or "eager"; by default what transformers chooses.
        zero: stage of ZeRO or FSDP: 1 shards the optimizer's state, 2 gradients too, 3 weights too.
        processes: that share these.
        lora: rank of adapters that are trained in place of the weights; 0 trains the weights.
        lora_layers: a shell pattern for the layers that have adapters.
        loss_chunk: tokens for which logits and loss are computed at a time, and anew in the backward pass;
            0 computes them for all at once, as transformers does.
        min_values: as of ``Compressor``.
        compiler: of ``torch.compile``, "inductor" or "aot_eager"; None for eager training.

    Raises:
        ValueError: an argument is none of these.
    """

    config: Any
    batch: int = 1
    length: int = 1024
    dtype: Dtype = "bf16"
    optimizer: str = "adamw-fused"
    device: str = "cuda"
    attention: str | None = None
    zero: int = 0
    processes: int = 1
    lora: int = 0
    lora_layers: str = "*"
    loss_chunk: int = 0
    min_values: int = 1024
    compiler: str | None = None

    def __post_init__(self) -> None:
        for name, known in (("dtype", DTYPES), ("device", DEVICES), ("optimizer", tuple(OPTIMIZERS))):
            if (value := getattr(self, name)) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, not {value!r}")
        if self.compiler not in (None, *COMPILERS):
            raise ValueError(f"compiler must be None, {' or '.join(COMPILERS)}, not {self.compiler!r}")
        if self.compiler and self.loss_chunk:
            raise ValueError(f"loss_chunk must be 0 with a compiler, not {self.loss_chunk!r}")
        if self.zero not in range(4):
            raise ValueError(f"zero must be a stage from 0 to 3, not {self.zero!r}")
        for name, least in (("batch", 1), ("length", 1), ("processes", 1), ("lora", 0), ("loss_chunk", 0)):
            if not isinstance(value := getattr(self, name), int) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
        if (tokens := self.batch * self.length) > _MOST_TOKENS:
            raise ValueError(f"batch times length must be at most {_MOST_TOKENS:,} tokens, not {tokens:,}")
        if self.zero and self.processes == 1:
            raise ValueError("processes must be at least 2 with ZeRO, which shares among them, not 1")
        if self.loss_chunk and models.kind_of(self.config) != models.CAUSAL:
            raise ValueError(f"loss_chunk must be 0 but for a causal model, not {self.loss_chunk!r}")

    @property
    def could_chunk_loss(self) -> bool:
        """Whether ``loss_chunk`` is possible, and not given."""
        return not self.loss_chunk and not self.compiler and models.kind_of(self.config) == models.CAUSAL

    def build(self) -> nn.Module:
        """The model as it trains."""
        model = models.build(self.config, self.attention)
        if self.dtype == "bf16":
            model = model.to(torch.bfloat16)
        if self.lora:
            add_adapters(model, self.lora, self.lora_layers)
        return model

    def loss(self, model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The loss of a batch, under autocast if that is asked for."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.dtype == "bf16-autocast"):
            if self.loss_chunk:
                return _loss_by_chunks(model, batch, self.loss_chunk)
            found: torch.Tensor = model(**batch).loss
            return found


def _loss_by_chunks(model: Any, batch: dict[str, torch.Tensor], chunk: int) -> torch.Tensor:
    """The loss without the logits of all tokens at once."""
    hidden = model.base_model(input_ids=batch["input_ids"])[0]
    next_tokens = nn.functional.pad(batch["labels"], (0, 1), value=_IGNORED)[:, 1:]
    head, targets = model.get_output_embeddings(), next_tokens.reshape(-1)

    def part(states: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(head(states).float(), labels, reduction="sum")

    pieces = zip(hidden.reshape(-1, hidden.shape[-1]).split(chunk), targets.split(chunk), strict=True)
    losses: list[Any] = [checkpoint(part, *piece, use_reentrant=False) for piece in pieces]
    return torch.stack(losses).sum() / (targets != _IGNORED).sum()


def _adamw(parameters: Any, is_foreach: bool) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, foreach=is_foreach)


def _fused(parameters: Any, is_foreach: bool) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, fused=True)


def _sgd(parameters: Any, is_foreach: bool) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, foreach=is_foreach)


def _momentum(parameters: Any, is_foreach: bool) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, momentum=0.9, foreach=is_foreach)


# PyTorch's own, fused as in transformers' Trainer or not; and AdamW as DeepSpeed and Megatron have it for
# bf16, with a copy of the weights in fp32.
OPTIMIZERS: dict[str, Optimizer] = {
    "adamw": _adamw,
    "adamw-fused": _fused,
    "adamw-fp32-copy": _adamw,
    "sgd": _sgd,
    "sgd-momentum": _momentum,
}


@dataclass(frozen=True)
class Estimate:
    """What a step needs with a treatment; bytes, of one process.

    Attributes:
        treatment: as given.
        kept: of activations between the passes.
        stored: of these what a Compressor reports as stored; as many as it was given without one.
        parameters, gradients, optimizer, activations, workspace: at the moment of the peak. Buffers are among
            the parameters. Activations are what was kept of the forward pass and is not freed yet; the
            workspace is all else, as gradients of activations, and what was decompressed.
        flops: of matrix products, convolutions and attention of a step.
        moved: bytes that all other operations read and wrote.
        compressed, decompressed: bytes of values that went through codecs, by format.
        assumed: how often the step asked for a value, which a dry run has not, by the operation's name.
    """

    treatment: Treatment
    kept: int
    stored: int
    parameters: int
    gradients: int
    optimizer: int
    activations: int
    workspace: int
    flops: int
    moved: int
    compressed: dict[AnyFormat, int] = field(default_factory=dict)
    decompressed: dict[AnyFormat, int] = field(default_factory=dict)
    assumed: dict[str, int] = field(default_factory=dict)

    @property
    def peak(self) -> int:
        """The most bytes that a step needs at a time."""
        parts = self.parameters + self.gradients + self.optimizer
        return parts + self.activations + self.workspace

    @property
    def traffic(self) -> int:
        """Bytes that operations without FLOPs and codecs read and wrote; of codecs the values alone."""
        return self.moved + sum(self.compressed.values()) + sum(self.decompressed.values())


def estimate(training: Training, treatments: Iterable[Treatment]) -> list[Estimate]:
    """What a step needs with each treatment, for eager training.

    The model's own forward pass, autograd's backward pass and PyTorch's optimizer run under the hooks of a
    ``Compressor``, dry: what is kept, and when it is freed, is not modelled but happens. A front end for
    another way to train, as compiled, gives the same estimates. Treatments of layers are left out where a
    model has none.

    Raises:
        DryRunError: an operation's result has a size that depends on values, as with sparse experts; or the
            model cannot run.
        ValueError: the sequences are too long for the model, or no layer has an adapter.
    """
    with torch.random.fork_rng(devices=[]), quiet(), ExitStack() as stack:
        dry = DryRun(training.device)
        stack.enter_context(under_always(dry))
        if training.device == "cuda":
            stack.enter_context(cuda.kernels())
        try:
            step = Step(training, dry)
            return [step.estimate(treatment) for treatment in treatments if treatment.fits(step.model)]
        except DryRunError:
            raise
        except RuntimeError as error:  # as of sizes that do not fit together
            raise DryRunError(f"the model cannot run: {str(error).partition(chr(10))[0]}") from error


class Step:
    """The model, its optimizer and a batch, made dry."""

    def __init__(self, training: Training, dry: DryRun) -> None:
        self._training, self._dry = training, dry
        self.model = training.build()
        self._batch = models.batch_of(training.config, training.batch, training.length)
        self._trained = [one for one in self.model.parameters() if one.requires_grad]
        made = OPTIMIZERS[training.optimizer](self._trained, training.device == "cuda")
        self._optimizer = made
        self._copy: list[torch.Tensor] = []
        self._take_first_step()

    def _take_first_step(self) -> None:
        """Make the optimizer's state, as its first step does."""
        if self._training.optimizer == "adamw-fp32-copy":
            self._copy = [one.detach().float().clone() for one in self._trained]
            self._optimizer = _adamw(self._copy, self._training.device == "cuda")
        for one in (*self._trained, *self._copy):
            one.grad = torch.zeros_like(one)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.model.zero_grad(set_to_none=True)

    def estimate(self, treatment: Treatment) -> Estimate:
        """What a step needs with a treatment."""
        saver = None
        if treatment.options is not None:
            options = treatment.options_for(self.model)
            saver = DryCompressor(self.model, min_values=self._training.min_values, **options)
        with checkpoint_activations(self.model) if treatment.is_checkpointed else nullcontext():
            if saver is not None:
                self.run(self.model, saver)  # what the first step finds out, the second one knows
            found = self.count(treatment, self.model, saver, saver.traffic if saver else None)
        return found if saver is None else replace(found, stored=saver.stored_bytes)

    def run(self, model: Any, around: AbstractContextManager[Any] | None = None) -> tuple[int, set[int]]:
        """A step; how many changes of memory its forward pass made, and the numbers of gradients.

        Args:
            model: that is called for the loss; it has the parameters of this step's.
            around: is entered for the forward pass.
        """
        with around or nullcontext():
            loss = self._training.loss(model, self._batch)
        middle = len(self._dry.ledger.changes)
        with self.dry():
            torch.autograd.backward(loss)  # the function of that name would leave modes out
            gradients = self._numbers(one.grad for one in self._trained if one.grad is not None)
            self._take_step()
        return middle, gradients

    def dry(self) -> AbstractContextManager[Any]:
        """Where nothing is computed: entered for what a model does not do itself."""
        return nullcontext()

    def _take_step(self) -> None:
        if self._copy:
            for own, one in zip(self._copy, self._trained, strict=True):
                own.grad = one.grad.float() if one.grad is not None else None
                one.grad = None
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.model.zero_grad(set_to_none=True)

    def count(
        self,
        treatment: Treatment,
        model: Any,
        around: AbstractContextManager[Any] | None = None,
        traffic: Traffic | None = None,
    ) -> Estimate:
        """What one step needs; model and context are as of ``run``."""
        traffic = traffic or Traffic()
        traffic.clear()
        gc.collect()
        ledger = self._dry.ledger
        ledger.forget()
        held = ledger.live()
        middle, gradients = self.run(model, around)
        return self._count(treatment, traffic, held, middle, gradients)

    def _count(
        self,
        treatment: Treatment,
        traffic: Traffic,
        held: set[int],
        middle: int,
        gradients: set[int],
    ) -> Estimate:
        training, ledger = self._training, self._dry.ledger
        weights = self._numbers(self.model.parameters())
        parameters = weights | self._numbers(self.model.buffers())
        states = [value for state in self._optimizer.state.values() for value in state.values()]
        optimizer = self._numbers([one for one in states if isinstance(one, torch.Tensor)] + self._copy)
        sizes = [*ledger.sizes]
        for stage, shared in enumerate((optimizer, gradients, weights), 1):
            if training.zero >= stage:
                for number in shared:
                    sizes[number] = -(-sizes[number] // training.processes)
        _, when = ledger.peak(sizes)
        kept = ledger.live(middle) - held
        live = ledger.live(when)
        parts = {
            "parameters": live & parameters,
            "gradients": live & gradients,
            "optimizer": live & optimizer,
            "activations": (live & kept) - gradients,
        }
        rest = live.difference(*parts.values())
        nbytes = {name: sum(sizes[number] for number in numbers) for name, numbers in parts.items()}
        workspace = sum(sizes[number] for number in rest) + ledger.transient.get(when, 0) + self._gathered()
        kept_bytes = sum(sizes[number] for number in kept)
        return Estimate(
            treatment,
            kept_bytes,
            stored=kept_bytes,
            **nbytes,
            workspace=workspace,
            flops=ledger.flops,
            moved=ledger.moved,
            compressed=dict(traffic.compressed),
            decompressed=dict(traffic.decompressed),
            assumed=dict(ledger.assumed),
        )

    def _gathered(self) -> int:
        """Bytes of whole weights and gradients that ZeRO has for a while: those of the largest part.

        Of weights twice, as the next part's are gathered while this one's are used.
        """
        zero = self._training.zero
        if zero < 2:
            return 0
        copies = 2 * (zero == 3) + 1
        return copies * max(
            sum(parameter.nbytes for parameter in part.parameters()) for part in _parts(self.model)
        )

    def _numbers(self, tensors: Iterable[torch.Tensor]) -> set[int]:
        return {number for one in tensors if (number := self._dry.number(one)) is not None}


def _parts(model: nn.Module) -> list[nn.Module]:
    """What ZeRO gathers at a time: blocks, and layers that are in none."""
    inside = {part for _, layer in layers(model) for part in layer.modules()}
    leaves = [part for part in model.modules() if part not in inside and not [*part.children()]]
    return [*(layer for _, layer in layers(model)), *leaves]


@contextmanager
def quiet() -> Iterator[None]:
    """Without what transformers says of configurations."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
