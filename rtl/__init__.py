"""The compressor and the decompressor in hardware, bit for bit what golden/ says."""

from .compressor import Compressor
from .decompressor import Decompressor

__all__ = ["Compressor", "Decompressor"]
