"""Kernels write to memory past everything that PyTorch counts; what is recomputed is right all the same."""

from contextlib import nullcontext

import pytest
import torch
from torch.nn import functional

from bitstash import Compressor, HadamardFormat, Policy, Rule

RECOMPUTING = Policy([Rule("recompute")])


class Scaled(torch.autograd.Function):
    """Multiplies its input in place, as a kernel for rotary embeddings does, and says nothing of it."""

    @staticmethod
    def forward(ctx, x, factors):
        x.detach().numpy()[...] *= factors.numpy()
        ctx.save_for_backward(factors)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0], None


class OverwritingSine(torch.autograd.Function):
    """Writes its gradient over what it saved, as a kernel for a gated activation does."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        x.detach().numpy()[...] = (x.cos() * grad).numpy()
        return x


def gradients(policy, forward):
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(64, 64, generator=draw, requires_grad=True)
    z = torch.randn(64, 64, generator=draw, requires_grad=True)
    with nullcontext() if policy is None else Compressor(torch.nn.Module(), policy):
        loss = forward(x, z)
    return torch.autograd.grad(loss, (x, z))


def scaled(view):
    def forward(x, z):
        factors = torch.linspace(-1, 2, 64).expand(64, 64).contiguous()
        made = Scaled.apply(functional.silu(x) * 2, factors)
        return (view(made) * view(z)).sum()

    return forward


def overwritten(x, z):
    a = x @ torch.eye(64).roll(1)
    exact = (a.detach() * z).sum() * 0  # it is there before the product is planned
    return z.mul(a * 2.0).sum() + OverwritingSine.apply(a).sum() + exact


CASES = {
    "written to": scaled(lambda y: y),
    "written to, a view of it": scaled(lambda y: y[None].transpose(1, 2)),
    "overwritten in the backward pass": overwritten,
}


@pytest.mark.parametrize("forward", CASES.values(), ids=CASES)
def test_exact_policies_that_recompute_give_the_same_gradients(forward):
    expected = gradients(None, forward)
    for policy in (Policy([]), RECOMPUTING):
        assert all(map(torch.equal, gradients(policy, forward), expected))


@pytest.mark.parametrize("forward", CASES.values(), ids=CASES)
@pytest.mark.filterwarnings("ignore:autograd.Function")
def test_lossy_ones_give_gradients_that_are_near(forward):
    expected = gradients(None, forward)
    for found, exact in zip(gradients(HadamardFormat(target=64), forward), expected, strict=True):
        assert (found - exact).norm() < 0.25 * exact.norm()


def test_a_difference_that_becomes_small_in_any_step_is_not_recomputed_there():
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(64, 64, generator=draw, requires_grad=True)
    x = torch.randn(128, 64, generator=draw)
    saver = Compressor(torch.nn.Module(), HadamardFormat(target=64))
    for is_near in (False, False, True, False, True, True, True):
        with torch.no_grad():
            noise = torch.randn(128, 64, generator=draw) * (0.02 if is_near else 2)
            target = torch.tanh(x @ weight) + noise

        def loss(target=target):
            difference = torch.tanh(x @ weight) - target
            return (difference * difference).sum()

        (exact,) = torch.autograd.grad(loss(), weight)
        with saver:
            made = loss()
        (found,) = torch.autograd.grad(made, weight)
        assert (found - exact).norm() < 0.5 * exact.norm(), is_near
