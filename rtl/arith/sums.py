"""Adders made of gates, one at a time, in pairs that share gates, and in trees.

Of ``a + b`` Yosys makes an adder of its own, and of several at once a single sum, which comes out larger and
deeper. Numbers are lists of bits or :class:`amaranth.Value`, the lowest bit first.
"""

from itertools import zip_longest

from amaranth import C, Cat, Module, Mux, Signal, Value

__all__ = [
    "Columns",
    "add",
    "butterfly",
    "compress",
    "difference",
    "increment",
    "let",
    "place",
    "place_square",
    "registered",
    "rotate",
    "rows_of",
    "shift_left",
    "shift_right",
]

# What lies in each binary place: any number of bits, of the same weight, to be added up.
Columns = list[list[Value]]

# How high columns may be for one more layer of full adders to make each of them at most as high as the number
# before: Dadda, "Some Schemes for Parallel Multipliers" (1965).
_HEIGHTS = (2, 3, 4, 6, 9, 13, 19, 28, 42, 63, 94, 141, 211, 316, 474)


def let(m: Module, name: str, value: Value) -> Signal:
    """A signal for what is used more than once, so that there is one of it in the netlist."""
    value = Value.cast(value)
    signal = Signal(value.shape(), name=name)
    m.d.comb += signal.eq(value)
    return signal


def add(m: Module, name: str, a, b, carry: Value | None = None, group: int | None = None) -> Value:
    """The sum of two unsigned numbers and a carry, one bit longer than the longer one.

    Args:
        group: so many bits are passed by a carry at once, which costs gates.
    """
    pairs = list(zip_longest(a, b, fillvalue=C(0)))
    halves = [let(m, f"{name}_half{i}", x ^ y) for i, (x, y) in enumerate(pairs)]
    made = [x & y for x, y in pairs]
    carries = _carries(m, name, made, halves, C(0) if carry is None else carry, group)
    sums = [half ^ before for half, before in zip(halves, carries, strict=False)]
    return let(m, name, Cat(sums, carries[-1]))


def difference(m: Module, name: str, a: Value, b: Value) -> Value:
    """``a - b`` of two unsigned numbers, ``b`` not the longer one, which must not be negative."""
    inverse = add(m, f"{name}_inverse", ~a[: len(b)], b)
    above = increment(m, f"{name}_above", ~a[len(b) :], inverse[-1]) if len(a) > len(b) else C(0, 0)
    return let(m, name, ~Cat(inverse[: len(b)], above))


def increment(m: Module, name: str, number: Value, carry: Value, group: int | None = None) -> Value:
    """A number plus a carry, as long as it was.

    Args:
        group: so many bits are passed by a carry at once.
    """
    bits = []
    for start in range(0, len(number), group or len(number)):
        here = number[start : start + (group or len(number))]
        passes = let(m, f"{name}_passes{start}", carry & here.all())
        for i, bit in enumerate(here):
            bits.append(bit ^ carry)
            carry = let(m, f"{name}_carry{start + i}", bit & carry)
        carry = passes
    return let(m, name, Cat(bits))


def shift_right(m: Module, name: str, bits: Value, distance: Value) -> Value:
    """The bits moved down by a distance, zeros above them."""
    for i, by in enumerate(distance):
        bits = let(m, f"{name}_by{1 << i}", Mux(by, bits >> (1 << i), bits))
    return bits


def shift_left(m: Module, name: str, bits: Value, distance: Value) -> Value:
    """The bits moved up by a distance, zeros below them; those that leave the top are lost."""
    for i, by in reversed(list(enumerate(distance))):
        bits = let(m, f"{name}_by{1 << i}", Mux(by, bits << (1 << i), bits)[: len(bits)])
    return bits


def rotate(m: Module, name: str, bits: Value, distance: Value, unit: int, left: bool = False) -> Value:
    """``bits`` turned right by ``distance`` units of so many bits, or left: a stage for each bit of it."""
    for i, turns in enumerate(distance):
        turned = bits.rotate_left(unit << i) if left else bits.rotate_right(unit << i)
        bits = let(m, f"{name}_{unit << i}", Mux(turns, turned, bits))
    return bits


def butterfly(m: Module, name: str, a: Value, b: Value, carry: Value, borrow: Value):
    """Sum and difference of two unsigned numbers of one length; they share half of the gates.

    Args:
        carry, borrow: from the bits below, to the sum and from the difference.

    Returns:
        Sum, difference, and the carry and the borrow for the bits above.
    """
    pairs = list(zip(a, b, strict=True))
    halves = [let(m, f"{name}_half{i}", x ^ y) for i, (x, y) in enumerate(pairs)]
    carries = _carries(m, f"{name}_plus", [x & y for x, y in pairs], halves, carry)
    borrows = _carries(m, f"{name}_minus", [~x & y for x, y in pairs], [~half for half in halves], borrow)
    total, less = (
        let(m, f"{name}_{suffix}", Cat(half ^ before for half, before in zip(halves, befores, strict=False)))
        for suffix, befores in (("sum", carries), ("difference", borrows))
    )
    return total, less, carries[-1], borrows[-1]


def _carries(
    m: Module, name: str, made: list[Value], passed: list[Value], carry: Value, group: int | None = None
) -> list[Value]:
    """The carry into each bit, and the last one out.

    Args:
        made, passed: which bits make a carry, and which pass on the one that comes.
        group: see :func:`add`.
    """
    size = group or len(made)
    carries = [carry]
    for start in range(0, len(made), size):
        comes = carries[-1]
        # Whether the group makes a carry by itself, or passes the one that comes.
        alone, passes = made[start], passed[start]
        for i in range(start, min(start + size, len(made))):
            if i > start:
                alone = let(m, f"{name}_alone{i}", made[i] | (passed[i] & alone))
                passes = let(m, f"{name}_passes{i}", passed[i] & passes)
            carries.append(let(m, f"{name}_carry{i + 1}", made[i] | (passed[i] & carries[-1])))
        if start > 0:
            carries[-1] = let(m, f"{name}_over{start}", alone | (passes & comes))
    return carries


def place(columns: Columns, number, at: int = 0) -> None:
    """Put a number's bits into columns, from one of them on; what lies beyond the last is dropped."""
    for i, bit in enumerate(number):
        if at + i < len(columns):
            columns[at + i].append(bit)


def place_square(m: Module, name: str, columns: Columns, number: Value) -> None:
    """Put into columns what adds up to the square of a number."""
    for i, bit in enumerate(number):
        for j in range(i - 1):
            columns[i + j + 1].append(let(m, f"{name}_{i}_{j}", bit & number[j]))
        # Of a bit's own square and twice its product with the one below, three times its weight is no more
        # than the next weight and its own.
        below = number[i - 1] if i else C(0)
        if i:
            columns[2 * i + 1].append(let(m, f"{name}_{i}_both", bit & below))
        columns[2 * i].append(let(m, f"{name}_{i}_alone", bit & ~below))


def compress(m: Module, name: str, columns: Columns, layers: int = len(_HEIGHTS)) -> Columns:
    """Columns of the same sum, at most two high, or as high as so many layers of full adders leave them.

    A layer is six NAND gates deep.
    """
    tallest = max(map(len, columns))
    heights = [most for most in reversed(_HEIGHTS) if most < tallest]
    for most in heights[:layers]:
        columns = _layer(m, f"{name}_to{most}", columns, most)
    return columns


def rows_of(columns: Columns) -> tuple[Value, Value]:
    """Columns of at most two bits as two numbers."""
    first, second = (Cat(column[i] if i < len(column) else C(0) for column in columns) for i in range(2))
    return first, second


def _layer(m: Module, name: str, columns: Columns, most: int) -> Columns:
    later: Columns = [[] for _ in columns]
    for i, column in enumerate(columns):
        bits, count = list(column), 0
        while len(bits) + len(later[i]) > most:
            a, b, *bits = bits
            c = None
            if len(bits) + len(later[i]) + 1 > most:
                c, *bits = bits
            total, carry = _full_adder(m, f"{name}_{i}_{count}", a, b, c)
            count += 1
            later[i].append(total)
            if i + 1 < len(columns):
                later[i + 1].append(carry)
        # What waited goes first: it is there earlier than what this layer makes.
        later[i] = bits + later[i]
    return later


def _full_adder(m: Module, name: str, a: Value, b: Value, c: Value | None) -> tuple[Value, Value]:
    half = let(m, f"{name}_half", a ^ b)
    if c is None:
        return half, let(m, f"{name}_carry", a & b)
    return let(m, f"{name}_sum", half ^ c), let(m, f"{name}_carry", (a & b) | (half & c))


def registered(m: Module, name: str, columns: Columns, enable: Value) -> Columns:
    """The columns a cycle later, if enabled."""
    bits = Cat(bit for column in columns for bit in column)
    kept = Signal(len(bits), name=name, reset_less=True)
    with m.If(enable):
        m.d.sync += kept.eq(bits)
    rest = iter(kept)
    return [[next(rest) for _ in column] for column in columns]
