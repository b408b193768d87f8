"""Copies between a device and the host's memory.

On CUDA they run on streams of their own, from and to pinned memory, beside what computes. Other
accelerators wait for theirs. Host memory is that of devices of type "cpu", and no other pointer may reach
code that runs on the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


class Event(Protocol):
    """What a stream reaches once; ``torch.cuda.Event`` is one."""

    def query(self) -> bool:
        """Whether it has."""

    def synchronize(self) -> None:
        """Wait until it has."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A tensor that is being copied to its device, and when it is there: None if it is."""

    tensor: torch.Tensor
    ready: torch.cuda.Event | None

    def use(self) -> torch.Tensor:
        """The tensor, for what the current stream does from now on."""
        if self.ready is not None:
            current = torch.cuda.current_stream(self.tensor.device)
            current.wait_event(self.ready)
            self.tensor.record_stream(current)
        return self.tensor


def in_host_memory(device: torch.device) -> bool:
    return device.type == "cpu"


def host_memory(nbytes: int, device: torch.device) -> torch.Tensor:
    """uint8[nbytes] for copies from or to a device; pinned if that is CUDA's."""
    return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=device.type == "cuda")


def to_host(tensor: torch.Tensor) -> tuple[torch.Tensor, Event | None]:
    """Begin to copy a contiguous tensor of a device: its bytes, and when they are there; None if they are."""
    octets = tensor.reshape(-1).view(torch.uint8)
    if tensor.device.type != "cuda":
        return octets.cpu(), None
    memory = host_memory(tensor.nbytes, tensor.device)
    side = _side_stream(tensor.device, "store")
    side.wait_stream(torch.cuda.current_stream(tensor.device))
    with torch.cuda.stream(side):
        memory.copy_(octets, non_blocking=True)
        return memory, side.record_event()


def to_device(memory: torch.Tensor, device: torch.device) -> Arrival:
    """Begin to copy bytes to a device."""
    if device.type != "cuda":
        return Arrival(memory.to(device), None)
    side = _side_stream(device, "load")
    with torch.cuda.stream(side):
        return Arrival(memory.to(device, non_blocking=True), side.record_event())


def work_until_now(device: torch.device) -> Event | None:
    """When a device has done what it was given; None if it works in step with the thread that asks."""
    return torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None


_streams: dict[tuple[torch.device, str], torch.cuda.Stream] = {}


def _side_stream(device: torch.device, name: str) -> torch.cuda.Stream:
    """A stream beside the one that computes."""
    if (device, name) not in _streams:
        _streams[device, name] = torch.cuda.Stream(device)
    return _streams[device, name]
