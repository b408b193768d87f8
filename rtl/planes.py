"""The network that moves planes to their places, shared by the compressor and the decompressor.

A block's flagged planes are stored in order, so plane ``j`` lies in the slot whose number is the count
of flags before its own: its *rank*. Ranks are found once a block; moving a plane is then an AND with a
one-hot select and an OR, on the bits that one word contributes to the plane.
"""

from functools import reduce
from operator import or_

from amaranth import C, Cat, Module, Mux, Signal, Value

from golden import PlaneFormat

__all__ = [
    "Selects",
    "all_after",
    "all_ones",
    "any_set",
    "count_in_groups",
    "lanes_to_planes",
    "planes_to_lanes",
    "ranks_from_groups",
    "reverse_bits",
    "select_planes",
]


def any_set(values) -> Value:
    """The bitwise OR of some values of equal width, as a balanced tree."""
    values = list(values)
    while len(values) > 1:
        values = [reduce(or_, values[i : i + 2]) for i in range(0, len(values), 2)]
    return values[0]


def all_ones(width: int) -> Value:
    return C((1 << width) - 1, width)


def all_after(values: list[Value]) -> list[Value]:
    """For each value, the bitwise AND of all that come after it: a parallel prefix (after Sklansky)."""
    if len(values) < 2:
        return [all_ones(len(value)) for value in values]
    half = len(values) // 2
    front, back = all_after(values[:half]), all_after(values[half:])
    whole_back = values[half] & back[0]
    return [*(value & whole_back for value in front), *back]


def reverse_bits(number: int, width: int) -> int:
    """The flags of golden/, whose top bit is plane 0, as those of the header, whose bit 0 is."""
    return int(f"{number:0{width}b}"[::-1], 2)


def lanes_to_planes(lanes: list[Value]) -> list[Value]:
    """One word's values -> its bits of every plane, plane 0 (the values' top bits) first."""
    return [Cat(lane[bit] for lane in lanes) for bit in reversed(range(len(lanes[0])))]


def planes_to_lanes(planes: list[Value]) -> list[Value]:
    """The inverse of :func:`lanes_to_planes`."""
    return [Cat(plane[i] for plane in reversed(planes)) for i in range(len(planes[0]))]


_GROUP = 8


def count_in_groups(flags: Value) -> Value:
    """The first half of ranking: for each flag, how many lie before it in its group of eight.

    Returns:
        Three bits for each flag, to be kept in a register until :func:`ranks_from_groups`.
    """
    counts = []
    for start in range(0, len(flags), _GROUP):
        group = flags[start : start + _GROUP]
        counts += [_sum_of_bits([*group[:i]])[:3] for i in range(len(group))]
    return Cat(counts)


def ranks_from_groups(m: Module, flags: Value, counts: Value, offset: Value) -> list[Value]:
    """The second half: for each flag, ``offset`` and how many lie before it."""
    ranks = []
    before: list[Value] = []
    for start in range(0, len(flags), _GROUP):
        base = Signal(range((1 << len(offset)) + len(flags)), name=f"rank_base{start}")
        m.d.comb += base.eq(sum(before, offset))
        stop = min(start + _GROUP, len(flags))
        ranks += [base + counts[3 * i : 3 * i + 3] for i in range(start, stop)]
        before.append(counts[3 * stop - 3 : 3 * stop] + flags[stop - 1])
    return ranks


def _sum_of_bits(bits: list[Value]) -> Value:
    """The number of ones, by a tree of adders."""
    terms: list[Value] = [*bits, C(0, 3)]
    while len(terms) > 1:
        terms = [terms[i] + terms[i + 1] if i + 1 < len(terms) else terms[i] for i in range(0, len(terms), 2)]
    return Cat(terms[0], C(0, 3))


class Selects:
    """One-hot selects made from flags and ranks: which plane lies in which slot.

    Args:
        fmt: the format; sign and exponent planes never lie beyond its whole slots.
        ranks: of a block's planes.
        flags: of a block, or nothing where the planes without a flag hold zeros anyway: such a plane has
            the rank of the next one with a flag, to which it then adds nothing.
    """

    def __init__(self, fmt: PlaneFormat, ranks: list[Value], flags: Value | None = None):
        self._fmt = fmt
        self._ranks = ranks
        self._flags = all_ones(len(ranks)) if flags is None else flags

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
