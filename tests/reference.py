"""A second codec of the bit-plane format, written from docs/format.md alone and deliberately plain.

It shares nothing with golden/: values are Python integers (bit patterns), a block is a list of them, and
each step of the page is a few lines here, in the same order and with the same names.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

FIELDS = {"fp32": (8, 23), "bf16": (8, 7), "fp16": (5, 10)}


class InvalidHeaderError(Exception):
    """A header that is none."""


@dataclass(frozen=True)
class Parameters:
    """ "Types and parameters"; ``target`` is None in lossless mode."""

    dtype: str
    block: int
    target: int | None
    rounding: str = "nearest"

    @cached_property
    def e(self):
        return FIELDS[self.dtype][0]

    @cached_property
    def m(self):
        return FIELDS[self.dtype][1]

    @cached_property
    def width(self):
        return 1 + self.e + self.m

    @cached_property
    def header(self):
        return 1 + self.width // 8

    @cached_property
    def slots(self):
        return (self.target - self.header) // (self.block // 8)

    @cached_property
    def partial(self):
        return 8 * ((self.target - self.header) % (self.block // 8))

    def split(self, word):
        """A bit pattern as sign, field, mantissa."""
        return word >> (self.width - 1), (word >> self.m) % 2**self.e, word % 2**self.m

    def join(self, sign, field, mantissa):
        return sign << (self.width - 1) | field << self.m | mantissa

    def bit(self, plane, sign, delta, mantissa):
        """The bit of a value in a plane."""
        if plane == 0:
            return sign
        if plane <= self.e:
            return delta >> (self.e - plane) & 1
        return mantissa >> (self.width - 1 - plane) & 1

    def weight(self, plane):
        """The weight of a mantissa plane."""
        return 2 ** (self.width - 1 - plane)

    @cached_property
    def specials_planes(self):
        return [0, self.e]


def is_nan(p, field, mantissa):
    return field == 2**p.e - 1 and mantissa != 0


def exponents(fields):
    """ "Exponents": base, the deltas and k."""
    base = min((field for field in fields if field != 0), default=1)
    deltas = [field - base + 1 if field != 0 else 0 for field in fields]
    return base, deltas, max(deltas).bit_length()


def encode_block(p, words):
    """N bit patterns -> the bytes of their block."""
    assert len(words) == p.block
    values = [p.split(word) for word in words]
    if p.target is None:
        return encode_lossless(p, values)
    return encode_fixed(p, values)


def encode_lossless(p, values):
    base, deltas, k = exponents([field for _, field, _ in values])
    coded = [(sign, delta, mantissa) for (sign, _, mantissa), delta in zip(values, deltas, strict=True)]
    return write(p, base, flagged_planes(p, values, k), coded)


def flagged_planes(p, values, k):
    """The planes with a one among signs and mantissas, and the last k exponent planes."""
    signs_and_mantissas = [0, *range(p.e + 1, p.width)]
    ones = {j for j in signs_and_mantissas if any(p.bit(j, s, 0, mantissa) for s, _, mantissa in values)}
    return sorted(ones | set(range(p.e + 1 - k, p.e + 1)))


def encode_fixed(p, values):
    # 1. Quieting.
    quiet = 2 ** (p.m - 1)
    values = [(s, f, mantissa | quiet if is_nan(p, f, mantissa) else mantissa) for s, f, mantissa in values]

    # 2. Room for exponents.
    s = int(any(sign for sign, _, _ in values))
    q = int(any(is_nan(p, field, mantissa) for _, field, mantissa in values))
    top = max(field for _, field, _ in values)
    base, deltas, k = exponents([field for _, field, _ in values])
    room = p.slots - s - q
    flushed = k > room
    if flushed and room == 0:
        return encode_specials(p, values)

    # 3. and 5. Flags, before flushing.
    flagged = flagged_planes(p, values, room if flushed else k)

    # 4. Flushing.
    if flushed:
        base = top - (2**room - 2)
        values = [(sign, f, mantissa) if f >= base else (sign, 0, 0) for sign, f, mantissa in values]
        deltas = [field - base + 1 if field >= base else 0 for _, field, _ in values]

    # 6. Choosing planes.
    whole, next_one = flagged[: p.slots], flagged[p.slots : p.slots + 1]
    stored = whole + next_one if p.partial else whole

    # 7. Rounding.
    expressible = sum(p.weight(j) for j in flagged if j > p.e)
    step_in_partial, step_behind = step_of(p, flagged, len(stored)), step_of(p, flagged, len(whole))
    coded = []
    for i, ((sign, _, mantissa), delta) in enumerate(zip(values, deltas, strict=True)):
        step = step_in_partial if i < p.partial else step_behind
        coded.append((sign, delta, rounded(p, mantissa, step, expressible)))

    # 8. Writing.
    return write(p, base, stored, coded)


def step_of(p, flagged, kept):
    """2w for values that keep the first ``kept`` flagged planes; 0 if they lose none."""
    return 2 * p.weight(flagged[kept]) if kept < len(flagged) else 0


def rounded(p, mantissa, step, expressible):
    """A mantissa as a multiple of ``step`` (0 if it loses nothing) made of the bits in ``expressible``."""
    if step == 0:
        return mantissa
    down = mantissa // step * step
    if p.rounding == "truncate":
        return down
    nearest = round(Fraction(mantissa, step)) * step  # a tie goes to the even quotient
    return nearest if nearest & ~expressible == 0 else down


def encode_specials(p, values):
    coded = []
    for sign, field, mantissa in values:
        if is_nan(p, field, mantissa):
            coded.append((1, 0, 0))
        elif field == 2**p.e - 1:
            coded.append((sign, 1, 0))
        else:
            coded.append((0, 0, 0))
    return write(p, 0, p.specials_planes, coded)


def write(p, base, flagged, coded):
    """ "The bytes of a block", from its base, flagged planes and (sign, delta, mantissa) of each value."""
    flags = sum(1 << j for j in flagged)
    data = bytes([base]) + flags.to_bytes(p.width // 8, "little")
    for j in flagged:
        plane = sum(p.bit(j, *value) << i for i, value in enumerate(coded))
        data += plane.to_bytes(p.block // 8, "little")
    if p.target is None:
        return data
    return data[: p.target].ljust(p.target, b"\0")


def decode_block(p, data):
    """The bytes of a block -> N bit patterns; InvalidHeaderError for a header that is none."""
    base = data[0]
    flags = int.from_bytes(data[1 : p.header], "little")
    flagged = [j for j in range(p.width) if flags >> j & 1]
    if not is_valid(p, base, flagged):
        raise InvalidHeaderError(data[: p.header].hex(" "))
    if p.target is None:
        assert len(data) == p.header + len(flagged) * p.block // 8, "a block as long as its header asks for"
    else:
        assert len(data) == p.target

    planes = {}
    size = p.block // 8
    for rank, j in enumerate(flagged):
        start = p.header + rank * size
        planes[j] = int.from_bytes(data[start : start + size], "little")  # what is cut off reads as 0

    words = []
    for i in range(p.block):
        bits = {j: plane >> i & 1 for j, plane in planes.items()}  # no other plane has ones
        if base == 0:
            words.append(decode_special(p, bits.get(0, 0), bits.get(p.e, 0)))
            continue
        delta = sum(bit << (p.e - j) for j, bit in bits.items() if 1 <= j <= p.e)
        mantissa = sum(bit * p.weight(j) for j, bit in bits.items() if j > p.e)
        field = (base - 1 + delta) % 2**p.e if delta else 0
        words.append(p.join(bits.get(0, 0), field, mantissa))
    return words


def decode_special(p, sign, infinite):
    if infinite:
        return p.join(sign, 2**p.e - 1, 0)
    return p.join(0, 2**p.e - 1, 2 ** (p.m - 1)) if sign else 0


def is_valid(p, base, flagged):
    """ "Invalid headers"."""
    if p.target is not None and base == 0 and flagged == []:
        return True
    if p.target is not None and p.slots == 2 and base == 0:
        return flagged == p.specials_planes
    exponent = [j for j in flagged if 1 <= j <= p.e]
    k = len(exponent)
    s = int(0 in flagged)
    if exponent != list(range(p.e + 1 - k, p.e + 1)):
        return False
    if not (base == 1 if k == 0 else 1 <= base <= 2**p.e - 2 ** (k - 1)):
        return False
    if p.target is None:
        return True
    return s + k <= p.slots and len(flagged) <= p.slots + (p.partial > 0)
