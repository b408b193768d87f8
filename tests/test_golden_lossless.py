"""Lossless mode gives back every bit."""

import numpy as np
import pytest
from hypothesis import given, settings

from golden import PlaneFormat, RaggedBlocks

from .blocks import (
    BLOCKS,
    DTYPES,
    adversarial,
    as_values,
    as_words,
    assert_same_words,
    formats_and_blocks,
    specials,
)


def assert_comes_back(fmt, words):
    words = np.asarray(words)
    stored = fmt.compress(as_values(fmt, words))
    assert_same_words(fmt, as_words(fmt.decompress(stored, words.shape)), words)
    return stored


@settings(deadline=None, max_examples=300)
@given(formats_and_blocks(modes=("lossless",)))
def test_any_block_comes_back(case):
    assert_comes_back(*case)


@pytest.mark.parametrize("order", ["ascending", "strided", "shuffled"])
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_every_16_bit_pattern_comes_back(dtype, block, order):
    words = np.arange(1 << 16, dtype=np.uint16)
    if order == "strided":
        words = words * np.uint16(40503)  # odd, so again every pattern; neighbours differ in all planes
    if order == "shuffled":
        words = np.random.default_rng(block).permutation(words)
    assert len(np.unique(words)) == 1 << 16
    assert_comes_back(PlaneFormat(dtype, block, None), words)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_signalling_nans_payloads_infinities_subnormals_and_signed_zeros_come_back(dtype, block):
    fmt = PlaneFormat(dtype, block, None)
    edges = specials(dtype)
    assert_comes_back(fmt, edges)
    for edge in edges:
        assert_comes_back(fmt, [edge])
        assert_comes_back(fmt, [edge] * block)
        assert_comes_back(fmt, [edge, *edges[:2]] * block)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_block_takes_the_bytes_its_header_asks_for_and_all_blocks_lie_end_to_end(dtype, block):
    fmt = PlaneFormat(dtype, block, None)
    stored = assert_comes_back(fmt, adversarial(fmt, 100, seed=block))
    header = {"fp32": 5, "bf16": 3, "fp16": 3}[dtype]
    assert len(stored) == 100
    assert stored.offsets[0] == 0
    assert stored.nbytes == stored.offsets[-1] == len(stored.data)
    for i, row in enumerate(stored):
        flags = sum(int(byte).bit_count() for byte in row[1:header])
        assert len(row) == header + flags * block // 8, f"block {i}"


def test_a_block_of_zeros_is_only_a_header():
    for dtype, header in ("fp32", "01 00 00 00 00"), ("bf16", "01 00 00"), ("fp16", "01 00 00"):
        fmt = PlaneFormat(dtype, 128, None)
        stored = assert_comes_back(fmt, np.zeros(256, int))
        assert [row.tobytes().hex(" ") for row in stored] == [header, header]


def test_zeros_do_not_widen_the_exponents():
    """The zero code: a block with a zero costs no more exponent planes than one without."""
    fmt = PlaneFormat("fp32", 64, None)
    ones = np.ones(64, np.float32)
    with_zero = ones.copy()
    with_zero[::2] = 0
    assert fmt.compress(with_zero).nbytes == fmt.compress(ones).nbytes == 5 + 8


def test_ragged_blocks_are_a_sequence():
    stored = PlaneFormat("bf16", 16, None).compress(np.arange(40).astype("bfloat16"))
    assert len(stored) == 3
    rows = [row.tobytes() for row in stored]
    assert b"".join(rows) == stored.data.tobytes()
    assert stored[-1].tobytes() == rows[2]
    assert stored[-3].tobytes() == rows[0]
    for index in (3, -4):
        with pytest.raises(IndexError, match=f"there are 3 blocks, and none is {index}"):
            stored[index]


def test_ragged_blocks_survive_being_taken_apart():
    """What is stored is two plain arrays, so that it can be written to a file and read again."""
    fmt = PlaneFormat("fp16", 32, None)
    values = np.linspace(-3, 3, 100, dtype=np.float16)
    stored = fmt.compress(values)
    again = RaggedBlocks(np.array(stored.data), np.array(stored.offsets))
    assert_same_words(fmt, as_words(fmt.decompress(again, 100)), as_words(values))
