"""The compressor and the decompressor in hardware, bit for bit what golden/ says."""

from .compressor import Compressor
from .decompressor import Decompressor
from .engine import Engine

__all__ = ["Compressor", "Decompressor", "Engine"]
