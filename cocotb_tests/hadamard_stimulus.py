"""Blocks for the engines of the Hadamard format: chosen sums, hard roundings, headers of each kind."""

from __future__ import annotations

import functools

import ml_dtypes
import numpy as np

from golden import HadamardFormat
from golden.hadamard import FRACTION_BITS, HEADER_BITS, LEVELS, SCALE_BIAS, SPECIALS, ZEROS

from .fields import Blocks

_EXPONENT_BITS = HEADER_BITS - FRACTION_BITS


def nearly_valid_headers(fmt: HadamardFormat) -> np.ndarray:
    """Blocks of zeros behind headers: uint8[count, target].

    They are the smallest and the largest, some of those between, and often those of zeros and of specials.
    """
    numbers = [*range(-64, 64), *range(64, 1 << HEADER_BITS, 37), *[ZEROS, SPECIALS] * 50]
    headers = (np.array(numbers) % (1 << HEADER_BITS)).astype("<u2").view(np.uint8).reshape(-1, 2)
    return np.pad(headers, ((0, 0), (0, fmt.target - fmt.header_bytes)))


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


def without_fields(fmt: HadamardFormat, first: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Blocks, the first of that number, of which all that is not 0 are coefficients that have no field."""
    places = np.flatnonzero(fmt.widths == 0)
    odd = np.bitwise_count(places[:, None] & np.arange(fmt.block)) & 1
    numbers = ((first + np.arange(count)) % (1 << 32)).astype(np.uint32)
    values = rng.integers(-2, 3, (count, len(places))) @ (1 - 2 * odd.astype(np.int64)) * fmt.signs(numbers)
    return values.astype(fmt.float_type.array)


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


def _sizes(sums: np.ndarray, fractions: np.ndarray) -> np.ndarray:
    """Bits of the products of sums and of scales with these fractions."""
    return np.frexp(sums * (fractions + 2.0**FRACTION_BITS))[1]


def _is_exponent(exponents: np.ndarray) -> np.ndarray:
    """Which of these numbers are those of scales."""
    return (exponents > 0) & (exponents < 1 << _EXPONENT_BITS)


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


KINDS = {"mean": _around_a_mean, "whole": _whole_numbers}
