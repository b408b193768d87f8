"""The generated Verilog as a backend: Verilator builds it into a shared library, called through C.

``python -m gen library`` builds the library; this module says where it lies and loads it.
"""

from __future__ import annotations

import ctypes
import os
import threading
from dataclasses import asdict
from functools import cache
from pathlib import Path

import torch

from golden import Format

from ..base import Backend
from ..dtypes import TORCH_DTYPES
from ..memory import octets

# What gen/library.cpp calls its functions as they are now.
_INTERFACE = 4


def library_path(fmt: Format, root: Path | None = None) -> Path:
    """Where the library of a format lies, below ``root``, ``$BITSTASH_LIBRARIES`` or ``build/verilated``."""
    root = root or Path(os.environ.get("BITSTASH_LIBRARIES") or Path("build", "verilated"))
    parameters = "-".join(map(str, asdict(fmt).values()))
    return root / f"{fmt.scheme}-{parameters}" / "libbitstash.so"


class VerilatedBackend(Backend):
    """Drives the simulated compressor and decompressor; tensors of other devices go through the CPU.

    Raises:
        FileNotFoundError: the format's library is not built; the message names the command.
        RuntimeError: it was built by a version with another interface; likewise.
    """

    fmt: Format

    def __init__(self, fmt: Format) -> None:
        super().__init__(fmt)
        path = library_path(fmt)
        parameters = " ".join(f"--{name} {value}" for name, value in asdict(fmt).items())
        build = f"build it with: python -m gen library --scheme {fmt.scheme} {parameters}"
        if not path.exists():
            raise FileNotFoundError(f"{path} is not built; {build}")
        self._library, self._lock = _load(path.resolve())
        interface = getattr(self._library, "bitstash_interface", lambda: 1)()
        if interface != _INTERFACE:
            raise RuntimeError(f"{path} was built by another version of bitstash; {build}")

    def _compress(self, values: torch.Tensor, first: int) -> torch.Tensor:
        blocks = self.fmt.blocks(values.numel())
        original = torch.zeros(blocks * self.fmt.original_bytes, dtype=torch.uint8, device="cpu")
        taken = torch.from_numpy(octets(values.contiguous().cpu()))
        original[: taken.numel()] = taken
        stored = torch.empty((blocks, self._target), dtype=torch.uint8, device="cpu")
        with self._lock:
            status = self._library.bitstash_compress(original.data_ptr(), blocks, first, stored.data_ptr())
        if status:
            raise RuntimeError(f"the simulated compressor ended with status {status}")
        return stored.to(values.device)

    def _decompress(self, stored: torch.Tensor, count: int, first: int) -> torch.Tensor:
        blocks = len(stored)
        rows = stored.cpu().contiguous()
        original = torch.empty(blocks * self.fmt.original_bytes, dtype=torch.uint8, device="cpu")
        with self._lock:
            status = self._library.bitstash_decompress(rows.data_ptr(), blocks, first, original.data_ptr())
        if status != -1:
            # This says which block it was: a word may hold several.
            self.fmt.decompress(rows.numpy(), count, first)
            raise RuntimeError(f"the simulated decompressor ended with status {status}")
        return original.view(TORCH_DTYPES[self.fmt.dtype])[:count].to(stored.device)


@cache
def _load(path: Path) -> tuple[ctypes.CDLL, threading.Lock]:
    """The library, and the lock that its one model needs."""
    library = ctypes.CDLL(str(path))
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32  # the last modulo 2^32
    library.bitstash_compress.argtypes = [pointer, size, number, pointer]
    library.bitstash_compress.restype = ctypes.c_int
    library.bitstash_decompress.argtypes = [pointer, size, number, pointer]
    library.bitstash_decompress.restype = ctypes.c_long
    return library, threading.Lock()
