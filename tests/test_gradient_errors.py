"""Gradients of single operations at four bits, of values of all sizes: the error has a bound."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from golden import HadamardFormat
from torch_bridge import Compressor, Policy

FORMAT = HadamardFormat(target=64)
TOKENS, WIDTH = 512, 256
MOST = 0.4


def unit(x):
    """From 0 to 1, neither of which it reaches."""
    return x.sigmoid() * 0.998 + 0.001


OPERATIONS = {
    "exp": lambda x, y: (3 * x.tanh()).exp(),
    "log": lambda x, y: (x.abs() + 1e-6).log(),
    "log1p": lambda x, y: x.abs().log1p(),
    "sqrt": lambda x, y: (x.abs() + 1e-12).sqrt(),
    "reciprocal": lambda x, y: (x.abs() + 1e-3).reciprocal(),
    "div": lambda x, y: x / (y.abs() + 1e-3),
    "mul": lambda x, y: x * y,
    "cube": lambda x, y: x**3,
    "atan2": torch.atan2,
    "sigmoid": lambda x, y: x.sigmoid(),
    "logsigmoid": lambda x, y: functional.logsigmoid(x),
    "tanh": lambda x, y: x.tanh(),
    "softplus": lambda x, y: functional.softplus(x),
    "gelu": lambda x, y: functional.gelu(x),
    "silu": lambda x, y: functional.silu(x),
    "mish": lambda x, y: functional.mish(x),
    "elu": lambda x, y: functional.elu(x),
    "relu": lambda x, y: x.relu(),
    "hardswish": lambda x, y: functional.hardswish(x),
    "erf": lambda x, y: x.erf(),
    "glu": lambda x, y: functional.glu(x),
    "swiglu": lambda x, y: functional.silu(x) * y,
    "geglu": lambda x, y: functional.gelu(x) * y,
    "softmax": lambda x, y: x.softmax(-1),
    "softmax of the first dimension": lambda x, y: x.softmax(0),
    "log_softmax": lambda x, y: x.log_softmax(-1),
    "logsumexp": lambda x, y: x.logsumexp(-1),
    "normalize": lambda x, y: functional.normalize(x, dim=-1),
    "cosine_similarity": functional.cosine_similarity,
    "cdist": lambda x, y: torch.cdist(x[:64], y[:64]),
    "layer_norm": lambda x, y: functional.layer_norm(x, (WIDTH,)),
    "rms_norm": lambda x, y: functional.rms_norm(x, (WIDTH,)),
    "batch_norm": lambda x, y: functional.batch_norm(x, None, None, training=True),
    "group_norm": lambda x, y: functional.group_norm(x.view(8, 64, WIDTH), 8),
    "std": lambda x, y: x.std(-1),
    "norm": lambda x, y: x.norm(dim=-1),
    "prod": lambda x, y: (1 + 0.01 * x.tanh()).prod(-1),
    "logcumsumexp": lambda x, y: x.logcumsumexp(-1),
    "product": lambda x, y: x @ y.mT,
    "binary_cross_entropy": lambda x, y: functional.binary_cross_entropy(unit(x), unit(y).detach()),
    "with_logits": lambda x, y: functional.binary_cross_entropy_with_logits(x, unit(y).detach()),
    "kl_div": lambda x, y: functional.kl_div(x.log_softmax(-1), y.detach().softmax(-1)),
    "huber_loss": lambda x, y: functional.huber_loss(x, y, reduction="none"),
    "lerp": lambda x, y: torch.lerp(x, y, y.sigmoid()),
    "maximum": torch.maximum,
    "where": lambda x, y: torch.where(x > y, x * y, x),
    "asinh": lambda x, y: x.asinh(),
    "conv1d": lambda x, y: functional.conv1d(x.view(8, 64, WIDTH), y[:64].reshape(64, 64, 4)),
}
SIZES = {
    "as they come": lambda x, y: (x, y),
    "tiny": lambda x, y: (1e-4 * x, 1e-4 * y),
    "large": lambda x, y: (30 * x, 30 * y),
    "far from zero": lambda x, y: (x + 30, y),
    "tokens of all sizes": lambda x, y: (x * torch.linspace(-4, 4, TOKENS)[:, None].exp(), y),
    "a first token of three thousand times the size": lambda x, y: (
        torch.cat([3000 * x[:1], x[1:]]),
        torch.cat([3000 * y[:1], y[1:]]),
    ),
}


OF_CHANNELS = ("gelu", "silu", "swiglu", "geglu", "mul", "tanh", "softplus", "layer_norm", "product")


def gradients(operation, given, saver):
    x, y = (one.clone().requires_grad_() for one in given)
    with saver:
        made = operation(1 * x, 1 * y)
        weights = torch.randn(made.shape, generator=torch.Generator().manual_seed(3))
        loss = (made * weights).sum()
    return torch.autograd.grad(loss, [x, y], allow_unused=True)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_the_error_of_a_gradient_has_a_bound(name, size):
    generator = torch.Generator().manual_seed(1)
    given = SIZES[size](*(torch.randn(TOKENS, WIDTH, generator=generator) for _ in range(2)))
    exact = gradients(OPERATIONS[name], given, Compressor(nn.Identity(), Policy([])))
    found = gradients(OPERATIONS[name], given, Compressor(nn.Identity(), FORMAT))
    for one, right in zip(found, exact, strict=True):
        if right is not None:
            assert right.isfinite().all()
            assert (one - right).norm() <= MOST * right.norm()


@pytest.mark.parametrize("name", OF_CHANNELS)
def test_a_channel_of_a_thousand_times_the_size_does_not_ruin_the_others(name):
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(TOKENS, WIDTH, generator=generator) for _ in range(2))
    x[:, 7] *= 1000
    x[::5] = 0  # padding says nothing of channels
    exact, found = (
        gradients(OPERATIONS[name], (x, y), saver)[0]
        for saver in (Compressor(nn.Identity(), Policy([])), Compressor(nn.Identity(), FORMAT))
    )
    others = torch.arange(WIDTH) != 7
    assert (found - exact)[:, others].norm() <= MOST * exact[:, others].norm()


def test_means_of_channels_do_not_overflow_in_half():
    """Values near the end of fp16, of a channel whose mean has the other sign."""
    x = torch.zeros(TOKENS, WIDTH, dtype=torch.float16).requires_grad_()
    with torch.no_grad():
        x[:, 3], x[::8, 3] = -60_000.0, 60_000.0
    with Compressor(nn.Identity(), FORMAT) as saver:
        loss = functional.silu(1 * x).float().mean()
    assert [row.kept for row in saver.report().rows if row.saved_by == "silu"] == ["compressed"]
    (found,) = torch.autograd.grad(loss, [x])
    assert found.isfinite().all()
