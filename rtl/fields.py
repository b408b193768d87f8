"""What the engines of the step format are made of: registers, counts, and fields whose place or width
is known only at run time."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest

from amaranth import C, Cat, Module, Mux, Signal, Value
from amaranth.lib import data

__all__ = [
    "Register",
    "count_before",
    "cut",
    "group_counts",
    "leading_zeros",
    "let",
    "ones",
    "total",
    "window",
]


class Register:
    """A register: what it holds ``now``, and what ``next`` when it ``takes`` something in."""

    def __init__(self, m: Module, layout: data.Layout, takes: Value, name: str):
        self.takes = takes
        self.now = Signal(layout, name=name, reset_less=True)
        self.next = Signal(layout, name=f"next_{name}")
        with m.If(takes):
            m.d.sync += self.now.eq(self.next)


def let(m: Module, name: str, value: Value) -> Signal:
    """A signal for what is used more than once, so that there is one of it in the netlist."""
    value = Value.cast(value)
    signal = Signal(value.shape(), name=name)
    m.d.comb += signal.eq(value)
    return signal


def total(m: Module, name: str, values: Sequence[Value]) -> Value:
    """The sum of some values, by a tree of adders.

    The adders are made of gates: of a tree of ``+`` Yosys makes a single sum, which comes out deeper.
    """
    values = list(values)
    while len(values) > 1:
        pairs = [values[i : i + 2] for i in range(0, len(values), 2)]
        values = [
            _plus(m, f"{name}_{len(pairs)}_{i}", *pair) if len(pair) > 1 else pair[0]
            for i, pair in enumerate(pairs)
        ]
    return values[0]


def _plus(m: Module, name: str, a: Value, b: Value) -> Value:
    carry, bits = C(0), []
    for i, (x, y) in enumerate(zip_longest(a, b, fillvalue=C(0))):
        half = let(m, f"{name}_half{i}", x ^ y)
        bits.append(half ^ carry)
        carry = let(m, f"{name}_carry{i}", (x & y) | (half & carry))
    return let(m, name, Cat(bits, carry))


def group_counts(m: Module, name: str, bits: Value, size: int) -> list[Value]:
    """How many ones are in each group of so many bits."""
    starts = range(0, len(bits), size)
    return [total(m, f"{name}{start}", [*bits[start : start + size]]) for start in starts]


def ones(m: Module, name: str, count: Value, width: int) -> Value:
    """As many ones as a number says, from bit 0 on."""
    high = let(m, f"{name}_of_eight", Cat(count[3:] > i for i in range(-(-width // 8))))
    low = let(m, f"{name}_rest", Cat(count[:3] > i for i in range(7)))
    eights = [
        Mux(full, 255, Mux(before, low, 0)) for full, before in zip(high, Cat(C(1), high), strict=False)
    ]
    return let(m, name, Cat(eights)[:width])


def count_before(m: Module, name: str, bits: Value) -> list[Value]:
    """For each bit how many ones lie before it, by a tree of adders."""

    def count(start: int, stop: int) -> tuple[list[Value], Value]:
        """The same from a bit on, and how many ones there are up to another."""
        if stop - start == 1:
            return [C(0)], bits[start]
        middle = (start + stop) // 2
        (before, low), (within, high) = count(start, middle), count(middle, stop)
        sums = [_plus(m, f"{name}_{start}_{stop}_{i}", low, more) for i, more in enumerate([*within, high])]
        return [*before, *sums[:-1]], sums[-1]

    return count(0, len(bits))[0]


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


def window(m: Module, name: str, bits: Value, start: Value, width: int) -> Value:
    """The bits from ``start`` on, ``width`` of them; zeros behind the end."""
    bits = Cat(bits, C(0, max(width - len(bits), 0)))
    for stage in reversed(range(len(start))):
        distance = 1 << stage
        shifted = Mux(start[stage], bits[distance:], bits)[: width + distance - 1]
        bits = let(m, f"{name}_by_{distance}", shifted)
    return bits


def cut(bits: Value, widths: Mapping[int, Value], count: int) -> list[Value]:
    """The bits as ``count`` fields that follow each other, each with zeros above it up to the longest.

    Args:
        widths: how many bits the fields may have -> whether they have.
    """

    def bit(field: int, place: int) -> Value:
        places = [(field * width + place, is_it) for width, is_it in widths.items() if place < width]
        return Cat(bits[i] & is_it for i, is_it in places if i < len(bits)).any()

    return [Cat(bit(field, place) for place in range(max(widths))) for field in range(count)]
