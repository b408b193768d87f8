"""What a backend is."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from ..dtypes import Format


class Backend(ABC):
    """One codec for one fixed-mode format.

    Args:
        fmt: has a target.
    """

    @abstractmethod
    def __init__(self, fmt: Format) -> None: ...

    @abstractmethod
    def compress(self, values: torch.Tensor, seed: int = 0) -> torch.Tensor:
        """Compress a flat tensor of the format's dtype to uint8[blocks, target].

        The result is on the device of the values; the tail block is padded with zeros. The seed, of 32 bits,
        is that of stochastic rounding; other roundings need none.
        """

    @abstractmethod
    def decompress(self, stored: torch.Tensor, count: int) -> torch.Tensor:
        """Decompress uint8[blocks, target] to a flat tensor of ``count`` values, on the same device.

        Raises:
            ValueError: ``stored`` has the wrong shape for the count, or a block has an invalid header; the
                message names the block. What runs on a GPU may leave the second to :meth:`check`.
        """

    def check(self) -> None:  # noqa: B027  # most have nothing left to check
        """Wait for the GPU, and raise what :meth:`decompress` did not wait for.

        Raises:
            ValueError: a block that was decompressed has an invalid header.
        """
