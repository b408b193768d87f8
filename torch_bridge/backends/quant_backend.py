"""The group quantiser of ``.quant_format`` in torch operations, on any device."""

from __future__ import annotations

import torch

from .base import Backend
from .dtypes import TORCH_DTYPES
from .quant_format import QuantFormat

# Groups at a time, so that the temporary tensors stay small.
_GROUPS = 1 << 12
_HUGE = 2.0**124


class QuantBackend(Backend):
    """Group quantisation. A group with a NaN or an infinity comes back as NaN, all of it.

    The random numbers of its rounding follow from the values: other tensors, steps and ranks have others, and
    a process that does it all again has the same.
    """

    fmt: QuantFormat

    def __init__(self, fmt: QuantFormat) -> None:
        super().__init__(fmt)
        self._largest = (1 << fmt.bits) - 1

    def _compress(self, values: torch.Tensor, first: int) -> torch.Tensor:
        groups = self.fmt.blocks(len(values))
        stored = torch.empty(groups, self.fmt.target, dtype=torch.uint8, device=values.device)
        seed = int(values.view(torch.int32 if values.element_size() == 4 else torch.int16).sum())
        random = torch.Generator(values.device).manual_seed(seed)
        size = _GROUPS * self.fmt.block
        for some, rows in zip(values.split(size), stored.split(_GROUPS), strict=False):
            some = some.float()
            if rest := -len(some) % self.fmt.block:
                some = torch.cat([some, some[-1:].expand(rest)])
            rows.copy_(self._quantised(some.view(-1, self.fmt.block), random))
        return stored

    def _decompress(self, stored: torch.Tensor, count: int, first: int) -> torch.Tensor:
        dtype = TORCH_DTYPES[self.fmt.dtype]
        values = torch.empty(len(stored), self.fmt.block, dtype=dtype, device=stored.device)
        for rows, some in zip(stored.split(_GROUPS), values.split(_GROUPS), strict=True):
            low, step = rows[:, :4].contiguous().view(torch.bfloat16).float().split(1, dim=1)
            codes = _regrouped(rows[:, 4:], 8, self.fmt.bits)
            scale = _scale(low, step * self._largest)
            found, most = low * scale + step * scale * codes, torch.finfo(dtype).max * scale
            is_finite = low.isfinite() & step.isfinite()
            some.copy_(torch.where(is_finite, found.clamp(-most, most) / scale, found))
        return values.view(-1)[:count]

    def _quantised(self, groups: torch.Tensor, random: torch.Generator) -> torch.Tensor:
        """float[groups, values] -> uint8[groups, target]."""
        low, high = groups.aminmax(dim=1, keepdim=True)
        scale = _scale(low, high)
        low = _narrow(low, upward=False)
        start = low.float() * scale
        step = _narrow((high * scale - start) / self._largest / scale, upward=True)
        noise = torch.rand(groups.shape, generator=random, device=groups.device)
        scaled = (groups * scale - start) / torch.where(step > 0, step.float() * scale, 1.0)
        codes = (scaled + noise).floor_().clamp_(0, self._largest).to(torch.uint8)
        # As bytes: autocast to fp16 takes no bf16.
        head = [low.view(torch.uint8), step.view(torch.uint8)]
        return torch.cat([*head, _regrouped(codes, self.fmt.bits, 8)], 1)


def _regrouped(numbers: torch.Tensor, had: int, get: int) -> torch.Tensor:
    """The same bits in each row, in numbers of ``get`` in place of ``had``, the lowest first; uint8 both."""
    old, new = (torch.arange(bits, dtype=torch.uint8, device=numbers.device) for bits in (had, get))
    bits = (numbers[..., None] >> old & 1).flatten(1)
    return (bits.unflatten(1, (-1, get)) << new).sum(2, dtype=torch.uint8)


def _scale(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """A power of two for each group, with which differences of its values stay finite."""
    return torch.where((low < -_HUGE) | (high > _HUGE) | (low > _HUGE) | (high < -_HUGE), 0.25, 1.0)


def _narrow(values: torch.Tensor, *, upward: bool) -> torch.Tensor:
    """As bf16, never below the values, or never above them; but finite if they are."""
    narrow = values.bfloat16()
    wrong = narrow.float() < values if upward else narrow.float() > values
    way = torch.full_like(narrow, float("inf") if upward else -float("inf"))
    most = torch.finfo(torch.bfloat16).max
    found = torch.where(wrong, narrow.nextafter(way), narrow)
    return torch.where(values.isfinite(), found.clamp(-most, most), found)
