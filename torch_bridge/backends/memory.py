"""The memory of CPU tensors as plain bytes."""

from __future__ import annotations

import ctypes

import numpy as np
import torch


def octets(tensor: torch.Tensor) -> np.ndarray:
    """A contiguous CPU tensor's memory as uint8[bytes], which keeps the tensor.

    ``Tensor.numpy()`` would forbid everyone to resize the storage, which is how FSDP frees memory.

    Raises:
        ValueError: the tensor is on another device, whose pointers mean nothing here.
    """
    if tensor.device.type != "cpu":
        raise ValueError(f"tensor must be in the host's memory, not on {str(tensor.device)!r}")
    memory = (ctypes.c_uint8 * tensor.nbytes).from_address(tensor.data_ptr())
    memory.tensor = tensor  # type: ignore[attr-defined]  # a thread may be all that still uses it
    return np.ctypeslib.as_array(memory)
