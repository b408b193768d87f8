"""Compressed activations in the Trainer of Hugging Face's transformers, and in those of TRL."""

from __future__ import annotations

import warnings
from functools import wraps
from typing import Any

import torch

from ..backends.dtypes import AnyFormat
from ..compressor import Compressor
from ..policy import Policy


def is_one(trainer: Any) -> bool:
    """Whether it is a Trainer, by what of it is used."""
    names = ("compute_loss_context_manager", "log")
    return isinstance(getattr(trainer, "model", None), torch.nn.Module) and all(
        hasattr(trainer, name) for name in names
    )


def attach(trainer: Any, policy: AnyFormat | Policy | None = None, **options: Any) -> Compressor:
    """Enter a Compressor in every training step of a Trainer, and log its ratio.

    Args:
        trainer: a ``transformers.Trainer``, or what is made of it.
        policy, options: as of `Compressor`.

    Raises:
        ValueError: an option of the Compressor is wrong.
    """
    if getattr(getattr(trainer, "args", None), "activation_offloading", False):
        warnings.warn(
            "activation_offloading of TRL does nothing inside a Compressor: set it to False, and give attach "
            "an offload of its own",
            RuntimeWarning,
            stacklevel=3,  # who called bitstash.attach
        )
    saver = Compressor(trainer.model, policy, **options)
    around, log, seen = trainer.compute_loss_context_manager, trainer.log, False

    @wraps(around)
    def compute_loss_context_manager() -> Any:
        nonlocal seen
        stack = around()
        if torch.is_grad_enabled():
            stack.enter_context(saver)
            seen = True
        return stack

    @wraps(log)
    def log_with_ratio(logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if seen and "loss" in logs:
            logs["activation_ratio"] = saver.ratio
        log(logs, *args, **kwargs)

    trainer.compute_loss_context_manager, trainer.log = compute_loss_context_manager, log_with_ratio
    return saver
