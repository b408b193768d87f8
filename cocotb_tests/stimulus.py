"""Tensors to put through the engines: random floats, adversarial blocks and real activations."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np

from cocotb_tests import oracle
from golden import Format, HadamardFormat, PlaneFormat
from golden.hadamard import FRACTION_BITS, HEADER_BITS, LEVELS, SCALE_BIAS, SPECIALS, ZEROS

_EXPONENT_BITS = HEADER_BITS - FRACTION_BITS

Blocks = np.ndarray  # bit patterns, uint64[blocks, N]


def blocks(
    fmt: Format, kind: str, count: int, rng: np.random.Generator, activations: Path | None = None
) -> np.ndarray:
    """``count`` blocks as the format's NumPy type, [count, N].

    Args:
        kind: one of :func:`kinds`, "captured" for real activations, or "mixed" for all in random order.
        activations: an ``.npz`` of float32 arrays, the captured ones; "mixed" can do without.
    """
    if kind == "mixed":
        names = [*kinds(fmt), *(["captured"] if activations else [])]
        share = -(-count // len(names))
        made = np.concatenate([blocks(fmt, name, share, rng, activations) for name in names])
        return rng.permutation(made)[:count]
    if kind == "captured":
        return captured(fmt, count, rng, activations)
    return kinds(fmt)[kind](fmt, count, rng).astype(fmt.float_type.bits).view(fmt.float_type.array)


def capture_activations(path: Path) -> Path:
    """Write what a training step of the bridge's GPT-2 saves, unless the file is there: an ``.npz``.

    Eager attention and dropout, so that there are causal zeros and masks among it; one array for each tensor.
    """
    if not path.exists():
        from torch_bridge.job.activations import gpt2_activations

        print("capturing the activations of a GPT-2 training step ...", flush=True)
        saved = gpt2_activations(attention="eager", dropout=0.1, steps=20, batch=2)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"partial-{path.name}")
        np.savez(partial, **{f"{i:03}_{tensor.op}": tensor.values for i, tensor in enumerate(saved)})
        partial.replace(path)
    return path


def captured(fmt: Format, count: int, rng: np.random.Generator, path: Path) -> np.ndarray:
    """Blocks cut at random from the arrays that a GPT-2 training step saved."""
    values = _load(path)
    whole = values[: len(values) // fmt.block * fmt.block].reshape(-1, fmt.block)
    with np.errstate(over="ignore"):
        return whole[rng.integers(0, len(whole), count)].astype(fmt.float_type.array)


@functools.cache
def _load(path: Path) -> np.ndarray:
    with np.load(path) as arrays:
        return np.concatenate([arrays[name].reshape(-1) for name in arrays.files])


def tensor_lengths(count: int, block: int, rng: np.random.Generator) -> list[int]:
    """Lengths that cut ``count`` blocks of a length into tensors, some of them with a tail block."""
    lengths = []
    while count > 0:
        size = min(int(rng.choice([1, 1, 2, 3, 5, 17, 60])), count)
        tail = int(rng.integers(1, block + 1)) if rng.random() < 0.5 else block
        lengths.append((size - 1) * block + tail)
        count -= size
    return lengths


def with_broken_headers(fmt: Format, stored: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The same blocks, half of them with a byte of their header replaced.

    The first of these has all flags set, the second none and no base, as cleared memory has, but its planes.
    """
    size, broken = fmt.header_bytes, stored.copy()
    hit = np.flatnonzero(rng.random(len(stored)) < 0.5)
    byte = rng.integers(0, size, len(hit))
    broken[hit, byte] = rng.choice([0, 0x80, 0xFF, *rng.integers(0, 256, 3)], len(hit))
    broken[hit[:1], 1:size] = 0xFF
    broken[hit[1:2], :size] = 0
    return broken


def with_any_payload(fmt: Format, stored: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The same headers with any bytes behind them; in some blocks ones are as rare as zeros are in others."""
    shape = (len(stored), fmt.target - fmt.header_bytes, 8)
    density = rng.choice([0.03, 0.5, 0.97], (len(stored), 1, 1))
    payload = np.packbits(rng.random(shape) < density, axis=2)[:, :, 0]
    return np.concatenate([stored[:, : fmt.header_bytes], payload], axis=1)


def with_chosen_sums(fmt: HadamardFormat, count: int, rng: np.random.Generator) -> np.ndarray:
    """Blocks that random ones never are: uint8[count, target].

    In each one value's sum is among the largest; or, in up to half of them, is rounded up to a power of two,
    so that a carry goes through all its bits. In fp32 nothing is rounded.
    """
    ft, most = fmt.float_type, _levels(fmt).max(axis=1).sum()
    sums = most - rng.integers(0, rng.choice([1, most // 32 + 1, most // 4, most // 2], count))
    fractions = rng.integers(0, 1 << FRACTION_BITS, count)
    fractions |= rng.choice([0, (1 << FRACTION_BITS) - 3], count)  # half of them large ones
    exponents = rng.integers(1, 1 << _EXPONENT_BITS, count)
    if ft.exponent_bits < 8:  # half of them around the least numbers that there are
        least = SCALE_BIAS - ft.bias - rng.integers(0, 32, count)
        exponents = np.where(rng.random(count) < 0.5, least, exponents)
    sums_up, fractions_up = _rounded_to_powers(fmt)
    if len(sums_up):
        chosen = rng.integers(0, len(sums_up), count)
        power = rng.integers(2 - ft.bias, ft.bias, count)
        exponents_up = power - _sizes(sums_up, fractions_up)[chosen] + SCALE_BIAS
        is_up = _is_exponent(exponents_up) & (rng.random(count) < 0.5)
        sums = np.where(is_up, sums_up[chosen], sums)
        fractions = np.where(is_up, fractions_up[chosen], fractions)
        exponents = np.where(is_up, exponents_up, exponents)
    places = rng.integers(0, fmt.block, count)
    return _with_sums(fmt, exponents << FRACTION_BITS | fractions, sums, places, rng)


def with_carries(fmt: HadamardFormat, bus_bytes: int, rng: np.random.Generator) -> np.ndarray:
    """Blocks in which one value is rounded up to a power of two, and all bits of its exponent field change.

    uint8[count, target], of fp32 none. Of each such power, in some of which the field is too large, and of
    each length of the product that makes it, there are three blocks for each lane of a word of the bus: not
    every sum can be met.
    """
    ft, (sums, fractions) = fmt.float_type, _rounded_to_powers(fmt)
    sizes = _sizes(sums, fractions)
    fields = 1 << np.arange(ft.exponent_bits - 1, _EXPONENT_BITS + 1)
    lanes = min(8 * bus_bytes // ft.width, fmt.block)
    every = np.meshgrid(np.arange(3 * lanes) % lanes, np.unique(sizes), fields)
    lane, size, field = (part.ravel() for part in every)
    exponents = field - ft.bias - size + SCALE_BIAS
    lane, size, exponents = (part[_is_exponent(exponents)] for part in (lane, size, exponents))
    chosen = np.array([rng.choice(np.flatnonzero(sizes == one)) for one in size], np.int64)
    places = lane + lanes * rng.integers(0, fmt.block // lanes, len(lane))
    return _with_sums(fmt, exponents << FRACTION_BITS | fractions[chosen], sums[chosen], places, rng)


def _sizes(sums: np.ndarray, fractions: np.ndarray) -> np.ndarray:
    """Bits of the products of sums and of scales with these fractions."""
    return np.frexp(sums * (fractions + 2.0**FRACTION_BITS))[1]


def _is_exponent(exponents: np.ndarray) -> np.ndarray:
    """Which of these numbers are those of scales."""
    return (exponents > 0) & (exponents < 1 << _EXPONENT_BITS)


def with_near_ties(fmt: HadamardFormat, bus_bytes: int, rng: np.random.Generator) -> np.ndarray:
    """Blocks in which one value is hard to round: uint8[count, target], of fp32 none.

    It lies half of a last place behind an odd number or an even one; or behind an even one, and one bit more
    than half: the bit must not get lost. Of each place of the half, and of the bit, there is one block for
    each lane of a word of the bus: of normal values, and of subnormal ones, whose last place is elsewhere.
    """
    ft, (sums, fractions, halves, classes) = fmt.float_type, _near_ties(fmt)
    lanes = min(8 * bus_bytes // ft.width, fmt.block)
    shuffled = [rng.permutation(len(classes)) for _ in range(lanes)]
    chosen = np.concatenate([order[np.unique(classes[order], return_index=True)[1]] for order in shuffled])
    words = rng.integers(0, fmt.block // lanes, len(chosen))
    places = np.repeat(np.arange(lanes), len(chosen) // lanes) + lanes * words
    size = _sizes(sums[chosen], fractions[chosen])
    power = rng.integers(2 - ft.bias, ft.bias, len(chosen))
    of_normal = (power - size + SCALE_BIAS).clip(1, (1 << _EXPONENT_BITS) - 1)
    of_subnormal = SCALE_BIAS - ft.bias - ft.mantissa_bits - halves[chosen]
    exponents = np.where(size - 1 - halves[chosen] == ft.mantissa_bits + 1, of_normal, of_subnormal)
    return _with_sums(fmt, exponents << FRACTION_BITS | fractions[chosen], sums[chosen], places, rng)


@functools.cache
def _near_ties(fmt: HadamardFormat) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Sums, fractions of scales, which bit of their product is half of a last place, and their class.

    Those of one class are hard alike: one of them is enough. All are int64.
    """
    ft, found = fmt.float_type, []
    sums, fractions = _sums_and_fractions(fmt)
    products = sums * (fractions + (1 << FRACTION_BITS))
    of_normal = np.frexp(products.astype(np.float64))[1] - ft.mantissa_bits - 2
    for half in range(int(products.max()).bit_length()):
        more = (products & (2 << half) - 1) - (1 << half)
        is_odd = products >> half + 1 & 1
        is_near = (more == 0) | (more > 0) & (more & more - 1 == 0) & (is_odd == 0)
        is_half = (of_normal == half) | (of_normal < half) & (ft.exponent_bits < 8)
        rows = np.flatnonzero(is_near & is_half)
        is_normal = (of_normal[rows] == half).astype(np.int64)
        classes = half | is_odd[rows] << 5 | is_normal << 6 | more[rows] << 7
        found.append(np.stack([sums[rows], fractions[rows], np.full(len(rows), half), classes]))
    sums, fractions, halves, classes = np.hstack(found)
    return sums, fractions, halves, classes


@functools.cache
def _rounded_to_powers(fmt: HadamardFormat) -> tuple[np.ndarray, np.ndarray]:
    """Sums, and fractions of scales with which they are rounded up to a power of two; int64 both."""
    sums, fractions = _sums_and_fractions(fmt)
    exact = sums * (1 + fractions / (1 << FRACTION_BITS))  # within the range of every type
    rounded = exact.astype(fmt.float_type.array).astype(np.float64)
    is_up = (rounded > exact) & (np.frexp(rounded)[0] == 0.5)
    return sums[is_up], fractions[is_up]


def _sums_and_fractions(fmt: HadamardFormat) -> list[np.ndarray]:
    """All sums above 0 that values may have, each with all fractions of scales; int64 both."""
    levels = _levels(fmt)
    step = np.gcd.reduce((levels.max(axis=1)[:, None] - levels).ravel())
    sums = np.arange(levels.max(axis=1).sum(), 0, -step)
    return [part.ravel() for part in np.meshgrid(sums, np.arange(1 << FRACTION_BITS))]


def _levels(fmt: HadamardFormat) -> np.ndarray:
    """What each coefficient can be, in units of the scale: int64[N, levels], filled up with the largest."""
    signed = [sorted(sign * level for level in LEVELS[width] for sign in (-1, 1)) for width in fmt.widths]
    size = max(len(levels) for levels in signed)
    return np.array([levels + levels[-1:] * (size - len(levels)) for levels in signed])


def _with_sums(
    fmt: HadamardFormat, headers: np.ndarray, sums: np.ndarray, places: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Blocks with these numbers for headers: uint8[count, target].

    In each the value at its place is a sum of coefficients, or the nearest to it that there can be, or its
    negative. Each coefficient takes about its share of what is left; the last ones bring it to an end.
    """
    levels, count = _levels(fmt), len(headers)
    most = levels.max(axis=1)
    order = rng.permutation(np.flatnonzero(fmt.widths))
    order = order[np.argsort(fmt.widths[order], kind="stable")]  # the last have most to choose from
    last = order[-(12 // fmt.widths.max()) :]  # of some thousand sums
    left, room = sums.astype(np.float64), most[order].sum()
    noise = rng.choice([0, 0.3, 1], count) * (1 - sums / room)
    parts = np.zeros((count, fmt.block), np.int64)
    for place in order[: -len(last)]:
        share = left * most[place] / room + noise * rng.normal(0, most[place], count)
        parts[:, place] = levels[place, np.abs(levels[place] - share[:, None]).argmin(axis=1)]
        left, room = left - parts[:, place], room - most[place]
    ends = np.stack(np.meshgrid(*levels[last]), axis=-1).reshape(-1, len(last))
    ends = ends[np.argsort(ends.sum(axis=1), kind="stable")]
    totals = ends.sum(axis=1)
    at = np.searchsorted(totals, left).clip(1, len(totals) - 1)
    parts[:, last] = ends[np.where(left - totals[at - 1] < totals[at] - left, at - 1, at)]

    odd = np.bitwise_count(places[:, None] & np.arange(fmt.block)) & 1
    return _stored(fmt, headers, parts * (1 - 2 * odd.astype(np.int64)) * rng.choice([-1, 1], (count, 1)))


def _stored(fmt: HadamardFormat, headers: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    """Blocks of headers and of coefficients in units of the scale, int64[count, N]: uint8[count, target]."""
    bits = [headers[:, None] >> np.arange(HEADER_BITS) & 1]
    for width, column in zip(fmt.widths, coefficients.T, strict=True):
        number = np.searchsorted(LEVELS[width], np.abs(column)) | (column < 0) << max(width - 1, 0)
        bits.append(number[:, None] >> np.arange(width) & 1)
    return np.packbits(np.hstack(bits).astype(np.uint8), axis=1, bitorder="little")


def nearly_valid_headers(fmt: Format) -> np.ndarray:
    """Blocks of zeros behind headers that are valid but for one bit, or valid: uint8[count, target].

    The valid ones are, of the Hadamard format, the smallest and the largest, some of those between, and often
    those of zeros and of specials. Of planes they are those of cleared memory, of blocks without mantissas,
    of each width of deltas, with and without signs, and of blocks with a NaN or an infinity, also with the
    largest base for each width; and these as if there were room for more planes.
    """
    if isinstance(fmt, HadamardFormat):
        numbers = [*range(-64, 64), *range(64, 1 << HEADER_BITS, 37), *[ZEROS, SPECIALS] * 50]
        headers = (np.array(numbers) % (1 << HEADER_BITS)).astype("<u2").view(np.uint8).reshape(-1, 2)
        return np.pad(headers, ((0, 0), (0, fmt.target - fmt.header_bytes)))
    ft = fmt.float_type
    odd = np.arange(fmt.block) % 2
    lowest = 1 + ft.exponent_max // 4
    fields = [0 * odd, *(lowest + odd * ((1 << width - 1) - 1) for width in range(1, ft.exponent_bits + 1))]
    ranges = [(1 << width - 1) - 1 for width in range(2, ft.exponent_bits + 1)]
    rests = [0, lowest, *(ft.exponent_max - span for span in ranges)]
    fields += [np.where(odd, ft.exponent_max, rest) for rest in rests]
    patterns = [
        _fields(fmt, sign, np.minimum(field, ft.exponent_max), mantissa * (field == ft.exponent_max))
        for field in fields
        for sign in (0 * odd, odd)
        for mantissa in (0, 1)
    ]
    values = np.stack(patterns).astype(ft.bits).view(ft.array)
    cleared = np.zeros((1, fmt.header_bytes), np.uint8)
    roomy = replace(fmt, target=fmt.original_bytes)
    headers = [one.compress(values)[:, : fmt.header_bytes] for one in (fmt, roomy)]
    valid = np.unique([*cleared, *np.concatenate(headers)], axis=0)
    flips = np.packbits(np.eye(8 * fmt.header_bytes, dtype=np.uint8), axis=1)
    headers = np.concatenate([valid, (valid[:, None] ^ flips).reshape(-1, fmt.header_bytes)])
    return np.pad(headers, ((0, 0), (0, fmt.target - fmt.header_bytes)))


def rare_stored(fmt: Format, bus_bytes: int, rng: np.random.Generator) -> np.ndarray:
    """Blocks for a decompressor that random ones hardly ever are, in any order: uint8[count, target].

    Their headers are just valid, or just not, some with any bytes behind them; of the Hadamard format some
    have chosen sums, and some are hard to round, or end in a carry.
    """
    nearly = nearly_valid_headers(fmt)
    valid = np.tile(nearly[~oracle.invalid_blocks(fmt, nearly)], (3, 1))
    rows = [nearly, with_any_payload(fmt, valid, rng)]
    if isinstance(fmt, HadamardFormat):
        rows.append(with_chosen_sums(fmt, 600, rng))
        rows += [with_near_ties(fmt, bus_bytes, rng), with_carries(fmt, bus_bytes, rng)]
    return rng.permutation(np.concatenate(rows))


def rare_values(fmt: Format, first: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Tensors for a compressor that random ones hardly ever are, [count, N], whose first block has a number.

    NaNs that have one bit of their mantissa, wherever in a block and beside what; in the Hadamard format
    blocks of nothing but coefficients without a field, which have no scale and become zeros.
    """
    if isinstance(fmt, HadamardFormat) and not fmt.names_specials:
        return [lone_bits(fmt), without_fields(fmt, first, 20, rng)]
    return [lone_bits(fmt)]


def without_fields(fmt: HadamardFormat, first: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Blocks, the first of that number, of which all that is not 0 are coefficients that have no field."""
    places = np.flatnonzero(fmt.widths == 0)
    odd = np.bitwise_count(places[:, None] & np.arange(fmt.block)) & 1
    numbers = ((first + np.arange(count)) % (1 << 32)).astype(np.uint32)
    values = rng.integers(-2, 3, (count, len(places))) @ (1 - 2 * odd.astype(np.int64)) * fmt.signs(numbers)
    return values.astype(fmt.float_type.array)


def _fields(fmt: Format, sign, exponent, mantissa) -> Blocks:
    ft = fmt.float_type
    wide = [np.asarray(part).astype(np.uint64) for part in (sign, exponent, mantissa)]
    return wide[0] << np.uint64(ft.width - 1) | wide[1] << np.uint64(ft.mantissa_bits) | wide[2]


def lone_bits(fmt: Format) -> np.ndarray:
    """Blocks of NaNs that have one bit of their mantissa set, and of these beside infinities: [count, N]."""
    ft = fmt.float_type
    odd = np.arange(fmt.block) % 2
    payloads = [1 << bit for bit in range(ft.mantissa_bits)]
    patterns = [
        _fields(fmt, sign, ft.exponent_max + 0 * odd, np.where(infinite, 0, payload))
        for payload in payloads
        for sign in (0 * odd, odd)
        for infinite in (0 * odd, odd, 1 - odd)
    ]
    return np.stack(patterns).astype(ft.bits).view(ft.array)


def _random_fields(fmt: Format, count: int, rng: np.random.Generator):
    shape = (count, fmt.block)
    sign = rng.integers(0, 2, shape)
    return shape, sign, rng.integers(0, fmt.float_type.mantissa_mask + 1, shape)


def _any_bits(fmt: Format, count: int, rng: np.random.Generator) -> Blocks:
    """Random floats of every exponent, NaNs and infinities among them."""
    shape, sign, mantissa = _random_fields(fmt, count, rng)
    return _fields(fmt, sign, rng.integers(0, fmt.float_type.exponent_max + 1, shape), mantissa)


def _narrow(fmt: Format, count: int, rng: np.random.Generator) -> Blocks:
    """Exponents within a range of every width, at every place, with and without zeros and signs.

    In some blocks few have the least exponent, or the largest, often only one.
    """
    ft = fmt.float_type
    shape, sign, mantissa = _random_fields(fmt, count, rng)
    span = rng.integers(1, 1 << rng.integers(0, ft.exponent_bits + 1, (count, 1)), endpoint=True)
    span = np.minimum(span, ft.exponent_max - 1)
    lowest = rng.integers(1, ft.exponent_max - span + 1)
    power = rng.choice([1 / 8, 1 / 4, 1, 1, 4, 8], (count, 1))
    exponent = lowest + (span * rng.random(shape) ** power).astype(np.int64)
    sign &= rng.integers(0, 2, (count, 1))
    zero = rng.random(shape) < rng.choice([0, 0.1, 0.9], (count, 1))
    return np.where(zero, 0, _fields(fmt, sign, exponent, mantissa)).astype(np.uint64)


def _sparse_mantissas(fmt: Format, count: int, rng: np.random.Generator) -> Blocks:
    """Few mantissa planes in use, with gaps between them, so that carries meet zero planes."""
    ft = fmt.float_type
    shape, sign, mantissa = _random_fields(fmt, count, rng)
    mask = rng.integers(0, ft.mantissa_mask + 1, (count, 1)) | rng.integers(
        0, ft.mantissa_mask + 1, (count, 1)
    )
    ones = rng.random((count, 1)) < 0.3
    mantissa = np.where(ones & (rng.random(shape) < 0.9), ft.mantissa_mask, mantissa) & mask
    middle = ft.exponent_max // 2
    return _fields(fmt, sign, rng.integers(middle, middle + 4, shape), mantissa)


def _rounds_up(fmt: Format, count: int, rng: np.random.Generator) -> Blocks:
    """Mantissas of ones, and ties: the low bits are exactly half of a random kept bit. Half without signs.

    The ones begin at the highest bit or behind a zero, so that a carry ends there. In a third of the blocks
    exponents are equal, in a third some of a dozen, and in a third all values are subnormal: nothing lies
    before their mantissas.
    """
    ft = fmt.float_type
    shape, sign, mantissa = _random_fields(fmt, count, rng)
    sign &= rng.integers(0, 2, (count, 1))
    half = np.int64(1) << rng.integers(0, ft.mantissa_bits, shape)
    tie = mantissa & ~(2 * half - 1) | half
    zero = np.int64(1) << rng.integers(ft.mantissa_bits // 2, ft.mantissa_bits + 1, shape)
    ones = ft.mantissa_mask & ~(half - 1) & ~zero
    mantissa = np.where(rng.random(shape) < 0.5, ones, tie)
    below = rng.integers(0, rng.choice([1, 12], (count, 1)), shape)
    exponent = np.where(rng.random((count, 1)) < 1 / 3, 0, ft.exponent_max // 2 - below)
    return _fields(fmt, sign, exponent, mantissa)


def _specials(fmt: Format, count: int, rng: np.random.Generator) -> Blocks:
    """A few NaNs (quiet, signalling, with payloads) and infinities among ordinary values."""
    ft = fmt.float_type
    shape, sign, mantissa = _random_fields(fmt, count, rng)
    special = rng.random(shape) < rng.choice([0.03, 0.3, 1], (count, 1))
    infinite = rng.random(shape) < rng.choice([0, 0.5, 1], (count, 1))
    payload = np.where(infinite, 0, np.where(rng.random(shape) < 0.3, 1, mantissa))
    ordinary = rng.integers(0, ft.exponent_max, (count, 1)) * (rng.random((count, 1)) < 0.8)
    exponent = np.where(special, ft.exponent_max, ordinary)
    sign &= rng.integers(0, 2, (count, 1))
    zero = ~special & (rng.random(shape) < rng.choice([0, 0.3], (count, 1)))
    value = _fields(fmt, sign, exponent, np.where(special, payload, mantissa))
    return np.where(zero, _fields(fmt, sign, 0, 0), value)


def _degenerate(fmt: Format, count: int, rng: np.random.Generator) -> Blocks:
    """In turn: all zero, -0.0, equal, subnormal (all, some or hardly any), one outlier, the largest value,
    nearly all as large as that, specials of each kind."""
    ft = fmt.float_type
    shape, sign, mantissa = _random_fields(fmt, count, rng)
    exponent = rng.integers(0, ft.exponent_max, (count, 1))
    equal = np.broadcast_to(_fields(fmt, sign[:, :1], exponent, mantissa[:, :1]), shape)
    outlier = _fields(fmt, sign, np.maximum(ft.exponent_max // 4, 1), mantissa)
    smaller = rng.integers(0, 12, shape) * (rng.random(shape) < rng.choice([0, 0.05], (count, 1)))
    outlier[:, rng.integers(0, fmt.block)] = _fields(fmt, 1, ft.exponent_max - 1, ft.mantissa_mask)
    few = rng.random(shape) < rng.choice([0.01, 0.1, 1], (count, 1))
    subnormal = _fields(fmt, sign, 0, few * mantissa >> rng.integers(0, ft.mantissa_bits, (count, 1)))
    specials = [
        np.broadcast_to(_fields(fmt, negative, ft.exponent_max, payload), shape)
        for negative in (0, 1)
        for payload in (0, 1, ft.quiet_bit, ft.mantissa_mask)
    ]
    choices = [
        np.zeros(shape),
        _fields(fmt, np.ones(shape), 0, 0),
        equal,
        subnormal,
        outlier,
        np.broadcast_to(_fields(fmt, 0, ft.exponent_max - 1, ft.mantissa_mask), shape),
        _fields(fmt, sign, ft.exponent_max - 1 - smaller, np.where(smaller, mantissa, ft.mantissa_mask)),
        *specials,
    ]
    turns = np.arange(count)[:, None] + rng.integers(len(choices))
    return np.choose(turns % len(choices), choices).astype(np.uint64)


def _every_rank(fmt: PlaneFormat, count: int, rng: np.random.Generator) -> Blocks:
    """Subnormals whose last plane is each mantissa plane, behind each number of others that fit, in turn."""
    ft = fmt.float_type
    _, sign, mantissa = _random_fields(fmt, count, rng)
    turns = np.arange(count)[:, None] + rng.integers(ft.mantissa_bits * (fmt.slots + 1))
    last = turns % ft.mantissa_bits
    before = turns // ft.mantissa_bits % np.minimum(last + 2, fmt.slots + 1)
    candidates = np.arange(ft.mantissa_bits + 1)  # the sign plane, then the mantissa planes
    order = np.where(candidates <= last, rng.random((count, ft.mantissa_bits + 1)), 2).argsort(axis=1)
    used = (order.argsort(axis=1) < before) | (candidates == last + 1)
    mask = (used[:, 1:] << np.arange(ft.mantissa_bits)[::-1]).sum(axis=1)[:, None]
    return _fields(fmt, sign & used[:, :1], 0, mantissa & mask)


def _lone_exponents(fmt: PlaneFormat, count: int, rng: np.random.Generator) -> Blocks:
    """Two neighbouring exponents, one of them at a single place, at each in turn; they differ in any number
    of bits."""
    ft = fmt.float_type
    _, sign, mantissa = _random_fields(fmt, count, rng)
    carry = np.int64(1) << rng.integers(0, ft.exponent_bits, (count, 1))
    upper = carry * (2 * rng.integers(0, ((ft.exponent_max - 1) // carry + 1) // 2) + 1)
    turns = np.arange(count)[:, None] + rng.integers(fmt.block)
    is_upper = (np.arange(fmt.block) == turns % fmt.block) ^ (rng.random((count, 1)) < 0.5)
    return _fields(fmt, sign & rng.integers(0, 2, (count, 1)), upper - 1 + is_upper, mantissa)


def _planes_that_barely_fit(fmt: PlaneFormat, count: int, rng: np.random.Generator) -> Blocks:
    """As many planes as have slots, or a few less or more, whichever they are; many mantissas of ones."""
    ft = fmt.float_type
    shape, sign, mantissa = _random_fields(fmt, count, rng)
    total = fmt.slots + rng.integers(-2, 4, count)
    signs = rng.integers(0, 2, count)
    width = rng.integers(0, np.clip(total - signs, 0, ft.exponent_bits) + 1)
    planes = np.clip(total - signs - width, rng.integers(0, 2, count), ft.mantissa_bits)
    width = np.where(planes == ft.mantissa_bits, np.clip(total - signs - planes, 0, ft.exponent_bits), width)
    scattered = rng.random((count, ft.mantissa_bits)).argsort(axis=1)
    neighbours = (
        np.arange(ft.mantissa_bits) + rng.integers(0, ft.mantissa_bits, (count, 1))
    ) % ft.mantissa_bits
    order = np.where(rng.random((count, 1)) < 0.5, scattered, neighbours)
    mask = ((order < planes[:, None]) << np.arange(ft.mantissa_bits)).sum(axis=1)[:, None]
    span = (1 << width) - 1  # the largest delta
    lowest = rng.integers(1, ft.exponent_max - span + 2)[:, None]
    delta = rng.integers(0, span[:, None] + 1, shape)
    exponent = np.where(delta > 0, lowest + delta - 1, 0)
    ones = rng.random(shape) < rng.choice([0, 0.3], (count, 1))
    return _fields(fmt, sign & signs[:, None], exponent, np.where(ones, mask, mantissa & mask))


Kinds = dict[str, Callable[[Format, int, np.random.Generator], Blocks]]

_KINDS: Kinds = {
    "any": _any_bits,
    "narrow": _narrow,
    "sparse": _sparse_mantissas,
    "ties": _rounds_up,
    "specials": _specials,
    "degenerate": _degenerate,
}


def _around_a_mean(fmt: HadamardFormat, count: int, rng: np.random.Generator) -> Blocks:
    """Gaussians of every magnitude, with a mean or without, some values far out, some blocks nearly zero."""
    ft = fmt.float_type
    shape = (count, fmt.block)
    values = rng.normal(rng.choice([0, 1, 30], (count, 1)), 1, shape)
    far = rng.random(shape) < rng.choice([0, 0.02, 0.3], (count, 1))
    values = np.where(far, values * np.exp2(rng.uniform(0, 14, shape)), values)
    lowest = 2 - (1 << ft.exponent_bits - 1) - ft.mantissa_bits
    exponent = rng.uniform(lowest, 1 << ft.exponent_bits - 1, (count, 1))
    largest = float(ml_dtypes.finfo(ft.array).max)
    with np.errstate(over="ignore"):
        return np.clip(values * np.exp2(exponent), -largest, largest).astype(ft.array).view(ft.bits)


def _whole_numbers(fmt: HadamardFormat, count: int, rng: np.random.Generator) -> Blocks:
    """Small integers: few coefficients are anything but 0, and many are just a threshold."""
    ft = fmt.float_type
    shape = (count, fmt.block)
    values = rng.integers(-1, 2, shape) << rng.integers(0, 6, (count, 1))
    rows = np.arange(fmt.block) & rng.integers(0, fmt.block, (count, 1))
    odd = np.array([bin(number).count("1") & 1 for number in range(fmt.block)])
    values = np.where(rng.random((count, 1)) < 0.5, 1 - 2 * odd[rows], values)
    values = values * (rng.random(shape) < rng.choice([0.02, 0.3, 1], (count, 1)))
    return values.astype(ft.array).view(ft.bits)


# Those that only one format has a use for.
_KINDS_OF: dict[type[Format], Kinds] = {
    PlaneFormat: {"fits": _planes_that_barely_fit, "ranks": _every_rank, "lone": _lone_exponents},
    HadamardFormat: {"mean": _around_a_mean, "whole": _whole_numbers},
}


def kinds(fmt: Format) -> Kinds:
    """The kinds of blocks for a format."""
    return _KINDS | _KINDS_OF[type(fmt)]
