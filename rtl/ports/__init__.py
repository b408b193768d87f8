"""What engines of any format are reached by: AXI4-Stream, and the choice of a format at run time."""

from .axi import AxiStreamCompressor, AxiStreamDecompressor
from .cores import COMPRESSORS, DECOMPRESSORS, core_of
from .runtime import RuntimeCompressor, RuntimeDecompressor

__all__ = [
    "COMPRESSORS",
    "DECOMPRESSORS",
    "AxiStreamCompressor",
    "AxiStreamDecompressor",
    "RuntimeCompressor",
    "RuntimeDecompressor",
    "core_of",
]
