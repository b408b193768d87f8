"""Compressed activations in the engine that ``deepspeed.initialize`` gives."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch

from ..backends.dtypes import AnyFormat
from ..compressor import Compressor
from ..policy import Policy


def is_one(engine: Any) -> bool:
    """Whether it is an engine, which has a model and its loop's three calls."""
    calls = (getattr(engine, name, None) for name in ("forward", "backward", "step"))
    return isinstance(getattr(engine, "module", None), torch.nn.Module) and all(map(callable, calls))


def attach(engine: Any, policy: AnyFormat | Policy | None = None, **options: Any) -> Compressor:
    """Enter a Compressor in every forward pass of an engine.

    Args:
        engine: of DeepSpeed.
        policy, options: as of `Compressor`; modules have the names that they have in the model.

    Raises:
        ValueError: the engine is that of a pipeline, whose ``forward`` nobody calls, or an option is wrong.
    """
    if hasattr(type(engine), "train_batch"):
        raise ValueError(
            "trainer must be an engine whose loop calls forward, backward and step, not a "
            f"{type(engine).__name__}: enter a Compressor around its train_batch"
        )
    saver, forward = Compressor(engine.module, policy, **options), engine.forward

    @wraps(forward)
    def compressing(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        with saver:
            return forward(*args, **kwargs)

    engine.forward = compressing
    return saver
