"""Blocks that are hard on the Hadamard format, and a hypothesis strategy over formats and such blocks."""

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from golden import HadamardFormat

from .blocks import ARRAYS, DTYPES, UINTS
from .blocks import Maker as AnyMaker
from .hadamard_reference import Parameters, pattern, rows

BLOCKS = (64, 128, 256)
FIRSTS = (0, 1, 5, 0x9E3779B9 - 1, 2**31 - 1, 2**32 - 2, 2**32 - 1)


def target_range(block):
    """Smallest and largest target, from the page: 1 and 4 bits a value."""
    return block // 8, block // 2


def parameters(fmt):
    """The reference's parameters for a format of golden."""
    return Parameters(fmt.dtype, fmt.block, fmt.target)


class Maker:
    """Makes blocks of finite values from a seed; each recipe is a method that gives one block, float64[N].

    Args:
        fmt: the format that they are for.
        seed: of everything random.
        number: of the block that is made, for what depends on its sign pattern.
    """

    def __init__(self, fmt, seed, number):
        self.fmt, self.n = fmt, fmt.block
        self.rng = np.random.default_rng((seed, number))
        self.number = number
        self.lowest, self.highest = (-25, 17) if fmt.dtype == "fp16" else (-150, 129)
        self.recipes = [
            self.gaussian,
            self.gaussian,
            self.faint,
            self.grid,
            self.grid,
            self.rows,
            self.rows,
            self.few,
            self.outlier,
            self.spread,
            self.constant,
            self.largest,
        ]

    def block(self):
        """Bit patterns of a block of some recipe, or of one that is hard on planes, without its specials."""
        if self.rng.random() < 0.3:
            words = AnyMaker(self.fmt.dtype, self.n, self.rng.integers(2**32)).block()
            return self.finite(words.astype(UINTS[self.fmt.dtype]))
        largest = float(ml_dtypes.finfo(ARRAYS[self.fmt.dtype]).max)
        values = np.clip(self.rng.choice(self.recipes)(), -largest, largest)
        return values.astype(ARRAYS[self.fmt.dtype]).view(UINTS[self.fmt.dtype])

    def finite(self, words):
        """Bit patterns, the lowest exponent bit of specials cleared."""
        p = parameters(self.fmt)
        special = words >> p.m & p.special == p.special
        return np.where(special, words ^ (1 << p.m), words).astype(words.dtype)

    def scale(self):
        return 2.0 ** self.rng.integers(self.lowest, self.highest)

    def gaussian(self):
        return self.rng.standard_normal(self.n) * self.scale()

    def faint(self):
        """Around the scale below which a block is zeros, or the smallest subnormals of fp16."""
        highest = -14 if self.fmt.dtype == "fp16" else -116
        return self.rng.standard_normal(self.n) * 2.0 ** self.rng.uniform(highest - 10, highest)

    def grid(self):
        """Small integers: values and coefficients that are equal to a bound or to each other."""
        most = self.rng.choice([1, 2, 5, 40, 3000])
        return self.rng.integers(-most, most + 1, self.n) * self.scale()

    def rows(self):
        """What the transform turns into one coefficient, or a few, and perhaps a little of the others."""
        signs = np.array(pattern(self.n, self.number))
        some = np.array(rows(self.n))[self.rng.choice([0, 1, self.n - 1, self.rng.integers(self.n)], 3)]
        weights = self.rng.choice([0, 0, 1, 2.5, -7], 3)
        weights[0] = 40
        values = (weights @ some) * signs * self.rng.choice([1, 2**-5, 51.175])
        values[self.rng.integers(self.n)] += self.rng.choice([0, 0, 1, -1])
        return values * self.scale()

    def few(self):
        """A few values among zeros."""
        values = np.zeros(self.n)
        places = self.rng.integers(self.n, size=self.rng.integers(1, 9))
        values[places] = self.rng.choice([-1, 1, 1, 1.5, 2**-10, 2**-11, 2**-12], len(places))
        return values * self.scale()

    def outlier(self):
        values = self.rng.standard_normal(self.n)
        values[self.rng.integers(self.n)] = self.rng.choice([30, -200, 5000])
        return values * self.scale()

    def spread(self):
        """Values of every magnitude, with halves of the aligned unit among them: ties."""
        odd = 2 * self.rng.integers(-4096, 4096, self.n) + 1
        values = odd * 2.0 ** -self.rng.integers(0, 15, self.n)
        return values * self.scale()

    def constant(self):
        return np.full(self.n, self.rng.standard_normal() * self.scale())

    def largest(self):
        """The largest values of the type, of one sign or of two, or cancelling under the pattern."""
        value = float(ml_dtypes.finfo(ARRAYS[self.fmt.dtype]).max)
        signs = [np.ones(self.n), self.rng.choice([-1, 1], self.n), np.array(pattern(self.n, self.number))]
        return value * signs[self.rng.integers(3)]


def blocks_of(fmt, first, count, seed):
    """Bit patterns of ``count`` blocks, of which the first has the number ``first``: uint[count, N]."""
    blocks = [Maker(fmt, seed, (first + i) % 2**32).block() for i in range(count)]
    return np.array(blocks, UINTS[fmt.dtype]).reshape(count, fmt.block)


@st.composite
def formats(draw):
    """Any format. Targets around a change of widths are drawn often."""
    dtype, block = draw(st.sampled_from(DTYPES)), draw(st.sampled_from((64, 64, *BLOCKS)))
    low, high = target_range(block)
    edges = [low, low + 1, low + 2, 2 * low, 2 * low + 1, 2 * low + 2, 3 * low + 1, 3 * low + 2, high]
    return HadamardFormat(dtype, block, draw(st.sampled_from(edges) | st.integers(low, high)))


def firsts():
    """Numbers of a first block."""
    return st.sampled_from(FIRSTS) | st.integers(0, 2**32 - 1)


@st.composite
def formats_and_blocks(draw):
    """A format, the number of the first block, and bit patterns of some."""
    fmt, first = draw(formats()), draw(firsts())
    return fmt, first, blocks_of(fmt, first, draw(st.integers(1, 4)), draw(st.integers(0, 2**32 - 1)))
