"""The group quantiser: against a plain reference, unbiased, and in a model."""

import math

import pytest
import torch

from torch_bridge import Compressor, Policy, QuantFormat, backends
from torch_bridge.backends.dtypes import TORCH_DTYPES
from torch_bridge.backends.quant_format import BITS


def round_trip(values, bits):
    name = {dtype: name for name, dtype in TORCH_DTYPES.items()}[values.dtype]
    backend = backends.get("auto", QuantFormat(name, bits))
    stored = backend.compress(values)
    return stored, backend.decompress(stored, len(values))


@pytest.mark.parametrize("dtype", TORCH_DTYPES.values())
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("count", [1, 255, 256, 257, 5000])
def test_every_value_is_off_by_less_than_a_step(dtype, bits, count):
    values = (torch.randn(count, generator=torch.Generator().manual_seed(count)) * 3 + 1).to(dtype)
    stored, back = round_trip(values, bits)
    assert stored.shape == (math.ceil(count / 256), 4 + 32 * bits)
    assert back.dtype == dtype
    for start in range(0, count, 256):
        group, again = values[start : start + 256].double(), back[start : start + 256].double()
        spread = float(group.max() - group.min())
        step = (spread + 0.01 * float(group.abs().max())) / (2**bits - 1)  # bf16 has three digits
        assert float((group - again).abs().max()) <= 1.02 * step + 0.01 * float(group.abs().max())


@pytest.mark.parametrize("dtype", TORCH_DTYPES.values())
@pytest.mark.parametrize("bits", BITS)
def test_nothing_finite_becomes_infinite_or_nan(dtype, bits):
    most = torch.finfo(dtype).max
    pairs = [(most, 1), (-most, 1), (most, -most), (most, 0), (-most, 0), (most / 2, most), (most, most)]
    values = torch.cat([torch.tensor(pair, dtype=dtype).repeat(128) for pair in pairs])
    _, back = round_trip(values, bits)
    assert back.isfinite().all()
    spread = torch.tensor([max(pair) - min(pair) for pair in pairs], dtype=torch.float64).repeat_interleave(
        256
    )
    step = (spread + 0.01 * most) / (2**bits - 1)
    assert ((back.double() - values.double()).abs() <= 1.02 * step + 0.01 * most).all()


def test_the_bytes_are_zero_point_step_and_integers():
    values = torch.arange(256.0) % 4
    stored, back = round_trip(values, 2)
    assert torch.equal(back, values)
    head = stored[0, :4].view(torch.bfloat16)
    assert head.tolist() == [0.0, 1.0]
    assert set(stored[0, 4:].tolist()) == {0b11_10_01_00}


@pytest.mark.parametrize(
    ("dtype", "other"), [(torch.float16, torch.bfloat16), (torch.bfloat16, torch.float16)]
)
def test_autocast_changes_nothing(dtype, other):
    values = torch.randn(1000).to(dtype)
    stored, back = round_trip(values, 4)
    with torch.autocast("cpu", other):
        again = round_trip(values, 4)
    assert torch.equal(again[0], stored)
    assert torch.equal(again[1], back)


def test_the_mean_of_many_groups_is_the_value():
    values = torch.linspace(-1, 2, 256)
    mean = round_trip(values.repeat(400), 2)[1].view(400, 256).mean(0)
    assert float((mean - values).abs().max()) < 5 * (3 / 3) * 0.5 / 400**0.5


def test_the_same_values_give_the_same_bytes_again_and_others_round_with_bits_of_their_own():
    values = torch.randn(1000)
    assert torch.equal(round_trip(values, 4)[0], round_trip(values, 4)[0])
    other = torch.cat([values[:-1], values[-1:] + 1])
    stored, beside = round_trip(values, 4)[0], round_trip(other, 4)[0]
    assert (stored[:3] != beside[:3]).any(1).all()


def test_equal_values_and_values_that_are_not_finite():
    assert torch.equal(round_trip(torch.full((256,), 0.5), 2)[1], torch.full((256,), 0.5))
    for special in (float("nan"), float("inf")):
        values = torch.ones(512)
        values[3] = special
        back = round_trip(values, 4)[1]
        assert back[:256].isnan().all()
        assert torch.equal(back[256:], values[256:])


def test_in_a_model_it_is_what_its_report_says():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64))
    with Compressor(model, Policy.default(QuantFormat("fp32", 4), recompute=False)) as saver:
        loss = model(torch.randn(256, 64)).square().mean()
    loss.backward()
    # Rows of 64 values in groups of 64; the means of 64 channels of 256 rows take a byte, halvings a quarter.
    assert saver.original_bytes / saver.stored_bytes == pytest.approx(256 / 37.25)


def test_wrong_parameters_are_named():
    with pytest.raises(ValueError, match="bits must be one of 2, 3, 4, 8, not 5"):
        QuantFormat("fp32", 5)
    with pytest.raises(ValueError, match=r"dtype must be one of .*, not 'fp8'"):
        QuantFormat("fp8")
    with pytest.raises(ValueError, match=r"stored must be uint8 of shape \(1, 132\)"):
        backends.get("auto", QuantFormat()).decompress(torch.zeros(1, 131, dtype=torch.uint8), 256)
    assert "quant, 4.12 bits" in str(Policy.default(QuantFormat()))
