"""Which engines there are for each kind of format."""

from collections.abc import Mapping, Sequence

from amaranth.lib import wiring

from golden import Format, HadamardFormat, PlaneFormat

from ..hadamard import HadamardCompressor, HadamardDecompressor
from ..planes import Compressor, Decompressor

__all__ = ["COMPRESSORS", "DECOMPRESSORS", "core_of"]

Cores = Mapping[type[Format], type[wiring.Component]]

COMPRESSORS: Cores = {PlaneFormat: Compressor, HadamardFormat: HadamardCompressor}
DECOMPRESSORS: Cores = {PlaneFormat: Decompressor, HadamardFormat: HadamardDecompressor}


def core_of(cores: Cores, formats: Format | Sequence[Format]) -> type[wiring.Component]:
    """The engine for one format, or for several of one kind.

    Raises:
        ValueError: there is none for such a format, or the formats are of several kinds.
    """
    first, *others = (formats,) if isinstance(formats, Format) else formats
    for kind, core in cores.items():
        if isinstance(first, kind):
            for fmt in others:
                if not isinstance(fmt, kind):
                    raise ValueError(f"formats must all be of scheme {kind.scheme}, not {fmt.scheme!r}")
            return core
    have = ", ".join(kind.scheme for kind in cores)
    raise ValueError(f"scheme must be one that has engines, {have}, not {first.scheme!r}")
