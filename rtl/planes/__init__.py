"""The engines of the bit-plane format."""

from .compressor import Compressor
from .decompressor import Decompressor

__all__ = ["Compressor", "Decompressor"]
