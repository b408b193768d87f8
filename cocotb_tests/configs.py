"""The engines and the parts of rtl/stream that the benches run on."""

from dataclasses import dataclass

from amaranth.lib import wiring

import rtl.stream
from gen.config import PRESETS, Config
from golden import HadamardFormat, PlaneFormat

# Each line is here for a corner: the smallest target, where NaNs need specials blocks; a full-sized one;
# blocks that fall unevenly on the bus; blocks smaller than a bus word, also behind AXI4-Stream; every
# dtype, block, bus and rounding. Of the Hadamard format coefficients without a bit, and of 1 to 4 bits.
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
    Config(HadamardFormat("fp32", 64, 9), bus_bytes=32),
    Config(HadamardFormat("fp16", 64, 27), bus_bytes=16),
    Config(HadamardFormat("fp16", 64, 8), bus_bytes=128),
    Config(HadamardFormat("bf16", 256, 128), bus_bytes=16),
    Config(HadamardFormat("fp32", 64, 17), bus_bytes=64),
    Config(HadamardFormat("fp16", 64, 13), bus_bytes=16, interface="axi"),
]

# With their delay lines in memories: the shortest line, and long ones.
IN_MEMORIES = [
    Config(PlaneFormat("fp16", 16, 9), bus_bytes=16, memories=True),
    Config(PlaneFormat("bf16", 128, 70, "truncate"), bus_bytes=16, memories=True),
    Config(HadamardFormat("fp32", 64, 17), bus_bytes=64, memories=True),
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

# The same of the Hadamard format: every rate and type.
SWITCHED_HADAMARD = Config(
    HadamardFormat("fp32", 64, 16),
    bus_bytes=16,
    interface="runtime",
    further=(HadamardFormat("bf16", 64, 32), HadamardFormat("fp16", 64, 8)),
)

ALL = [*PRESETS.values(), *SPREAD, SWITCHED, SWITCHED_HADAMARD]

# Small engines that have between them all there is: blocks smaller than the bus, blocks of many words, a
# partial slot, specials blocks, flushing to every width, a target that falls unevenly on the bus.
SMALL = [
    Config(PlaneFormat("bf16", 16, 8), bus_bytes=32),
    Config(PlaneFormat("fp16", 32, 37), bus_bytes=16),
    Config(HadamardFormat("fp16", 64, 13), bus_bytes=16),
]

# Behind AXI4-Stream, blocks smaller than the bus and with numbers.
SMALL_AXI = [config for config in SPREAD if config.interface == "axi"]

# Two types to choose from, in blocks smaller than the bus, and rates and types of the Hadamard format.
SMALL_SWITCHED = Config(
    PlaneFormat("bf16", 16, 20),
    bus_bytes=64,
    interface="runtime",
    further=(PlaneFormat("fp32", 16, 40, "truncate"),),
)

# What mutants are made of: small engines with each kind of ports, and a whole one of each format.
MUTATED = [
    *SMALL,
    *SMALL_AXI,
    SMALL_SWITCHED,
    SWITCHED_HADAMARD,
    PRESETS["gpt2-fp32-3.2x"],
    PRESETS["gpt2-fp32-16x"],
]

# Whose lines and toggles are counted: the presets with streams, and what the other interfaces add.
STREAM_PRESETS = [config for config in PRESETS.values() if config.interface == "stream"]
COVERED = [*STREAM_PRESETS, SMALL[-1], *SMALL_AXI, SMALL_SWITCHED, SWITCHED_HADAMARD]

# As gates; those of the AXI4-Stream presets differ from the others' in nothing but their ports.
GATES = [*STREAM_PRESETS, *SMALL]


@dataclass(frozen=True)
class StreamPart:
    """What only moves words, by itself.

    Args:
        kind: name of its class in rtl/stream.
        size: bytes of a word.
        depth: of a FIFO.
    """

    kind: str
    size: int
    depth: int | None = None

    @property
    def slug(self) -> str:
        """The parameters as part of a Verilog or file name."""
        return f"{self.kind}_b{self.size}" + (f"_d{self.depth}" if self.depth else "")

    def make(self) -> wiring.Component:
        depth = (self.depth,) if self.depth else ()
        return getattr(rtl.stream, self.kind)(rtl.stream.word_layout(self.size), *depth)


STREAM_PARTS = [
    StreamPart("FullSlice", 16),
    StreamPart("HalfSlice", 16),
    StreamPart("AsyncFifo", 16, depth=4),
    StreamPart("AsyncFifo", 16, depth=8),
]
