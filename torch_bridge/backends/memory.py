"""The memory of CPU tensors: large ones in huge pages, and all as plain bytes."""

from __future__ import annotations

import ctypes
import mmap
import sys

import numpy as np
import torch

# Bytes from which a tensor is sure to hold a whole huge page, of 2 MiB, wherever it begins.
_LEAST = 4 << 20


def empty(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """As ``torch.empty``, on the CPU.

    Linux hands out fresh memory page by page, as it is first written; that was a third of the time of a large
    model's step with compression. Where huge pages are to be had on request, this requests them.
    """
    tensor = torch.empty(shape, dtype=dtype)
    if _madvise is not None and tensor.nbytes >= _LEAST:
        start = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        # It is advice: a kernel without huge pages refuses it, and nothing is lost.
        _madvise(start, tensor.data_ptr() + tensor.nbytes - start, mmap.MADV_HUGEPAGE)
    return tensor


def octets(tensor: torch.Tensor) -> np.ndarray:
    """A contiguous CPU tensor's memory as uint8[bytes], for as long as the tensor lives.

    ``Tensor.numpy()`` would forbid everyone to resize the storage, which is how FSDP frees memory.
    """
    return np.ctypeslib.as_array((ctypes.c_uint8 * tensor.nbytes).from_address(tensor.data_ptr()))


_madvise = None
if sys.platform == "linux" and hasattr(mmap, "MADV_HUGEPAGE"):
    _madvise = ctypes.CDLL(None).madvise
    _madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
