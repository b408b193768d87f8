"""Streams: the words that travel on the ports, and the parts that only move them.

Every stream is an ``amaranth.lib.stream``: the source raises ``valid`` without waiting for ``ready``,
and holds ``valid`` and the payload until a cycle with both.
"""

from .delay import DelayLine
from .engine import BUS_BYTES, Engine
from .fifo import AsyncFifo
from .gearbox import BlockJoiner, BlockSplitter, Packer, Unpacker
from .lanes import Narrower, Widener
from .memory import DELAY_MEMORY, DelayMemories, DelayMemory, MemoryLine
from .slice import FullSlice, HalfSlice
from .switch import Switch
from .word import NUMBER_BITS, Joiner, Splitter, word_layout

__all__ = [
    "BUS_BYTES",
    "DELAY_MEMORY",
    "NUMBER_BITS",
    "AsyncFifo",
    "BlockJoiner",
    "BlockSplitter",
    "DelayLine",
    "DelayMemories",
    "DelayMemory",
    "Engine",
    "FullSlice",
    "HalfSlice",
    "Joiner",
    "MemoryLine",
    "Narrower",
    "Packer",
    "Splitter",
    "Switch",
    "Unpacker",
    "Widener",
    "word_layout",
]
