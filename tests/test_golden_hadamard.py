"""The Hadamard format: golden writes and reads the bytes that a codec written from docs/format.md does."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden import HadamardFormat

from . import hadamard_reference as reference
from .blocks import DTYPES, UINTS, adversarial, as_values, as_words, assert_same_words, specials
from .hadamard_blocks import (
    BLOCKS,
    FIRSTS,
    blocks_of,
    firsts,
    formats,
    formats_and_blocks,
    parameters,
    target_range,
)


def assert_same_bytes(fmt, words, first=0):
    """Both codecs give the same blocks for bit patterns, and the same bit patterns for the blocks."""
    p = parameters(fmt)
    with np.errstate(all="raise"):  # nothing overflows on the way
        stored = fmt.compress(as_values(fmt, words), first)
        decoded = as_words(fmt.decompress(stored, words.shape, first))
    for i, row in enumerate(words.tolist()):
        number = (first + i) % 2**32
        block = reference.encode_block(p, row, number)
        assert stored[i].tobytes().hex(" ") == block.hex(" "), f"{fmt}: block {number} of {words[i : i + 1]}"
        assert_same_words(fmt, decoded[i], reference.decode_block(p, block, number), row)


def assert_decodes_alike(fmt, blocks, first=0):
    p = parameters(fmt)
    with np.errstate(all="raise"):
        decoded = as_words(fmt.decompress(blocks, (len(blocks), fmt.block), first))
    for i, block in enumerate(blocks):
        expected = reference.decode_block(p, block.tobytes(), (first + i) % 2**32)
        assert_same_words(fmt, decoded[i], expected)


@settings(deadline=None, max_examples=200)
@given(formats_and_blocks())
def test_golden_and_the_page_agree_on_any_block(case):
    fmt, first, words = case
    assert_same_bytes(fmt, words, first)


@settings(deadline=None, max_examples=150)
@given(formats(), firsts(), st.data())
def test_golden_and_the_page_agree_on_any_bit_patterns(fmt, first, data):
    """Those that are hard on planes, most of them with specials."""
    assert_same_bytes(fmt, adversarial(fmt, 2, data.draw(st.integers(0, 2**32 - 1))), first)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_golden_and_the_page_agree_at_every_target(dtype, block):
    low, high = target_range(block)
    for target in range(low, high + 1):
        fmt = HadamardFormat(dtype, block, target)
        first = FIRSTS[target % len(FIRSTS)]
        assert_same_bytes(fmt, blocks_of(fmt, first, 1, target), first)
        assert_same_bytes(fmt, adversarial(fmt, 1, target), first)


@pytest.mark.parametrize("target", [8, 16, 24, 32])
@pytest.mark.parametrize("dtype", DTYPES)
def test_golden_and_the_page_agree_at_every_exponent(dtype, target):
    """Where the largest value of a block has each exponent field, and where it is each subnormal's."""
    fmt = HadamardFormat(dtype, 64, target)
    p = parameters(fmt)
    rng = np.random.default_rng(target)
    tops = np.concatenate([np.arange(p.special) << p.m, 1 << np.arange(p.m)])[:: 1 if target == 16 else 3]
    magnitudes = rng.integers(0, (tops | 2**p.m - 1)[:, None], (len(tops), 64), endpoint=True)
    magnitudes[:, 1:] -= np.minimum(magnitudes[:, 1:], rng.integers(0, 14, (len(tops), 63)) << p.m)
    words = magnitudes | rng.integers(2, size=magnitudes.shape) << (p.e + p.m)
    words[:, 0] = tops | rng.integers(2**p.m)
    assert_same_bytes(fmt, words.astype(UINTS[dtype]), first=77)


@pytest.mark.parametrize("target", [8, 9, 10, 16, 17, 18, 32])
@pytest.mark.parametrize("dtype", DTYPES)
def test_specials_of_every_kind_at_every_place_agree_with_the_page(dtype, target):
    """Widths of a value: 0 or 1, 1 and perhaps 2, 2 and perhaps 3, 4."""
    fmt = HadamardFormat(dtype, 64, target)
    p = parameters(fmt)
    kinds = [word for word in specials(dtype) if p.split(word)[1] == p.special]
    words = np.full((64, 64), p.join(1, p.bias, 3), UINTS[dtype])
    words[np.arange(64), np.arange(64)] = np.resize(kinds, 64)
    words[:32, 40] = np.resize(kinds[::-1], 32)
    assert_same_bytes(fmt, words)
    assert_same_bytes(fmt, np.resize(specials(dtype), (12, 64)).astype(UINTS[dtype]))


@pytest.mark.parametrize(
    ("target", "values", "mantissa"),
    [
        (8, {3: 1080, 2: 450}, 20),
        (8, {3: 1458, 2: 621}, 27),
        (16, {3: 1584, 7: 726}, 17),
        (24, {3: 1458, 7: 135}, 26),
        (32, {3: 1332, 2: 1221}, 19),
    ],
)
def test_a_scale_between_two_mantissas_takes_the_larger(target, values, mantissa):
    """Block 0 of 64 values, which are their own aligned integers: energy / product is a tie."""
    block = np.zeros((1, 64), np.float32)
    block[0, list(values)] = np.array(list(values.values())) * 2.0**-10
    fmt = HadamardFormat("fp32", 64, target)
    stored = fmt.compress(block)
    assert 16 + stored[0, 0] % 16 == mantissa
    assert_same_bytes(fmt, block.view(np.uint32))


@pytest.mark.parametrize(
    ("magnitude", "aligned"),
    [(1.5, 2), (2.5, 3), (0.5, 1), (0.499, 0), (3.499, 3), (2046.5, 2047), (2047.9, 2047)],
)
def test_values_are_aligned_to_nearest_with_ties_away_from_zero_and_saturate(magnitude, aligned):
    """Beside the value 1024, a value not on the grid is coded as the one on it."""
    fmt = HadamardFormat("fp32", 64, 32)
    for sign in (1, -1):
        for scale in (1.0, 2.0**-90):
            given, expected = np.zeros((2, 1, 64), np.float32)
            given[0, :2], expected[0, :2] = (1024, sign * magnitude), (1024, sign * aligned)
            assert (fmt.compress(scale * given) == fmt.compress(scale * expected)).all()
            assert_same_bytes(fmt, (scale * given).view(np.uint32))


@pytest.mark.parametrize("dtype", DTYPES)
def test_energy_in_coefficients_without_a_field(dtype):
    """All of it there: zeros. Nearly all of it: the largest scale, and finite values."""
    fmt = HadamardFormat(dtype, 64, 8)
    p = parameters(fmt)
    assert p.widths[60] == 0
    signs = np.array(reference.pattern(64, 9)) * reference.rows(64)[60]
    largest = p.join(0, p.special, 0) - 1
    block = (largest | np.where(signs < 0, 1 << (p.e + p.m), 0)).astype(UINTS[dtype])[None]
    assert not fmt.compress(as_values(fmt, block), 9).any()
    assert_same_bytes(fmt, block, 9)
    block[0, 11] -= 1 << (p.m - 7)
    header = int.from_bytes(fmt.compress(as_values(fmt, block), 9)[0, :2].tobytes(), "little") % 4096
    assert header == 4095 or dtype == "fp16", header
    assert_same_bytes(fmt, block, 9)


def test_the_worst_block_with_energy_in_coefficients_without_a_field():
    """One coefficient with a field has half a unit, the others nothing; the page tells the error."""
    fmt = HadamardFormat("fp32", 128, 16)
    kept = int((fmt.widths > 0).sum()) - 1
    last, row = (np.array(reference.rows(128)[k]) for k in (127, kept))
    integers = 2047 * last - (last + row) // 2
    values = (np.array(reference.pattern(128, 9)) * integers / 1024).astype(np.float32)[None]
    found = fmt.decompress(fmt.compress(values, 9), values.shape, 9).astype(np.float64)
    assert 1.9e9 < np.square(found - values).sum() / np.square(values).sum() < 2.1e9
    assert_same_bytes(fmt, values.view(np.uint32), 9)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_header_but_2_to_15_decodes_as_the_page_says_whatever_the_fields_hold(dtype):
    """A third of the headers for each type, at targets in turn."""
    rng = np.random.default_rng(1)
    for target in (8, 9, 16, 20, 27, 32):
        fmt = HadamardFormat(dtype, 64, target)
        headers = np.arange(DTYPES.index(dtype) + 3 * target, 4096, 18)
        headers = np.concatenate([[0, 1, 16, 17, 4095], headers[headers > 15]])
        blocks = rng.integers(0, 256, (len(headers), target), dtype=np.uint8)
        blocks[:, 0] = headers & 255
        blocks[:, 1] = blocks[:, 1] & 0xF0 | headers >> 8
        assert_decodes_alike(fmt, blocks, first=2**32 - 7)


@settings(deadline=None, max_examples=200)
@given(formats(), firsts(), st.data())
def test_any_bytes_decode_alike(fmt, first, data):
    """Few ones or many, so that sums are large, and headers near the ends."""
    block = np.frombuffer(data.draw(st.binary(min_size=fmt.target, max_size=fmt.target)), np.uint8).copy()
    block |= data.draw(st.sampled_from([0, 0, 0xFF, 0x55]))
    header = data.draw(st.sampled_from([0, 1]) | st.integers(16, 4095))
    block[0], block[1] = header & 255, block[1] & 0xF0 | header >> 8
    assert_decodes_alike(fmt, block[None], first)


@pytest.mark.parametrize("header", range(2, 16))
def test_the_headers_2_to_15_are_errors_that_name_their_block(header):
    for fmt in (HadamardFormat("fp32", 128, 32), HadamardFormat("bf16", 64, 8)):
        stored = fmt.compress(np.ones((5, fmt.block), fmt.float_type.array))
        for fields in (0x00, 0xF0):
            stored[3, :2] = header, fields
            message = f"block 3: no encoder produces the header 0{header:x} {fields:02x}$"
            with pytest.raises(ValueError, match=message):
                fmt.decompress(stored, (5, fmt.block), first=2**32 - 1)
        with pytest.raises(reference.InvalidHeaderError):
            reference.decode_block(parameters(fmt), stored[3].tobytes())


def test_an_invalid_block_is_named_by_its_place_in_a_long_array():
    """Also behind the first piece of 2**16 values, and whatever its number."""
    fmt = HadamardFormat("bf16", 64, 16)
    stored = np.zeros((2500, 16), np.uint8)
    stored[[1700, 2100], 0] = 7
    with pytest.raises(ValueError, match="block 1700: no encoder produces the header 07 00"):
        fmt.decompress(stored, (2500, 64), first=5)


def test_a_long_array_is_numbered_through():
    """A block's bytes depend on its number, not on how golden cuts the array into pieces of 2**16 values."""
    fmt = HadamardFormat("bf16", 64, 16)
    words = np.tile(adversarial(fmt, 60, seed=1), (50, 1)).reshape(-1)[:-5]
    first = 2**32 - 1500
    stored = fmt.compress(as_values(fmt, words), first)
    decoded = as_words(fmt.decompress(stored, words.shape, first))
    assert len(stored) == 3000
    padded = np.pad(words, (0, 5)).reshape(-1, 64)
    for i in (0, 1, 1023, 1024, 1025, 1499, 1500, 1501, 2047, 2048, 2999):
        number = (first + i) % 2**32
        assert stored[i].tobytes() == reference.encode_block(parameters(fmt), padded[i].tolist(), number)
        expected = reference.decode_block(parameters(fmt), stored[i].tobytes(), number)
        assert decoded[64 * i : 64 * i + 64].tolist() == expected[: len(decoded) - 64 * i], i
