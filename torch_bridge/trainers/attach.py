"""One line for the training loops of others."""

from __future__ import annotations

from typing import Any

from ..backends.dtypes import AnyFormat
from ..compressor import Compressor
from ..policy import Policy
from . import deepspeed, huggingface


def attach(trainer: Any, policy: AnyFormat | Policy | None = None, **options: Any) -> Compressor:
    """Compress what the forward pass of every training step of a loop saves.

    In a Trainer the Compressor is entered where the Trainer enters its own contexts, so that a
    ``compute_loss`` that was overridden is in it as well. ``activation_ratio``, original over stored bytes of
    the last forward pass, is logged with the loss.

    An engine of DeepSpeed enters it in its forward pass. What is computed of the engine's outputs is not in
    it, as a loss is that the model does not return itself.

    Evaluation saves nothing and is left alone in both.

    Args:
        trainer: a ``transformers.Trainer``, or what is made of it, as TRL's trainers; or an engine that
            ``deepspeed.initialize`` gave.
        policy: as of `Compressor`.
        **options: as of `Compressor`.

    Returns:
        The Compressor; its ``report()`` lists what the last forward pass kept.

    Raises:
        ValueError: the trainer is neither, or an option of the Compressor is wrong.

    Examples:
        >>> # trainer = SFTTrainer(model, arguments, train_dataset=data)
        >>> # saver = attach(trainer)
        >>> # trainer.train()
    """
    for kind in (huggingface, deepspeed):
        if kind.is_one(trainer):
            return kind.attach(trainer, policy, **options)
    raise ValueError(
        f"trainer must be a transformers.Trainer or an engine of DeepSpeed, not a {type(trainer).__name__}"
    )
