"""What fixed mode promises about values: docs/format.md, "Consequences"."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden import PlaneFormat

from .blocks import (
    BLOCKS,
    DTYPES,
    ROUNDINGS,
    UINTS,
    adversarial,
    as_values,
    as_words,
    assert_holds,
    assert_same_words,
    every_format,
    formats,
    parameters,
    specials,
    target_range,
)
from .reference import FIELDS


class Values:
    """Bit patterns as int64 arrays of their parts."""

    def __init__(self, fmt, words):
        p = parameters(fmt)
        words = words.astype(np.int64)
        self.words = words
        self.sign, self.field, self.mantissa = words >> (p.width - 1), (words >> p.m) % 2**p.e, words % 2**p.m
        self.top = self.field == 2**p.e - 1
        self.nan = self.top & (self.mantissa != 0)
        self.infinite = self.top & (self.mantissa == 0)
        self.finite = ~self.top
        self.zero = (self.field == 0) & (self.mantissa == 0)


def through(fmt, words):
    """Blocks and the bit patterns they decode to."""
    stored = fmt.compress(as_values(fmt, words))
    return stored, as_words(fmt.decompress(stored, words.shape))


def quieted(fmt, words):
    return np.where(Values(fmt, words).nan, words | words.dtype.type(1 << (parameters(fmt).m - 1)), words)


def lossless_blocks(fmt, words):
    return PlaneFormat(fmt.dtype, fmt.block, None).compress(as_values(fmt, words))


def assert_promises(fmt, words):
    """Every promise of fixed mode that can be told from values alone, on uint[blocks, N]."""
    stored, decoded = through(fmt, words)
    before, after = Values(fmt, words), Values(fmt, decoded)

    def every(holds, promise):
        assert_holds(fmt, holds, words, decoded, promise)

    p = parameters(fmt)
    in_specials_block = np.broadcast_to(stored[:, :1] == 0, words.shape)
    quiet = after.mantissa >> (p.m - 1) == 1
    every(~before.nan | after.nan & quiet, "a NaN stays a NaN and is quiet")
    every(~before.infinite | (after.words == before.words), "an infinity stays the same infinity")
    every(~before.finite | after.finite, "a finite value stays finite")
    every(in_specials_block | (after.sign == before.sign), "a sign never flips")
    every(~(in_specials_block & before.finite) | (after.words == 0), "finite becomes +0 in a specials block")
    same_exponent = after.field == before.field
    every(same_exponent | after.zero & before.finite, "a value keeps its exponent or becomes zero")
    if fmt.rounding == "truncate":
        smaller = (after.field <= before.field) & (after.mantissa <= before.mantissa)
        every(before.nan | smaller, "truncation never makes a magnitude larger")

    exact = quieted(fmt, words)
    sizes = np.diff(lossless_blocks(fmt, exact).offsets)
    fits = (sizes <= fmt.target)[:, None]
    every(~fits | (decoded == exact), "a block whose lossless form fits comes back exactly")
    again = through(fmt, decoded)[1]
    assert_same_words(fmt, again, decoded, words)


@settings(deadline=None, max_examples=250)
@given(st.data())
def test_promises_hold_for_any_block(data):
    fmt = data.draw(formats(modes=("fixed",)))
    assert_promises(fmt, adversarial(fmt, 32, data.draw(st.integers(0, 2**32 - 1))))


@pytest.mark.parametrize("dtype", DTYPES)
def test_promises_hold_at_every_target(dtype):
    for seed, fmt in enumerate(every_format([dtype])):
        if seed % 3 == 0 or fmt.slots < 5:
            assert_promises(fmt, adversarial(fmt, 8, seed))


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_promises_hold_for_edge_values_alone_and_in_pairs(dtype, block, rounding):
    edges = specials(dtype)
    words = np.zeros((len(edges), len(edges), block), UINTS[dtype])
    words[..., 1::3] = np.reshape(edges, (-1, 1, 1))
    words[..., 2::3] = np.reshape(edges, (1, -1, 1))
    words = words.reshape(-1, block)
    low, high = target_range(dtype, block)
    for target in {low, low + 1, low + block // 8, low + 2 * block // 8 + 1, high // 2, high}:
        assert_promises(PlaneFormat(dtype, block, target, rounding), words)


def test_a_block_is_exactly_target_bytes_whatever_it_holds():
    for fmt in every_format(roundings=["nearest"], blocks=[32]):
        stored, _ = through(fmt, adversarial(fmt, 5, fmt.target))
        assert stored.shape == (5, fmt.target), fmt
        assert stored.dtype == np.uint8


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_nearest_is_never_farther_off_than_truncation(data):
    fmt = data.draw(formats(modes=("fixed",), roundings=["nearest"]))
    words = adversarial(fmt, 32, data.draw(st.integers(0, 2**32 - 1)))
    before = Values(fmt, words)
    decoded = through(fmt, words)[1]
    nearest = Values(fmt, decoded)
    truncated = Values(fmt, through(PlaneFormat(fmt.dtype, fmt.block, fmt.target, "truncate"), words)[1])
    assert_same_words(fmt, nearest.field, truncated.field, words)
    error, error_truncated = (abs(v.mantissa - before.mantissa) for v in (nearest, truncated))
    kept = before.finite & (nearest.field == before.field)
    assert_holds(fmt, ~kept | (error <= error_truncated), words, decoded, "rounding beats truncation")


def lose_bits(fmt, exact, stored):
    """Groups of values of one block that keep the same planes, as (slice, weights kept, first weight lost).

    ``exact`` is the block with its NaNs quiet. The weight lost is 0 if nothing is lost. A specials block
    has no groups.
    """
    if stored[0] == 0:
        return
    p = parameters(fmt)

    def flagged(block):
        flags = int.from_bytes(block[1 : p.header].tobytes(), "little")
        return [j for j in range(p.width) if flags >> j & 1]

    weights = [p.weight(j) for j in flagged(lossless_blocks(fmt, exact)[0]) if j > p.e]
    kept = fmt.slots - sum(j <= p.e for j in flagged(stored))
    for group, kept_here in (slice(0, p.partial), kept + 1), (slice(p.partial, fmt.block), kept):
        yield group, weights[:kept_here], (*weights[kept_here:], 0)[0]


def sums(weights):
    """All sums of some of the weights."""
    found = np.zeros(1, np.int64)
    for weight in weights:
        found = np.concatenate([found, found + weight])
    return found


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_nearest_gives_the_nearest_mantissa_that_the_stored_planes_can_express(data):
    """Found by trying them all. A tie goes to the even multiple of the step.

    So the error is at most half the step, unless the next multiple up cannot be expressed.
    """
    fmt = data.draw(formats(modes=("fixed",), roundings=["nearest"]))
    words = adversarial(fmt, 8, data.draw(st.integers(0, 2**32 - 1)))
    stored, decoded = through(fmt, words)
    for row, exact, result in zip(stored, quieted(fmt, words), decoded, strict=True):
        for group, weights, lost in lose_bits(fmt, exact, row):
            before, after = Values(fmt, exact[group]), Values(fmt, result[group])
            if len(weights) > 10 or len(before.words) == 0:
                continue  # too many to try
            mantissas = sums(weights)
            distance = abs(mantissas - before.mantissa[:, None])
            error = abs(after.mantissa - before.mantissa)
            right = error == distance.min(axis=1)
            if lost:
                tie = (distance == error[:, None]).sum(axis=1) > 1
                right &= ~tie | (after.mantissa // (2 * lost) % 2 == 0)
                saturated = ~np.isin(after.mantissa + 2 * lost, mantissas)
                right &= (error <= lost) | saturated & (error < 2 * lost)
            base = row[0]
            was_flushed = after.zero & (before.field < base) & (base > 1)
            promise = f"a mantissa goes to the nearest of {weights}, {lost} lost"
            block = exact[None, group], result[None, group]
            assert_holds(fmt, (right | was_flushed)[None], *block, promise)


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_only_values_far_below_the_largest_are_flushed(data):
    """Below 2**(2 - 2**room) times the largest's power of two; and none where the exponents fit."""
    fmt = data.draw(formats(modes=("fixed",)))
    words = adversarial(fmt, 16, data.draw(st.integers(0, 2**32 - 1)))
    stored, decoded = through(fmt, words)
    before, after = Values(fmt, words), Values(fmt, decoded)
    room = fmt.slots - before.sign.max(axis=1) - before.nan.max(axis=1)
    top = before.field.max(axis=1)
    smallest = np.where(before.field > 0, before.field, top[:, None]).min(axis=1)
    too_wide = (top > 0) & (top - smallest + 1 >= 1 << room)
    lost = ~before.zero & after.zero & (before.field > 0)
    small = before.field < (top - (1 << room) + 2)[:, None]
    specials_block = stored[:, :1] == 0
    assert_holds(fmt, ~lost | too_wide[:, None], words, decoded, "exponents that fit are kept")
    assert_holds(fmt, ~lost | small | specials_block, words, decoded, "only small values are flushed")
    flushed = too_wide[:, None] & small
    assert_holds(fmt, ~flushed | after.zero | before.top, words, decoded, "flushing leaves a zero")


def bits(dtype, sign=0, field=None, mantissa=0):
    e, m = FIELDS[dtype]
    return sign << (e + m) | (2 ** (e - 1) - 1 if field is None else field) << m | mantissa


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_mantissas_of_all_ones_saturate_and_never_reach_the_next_power_of_two(dtype, block):
    ones = 2 ** FIELDS[dtype][1] - 1
    words = np.full((1, block), bits(dtype, mantissa=ones), UINTS[dtype])
    for fmt in every_format([dtype], [block], ["nearest"]):
        _, decoded = through(fmt, words)
        kept = fmt.slots - 1  # all but the plane of the deltas
        expected = np.full(block, bits(dtype, mantissa=ones & ~(ones >> kept)), UINTS[dtype])
        expected[: fmt.partial] = bits(dtype, mantissa=ones & ~(ones >> (kept + 1)))
        assert_same_words(fmt, decoded, expected, words)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_finite_value_never_becomes_infinite(dtype, rounding):
    e, m = FIELDS[dtype]
    largest = bits(dtype, field=2**e - 2, mantissa=2**m - 1)
    words = np.full((1, 16), largest, UINTS[dtype])
    for fmt in every_format([dtype], [16], [rounding]):
        after = Values(fmt, through(fmt, words)[1])
        assert after.finite.all(), f"{fmt}: {after.words}"
        assert (after.field == 2**e - 2).all(), f"{fmt}: {after.words}"


@pytest.mark.parametrize("word", ["+0", "-0"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_block_of_one_zero_comes_back_at_every_target(dtype, word):
    zero = bits(dtype, sign=word == "-0", field=0)
    for fmt in every_format([dtype], roundings=["nearest"], blocks=[16, 64]):
        stored, decoded = through(fmt, np.full((1, fmt.block), zero, UINTS[dtype]))
        assert_same_words(fmt, decoded, np.full(fmt.block, zero))
        assert stored[0, 0] == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_values_stay_equal_where_no_plane_is_stored_in_part(dtype):
    for word in [*specials(dtype), bits(dtype, mantissa=int("1101110"[: FIELDS[dtype][1]], 2))]:
        for fmt in every_format([dtype], [32], ["nearest"]):
            if fmt.partial == 0:
                _, decoded = through(fmt, np.full((1, 32), word, UINTS[dtype]))
                assert len(set(decoded[0].tolist())) == 1, f"{fmt}: {word:x} became {decoded}"


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_outlier_keeps_its_exponent_and_its_sign(dtype):
    e, m = FIELDS[dtype]
    for fmt in every_format([dtype], [16, 64]):
        words = np.full((1, fmt.block), bits(dtype, field=1, mantissa=5), UINTS[dtype])
        words[0, 7] = bits(dtype, sign=1, field=2**e - 2, mantissa=1 << (m - 1))
        after = Values(fmt, through(fmt, words)[1])
        assert (after.sign[0, 7], after.field[0, 7]) == (1, 2**e - 2), f"{fmt}: {after.words[0, 7]:x}"
        others = np.delete(after.words[0], 7)
        assert ((others == 0) | (others >> m == 1)).all(), f"{fmt}: {others}"


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_smallest_target_tells_nans_infinities_and_finite_values_apart(dtype):
    e, m = FIELDS[dtype]
    top = 2**e - 1
    nan, minus_nan = bits(dtype, field=top, mantissa=1), bits(dtype, 1, top, 2**m - 1)
    inf, minus_inf = bits(dtype, field=top), bits(dtype, 1, top)
    quiet_nan = bits(dtype, field=top, mantissa=1 << (m - 1))
    given = [nan, minus_nan, inf, minus_inf, bits(dtype), bits(dtype, 1), bits(dtype, 1, 0), 0] * 2
    expected = [quiet_nan, quiet_nan, inf, minus_inf, 0, 0, 0, 0] * 2
    fmt = PlaneFormat(dtype, 16, target_range(dtype, 16)[0])
    stored, decoded = through(fmt, np.array([given], UINTS[dtype]))
    assert_same_words(fmt, decoded, expected, given)
    assert stored[0, 0] == 0, "a specials block"


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_every_16_bit_pattern_keeps_its_promises_at_common_targets(dtype, rounding):
    words = np.arange(1 << 16, dtype=np.uint16).reshape(-1, 64)
    shuffled = np.random.default_rng(2).permutation(words.reshape(-1)).reshape(-1, 64)
    for target in (19, 24, 32, 40, 64, 85, 128):
        fmt = PlaneFormat(dtype, 64, target, rounding)
        assert_promises(fmt, words)
        assert_promises(fmt, shuffled)
