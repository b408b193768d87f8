"""What engines of any format are reached by: AXI4-Stream, and the choice of a format at run time."""

from .axi import AxiStreamCompressor, AxiStreamDecompressor
from .runtime import RuntimeCompressor, RuntimeDecompressor

__all__ = ["AxiStreamCompressor", "AxiStreamDecompressor", "RuntimeCompressor", "RuntimeDecompressor"]
