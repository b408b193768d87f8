"""Blocks that respect rows: for every width none holds values of two rows, and what that costs is bounded."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from golden import HadamardFormat, PlaneFormat
from torch_bridge import QuantFormat, backends
from torch_bridge.backends.dtypes import TORCH_DTYPES
from torch_bridge.backends.rows import pad_rows, unpad_rows

WIDTHS = range(1, 4097)
BLOCKS = (64, 128, 256)
HADAMARD = [HadamardFormat("fp32", block, target) for block in BLOCKS for target in (block // 8, block // 2)]
ODD = [HadamardFormat("bf16", 128, 33), HadamardFormat("fp16", 256, 39), HadamardFormat("fp16", 256, 127)]
QUANT = [QuantFormat("fp32", 2, block) for block in BLOCKS]
TRIED = [1, 31, 64, 65, 100, 192, 256, 576, 960, 1000]


@pytest.mark.parametrize("fmt", [*HADAMARD[::2], *QUANT], ids=str)
def test_no_block_holds_values_of_two_rows(fmt):
    for width in WIDTHS:
        own = fmt.for_rows(width)
        row = np.arange(3 * own.padded_width(width)) // own.padded_width(width)
        blocks = row.reshape(-1, own.block)
        assert (blocks == blocks[:, :1]).all(), width
        assert len(blocks) == own.blocks(row.size), width


@pytest.mark.parametrize("fmt", [*HADAMARD, *ODD], ids=str)
def test_a_row_is_stored_in_the_bits_a_value_of_the_format_but_for_less_than_64_values(fmt):
    for width in WIDTHS:
        own = fmt.for_rows(width)
        padded = own.padded_width(width)
        assert padded - width < 64, width
        assert own.target / own.block <= fmt.target / fmt.block < (own.target + 1) / own.block, width


@pytest.mark.parametrize("fmt", QUANT, ids=str)
def test_a_row_of_a_quantisation_costs_a_header_for_64_values_at_most(fmt):
    for width in WIDTHS:
        own = fmt.for_rows(width)
        assert own.padded_width(width) - width < 64, width
        assert own.bits == fmt.bits
        assert 64 <= own.block <= fmt.block, width


@pytest.mark.parametrize("fmt", [*HADAMARD, *ODD, *QUANT], ids=str)
def test_no_other_block_pads_less_and_is_larger(fmt):
    for width in WIDTHS:
        own = fmt.for_rows(width)
        others = [block for block in BLOCKS if own.block < block <= fmt.block]
        assert all(-width % block > -width % own.block for block in others), width


@pytest.mark.parametrize("fmt", [*HADAMARD, *ODD, *QUANT], ids=str)
def test_what_was_made_for_rows_is_for_them_already(fmt):
    for width in WIDTHS:
        own = fmt.for_rows(width)
        assert own.for_rows(width) == own, width


@pytest.mark.parametrize(
    ("width", "block", "padded"),
    [(64, 64, 64), (192, 64, 192), (576, 64, 576), (768, 128, 768), (960, 64, 960), (100, 128, 128)],
)
def test_widths_of_the_page(width, block, padded):
    own = HadamardFormat("fp32", 128, 64).for_rows(width)
    assert (own.block, own.target, own.padded_width(width)) == (block, block // 2, padded)


def test_planes_share_no_scale_and_pack_rows():
    fmt = PlaneFormat("fp32", 64, 80)
    assert fmt.for_rows(65) == fmt
    assert fmt.padded_width(65) == 65


@pytest.mark.parametrize("width", [0, -1, True, 64.0, None])
@pytest.mark.parametrize("fmt", [HadamardFormat(), PlaneFormat(), QuantFormat()], ids=str)
def test_what_is_no_width_is_named(fmt, width):
    message = re.escape(f"width must be a whole number from 1 up, not {width!r}")
    for ask in (fmt.for_rows, fmt.padded_width, lambda width: pad_rows(torch.ones(4), width, fmt)):
        with pytest.raises(ValueError, match=message):
            ask(width)


def test_values_that_are_no_rows_are_named():
    fmt = HadamardFormat("fp32", 128, 64)
    with pytest.raises(ValueError, match=r"values must be flat, in rows of 100, not of shape \(250,\)"):
        pad_rows(torch.ones(250), 100, fmt)
    with pytest.raises(ValueError, match=r"values must be flat, in rows of 128, not of shape \(2, 128\)"):
        unpad_rows(torch.ones(2, 128), 100, fmt)


@pytest.mark.parametrize("fmt", [HadamardFormat("fp32", 128, 64), QuantFormat(), PlaneFormat()], ids=str)
@pytest.mark.parametrize("width", TRIED)
def test_rows_are_padded_with_what_costs_least_and_come_back(fmt, width):
    own, values = fmt.for_rows(width), torch.arange(1.0, 5 * width + 1)
    padded = pad_rows(values, width, own)
    rows = padded.view(5, own.padded_width(width))
    assert torch.equal(rows[:, :width], values.view(5, width))
    added = rows[:, -1:] if isinstance(fmt, QuantFormat) else torch.zeros(5, 1)
    assert (rows[:, width:] == added).all()
    assert torch.equal(unpad_rows(padded, width, own), values)
    assert pad_rows(values[:0], width, own).numel() == 0


@pytest.mark.parametrize("dtype", TORCH_DTYPES)
@pytest.mark.parametrize("width", TRIED)
@pytest.mark.parametrize("name", ["cpu", "torch"])
def test_padded_rows_have_the_bytes_of_golden(name, width, dtype):
    fmt = HadamardFormat(dtype, 128, 33).for_rows(width)
    values = pad_rows(spread(7, width, dtype), width, fmt)
    stored = [backends.get(one, fmt).compress(values, 3) for one in ("golden", name)]
    assert torch.equal(*stored)
    back = [backends.get(one, fmt).decompress(stored[0], len(values), 3) for one in ("golden", name)]
    assert torch.equal(*(one.view(torch.int32 if dtype == "fp32" else torch.int16) for one in back))


@pytest.mark.parametrize("fmt", [HadamardFormat("fp32", 128, 32), replace(QUANT[0], bits=4)], ids=str)
@pytest.mark.parametrize("width", [width for width in TRIED if width > 1])
def test_a_small_row_keeps_its_precision_beside_large_ones(fmt, width):
    own = fmt.for_rows(width)
    backend, values = backends.get("auto", own), spread(9, width, "fp32")
    padded = pad_rows(values, width, own)
    back = unpad_rows(backend.decompress(backend.compress(padded), len(padded)), width, own)
    error = (back - values).view(9, width).norm(dim=1) / values.view(9, width).norm(dim=1)
    assert float(error.max()) < 0.75, error


@pytest.mark.parametrize("width", [width for width in TRIED if width > 1])
def test_what_a_hadamard_row_becomes_is_no_matter_of_the_others(width):
    fmt = HadamardFormat("fp32", 128, 64).for_rows(width)
    values = spread(3, width, "fp32")
    others = values.clone().view(3, width)
    others[0], others[2] = float("nan"), 0
    rows = [
        backends.get("auto", fmt).compress(pad_rows(one.reshape(-1), width, fmt)).view(3, -1)
        for one in (values, others)
    ]
    assert torch.equal(rows[0][1], rows[1][1])
    assert not torch.equal(rows[0][0], rows[1][0])


def spread(rows, width, dtype):
    """Gaussian rows, flat, the size of each a hundred times that of the one before or a hundredth of it."""
    values = torch.randn(rows, width, generator=torch.Generator().manual_seed(width))
    values *= 100.0 ** (torch.arange(rows) % 2)[:, None]
    return values.to(TORCH_DTYPES[dtype]).view(-1)
