"""Measures the memory of a training step: on a CPU from PyTorch's allocator, on CUDA from its statistics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile


def name_of(device: torch.device) -> str:
    """What tables call a device whose memory can be measured: "cpu", or the GPU's model.

    Raises:
        ValueError: it is another accelerator.
    """
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be cpu or cuda, whose memory can be measured, not {str(device)!r}")
    return "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device)


@dataclass(frozen=True)
class Peak:
    """Bytes that a step had allocated, over those before it.

    Attributes:
        kept: between the passes.
        peak: at most.
        between: what the step yielded.
    """

    kept: int
    peak: int
    between: Any


def measure(step: Callable[[], Iterator[Any]], device: torch.device) -> Peak:
    """Run a step and measure it.

    On a CPU the profiler records every allocation of this thread and of autograd's, which makes the step
    slower: do not time it. What other threads free is missed.

    Args:
        step: a generator that yields once, between the forward and the backward pass.
        device: "cpu" or "cuda".

    Raises:
        ValueError: the device is neither.
    """
    name_of(device)
    return (_on_cuda if device.type == "cuda" else _on_cpu)(step)


def _on_cuda(step: Callable[[], Iterator[Any]]) -> Peak:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before, kept, between = torch.cuda.memory_allocated(), 0, None
    for between in step():  # noqa: B007
        torch.cuda.synchronize()
        kept = torch.cuda.memory_allocated() - before
    torch.cuda.synchronize()
    return Peak(kept, torch.cuda.max_memory_allocated() - before, between)


def _on_cpu(step: Callable[[], Iterator[Any]]) -> Peak:
    line = timeline(step)
    return Peak(line.kept, max(line.live), line.between)


@dataclass(frozen=True)
class Timeline:
    """Bytes that a step on a CPU had allocated, over those before it, in the order of time.

    Attributes:
        when: nanoseconds of each change since the first, which is the beginning.
        live: bytes from then on.
        middle: when the backward pass began.
        kept: bytes then.
        between: what the step yielded.
    """

    when: list[int]
    live: list[int]
    middle: int
    kept: int
    between: Any


def timeline(step: Callable[[], Iterator[Any]]) -> Timeline:
    """Run a step on a CPU and record its memory; the step is as of ``measure``."""
    middle, between = 0, None
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        for between in step():  # noqa: B007
            middle = time.time_ns()
    events = _flat(record.profiler.kineto_results.experimental_event_tree())
    changes = [
        (event.start_time_ns, event.typed[1].alloc_size)
        for event in events
        if event.typed[0] == _EventType.Allocation
    ]
    changes.sort(key=lambda change: change[0])
    kept = sum(size for when, size in changes if when < middle)
    start = min([middle, *(when for when, _ in changes[:1])])
    live = list(accumulate((size for _, size in changes), initial=0))
    return Timeline([0, *(when - start for when, _ in changes)], live, middle - start, kept, between)


def _flat(events: list[Any]) -> Iterator[Any]:
    for event in events:
        yield event
        yield from _flat(event.children)
