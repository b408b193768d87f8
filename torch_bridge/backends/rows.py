"""Rows of a tensor in whole blocks, for formats whose blocks must not have values of two rows."""

from __future__ import annotations

import torch

from .dtypes import AnyFormat
from .quant_format import QuantFormat


def pad_rows(values: torch.Tensor, width: int, fmt: AnyFormat) -> torch.Tensor:
    """Lay out each row in whole blocks of a format.

    Zeros pad it, which add nothing to a block's energy; for a quantisation, whose range they would widen, the
    row's last value does.

    Args:
        values: flat and contiguous, the rows one behind the other.
        width: values of a row.
        fmt: that of ``for_rows(width)``, or another one with rows padded to its blocks.

    Returns:
        Flat, of ``fmt.padded_width(width)`` values a row: the values themselves, if nothing pads them.

    Raises:
        ValueError: ``width`` is no whole number from 1 up, or the values are no whole rows.

    Examples:
        >>> pad_rows(torch.ones(300), 100, HadamardFormat(block=128, target=64)).shape
        torch.Size([384])
    """
    padding = fmt.padded_width(width) - width
    rows = _rows(values, width)
    if not padding:
        return values
    last = rows[:, -1:].expand(-1, padding)
    return torch.cat([rows, last if isinstance(fmt, QuantFormat) else torch.zeros_like(last)], 1).view(-1)


def unpad_rows(values: torch.Tensor, width: int, fmt: AnyFormat) -> torch.Tensor:
    """The inverse of ``pad_rows``: the values of rows without what pads them, flat.

    Raises:
        ValueError: ``width`` is no whole number from 1 up, or the values are no whole padded rows.
    """
    padded = fmt.padded_width(width)
    rows = _rows(values, padded)
    return rows[:, :width].reshape(-1) if padded != width else values


def _rows(values: torch.Tensor, width: int) -> torch.Tensor:
    if values.dim() != 1 or len(values) % width:
        raise ValueError(f"values must be flat, in rows of {width}, not of shape {tuple(values.shape)}")
    return values.view(-1, width)
