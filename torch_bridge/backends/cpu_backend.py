"""The CPU's backend: Numba's machine code for whole blocks, on all threads; the bytes are golden's."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import torch

from golden import Format, HadamardFormat, PlaneFormat

from .base import Backend, number_of
from .dtypes import TORCH_DTYPES
from .memory import octets
from .threads import for_each

# Values a thread works on at a time: enough to make a call cheap, few enough to share out evenly.
_CHUNK = 1 << 16

# The module of each format's kernels, and of the ``Layout`` that these have to know of it. A kernel is also
# given the number of its first block.
_KERNELS: dict[type[Format], str] = {PlaneFormat: ".cpu_plane", HadamardFormat: ".cpu_hadamard"}


class CpuBackend(Backend):
    """Runs on ``torch.get_num_threads()`` threads; tensors of other devices go through the CPU.

    The first call for a block's size and a value's width compiles for some seconds. Numba keeps what it
    compiled beside these files or, if that folder is read-only, in the user's cache (``NUMBA_CACHE_DIR``).

    Raises:
        ImportError: Numba is not installed; the message says how.
    """

    fmt: Format

    def __init__(self, fmt: Format) -> None:
        super().__init__(fmt)
        try:
            kernels = import_module(_KERNELS[type(fmt)], __package__)
        except ModuleNotFoundError as error:
            raise ImportError("the cpu backend needs Numba: pip install 'bitstash[cpu]'") from error
        self._layout = kernels.Layout.of(fmt)
        self._encode, self._decode = kernels.kernels(fmt.float_type.width, fmt.block)

    def _compress(self, values: torch.Tensor, first: int) -> torch.Tensor:
        block, bits = self.fmt.block, self.fmt.float_type.bits
        here = values.cpu().contiguous()
        words = octets(here).view(bits)
        stored = torch.empty((self.fmt.blocks(len(words)), self._target), dtype=torch.uint8, device="cpu")
        rows, whole, step = stored.numpy(), len(words) // block, _CHUNK // block
        source = words[: whole * block].reshape(whole, block)

        def work(start: int) -> None:
            stop = min(start + step, whole)
            self._encode(source[start:stop], rows[start:stop], self._layout, number_of(first, start))

        for_each(work, range(0, whole, step))
        if whole < len(rows):
            tail = np.zeros((1, block), bits)
            tail[0, : len(words) % block] = words[whole * block :]
            self._encode(tail, rows[whole:], self._layout, number_of(first, whole))
        return stored.to(values.device)

    def _decompress(self, stored: torch.Tensor, count: int, first: int) -> torch.Tensor:
        blocks, step = len(stored), _CHUNK // self.fmt.block
        values = torch.empty(blocks * self.fmt.block, dtype=TORCH_DTYPES[self.fmt.dtype], device="cpu")
        words = (
            values.view(torch.uint8).numpy().view(self.fmt.float_type.bits).reshape(blocks, self.fmt.block)
        )
        rows = stored.cpu().contiguous().numpy()

        def work(start: int) -> None:
            stop = start + step
            number = number_of(first, start)
            invalid = self._decode(rows[start:stop], words[start:stop], self._layout, number)
            if invalid >= 0:
                raise ValueError(self.fmt.complaint(start + invalid, rows[start + invalid]))

        for_each(work, range(0, blocks, step))
        return values[:count].to(stored.device)
