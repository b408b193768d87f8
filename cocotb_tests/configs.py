"""The engines that the benches run on."""

from gen.config import PLANE_PRESETS, PRESETS, Config
from golden import PlaneFormat, StepFormat

# Each line is here for a corner: the smallest target, where NaNs need specials blocks; a raw-sized one;
# blocks that fall unevenly on the bus; blocks smaller than a bus word, also behind AXI4-Stream; every
# dtype, block, bus and rounding.
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
    Config(PlaneFormat("fp16", 16, 7), bus_bytes=64, interface="axi"),
]

# The same for the step format: a bit for each value and no more, raw-sized blocks, which have cores of all
# widths, and both roundings of blocks with room for a mask of specials and without.
STEP_SPREAD = [
    Config(StepFormat("fp32", 64, 32, "stochastic"), bus_bytes=64),
    Config(StepFormat("fp32", 128, 51), bus_bytes=16),
    Config(StepFormat("fp32", 16, 5), bus_bytes=64),
    Config(StepFormat("bf16", 64, 20, "stochastic"), bus_bytes=128),
    Config(StepFormat("bf16", 16, 11), bus_bytes=32),
    Config(StepFormat("fp16", 32, 64), bus_bytes=16),
    Config(StepFormat("fp16", 64, 43, "stochastic"), bus_bytes=32),
]

# Formats of every type, blocks smaller than the bus among them, between which one engine is switched.
SWITCHED = Config(
    PlaneFormat("fp32", 16, 9),
    bus_bytes=32,
    interface="runtime",
    further=(
        PlaneFormat("bf16", 16, 20),
        PlaneFormat("fp16", 16, 7, "truncate"),
        PlaneFormat("fp32", 16, 64),
    ),
)

ALL = [*PRESETS.values(), *SPREAD, *STEP_SPREAD, SWITCHED]

# Small engines that have between them all there is: blocks smaller than the bus, blocks of many words, a
# partial slot, specials blocks, flushing to every width, a target that falls unevenly on the bus.
SMALL = [
    Config(PlaneFormat("bf16", 16, 8), bus_bytes=32),
    Config(PlaneFormat("fp16", 32, 37), bus_bytes=16),
]

# The same of the step format, but for blocks without room for a mask of specials, which are among those
# above: a bit or so for each value leaves much of an engine unused, and faults there without effect.
STEP_SMALL = [
    Config(StepFormat("fp16", 32, 21, "stochastic"), bus_bytes=16),
    Config(StepFormat("fp32", 16, 12), bus_bytes=64),
]

# Those of the plane format's presets whose lines and toggles are counted.
COVERED = [config for config in PLANE_PRESETS.values() if config.interface == "stream"]

# As gates; those of the AXI4-Stream presets differ from the others' in nothing but their ports.
GATES = [*COVERED, *SMALL, *STEP_SMALL]
