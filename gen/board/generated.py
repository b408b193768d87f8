"""The words that the generator on the chip makes, in NumPy."""

from __future__ import annotations

import numpy as np

from rtl.selftest.generator import LANE_STEP, SHIFTS


def generate(seed: int, size: int, bus_bytes: int, mask: int = 0xFFFFFFFF, ones: int = 0) -> bytes:
    """So many bytes, whole words, of :class:`rtl.selftest.Generator`."""
    lanes = np.arange(bus_bytes // 4, dtype=np.uint64) * LANE_STEP + seed
    state = lanes.astype(np.uint32)
    words = np.empty((size // bus_bytes, len(state)), np.uint32)
    for word in words:
        word[:] = state
        for shift in SHIFTS:
            state ^= state << np.uint32(shift) if shift > 0 else state >> np.uint32(-shift)
    return (words & np.uint32(mask) | np.uint32(ones)).astype("<u4").tobytes()
