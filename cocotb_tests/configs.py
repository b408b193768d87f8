"""The engines that ``make sim`` runs: the presets, and a spread over the format's other parameters."""

from gen.config import PRESETS, Config
from golden import PlaneFormat

# Each line is here for a corner: the smallest target, where NaNs need specials blocks; a raw-sized one;
# blocks that fall unevenly on the bus; blocks smaller than a bus word; every dtype, block, bus and rounding.
SPREAD = [
    Config(PlaneFormat("fp32", 64, 40), bus_bytes=64),
    Config(PlaneFormat("fp32", 64, 77, "truncate"), bus_bytes=32),
    Config(PlaneFormat("fp32", 128, 512), bus_bytes=128),
    Config(PlaneFormat("fp32", 16, 9), bus_bytes=128),
    Config(PlaneFormat("bf16", 128, 70, "truncate"), bus_bytes=16),
    Config(PlaneFormat("bf16", 32, 11), bus_bytes=32),
    Config(PlaneFormat("fp16", 128, 101), bus_bytes=16),
    Config(PlaneFormat("fp16", 16, 7), bus_bytes=64),
    Config(PlaneFormat("fp16", 32, 64), bus_bytes=16),
]

ALL = [*PRESETS.values(), *SPREAD]
