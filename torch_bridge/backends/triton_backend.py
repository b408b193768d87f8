"""The backend in Triton kernels, for CUDA."""

from __future__ import annotations

import itertools
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
import triton

from golden import Format, HadamardFormat, PlaneFormat

from . import triton_hadamard, triton_plane
from .base import Backend
from .dtypes import TORCH_DTYPES
from .triton_tiles import WARPS

_KERNELS = {PlaneFormat: triton_plane.KERNELS, HadamardFormat: triton_hadamard.KERNELS}

_NONE = torch.iinfo(torch.int64).max  # what the record of an invalid header holds while there is none


class TritonBackend(Backend):
    """Runs on CUDA tensors, or interpreted on CPU tensors if TRITON_INTERPRET=1 is set before the import.

    On CUDA nothing waits for the device. An invalid block is only recorded there: what it decodes to is
    undefined, and ``check`` raises. On the CPU, ``decompress`` checks at once.

    Raises:
        ValueError: a tensor is on a device that the kernels do not run on.
    """

    fmt: Format

    def __init__(self, fmt: Format) -> None:
        super().__init__(fmt)
        self._kernels = _KERNELS[type(fmt)]
        self._constants = self._kernels.constants(fmt)
        self._word_dtype = torch.uint32 if fmt.float_type.width == 32 else torch.uint16
        self._calls = itertools.count()
        self._records: dict[torch.device, torch.Tensor] = {}

    def _compress(self, values: torch.Tensor, first: int) -> torch.Tensor:
        self._require_device(values.device)
        count = values.numel()
        stored = values.new_empty((self.fmt.blocks(count), self._target), dtype=torch.uint8)
        if count:
            words = values.contiguous().view(self._word_dtype)
            kernels, number = self._kernels, _int32(first)
            with _current(values.device):
                kernels.compress[self._grid(count)](
                    words, stored, count, number, **self._constants, num_warps=WARPS
                )
        return stored

    def _decompress(self, stored: torch.Tensor, count: int, first: int) -> torch.Tensor:
        self._require_device(stored.device)
        values = stored.new_empty(count, dtype=TORCH_DTYPES[self.fmt.dtype])
        if count:
            rows, words = stored.contiguous(), values.view(self._word_dtype)
            record, call = self._record(stored.device), next(self._calls)
            kernels, number = self._kernels, _int32(first)
            with _current(stored.device):
                kernels.decompress[self._grid(count)](
                    rows, words, count, number, record, call, **self._constants, num_warps=WARPS
                )
        if stored.device.type == "cpu":
            self.check()
        return values

    def check(self) -> None:
        """Wait for the devices, and report an invalid block that was met since the last report.

        Raises:
            ValueError: a block that was decompressed has an invalid header; the message names the first such
                block of the first tensor that has one.
        """
        for record in self._records.values():
            entries = record.tolist()
            if entries[0] != _NONE:
                record.fill_(_NONE)
                header = np.array([entry & 0xFF for entry in entries], np.uint8)
                raise ValueError(self.fmt.complaint(entries[0] >> 8 & 0xFFFFFFFF, header))

    def _record(self, device: torch.device) -> torch.Tensor:
        """The first invalid header on a device, int64[header bytes]: call, block and byte in each entry."""
        if device not in self._records:
            self._records[device] = torch.full((self.fmt.header_bytes,), _NONE, device=device)
        return self._records[device]

    def _grid(self, count: int) -> tuple[int]:
        return (triton.cdiv(count, self._constants["BLOCKS"] * self.fmt.block),)

    def _require_device(self, device: torch.device) -> None:
        interpreted = not isinstance(self._kernels.compress, triton.JITFunction)
        if device.type != "cuda" and not (interpreted and device.type == "cpu"):
            raise ValueError(f"the triton backend needs CUDA tensors, not {device.type!r}")


def _current(device: torch.device) -> AbstractContextManager:
    """Triton launches on the current device, which need not be a tensor's."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _int32(number: int) -> int:
    """The signed number with the same 32 bits, which Triton takes as an int32 whatever it is."""
    return (number ^ 1 << 31) - (1 << 31)
