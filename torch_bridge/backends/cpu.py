"""The CPU's backend: Numba's machine code for whole blocks, on all threads; the bytes are golden's."""

from __future__ import annotations

import numpy as np
import torch

from golden import PlaneFormat, StepFormat

from ..dtypes import TORCH_DTYPES
from . import cpu_plane, cpu_step
from .base import Backend
from .memory import octets
from .threads import for_each

# Values a thread works on at a time: enough to make a call cheap, few enough to share out evenly.
_CHUNK = 1 << 16


class CpuBackend(Backend):
    """Runs on ``torch.get_num_threads()`` threads; tensors of other devices go through the CPU.

    The first call for a block's size and a value's width compiles for some seconds. Numba keeps what it
    compiled beside these files or, if that folder is read-only, in the user's cache (``NUMBA_CACHE_DIR``).
    """

    def __init__(self, fmt: PlaneFormat | StepFormat) -> None:
        assert fmt.target is not None
        self.fmt, self._target = fmt, fmt.target
        kernels = cpu_plane if isinstance(fmt, PlaneFormat) else cpu_step
        self._layout = kernels.Layout.of(fmt)
        self._compress, self._decompress = kernels.kernels(fmt.float_type.width, fmt.block)

    def compress(self, values: torch.Tensor, seed: int = 0) -> torch.Tensor:
        block, bits = self.fmt.block, self.fmt.float_type.bits
        here = values.cpu().contiguous()
        words = octets(here).view(bits)
        stored = torch.empty((self.fmt.blocks(len(words)), self._target), dtype=torch.uint8, device="cpu")
        rows, whole, step = stored.numpy(), len(words) // block, _CHUNK // block
        source = words[: whole * block].reshape(whole, block)

        def work(start: int) -> None:
            stop = min(start + step, whole)
            self._compress(source[start:stop], rows[start:stop], self._layout, start, seed)

        for_each(work, range(0, whole, step))
        if whole < len(rows):
            tail = np.zeros((1, block), bits)
            tail[0, : len(words) % block] = words[whole * block :]
            self._compress(tail, rows[whole:], self._layout, whole, seed)
        return stored.to(values.device)

    def decompress(self, stored: torch.Tensor, count: int) -> torch.Tensor:
        blocks, step = self.fmt.blocks(count), _CHUNK // self.fmt.block
        if stored.dtype != torch.uint8 or stored.shape != (blocks, self._target):
            raise ValueError(
                f"stored must be uint8 of shape {(blocks, self._target)}, "
                f"not {stored.dtype} of {tuple(stored.shape)}"
            )
        values = torch.empty(blocks * self.fmt.block, dtype=TORCH_DTYPES[self.fmt.dtype], device="cpu")
        words = (
            values.view(torch.uint8).numpy().view(self.fmt.float_type.bits).reshape(blocks, self.fmt.block)
        )
        rows = stored.cpu().contiguous().numpy()

        def work(start: int) -> None:
            stop = start + step
            invalid = self._decompress(rows[start:stop], words[start:stop], self._layout)
            if invalid >= 0:
                raise ValueError(self.fmt.complaint(start + invalid, rows[start + invalid]))

        for_each(work, range(0, blocks, step))
        return values[:count].to(stored.device)
