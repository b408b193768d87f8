"""The codecs that the bridge can run: every backend makes the same bytes of the same values and numbers.

A backend takes values as a flat tensor and gives the stored bytes, and back. ``golden`` is the NumPy
model itself, ``cpu`` the same as machine code, ``triton`` kernels for CUDA, ``torch`` vectorised torch
operations on any device, ``verilated`` the generated Verilog, simulated. ``memory`` keeps what it
compresses behind a simulated memory engine, where blocks have the numbers of its regions; ``regions`` is
``golden`` with these numbers. ``auto`` takes for each tensor the fastest that needs nothing built: ``cpu``
on a CPU where Numba is installed, ``triton`` on CUDA where Triton is, ``torch`` elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import torch

from golden import Format

from .base import Backend
from .cpu_backend import CpuBackend
from .dtypes import AnyFormat
from .golden_backend import GoldenBackend
from .quant_backend import QuantBackend
from .quant_format import QuantFormat
from .simulated import memory_system, regions
from .simulated.verilated import VerilatedBackend
from .torch_backend import TorchBackend

__all__ = ["IN_PLACE", "NAMES", "AutoBackend", "Backend", "check_name", "get"]


class AutoBackend(Backend):
    """The fastest backend for each tensor, by its device."""

    fmt: Format

    def _compress(self, values: torch.Tensor, first: int) -> torch.Tensor:
        return self._for(values.device).compress(values, first)

    def _decompress(self, stored: torch.Tensor, count: int, first: int) -> torch.Tensor:
        return self._for(stored.device).decompress(stored, count, first)

    def check(self) -> None:
        if "_cuda" in self.__dict__:
            self._cuda.check()

    def _for(self, device: torch.device) -> Backend:
        if device.type == "cpu":
            return self._cpu
        return self._cuda if device.type == "cuda" else self._other

    @cached_property
    def _cpu(self) -> Backend:
        return CpuBackend(self.fmt) if find_spec("numba") else self._other

    @cached_property
    def _cuda(self) -> Backend:
        return _triton(self.fmt) if find_spec("triton") else self._other

    @cached_property
    def _other(self) -> Backend:
        return TorchBackend(self.fmt)


def _triton(fmt: Format) -> Backend:
    """The backend that needs Triton, which is not there on every system."""
    try:
        from .triton_backend import TritonBackend
    except ModuleNotFoundError as error:
        raise ImportError("the triton backend needs Triton, for Linux only: pip install triton") from error
    return TritonBackend(fmt)


_BACKENDS: dict[str, Callable[[Any], Backend]] = {
    "auto": AutoBackend,
    "golden": GoldenBackend,
    "cpu": CpuBackend,
    "torch": TorchBackend,
    "verilated": VerilatedBackend,
    "regions": regions.golden,
    "memory": memory_system.backend,
    "triton": _triton,
}
NAMES = tuple(_BACKENDS)
IN_PLACE = ("regions", "memory")  # what they give is to stay where it is


def check_name(name: str) -> None:
    """Raises ValueError if no backend has that name."""
    if name not in NAMES:
        raise ValueError(f"backend must be one of {', '.join(NAMES)}, not {name!r}")


def get(name: str, fmt: AnyFormat) -> Backend:
    """The backend of that name for one format.

    Args:
        name: one of ``NAMES``.
        fmt: a format of the fixed mode; quantisation has one backend, whatever the name.

    Raises:
        ValueError: there is no such backend, the format is lossless, or the memory's engine lacks it.
        FileNotFoundError: "verilated" or "memory", and its library is not built; the message says how.
        RuntimeError: that library is of another release; the message says how to build it anew.
        MemoryError: "memory", and there is not so much of it.
        ImportError: "triton" or "cpu", and Triton or Numba is not installed; the message says how.

    Examples:
        >>> backend = get("auto", PlaneFormat("fp32", block=64, target=80))
        >>> backend.compress(torch.ones(100)).shape
        torch.Size([2, 80])
    """
    check_name(name)
    if fmt.target is None:
        raise ValueError("the bridge keeps blocks of a fixed size: fmt must have a target, not None")
    if isinstance(fmt, QuantFormat):
        return QuantBackend(fmt)
    return _BACKENDS[name](fmt)
