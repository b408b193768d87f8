"""The Hadamard format's machine code: any number of blocks, which it takes by sixteen, and edges of rules."""

import numpy as np
import pytest
import torch

from golden import HadamardFormat
from torch_bridge import backends
from torch_bridge.backends.dtypes import TORCH_DTYPES

from .blocks import DTYPES, adversarial, as_values, as_words
from .hadamard_blocks import blocks_of


def assert_same_bytes(fmt, words, first=0):
    """The backend's bytes are golden's; these, uint8[blocks, target]."""
    values = as_values(fmt, words)
    stored = fmt.compress(values, first)
    tensor = torch.from_numpy(values.reshape(-1).view(np.uint8)).view(TORCH_DTYPES[fmt.dtype])
    found = backends.get("cpu", fmt).compress(tensor, first).numpy()
    assert np.array_equal(found, stored), (fmt, first, "blocks", np.flatnonzero((found != stored).any(1))[:3])
    return stored


def assert_decodes_alike(fmt, rows, first=0):
    count = len(rows) * fmt.block
    found = backends.get("cpu", fmt).decompress(torch.from_numpy(rows), count, first)
    found = found.view(torch.uint8).numpy().view(fmt.float_type.bits)
    expected = as_words(fmt.decompress(rows, count, first))
    wrong = np.flatnonzero(found != expected)
    assert not len(wrong), (fmt, first, "values", wrong[:3], found[wrong[:3]], expected[wrong[:3]])


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_number_of_blocks_is_alike(dtype):
    fmt = HadamardFormat(dtype, 128, 37)
    words = np.concatenate([blocks_of(fmt, 9, 17, seed=1), adversarial(fmt, 17, seed=2)])
    for count in range(1, len(words) + 1):
        assert_decodes_alike(fmt, assert_same_bytes(fmt, words[:count], 9), 9)
    for count in range(1, len(words) + 1):
        rows = fmt.compress(as_values(fmt, words[:count]))
        rows[-1, :2] = 15, 0
        with pytest.raises(ValueError, match=f"block {count - 1}: no encoder"):
            backends.get("cpu", fmt).decompress(torch.from_numpy(rows), count * fmt.block)


@pytest.mark.parametrize("block", [64, 256])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_exponent_of_the_largest_value_is_alike(dtype, block):
    rng = np.random.default_rng(block)
    for target in (block // 8, block // 8 + 1, block // 4, block // 2):
        fmt = HadamardFormat(dtype, block, target)
        ft = fmt.float_type
        fields = np.arange(ft.exponent_max)[:, None] - rng.integers(0, 14, (ft.exponent_max, block))
        words = np.maximum(fields, 0) << ft.mantissa_bits | rng.integers(
            0, ft.mantissa_mask + 1, fields.shape
        )
        assert_same_bytes(fmt, words | rng.integers(0, 2, fields.shape) << ft.width - 1)
        # All the energy in one coefficient, which may be one without a field.
        signs = fmt.signs(np.arange(ft.exponent_max, dtype=np.uint32))
        words = np.arange(ft.exponent_max)[:, None] << ft.mantissa_bits | (signs < 0) << ft.width - 1
        for k in (0, block - 1):
            odd = np.bitwise_count(np.arange(block) & k) % 2 == 1
            assert_same_bytes(fmt, words ^ odd.astype(np.int64) << ft.width - 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_scale_is_alike(dtype):
    rng = np.random.default_rng(5)
    fmt = HadamardFormat(dtype, 256, 128)
    headers = np.arange(16, 4096)
    for largest in (False, True):
        rows = rng.integers(0, 256, (len(headers), fmt.target), dtype=np.uint8)
        if largest:  # a coefficient is 37, of either sign: one sum is the largest there is
            rows[:] = 0xFF
            rows[1::2] = 0x77
        rows[:, 0], rows[:, 1] = headers & 0xFF, rows[:, 1] & 0xF0 | headers >> 8
        assert_decodes_alike(fmt, rows)
