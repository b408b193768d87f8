"""The golden NumPy model as a backend: slow, and right by definition."""

from __future__ import annotations

import torch

from golden import Format

from .base import Backend
from .dtypes import TORCH_DTYPES
from .memory import octets


class GoldenBackend(Backend):
    """Runs the format of ``golden`` itself; tensors of other devices go through the CPU."""

    fmt: Format

    def _compress(self, values: torch.Tensor, first: int) -> torch.Tensor:
        ft = self.fmt.float_type
        array = octets(values.contiguous().cpu()).view(ft.array)
        return torch.from_numpy(self.fmt.compress(array, first)).to(values.device)

    def _decompress(self, stored: torch.Tensor, count: int, first: int) -> torch.Tensor:
        array = self.fmt.decompress(stored.cpu().numpy(), count, first)
        values = torch.from_numpy(array.view(self.fmt.float_type.bits).view("u1"))
        return values.view(TORCH_DTYPES[self.fmt.dtype]).to(stored.device)
