"""Fused attention: its backward pass takes the exponential of what a format leaves of queries and keys."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.profiler import profile

from golden import HadamardFormat, PlaneFormat
from torch_bridge import Policy, Rule, compress_activations
from torch_bridge.backends.quant_format import QuantFormat
from torch_bridge.policy.policy import LOGITS
from torch_bridge.stash.recipe import OPERATIONS

from .plain_stash import NOTHING

FLASH = "_scaled_dot_product_flash_attention_for_cpu"
TWO_BITS = HadamardFormat("fp32", 128, 32)
FORMATS = [TWO_BITS, HadamardFormat("fp32", 128, 64), PlaneFormat("fp32", 64, 40), QuantFormat("fp32", 2)]
CAUSAL = {"is_causal": True}


class Trained(nn.Module):
    """Two layers of attention whose logits are in the tens, as in models that were trained for long."""

    def __init__(self, dtype=torch.float32, **options):
        super().__init__()
        torch.manual_seed(0)
        self.projections = nn.ModuleList(nn.Linear(64, 192).to(dtype) for _ in range(2))
        self.options = options

    def forward(self, x):
        for projection in self.projections:
            q, k, v = (part.view(2, 96, 2, 32).transpose(1, 2) for part in projection(x).split(64, -1))
            y = functional.scaled_dot_product_attention(4 * q, 4 * k, v, **self.options)
            x = x + y.transpose(1, 2).reshape(2, 96, 64)
        return x


def inputs(dtype=torch.float32):
    return torch.randn(2, 96, 64, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()


def gradient(model, policy, dtype=torch.float32):
    """Of a model's parameters, flat, and a stash."""
    around = nullcontext() if policy is None else compress_activations(model, policy)
    with around as stash:
        loss = model(inputs(dtype)).float().square().mean()
    found = torch.autograd.grad(loss, list(model.parameters()))
    return torch.cat([part.flatten().float() for part in found]), stash


def error(model, policy, dtype=torch.float32):
    exact, _ = gradient(model, None, dtype)
    found, _ = gradient(model, policy, dtype)
    return float((found - exact).norm() / exact.norm())


def kept(stash):
    return {row.op: row.kept for row in stash.report().rows}


@pytest.mark.parametrize("options", [{}, CAUSAL], ids=["full", "causal"])
@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_large_logits_survive_few_bits(fmt, options):
    policy = Policy.default(fmt)
    found, stash = gradient(Trained(**options), policy)
    exact, _ = gradient(Trained(**options), None)
    assert kept(stash)[FLASH] == kept(stash)[f"{FLASH}.1"] == "derived"
    assert (found - exact).norm() < 2.5 * exact.norm()
    plain = Policy([rule for rule in Policy.default(fmt, derive=False).rules if rule.why != LOGITS])
    assert not error(Trained(**options), plain) < 1.05  # infinite for some


@pytest.mark.parametrize("fmt", [FORMATS[1], FORMATS[2]], ids=str)
def test_queries_and_keys_are_finer_where_attention_is_not_done_again(fmt):
    policy = Policy.default(fmt, derive=False)
    assert error(Trained(), policy) < 0.65
    assert error(Trained(), Policy([rule for rule in policy.rules if rule.why != LOGITS])) > 1


@pytest.mark.parametrize("after", [torch.sum, lambda y: nn.Linear(32, 8)(y).sum()], ids=["sum", "linear"])
def test_attention_is_done_again_once(after):
    x = torch.randn(2, 2, 96, 32, requires_grad=True)
    with compress_activations(NOTHING, TWO_BITS) as stash:
        loss = after(functional.scaled_dot_product_attention(x * 1, x * 2, x * 3))
    assert kept(stash)[FLASH] == "derived"
    with profile() as found:
        loss.backward()
    assert [event.count for event in found.key_averages() if event.key == f"aten::{FLASH}"] == [1]


def test_sums_that_are_under_the_size_floor_go_with_the_outputs():
    model = Trained()
    assert 2 * 2 * 96 < 1024
    _, stash = gradient(model, Policy.default(TWO_BITS))
    assert kept(stash)[f"{FLASH}.1"] == "derived"


@pytest.mark.parametrize("op", [FLASH, f"{FLASH}.1"])
def test_where_a_rule_keeps_a_result_queries_and_keys_are_finer(op):
    _, stash = gradient(Trained(), Policy([Rule("raw", op=op), *Policy.default(TWO_BITS).rules]))
    by_rate = {row.stored_bytes / row.raw_bytes for row in stash.report().rows if row.op == "mul"}
    assert max(by_rate) == 10 / 32


def test_attention_with_dropout_is_not_done_again():
    outputs, sums = OPERATIONS[getattr(torch.ops.aten, FLASH).default]
    for operation in (outputs, sums):
        assert operation.fits((None, None, None))
        assert operation.fits((None, None, None, 0.0, True))
        assert not operation.fits((None, None, None, 0.1, True))


def test_a_rule_names_one_of_what_an_operation_saves():
    x = torch.randn(64, 64, requires_grad=True)
    rules = [Rule("raw", saved_by="mul.1", why="the second"), Rule(PlaneFormat("fp32", 64, 80))]
    with compress_activations(NOTHING, Policy(rules)) as stash:
        y = (x.sin() * x.cos()).sum()
    y.backward()
    found = {row.op: row.kept for row in stash.report().rows}
    assert (found["sin"], found["cos"]) == ("compressed", "the second")
    assert Rule("raw", saved_by="pow(*.*").fits("x", "", "float32", 9, "pow(0.5).1")
    assert not Rule("raw", saved_by="pow(*.*").fits("x", "", "float32", 9, "pow(2).1")
