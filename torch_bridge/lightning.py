"""Compressed activations in Lightning, by its name ``lightning.pytorch`` or ``pytorch_lightning``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from .dtypes import Format
from .policy import Policy
from .stash import Stash, compress_activations


def _package() -> str:
    """The Lightning that the program uses: one does not take the other's callbacks."""
    names = ["lightning.pytorch", "pytorch_lightning"]
    imported = [name for name in names if name in sys.modules]
    return (imported or ["lightning.pytorch" if find_spec("lightning") else "pytorch_lightning"])[0]


if TYPE_CHECKING:
    from pytorch_lightning import Callback
else:
    Callback = import_module(_package()).Callback


class CompressActivations(Callback):
    """Compresses what ``training_step`` saves for the backward pass.

    While ``fit`` runs, the module's ``training_step`` runs in the context; nothing else about it is changed.
    ``activation_ratio``, raw over stored bytes of the last step, is logged with ``self.log``.

    Args:
        policy, backend, min_values: as of :func:`torch_bridge.compress_activations`.

    Attributes:
        stash: of the last training step, None before the first; ``stash.report()`` lists what it kept.

    Example:
        >>> callback = CompressActivations(PlaneFormat("fp32", block=64, target=80))
        >>> # Trainer(callbacks=[callback]).fit(module, data)
    """

    def __init__(self, policy: Format | Policy, backend: str = "auto", *, min_values: int = 1024) -> None:
        self._policy, self._backend, self._min_values = policy, backend, min_values
        self.stash: Stash | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            pl_module.training_step = self._compressing(pl_module, pl_module.training_step)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            self._restore(pl_module)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._restore(pl_module)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        if self.stash is not None:
            pl_module.log("activation_ratio", self.stash.report().ratio)

    def _compressing(self, pl_module: Any, training_step: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(training_step)
        def step(*args: Any, **kwargs: Any) -> Any:
            context = compress_activations(
                pl_module, self._policy, self._backend, min_values=self._min_values
            )
            with context as self.stash:
                return training_step(*args, **kwargs)

        return step

    @staticmethod
    def _restore(pl_module: Any) -> None:
        # The method of the class is under the instance's attribute.
        pl_module.__dict__.pop("training_step", None)
