"""Means and sums that a format needs beside it: graphs give the bits that hooks give."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import bitstash
from golden import HadamardFormat

from .compiling import nothing_compiled

__all__ = ["nothing_compiled"]  # around every test here

FORMAT = HadamardFormat(target=64)


class Gated(nn.Module):
    """A gated MLP whose gates have channels with means of their own."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.gate, self.up, self.down = (nn.Linear(128, 128) for _ in range(3))
        nn.init.normal_(self.gate.bias, std=5.0)
        self.x = nn.Buffer(torch.randn(1, 256, 128))

    def forward(self):
        return self.down(functional.silu(self.gate(self.x)) * self.up(self.x)).square().mean()


class Attention(nn.Module):
    """Attention without a fused kernel, of values with a mean."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k = (nn.Parameter(torch.randn(1, 2, 256, 32)) for _ in range(2))
        self.v = nn.Buffer(torch.randn(1, 2, 256, 32) + 10)
        self.weights = nn.Buffer(torch.randn(1, 2, 256, 32))

    def forward(self):
        return ((self.q @ self.k.mT * 0.4).softmax(-1) @ self.v * self.weights).sum()


def gradient(model, loss):
    return torch.cat([one.flatten() for one in torch.autograd.grad(loss, list(model.parameters()))])


@pytest.mark.parametrize(
    ("kind", "backend"),
    [(kind, backend) for kind in (Gated, Attention) for backend in ("aot_eager", "inductor")],
)
def test_means_and_sums_are_those_of_hooks(kind, backend):
    model = kind()
    exact = gradient(model, model())
    saver = bitstash.Compressor(model, FORMAT, min_values=256)
    with saver:
        loss = model()
    hooks = gradient(model, loss)
    compiled = bitstash.compile(model, FORMAT, backend=backend, min_values=256)
    graph = gradient(model, compiled())
    assert (hooks - exact).norm() < 0.2 * exact.norm()
    assert (graph - hooks).norm() < 1e-5 * exact.norm()
    assert sum(row.stored_bytes for row in compiled.report().rows if row.counted) == saver.stored_bytes


class Half(nn.Module):
    """In fp16, with what is recomputed in it, after a norm whose statistics are in fp32."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(128, 128), nn.Linear(128, 128)
        self.norm = nn.LayerNorm(128)
        self.half()
        self.x = nn.Buffer(torch.randn(2, 256, 128).half())

    def forward(self):
        x = self.norm(self.x)
        x = x * x.sigmoid() + (2 * x).sin()
        return self.last(functional.silu(self.first(x))).float().square().mean()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_half_precision_is_recomputed_and_compressed(backend):
    model = Half()
    exact = gradient(model, model()).float()
    compiled = bitstash.compile(model, FORMAT, backend=backend, min_values=256)
    found = gradient(model, compiled()).float()
    assert (found - exact).norm() < 0.2 * exact.norm()
    kept = {row.kept for row in compiled.report().rows}
    assert {"compressed", "recomputed"} <= kept
