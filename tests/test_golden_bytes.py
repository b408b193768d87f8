"""golden writes and reads the very bytes that a codec written from docs/format.md does."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden import HadamardFormat, PlaneFormat

from . import reference
from .blocks import (
    BLOCKS,
    DTYPES,
    UINTS,
    adversarial,
    as_values,
    as_words,
    assert_same_words,
    blocks_of,
    every_format,
    formats,
    formats_and_blocks,
    parameters,
    specials,
)

# One of each kind whose blocks have 64 values.
KINDS = (PlaneFormat("fp32", 64, None), PlaneFormat("fp32", 64, 80), HadamardFormat("fp32", 64, 20))


def each_kind():
    return pytest.mark.parametrize("fmt", KINDS, ids=("lossless", "fixed", "hadamard"))


def assert_same_bytes(fmt, words):
    """Both codecs give the same blocks for bit patterns, and the same bit patterns for the blocks."""
    p = parameters(fmt)
    stored = fmt.compress(as_values(fmt, words))
    decoded = as_words(fmt.decompress(stored, words.shape))
    for i, row in enumerate(words.tolist()):
        block = reference.encode_block(p, row)
        assert stored[i].tobytes().hex(" ") == block.hex(" "), f"{fmt}: block {i} of {words[i : i + 1]}"
        assert_same_words(fmt, decoded[i], reference.decode_block(p, block), row)


@settings(deadline=None, max_examples=400)
@given(formats_and_blocks())
def test_golden_and_the_page_agree_on_any_block(case):
    assert_same_bytes(*case)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_golden_and_the_page_agree_at_every_target(dtype, block):
    """A few adversarial blocks, other ones for each target; of the largest block one, in either rounding."""
    for seed, fmt in enumerate(every_format([dtype], [block])):
        if block < 128 or seed % 4 in (0, 3):
            assert_same_bytes(fmt, adversarial(fmt, 2 if block < 64 else 1, seed))


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_any_payload_behind_a_valid_header_decodes_alike(data):
    """Random bytes in place of the planes: deltas that leave the range, bits behind the last plane."""
    fmt = data.draw(formats())
    p = parameters(fmt)
    stored = fmt.compress(as_values(fmt, data.draw(blocks_of(fmt, most=1))))
    size = stored[0].size - p.header
    payload = data.draw(st.binary(min_size=size, max_size=size))
    block = stored[0][: p.header].tobytes() + payload
    row = np.frombuffer(block, np.uint8)
    tampered = row[None] if fmt.target else type(stored)(row, stored.offsets)
    decoded = as_words(fmt.decompress(tampered, fmt.block))
    assert_same_words(fmt, decoded, reference.decode_block(p, block))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("slots", [2, 3])
def test_nans_infinities_and_signs_at_tiny_targets_agree_with_the_page(dtype, slots):
    """Every pair of edge values in an otherwise empty block, where room for exponents runs out."""
    edges = specials(dtype)
    pairs = np.zeros((len(edges) ** 2, 16), UINTS[dtype])
    pairs[:, 0] = np.repeat(edges, len(edges))
    pairs[:, 9] = np.tile(edges, len(edges))
    for partial_bytes in (0, 1):
        target = parameters(PlaneFormat(dtype, 16, None)).header + 2 * slots + partial_bytes
        assert_same_bytes(PlaneFormat(dtype, 16, target), pairs)


@pytest.mark.parametrize("target", [None, "fixed"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_block_does_not_depend_on_its_neighbours(dtype, target):
    """Also where golden cuts a long array into pieces, and with a tail at the end of the last piece."""
    fmt = PlaneFormat(dtype, 16, target and 17)
    words = np.tile(adversarial(fmt, 60, seed=1), (140, 1)).reshape(-1)[:-5]  # over 2 pieces of 2**16 values
    stored = fmt.compress(as_values(fmt, words))
    assert len(stored) == 60 * 140
    alone = [row.tobytes() for row in fmt.compress(as_values(fmt, words[: 60 * 16]))]
    for i in range(60 * 140 - 1):
        assert stored[i].tobytes() == alone[i % 60], f"block {i}"
    assert stored[60 * 140 - 1].tobytes() == fmt.compress(as_values(fmt, words[-11:]))[0].tobytes()
    whole = fmt.decompress(stored, words.shape)
    assert_same_words(fmt, as_words(fmt.decompress(fmt.compress(whole), words.shape)), as_words(whole), words)


def formats_with_tails():
    for dtype in DTYPES:
        yield from (PlaneFormat(dtype, block, target) for block in BLOCKS for target in (None, block))
        yield from (HadamardFormat(dtype, block, block // 4) for block in (64, 256))


@pytest.mark.parametrize("fmt", list(formats_with_tails()), ids=str)
def test_a_tail_is_a_block_padded_with_zeros(fmt):
    block = fmt.block
    words = adversarial(fmt, 2, seed=block).reshape(-1)
    for tail in range(1, block):
        short = words[: block + tail]
        padded = np.pad(short, (0, block - tail))
        stored, expected = fmt.compress(as_values(fmt, short)), fmt.compress(as_values(fmt, padded))
        assert len(stored) == 2
        assert [row.tobytes() for row in stored] == [row.tobytes() for row in expected], f"tail of {tail}"
        decoded = as_words(fmt.decompress(stored, len(short)))
        assert_same_words(fmt, decoded, as_words(fmt.decompress(expected, len(padded)))[: len(short)], short)


@pytest.mark.parametrize("shape", [0, (0,), (3, 0), (0, 7, 2)])
@each_kind()
def test_an_empty_array_has_no_blocks_and_comes_back_empty(shape, fmt):
    stored = fmt.compress(np.empty(shape, np.float32))
    assert len(stored) == 0
    assert stored.nbytes == 0
    decoded = fmt.decompress(stored, shape)
    assert decoded.dtype == np.float32
    assert decoded.shape == np.empty(shape).shape


@each_kind()
def test_values_are_taken_in_row_major_order_whatever_the_strides(fmt):
    cube = as_values(fmt, adversarial(fmt, 12, seed=3)).reshape(8, 8, 12)
    for name, view in {
        "transpose": cube.T,
        "reversed": cube[::-1, ::-1],
        "strided": cube[:, ::3],
        "fortran": np.asfortranarray(cube),
        "broadcast": np.broadcast_to(cube[0, 0], (5, 12)),
        "scalar": cube[0, 0, 0],
    }.items():
        plain = np.array(view, order="C").reshape(-1)
        stored, expected = fmt.compress(view), fmt.compress(plain)
        assert [row.tobytes() for row in stored] == [row.tobytes() for row in expected], name
        assert fmt.decompress(stored, np.shape(view)).shape == np.shape(view), name


@each_kind()
def test_neither_direction_changes_its_argument(fmt):
    values = as_values(fmt, adversarial(fmt, 20, seed=4))
    values.flags.writeable = False
    stored = fmt.compress(values)
    data = stored if fmt.target else stored.data
    data.flags.writeable = False
    fmt.decompress(stored, values.shape)


@each_kind()
def test_what_is_decompressed_may_be_written_to(fmt):
    for count in (0, 5, 64, 100):
        decoded = fmt.decompress(fmt.compress(np.ones(count, np.float32)), count)
        decoded[:] = 2
        assert (decoded == 2).all()
