"""What docs/hardware.md promises under "Throughput and latency": where the benches have it from.

Nothing of it comes from rtl/: an engine slower than its datasheet fails, whatever it says of itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from golden import Format, HadamardFormat


@dataclass(frozen=True)
class Promise:
    """How long an engine takes.

    Attributes:
        block_cycles: that a block takes inside, at least two, or four in the Hadamard format.
        latency: cycles from the last word of a block that is a tensor of its own to the first word that it
            becomes.
        word_cycles: cycles that a word of uncompressed data takes, while nothing stalls.
    """

    block_cycles: int
    latency: int
    word_cycles: int

    def cycles(self, words: int) -> int:
        """From the first to the last of so many words of uncompressed data, both included."""
        return (words - 1) * self.word_cycles + 1


def promise(part: str, fmt: Format, formats: Sequence[Format], bus_bytes: int) -> Promise:
    """What a part of an engine does in one of its formats.

    Args:
        part: "compressor" or "decompressor".
        fmt: the format of the moment.
        formats: all that the engine has; it moves as many values a cycle as its bus holds of the shortest.
        bus_bytes: bytes of a word.
    """
    shortest = min(other.float_type.width for other in formats)
    least = 4 if isinstance(fmt, HadamardFormat) else 2
    values = min(8 * bus_bytes // shortest, fmt.block // least)
    moved = values * fmt.float_type.width // 8
    block_cycles = fmt.block // values
    pieces = -(-bus_bytes // moved)  # cycles in which a word is made
    if part == "compressor":
        latency = 4 + block_cycles
        if isinstance(fmt, HadamardFormat):
            latency = 18 + 2 * block_cycles + (max(int(other.widths[0]) for other in formats) > 2)
        return Promise(block_cycles, latency + (moved > bus_bytes), pieces)
    latency = 4
    if isinstance(fmt, HadamardFormat):
        latency = 6 + (fmt.block > 64) + any(other.dtype != "fp32" for other in formats)
        latency += max(other.target for other in formats) > bus_bytes
    # A word is full after as many cycles, unless the tensor ends before.
    return Promise(block_cycles, latency + (min(pieces, block_cycles) if pieces > 1 else 0), pieces)
