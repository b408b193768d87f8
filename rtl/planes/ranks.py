"""Moving planes to their places and back.

A block's flagged planes are stored in order, so plane ``j`` lies in the slot whose number is the count of
flags before its own: its *rank*. The compressor closes the gaps that dropped planes leave, bit by bit of
their number; the decompressor finds the ranks once a block and then selects.
"""

from amaranth import C, Cat, Module, Mux, Signal, Value

from ..arith.trees import any_set

__all__ = [
    "Selects",
    "compact",
    "count_in_groups",
    "counts_from_groups",
    "lanes_to_planes",
    "planes_to_lanes",
    "select_planes",
]


def lanes_to_planes(lanes: list[Value]) -> list[Value]:
    """One word's values -> its bits of every plane, plane 0 (the values' top bits) first."""
    return [Cat(lane[bit] for lane in lanes) for bit in reversed(range(len(lanes[0])))]


def planes_to_lanes(planes: list[Value]) -> list[Value]:
    """The inverse of :func:`lanes_to_planes`."""
    return [Cat(plane[i] for plane in reversed(planes)) for i in range(len(planes[0]))]


def compact(m: Module, planes: list[Value], shifts: list[Value]) -> list[Value]:
    """Moves planes to the front, over those that are dropped.

    A plane moves by the weight of one bit of its shift after the other, the lowest first, and carries the
    bits that are left along. Planes that stay keep their order on the way, so no two ever meet.

    Args:
        planes: their bits, and whatever is to move with them; all zero in a dropped plane.
        shifts: how many dropped planes lie before each; 0 for a dropped plane.
    """
    # A plane moves no further than to the front, so as many bits as its position has are enough.
    items = [
        Cat(plane, shift[: i.bit_length()])
        for i, (plane, shift) in enumerate(zip(planes, shifts, strict=True))
    ]
    width = len(planes[0])
    for stage in range((len(planes) - 1).bit_length()):
        distance = 1 << stage
        moved = []
        for i, item in enumerate(items):
            left = i.bit_length() - stage - 1  # bits of the shift after this stage
            stays = _without_shift_bit(item, width)
            out = Signal(width + max(left, 0), name=f"moved_by_{distance}_{i}")
            ways = [Mux(item[width], 0, stays) if i >= distance else item]
            if i + distance < len(items):
                ways.append(
                    Mux(items[i + distance][width], _without_shift_bit(items[i + distance], width), 0)
                )
            m.d.comb += out.eq(any_set(ways))
            moved.append(out)
        items = moved
    return items


def _without_shift_bit(item: Value, width: int) -> Value:
    return Cat(item[:width], item[width + 1 :])


_GROUP = 8


def count_in_groups(flags: Value) -> Value:
    """The first half of counting: for each flag, how many lie before it in its group of eight.

    Returns:
        Three bits for each flag, to be kept in a register until :func:`counts_from_groups`.
    """
    counts = []
    for start in range(0, len(flags), _GROUP):
        group = flags[start : start + _GROUP]
        counts += [_sum_of_bits([*group[:i]])[:3] for i in range(len(group))]
    return Cat(counts)


def counts_from_groups(m: Module, flags: Value, in_groups: Value) -> list[Value]:
    """The second half: for each flag, how many lie before it."""
    counts = []
    in_groups_before: list[Value] = []
    for start in range(0, len(flags), _GROUP):
        base = Signal(range(start + 2), name=f"before_group{start}")
        m.d.comb += base.eq(sum(in_groups_before))
        stop = min(start + _GROUP, len(flags))
        counts += [base + in_groups[3 * i : 3 * i + 3] for i in range(start, stop)]
        in_groups_before.append(in_groups[3 * stop - 3 : 3 * stop] + flags[stop - 1])
    return counts


def _sum_of_bits(bits: list[Value]) -> Value:
    """The number of ones, by a tree of adders."""
    terms: list[Value] = [*bits, C(0, 3)]
    while len(terms) > 1:
        terms = [terms[i] + terms[i + 1] if i + 1 < len(terms) else terms[i] for i in range(0, len(terms), 2)]
    return Cat(terms[0], C(0, 3))


class Selects:
    """One-hot selects made from flags and ranks: which plane lies in which slot.

    Args:
        slots: whole slots of a block, beyond which no sign or exponent plane ever lies.
        first_mantissa: the first mantissa plane.
        ranks: of a block's planes.
        flags: of a block.
    """

    def __init__(self, slots: int, first_mantissa: int, ranks: list[Value], flags: Value):
        self._slots = slots
        self._first_mantissa = first_mantissa
        self._ranks = ranks
        self._flags = flags

    def __getitem__(self, place: tuple[int, int]) -> Value:
        """Whether ``slot, plane`` belong together."""
        slot, plane = place
        return self._flags[plane] & (self._ranks[plane] == slot)

    def planes_of(self, slot: int) -> range:
        """The planes that can lie in a slot: none has more planes before it than its own number."""
        start = slot if slot < self._slots else max(slot, self._first_mantissa)
        return range(start, len(self._ranks))

    def slots_of(self, plane: int, slots: int) -> list[int]:
        """Those of the first ``slots`` slots that a plane can lie in."""
        return [slot for slot in range(slots) if plane in self.planes_of(slot)]


def select_planes(selects: list[Value], planes: list[Value]) -> Value:
    """The plane whose select is set, or 0."""
    return any_set(Mux(select, plane, 0) for select, plane in zip(selects, planes, strict=True))
