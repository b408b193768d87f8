"""The corners of docs/format.md that the ports of an engine have shown."""

from __future__ import annotations

from collections.abc import Sequence

from golden import Format, HadamardFormat

from . import hadamard_corners, plane_corners
from .coverage import Coverage, flows_of
from .ports import see
from .streams import Word


def engine_coverage(
    fmt: Format, part: str, bus_bytes: int, taken: Sequence[Word], given: Sequence[Word]
) -> Coverage:
    """How often each corner of the format was met at an engine's ports; see :func:`see`."""
    coverage = Coverage()
    seen = see(fmt, part, bus_bytes, taken, given)
    corners = hadamard_corners if isinstance(fmt, HadamardFormat) else plane_corners
    kinds = corners.of_compressor if part == "compressor" else corners.of_decompressor
    coverage.count(kinds(fmt, bus_bytes, seen), flows_of(seen.paused, seen.stalled))
    return coverage
