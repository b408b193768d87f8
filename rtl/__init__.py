"""The engines as Amaranth components, each format's, and the ports that they are reached by."""

from .hadamard import HadamardCompressor, HadamardDecompressor
from .planes import Compressor, Decompressor
from .ports import (
    COMPRESSORS,
    DECOMPRESSORS,
    AxiStreamCompressor,
    AxiStreamDecompressor,
    RuntimeCompressor,
    RuntimeDecompressor,
    core_of,
)
from .stream import Engine

__all__ = [
    "COMPRESSORS",
    "DECOMPRESSORS",
    "AxiStreamCompressor",
    "AxiStreamDecompressor",
    "Compressor",
    "Decompressor",
    "Engine",
    "HadamardCompressor",
    "HadamardDecompressor",
    "RuntimeCompressor",
    "RuntimeDecompressor",
    "core_of",
]
