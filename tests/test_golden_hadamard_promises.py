"""What docs/format.md promises of the Hadamard format, "Consequences", holds for the golden model."""

import ml_dtypes
import numpy as np
import pytest

from golden import HadamardFormat
from golden.hadamard import transform

from .blocks import ARRAYS, DTYPES, adversarial, as_values, as_words
from .hadamard_blocks import BLOCKS, blocks_of, parameters, target_range

BITS = [1, 1.5, 2, 2.5, 3, 4]


def formats(dtypes=DTYPES, blocks=BLOCKS):
    for dtype in dtypes:
        for block in blocks:
            for bits in BITS:
                yield HadamardFormat(dtype, block, int(bits * block / 8))


def each_format(**kwargs):
    return pytest.mark.parametrize(
        "fmt", list(formats(**kwargs)), ids=lambda fmt: f"{fmt.dtype}-{fmt.block}-{fmt.target}"
    )


def over_patterns(fmt, values, count=4000):
    """What one block comes back as under ``count`` sign patterns, float64[count, N]."""
    same = np.tile(values.astype(fmt.float_type.array), (count, 1))
    return fmt.decompress(fmt.compress(same, first=12345), same.shape, first=12345).astype(np.float64)


def error_share(values, found):
    return np.square(found - values).sum(axis=-1).mean() / np.square(values).sum()


@each_format()
def test_zero_bytes_decode_to_plus_zero_and_zeros_are_zero_bytes(fmt):
    stored = np.zeros((5, fmt.target), np.uint8)
    assert not as_words(fmt.decompress(stored, (5, fmt.block), first=9)).any()
    zeros = np.zeros((5, fmt.block), fmt.float_type.array)
    assert not fmt.compress(zeros).any()
    assert not fmt.compress(-zeros, first=2**32 - 2).any()


def test_fields_behind_the_header_0_are_not_looked_at():
    stored = np.full((1, 32), 0xFF, np.uint8)
    stored[0, :2] = 0x00, 0xF0
    assert not as_words(HadamardFormat("bf16", 128, 32).decompress(stored, 128)).any()


@pytest.mark.parametrize(
    ("target", "share", "worst"), [(32, 0.16, 0.22), (48, 0.044, 0.08), (64, 0.012, 0.02)]
)
def test_the_error_is_the_share_of_the_energy_that_the_page_says(target, share, worst):
    fmt = HadamardFormat("fp32", 128, target)
    rng = np.random.default_rng(0)
    gaussian = rng.standard_normal(128)
    for values in (gaussian, gaussian + 3, np.ones(128), np.linspace(0, 1, 128)):
        assert error_share(values, over_patterns(fmt, values)) == pytest.approx(share, rel=0.12)
    for equal in (*range(1, 20), 32, 64):
        values = np.zeros(128)
        values[rng.permutation(128)[:equal]] = 1
        assert error_share(values, over_patterns(fmt, values, 1000)) < worst * 1.05, f"{equal} values"


@pytest.mark.parametrize("target", [32, 48, 64])
def test_the_error_is_spread_over_the_whole_block(target):
    """The squared error at each place is about that at every other, whatever the value there."""
    values = np.random.default_rng(1).standard_normal(128)
    squares = np.square(over_patterns(HadamardFormat("fp32", 128, target), values) - values).mean(axis=0)
    assert squares.min() > 0.75 * squares.mean()
    assert squares.max() < 1.25 * squares.mean()


@each_format(dtypes=["fp32"])
def test_the_product_of_what_comes_back_with_the_block_is_the_blocks_energy(fmt):
    """But for the rounding of the scale, by a 32nd at most, and of the alignment, here by little."""
    rng = np.random.default_rng(fmt.target)
    values = rng.standard_normal((600, fmt.block)) * 2.0 ** rng.integers(-100, 100, (600, 1))
    values[::3, 1:] *= rng.random((200, fmt.block - 1)) < 0.1
    values[1::3, 5] *= 30
    given = values.astype(np.float32).astype(np.float64)
    found = fmt.decompress(fmt.compress(values.astype(np.float32)), values.shape).astype(np.float64)
    ratio = (found * given).sum(axis=1) / np.square(given).sum(axis=1)
    assert abs(ratio - 1).max() < 1 / 32 + 0.005
    assert abs(ratio.mean() - 1) < 0.002


def test_over_patterns_the_expected_value_is_near_to_the_exact_one():
    fmt, count, rng = HadamardFormat("fp32", 128, 32), 4000, np.random.default_rng(0)

    def bias(values):
        found, energy = over_patterns(fmt, values, count), np.square(values).sum()
        noise = found.var(axis=0).sum() / count  # which the mean has beside its own error
        return np.sqrt(max(0, np.square(found.mean(axis=0) - values).sum() - noise) / energy)

    for _ in range(8):
        gaussian = rng.standard_normal(128)
        assert np.sqrt(error_share(gaussian, over_patterns(fmt, gaussian))) > 0.35
        for values in (np.full(128, gaussian[0]), gaussian, np.maximum(gaussian, 0)):
            assert bias(values) < 0.015
    for others, median in ((13, 0.02), (9, 0.05), (5, 0.12)):
        found = [bias(np.eye(128)[:others].T @ rng.standard_normal(others)) for _ in range(25)]
        assert np.median(found) == pytest.approx(median, rel=0.3)
        assert 2 * median < max(found) < 0.4


@pytest.mark.parametrize(
    ("target", "slopes"), [(16, (0.88, 0.4, 0.06, 0)), (32, (0.97, 0.96, 1.1, 1.7)), (64, (1, 1, 1, 1))]
)
def test_values_beside_a_very_large_one_are_biased_as_the_page_says(target, slopes):
    values = np.random.default_rng(0).standard_normal(128)
    others = np.arange(128) != 5
    values /= np.sqrt(np.square(values[others]).mean())
    for values[5], slope in zip((10, 20, 30, 50), slopes, strict=True):
        found = over_patterns(HadamardFormat("fp32", 128, target), values).mean(axis=0)
        energy = np.square(values[others]).sum()
        assert (found * values)[others].sum() / energy == pytest.approx(slope, abs=0.04), values[5]


@each_format()
def test_finite_values_stay_finite(fmt):
    words = blocks_of(fmt, 3, 60, seed=1)
    found = fmt.decompress(fmt.compress(as_values(fmt, words), 3), words.shape, 3)
    assert np.isfinite(found.astype(np.float64)).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_decoded_values_too_large_for_the_type_become_its_largest(dtype):
    fmt = HadamardFormat(dtype, 64, 16)
    largest = float(ml_dtypes.finfo(ARRAYS[dtype]).max)
    stored = np.full((1, 16), 0xFF, np.uint8)
    stored[0, :2] = 0xFF, 0x0F  # the largest scale; all levels negative but the first
    found = fmt.decompress(stored, 64).astype(np.float64)
    assert set(np.unique(abs(found[found != 0]))) == {largest}


@pytest.mark.parametrize(("target", "bits"), [(8, 0), (14, 1), (22, 2), (30, 3)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_specials_and_the_finite_values_beside_them(dtype, target, bits):
    """``bits`` is what every value has at least; the first of them have one more."""
    fmt = HadamardFormat(dtype, 64, target)
    p = parameters(fmt)
    assert p.b == bits
    assert 0 < p.more < 64
    block = np.zeros(64, ARRAYS[dtype])
    block[:] = np.resize([1.5, -0.0, np.nan, -np.nan, np.inf, -np.inf, -3, 0], 64)
    found = fmt.decompress(fmt.compress(block), 64)
    if bits == 0:
        assert np.isnan(found).all()
        return
    finite, widths = np.isfinite(block), np.array(p.widths)
    assert not as_words(found)[finite].any(), "finite values become +0"
    assert np.isnan(found[np.isnan(block)]).all()
    assert not np.signbit(found[np.isnan(block)]).any()
    infinite = np.isinf(block)
    assert (found[infinite & (widths > 1)] == block[infinite & (widths > 1)]).all()
    assert np.isnan(found[infinite & (widths == 1)]).all()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_blocks_become_zeros_below_the_root_mean_square_that_the_page_says(dtype, block, bits):
    fmt = HadamardFormat(dtype, block, int(bits * block / 8))
    values = np.random.default_rng(0).standard_normal((200, block))
    values /= np.sqrt(np.square(values).mean(axis=1, keepdims=True))
    assert not fmt.compress((values * 2.0**-121).astype(ARRAYS[dtype])).any()
    assert fmt.compress((values * 2.0**-118).astype(ARRAYS[dtype])).any(axis=1).all()
    # All in one value, and all in one coefficient: what needs the smallest scale, and the largest.
    alone = np.eye(block) * np.sqrt(block)
    pattern = fmt.signs(np.arange(block, dtype=np.uint32))
    for values in (alone, pattern):
        assert not fmt.compress((values * 2.0**-123).astype(ARRAYS[dtype])).any()
        assert fmt.compress((values * 2.0**-117).astype(ARRAYS[dtype])).any(axis=1).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_value_far_below_the_largest_counts_as_zero(dtype):
    """Beside two equal ones: half of the coefficients are 0, or have the sign of the small one."""
    fmt = HadamardFormat(dtype, 64, 32)
    block = np.zeros((2, 64))
    block[:, [3, 5]] = 1.96875
    for small, same in ((2.0**-11, False), (2.0**-11 * (1 - 2.0**-8), True), (-(2.0**-12), True)):
        block[0, 8] = small
        stored = [fmt.compress(row.astype(ARRAYS[dtype])) for row in block]
        assert np.array_equal(*stored) == same, small


def test_where_two_patterns_differ_follows_from_the_xor_of_the_numbers():
    fmt = HadamardFormat("fp32", 128, 32)
    numbers = np.random.default_rng(0).integers(0, 2**32, 500, dtype=np.uint32)
    for xor in (1, 2, 77, 65535, 2**31):
        differences = fmt.signs(numbers) * fmt.signs(numbers ^ np.uint32(xor))
        assert (differences == differences[0]).all()


def test_the_patterns_of_near_numbers_are_far_apart():
    """The sums of the differences for the first xors, by every row of the transform."""
    fmt, most = HadamardFormat("fp32", 128, 32), {}
    for start in range(0, 1 << 21, 1 << 13):
        numbers = np.arange(max(start, 1), start + (1 << 13), dtype=np.uint32)
        differences = fmt.signs(numbers) * fmt.signs(np.zeros(1, np.uint32))
        most[start] = abs(transform(differences)).max()
    assert max(sums for start, sums in most.items() if start < 1 << 16) == 60
    assert max(most.values()) == 82


@pytest.mark.parametrize("block", BLOCKS)
def test_one_number_has_the_pattern_without_a_flip(block):
    fmt = HadamardFormat("fp32", block, block // 4)
    signs = fmt.signs(np.array([0x9E3779B9, 0, 1, 0x9E3779B8], np.uint32))
    assert (signs == 1).all(axis=1).tolist() == [True, False, False, False]


@pytest.mark.parametrize("first", [0, 5, 2**32 - 3, np.uint32(2**32 - 1), np.int64(7)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_can_be_compressed_and_decompressed_apart(dtype, first):
    """compress(x)[k:] is compress(x[k * N:], first=k), also where the numbers go on at 0."""
    fmt = HadamardFormat(dtype, 64, 20)
    values = as_values(fmt, adversarial(fmt, 9, seed=2)).reshape(-1)[:-3]
    stored = fmt.compress(values, first)
    decoded = as_words(fmt.decompress(stored, values.shape, first))
    for k in range(9):
        number = (int(first) + k) % 2**32
        rest = values[64 * k :]
        assert (stored[k:] == fmt.compress(rest, first=number)).all(), k
        assert (decoded[64 * k :] == as_words(fmt.decompress(stored[k:], rest.shape, first=number))).all(), k


def test_a_block_decoded_as_another_number_is_another():
    fmt = HadamardFormat("fp32", 128, 64)
    values = np.random.default_rng(0).standard_normal(128).astype(np.float32)
    stored = fmt.compress(values, first=3)
    assert error_share(values, fmt.decompress(stored, 128, first=3)) < 0.02
    assert error_share(values, fmt.decompress(stored, 128, first=4)) > 1


@pytest.mark.parametrize("block", BLOCKS)
def test_nothing_is_rounded_in_fp32(block):
    """A product of scale and sum has at most 19 bits: what comes back is a multiple of its last one."""
    low, high = target_range(block)
    for target in (low, high):
        fmt = HadamardFormat("fp32", block, target)
        stored = np.random.default_rng(0).integers(0, 256, (300, target), dtype=np.uint8)
        stored[::2, 2:] = 0x77  # large sums
        stored[:, 1] |= 0x04
        mantissa = as_words(fmt.decompress(stored, (300, block))) & 0x7FFFFF
        saturated = mantissa == 0x7FFFFF
        assert not (mantissa[~saturated] & 0x1F).any()


def test_a_second_round_gives_the_same_bytes_of_gaussian_values_but_not_of_all():
    fmt = HadamardFormat("bf16", 128, 32)
    gaussian = np.random.default_rng(0).standard_normal((200, 128)).astype(ARRAYS["bf16"])
    for values, same in ((gaussian, True), (as_values(fmt, blocks_of(fmt, 0, 200, seed=1)), False)):
        stored = fmt.compress(values)
        again = fmt.compress(fmt.decompress(stored, values.shape))
        assert (again == stored).all() == same


@pytest.mark.parametrize(("target", "equal", "worst"), [(32, 16, 1.8), (48, 24, 0.35), (64, 24, 0.15)])
def test_the_worst_patterns_of_equal_values_err_as_the_page_says(target, equal, worst):
    fmt, values = HadamardFormat("fp32", 128, target), np.zeros((1000, 128), np.float32)
    values[:, :equal] = 1
    error = np.square(fmt.decompress(fmt.compress(values), values.shape) - values).sum(axis=1) / equal
    assert error.max() == pytest.approx(worst, rel=0.03)
