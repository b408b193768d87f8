"""The backend in vectorised torch operations, on any device."""

from __future__ import annotations

from collections.abc import Callable

import torch

from golden import Format, HadamardFormat, PlaneFormat

from .base import Backend, number_of
from .dtypes import TORCH_DTYPES
from .threads import for_each
from .torch_hadamard import HadamardCodec
from .torch_plane import PlaneCodec

_CODECS = {PlaneFormat: PlaneCodec, HadamardFormat: HadamardCodec}

# Values worked on at a time: on the CPU the temporaries stay in the cache, on a GPU they stay small
# beside the activations while a chunk still fills the device.
_CPU_CHUNK, _DEVICE_CHUNK = 1 << 17, 1 << 24


class TorchBackend(Backend):
    """Compresses and decompresses on the device where the values are.

    On CUDA nothing is copied to the host while compressing; decompressing waits, to raise on invalid blocks.
    """

    fmt: Format

    def __init__(self, fmt: Format) -> None:
        super().__init__(fmt)
        self._codecs: dict[torch.device, PlaneCodec | HadamardCodec] = {}

    def _compress(self, values: torch.Tensor, first: int) -> torch.Tensor:
        codec, step = self._codec(values.device), self._chunk_blocks(values.device)
        stored = values.new_empty((self.fmt.blocks(values.numel()), self._target), dtype=torch.uint8)

        def work(start: int) -> None:
            chunk = values[start * self.fmt.block : (start + step) * self.fmt.block]
            codec.compress(chunk, stored[start : start + step], number_of(first, start))

        self._for_each(work, range(0, len(stored), step), values.device)
        return stored

    def _decompress(self, stored: torch.Tensor, count: int, first: int) -> torch.Tensor:
        codec, step = self._codec(stored.device), self._chunk_blocks(stored.device)
        blocks = len(stored)
        values = stored.new_empty(blocks * self.fmt.block, dtype=TORCH_DTYPES[self.fmt.dtype])
        rows = values.view(codec.word_dtype).view(blocks, self.fmt.block)

        def work(start: int) -> None:
            chunk, words = stored[start : start + step], rows[start : start + step]
            invalid = codec.decompress(chunk, words, number_of(first, start))
            if invalid.any():
                block = start + int(invalid.nonzero()[0])
                raise ValueError(self.fmt.complaint(block, stored[block].cpu().numpy()))

        self._for_each(work, range(0, blocks, step), stored.device)
        return values[:count]

    def _for_each(self, work: Callable[[int], None], starts: range, device: torch.device) -> None:
        if device.type == "cpu":
            for_each(work, starts)
        else:
            for start in starts:
                work(start)

    def _chunk_blocks(self, device: torch.device) -> int:
        return (_CPU_CHUNK if device.type == "cpu" else _DEVICE_CHUNK) // self.fmt.block

    def _codec(self, device: torch.device) -> PlaneCodec | HadamardCodec:
        if device not in self._codecs:
            self._codecs[device] = _CODECS[type(self.fmt)](self.fmt, device)
        return self._codecs[device]
