"""The engines of the Hadamard format."""

from .compressor import HadamardCompressor
from .decompressor import HadamardDecompressor

__all__ = ["HadamardCompressor", "HadamardDecompressor"]
