"""The generated Verilog as a backend: Verilator builds it into a shared library, called through C.

``python -m gen library`` builds the library; this module says where it lies and loads it.
"""

from __future__ import annotations

import ctypes
import os
import threading
from functools import cache
from pathlib import Path

import torch

from golden import PlaneFormat, StepFormat

from ..dtypes import TORCH_DTYPES
from .base import Backend

# What gen/library.cpp calls its functions as they are now.
_INTERFACE = 2


def library_path(fmt: PlaneFormat | StepFormat) -> Path:
    """Where the library of a format lies, below ``$BITSTASH_LIBRARIES`` or ``build/verilated``."""
    root = Path(os.environ.get("BITSTASH_LIBRARIES") or Path("build", "verilated"))
    kind = "step-" if isinstance(fmt, StepFormat) else ""
    return root / f"{kind}{fmt.dtype}-n{fmt.block}-t{fmt.target}-{fmt.rounding}" / "libbitstash.so"


class VerilatedBackend(Backend):
    """Drives the simulated compressor and decompressor; tensors of other devices go through the CPU.

    Raises:
        FileNotFoundError: the format's library is not built; the message names the command.
        RuntimeError: it was built by a version with another interface; likewise.
    """

    def __init__(self, fmt: PlaneFormat | StepFormat) -> None:
        path = library_path(fmt)
        scheme = "--scheme step " if isinstance(fmt, StepFormat) else ""
        build = (
            f"build it with: python -m gen library {scheme}--dtype {fmt.dtype} --block {fmt.block} "
            f"--target {fmt.target} --rounding {fmt.rounding}"
        )
        if not path.exists():
            raise FileNotFoundError(f"{path} is not built; {build}")
        self.fmt = fmt
        self._library, self._lock = _load(path.resolve())
        interface = getattr(self._library, "bitstash_interface", lambda: 1)()
        if interface != _INTERFACE:
            raise RuntimeError(f"{path} was built by another version of bitstash; {build}")

    def compress(self, values: torch.Tensor, seed: int = 0) -> torch.Tensor:
        blocks = self.fmt.blocks(values.numel())
        raw = torch.zeros(blocks * self.fmt.raw_bytes, dtype=torch.uint8, device="cpu")
        taken = values.contiguous().view(torch.uint8)
        raw[: taken.numel()] = taken
        stored = torch.empty((blocks, self._target), dtype=torch.uint8, device="cpu")
        with self._lock:
            status = self._library.bitstash_compress(raw.data_ptr(), blocks, seed, stored.data_ptr())
        if status:
            raise RuntimeError(f"the simulated compressor ended with status {status}")
        return stored.to(values.device)

    def decompress(self, stored: torch.Tensor, count: int) -> torch.Tensor:
        blocks = self.fmt.blocks(count)
        if stored.dtype != torch.uint8 or stored.shape != (blocks, self._target):
            raise ValueError(
                f"stored must be uint8 of shape {(blocks, self._target)}, "
                f"not {stored.dtype} of {tuple(stored.shape)}"
            )
        rows = stored.cpu().contiguous()
        raw = torch.empty(blocks * self.fmt.raw_bytes, dtype=torch.uint8, device="cpu")
        with self._lock:
            status = self._library.bitstash_decompress(rows.data_ptr(), blocks, raw.data_ptr())
        if status != -1:
            self.fmt.decompress(rows.numpy(), count)  # says which block it was: a word may hold several
            raise RuntimeError(f"the simulated decompressor ended with status {status}")
        return raw.view(TORCH_DTYPES[self.fmt.dtype])[:count].to(stored.device)

    @property
    def _target(self) -> int:
        assert self.fmt.target is not None
        return self.fmt.target


@cache
def _load(path: Path) -> tuple[ctypes.CDLL, threading.Lock]:
    """The library, and the lock that its one model needs."""
    library = ctypes.CDLL(str(path))
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    library.bitstash_compress.argtypes = [pointer, size, ctypes.c_uint32, pointer]
    library.bitstash_compress.restype = ctypes.c_int
    library.bitstash_decompress.argtypes = [pointer, size, pointer]
    library.bitstash_decompress.restype = ctypes.c_long
    return library, threading.Lock()
