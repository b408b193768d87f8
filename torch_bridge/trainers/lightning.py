"""Compressed activations in Lightning, by its name ``lightning.pytorch`` or ``pytorch_lightning``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from types import MethodType
from typing import TYPE_CHECKING, Any

from ..backends.dtypes import StashFormat
from ..offload import Offload
from ..policy import Policy
from ..stash import Stash
from .context import context


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
        policy, backend, min_values, verify, offload, by_module: as of
            :func:`torch_bridge.Compressor`.

    Attributes:
        stash: of the last training step, None before the first; ``stash.report()`` lists what it kept.

    Example:
        >>> callback = CompressActivations(PlaneFormat("fp32", block=64, target=80))
        >>> # Trainer(callbacks=[callback]).fit(module, data)
    """

    def __init__(
        self,
        policy: StashFormat | Policy,
        backend: str = "auto",
        *,
        min_values: int = 1024,
        verify: bool = False,
        offload: Offload | None = None,
        by_module: bool = False,
    ) -> None:
        self._compress = context(
            policy=policy,
            backend=backend,
            min_values=min_values,
            verify=verify,
            offload=offload,
            by_module=by_module,
        )
        self._step: Callable[..., Any] | None = None
        self.stash: Stash | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            self._own = vars(pl_module).get("training_step")
            if self._own is None:  # as a method, so that a copy of the module trains the copy
                self._step = MethodType(self._compressing(type(pl_module).training_step), pl_module)
            else:
                self._step = self._compressing(self._own, pl_module)
            vars(pl_module)["training_step"] = self._step

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            self._restore(pl_module)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._restore(pl_module)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        if self.stash is not None:
            pl_module.log("activation_ratio", self.stash.ratio)

    def _compressing(self, training_step: Callable[..., Any], module: Any = None) -> Callable[..., Any]:
        """The step in the context; the module of a method is its first argument."""

        @wraps(training_step)
        def step(*args: Any, **kwargs: Any) -> Any:
            with self._compress(args[0] if module is None else module) as self.stash:
                return training_step(*args, **kwargs)

        return step

    def _restore(self, pl_module: Any) -> None:
        """Put back the instance's own step, such as a compiled one, or let the class's show again."""
        if self._step is not None and vars(pl_module).get("training_step") is self._step:
            del vars(pl_module)["training_step"]
            if self._own is not None:
                vars(pl_module)["training_step"] = self._own
        self._step = None
