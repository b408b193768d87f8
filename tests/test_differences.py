"""Checkpoint boundaries, each stored as its difference from what is stored of the one before."""

import gc
from contextlib import nullcontext

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from golden import HadamardFormat
from torch_bridge import Compressor, Offload, Policy, backends
from torch_bridge.store.entries import Entry
from torch_bridge.store.store import Store

TOKENS, WIDTH, LAYERS = 300, 64, 8


class Layer(torch.nn.Module):
    """Adds a little to what it is given, or gives something else."""

    def __init__(self, adds):
        super().__init__()
        self.adds, self.inner = adds, torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, values):
        changed = self.inner(torch.nn.functional.layer_norm(values, (WIDTH,)).tanh())
        return values + 0.3 * changed if self.adds else changed


class Model(torch.nn.Module):
    def __init__(self, adds=True, reentrant=False):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList([Layer(adds) for _ in range(LAYERS)])
        self.reentrant = reentrant

    def forward(self, values):
        for layer in self.layers:
            values = checkpoint(layer, values, use_reentrant=self.reentrant)
        return values


def given(dtype=torch.float32, scale=1.0):
    torch.manual_seed(1)
    values = torch.randn(2, TOKENS, WIDTH) * scale
    values[:, :2] *= 100  # the first tokens of a pretrained model
    return values.to(dtype).requires_grad_()


def gradient(model, saver=None, values=None):
    values = given() if values is None else values
    model.zero_grad()
    with saver or nullcontext():
        result = model(values)
    result.backward(sent(result))
    return torch.cat([one.grad.flatten().float() for one in model.parameters()])


def sent(result):
    """A gradient that is sent back."""
    torch.manual_seed(3)
    return torch.randn(result.shape).to(result.dtype)


def error(found, exact):
    return float((found - exact).norm() / exact.norm())


@pytest.fixture
def as_they_are(monkeypatch):
    """Stores each boundary without the one before."""

    def switch():
        monkeypatch.setattr(Store, "_difference", lambda *_: None)

    return switch


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("bits", [4, 2])
def test_gradients_are_better_in_the_same_bytes(as_they_are, bits, reentrant):
    model = Model(reentrant=reentrant)
    exact = gradient(model)
    saver = Compressor(model, bits=bits)
    better = [error(gradient(model, saver), exact) for _ in range(2)]
    assert better[0] == better[1]
    nbytes = saver.stored_bytes
    as_they_are()
    saver = Compressor(model, bits=bits)
    assert better[0] < 0.6 * error(gradient(model, saver), exact)
    assert nbytes == saver.stored_bytes


def test_values_are_sums_of_what_the_golden_model_decompresses():
    """Against the definition, in any order: what is stored is the difference from the sum up to there."""
    fmt = HadamardFormat("fp32", 64, 32)  # no means of channels: 200 tokens
    golden = backends.get("golden", fmt)
    torch.manual_seed(2)
    boundaries = [torch.randn(200, WIDTH)]
    for _ in range(LAYERS):
        boundaries.append(boundaries[-1] + 0.3 * torch.randn(200, WIDTH))
    expected, total = [], torch.zeros(200, WIDTH)
    for one in boundaries:
        stored = golden.compress((one - total).flatten())
        total = total + golden.decompress(stored, one.numel()).view(200, WIDTH)
        expected.append(total)

    seen = []
    layer = torch.nn.Linear(WIDTH, WIDTH)

    def look(values):
        seen.append(values.detach().clone())
        return layer(values)

    with Compressor(layer, Policy.default(fmt), backend="golden"):
        results = [checkpoint(look, one.requires_grad_(), use_reentrant=False) for one in boundaries]
    for order in (reversed(range(len(boundaries))), [3, 3, 7, 0, 5, 8, 1]):
        for at in order:
            seen.clear()
            results[at].sum().backward(retain_graph=True)
            torch.testing.assert_close(seen[0], expected[at], rtol=0, atol=2e-6)


def test_offloaded_ones_give_the_same_gradients(tmp_path):
    """Each is read once, and the sum goes when the last of them has been used."""
    model = Model()
    expected = gradient(model, Compressor(model, bits=4))
    with Offload(tmp_path) as disk:
        saver = Compressor(model, bits=4, offload=disk)
        assert torch.equal(gradient(model, saver), expected)
        assert disk.loaded_bytes + disk.forwarded_bytes <= saver.offloaded_bytes


def test_what_does_not_add_is_stored_as_it_is(as_they_are):
    model = Model(adds=False)
    found = gradient(model, Compressor(model, bits=4))
    as_they_are()
    assert torch.equal(found, gradient(model, Compressor(model, bits=4)))


def test_tensors_of_other_shapes_between_them():
    """Each row begins anew; gradients are as good as of one shape at a time."""
    model = Model()
    exact = gradient(model, values=given())

    class Mixed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, values):
            other = values[:, :100].detach().requires_grad_()
            for at, layer in enumerate(model.layers):
                values = checkpoint(layer, values, use_reentrant=False)
                if at == 3:
                    checkpoint(layer, other, use_reentrant=False)
            return values

    assert error(gradient(Mixed(), Compressor(model, bits=4)), exact) < 0.1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types(dtype):
    """As good as in fp32; the largest values of fp16 stay finite."""
    model = Model()
    exact = gradient(model)
    model.to(dtype)
    assert error(gradient(model, Compressor(model, bits=4), given(dtype)), exact) < 0.1
    largest = given(dtype, 6e4 / 500 if dtype == torch.float16 else 1.0)
    assert gradient(model, Compressor(model, bits=4), largest).isfinite().all()


def test_backward_passes_through_a_retained_graph_agree():
    model = Model()
    with Compressor(model, bits=4):
        result = model(given())
    each = [torch.autograd.grad(result, model.parameters(), sent(result), retain_graph=True) for _ in "12"]
    for one, other in zip(*each, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


def test_nothing_is_left_and_no_sum_is_kept_between_the_passes():
    model = Model()
    saver = Compressor(model, bits=4)

    def entries():
        gc.collect()
        return sum(issubclass(type(one), Entry) for one in gc.get_objects())

    sums = []
    with saver:
        result = model(given())
        sums.append(saver.store._sum)
    assert sums[0]._total is None
    assert entries() >= LAYERS
    gc.disable()
    try:
        result.backward(sent(result))
        del result
        left = sum(issubclass(type(one), Entry) for one in gc.get_objects())
    finally:
        gc.enable()
    assert left == 0


@pytest.mark.parametrize("when", ["at once", "later"])
def test_a_node_that_needs_more_of_some(when):
    """What follows stays right, whether it is stored before or after that."""
    model = Model()
    exact = gradient(model)

    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, values):
            seen, sizes = [], []
            for layer in model.layers:
                seen.append(values)
                values = checkpoint(layer, values, use_reentrant=False)
                if when == "at once" and len(seen) % 2:
                    sizes.append(seen[-1].abs())
            # Each of these needs the signs of what it is given.
            return values + 0 * sum(sizes or [one.abs() for one in seen[::2]])

    behind = slice(WIDTH * WIDTH + WIDTH, None)  # the first layer, whose input has the error of four bits
    assert error(gradient(Twice(), Compressor(model, bits=4))[behind], exact[behind]) < 0.02
