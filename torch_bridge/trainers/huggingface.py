"""Compressed activations in the Trainer of Hugging Face's transformers."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch

from ..backends.dtypes import StashFormat
from ..offload import Offload
from ..policy import Policy
from ..stash import Stash
from .context import context


class CompressActivationsMixin:
    """Compresses what the forward pass of every training step saves; stands before ``Trainer`` as a base.

    It enters the context where a Trainer enters its own, so that a ``compute_loss`` that was overridden is
    in it as well; evaluation saves nothing and is left alone. ``activation_ratio``, raw over stored bytes of
    the last forward pass, is logged with the loss.

    Args:
        policy, backend, min_values, verify, offload, by_module: as of
            :func:`torch_bridge.Compressor`.
        args, kwargs: the Trainer's.

    Attributes:
        stash: of the last forward pass, None before the first; ``stash.report()`` lists what it kept.

    Example:
        >>> from transformers import Trainer
        >>> class CompressingTrainer(CompressActivationsMixin, Trainer):
        ...     pass
        >>> # CompressingTrainer(model, arguments, policy=PlaneFormat("fp32", 64, 80)).train()
    """

    model: torch.nn.Module

    def __init__(
        self,
        *args: Any,
        policy: StashFormat | Policy,
        backend: str = "auto",
        min_values: int = 1024,
        verify: bool = False,
        offload: Offload | None = None,
        by_module: bool = False,
        **kwargs: Any,
    ) -> None:
        self._compress = context(
            policy=policy,
            backend=backend,
            min_values=min_values,
            verify=verify,
            offload=offload,
            by_module=by_module,
        )
        super().__init__(*args, **kwargs)
        self.stash: Stash | None = None

    def compute_loss_context_manager(self) -> ExitStack:
        stack: ExitStack = super().compute_loss_context_manager()  # type: ignore[misc]
        if torch.is_grad_enabled():
            self.stash = stack.enter_context(self._compress(self.model))
        return stack

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if self.stash is not None and "loss" in logs:
            logs = logs | {"activation_ratio": self.stash.ratio}
        super().log(logs, *args, **kwargs)  # type: ignore[misc]
