"""Random bursts that AXI4 allows, for the tests of the memory."""

import numpy as np
from hypothesis import strategies as st

from golden import HadamardFormat, PlaneFormat
from golden.bursts import PAGE, Burst, BurstKind
from golden.memory import Region

BUS_BYTES = 16
REGIONS = [
    Region(0x0000, PAGE, 0x4000, PlaneFormat("bf16", 32, 24)),
    Region(0x2000, PAGE, 0x8000, HadamardFormat("fp32", 64, 16)),
    Region(0x3000, PAGE, 0x9000, PlaneFormat("fp16", 16, 11), merge=True),
    Region(0x5000, PAGE, 0x0000, None),
]
# In a few places of each region, so that bursts meet; and where no region is.
STARTS = [region.base + offset for region in REGIONS for offset in (0, 0x100, 0xF00)] + [0x1000]


@st.composite
def bursts(draw):
    kind = draw(st.sampled_from(BurstKind))
    size = 1 << draw(st.integers(0, 4))
    address = draw(st.sampled_from(STARTS)) + draw(
        st.one_of(st.sampled_from([0, 64, 128]), st.integers(0, 255))
    )
    if kind == BurstKind.WRAP:
        return Burst(address - address % size, draw(st.sampled_from([2, 4, 8, 16])), size, kind)
    most = 16 if kind == BurstKind.FIXED else (PAGE - address % PAGE + address % size) // size
    return Burst(address, draw(st.integers(1, min(most, 32))), size, kind)


@st.composite
def contents(draw, burst):
    """Bytes and strobes of a burst: all of its lanes, or some."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    lanes = burst.lanes(BUS_BYTES)
    words = rng.integers(0, 256, lanes.shape, np.uint8)
    return words, lanes & (rng.random(lanes.shape) < draw(st.sampled_from([1, 1, 0.5])))
