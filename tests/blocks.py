"""Blocks that are hard on a codec, and hypothesis strategies over formats and such blocks."""

from functools import lru_cache

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from golden import PlaneFormat

from .reference import FIELDS, Parameters

DTYPES = tuple(FIELDS)
BLOCKS = (16, 32, 64, 128)
ROUNDINGS = ("nearest", "truncate")
ARRAYS = {"fp32": np.float32, "bf16": ml_dtypes.bfloat16, "fp16": np.float16}
UINTS = {"fp32": np.uint32, "bf16": np.uint16, "fp16": np.uint16}


def target_range(dtype, block):
    """Smallest and largest target, from the page: header and two bits a value, and the uncompressed block."""
    p = Parameters(dtype, block, None)
    return p.header + block // 4, block * p.width // 8


def every_format(dtypes=DTYPES, blocks=BLOCKS, roundings=ROUNDINGS):
    """Each dtype, block, target and rounding of fixed mode."""
    for dtype in dtypes:
        for block in blocks:
            low, high = target_range(dtype, block)
            for target in range(low, high + 1):
                for rounding in roundings:
                    yield PlaneFormat(dtype, block, target, rounding)


def parameters(fmt):
    """The reference's parameters for a format of golden."""
    return Parameters(fmt.dtype, fmt.block, fmt.target, fmt.rounding)


def as_values(fmt, words):
    """Bit patterns as an array of the format's values; no value is converted, so no NaN is changed."""
    return np.ascontiguousarray(words, UINTS[fmt.dtype]).view(ARRAYS[fmt.dtype])


def as_words(values):
    """The bit patterns of values."""
    return values.view(np.uint16 if values.dtype.itemsize == 2 else np.uint32)


def specials(dtype):
    """Bit patterns at the edges of a type: zeros, subnormals, normals, infinities, NaNs; both signs."""
    e, m = FIELDS[dtype]
    top = (2**e - 1) << m
    quiet = 1 << (m - 1)
    edges = [0, 1, quiet, 2**m - 1, 1 << m, (1 << m) + 1, (2 << m) - 1, top - 1, top - (1 << m)]
    edges += [top, top + 1, top + quiet - 1, top + quiet, top + quiet + 1, top + 2**m - 1]
    one = (2 ** (e - 1) - 1) << m
    edges += [one, one + 1, one + quiet, one + 2**m - 1]
    return [sign << (e + m) | edge for edge in edges for sign in (0, 1)]


class Maker:
    """Makes blocks of bit patterns from a seed; each recipe is a method that gives one block."""

    def __init__(self, dtype, block, seed):
        self.e, self.m = FIELDS[dtype]
        self.dtype, self.n = dtype, block
        self.rng = np.random.default_rng(seed)
        self.recipes = [
            self.random,
            self.narrow,
            self.narrow,
            self.all_ones,
            self.all_ones,
            self.sparse,
            self.sparse,
            self.constant,
            self.outlier,
            self.huge_range,
            self.subnormal,
            self.edges,
        ]

    def block(self):
        """A block of some recipe, with some signs, and perhaps zeros or specials strewn in."""
        words = self.rng.choice(self.recipes)()
        signs = self.rng.integers(3)
        if signs < 2:
            words &= (1 << (self.e + self.m)) - 1
        if signs == 1:
            words |= self.integers(2) << (self.e + self.m)
        if self.rng.random() < 0.3:
            words[self.rng.random(self.n) < self.rng.random()] = 0
        if self.rng.random() < 0.4:
            places = self.rng.integers(self.n, size=self.rng.integers(1, 4))
            words[places] = self.rng.choice(specials(self.dtype), len(places))
        return words

    def integers(self, high):
        return self.rng.integers(high, size=self.n)

    def fields(self, spread):
        """Exponent fields in a narrow band, often at an end of the range."""
        low = self.rng.choice([0, 1, self.rng.integers(2**self.e), 2**self.e - 1 - spread])
        return np.clip(low + self.integers(spread + 1), 0, 2**self.e - 1)

    def random(self):
        return self.integers(2 ** (1 + self.e + self.m))

    def narrow(self):
        """Like activations: a few binades, any mantissa."""
        return self.fields(self.rng.integers(1, 9)) << self.m | self.integers(2**self.m)

    def all_ones(self):
        """Mantissas with long runs of ones, which carry far when they round up."""
        ones = (2**self.m - 1) & ~((1 << self.integers(self.m)) - 1)
        ones ^= np.where(self.integers(3) == 0, 1 << self.integers(self.m), 0)
        if self.rng.random() < 0.3:
            ones[:] = 2**self.m - 1
        return self.fields(self.rng.integers(0, 4)) << self.m | ones

    def sparse(self):
        """Mantissas with the same few bit positions, so that many planes are zero planes."""
        mask = self.rng.integers(2**self.m) & self.rng.integers(2**self.m)
        return self.fields(self.rng.integers(0, 4)) << self.m | self.integers(2**self.m) & mask

    def constant(self):
        return np.full(self.n, self.rng.integers(2 ** (1 + self.e + self.m)))

    def outlier(self):
        """Small values and one large one."""
        words = self.rng.integers(1, 9, self.n) << self.m | self.integers(2**self.m)
        words[self.rng.integers(self.n)] = self.rng.integers(2 ** (self.e + self.m))
        return words

    def huge_range(self):
        return self.integers(2**self.e - 1) << self.m | self.integers(2**self.m)

    def subnormal(self):
        return self.integers(2**self.m) >> self.rng.integers(self.m)

    def edges(self):
        return self.rng.choice(specials(self.dtype), self.n)


def adversarial(fmt, blocks, seed):
    """Bit patterns of ``blocks`` blocks of mixed recipes: uint[blocks, N]."""
    return _adversarial(fmt.dtype, fmt.block, blocks, seed).copy()


@lru_cache(maxsize=64)
def _adversarial(dtype, block, blocks, seed):
    """They are made one by one: the same ones serve several formats."""
    maker = Maker(dtype, block, seed)
    return np.array([maker.block() for _ in range(blocks)], UINTS[dtype]).reshape(blocks, block)


@st.composite
def formats(draw, modes=("fixed", "lossless"), roundings=ROUNDINGS):
    """Any format. Small targets, and those around a boundary between rules, are drawn often."""
    dtype, block = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(BLOCKS))
    low, high = target_range(dtype, block)
    if draw(st.sampled_from(modes)) == "lossless":
        return PlaneFormat(dtype, block, None)
    tight = st.integers(low, min(high, low + block // 4))
    target = draw(tight | st.integers(low, high))
    return PlaneFormat(dtype, block, target, draw(st.sampled_from(roundings)))


@st.composite
def blocks_of(draw, fmt, most=4):
    """Bit patterns of 1 to ``most`` blocks of a format: adversarial ones, or a few values and zeros."""
    if draw(st.booleans()):
        return adversarial(fmt, draw(st.integers(1, most)), draw(st.integers(0, 2**32 - 1)))
    width = parameters(fmt).width
    value = st.integers(0, 2**width - 1) | st.sampled_from(specials(fmt.dtype))
    listed = draw(st.lists(value, min_size=1, max_size=fmt.block))
    return np.array([listed + [0] * (fmt.block - len(listed))], UINTS[fmt.dtype])


@st.composite
def formats_and_blocks(draw, **kwargs):
    fmt = draw(formats(**kwargs))
    return fmt, draw(blocks_of(fmt))


def assert_same_words(fmt, found, expected, given=None):
    """Equal bit patterns; the message gives the first that differs, and what it was made from."""
    found, expected = np.asarray(found).reshape(-1), np.asarray(expected).reshape(-1)
    assert found.shape == expected.shape
    wrong = np.flatnonzero(found != expected)
    if len(wrong):
        i = wrong[0]
        digits = fmt.float_type.width // 4
        source = "" if given is None else f", made from {int(np.asarray(given).reshape(-1)[i]):0{digits}x}"
        raise AssertionError(
            f"{fmt}: block {i // fmt.block}, value {i % fmt.block} is {int(found[i]):0{digits}x}, "
            f"not {int(expected[i]):0{digits}x}{source}"
        )


def assert_holds(fmt, holds, words, decoded, promise):
    """A promise about each value; the message gives the first value that breaks it."""
    wrong = np.argwhere(~np.asarray(holds))
    if len(wrong):
        block, i = wrong[0]
        digits = parameters(fmt).width // 4
        raise AssertionError(
            f"{fmt}: {promise}, but block {block}, value {i} went from {int(words[block, i]):0{digits}x} "
            f"to {int(decoded[block, i]):0{digits}x}"
        )
