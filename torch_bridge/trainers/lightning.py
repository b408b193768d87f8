"""Compressed activations in Lightning, by its name ``lightning.pytorch`` or ``pytorch_lightning``."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch

from ..backends.dtypes import AnyFormat
from ..compressor import Compressor
from ..policy import Policy


def _package() -> str:
    """The Lightning that the program uses: one does not take the other's callbacks."""
    names = ["lightning.pytorch", "pytorch_lightning"]
    imported = [name for name in names if name in sys.modules]
    return (imported or ["lightning.pytorch" if find_spec("lightning") else "pytorch_lightning"])[0]


if TYPE_CHECKING:
    from pytorch_lightning import Callback as _Callback
else:
    _Callback = import_module(_package()).Callback


class Callback(_Callback):
    """Compresses what ``training_step`` saves for the backward pass.

    While ``fit`` runs, the module's ``training_step`` runs in a Compressor; nothing else about it is changed.
    ``activation_ratio``, original over stored bytes of the last step, is logged with ``self.log``.

    Args:
        policy: as of `Compressor`.
        backend: as of `Compressor`.
        **options: as of `Compressor`.

    Attributes:
        saver: the Compressor, None before the first step; its ``report()`` lists what the last step kept.

    Examples:
        >>> callback = Callback()
        >>> # Trainer(callbacks=[callback]).fit(module, data)
    """

    def __init__(
        self, policy: AnyFormat | Policy | None = None, backend: str = "auto", **options: Any
    ) -> None:
        Compressor(
            torch.nn.Module(), policy, backend, **options
        )  # what is wrong with the options is said at once
        self._options = {"policy": policy, "backend": backend, **options}
        self._step: Callable[..., Any] | None = None
        self.saver: Compressor | None = None
        self._model: weakref.ref[torch.nn.Module] | None = None

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
        if self.saver is not None:
            pl_module.log("activation_ratio", self.saver.ratio)

    def _compressing(self, training_step: Callable[..., Any], module: Any = None) -> Callable[..., Any]:
        """The step in the context; the module of a method is its first argument."""

        @wraps(training_step)
        def step(*args: Any, **kwargs: Any) -> Any:
            model = args[0] if module is None else module
            if self._model is None or self._model() is not model:
                self.saver, self._model = Compressor(model, **self._options), weakref.ref(model)
            assert self.saver is not None
            with self.saver:
                return training_step(*args, **kwargs)

        return step

    def _restore(self, pl_module: Any) -> None:
        """Put back the instance's own step, such as a compiled one, or let the class's show again."""
        if self._step is not None and vars(pl_module).get("training_step") is self._step:
            del vars(pl_module)["training_step"]
            if self._own is not None:
                vars(pl_module)["training_step"] = self._own
        self._step = None
