"""Logarithms of softmaxes: gradients are right although the softmax is stored before they are known."""

import pytest
import torch
from torch import nn

from golden import HadamardFormat, PlaneFormat
from torch_bridge import Compressor, Policy

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
        assert row.stored_bytes < 0.5 * row.raw_bytes


def test_a_softmax_that_nobody_takes_the_logarithm_of_has_four_bits():
    _, saver = gradient(lambda p: nn.functional.gelu(p + 1e-8).sum(), Policy.default(FORMATS[0]), 1.0)
    (row,) = [row for row in saver.report().rows if row.op == "_softmax"]
    assert row.stored_bytes * 8 == row.raw_bytes
