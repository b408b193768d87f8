"""Norms whose inputs have means of many times their spread: gradients are as near as without the means."""

import pytest
import torch
from torch import nn

from golden import HadamardFormat, PlaneFormat
from torch_bridge import Compressor, Policy

from . import kernels

FORMATS = [HadamardFormat(target=64), HadamardFormat(target=32), PlaneFormat("fp32", block=64, target=40)]
OFFSETS = (3.0, 9.0, 35.0, 100.0)
WIDTH, CHANNELS = 128, 32


def signs(count):
    """1 and -1 in turns: means of all of them are 0, those of each are not."""
    return torch.ones(count).index_fill(0, torch.arange(1, count, 2), -1)


class LayerNorm(nn.Module):
    """A norm of rows between two linear layers."""

    def __init__(self, norm=None):
        super().__init__()
        torch.manual_seed(0)
        self.before, self.behind = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm = norm or nn.LayerNorm(WIDTH)
        self.offset = 0.0

    def forward(self):
        x = torch.randn(256, WIDTH, generator=torch.Generator().manual_seed(1))
        return self.behind(self.norm(self.before(x) + self.offset)).square().mean()


class BatchNorm(LayerNorm):
    """Each feature has a mean of its own, all beside each other in memory."""

    def __init__(self):
        super().__init__(nn.BatchNorm1d(WIDTH))

    def forward(self):
        x = torch.randn(256, WIDTH, generator=torch.Generator().manual_seed(1))
        features = self.before(x) + self.offset * signs(WIDTH)
        return self.behind(self.norm(features)).square().mean()


class Images(nn.Module):
    """A norm of channels between two convolutions."""

    def __init__(self, norm, memory_format=torch.contiguous_format, alike=1):
        super().__init__()
        torch.manual_seed(0)
        self.before, self.behind = nn.Conv2d(8, CHANNELS, 3), nn.Conv2d(CHANNELS, 8, 3)
        self.norm, self.memory_format, self.offset = norm, memory_format, 0.0
        self.signs = signs(CHANNELS // alike).repeat_interleave(alike)[:, None, None]

    def forward(self):
        x = torch.randn(4, 8, 14, 14, generator=torch.Generator().manual_seed(1))
        channels = self.before(x.to(memory_format=self.memory_format))
        channels = channels + self.offset * self.signs
        return self.behind(self.norm(channels)).square().mean()


class Halves(LayerNorm):
    """Of a fused projection one half is normed, which has gaps in memory."""

    def __init__(self):
        super().__init__()
        self.before = nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self):
        x = torch.randn(256, WIDTH, generator=torch.Generator().manual_seed(1))
        half, _ = (self.before(x) + self.offset).chunk(2, -1)
        return self.behind(self.norm(half)).square().mean()


class Shared(LayerNorm):
    """What is normed is multiplied first, so that it is stored for another node before."""

    def forward(self):
        x = torch.randn(256, WIDTH, generator=torch.Generator().manual_seed(1))
        shared = self.before(x) + self.offset
        product = (shared @ self.behind.weight).mean()  # its own gradient is small beside the other
        return self.behind(self.norm(shared)).square().mean() + 1e-6 * product


class Variance(LayerNorm):
    """The variance of rows, which is no norm."""

    def forward(self):
        x = torch.randn(256, WIDTH, generator=torch.Generator().manual_seed(1))
        return (self.before(x) + self.offset).var(-1).float().dot(signs(256))


class Kernel(nn.Module):
    """Liger's norm of rows, written in a kernel."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x):
        return kernels.LigerLayerNormFunction.apply(x, self.weight, self.bias, 1e-6)


MODELS = {
    "layer norm": LayerNorm,
    "kernel": lambda: LayerNorm(Kernel()),
    "batch norm": BatchNorm,
    "group norm of images": lambda: Images(nn.GroupNorm(8, CHANNELS), alike=CHANNELS // 8),
    "batch norm of images": lambda: Images(nn.BatchNorm2d(CHANNELS)),
    "batch norm, channels last": lambda: Images(nn.BatchNorm2d(CHANNELS), torch.channels_last),
    "a half": Halves,
    "stored before": Shared,
    "variance": Variance,
}


def gradient(model, policy, dtype=torch.float32):
    """Of the layer before the norm, flat, and the Compressor."""
    saver = Compressor(model, policy)
    with saver, torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
        loss = model()
    loss.backward()
    found = torch.cat([part.grad.flatten() for part in model.before.parameters()])
    model.zero_grad(set_to_none=True)
    return found, saver


def error(model, policy, dtype=torch.float32):
    exact, _ = gradient(model, Policy([]), dtype)
    found, _ = gradient(model, policy, dtype)
    return float((found - exact).norm() / exact.norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("fmt", FORMATS, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_a_mean_of_many_times_the_spread_costs_no_precision(name, fmt, dtype):
    model = MODELS[name]()
    without = error(model, Policy.default(fmt), dtype)
    for offset in OFFSETS:
        model.offset = offset
        found = error(model, Policy.default(fmt), dtype)
        assert found < 1.15 * without + 0.01, (offset, without)


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_channels_of_small_spread_survive_beside_large_ones(fmt):
    def spread(factors):
        model = BatchNorm()
        with torch.no_grad():
            model.before.weight.mul_(factors[:, None])
        found, _ = gradient(model, Policy.default(fmt))
        exact, _ = gradient(model, Policy([]))
        small = slice(0, WIDTH // 2 * WIDTH)
        return float((found - exact)[small].norm() / exact[small].norm())

    alike, small = torch.ones(WIDTH), torch.ones(WIDTH)
    small[: WIDTH // 2] = 0.02
    assert spread(small) < 1.2 * spread(alike)


def test_the_report_counts_the_means():
    model = LayerNorm()
    _, saver = gradient(model, Policy.default(FORMATS[0]))
    (row,) = [
        row
        for row in saver.report().rows
        if row.saved_by == "native_layer_norm" and row.original_bytes > 1024
    ]
    assert row.stored_bytes == 256 * (WIDTH // 2 + 4)


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_a_relu_before_a_norm_keeps_its_signs(fmt):
    class Gated(LayerNorm):
        def forward(self):
            x = torch.randn(256, WIDTH, generator=torch.Generator().manual_seed(1))
            self.gates = self.before(x).relu()
            return self.behind(self.norm(self.gates)).square().mean()

    model = Gated()
    saver = Compressor(model, fmt)
    with saver:
        loss = model()
    node = model.gates.grad_fn
    assert not node._saved_result[model.gates == 0].any()
    loss.backward()


def test_what_is_broadcast_to_a_norm_stays_exact():
    class Repeated(LayerNorm):
        def forward(self):
            row = self.before(torch.ones(64, WIDTH)) + 100.0
            return self.behind(self.norm(row[:, None].expand(-1, 4, -1))).square().mean()

    assert error(Repeated(), Policy.default(FORMATS[0])) < 0.3


@pytest.mark.parametrize("layout", ["rows", "channels"])
def test_finite_values_of_fp16_stay_finite(layout):
    values = torch.full((64, 64), 65504.0, dtype=torch.float16)
    values[::2] *= -1
    values[:, ::3] *= 0.999
    values[0, 0] = torch.inf
    x = values.clone().requires_grad_()
    norm = nn.LayerNorm(64) if layout == "rows" else nn.BatchNorm1d(64)
    with Compressor(norm, HadamardFormat(target=64)):
        y = norm.half()(x)
    saved = y.grad_fn._saved_input
    assert saved.isfinite().sum() == values.isfinite().sum()
