"""Checksums of compressed blocks, so that a flipped bit is an error and not a wrong gradient."""

from __future__ import annotations

from functools import cache

import torch


class CorruptionError(RuntimeError):
    """Compressed bytes changed in memory."""


def checksums(stored: torch.Tensor) -> torch.Tensor:
    """One for each block: uint8[blocks, bytes] -> int32[blocks].

    The sum of the bytes times random odd numbers, modulo 2**32 (multilinear hashing: Lemire, Kaser,
    "Strongly universal string hashing is fast", 2014). Any change within one byte is found for certain; of
    any other one in some billions is missed.
    """
    weights = _weights(stored.shape[1], stored.device)
    if stored.device.type != "cpu":
        return (stored.int() * weights).sum(1, dtype=torch.int32)
    sums = torch.empty(len(stored), dtype=torch.int32, device="cpu")
    for rows, out in zip(stored.split(_ROWS), sums.split(_ROWS), strict=True):
        torch.sum(rows.int() * weights, 1, dtype=torch.int32, out=out)
    return sums


# Blocks at a time, so that the products stay in a CPU's cache.
_ROWS = 1 << 11


@cache
def _weights(count: int, device: torch.device) -> torch.Tensor:
    generator = torch.Generator("cpu").manual_seed(count)
    numbers = torch.randint(-(1 << 31), 1 << 31, (count,), generator=generator, device="cpu")
    return (numbers | 1).int().to(device)
