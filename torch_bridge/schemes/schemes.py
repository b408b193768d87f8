"""Every way to train in less memory, by name: what it does to a model, what goes around a forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import torch

import golden

from ..backends.dtypes import AnyFormat
from ..backends.quant_format import QuantFormat
from ..compressor import Compressor
from ..offload import Offload
from ..policy import Policy
from . import compact, pool
from .checkpointing import checkpoint_activations

FORMATS = (*golden.FORMATS, QuantFormat.scheme)

NAMES = (
    *("baseline", *FORMATS, "offload", "checkpointing", "compact", "pool"),
    *(f"{name}+{where}" for name in FORMATS for where in ("offload", "checkpointing")),
)


@dataclass(frozen=True)
class Scheme:
    """One of ``NAMES``, or several with a + between.

    Args:
        name: of these.
        policy: of a scheme of ``FORMATS``: how it keeps each tensor; a format of that name stands for
            ``Policy.default(fmt)``.
        backend: of the codec.
        offload: where "offload" goes to.
        rank: of "compact", as of ``compact.convert``.
        kernel: of "pool": pixels, and tokens of linear layers.
        time: of a step, for matrix products that are done again, as of ``Compressor``.

    Raises:
        ValueError: there is no such scheme, or it lacks what it needs.
    """

    name: str
    policy: AnyFormat | Policy | None = None
    backend: str = "auto"
    offload: Offload | None = None
    rank: float = 1 / 4
    kernel: int = 2
    time: float | None = None

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise ValueError(f"scheme must be one of {', '.join(NAMES)}, not {self.name!r}")
        scheme = getattr(self.policy, "scheme", self._parts[0])
        if self.compresses and (not isinstance(self.policy, AnyFormat | Policy) or scheme != self._parts[0]):
            raise ValueError(
                f"scheme {self.name!r} must have a format of that name or a Policy, not {self.policy!r}"
            )
        if "offload" in self._parts and self.offload is None:
            raise ValueError(f"scheme {self.name!r} must have an Offload, not None")

    @cached_property
    def _parts(self) -> list[str]:
        return self.name.split("+")

    @property
    def compresses(self) -> bool:
        """Whether there is a format."""
        return self._parts[0] in FORMATS

    def convert(self, model: torch.nn.Module) -> None:
        """Make of a model's layers, in place, what the scheme needs; before there is an optimizer."""
        if "compact" in self._parts:
            compact.convert(model, self.rank)
        if "pool" in self._parts:
            pool.convert(model, self.kernel, tokens=True)

    def optimizer(self, model: torch.nn.Module, **options: Any) -> torch.optim.Optimizer:
        """An AdamW with these options for all parameters of a model that was converted."""
        if "compact" in self._parts:
            return compact.CompActAdamW(model, **options)
        return torch.optim.AdamW(model.parameters(), **options)

    def close(self) -> None:
        """Give back the file and the threads of its Offload, if it has one; it is of no use any more."""
        if self.offload is not None:
            self.offload.close()

    @cached_property
    def _compressors(self) -> WeakKeyDictionary[torch.nn.Module, Compressor]:
        """Made once for each model, for what they have found out of it."""
        return WeakKeyDictionary()

    def _compressor(self, model: torch.nn.Module) -> Compressor:
        if model not in self._compressors:
            policy = self.policy if self.compresses and self.policy is not None else Policy([])
            offload = self.offload if "offload" in self._parts else None
            self._compressors[model] = Compressor(
                model, policy, self.backend, time=self.time, offload=offload
            )
        return self._compressors[model]

    @contextmanager
    def around(self, model: torch.nn.Module, *, report: bool = False) -> Iterator[Compressor | None]:
        """What goes around the forward pass; the backward pass may be inside or after.

        Args:
            model: that was converted.
            report: yield a Compressor also where none is needed; it costs time.
        """
        with ExitStack() as stack:
            saver = None
            if self.compresses or "offload" in self._parts or report:
                saver = stack.enter_context(self._compressor(model))
            if "checkpointing" in self._parts:
                stack.enter_context(checkpoint_activations(model))
            yield saver
