"""Logarithms of softmaxes: gradients are right although the softmax is stored before they are known."""

import pytest
import torch
from torch import nn

from golden import HadamardFormat, PlaneFormat
from torch_bridge import Compressor, Policy, Rule
from torch_bridge.report.rows import PEAKED
from torch_bridge.store.softmaxes import amplification

FORMATS = [HadamardFormat(target=64), HadamardFormat(target=32), PlaneFormat("fp32", block=64, target=80)]
CLASSES = torch.randint(256, (512,), generator=torch.Generator().manual_seed(1))
ROWS = torch.arange(512)


def of_class(log):
    return -log[ROWS, CLASSES].mean()


LOSSES = {
    "of a sum": lambda p: of_class((p + 1e-8).log()),
    "of a mixture": lambda p: of_class((p * 0.9 + 0.1 / 256).log()),
    "of a quotient": lambda p: of_class(((p + 1e-6) / 1.5).log()),
    "plain": lambda p: of_class(p.log()),
    "clamped": lambda p: of_class(p.clamp(min=1e-8).log()),
    "of all classes": lambda p: -(p + 1e-8).log().mean(),
    "entropy": lambda p: (p * (p + 1e-8).log()).sum(-1).mean(),
}


def gradient(loss, policy, spread):
    x = spread * torch.randn(512, 256, generator=torch.Generator().manual_seed(0))
    x.requires_grad_()
    saver = Compressor(nn.Identity(), policy)
    with saver:
        value = loss((1 * x).softmax(-1))
    return torch.autograd.grad(value, x)[0], saver


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
@pytest.mark.parametrize("spread", [1.0, 4.0])
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_of_logarithms_of_a_softmax_are_right(name, spread, fmt):
    exact, _ = gradient(LOSSES[name], Policy([]), spread)
    found, saver = gradient(LOSSES[name], Policy.default(fmt), spread)
    assert (found - exact).norm() < 0.03 * exact.norm()
    if name != "entropy":  # of which both factors are exact
        (row,) = [row for row in saver.report().rows if row.op == "_softmax"]
        assert row.stored_bytes < 0.5 * row.original_bytes


def test_a_softmax_that_nobody_takes_the_logarithm_of_has_four_bits():
    _, saver = gradient(lambda p: nn.functional.gelu(p + 1e-8).sum(), Policy.default(FORMATS[0]), 1.0)
    (row,) = [row for row in saver.report().rows if row.op == "_softmax"]
    assert row.stored_bytes * 8 == row.original_bytes


@pytest.mark.parametrize("height", [0.0, 5.0, 8.0, 12.0, 16.0])
@pytest.mark.parametrize("fmt", FORMATS, ids=str)
@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_of_a_peaked_softmax_is_right(height, fmt, recompute, dtype):
    logits = torch.randn(2, 4, 128, 128, generator=torch.Generator().manual_seed(2), dtype=dtype)
    logits[:, 2, :, 0] += height
    weights = torch.randn(2, 4, 128, 128, generator=torch.Generator().manual_seed(3), dtype=dtype)

    def gradient(policy):
        x = logits.clone().requires_grad_()
        saver = Compressor(nn.Identity(), policy)
        with saver:
            loss = ((1 * x).softmax(-1) * weights).sum()
        return torch.autograd.grad(loss, x)[0], saver

    exact, _ = gradient(Policy([]))
    found, saver = gradient(
        Policy([Rule("exact", saved_by="mul"), *Policy.default(fmt, recompute=recompute).rules])
    )
    for head in range(4):
        assert (found - exact)[:, head].norm() < 0.33 * exact[:, head].norm()
    kept = {row.kept for row in saver.report().rows if row.op == "_softmax"}
    assert (PEAKED in kept) == (height > 10)


def test_a_softmax_over_another_dimension_than_the_last_is_not_taken_for_one_over_it():
    p = torch.randn(64, 64, generator=torch.Generator().manual_seed(4)).softmax(0)
    assert amplification(p).isinf()
    assert 1 < float(amplification(p.T)) < 2
    assert float(amplification(torch.zeros(8, 64))) == 0  # rows that are masked whole
    assert not amplification(torch.full((8, 64), torch.nan)) <= 20
