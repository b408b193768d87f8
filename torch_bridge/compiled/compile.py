"""``torch.compile`` with a partitioner of ours, in one word."""

from __future__ import annotations

import reprlib
from typing import Any

import torch

from .. import backends
from ..backends.dtypes import AnyFormat
from ..policy import Policy
from .partitioner import Partitioner

_BACKENDS = ("inductor", "aot_eager")
_CODECS = tuple(name for name in backends.NAMES if name not in backends.IN_PLACE)
_OURS = "custom_partitioner_fn"


def compile(
    model: torch.nn.Module,
    policy: AnyFormat | Policy | None = None,
    *,
    bits: int | None = None,
    time: float | None = None,
    min_values: int = 1024,
    offload: bool = False,
    codec: str = "auto",
    backend: str = "inductor",
    options: dict[str, Any] | None = None,
    **settings: Any,
) -> Any:
    """``torch.compile``, with compressed tensors between the forward and the backward graph.

    Args:
        model: to compile. Its parameters and buffers stay exact.
        policy: as of ``Partitioner``.
        bits: as of ``Partitioner``.
        time: as of ``Partitioner``.
        min_values: as of ``Partitioner``.
        offload: as of ``Partitioner``.
        codec: what compresses: the ``backend`` of ``Partitioner``.
        backend: of the compiler: "inductor", or "aot_eager", which runs the graphs as they are.
        options: of Inductor.
        **settings: of ``torch.compile``: ``fullgraph``, ``dynamic``, ``mode``.

    Returns:
        What ``torch.compile`` gives, with ``report()``: that of ``Partitioner.report``.

    Raises:
        ValueError: an argument is none of these, or the model has a ``report`` of its own.

    Examples:
        >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64))
        >>> compiled = compile(model, bits=4, backend="aot_eager")
        >>> compiled(torch.randn(64, 64)).square().mean().backward()
        >>> compiled.report().ratio > 4
        True
    """
    if not isinstance(model, torch.nn.Module):
        raise ValueError(f"model must be a torch.nn.Module, not {reprlib.repr(model)}")
    if codec not in _CODECS:
        raise ValueError(f"codec must be one of {', '.join(_CODECS)}, not {codec!r}")
    if backend not in _BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(_BACKENDS)}, not {backend!r}")
    if options is not None and (not isinstance(options, dict) or _OURS in options):
        raise ValueError(f"options must be a dictionary without {_OURS!r}, not {reprlib.repr(options)}")
    if hasattr(model, "report"):
        raise ValueError("model must have no attribute of the name report: use a Partitioner instead")
    partitioner = Partitioner(policy, codec, bits=bits, time=time, min_values=min_values, offload=offload)
    if backend == "aot_eager":
        for name, value in (("options", options), ("mode", settings.get("mode"))):
            if value:
                raise ValueError(
                    f"{name} must be None with backend 'aot_eager', which has none, not {value!r}"
                )
        compiled = torch.compile(model, backend=partitioner.aot_eager(), **settings)
    else:
        compiled = torch.compile(
            model, options=_options(options, settings) | {_OURS: partitioner}, **settings
        )
    object.__setattr__(compiled, "report", partitioner.report)
    return compiled


def _options(options: dict[str, Any] | None, settings: dict[str, Any]) -> dict[str, Any]:
    """Options of Inductor with those of a mode, which torch.compile does not take together."""
    mode = settings.pop("mode", None)
    if mode is None:
        return dict(options or {})
    return torch._inductor.list_mode_options(mode) | (options or {})
