"""The engines of the Hadamard format."""

from .compressor import HadamardCompressor

__all__ = ["HadamardCompressor"]
