"""Blocks for the engines of the bit-plane format: counts and places of planes, and headers of each kind."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from golden import PlaneFormat

from .fields import Blocks, fields, random_fields


def nearly_valid_headers(fmt: PlaneFormat) -> np.ndarray:
    """Blocks of zeros behind headers that are valid, or valid but for one bit: uint8[count, target].

    The valid ones are those of cleared memory, of blocks without mantissas, of each width of deltas, with and
    without signs, and of blocks with a NaN or an infinity, also with the largest base for each width; and
    these as if there were room for more planes.
    """
    ft = fmt.float_type
    odd = np.arange(fmt.block) % 2
    lowest = 1 + ft.exponent_max // 4
    exponents = [
        0 * odd,
        *(lowest + odd * ((1 << width - 1) - 1) for width in range(1, ft.exponent_bits + 1)),
    ]
    ranges = [(1 << width - 1) - 1 for width in range(2, ft.exponent_bits + 1)]
    rests = [0, lowest, *(ft.exponent_max - span for span in ranges)]
    exponents += [np.where(odd, ft.exponent_max, rest) for rest in rests]
    patterns = [
        fields(fmt, sign, np.minimum(field, ft.exponent_max), mantissa * (field == ft.exponent_max))
        for field in exponents
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


def _planes_that_barely_fit(fmt: PlaneFormat, count: int, rng: np.random.Generator) -> Blocks:
    """As many planes as have slots, or a few less or more, whichever they are; many mantissas of ones."""
    ft = fmt.float_type
    shape, sign, mantissa = random_fields(fmt, count, rng)
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
    return fields(fmt, sign & signs[:, None], exponent, np.where(ones, mask, mantissa & mask))


def _every_rank(fmt: PlaneFormat, count: int, rng: np.random.Generator) -> Blocks:
    """Subnormals whose last plane is each mantissa plane, behind each number of others that fit, in turn."""
    ft = fmt.float_type
    _, sign, mantissa = random_fields(fmt, count, rng)
    turns = np.arange(count)[:, None] + rng.integers(ft.mantissa_bits * (fmt.slots + 1))
    last = turns % ft.mantissa_bits
    before = turns // ft.mantissa_bits % np.minimum(last + 2, fmt.slots + 1)
    candidates = np.arange(ft.mantissa_bits + 1)  # the sign plane, then the mantissa planes
    order = np.where(candidates <= last, rng.random((count, ft.mantissa_bits + 1)), 2).argsort(axis=1)
    used = (order.argsort(axis=1) < before) | (candidates == last + 1)
    mask = (used[:, 1:] << np.arange(ft.mantissa_bits)[::-1]).sum(axis=1)[:, None]
    return fields(fmt, sign & used[:, :1], 0, mantissa & mask)


def _lone_exponents(fmt: PlaneFormat, count: int, rng: np.random.Generator) -> Blocks:
    """Two neighbouring exponents, one of them at a single place, at each in turn; they differ in any number
    of bits."""
    ft = fmt.float_type
    _, sign, mantissa = random_fields(fmt, count, rng)
    carry = np.int64(1) << rng.integers(0, ft.exponent_bits, (count, 1))
    upper = carry * (2 * rng.integers(0, ((ft.exponent_max - 1) // carry + 1) // 2) + 1)
    turns = np.arange(count)[:, None] + rng.integers(fmt.block)
    is_upper = (np.arange(fmt.block) == turns % fmt.block) ^ (rng.random((count, 1)) < 0.5)
    return fields(fmt, sign & rng.integers(0, 2, (count, 1)), upper - 1 + is_upper, mantissa)


KINDS = {"fits": _planes_that_barely_fit, "ranks": _every_rank, "lone": _lone_exponents}
