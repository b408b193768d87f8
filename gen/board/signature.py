"""The signatures of the checker on the chip, see :mod:`rtl.selftest.signature`, in NumPy."""

from __future__ import annotations

import numpy as np

from rtl.selftest import POLYNOMIAL


def signature_of(content: bytes, bus_bytes: int) -> tuple[int, ...]:
    """That of some words: a number for each lane of four bytes."""
    words = np.frombuffer(content, "<u4").reshape(-1, bus_bytes // 4)
    registers = np.zeros(words.shape[1], np.uint32)
    for word in words:
        registers = registers >> 1 ^ (registers & 1) * np.uint32(POLYNOMIAL) ^ word
    return tuple(registers.tolist())
