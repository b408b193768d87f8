"""The parameters of an engine of the bit-plane format."""

from collections.abc import Sequence

from golden import PlaneFormat
from golden.floats import FloatType

from ..stream import Engine

__all__ = ["PlaneEngine", "rows_of"]


def rows_of(fmt: PlaneFormat) -> int:
    """Rows of bits in a block: its whole slots, and the partial one."""
    return fmt.slots + (fmt.partial > 0)


class PlaneEngine(Engine):
    """An engine of the bit-plane format.

    That values of a short type are inside ones of ``float_type`` changes neither a delta nor a stored plane.

    Args, Raises: as of :class:`Engine`; the formats are :class:`golden.PlaneFormat`.

    Attributes:
        planes: of ``float_type``.
        slots: the most that a format has.
        kept: the most rows of a block, whole slots and the partial one.
        touched: the slots that matter: those kept, and one behind them to round by.
    """

    def __init__(self, formats: PlaneFormat | Sequence[PlaneFormat], bus_bytes: int):
        super().__init__(formats, bus_bytes)
        self.planes = self.float_type.width
        self.slots = max(fmt.slots for fmt in self.formats)
        self.kept = max(rows_of(fmt) for fmt in self.formats)
        self.touched = min(self.kept + 1, self.planes)

    def places_of(self, float_type: FloatType) -> list[int]:
        """For each plane of a type, which plane of the engine's type it is."""
        first_mantissa = 1 + self.float_type.exponent_bits
        exponent = range(first_mantissa - float_type.exponent_bits, first_mantissa)
        return [0, *exponent, *range(first_mantissa, first_mantissa + float_type.mantissa_bits)]
