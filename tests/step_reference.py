"""The step format, written from docs/format.md for clarity alone: one block, plain integers, fractions."""

from fractions import Fraction
from math import floor, log2

FIELDS = {"fp32": (8, 23), "bf16": (8, 7), "fp16": (5, 10)}
MASK = 0xFFFFFFFF


def parts(dtype, word):
    """Sign, magnitude as a fraction, and kind: "", "nan", "inf" or "-inf"."""
    e, m = FIELDS[dtype]
    sign, field, mantissa = word >> (e + m), word >> m & (1 << e) - 1, word & (1 << m) - 1
    if field == (1 << e) - 1:
        return sign, Fraction(0), "nan" if mantissa else ("-inf" if sign else "inf")
    significand = mantissa + (1 << m if field else 0)
    return sign, significand * Fraction(2) ** (max(field, 1) - ((1 << e - 1) - 1) - m), ""


def floor_log2(fraction):
    exponent = floor(log2(fraction.numerator)) - floor(log2(fraction.denominator))
    while Fraction(2) ** exponent > fraction:
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= fraction:
        exponent += 1
    return exponent


def mix(y):
    y = y + (y << 12) & MASK
    y ^= y >> 19
    y = y + (y << 5) & MASK
    y ^= y >> 9
    y = y + (y << 3) & MASK
    return y ^ y >> 16


def lowest_of(dtype):
    return -24 if dtype == "fp16" else -126


def encode_block(dtype, target, words, rounding="nearest", seed=0, block=0):
    """The bytes of a block."""
    n, room, lowest = len(words), 8 * (target - 3), lowest_of(dtype)
    signs, magnitudes, kinds = zip(*(parts(dtype, word) for word in words), strict=True)
    masked = any(kinds)
    if dtype != "fp16":
        magnitudes = [mag if mag >= Fraction(2) ** -126 else Fraction(0) for mag in magnitudes]
    largest = max(magnitudes)
    top = floor_log2(largest) if largest else lowest - 1
    leading = floor(largest / Fraction(2) ** (top - 3)) + 1

    def added(i):
        if rounding == "nearest":
            return 16
        word = mix(mix(block * 0x9E3779B9 + seed & MASK) ^ (i // 8 * 0x85EBCA6B & MASK))
        return 2 * (word >> 4 * (i % 8) & 15) + 1

    def counted(i, d):
        """The value in coarse and in fine steps."""
        if kinds[i]:
            coarse = {"nan": 0, "inf": 1, "-inf": -1}[kinds[i]]
            return coarse, 2 * coarse
        a = floor(64 * magnitudes[i] / Fraction(2) ** (top + 2 - d))
        sign = -1 if signs[i] else 1
        return sign * ((a // 2 + added(i)) // 32) * (d > 0), sign * ((a + added(i)) // 32)

    space = room - n * masked
    widest = min(space // n, 1 if masked else 14)
    best = None
    for d in range(15):
        if d > 0 and top + 1 - d < lowest:
            break
        values = [counted(i, d) for i in range(n)]
        tries = []
        for core in {1: [1]}.get(widest, [1, widest]) if widest else []:
            limit = 2 ** (core - 1) - 1
            highest = (leading * 2**d - 1 + (16 if rounding == "nearest" else 31)) // 32
            wide = (highest - limit - 1).bit_length() + 1 if highest > limit and d else 1
            escapes = sum(abs(coarse) > limit for coarse, _ in values)
            tries.append((n * core + escapes * wide, core, wide))
        tries = [one for one in tries if one[0] <= space]
        if tries:
            best = (d, values, *min(tries, key=lambda one: one[0]))

    if best is None:
        width = 2 if room >= 2 * n else 1
        code = {"": 0, "nan": 1, "inf": 2, "-inf": 3}
        fields = [(0, 8), (0, 7), (1, 1), (0, 4), (0, 4)]
        return write(target, fields + [(min(code[kind], 2**width - 1), width) for kind in kinds])

    d, values, bits, core, wide = best
    limit = 2 ** (core - 1) - 1
    moved = 0
    for coarse, fine in values:
        bits += 1 - wide * (abs(coarse) > limit and abs(fine) <= 2 * limit + 1)
        if bits > space or moved == 127:
            break
        moved += 1
    fields = [(top + 1 - d - lowest, 8), (moved, 7), (int(masked), 1), (core, 4), (wide, 4)]
    fields += [(1 if kind else 0, 1) for kind in kinds] if masked else []
    escapes, bits = [], []
    for i, (coarse, fine) in enumerate(values):
        if i < moved:
            escape = abs(fine) > 2 * limit + 1
            both = 4 * limit + 3 if escape else fine + 2 * limit + 1
            bits.append(both % 2)
            fields.append((both // 2, core))
        else:
            escape = abs(coarse) > limit
            fields.append((2 * limit + 1 if escape else coarse + limit, core))
        if escape:
            escapes.append((int(coarse < 0) + 2 * (abs(coarse) - limit - 1), wide))
    fields += escapes
    fields.append((0, 8 * target - moved - sum(width for _, width in fields)))
    return write(target, fields + [(bit, 1) for bit in reversed(bits)])


def write(target, fields):
    """Fields as (value, bits), the first in the lowest bits; what lies behind the target must be 0."""
    number = place = 0
    for value, bits in fields:
        assert 0 <= value < 1 << bits or (value == 0 and bits == 0)
        number |= value << place
        place += bits
    return number.to_bytes(max(target, -(-place // 8)), "little")[:target]


def decode_block(dtype, n, data):
    """Bit patterns of a valid block."""
    e, m = FIELDS[dtype]
    room, lowest = 8 * (len(data) - 3), lowest_of(dtype)
    number = int.from_bytes(data, "little")

    def take(bits):
        nonlocal number
        value, number = number & (1 << bits) - 1, number >> bits
        return value

    bits = f"{number:0{8 * len(data)}b}"
    grid, moved, masked, core, wide = (take(bits) for bits in (8, 7, 1, 4, 4))
    nan, inf = ((1 << e) - 1) << m | 1 << m - 1, ((1 << e) - 1) << m
    minus_inf = 1 << (e + m) | inf
    if core == 0:
        kinds = [take(2 if room >= 2 * n else 1) for _ in range(n)]
        return [[0, nan, inf, minus_inf][kind] for kind in kinds]
    specials = [take(1) if masked else 0 for _ in range(n)]
    limit = 2 ** (core - 1) - 1
    cores = [take(core) for _ in range(n)]
    words = []
    for i, (field, special) in enumerate(zip(cores, specials, strict=True)):
        if i < moved:
            both = 2 * field + int(bits[i])
            whole, escape = both - 2 * limit - 1, both == 4 * limit + 3
        else:
            whole, escape = 2 * (field - limit), field == 2 * limit + 1
        if escape:
            field = take(wide)
            whole = 2 * (limit + 1 + (field >> 1)) * (-1 if field & 1 else 1)
        if special:
            words.append(nan if whole == 0 else inf if whole > 0 else minus_inf)
        else:
            words.append(nearest(dtype, whole * Fraction(2) ** (grid + lowest)))
    return words


def nearest(dtype, value):
    """The bit pattern of the float nearest to a fraction, ties to even, never infinite."""
    e, m = FIELDS[dtype]
    magnitude, sign = abs(value), 1 << (e + m) if value < 0 else 0
    low, high = 0, (((1 << e) - 1) << m) - 1  # finite patterns are in the order of their magnitudes
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if parts(dtype, middle)[1] <= magnitude else (low, middle)
    below, above = (magnitude - parts(dtype, low)[1], parts(dtype, high)[1] - magnitude)
    word = low if below < above or (below == above and low % 2 == 0) else high
    return sign | word if word else 0
