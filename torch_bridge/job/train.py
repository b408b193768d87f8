"""Trains a GPT-2 on bytes of English text, with or without compressed activations.

The model is transformers' GPT2LMHeadModel, built from a config; the text is what Python itself carries
(``pydoc_data.topics``). Nothing is downloaded.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from golden import HadamardFormat, PlaneFormat

from ..backends.dtypes import TORCH_DTYPES, AnyFormat
from ..backends.quant_format import QuantFormat
from ..backends.simulated import memory_system
from ..offload import Offload
from ..policy import Policy
from ..schemes import Scheme

# Sizes by name. A byte is a token; "gpt2" keeps the 50,257 rows of its embedding and uses the first 256.
CONFIGS: dict[str, dict[str, int]] = {
    "small": {"n_layer": 4, "n_embd": 192, "n_head": 6, "n_positions": 128, "vocab_size": 256},
    "medium": {"n_layer": 6, "n_embd": 384, "n_head": 6, "n_positions": 128, "vocab_size": 256},
    "wide": {"n_layer": 3, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 256},
    "gpt2": {"n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50257},
}
LEARNING_RATES = {"small": 1e-3, "medium": 5e-4, "wide": 3e-4, "gpt2": 3e-4}
ATTENTIONS = ("eager", "sdpa")

# Tokens of the held-out split that a validation looks at, at most.
_VALIDATION_TOKENS = 1 << 14


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to train and how.

    Attributes:
        config: a name in ``CONFIGS``: "small" (4 layers, 192 wide, 128 tokens), "medium" (6 layers, 384
            wide), "gpt2" (124M) or "wide" (three layers of that width).
        data: a text file, or None for Python's own help topics.
        scheme: a name in ``schemes.NAMES``.
        dtype: of format and activations; "bf16" and "fp16" train under autocast.
        block, target, rounding: the format's; None is its default. For planes that is 64 values at 3.2x,
            for 16 bits at 2x, rounded to nearest; for Hadamard, which has no rounding, 128 values of 4 bits.
        bits: of a value, for quantisation.
        recompute: whether what cheap operations made of stored tensors is computed anew, not compressed.
        time: of a step, for matrix products that are done again, as of a Compressor; None for none.
        fused: whether GELU is one operation; the model as Hugging Face has it makes it of several.
        backend: of the bridge.
        offload_dir: where offloaded tensors go.
        offload_amount: "adaptive", "all", or bytes of each step.
        rank: of CompAct, a share of each layer's input width.
        kernel: tokens whose mean pooling keeps.
        steps, batch, lr, seed: of the training; a learning rate of None is the config's.
        attention: "eager" or "sdpa".
        dropout: probability of every dropout.
        validations: how many times the validation loss is measured, the end included.
        device: where to train; None is CUDA if there is one.
    """

    config: str = "small"
    data: Path | None = None
    scheme: str = "baseline"
    dtype: str = "fp32"
    block: int | None = None
    target: int | None = None
    rounding: str | None = None
    bits: int = 4
    recompute: bool = True
    time: float | None = None
    fused: bool = False
    backend: str = "auto"
    offload_dir: Path = Path("build/offload")
    offload_amount: int | Literal["all", "adaptive"] = "adaptive"
    rank: float = 1 / 4
    kernel: int = 2
    steps: int = 200
    batch: int = 8
    lr: float | None = None
    seed: int = 0
    attention: str = "sdpa"
    dropout: float = 0.0
    validations: int = 10
    device: str | None = None

    @property
    def format(self) -> AnyFormat:
        """That of the scheme, planes if it has none; raises ValueError if an option does not fit it."""
        kind = self.scheme.partition("+")[0]
        lacks = {"quant": ("block", "target", "rounding"), HadamardFormat.scheme: ("rounding",)}
        for name in lacks.get(kind, ()):
            if getattr(self, name) is not None:
                raise ValueError(f"{name} must not be given for {kind}, not {getattr(self, name)!r}")
        if kind == "quant":
            return QuantFormat(self.dtype, self.bits)
        if kind == HadamardFormat.scheme:
            block = 128 if self.block is None else self.block
            return HadamardFormat(self.dtype, block, block // 2 if self.target is None else self.target)
        block, rounding = 64 if self.block is None else self.block, self.rounding or "nearest"
        original = PlaneFormat(self.dtype, block, None, rounding).original_bytes
        default = original * 10 // 32 if self.dtype == "fp32" else original // 2
        return PlaneFormat(self.dtype, block, default if self.target is None else self.target, rounding)

    def make_scheme(self) -> Scheme:
        """The scheme, with its format and its file if it has them.

        Raises:
            ValueError: an option is not one of its values.
            OSError: there cannot be a file in ``offload_dir``.
        """
        offload = None
        if "offload" in self.scheme:
            self.offload_dir.mkdir(parents=True, exist_ok=True)
            offload = Offload(self.offload_dir, amount=self.offload_amount)
        return Scheme(self.scheme, self.policy, self.backend, offload, self.rank, self.kernel, self.time)

    @property
    def policy(self) -> Policy:
        """That of a scheme with a format."""
        return Policy.default(self.format, recompute=self.recompute, products=self.time is not None)

    @property
    def torch_device(self) -> torch.device:
        """What it trains on; raises ValueError if that is not here."""
        name = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        is_cuda = name.partition(":")[0] == "cuda"
        try:
            found = torch.device(name)
        except RuntimeError:
            found = None
        if found is None or found.type not in ("cpu", "cuda") or (is_cuda and not torch.cuda.is_available()):
            here = "cpu or cuda" if torch.cuda.is_available() else "cpu, as there is no CUDA here"
            raise ValueError(f"device must be {here}, not {name!r}")
        return found


@dataclass(frozen=True, eq=False)
class Subject:
    """What is trained, and on what.

    Attributes:
        model: called with tokens and labels, as those of transformers; it has the weights to begin with.
        text: int64[length], tokens; the last tenth is held out.
        length: tokens of a sequence.
        lr: peak learning rate.

    Raises:
        ValueError: the text is too short for a held-out sequence.
    """

    model: torch.nn.Module
    text: torch.Tensor
    length: int
    lr: float

    def __post_init__(self) -> None:
        if len(self.text) // 10 <= self.length:
            raise ValueError(f"data must have over {10 * self.length} tokens, not {len(self.text)}")

    @property
    def seen(self) -> torch.Tensor:
        return self.text[: -(len(self.text) // 10)]

    @property
    def held_out(self) -> torch.Tensor:
        return self.text[-(len(self.text) // 10) :]


def subject_of(options: Options) -> Subject:
    """The GPT-2 of the options, on the bytes of their text."""
    lr = options.lr if options.lr is not None else LEARNING_RATES[options.config]
    length = CONFIGS[options.config]["n_positions"]
    return Subject(build(options), read_text(options.data), length, lr)


def run(
    options: Options,
    *,
    subject: Subject | None = None,
    progress: bool = False,
    watch: Callable[[int, torch.nn.Module], Any] | None = None,
    checkpoint: Path | None = None,
) -> dict[str, Any]:
    """Train, and measure what the scheme does to memory, loss and time.

    The same seed gives the same weights, batches and dropout masks for every scheme and backend.

    Args:
        options: what to train.
        subject: trained in place of that of the options.
        progress: show a progress bar.
        watch: called with each step that is validated, and the model; it must not draw random numbers.
        checkpoint: a file that has the run's state after each validation. If it exists, the run goes on
            from it, as if it had never been ended; a run that ends removes it.

    Returns:
        The options, and: "ratio", "original_bytes" and "stored_bytes" of the saved tensors of one step, and
        "offloaded_bytes" of these; "offload_plan", what an adaptive offload has chosen;
        "train_loss", one per step; "val_curve", pairs of step and validation loss; "val_loss", the last
        of them; "watched", what ``watch`` returned; "seconds_per_step", the median; "interrupted", whether
        Ctrl-C ended it early, in which case the rest is what was done until then. Without compression
        original and stored bytes are equal. With backend "memory" there are also "accelerator_bytes",
        "memory_bytes", "cycles" and "cycles_without", of the last step, as of ``memory_system.Moved``, and
        "dram", what the memory is like.

    Raises:
        ValueError: an option is not one of its values, or the checkpoint is of a run with others.
        FileNotFoundError: there is no such data file, or no library for backend "verilated" or "memory".
    """
    subject = subject or subject_of(options)
    scheme = options.make_scheme()
    model = subject.model
    scheme.convert(model)
    optimizer = scheme.optimizer(model, betas=(0.9, 0.95), weight_decay=0.1, lr=0.0)
    scaler = torch.amp.GradScaler(options.torch_device.type, enabled=options.dtype == "fp16")
    batches = torch.Generator().manual_seed(options.seed)
    parts = {"model": model, "optimizer": optimizer, "scaler": scaler}

    losses: list[float] = []
    seconds: list[float] = []
    val_curve: list[tuple[int, float]] = []
    watched: list[Any] = []
    measure_at = {round((i + 1) * options.steps / options.validations) for i in range(options.validations)}
    bytes_of_step = (0, 0, 0)
    system = memory_system.system() if scheme.compresses and options.backend == "memory" else None
    moved = system.moved() if system is not None else None
    interrupted = False

    if checkpoint and checkpoint.exists():
        measured = _restore(checkpoint, options, parts, batches)
        losses, seconds, val_curve, watched, bytes_of_step = measured

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[news]}"),
        disable=not progress,
    )
    name = f"{options.scheme} {options.backend}" if scheme.compresses else options.scheme
    task = bar.add_task(name, total=options.steps, news="")
    try:
        with bar:
            parameters = sum(parameter.numel() for parameter in model.parameters())
            bar.print(f"{name}: {parameters:,} parameters, {len(subject.seen):,} tokens of text")
            bar.update(task, completed=len(losses))
            for step in range(len(losses), options.steps):
                start = time.perf_counter()
                tokens = draw(subject.seen, options.batch, subject.length, batches)
                tokens = tokens.to(options.torch_device)
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate(step, options.steps, subject.lr)
                with scheme.around(model, report=step == 0) as saver:
                    loss = loss_of(model, options, tokens)
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad(set_to_none=True)

                losses.append(loss.item())
                seconds.append(time.perf_counter() - start)
                if saver is not None:
                    bytes_of_step = (saver.original_bytes, saver.stored_bytes, saver.offloaded_bytes)
                if system is not None:
                    moved = system.moved()
                    bar.print(f"step {step + 1}: {moved}")
                if step + 1 in measure_at:
                    val_curve.append((step + 1, validate(model, options, subject.held_out, subject.length)))
                    if watch is not None:
                        watched.append(watch(step + 1, model))
                    if checkpoint:
                        measured = losses, seconds, val_curve, watched, bytes_of_step
                        _save(checkpoint, options, parts, batches, measured)
                saved = (bytes_of_step[0] - bytes_of_step[1]) / 1e6
                news = f"loss {losses[-1]:.3f}, {saved:.0f} MB of {bytes_of_step[0] / 1e6:.0f} MB saved"
                bar.update(task, advance=1, news=news)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        scheme.close()
    if checkpoint and not interrupted:
        checkpoint.unlink(missing_ok=True)

    original, stored, offloaded = bytes_of_step
    config = asdict(options) | {
        "data": str(options.data) if options.data else None,
        "offload_dir": str(options.offload_dir),
    }
    if scheme.compresses:
        config["target"] = options.format.target
    if system is not None and moved is not None:
        config |= asdict(moved) | {"dram": asdict(system.engine.figures)}
        config["dram"]["bytes_per_cycle"] = system.engine.bytes_per_cycle
    return config | {
        "ratio": original / stored if stored else None,
        "original_bytes": original,
        "stored_bytes": stored,
        "offloaded_bytes": offloaded,
        "offload_plan": scheme.offload and scheme.offload.plan,
        "train_loss": losses,
        "val_curve": val_curve,
        "val_loss": val_curve[-1][1] if val_curve else None,
        "watched": watched,
        "seconds_per_step": median(seconds) if seconds else None,
        "interrupted": interrupted,
    }


def _save(
    path: Path, options: Options, parts: dict[str, Any], batches: torch.Generator, measured: tuple[Any, ...]
) -> None:
    """All of a checkpoint or nothing: a run that is ended meanwhile has the one before."""
    state = {name: part.state_dict() for name, part in parts.items()}
    state |= {"options": repr(options), "measured": measured, "batches": batches.get_state()}
    state |= {"random": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state_all()}
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(f".{os.getpid()}")  # of two runs each has its own
    torch.save(state, new)
    new.replace(path)


def _restore(path: Path, options: Options, parts: dict[str, Any], batches: torch.Generator) -> Any:
    """What was measured until a checkpoint, whose state the parts take on."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        options_then, measured = state["options"], state["measured"]
    except Exception as error:
        raise ValueError(
            f"{path} must be a whole checkpoint; without it the run begins anew: {error}"
        ) from None
    if options_then != repr(options):
        raise ValueError(f"{path} must be of a run with {options!r}, not {options_then}")
    for name, part in parts.items():
        part.load_state_dict(state[name])
    batches.set_state(state["batches"])
    torch.set_rng_state(state["random"])
    torch.cuda.set_rng_state_all(state["cuda"])
    return measured


def read_text(path: Path | None) -> torch.Tensor:
    """A file, or Python's help topics in the order of their keys, as bytes: int64[length]."""
    if path is None:
        from pydoc_data.topics import topics

        text = "".join(topics[key] for key in sorted(topics)).encode()
    else:
        text = path.read_bytes()
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


def build(options: Options) -> torch.nn.Module:
    """The GPT-2 of the options, with weights drawn from the seed."""
    from transformers import GPT2Config, GPT2LMHeadModel

    settings: dict[str, Any] = {
        **CONFIGS[options.config],
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), options.dropout),
        "attn_implementation": options.attention,
        "activation_function": "gelu_pytorch_tanh" if options.fused else "gelu_new",
        "use_cache": False,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    torch.manual_seed(options.seed)
    model: torch.nn.Module = GPT2LMHeadModel(GPT2Config(**settings))
    model.loss_type = "ForCausalLM"  # type: ignore[assignment]  # it would be guessed, with a warning
    return model.to(options.torch_device).train()


def draw(text: torch.Tensor, batch: int, length: int, generator: torch.Generator) -> torch.Tensor:
    """Random windows of the text: int64[batch, length]."""
    starts = torch.randint(len(text) - length, (batch, 1), generator=generator)
    return text[starts + torch.arange(length)]


def loss_of(model: torch.nn.Module, options: Options, tokens: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of every next byte, under autocast for a 16-bit type."""
    dtype = TORCH_DTYPES[options.dtype]
    with torch.autocast(tokens.device.type, dtype, enabled=options.dtype != "fp32"):
        return model(tokens, labels=tokens).loss


@torch.no_grad()
def validate(model: torch.nn.Module, options: Options, text: torch.Tensor, length: int) -> float:
    """Mean loss over windows of the held-out text, evenly spaced, always the same."""
    windows = text[: len(text) // length * length].view(-1, length)
    windows = windows[:: max(1, math.ceil(windows.numel() / _VALIDATION_TOKENS))]
    model.eval()
    total = 0.0
    for rows in windows.split(max(1, 4096 // length)):
        total += loss_of(model, options, rows.to(options.torch_device)).item() * len(rows)
    model.train()
    return total / len(windows)


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Linear over the first tenth, then a cosine down to a tenth of the peak."""
    warm = max(1, steps // 10)
    if step < warm:
        return peak * (step + 1) / warm
    return peak * (0.55 + 0.45 * math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def warmed_up(options: Options) -> tuple[torch.nn.Module, Callable[[], torch.Tensor]]:
    """A model after ``options.steps`` steps without compression, and what computes the next step's loss."""
    model = build(options)
    text = read_text(options.data)
    batches = torch.Generator().manual_seed(options.seed)
    lr = options.lr if options.lr is not None else LEARNING_RATES[options.config]
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)

    def forward() -> torch.Tensor:
        length = CONFIGS[options.config]["n_positions"]
        tokens = draw(text, options.batch, length, batches).to(options.torch_device)
        return loss_of(model, options, tokens)

    for _ in range(options.steps):
        forward().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return model, forward


def write(result: dict[str, Any], path: Path) -> None:
    """Write a result as JSON, with the directories it needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
