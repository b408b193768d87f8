"""One training run, and its row."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from torch_bridge import Compressor, Policy, Rule, calibrate
from torch_bridge.job import train
from torch_bridge.schemes import hyclora

from .. import smollm2
from ..effective_bits import everything, mean, quality, tensors
from ..page import write
from . import rows
from .rows import SCHEMES, STUDIES, WIDE, as_json


@dataclass(frozen=True, kw_only=True)
class Everything(train.Options):
    """With the policy of :func:`bench.effective_bits.everything`."""

    recompute: bool = False

    @property
    def policy(self) -> Policy:
        return everything(self.format)


@dataclass(frozen=True, kw_only=True)
class Calibrated(train.Options):
    """With the policy of :func:`calibrated`; ``model`` is a name of ``STUDIES``."""

    model: str

    @property
    def policy(self) -> Policy:
        return calibrated(self)


@dataclass(frozen=True, kw_only=True)
class FineBoundaries(train.Options):
    """With the policy of ``Policy.layer_inputs``; ``model`` is a name of ``STUDIES``."""

    model: str

    @property
    def policy(self) -> Policy:
        return layer_inputs(self)


@dataclass(frozen=True, kw_only=True)
class HycLora(train.Options):
    """With the layers of ``hyclora.convert``; what is outside of them is exact, and the head recomputed."""

    @property
    def policy(self) -> Policy:
        return Policy([Rule("recompute")])


class WideProducts(TorchDispatchMode):
    """Products of bf16 matrices on a processor without instructions for them, which takes 90 times as long.

    Their operands become fp32 and what they give is rounded to bf16: as the instructions do it, which add in
    fp32 as well, but for the order of the sums and for attention's probabilities, which are not rounded.
    """

    ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    PRODUCTS = (
        torch.ops.aten.mm.default,
        torch.ops.aten.addmm.default,
        torch.ops.aten.bmm.default,
        torch.ops.aten.baddbmm.default,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
        ATTENTION,
    )

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in self.PRODUCTS or args[0].dtype != torch.bfloat16 or args[0].device.type != "cpu":
            return func(*args, **kwargs)
        found = func(*tree_map_only(torch.Tensor, torch.Tensor.float, args), **kwargs)
        if func is self.ATTENTION:
            return found[0].bfloat16(), found[1]  # the second is a sum, which stays fp32
        return tree_map_only(torch.Tensor, torch.Tensor.bfloat16, found)


def needs_wide_products(study: rows.Study, device: str | None) -> bool:
    return study.dtype == "bf16" and device is None and torch.backends.cpu.get_cpu_capability() == "AVX2"


# What schemes begin with that checkpoint each layer, and that have the default policy.
CHECKPOINTED = "checkpointed"
DEFAULT_POLICY = ("recompute", CHECKPOINTED)
# Steps of the model on which rates are calibrated, if it is not pretrained, and batches.
CALIBRATED_AT, CALIBRATED_ON = 60, 2


@cache
def calibrated(options: Calibrated) -> Policy:
    """What ``bitstash.calibrate`` chooses for the bytes that the default policy takes in the options' format.

    It sees the pretrained model, or one that was trained without compression for a fifth of the steps.
    """
    with torch.random.fork_rng():
        subject = subject_of(options.model, options)
        if STUDIES[options.model].config:
            plain = train.Options(
                **{name: getattr(options, name) for name in ("config", "seed", "batch", "device")},
                steps=CALIBRATED_AT,
                validations=1,
            )
            train.run(plain, subject=subject)
        generator = torch.Generator().manual_seed(98)
        batches = [
            train.draw(subject.seen, options.batch, subject.length, generator).to(options.torch_device)
            for _ in range(CALIBRATED_ON)
        ]
        default = Policy.default(options.format)
        budget = max(stored_bytes(subject, options, default, batch) for batch in batches)

        def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
            return train.loss_of(model, options, batch)

        return calibrate(subject.model, batches, budget=budget, loss=loss)


@cache
def layer_inputs(options: FineBoundaries) -> Policy:
    """The input of each layer on bit planes of 10 bits, from which all else of it may be recomputed."""
    with torch.random.fork_rng():
        return Policy.layer_inputs(subject_of(options.model, options).model)


def options_of(model: str, scheme: str, seed: int) -> train.Options:
    study = STUDIES[model]
    sizes: dict[str, Any] = {
        name: getattr(study, name) for name in ("steps", "batch", "validations", "dtype")
    }
    sizes["config"] = study.config or "small"
    if "calibrated" in scheme:
        return Calibrated(model=model, seed=seed, **sizes, **SCHEMES[scheme])
    if scheme.startswith("HyC-LoRA"):
        return HycLora(seed=seed, **sizes, **SCHEMES[scheme])
    if "10-bit boundaries" in scheme:
        return FineBoundaries(model=model, seed=seed, **sizes, **SCHEMES[scheme])
    options = train.Options if scheme.startswith(DEFAULT_POLICY) else Everything
    return options(seed=seed, **sizes, **SCHEMES[scheme])


def subject_of(model: str, options: train.Options) -> train.Subject:
    if STUDIES[model].config:
        return train.subject_of(options)
    subject = smollm2.subject()
    return smollm2.with_lora(subject, options.seed) if STUDIES[model].lora else subject


def run(model: str, scheme: str, seed: int, threads: int, device: str | None) -> dict[str, Any] | None:
    """One row, also left in ``FOLDER``; None if Ctrl-C came first."""
    wide = needs_wide_products(STUDIES[model], device)
    with WideProducts() if wide else nullcontext():
        row = train_row(model, scheme, seed, threads, device)
    if row is not None:
        row |= {WIDE: True} if wide else {}
        rows.FOLDER.mkdir(parents=True, exist_ok=True)
        write(path_of(model, scheme, seed), as_json(row))
    return row


def path_of(model: str, scheme: str, seed: int) -> Path:
    return rows.FOLDER / f"{model}-{scheme.replace(', ', '-').replace(' ', '-')}-{seed}.json"


def train_row(model: str, scheme: str, seed: int, threads: int, device: str | None) -> dict[str, Any] | None:
    if threads:
        torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(STUDIES[model].products)
    options = replace(options_of(model, scheme, seed), device=device)
    torch.manual_seed(seed)
    subject = subject_of(model, options)
    compressed = options.make_scheme().compresses and not isinstance(options, HycLora)
    original_bytes = stored_bytes(subject, options, Policy([]), batch_of(subject, options))
    if isinstance(options, HycLora):
        hyclora.convert(subject.model, options.bits)
    if scheme.startswith(CHECKPOINTED):
        subject.model.gradient_checkpointing_enable({"use_reentrant": False})

    def watch(step: int, net: torch.nn.Module) -> list[float | None]:
        """Of one batch: the gradient error, and in the end effective bits."""
        if not compressed:
            return [None, None]
        tokens = batch_of(subject, options)
        exact, found = (gradient(net, options, tokens, compress) for compress in (False, True))
        effective = None
        has_one_format = options.dtype == "fp32" and not isinstance(options, Calibrated)
        if step == options.steps and has_one_format:
            kinds = tensors(net, lambda: train.loss_of(net, options, tokens))
            effective = mean(quality(options.format, kinds))
            net.zero_grad(set_to_none=True)
        return [float((found - exact).norm() / exact.norm()), effective]

    is_long = STUDIES[model].config == "gpt2"
    checkpoint = path_of(model, scheme, seed).with_suffix(".checkpoint") if is_long else None
    result = train.run(options, subject=subject, watch=watch, checkpoint=checkpoint)
    if result["interrupted"]:
        return None
    steps, errors = [step for step, _ in result["val_curve"]], [error for error, _ in result["watched"]]
    fmt = options.format
    return {
        "model": model,
        "scheme": scheme,
        "bits_per_value": 8 * fmt.target / fmt.block
        if compressed
        else 32.0
        if scheme == "baseline"
        else None,  # type: ignore[operator]
        "ratio": original_bytes / result["stored_bytes"],
        "seed": seed,
        "steps": options.steps,
        "val_loss": result["val_loss"],
        "curve": result["val_curve"],
        "gradient_error": list(zip(steps, errors, strict=True)) if compressed else [],
        "effective_bits": result["watched"][-1][1],
    }


def batch_of(subject: train.Subject, options: train.Options) -> torch.Tensor:
    """One batch, the same for all runs of a model."""
    generator = torch.Generator().manual_seed(99)
    return train.draw(subject.text, options.batch, subject.length, generator).to(options.torch_device)


def stored_bytes(subject: train.Subject, options: train.Options, policy: Policy, tokens: torch.Tensor) -> int:
    """What a policy keeps of one batch."""
    with Compressor(subject.model, policy) as saver:
        train.loss_of(subject.model, options, tokens)
    return saver.stored_bytes


def gradient(
    model: torch.nn.Module, options: train.Options, tokens: torch.Tensor, compress: bool
) -> torch.Tensor:
    if compress:
        saver = Compressor(model, options.policy, time=options.time)
        if options.time is not None:  # the first pass says what fits the time
            with saver:
                train.loss_of(model, options, tokens)
        with saver:
            loss = train.loss_of(model, options, tokens)
    else:
        loss = train.loss_of(model, options, tokens)
    trained = [one for one in model.parameters() if one.requires_grad]
    return torch.cat([one.flatten() for one in torch.autograd.grad(loss, trained)])
