"""The step format: the golden model's bytes are those of a plain reference, and it keeps its promises."""

import re
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from golden import StepFormat

from . import step_reference as reference
from .blocks import ARRAYS, BLOCKS, DTYPES, UINTS, Maker


def raises(message):
    return pytest.raises(ValueError, match=re.escape(message))


def formats():
    """Each type and block at targets from the smallest to the raw block."""
    for dtype in DTYPES:
        for block in BLOCKS:
            raw = block * np.dtype(UINTS[dtype]).itemsize
            low = 3 + block // 8
            for target in sorted({low, low + 1, *(int(block * b / 8) for b in (2, 2.5, 3, 4, 6, 10)), raw}):
                if low <= target <= raw:
                    yield dtype, block, target


def blocks_of(dtype, block, count, seed):
    """Bit patterns: hostile ones, and floats of one distribution or another at every scale."""
    rng = np.random.default_rng(seed)
    maker = Maker(dtype, block, seed)
    words = [maker.recipes[i % len(maker.recipes)]() for i in range(count)]
    shape = (count, block)
    values = rng.standard_normal(shape) * rng.choice([1, 1, 1, 30], (count, 1)) + rng.choice(
        [0, 0, 5], (count, 1)
    )
    values *= rng.random(shape) < rng.choice([0.1, 0.5, 1, 1], (count, 1))
    values[:, 0] *= rng.choice([1, 1, 1000], count)
    scale = rng.integers(-8, 8, (count, 1)) if dtype == "fp16" else rng.integers(-130, 110, (count, 1))
    with np.errstate(over="ignore", under="ignore"):
        floats = np.float32(values * 2.0**scale).astype(ARRAYS[dtype])
    return np.concatenate([np.array(words, UINTS[dtype]), floats.view(UINTS[dtype])])


def as_values(dtype, words):
    return np.ascontiguousarray(words, UINTS[dtype]).view(ARRAYS[dtype])


@pytest.mark.parametrize(("dtype", "block", "target"), list(formats()))
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_bytes_and_values_are_those_of_the_reference(dtype, block, target, rounding):
    count = 14 if block <= 32 else 6
    words = blocks_of(dtype, block, count, seed=target)
    # Subnormals; of 8 exponent bits, they count as 0.
    sign, mantissa_bits = 1 << 8 * UINTS[dtype]().itemsize - 1, {"fp32": 23, "bf16": 7, "fp16": 10}[dtype]
    words[-1] &= sign | (1 << mantissa_bits - 1) - 1
    fmt = StepFormat(dtype, block, target, rounding)
    stored = fmt.compress(as_values(dtype, words), seed=77)
    decoded = fmt.decompress(stored, words.shape).view(UINTS[dtype])
    for i, row in enumerate(words.tolist()):
        expected = reference.encode_block(dtype, target, row, rounding, 77, i)
        assert stored[i].tobytes().hex() == expected.hex(), f"block {i}"
        assert decoded[i].tolist() == reference.decode_block(dtype, block, expected), f"block {i}"


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_valid_block_decodes_as_the_reference_says(dtype):
    rng = np.random.default_rng(3)
    fmt = StepFormat(dtype, 16, 20)
    rows = rng.integers(0, 256, (300, 20), dtype=np.uint8)
    rows[:, 1] &= 0x93  # few fine bits, so that many are valid
    found = 0
    for data in rows:
        with suppress(ValueError):
            decoded = fmt.decompress(data[None], 16).view(UINTS[dtype])
            found += 1
            assert decoded.tolist() == reference.decode_block(dtype, 16, data.tobytes())
    assert 50 < found < 250


def random_values(dtype, seed=5, count=256, block=64):
    return as_values(dtype, blocks_of(dtype, block, count, seed))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("bits", [1.5, 2.5, 4, 8])
def test_finite_stays_finite_signs_and_zeros_stay(dtype, rounding, bits):
    values = random_values(dtype)
    fmt = StepFormat(dtype, 64, int(8 * bits), rounding)
    decoded = fmt.decompress(fmt.compress(values, seed=1), values.shape)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        given, found = values.astype(np.float64), decoded.astype(np.float64)
    finite = np.isfinite(given)
    assert np.isfinite(found[finite]).all()
    assert (found[finite] * np.sign(given[finite]) >= 0).all()
    assert (found[given == 0] == 0).all()
    if bits >= 2.5:
        assert (np.isnan(found) == np.isnan(given)).all()
        assert (found[np.isinf(given)] == given[np.isinf(given)]).all()
    else:
        assert (np.isfinite(found) == finite).all()


def test_finite_values_beside_a_nan_and_an_infinity_are_kept():
    values = np.linspace(-1, 1, 128, dtype=np.float32)
    values[5], values[6] = np.nan, -np.inf
    for bits in (2.5, 4):
        fmt = StepFormat("fp32", 128, int(16 * bits))
        decoded = fmt.decompress(fmt.compress(values), 128)
        kept = np.isfinite(values)
        assert np.isnan(decoded[5])
        assert decoded[6] == -np.inf
        assert abs(decoded[kept] - values[kept]).max() < (1.01 if bits < 4 else 0.51)


def test_stochastic_rounding_is_right_in_the_mean():
    values = np.random.default_rng(0).standard_normal(128).astype(np.float32)
    fmt = StepFormat("fp32", 128, 48, "stochastic")
    stored = [fmt.compress(values, seed) for seed in range(400)]
    decoded = np.array([fmt.decompress(one, 128) for one in stored], np.float64)
    step = 2.0 ** (1 + max(int(one[0, 0]) for one in stored) + fmt.lowest_grid)
    one = decoded.std(axis=0).mean()
    error = decoded.mean(axis=0) - values
    assert 0.1 < one < 0.6
    # The mean of 400 has a twentieth of the spread of one: two of 128 may be three of those away. The
    # expected value is within a 32nd of a step.
    assert (abs(error) > 3 * decoded.std(axis=0) / 20 + step / 32).sum() <= 3
    nearest = StepFormat("fp32", 128, 48)
    biased = nearest.decompress(nearest.compress(values), 128) - values
    assert abs(error).mean() < abs(biased).mean() / 5


def test_the_seed_decides_and_blocks_differ():
    values = np.tile(np.random.default_rng(0).standard_normal(128), 3).astype(np.float32)
    fmt = StepFormat("fp32", 128, 48, "stochastic")
    first = fmt.compress(values, seed=1)
    assert (first == fmt.compress(values, seed=1)).all()
    assert (first != fmt.compress(values, seed=2)).any(axis=1).all()
    assert (first[0] != first[1]).any()
    assert (first[0] != first[2]).any()


def test_a_long_array_is_numbered_through():
    """A block's random bits depend on its place in the array, not on how the array is worked on."""
    values = np.random.default_rng(0).standard_normal(3 * (1 << 16)).astype(np.float32)
    fmt = StepFormat("fp32", 16, 8, "stochastic")
    stored = fmt.compress(values, seed=9)
    for block in (0, 4095, 4096, 4097, 12287):
        words = values[16 * block : 16 * block + 16].view(np.uint32).tolist()
        assert stored[block].tobytes() == reference.encode_block("fp32", 8, words, "stochastic", 9, block)


@pytest.mark.parametrize("bits", [4, 6, 8])
def test_the_error_is_near_to_what_shannon_allows(bits):
    """Gaussian values: effective bits at most 0.9 below the bits stored, headers included."""
    values = np.random.default_rng(0).standard_normal((500, 128)).astype(np.float32)
    fmt = StepFormat("fp32", 128, 16 * bits)
    error = (fmt.decompress(fmt.compress(values), values.shape) - values).var(axis=1)
    effective = (0.5 * np.log2(values.var(axis=1) / error)).mean()
    assert bits - 0.9 < effective < bits


def test_values_on_a_grid_come_back():
    rng = np.random.default_rng(0)
    for values in (rng.integers(-3, 4, (9, 128)), rng.integers(0, 2, (9, 128)), np.full((9, 128), 1.0)):
        exact = (values * 2.0**-7).astype(np.float32)
        fmt = StepFormat("fp32", 128, 64)
        assert (fmt.decompress(fmt.compress(exact), exact.shape) == exact).all()


def test_a_block_that_is_mostly_zeros_is_kept_finely():
    rng = np.random.default_rng(0)
    values = rng.standard_normal((200, 128)).astype(np.float32)
    values[rng.random(values.shape) < 0.9] = 0
    for values_there in (values, abs(values)):
        fmt = StepFormat("fp32", 128, 64)
        error = abs(fmt.decompress(fmt.compress(values_there), values.shape) - values_there).max(axis=1)
        assert (error / abs(values_there).max(axis=1)).max() < 2**-12


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_one_outlier_costs_the_others_little(rounding):
    values = np.random.default_rng(0).standard_normal((200, 128)).astype(np.float32)
    fmt = StepFormat("fp32", 128, 80, rounding)
    without = abs(fmt.decompress(fmt.compress(values), values.shape) - values).mean()
    values[:, 7] = 500
    error = abs(fmt.decompress(fmt.compress(values), values.shape) - values)[:, :7]
    assert error.mean() < 4 * without


def bits_of(row, n):
    """Of each part of a block, read from its bytes."""
    bits = "".join(f"{byte:08b}"[::-1] for byte in row)
    moved, masked, core, wide = (int(bits[a:b][::-1], 2) for a, b in ((8, 15), (15, 16), (16, 20), (20, 24)))
    if core == 0:
        return {"header": 24, "specials": (2 if len(bits) - 24 >= 2 * n else 1) * n}
    begin, last = 24 + n * masked, "1" * core
    escapes = sum(
        bits[begin + i * core : begin + (i + 1) * core] == last and (i >= moved or bits[-1 - i] == "1")
        for i in range(n)
    )
    parts = {"specials": n * masked, "core": n * core, "escapes": escapes * wide, "refinement": moved}
    return {"header": 24} | parts


@pytest.mark.parametrize("target", [24, 48, 64, 160, 512])
def test_the_account_is_of_the_bytes(target):
    fmt = StepFormat("fp32", 128, target)
    values = as_values("fp32", blocks_of("fp32", 128, 64, seed=target))
    stored = fmt.compress(values)
    expected = dict.fromkeys(("header", "specials", "core", "escapes", "refinement", "padding"), 0)
    for row in stored:
        parts = bits_of(row, 128)
        for part, bits in (parts | {"padding": 8 * target - sum(parts.values())}).items():
            expected[part] += bits
    account = fmt.account(values)
    assert account.stored == expected
    assert account.ratio == pytest.approx(512 / target)


def test_wrong_arguments():
    with raises("rounding must be one of nearest, stochastic, not 'truncate'"):
        StepFormat("fp32", 128, 64, "truncate")
    with raises("target must be a number of bytes, not None"):
        StepFormat("fp32", 128, None)
    with raises("target must be from 19 (header and a bit per value) to 512 bytes (the raw block) for fp32"):
        StepFormat("fp32", 128, 18)
    with raises("dtype must be one of fp32, bf16, fp16, not 'fp8'"):
        StepFormat("fp8")
    fmt = StepFormat("fp32", 128, 64)
    for seed in (-1, 1 << 32, 1.5, None, "1"):
        with raises(f"seed must be from 0 to 2**32 - 1, not {seed!r}"):
            fmt.compress(np.zeros(3, np.float32), seed)
    with raises("values must be float32 for dtype 'fp32', not float64"):
        fmt.compress(np.zeros(3))
    with raises("stored must have shape (1, 64), not (2, 64)"):
        fmt.decompress(np.zeros((2, 64), np.uint8), 128)


def test_a_block_that_no_encoder_produces():
    fmt = StepFormat("fp32", 128, 64)
    stored = fmt.compress(np.zeros((4, 128), np.float32))
    for header, message in (
        ("00 00 00", "00 00 00"),  # neither core nor mask
        ("00 00 04", "00 00 04"),  # a core for which there is no room
        ("7d 69 03", "7d 69 03"),  # more fine bits than there is room for
        ("7d 80 13", "7d 80 13"),  # the mask takes the room
        ("01 80 00", "01 80 00"),  # only specials, but a grid
        ("00 80 10", "00 80 10"),  # and a width
    ):
        wrong = stored.copy()
        wrong[2, :3] = np.frombuffer(bytes.fromhex(header), np.uint8)
        with raises(f"block 2: no encoder produces the header {message}"):
            fmt.decompress(wrong, (4, 128))


def test_nothing_and_shapes():
    fmt = StepFormat("bf16", 32, 20)
    assert fmt.compress(np.zeros(0, ARRAYS["bf16"])).shape == (0, 20)
    values = np.ones((3, 5, 7), ARRAYS["bf16"])
    assert fmt.decompress(fmt.compress(values), values.shape).shape == values.shape


def test_the_worked_block_of_the_page():
    page = (Path(__file__).parents[1] / "docs/format.md").read_text(encoding="utf-8")
    section = page.split("## A worked block of the step format")[1].replace("\N{MINUS SIGN}", "-")
    lines = [line for line in section.splitlines() if re.match(r"\| \d+ \|", line)]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    rows = [row for row in rows if len(row) == 8]
    values = np.array([float(row[1]) for row in rows], ARRAYS["bf16"])
    assert [float(value) for value in values] == [float(row[1]) for row in rows]
    expected = bytes.fromhex(re.search(r"```\n(.*?)\n```", section)[1])
    fmt = StepFormat("bf16", 16, 8)
    assert fmt.compress(values).tobytes() == expected
    assert reference.encode_block("bf16", 8, values.view(np.uint16).tolist()) == expected
    decoded = fmt.decompress(np.frombuffer(expected, np.uint8)[None], 16)
    assert [float(value) for value in decoded] == [float(row[7]) for row in rows]
    # What the table says is in the core, the wide fields and the fine bits, from the header on.
    bits = "".join(f"{int(row[4]):02b}"[::-1] for row in rows)
    bits += "".join(f"{int(row[5].split(':')[0]):02b}"[::-1] for row in rows if row[5])
    bits += "".join(row[6] for row in reversed(rows))
    stored = np.unpackbits(np.frombuffer(expected, np.uint8), bitorder="little")
    assert bits == "".join(map(str, stored[24:]))
