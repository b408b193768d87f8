"""The context that a trainer enters in each of its steps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch

from ..stash import Stash, compress_activations

Context = Callable[[torch.nn.Module], AbstractContextManager[Stash]]


def context(**options: Any) -> Context:
    """:func:`compress_activations` of a model to come; what is wrong with the options is raised at once."""
    compress: Context = partial(compress_activations, **options)
    compress(torch.nn.Module())
    return compress
