"""Memory that one stream of a GPU writes and another reads: who waits, and what the allocator has to know.

The caching allocator gives memory that is freed to the stream it was allocated for, at once: to that stream
the order of work is enough. Another stream that uses it has to wait until it is written, and the allocator
has to hear of that use (``Tensor.record_stream``), or it gives the memory away too early. On a CPU none of
this costs anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

# Kinds of devices whose module in torch has streams and whose allocator works like CUDA's.
_KINDS = ("cuda", "xpu")


@dataclass(frozen=True, slots=True)
class Written:
    """When memory was written, and by which stream."""

    stream: Any
    event: Any


def current_stream(device: torch.device) -> Any:
    """This thread's current stream of a device, None of one that has none."""
    module = _module_of(device)
    return None if module is None else module.current_stream(device)


@cache
def _module_of(device: torch.device) -> Any:
    """The module of a device that has streams; to ask for its type takes longer than all else here."""
    return getattr(torch, device.type) if device.type in _KINDS else None


def written(device: torch.device) -> Written | None:
    """Marks what the current stream has written by now; None where there are no streams."""
    stream = current_stream(device)
    return None if stream is None else Written(stream, stream.record_event())


def take(when: Written | None, *tensors: torch.Tensor) -> None:
    """Before the current stream uses tensors that were written then."""
    if when is None:
        return
    stream = current_stream(tensors[0].device)
    if stream != when.stream:
        stream.wait_event(when.event)
        for tensor in tensors:
            tensor.record_stream(stream)


def hold(tensor: torch.Tensor) -> None:
    """The current stream reads a tensor that may be freed before it has: its memory is not to be reused."""
    stream = current_stream(tensor.device)
    if stream is not None:
        tensor.record_stream(stream)
