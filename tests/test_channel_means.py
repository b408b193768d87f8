"""Channels whose values lie around a mean: it is kept beside what the format has of the tensor."""

import pytest
import torch
from torch import nn
from torch.nn.functional import silu

from golden import HadamardFormat
from torch_bridge import Compressor

FORMAT = HadamardFormat(target=64)
TOKENS, WIDTH = 256, 128


class Gated(nn.Module):
    """A gated MLP whose gates have means of their own by channel, as far apart as ``offset`` says."""

    def __init__(self, offset=0.0, tokens=TOKENS, first=1.0):
        super().__init__()
        torch.manual_seed(0)
        self.gate, self.up, self.down = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        nn.init.normal_(self.gate.bias, std=offset)
        self.x = torch.randn(1, tokens, WIDTH)
        self.x[:, 0] *= first

    def forward(self):
        return self.down(silu(self.gate(self.x)) * self.up(self.x))[:, 1:].square().mean()


def gradient(model):
    return torch.cat([one.flatten() for one in torch.autograd.grad(model(), list(model.parameters()))])


def error(model, policy=FORMAT):
    exact = gradient(model)
    with Compressor(model, policy, min_values=0):
        found = gradient(model)
    return float((found - exact).norm() / exact.norm())


def test_means_of_many_times_the_spread_cost_no_precision():
    """What is exact of the gates makes the gradient nearer: 0.56 of the error, 0.88 without the means."""
    assert error(Gated(5.0)) < 0.7 * error(Gated(0.0))


def test_one_token_of_a_thousand_times_the_size_spoils_no_other():
    assert error(Gated(0.0, first=1000.0)) < 1.5 * error(Gated(0.0))


@pytest.mark.parametrize(("tokens", "share"), [(TOKENS - 1, 0), (TOKENS, 1)])
def test_the_report_counts_them_where_there_are_tokens_enough(tokens, share):
    model = Gated(1.0, tokens)
    with Compressor(model, FORMAT, min_values=0) as saver:
        model()
    rows = [row for row in saver.report().rows if row.kept == "compressed" and row.saved_by == "silu"]
    blocks = tokens * WIDTH // FORMAT.block
    assert [row.stored_bytes for row in rows] == [blocks * FORMAT.target + share * 5 * WIDTH]


def test_what_comes_back_has_them_again():
    model = Gated(5.0)
    saved = []
    with Compressor(model, FORMAT, min_values=0):
        gates = model.gate(model.x)
        made = silu(gates)
        saved.append(made.grad_fn._saved_self)
    lost = saved[0] - gates
    around = (gates - gates.mean(1, keepdim=True)).square().mean()
    assert lost.square().mean() < 0.02 * around


class Normed(Gated):
    """A norm reads what SiLU saved before, whose rows have means of many times their spread."""

    def forward(self):
        sides = torch.arange(TOKENS).remainder(2)[:, None] * 60.0 - 30.0
        gates = self.gate(self.x) + self.up(self.x) + sides
        return self.down(silu(gates) / 30 + nn.functional.layer_norm(gates, (WIDTH,))).square().mean()


def test_a_norm_of_the_same_tensor_reads_it_without_the_means_of_its_rows():
    assert error(Normed(1.0)) < 0.1


@pytest.mark.parametrize("odd", [float("inf"), float("nan")])
def test_a_channel_that_is_not_finite_spoils_no_other(odd):
    model = Gated(5.0)
    with Compressor(model, FORMAT, min_values=0):
        gates = model.gate(model.x)
        gates.data[0, 3, 7] = odd
        saved = silu(gates).grad_fn._saved_self
    block = saved[0, 3]
    assert not block[7].isfinite()
    others = torch.arange(TOKENS) != 3
    assert torch.allclose(saved[0, others, :7], gates[0, others, :7], atol=1.0)
    assert saved[0, others].isfinite().all()
