"""The engines as Amaranth components, each format's, and the ports that they are reached by."""

from .hadamard import HadamardCompressor, HadamardDecompressor
from .planes import Compressor, Decompressor
from .ports import AxiStreamCompressor, AxiStreamDecompressor, RuntimeCompressor, RuntimeDecompressor
from .stream import Engine

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
