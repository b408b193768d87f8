"""Bad input is an error that names the value."""

import re

import ml_dtypes
import numpy as np
import pytest

from golden import HadamardFormat, PlaneFormat, RaggedBlocks

from . import hadamard_blocks
from .blocks import ARRAYS, BLOCKS, DTYPES, target_range

# Formats of 80 bytes a block.
FIXED = pytest.mark.parametrize(
    "fmt", [PlaneFormat("fp32", 64, 80), HadamardFormat("fp32", 256, 80)], ids=str
)


def raises(message):
    return pytest.raises(ValueError, match=re.escape(message))


@pytest.mark.parametrize("kind", [PlaneFormat, HadamardFormat])
@pytest.mark.parametrize("dtype", ["fp64", "FP32", "float32", "", None, 32, np.float32, np.dtype(np.float32)])
def test_unknown_dtype(dtype, kind):
    with raises(f"dtype must be one of fp32, bf16, fp16, not {dtype!r}"):
        kind(dtype)


@pytest.mark.parametrize("block", [0, 1, 8, 48, 256, -64, True, "64", None, 16.5])
def test_unknown_block(block):
    with raises(f"block must be one of (16, 32, 64, 128), not {block!r}"):
        PlaneFormat("fp32", block=block)


@pytest.mark.parametrize("block", [0, 1, 16, 32, 96, 512, -64, True, "64", None, 64.5])
def test_unknown_block_of_the_hadamard_format(block):
    with raises(f"block must be one of (64, 128, 256), not {block!r}"):
        HadamardFormat("fp32", block=block)


@pytest.mark.parametrize("rounding", ["down", "Nearest", "", None, 0])
def test_unknown_rounding(rounding):
    with raises(f"rounding must be one of nearest, truncate, not {rounding!r}"):
        PlaneFormat("fp32", rounding=rounding)


@pytest.mark.parametrize("target", ["80", True, False, 80.0, 79.5, float("nan"), b"80", [80], (80,)])
def test_a_target_that_is_no_whole_number(target):
    with raises(f"target must be a number of bytes or None, not {target!r}"):
        PlaneFormat("fp32", target=target)
    with raises(f"target must be a number of bytes, not {target!r}"):
        HadamardFormat("fp32", target=target)


def test_the_hadamard_format_has_no_lossless_mode():
    with raises("target must be a number of bytes, not None"):
        HadamardFormat("fp32", 128, None)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_target_too_small_for_header_and_two_bits_a_value_or_larger_than_the_uncompressed_block(
    dtype, block
):
    low, high = target_range(dtype, block)
    for target in (low, high, np.int64(high)):
        assert PlaneFormat(dtype, block, target).target == target
    for target in (low - 1, high + 1, 0, -1, -high, 1 << 70):
        with raises(
            f"target must be from {low} (header and two bits per value) to {high} bytes "
            f"(the uncompressed block) for {dtype} and block {block}, not {target!r}"
        ):
            PlaneFormat(dtype, block, target)


@pytest.mark.parametrize("block", hadamard_blocks.BLOCKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_target_of_less_than_1_or_more_than_4_bits_a_value(dtype, block):
    low, high = hadamard_blocks.target_range(block)
    for target in (low, high, np.int64(high)):
        assert HadamardFormat(dtype, block, target).target == target
    for target in (low - 1, high + 1, 0, -1, -high, 1 << 70):
        with raises(
            f"target must be from {low} (1 bit a value) to {high} bytes (4 bits a value) "
            f"for {dtype} and block {block}, not {target!r}"
        ):
            HadamardFormat(dtype, block, target)


@pytest.mark.parametrize("count", [1.5, -5, "64", None, True])
@pytest.mark.parametrize("kind", [PlaneFormat, HadamardFormat])
def test_blocks_of_what_is_no_number_of_values(count, kind):
    with raises(f"count must be a whole number from 0 up, not {count!r}"):
        kind().blocks(count)


def test_a_hadamard_format_is_a_value():
    fmt = HadamardFormat(np.str_("bf16"), np.int64(64), np.uint8(17))
    assert fmt == HadamardFormat("bf16", 64, 17)
    assert len({fmt, HadamardFormat("bf16", 64, 17)}) == 1
    assert [type(part) for part in (fmt.dtype, fmt.block, fmt.target)] == [str, int, int]
    with pytest.raises(AttributeError):
        fmt.target = 50


def test_the_default_hadamard_format_is_fp32_at_16x():
    fmt = HadamardFormat()
    assert (fmt.dtype, fmt.block, fmt.target) == ("fp32", 128, 32)
    assert fmt.original_bytes / fmt.target == 16


def test_a_format_is_a_value():
    """Equal whatever types its parameters came in, hashable, frozen."""
    fmt = PlaneFormat(np.str_("bf16"), np.int64(32), np.uint8(40), np.str_("truncate"))
    assert fmt == PlaneFormat("bf16", 32, 40, "truncate")
    assert len({fmt, PlaneFormat("bf16", 32, 40, "truncate")}) == 1
    assert [type(part) for part in (fmt.dtype, fmt.block, fmt.target, fmt.rounding)] == [str, int, int, str]
    with pytest.raises(AttributeError):
        fmt.target = 50


def test_the_default_is_fp32_at_3_2x():
    fmt = PlaneFormat()
    assert (fmt.dtype, fmt.block, fmt.target, fmt.rounding) == ("fp32", 64, 80, "nearest")
    assert fmt.original_bytes / fmt.target == 3.2


@pytest.mark.parametrize("target", [None, 80])
def test_the_number_of_the_first_block_is_one_of_32_bits(target):
    fmt, values = PlaneFormat("fp32", 64, target), np.linspace(-1, 1, 200, dtype=np.float32)
    stored = fmt.compress(values)
    expected = fmt.decompress(stored, 200)
    for first in (0, 7, 2**32 - 1, np.uint32(2**32 - 1), np.int64(7)):
        found = fmt.compress(values, first)
        data = (found, stored) if target else (found.data, stored.data)
        assert np.array_equal(*data)  # no byte of a bit-plane format depends on it
        assert np.array_equal(fmt.decompress(stored, 200, first=first), expected)
    for first in (-1, 2**32, np.int64(-1), 1.0, "0", None, True, b"0"):
        with raises(f"first must be a whole number from 0 to 2**32 - 1, not {first!r}"):
            fmt.compress(values, first)
        with raises(f"first must be a whole number from 0 to 2**32 - 1, not {first!r}"):
            fmt.decompress(stored, 200, first=first)


@pytest.mark.parametrize("first", [-1, 2**32, 1 << 70, np.int64(-1), 1.0, "0", None, True, b"0", [0]])
def test_a_number_of_the_first_block_that_is_none(first):
    fmt = HadamardFormat("fp32", 128, 32)
    for count in (200, 0):
        values = np.ones(count, np.float32)
        with raises(f"first must be a whole number from 0 to 2**32 - 1, not {first!r}"):
            fmt.compress(values, first)
        with raises(f"first must be a whole number from 0 to 2**32 - 1, not {first!r}"):
            fmt.decompress(fmt.compress(values), count, first=first)


@pytest.mark.parametrize(
    ("make", "call"),
    [
        (lambda dtype: PlaneFormat(dtype, 32, None), "compress"),
        (lambda dtype: PlaneFormat(dtype, 32, 64), "compress"),
        (lambda dtype: PlaneFormat(dtype, 32, None), "account"),
        (lambda dtype: PlaneFormat(dtype, 32, 64), "account"),
        (lambda dtype: HadamardFormat(dtype, 64, 16), "compress"),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_of_another_type(dtype, make, call):
    fmt = make(dtype)
    others = [np.float64, np.int32, np.uint16, np.uint32, np.uint8, bool, complex, object, ">f4", ">f2"]
    others += [array for name, array in ARRAYS.items() if name != dtype]
    for other in others:
        given = np.zeros(5, other)
        with raises(f"values must be {np.dtype(ARRAYS[dtype])} for dtype {dtype!r}, not {given.dtype}"):
            getattr(fmt, call)(given)
    with raises("not float64"):
        getattr(fmt, call)([1.0, 2.0])
    with raises("not <U1"):
        getattr(fmt, call)("x")


@pytest.mark.parametrize(
    ("stored", "described"),
    [
        (np.zeros((2, 80), np.int8), "int8[2, 80]"),
        (np.zeros((2, 80), np.float32), "float32[2, 80]"),
        (np.zeros((2, 80), bool), "bool[2, 80]"),
        (np.zeros((2, 80), np.uint16), "uint16[2, 80]"),
        (np.zeros((2, 80), object), "object[2, 80]"),
        (bytes(160), "bytes"),
        ([[0] * 80] * 2, "list"),
        (None, "NoneType"),
        (RaggedBlocks(np.zeros(0, np.uint8), np.zeros(1, np.int64)), "RaggedBlocks"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
@FIXED
def test_stored_blocks_that_are_no_array_of_uint8(fmt, stored, described):
    with raises(f"stored must be an array of uint8, not {described}"):
        fmt.decompress(stored, 2 * fmt.block)


@pytest.mark.parametrize(
    "shape", [(1, 80), (3, 80), (2, 79), (2, 81), (160,), (2, 80, 1), (0, 80), (80, 2), ()]
)
@FIXED
def test_a_stored_array_of_the_wrong_size(fmt, shape):
    with raises(f"stored must have shape (2, 80), not {shape}"):
        fmt.decompress(np.ones(shape, np.uint8), (fmt.block + 36,))


@pytest.mark.parametrize("shape", [-1, (-1,), (2, -64), (-2, -64), None, 64.0, (True,)])
@pytest.mark.parametrize(
    "fmt",
    [PlaneFormat("fp32", 64, None), PlaneFormat("fp32", 64, 80), HadamardFormat("fp32", 64, 16)],
    ids=str,
)
def test_a_shape_whose_sizes_are_no_counts(fmt, shape):
    stored = fmt.compress(np.ones(64, np.float32))
    sizes = shape if isinstance(shape, tuple) else (shape,)
    with raises(f"shape must have sizes from 0 up, not {sizes}"):
        fmt.decompress(stored, shape)


def test_numbers_of_blocks_of_another_type():
    with raises("numbers must be uint32, not int64"):
        HadamardFormat().signs(np.arange(3))


def test_any_sequence_of_sizes_is_a_shape():
    fmt = PlaneFormat("fp32", 64, 80)
    assert fmt.decompress(fmt.compress(np.ones(8, np.float32)), range(2, 5, 2)).shape == (2, 4)


def test_a_numpy_integer_is_a_shape():
    fmt = PlaneFormat("fp32", 64, 80)
    assert fmt.decompress(fmt.compress(np.ones((4, 16), np.float32)), np.prod((4, 16))).shape == (64,)


FMT = PlaneFormat("bf16", 16, None)  # 3 bytes of header, 2 bytes a plane
STORED = FMT.compress(np.array([1, -2.5, 3.25, 0] * 12, ml_dtypes.bfloat16))
DATA, OFFSETS = STORED.data, STORED.offsets


class Like:
    """What NumPy makes an array of, as a tensor of PyTorch."""

    def __init__(self, values):
        self._values = values

    def size(self):
        return self._values.shape

    def __array__(self, dtype=None, copy=None):
        return self._values


@pytest.mark.parametrize("fmt", [PlaneFormat("fp32", 64, 80), HadamardFormat("fp32", 128, 32)], ids=str)
def test_arrays_may_lie_in_any_order_and_be_like_arrays(fmt):
    values = np.random.default_rng(0).normal(size=(30, 50)).astype(np.float32)
    stored = fmt.compress(values)
    assert np.array_equal(fmt.compress(Like(values)), stored)
    assert np.array_equal(fmt.compress(np.asfortranarray(values)), stored)
    found = fmt.decompress(np.asfortranarray(stored), (30, 50))
    assert np.array_equal(found, fmt.decompress(stored, (30, 50)))


def test_the_blocks_that_the_next_tests_tamper_with_are_sound():
    assert OFFSETS.tolist() == [0, 15, 30, 45]
    assert FMT.decompress(STORED, 48)[2] == 3.25


@pytest.mark.parametrize(
    ("data", "offsets", "message"),
    [
        (DATA, OFFSETS[:-1], "stored must have 3 blocks for this shape, not 2"),
        (DATA, np.append(OFFSETS, 45), "stored must have 3 blocks for this shape, not 4"),
        (DATA, OFFSETS.astype(np.int32), "stored.offsets must be int64 of one dimension, not int32[4]"),
        (DATA, OFFSETS.astype(np.float64), "stored.offsets must be int64 of one dimension, not float64[4]"),
        (DATA, OFFSETS.astype(np.uint64), "stored.offsets must be int64 of one dimension, not uint64[4]"),
        (DATA, OFFSETS[None], "stored.offsets must be int64 of one dimension, not int64[1, 4]"),
        (DATA, OFFSETS.tolist(), "stored.offsets must be int64 of one dimension, not list"),
        (DATA.astype(np.int8), OFFSETS, "stored.data must be uint8 of one dimension, not int8[45]"),
        (DATA.reshape(3, 15), OFFSETS, "stored.data must be uint8 of one dimension, not uint8[3, 15]"),
        (DATA.tobytes(), OFFSETS, "stored.data must be uint8 of one dimension, not bytes"),
        (DATA[:-1], OFFSETS, "stored.offsets must go from 0 to 44, not from 0 to 45"),
        (np.append(DATA, DATA[:1]), OFFSETS, "stored.offsets must go from 0 to 46, not from 0 to 45"),
        (DATA, np.array([1, 15, 30, 45]), "stored.offsets must go from 0 to 45, not from 1 to 45"),
        (DATA, OFFSETS + 1, "stored.offsets must go from 0 to 45, not from 1 to 46"),
        (DATA, OFFSETS - 1, "stored.offsets must go from 0 to 45, not from -1 to 44"),
        (DATA, np.array([0, 30, 15, 45]), "must have 3 to 35 bytes, not -15"),
        (DATA, np.array([0, 15, 15, 45]), "must have 3 to 35 bytes, not 0"),
        (DATA, np.array([0, 2, 30, 45]), "must have 3 to 35 bytes, not 2"),
        (DATA, np.array([0, 3, 6, 45]), "must have 3 to 35 bytes, not 39"),
        (DATA, np.array([0, -(2**63), 2**63 - 1, 45]), "must have 3 to 35 bytes, not -"),
        (DATA, np.array([0, 14, 30, 45]), "block 0: its header asks for 15 bytes, not 14"),
        (DATA, np.array([0, 15, 32, 45]), "block 1: its header asks for 15 bytes, not 17"),
        (np.r_[DATA, DATA[:1]], np.array([0, 15, 30, 46]), "block 2: its header asks for 15 bytes, not 16"),
    ],
)  # fmt: skip
def test_ragged_blocks_that_do_not_fit_together(data, offsets, message):
    with raises(message):
        FMT.decompress(RaggedBlocks(data, offsets), 48)


@pytest.mark.parametrize(
    "stored", [DATA, DATA.tobytes(), None, [DATA]], ids=["array", "bytes", "None", "list"]
)
def test_anything_but_ragged_blocks_in_lossless_mode(stored):
    with raises("stored must be RaggedBlocks in the lossless mode, not "):
        FMT.decompress(stored, 48)


def test_ragged_blocks_of_another_shape():
    with raises("stored must have 4 blocks for this shape, not 3"):
        FMT.decompress(STORED, 49)
    with raises("stored must have 0 blocks for this shape, not 3"):
        FMT.decompress(STORED, 0)


def test_the_lossless_mode_has_no_slots():
    for name in ("slots", "partial"):
        with raises("the lossless mode has no fixed block size"):
            getattr(FMT, name)
