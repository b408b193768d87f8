"""The codecs that the bridge can run: every backend makes the same bytes for the same values.

A backend takes values as a flat tensor and gives the stored bytes, and back. ``golden`` is the NumPy
model itself, ``cpu`` the same as machine code, ``torch`` in vectorised torch operations on any device,
``verilated`` the generated Verilog, simulated, ``triton`` kernels for CUDA tensors. ``auto`` is the fastest
that needs nothing built: ``torch``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from golden import PlaneFormat

from .cpu import CpuBackend
from .golden import GoldenBackend
from .torch_ops import TorchBackend
from .verilated import VerilatedBackend


class Backend(Protocol):
    """One codec for one fixed-mode format."""

    def __init__(self, fmt: PlaneFormat) -> None: ...

    def compress(self, values: torch.Tensor) -> torch.Tensor:
        """Compress a flat, contiguous tensor of the format's dtype to uint8[blocks, target].

        The result is on the device of the values; the tail block is padded with zeros.
        """
        ...

    def decompress(self, stored: torch.Tensor, count: int) -> torch.Tensor:
        """Decompress uint8[blocks, target] to a flat tensor of ``count`` values, on the same device.

        Raises:
            ValueError: ``stored`` has the wrong shape for the count, or a block has a header that
                no encoder produces; the message names the block.
        """
        ...


def _triton(fmt: PlaneFormat) -> Backend:
    """The backend that needs Triton, which is not there on every system."""
    try:
        from .triton_kernels import TritonBackend
    except ModuleNotFoundError as error:
        raise ImportError("the triton backend needs Triton, for Linux only: pip install triton") from error
    return TritonBackend(fmt)


_BACKENDS: dict[str, Callable[[PlaneFormat], Backend]] = {
    "golden": GoldenBackend,
    "cpu": CpuBackend,
    "torch": TorchBackend,
    "verilated": VerilatedBackend,
    "triton": _triton,
}
NAMES = ("auto", *_BACKENDS)


def get(name: str, fmt: PlaneFormat) -> Backend:
    """The backend of that name for one format.

    Args:
        name: one of ``NAMES``.
        fmt: a format of the fixed mode.

    Raises:
        ValueError: there is no such backend, or the format is lossless.
        FileNotFoundError: "verilated", and its library is not built; the message says how.
        ImportError: "triton", and Triton is not installed; the message says how.

    Example:
        >>> backend = get("auto", PlaneFormat("fp32", block=64, target=80))
        >>> backend.compress(torch.ones(100)).shape
        torch.Size([2, 80])
    """
    if name not in NAMES:
        raise ValueError(f"backend must be one of {', '.join(NAMES)}, not {name!r}")
    if fmt.target is None:
        raise ValueError("the bridge stashes blocks of a fixed size: fmt must have a target, not None")
    return _BACKENDS["torch" if name == "auto" else name](fmt)
