"""Balanced trees of gates, as deep as the logarithm of what they are made of."""

from functools import reduce
from itertools import combinations
from operator import or_

from amaranth import C, Cat, Mux, Value

__all__ = ["all_ones", "any_set", "is_less", "largest_of", "leading_zeros", "smallest_of"]


def any_set(values) -> Value:
    """The bitwise OR of some values of equal width, as a balanced tree."""
    values = list(values)
    while len(values) > 1:
        values = [reduce(or_, values[i : i + 2]) for i in range(0, len(values), 2)]
    return values[0]


def all_ones(width: int) -> Value:
    return C((1 << width) - 1, width)


def leading_zeros(bits: Value) -> Value:
    """How many zeros lie above the highest one, as a tree; without a one, all but one of them.

    Args:
        bits: a power of two of them.
    """

    def count(bits: Value) -> tuple[Value, Value]:
        if len(bits) == 2:
            return ~bits.any(), ~bits[1]
        half = len(bits) // 2
        (no_low, below), (no_high, above) = count(bits[:half]), count(bits[half:])
        return no_low & no_high, Cat(Mux(no_high, below, above), no_high)

    return count(bits)[1]


def smallest_of(values: list[Value]) -> Value:
    return _first_that_beats(values, is_less)


def largest_of(values: list[Value]) -> Value:
    return _first_that_beats(values, lambda a, b: is_less(b, a))


def _first_that_beats(values: list[Value], beats) -> Value:
    """The value that no other beats, all pairs compared at once: as deep as one comparison."""
    loses = [C(0)] * len(values)
    for i, j in combinations(range(len(values)), 2):
        later_wins = beats(values[j], values[i])
        loses[i] |= later_wins
        loses[j] |= ~later_wins
    return any_set(Mux(lost, 0, value) for lost, value in zip(loses, values, strict=True))


def is_less(a: Value, b: Value) -> Value:
    """``a < b``, as a tree: less in the upper half, or equal there and less in the lower."""

    def compare(low: int, high: int) -> tuple[Value, Value]:
        if high - low == 1:
            return ~a[low] & b[low], ~a[low] | b[low]
        middle = (low + high) // 2
        (less, not_more), (less_below, not_more_below) = compare(middle, high), compare(low, middle)
        return less | (not_more & less_below), not_more & (less | not_more_below)

    return compare(0, len(a))[0]
