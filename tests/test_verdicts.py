"""Questions about values: after the first no forward pass waits for an answer, and late ones do no harm."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.profiler import profile

from golden import HadamardFormat
from torch_bridge import Compressor, Policy
from torch_bridge.store import verdicts
from torch_bridge.store.verdicts import Flag, Verdicts

FMT = HadamardFormat(target=64)
READS = {"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::nonzero"}


class Asking(nn.Module):
    """A layer of which all questions are asked: norms, attention fused and eager, sums, masks, gates."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.projection, self.out = nn.LayerNorm(64), nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x, mask):
        q, k, v = (
            part.view(2, -1, 2, 32).transpose(1, 2) for part in self.projection(self.norm(x)).split(64, -1)
        )
        fused = functional.scaled_dot_product_attention(q, k, v)
        logits = q @ k.transpose(-1, -2) / 32**0.5 + mask
        eager = logits.softmax(-1) @ v
        y = x + self.out((fused + eager).transpose(1, 2).reshape(x.shape))
        gates = torch.where(y > 0, torch.ones(()), 0.5) * functional.gelu(y, approximate="tanh")
        return functional.dropout(gates * mask.exp().mean(), 0.1).square().mean()


def given(length=64, scale=1.0):
    x = scale * torch.randn(2, length, 64, generator=torch.Generator().manual_seed(1))
    return x.requires_grad_(), torch.full((length, length), -1e4).triu(1)


def test_no_forward_pass_after_the_first_reads_an_activation():
    model = Asking()
    saver = Compressor(model, FMT)
    reads = []
    for _ in range(3):
        with profile() as found, saver:
            loss = model(*given())
        reads.append(sum(event.count for event in found.key_averages() if event.key in READS))
        loss.backward()
    assert reads[0] > 0  # it does ask
    assert reads[1:] == [0, 0]


class Late:
    """A flag whose answer is there when the test says so."""

    arrived = False

    def __init__(self, flag):
        self._flag = flag

    @property
    def value(self):
        return bool(self._flag) if self.arrived else None


@pytest.fixture
def late(monkeypatch):
    Late.arrived = False
    monkeypatch.setattr(verdicts, "Flag", Late)
    return Late


def test_an_answer_that_comes_late_counts_from_the_next_step_on(late):
    known = Verdicts()
    assert known.holds("x", lambda: torch.tensor(True)) == (True, None)  # waited for
    holds, flag = known.holds("x", lambda: torch.tensor(False))
    assert holds
    assert flag.value is None
    flag.arrived = True
    assert known.holds("x", lambda: torch.tensor(False)) == (False, None)
    assert known.holds("x", lambda: torch.tensor(True)) == (False, None)  # it arrives too late for this one
    late.arrived = True
    assert known.holds("x", lambda: torch.tensor(True)) == (True, None)


def test_a_first_pass_on_memory_that_was_never_written_leaves_no_verdict():
    """As pipelines run one to learn their shapes."""

    def stored(saver, scale):
        model = torch.nn.Linear(64, 3 * 64)
        x = scale * torch.randn(1, 128, 64, generator=torch.Generator().manual_seed(0))
        with saver:
            q, k, v = model(x).view(1, 128, 3, 2, 32).permute(2, 0, 3, 1, 4)
            functional.scaled_dot_product_attention(q, k, v).square().sum().backward()
        return saver.stored_bytes

    torch.manual_seed(0)
    garbage, plain = Compressor(nn.Identity(), FMT), Compressor(nn.Identity(), FMT)
    assert stored(garbage, float("inf")) > stored(plain, 1.0)
    assert stored(garbage, 1.0) == stored(plain, 1.0)


@pytest.mark.parametrize("arrives", ["before the backward pass", "never"])
def test_queries_whose_logits_turn_out_to_spread_have_their_exact_gradients(late, arrives):
    """The step in which they begin to: its blocks are too coarse, and its values are still there."""
    saver = Compressor(nn.Identity(), FMT)

    def gradient(scale, around):
        q, k, v = (
            (
                torch.randn(1, 2, 128, 32, generator=torch.Generator().manual_seed(seed)) * factor
            ).requires_grad_()
            for seed, factor in enumerate((scale, scale, 1.0))
        )
        with around:
            loss = functional.scaled_dot_product_attention(1 * q, 1 * k, 1 * v).square().sum()
        late.arrived = arrives != "never"
        return torch.cat([one.flatten() for one in torch.autograd.grad(loss, [q, k])])

    gradient(1.0, saver)
    late.arrived = False
    found, exact = gradient(5.0, saver), gradient(5.0, Compressor(nn.Identity(), Policy([])))
    assert saver.ratio > 5  # in four bits
    assert (found - exact).norm() < 0.2 * exact.norm()


def test_lengths_of_their_own_in_every_step_do_not_add_up(monkeypatch):
    monkeypatch.setattr(verdicts, "MOST_ANSWERS", 8)
    monkeypatch.setattr("torch_bridge.store.store.MOST_ANSWERS", 8)
    monkeypatch.setattr("torch_bridge.hooks.MOST_PLACES", 16)
    monkeypatch.setattr("torch_bridge.policy.policy._MOST_DECISIONS", 16)
    model, policy = Asking(), Policy.default(FMT)
    saver = Compressor(model, policy)
    for length in range(40, 60):
        with saver:
            loss = model(*given(length))
        loss.backward()
        known = saver._verdicts
        assert max(len(known._known), len(known._pending), len(saver._shared)) <= 8 + 1
        assert max(len(saver._places), len(policy._decisions)) <= 16


def test_a_flag_on_the_host_is_there_at_once():
    assert [Flag(torch.tensor(value)).value for value in (True, False)] == [True, False]
