"""The compressors and the decompressors in hardware, bit for bit what golden/ says."""

from .axi import AxiStreamCompressor, AxiStreamDecompressor
from .compressor import Compressor
from .decompressor import Decompressor
from .engine import Engine
from .hadamard import HadamardCompressor, HadamardDecompressor
from .runtime import RuntimeCompressor, RuntimeDecompressor

__all__ = [
    "AxiStreamCompressor",
    "AxiStreamDecompressor",
    "Compressor",
    "Decompressor",
    "Engine",
    "HadamardCompressor",
    "HadamardDecompressor",
    "RuntimeCompressor",
    "RuntimeDecompressor",
]
