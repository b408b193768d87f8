"""The network that moves planes to their places, shared by the compressor and the decompressor.

A block's flagged planes are stored in order, so plane ``j`` lies in the slot whose number is the count
of flags before its own: its *rank*. Ranks are found once a block; moving a plane is then an AND with a
one-hot select and an OR, on the bits that one word contributes to the plane.
"""

from functools import reduce
from operator import or_

from amaranth import C, Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from golden import PlaneFormat

__all__ = [
    "PlaneRanks",
    "Selects",
    "any_set",
    "lanes_to_planes",
    "planes_to_lanes",
    "reverse_bits",
    "select_planes",
]


def any_set(values) -> Value:
    """The bitwise OR of some values of equal width, as a balanced tree."""
    values = list(values)
    while len(values) > 1:
        values = [reduce(or_, values[i : i + 2]) for i in range(0, len(values), 2)]
    return values[0]


def reverse_bits(number: int, width: int) -> int:
    """The flags of golden/, whose top bit is plane 0, as those of the header, whose bit 0 is."""
    return int(f"{number:0{width}b}"[::-1], 2)


def lanes_to_planes(lanes: list[Value]) -> list[Value]:
    """One word's values -> its bits of every plane, plane 0 (the values' top bits) first."""
    return [Cat(lane[bit] for lane in lanes) for bit in reversed(range(len(lanes[0])))]


def planes_to_lanes(planes: list[Value]) -> list[Value]:
    """The inverse of :func:`lanes_to_planes`."""
    return [Cat(plane[i] for plane in reversed(planes)) for i in range(len(planes[0]))]


class PlaneRanks(wiring.Component):
    """The rank of every plane: how many flags lie before its own. Combinational.

    A parallel prefix count (after Sklansky): about ``log2(planes)`` small adders deep.

    Members:
        flags: bit ``j`` is the flag of plane ``j``.
        ranks: rank ``j`` for plane ``j``.
    """

    def __init__(self, planes: int):
        rank = range(planes)
        members = {"flags": In(planes)} | {f"rank{j}": Out(rank) for j in range(planes)}
        self.planes = planes
        super().__init__(members)

    @property
    def ranks(self) -> list[Value]:
        return [getattr(self, f"rank{j}") for j in range(self.planes)]

    def elaborate(self, platform):
        m = Module()
        counts = list(self.flags)  # counts[j] ends as the number of flags in planes 0 to j
        span = 1
        while span < self.planes:
            wider = list(counts)
            for j in range(self.planes):
                if j & span:
                    wider[j] = Signal(range(min(2 * span, self.planes) + 1), name=f"count{j}_of_{2 * span}")
                    m.d.comb += wider[j].eq(counts[j] + counts[(j & ~(span - 1)) - 1])
            counts = wider
            span *= 2
        for rank, count in zip(self.ranks, [C(0), *counts[:-1]], strict=True):
            m.d.comb += rank.eq(count)
        return m


class Selects:
    """One-hot selects made from flags and ranks: which plane lies in which slot.

    Args:
        fmt: the format; sign and exponent planes never lie beyond its whole slots.
        flags, ranks: of a block.
    """

    def __init__(self, fmt: PlaneFormat, flags: Value, ranks: list[Value]):
        self._fmt = fmt
        self._flags = flags
        self._ranks = ranks

    def __getitem__(self, place: tuple[int, int]) -> Value:
        """Whether ``slot, plane`` belong together."""
        slot, plane = place
        return self._flags[plane] & (self._ranks[plane] == slot)

    def planes_of(self, slot: int) -> range:
        """The planes that can lie in a slot: none has more planes before it than its own number."""
        first_mantissa = 1 + self._fmt.float_type.exponent_bits
        start = slot if slot < self._fmt.slots else max(slot, first_mantissa)
        return range(start, self._fmt.planes)

    def slots_of(self, plane: int, slots: int) -> list[int]:
        """Those of the first ``slots`` slots that a plane can lie in."""
        return [slot for slot in range(slots) if plane in self.planes_of(slot)]


def select_planes(selects: list[Value], planes: list[Value]) -> Value:
    """The plane whose select is set, or 0."""
    return any_set(Mux(select, plane, 0) for select, plane in zip(selects, planes, strict=True))
