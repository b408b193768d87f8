"""The context that a trainer enters in each of its steps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch

from ..stash import Stash, Compressor

Context = Callable[[torch.nn.Module], AbstractContextManager[Stash]]


def context(**options: Any) -> Context:
    """:func:`Compressor` of a model to come; what is wrong with the options is raised at once."""
    compress: Context = partial(Compressor, **options)
    compress(torch.nn.Module())
    return compress
