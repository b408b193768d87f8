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
    return -31 if dtype == "fp16" else -127


class Try:
    """The sections of a block for some codes, core and short, and how many bits they have."""

    def __init__(self, codes, masked, core, short, wide=None):
        self.limit = 2 ** (core - 1) - 1
        self.core, self.short, self.masked = core, short, masked
        escapes = [code for code in codes if abs(code) > self.limit]
        long = [code for code in escapes if not short or abs(code) > self.limit + 1]
        needed = max((self.needs(code) for code in long), default=0)
        self.wide = wide if wide is not None else 15 if masked else needed
        self.fits = needed <= (15 if masked else 14)
        self.bits = len(codes) * (core + masked) + 2 * short * len(escapes) + self.wide * len(long)

    def needs(self, code):
        if self.short:
            return (abs(code) - self.limit - 2).bit_length()
        return (abs(code) - self.limit - 1).bit_length() + 1

    def can_store(self, code):
        if abs(code) <= self.limit or (self.short and abs(code) == self.limit + 1):
            return True
        return self.needs(code) <= self.wide


def encode_block(dtype, target, words, rounding="nearest", seed=0, block=0, exhaustive=False):
    """The bytes of a block; ``exhaustive`` tries every step and core, which the format does not."""
    n, room, lowest = len(words), 8 * (target - 3), lowest_of(dtype)
    values = [parts(dtype, word) for word in words]
    largest = max(magnitude for _, magnitude, _ in values)
    top = max(floor_log2(largest), lowest - 1) if largest else lowest - 1
    aligned = [(-1) ** sign * floor(mag / Fraction(2) ** (top - 17)) for sign, mag, _ in values]
    kinds = [kind for *_, kind in values]
    masked = any(kinds)

    def rounded(i, u):
        if rounding == "nearest":
            r = 1 << (u - 1)
        else:
            h = mix(mix(block * 0x9E3779B9 + seed & MASK) ^ (i * 0x85EBCA6B & MASK))
            r = h >> (32 - u)
        return (abs(aligned[i]) + r >> u) * (-1 if aligned[i] < 0 else 1)

    widest = min((room - n * masked) // n, 15)
    splits = [(core, from_mean) for core, from_mean in ((1, 0), (widest - 1, 1), (widest, 1)) if core > 0]
    splits = splits if widest else []
    if exhaustive:
        splits = [(core, from_mean) for core in range(1, widest + 1) for from_mean in (0, 1)]
    m = floor(Fraction(sum(aligned) + n // 2, n))
    there = [d for d in range(17) if d == 0 or top + 1 - d >= lowest]

    def seems_to_fit(d):
        u = 19 - d
        for core, from_mean in splits:
            away = [abs(x - m * from_mean) for x in aligned]
            w = max(away).bit_length() - u + 1
            e = sum(y >= 2 ** (u + core - 1 if core > 1 else u - 1) for y in away)
            fits = n * (core + masked) + e * (15 if masked else w) <= room
            if fits and w <= 14 and (not from_mean or abs(m) < 2 ** (u + 6)):
                return True
        return False

    def codes_of(d, from_mean):
        u = 19 - d
        offset = 0
        if d and from_mean:
            count = n * 2**u
            offset = max(-63, min(63, floor(Fraction(sum(aligned) + count // 2, count))))
        codes = [rounded(i, u) - offset if d else 0 for i in range(n)]
        return offset, [
            {"": code, "nan": 0, "inf": 1, "-inf": -1}[k] for code, k in zip(codes, kinds, strict=True)
        ]

    best = None
    likely = max((d for d in there if d and seems_to_fit(d)), default=0)
    for d in reversed(there) if exhaustive else (likely + 1, likely, likely - 1, 0):
        if d in there and best is None:
            tries = []
            for core, from_mean in splits:
                offset, codes = codes_of(d, from_mean)
                tries += [(offset, codes, Try(codes, masked, core, short)) for short in (0, 1)]
            tries = [one for one in tries if one[2].fits and one[2].bits <= room]
            if tries:
                best = (d, *min(tries, key=lambda one: one[2].bits))

    if best is None:
        width = 2 if room >= 2 * n else 1
        code = {"": 0, "nan": 1, "inf": 2, "-inf": 3}
        fields = [(0, 8), (0, 7), (0, 4), (0, 1), (15, 4)]
        return write(target, fields + [(min(code[kind], 2**width - 1), width) for kind in kinds])

    d, offset, codes, chosen = best
    grid, u = top + 1 - d, 18 - d
    fine, moved = [0] * n, list(codes)
    choices = [(moved[:], fine[:])]
    for i in range(n):
        f = rounded(i, u)
        code, bit = f // 2 - offset, f % 2
        if not kinds[i] and chosen.can_store(code):
            moved[i], fine[i] = code, bit
        choices.append((moved[:], fine[:]))
    for m in range(n, -1, -1):
        moved, fine = choices[m]
        if Try(moved, masked, chosen.core, chosen.short, chosen.wide).bits + m <= room:
            break
    fields = [(grid - lowest, 8), (offset % 128, 7), (chosen.core, 4), (chosen.short, 1), (chosen.wide, 4)]
    fields += [(1 if kind else 0, 1) for kind in kinds] if masked else []
    limit = chosen.limit
    inside = [abs(code) <= limit for code in moved]
    fields += [
        (code + limit if ok else 2 * limit + 1, chosen.core) for code, ok in zip(moved, inside, strict=True)
    ]
    escapes = [code for code, ok in zip(moved, inside, strict=True) if not ok]
    if chosen.short:
        fields += [(int(code < 0) + 2 * (abs(code) > limit + 1), 2) for code in escapes]
        fields += [(abs(code) - limit - 2, chosen.wide) for code in escapes if abs(code) > limit + 1]
    else:
        fields += [(int(code < 0) + 2 * (abs(code) - limit - 1), chosen.wide) for code in escapes]
    return write(target, fields + [(bit, 1) for bit in fine])


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

    grid, offset, core, short, wide = (take(bits) for bits in (8, 7, 4, 1, 4))
    offset -= 128 if offset > 63 else 0
    nan, inf = ((1 << e) - 1) << m | 1 << m - 1, ((1 << e) - 1) << m
    minus_inf = 1 << (e + m) | inf
    if core == 0:
        kinds = [take(2 if room >= 2 * n else 1) for _ in range(n)]
        return [[0, nan, inf, minus_inf][kind] for kind in kinds]
    specials = [take(1) if wide == 15 else 0 for _ in range(n)]
    limit = 2 ** (core - 1) - 1
    codes = [take(core) - limit for _ in range(n)]
    escapes = [i for i, code in enumerate(codes) if code == limit + 1]
    if short:
        forms = [take(2) for _ in escapes]
        for i, form in zip(escapes, forms, strict=True):
            beyond = take(wide) + 1 if form & 2 else 0
            codes[i] = (limit + 1 + beyond) * (-1 if form & 1 else 1)
    else:
        for i in escapes:
            field = take(wide)
            codes[i] = (limit + 1 + (field >> 1)) * (-1 if field & 1 else 1)
    words = []
    for code, special in zip(codes, specials, strict=True):
        bit = take(1)
        if special:
            words.append(nan if code == 0 else inf if code > 0 else minus_inf)
        else:
            words.append(nearest(dtype, (2 * (code + offset) + bit) * Fraction(2) ** (grid + lowest)))
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
