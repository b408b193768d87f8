"""What a backend is."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from golden.blocks import as_block_number

from .dtypes import TORCH_DTYPES, AnyFormat


class Backend(ABC):
    """One codec for one fixed-mode format.

    Args:
        fmt: has a target.
    """

    def __init__(self, fmt: AnyFormat) -> None:
        assert fmt.target is not None
        self.fmt, self._target = fmt, fmt.target

    def compress(self, values: torch.Tensor, first: int = 0) -> torch.Tensor:
        """Compress a flat tensor of the format's dtype to uint8[blocks, target].

        The result is on the device of the values; the tail block is padded with zeros. Block ``b`` of it has
        the number ``(first + b) mod 2**32``, on which its bytes may depend.

        Raises:
            ValueError: ``values`` has another dtype or shape, or ``first`` is no whole number from 0 to
                2**32 - 1.
        """
        dtype = TORCH_DTYPES[self.fmt.dtype]
        if values.dtype != dtype or values.dim() != 1:
            raise ValueError(
                f"values must be {dtype} in one dimension, not {values.dtype} of {tuple(values.shape)}"
            )
        # Memory is read as it is, and of what waits for its negation it is the negative.
        return self._compress(values.resolve_neg(), as_block_number(first))

    def decompress(self, stored: torch.Tensor, count: int, first: int = 0) -> torch.Tensor:
        """Decompress uint8[blocks, target] to a flat tensor of ``count`` values, on the same device.

        ``first`` is what ``compress`` was given.

        Raises:
            ValueError: ``stored`` is no tensor of that dtype, or has the wrong shape for the count, ``first``
                is no whole number from 0 to 2**32 - 1, or a block has an invalid header; the message names
                the block. What runs on a GPU may leave the last to ``check``.
        """
        first = as_block_number(first)
        blocks = self.fmt.blocks(count)
        if not isinstance(stored, torch.Tensor):
            raise ValueError(f"stored must be a tensor, not a {type(stored).__name__}")
        if stored.dtype != torch.uint8 or stored.shape != (blocks, self._target):
            raise ValueError(
                f"stored must be uint8 of shape {(blocks, self._target)}, "
                f"not {stored.dtype} of {tuple(stored.shape)}"
            )
        return self._decompress(stored, count, first)

    # The same with arguments that were checked.

    @abstractmethod
    def _compress(self, values: torch.Tensor, first: int) -> torch.Tensor: ...

    @abstractmethod
    def _decompress(self, stored: torch.Tensor, count: int, first: int) -> torch.Tensor: ...

    def check(self) -> None:  # noqa: B027  # most have nothing left to check
        """Wait for the GPU, and raise what ``decompress`` did not wait for.

        Raises:
            ValueError: a block that was decompressed has an invalid header.
        """


def number_of(first: int, block: int) -> int:
    """The number of a block of a call."""
    return (first + block) % (1 << 32)
