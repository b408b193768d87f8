"""Streams: the words that travel on the ports, and the parts that only move them.

Every stream is an ``amaranth.lib.stream``: the source raises ``valid`` without waiting for ``ready``,
and holds ``valid`` and the payload until a cycle with both.
"""

from .fifo import AsyncFifo
from .slice import FullSlice, HalfSlice
from .word import NUMBER_BITS, Joiner, Splitter, word_layout

__all__ = ["NUMBER_BITS", "AsyncFifo", "FullSlice", "HalfSlice", "Joiner", "Splitter", "word_layout"]
