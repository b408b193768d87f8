"""Compressed activations in the Trainer of Hugging Face's transformers, and in those of TRL."""

from __future__ import annotations

import warnings
from functools import wraps
from typing import Any

import torch

from ..backends.dtypes import AnyFormat
from ..compressor import Compressor
from ..policy import Policy


def attach(trainer: Any, policy: AnyFormat | Policy | None = None, **options: Any) -> Compressor:
    """Compress what the forward pass of every training step of a Trainer saves.

    The Compressor is entered where the Trainer enters its own contexts, so that a ``compute_loss`` that was
    overridden is in it as well; evaluation saves nothing and is left alone. ``activation_ratio``, original
    over stored bytes of the last forward pass, is logged with the loss.

    Args:
        trainer: a ``transformers.Trainer``, or what is made of it, as TRL's trainers.
        policy: as of `Compressor`.
        **options: as of `Compressor`.

    Returns:
        The Compressor; its ``report()`` lists what the last forward pass kept.

    Raises:
        ValueError: the trainer is none, or an option of the Compressor is wrong.

    Examples:
        >>> # trainer = SFTTrainer(model, arguments, train_dataset=data)
        >>> # saver = attach(trainer)
        >>> # trainer.train()
    """
    around, log = getattr(trainer, "compute_loss_context_manager", None), getattr(trainer, "log", None)
    if around is None or log is None or not isinstance(getattr(trainer, "model", None), torch.nn.Module):
        raise ValueError(f"trainer must be a transformers.Trainer, not a {type(trainer).__name__}")
    if getattr(getattr(trainer, "args", None), "activation_offloading", False):
        warnings.warn(
            "activation_offloading of TRL does nothing inside a Compressor: set it to False, and give attach "
            "an offload of its own",
            RuntimeWarning,
            stacklevel=2,
        )
    saver = Compressor(trainer.model, policy, **options)
    seen = False

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
