"""The golden NumPy model as a backend: slow, and right by definition."""

from __future__ import annotations

import torch

from golden import Format, StepFormat

from ..dtypes import TORCH_DTYPES
from .base import Backend


class GoldenBackend(Backend):
    """Runs the format of ``golden`` itself; tensors of other devices go through the CPU."""

    def __init__(self, fmt: Format) -> None:
        self.fmt = fmt

    def compress(self, values: torch.Tensor, seed: int = 0) -> torch.Tensor:
        ft = self.fmt.float_type
        array = values.contiguous().view(torch.uint8).cpu().numpy().view(ft.array)
        seeds = (seed,) if isinstance(self.fmt, StepFormat) else ()
        stored = self.fmt.compress(array, *seeds)
        return torch.from_numpy(stored).to(values.device)

    def decompress(self, stored: torch.Tensor, count: int) -> torch.Tensor:
        array = self.fmt.decompress(stored.cpu().numpy(), count)
        values = torch.from_numpy(array.view(self.fmt.float_type.bits).view("u1"))
        return values.view(TORCH_DTYPES[self.fmt.dtype]).to(stored.device)
