"""The compressors and the decompressors in hardware, bit for bit what golden/ says."""

from .axi import AxiStreamCompressor, AxiStreamDecompressor
from .compressor import Compressor
from .decompressor import Decompressor
from .engine import Engine
from .runtime import RuntimeCompressor, RuntimeDecompressor
from .step_compressor import StepCompressor
from .step_decompressor import StepDecompressor

__all__ = [
    "AxiStreamCompressor",
    "AxiStreamDecompressor",
    "Compressor",
    "Decompressor",
    "Engine",
    "RuntimeCompressor",
    "RuntimeDecompressor",
    "StepCompressor",
    "StepDecompressor",
]
