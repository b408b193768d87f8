"""What torch.compile leaves alone, at no cost where nothing compiles.

``torch.compiler.disable`` imports the compiler, and then takes longer than most of what is called here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from types import CodeType
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])

_compiles: Callable[[], Any] = torch._C._dynamo.eval_frame.get_eval_frame_callback
_codes: list[CodeType] = []


def uncompiled(function: F) -> F:
    """A function of places and no names that is never compiled, once :func:`tell_compiler` was called."""
    disabled: list[Callable[..., Any]] = []

    @wraps(function)
    def run(*args: Any) -> Any:
        if _compiles() is None:
            return function(*args)
        if not disabled:
            disabled.append(torch.compiler.disable(function))
        return disabled[0](*args)

    _codes.append(run.__code__)  # type: ignore[attr-defined]
    return run  # type: ignore[return-value]


def tell_compiler() -> None:
    """Have the compiler skip what is not to be compiled, if it has been imported."""
    if "torch._dynamo" in sys.modules:
        while _codes:
            torch._dynamo.eval_frame.skip_code(_codes.pop())
