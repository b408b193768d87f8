"""Tensors to put through the engines: random floats, adversarial blocks and real activations.

What only one format has a use for is in plane_stimulus.py and hadamard_stimulus.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np

from golden import Format, HadamardFormat

from . import hadamard_stimulus, oracle, plane_stimulus
from .fields import Blocks, fields, random_fields

Kinds = dict[str, Callable[[Format, int, np.random.Generator], Blocks]]


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


def nearly_valid_headers(fmt: Format) -> np.ndarray:
    """Blocks of zeros behind headers of each kind that are just valid, or just not: uint8[count, target]."""
    return _only_of(fmt).nearly_valid_headers(fmt)


def rare_stored(fmt: Format, bus_bytes: int, rng: np.random.Generator) -> np.ndarray:
    """Blocks for a decompressor that random ones hardly ever are, in any order: uint8[count, target].

    Their headers are just valid, or just not, some with any bytes behind them; of the Hadamard format some
    have chosen sums, and some are hard to round, or end in a carry.
    """
    nearly = nearly_valid_headers(fmt)
    valid = np.tile(nearly[~oracle.invalid_blocks(fmt, nearly)], (3, 1))
    rows = [nearly, with_any_payload(fmt, valid, rng)]
    if isinstance(fmt, HadamardFormat):
        rows.append(hadamard_stimulus.with_chosen_sums(fmt, 600, rng))
        rows += [
            hadamard_stimulus.with_near_ties(fmt, bus_bytes, rng),
            hadamard_stimulus.with_carries(fmt, bus_bytes, rng),
        ]
    return rng.permutation(np.concatenate(rows))


def rare_values(fmt: Format, first: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Tensors for a compressor that random ones hardly ever are, [count, N], whose first block has a number.

    NaNs that have one bit of their mantissa, wherever in a block and beside what; in the Hadamard format
    blocks of nothing but coefficients without a field, which have no scale and become zeros.
    """
    if isinstance(fmt, HadamardFormat) and not fmt.names_specials:
        return [lone_bits(fmt), hadamard_stimulus.without_fields(fmt, first, 20, rng)]
    return [lone_bits(fmt)]


def lone_bits(fmt: Format) -> np.ndarray:
    """Blocks of NaNs that have one bit of their mantissa set, and of these beside infinities: [count, N]."""
    ft = fmt.float_type
    odd = np.arange(fmt.block) % 2
    payloads = [1 << bit for bit in range(ft.mantissa_bits)]
    patterns = [
        fields(fmt, sign, ft.exponent_max + 0 * odd, np.where(infinite, 0, payload))
        for payload in payloads
        for sign in (0 * odd, odd)
        for infinite in (0 * odd, odd, 1 - odd)
    ]
    return np.stack(patterns).astype(ft.bits).view(ft.array)


def _any_bits(fmt: Format, count: int, rng: np.random.Generator) -> Blocks:
    """Random floats of every exponent, NaNs and infinities among them."""
    shape, sign, mantissa = random_fields(fmt, count, rng)
    return fields(fmt, sign, rng.integers(0, fmt.float_type.exponent_max + 1, shape), mantissa)


def _narrow(fmt: Format, count: int, rng: np.random.Generator) -> Blocks:
    """Exponents within a range of every width, at every place, with and without zeros and signs.

    In some blocks few have the least exponent, or the largest, often only one.
    """
    ft = fmt.float_type
    shape, sign, mantissa = random_fields(fmt, count, rng)
    span = rng.integers(1, 1 << rng.integers(0, ft.exponent_bits + 1, (count, 1)), endpoint=True)
    span = np.minimum(span, ft.exponent_max - 1)
    lowest = rng.integers(1, ft.exponent_max - span + 1)
    power = rng.choice([1 / 8, 1 / 4, 1, 1, 4, 8], (count, 1))
    exponent = lowest + (span * rng.random(shape) ** power).astype(np.int64)
    sign &= rng.integers(0, 2, (count, 1))
    zero = rng.random(shape) < rng.choice([0, 0.1, 0.9], (count, 1))
    return np.where(zero, 0, fields(fmt, sign, exponent, mantissa)).astype(np.uint64)


def _sparse_mantissas(fmt: Format, count: int, rng: np.random.Generator) -> Blocks:
    """Few mantissa planes in use, with gaps between them, so that carries meet zero planes."""
    ft = fmt.float_type
    shape, sign, mantissa = random_fields(fmt, count, rng)
    mask = rng.integers(0, ft.mantissa_mask + 1, (count, 1)) | rng.integers(
        0, ft.mantissa_mask + 1, (count, 1)
    )
    ones = rng.random((count, 1)) < 0.3
    mantissa = np.where(ones & (rng.random(shape) < 0.9), ft.mantissa_mask, mantissa) & mask
    middle = ft.exponent_max // 2
    return fields(fmt, sign, rng.integers(middle, middle + 4, shape), mantissa)


def _rounds_up(fmt: Format, count: int, rng: np.random.Generator) -> Blocks:
    """Mantissas of ones, and ties: the low bits are exactly half of a random kept bit. Half without signs.

    The ones begin at the highest bit or behind a zero, so that a carry ends there. In a third of the blocks
    exponents are equal, in a third some of a dozen, and in a third all values are subnormal: nothing lies
    before their mantissas.
    """
    ft = fmt.float_type
    shape, sign, mantissa = random_fields(fmt, count, rng)
    sign &= rng.integers(0, 2, (count, 1))
    half = np.int64(1) << rng.integers(0, ft.mantissa_bits, shape)
    tie = mantissa & ~(2 * half - 1) | half
    zero = np.int64(1) << rng.integers(ft.mantissa_bits // 2, ft.mantissa_bits + 1, shape)
    ones = ft.mantissa_mask & ~(half - 1) & ~zero
    mantissa = np.where(rng.random(shape) < 0.5, ones, tie)
    below = rng.integers(0, rng.choice([1, 12], (count, 1)), shape)
    exponent = np.where(rng.random((count, 1)) < 1 / 3, 0, ft.exponent_max // 2 - below)
    return fields(fmt, sign, exponent, mantissa)


def _specials(fmt: Format, count: int, rng: np.random.Generator) -> Blocks:
    """A few NaNs (quiet, signalling, with payloads) and infinities among ordinary values."""
    ft = fmt.float_type
    shape, sign, mantissa = random_fields(fmt, count, rng)
    special = rng.random(shape) < rng.choice([0.03, 0.3, 1], (count, 1))
    infinite = rng.random(shape) < rng.choice([0, 0.5, 1], (count, 1))
    payload = np.where(infinite, 0, np.where(rng.random(shape) < 0.3, 1, mantissa))
    ordinary = rng.integers(0, ft.exponent_max, (count, 1)) * (rng.random((count, 1)) < 0.8)
    exponent = np.where(special, ft.exponent_max, ordinary)
    sign &= rng.integers(0, 2, (count, 1))
    zero = ~special & (rng.random(shape) < rng.choice([0, 0.3], (count, 1)))
    value = fields(fmt, sign, exponent, np.where(special, payload, mantissa))
    return np.where(zero, fields(fmt, sign, 0, 0), value)


def _degenerate(fmt: Format, count: int, rng: np.random.Generator) -> Blocks:
    """In turn: all zero, -0.0, equal, subnormal (all, some or hardly any), one outlier, the largest value,
    nearly all as large as that, specials of each kind."""
    ft = fmt.float_type
    shape, sign, mantissa = random_fields(fmt, count, rng)
    exponent = rng.integers(0, ft.exponent_max, (count, 1))
    equal = np.broadcast_to(fields(fmt, sign[:, :1], exponent, mantissa[:, :1]), shape)
    outlier = fields(fmt, sign, np.maximum(ft.exponent_max // 4, 1), mantissa)
    smaller = rng.integers(0, 12, shape) * (rng.random(shape) < rng.choice([0, 0.05], (count, 1)))
    outlier[:, rng.integers(0, fmt.block)] = fields(fmt, 1, ft.exponent_max - 1, ft.mantissa_mask)
    few = rng.random(shape) < rng.choice([0.01, 0.1, 1], (count, 1))
    subnormal = fields(fmt, sign, 0, few * mantissa >> rng.integers(0, ft.mantissa_bits, (count, 1)))
    specials = [
        np.broadcast_to(fields(fmt, negative, ft.exponent_max, payload), shape)
        for negative in (0, 1)
        for payload in (0, 1, ft.quiet_bit, ft.mantissa_mask)
    ]
    choices = [
        np.zeros(shape),
        fields(fmt, np.ones(shape), 0, 0),
        equal,
        subnormal,
        outlier,
        np.broadcast_to(fields(fmt, 0, ft.exponent_max - 1, ft.mantissa_mask), shape),
        fields(fmt, sign, ft.exponent_max - 1 - smaller, np.where(smaller, mantissa, ft.mantissa_mask)),
        *specials,
    ]
    turns = np.arange(count)[:, None] + rng.integers(len(choices))
    return np.choose(turns % len(choices), choices).astype(np.uint64)


_KINDS: Kinds = {
    "any": _any_bits,
    "narrow": _narrow,
    "sparse": _sparse_mantissas,
    "ties": _rounds_up,
    "specials": _specials,
    "degenerate": _degenerate,
}


def kinds(fmt: Format) -> Kinds:
    """The kinds of blocks for a format."""
    return _KINDS | _only_of(fmt).KINDS


def _only_of(fmt: Format) -> ModuleType:
    return hadamard_stimulus if isinstance(fmt, HadamardFormat) else plane_stimulus
