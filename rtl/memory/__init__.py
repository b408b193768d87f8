"""The memory engine: what docs/memory.md says, between an accelerator and its memory."""

from .engine import MemoryEngine
from .parameters import MemoryParameters

__all__ = ["MemoryEngine", "MemoryParameters"]
