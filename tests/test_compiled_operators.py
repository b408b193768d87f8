"""The operations that compiled graphs store with: the bytes of golden/, and what PyTorch wants of them."""

import pytest
import torch

import bitstash
from bitstash import PlaneFormat
from torch_bridge.backends import GoldenBackend
from torch_bridge.backends.rows import pad_rows, unpad_rows
from torch_bridge.compiled import operators
from torch_bridge.compiled.measured import (
    compress_measured,
    decompress_measured,
    logit_spread,
    softmax_amplification,
    text_of_all,
)

from .compiling import FMT, nothing_compiled

__all__ = ["nothing_compiled"]  # around every test here


SHAPES = [
    pytest.param((6, 96), (96, 1), id="rows"),
    pytest.param((6, 100), (100, 1), id="padded rows"),
    pytest.param((2, 4, 32, 16), (6144, 16, 192, 1), id="heads of a split"),
    pytest.param((64, 48), (1, 64), id="transposed"),
    pytest.param((1000,), (1,), id="flat"),
]


@pytest.mark.parametrize(("size", "stride"), SHAPES)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("fmt", [FMT, PlaneFormat("fp32", block=64, target=80)], ids=lambda fmt: fmt.scheme)
def test_the_bytes_of_the_operation_are_the_golden_ones(size, stride, dtype, fmt):
    fmt = operators.format_of(operators.text_of(fmt).replace("fp32", dtype))
    memory = torch.randn(1 << 15).to({"fp32": torch.float32, "bf16": torch.bfloat16}[dtype])
    values = memory.as_strided(size, stride)
    row = size[-1] if fmt.scheme == "hadamard" and len(size) > 1 and stride[-1] == 1 else 0
    text = operators.text_of(fmt)
    order = sorted(range(len(size)), key=lambda one: -stride[one])
    stored = operators.compress(values, text, "values", row, "auto", order)
    # Whatever strides a compiler has chosen.
    assert torch.equal(stored, operators.compress(values.contiguous(), text, "values", row, "auto", order))
    flat = values.permute(order).reshape(-1)
    own = fmt.for_rows(row) if row else fmt
    padded = pad_rows(flat, row, own) if row else flat
    golden = GoldenBackend(own)
    assert torch.equal(stored, golden.compress(padded))
    back = operators.decompress(stored, text, "values", row, "auto", list(size), order)
    expected = golden.decompress(stored, len(padded))
    expected = unpad_rows(expected, row, own) if row else expected
    assert torch.equal(back.permute(order).reshape(-1), expected)
    assert back.shape == values.shape
    assert back.stride() == tuple(
        torch.empty(size).permute(order).contiguous().permute(inverse(order)).stride()
    )


def inverse(order):
    return [order.index(dimension) for dimension in range(len(order))]


def test_the_operations_are_as_pytorch_wants_them():
    values = torch.randn(6, 96)
    text = operators.text_of(FMT)
    stored = operators.compress(values, text, "values", 96, "auto", [0, 1])
    torch.library.opcheck(operators.compress, (values, text, "values", 96, "auto", [0, 1]))
    torch.library.opcheck(operators.compress, (values, text, "values", 0, "torch", [1, 0]))
    torch.library.opcheck(operators.decompress, (stored, text, "values", 96, "auto", [6, 96], [0, 1]))
    mask = values > 0
    torch.library.opcheck(operators.pack_bits, (mask, [0, 1]))
    bits = operators.pack_bits(mask, [0, 1])
    torch.library.opcheck(operators.unpack_bits, (bits, [6, 96], [0, 1]))
    assert torch.equal(operators.unpack_bits(bits, [6, 96], [0, 1]), mask)
    query, formats = values.view(1, 1, 6, 96), text_of_all([FMT, None])
    torch.library.opcheck(logit_spread, (query, query, None))
    torch.library.opcheck(softmax_amplification, (values.softmax(-1),))
    spread = logit_spread(query, query, None)
    torch.library.opcheck(compress_measured, (values, spread, "", formats, [3.0], 96, "auto", [0, 1]))
    stored = compress_measured(values, spread, "", formats, [3.0], 96, "auto", [0, 1])
    torch.library.opcheck(decompress_measured, (stored, formats, 96, "auto", [6, 96], [0, 1]))


@pytest.mark.parametrize("fmt", [FMT, PlaneFormat("bf16"), bitstash.QuantFormat("fp16", 3, 64)], ids=str)
def test_a_format_is_a_plain_argument(fmt):
    assert operators.format_of(operators.text_of(fmt)) == fmt


def test_what_is_no_format_is_named():
    for text in ("lossy,fp32,128,32", "hadamard,fp32"):
        with pytest.raises(ValueError, match=text.replace(",", "[,]")):
            operators.format_of(text)
