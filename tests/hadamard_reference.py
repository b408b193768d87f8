"""A second codec of the Hadamard format, written from docs/format.md alone and deliberately plain.

It shares nothing with golden/: values are Python integers (bit patterns), a block is a list of them, and
each step of the page is a few lines here, in the same order and with the same names.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from math import floor, isqrt
from operator import mul

from .reference import FIELDS, InvalidHeaderError

LEVELS = ([0], [10], [6, 20], [3, 10, 18, 29], [2, 5, 9, 13, 17, 22, 28, 37])  # by the width of a field
THRESHOLDS = ([], [], [31], [15, 33, 55], [8, 16, 26, 35, 46, 59, 76])
HEADER_BITS = 12


@dataclass(frozen=True)
class Parameters:
    """ "Parameters of the Hadamard format"."""

    dtype: str
    block: int
    target: int

    @cached_property
    def e(self):
        return FIELDS[self.dtype][0]

    @cached_property
    def m(self):
        return FIELDS[self.dtype][1]

    @cached_property
    def bias(self):
        return 2 ** (self.e - 1) - 1

    @cached_property
    def special(self):
        """The exponent field of specials."""
        return 2**self.e - 1

    @cached_property
    def b(self):
        return (8 * self.target - HEADER_BITS) // self.block

    @cached_property
    def more(self):
        return (8 * self.target - HEADER_BITS) % self.block

    @cached_property
    def widths(self):
        """The bits of each coefficient's field."""
        return [self.b + 1 if k < self.more else self.b for k in range(self.block)]

    def split(self, word):
        """A bit pattern as sign, exponent field, mantissa field."""
        return word >> (self.e + self.m), (word >> self.m) % 2**self.e, word % 2**self.m

    def join(self, sign, field, mantissa):
        return sign << (self.e + self.m) | field << self.m | mantissa


def following(u):
    """ "The sign pattern": next(u)."""
    u ^= u << 13 & 0xFFFFFFFF
    u ^= u >> 17
    return u ^ u << 5 & 0xFFFFFFFF


def pattern(n, number):
    """s of values 0 to n - 1, each -1 or 1, for the block with that number."""
    u = following(number ^ 0x9E3779B9)
    signs = []
    while len(signs) < n:
        signs += [-1 if u >> i & 1 else 1 for i in range(32)]
        u = following(u)
    return signs


@cache
def rows(n):
    """The transform's matrix: -1 where i and k have an odd number of ones in common."""
    return [[-1 if (i & k).bit_count() % 2 else 1 for i in range(n)] for k in range(n)]


def transform(numbers):
    return [sum(map(mul, numbers, row)) for row in rows(len(numbers))]


def encode_block(p, words, number=0):
    """N bit patterns -> the bytes of their block."""
    assert len(words) == p.block
    values = [p.split(word) for word in words]
    if any(field == p.special for _, field, _ in values):
        return encode_specials(p, values)
    zeros = bytes(p.target)

    # 1. Alignment.
    top = max(max(field, 1) for _, field, _ in values)
    a = [aligned(p, top, *value) for value in values]

    # 2. Transform.
    z = transform([x * s for x, s in zip(a, pattern(p.block, number), strict=True)])

    # 3. Root.
    energy = sum(x * x for x in a)
    if energy == 0:
        return zeros
    power = max(power for power in range(32) if 4**power <= energy)
    x = floor(energy * Fraction(4) ** (3 - power))
    root = isqrt(256 * x)

    # 4. Levels.
    bounds = [[floor(t * root * Fraction(2) ** (power - 12)) for t in some] for some in THRESHOLDS]
    chosen = [sum(abs(c) > t for t in bounds[width]) for c, width in zip(z, p.widths, strict=True)]

    # 5. Scale.
    levels = [LEVELS[width][index] for width, index in zip(p.widths, chosen, strict=True)]
    product = sum(abs(c) * level for c, level in zip(z, levels, strict=True))
    if product == 0:
        return zeros
    ratio = Fraction(energy, product)
    t = next(t for t in range(-64, 64) if 16 <= Fraction(2) ** t * ratio < 32)
    h = 16 * (top - p.bias + 121 - t) + floor(Fraction(2) ** t * ratio + Fraction(1, 2)) - 16
    if h < 16:
        return zeros

    # 6. Writing.
    fields = []
    for c, index, width in zip(z, chosen, p.widths, strict=True):
        fields.append(index + (2 ** (width - 1) if c < 0 else 0) if width else 0)
    return write(p, min(h, 4095), fields)


def aligned(p, top, sign, field, mantissa):
    """A value as the integer a."""
    m = mantissa if field == 0 else mantissa + 2**p.m
    down = floor(m * Fraction(2) ** (11 - p.m - (top - max(field, 1))))
    magnitude = min((down + 1) // 2, 2047)
    return -magnitude if sign else magnitude


def encode_specials(p, values):
    fields = []
    for (sign, field, mantissa), width in zip(values, p.widths, strict=True):
        if p.b == 0 or field != p.special:
            fields.append(0)
        elif mantissa or width == 1:
            fields.append(1)
        else:
            fields.append(3 if sign else 2)
    return write(p, 1, fields)


def write(p, header, fields):
    """ "The bits of a block"."""
    data, place = header, HEADER_BITS
    for field, width in zip(fields, p.widths, strict=True):
        assert field < 2**width
        data |= field << place
        place += width
    assert place == 8 * p.target
    return data.to_bytes(p.target, "little")


def decode_block(p, data, number=0):
    """The bytes of a block -> N bit patterns; InvalidHeaderError for a header that is none."""
    assert len(data) == p.target
    data = int.from_bytes(data, "little")
    header, place, fields = data % 2**HEADER_BITS, HEADER_BITS, []
    for width in p.widths:
        fields.append((data >> place) % 2**width)
        place += width

    if 2 <= header <= 15:
        raise InvalidHeaderError(header)
    if header == 0:
        return [0] * p.block
    if header == 1:
        return [decode_special(p, field % 4 if p.b else 1) for field in fields]

    scale = (16 + header % 16) * Fraction(2) ** (header // 16 - 131)
    q = [coefficient(field, width) for field, width in zip(fields, p.widths, strict=True)]
    return [nearest(p, s * y * scale) for s, y in zip(pattern(p.block, number), transform(q), strict=True)]


def coefficient(field, width):
    """The number that a field stands for behind a scale."""
    if width == 0:
        return 0
    level = LEVELS[width][field % 2 ** (width - 1)]
    return -level if field >> (width - 1) else level


def decode_special(p, code):
    nan, infinity = p.join(0, p.special, 2 ** (p.m - 1)), p.join(0, p.special, 0)
    return [0, nan, infinity, p.join(1, p.special, 0)][code]


def nearest(p, number):
    """The bit pattern of the finite float nearest to a fraction over a power of two, ties to even."""
    if number == 0:
        return 0
    exponent = number.numerator.bit_length() - number.denominator.bit_length()
    field = min(max(exponent + p.bias, 1), p.special - 1)  # subnormals have the unit of field 1
    mantissa = round(abs(number) / Fraction(2) ** (field - p.bias - p.m))  # with its leading one
    magnitude = (field - 1 << p.m) + mantissa
    return p.join(int(number < 0), 0, min(magnitude, p.join(0, p.special, 0) - 1))
