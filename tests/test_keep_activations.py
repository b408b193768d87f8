"""What is saved inside keep_activations stays as it is, wherever that is, and nothing else does."""

import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from torch_bridge import Compressor, Offload, Policy, Rule, keep_activations

from .plain_hooks import COARSE, NOTHING, gradients, stored, unequal, untouched

KEPT = "keep_activations"


def leaf(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), requires_grad=True)


def ours(model=NOTHING, policy=None, **options):
    return Compressor(model, policy or stored(COARSE), min_values=0, **options)


def kept(saver):
    """By operation; parameters left out."""
    return {row.op: row.kept for row in saver.report().rows if row.counted}


class Gate(nn.Linear):
    """Its own activations are exact."""

    def forward(self, x):
        with keep_activations():
            return super().forward(x).sigmoid()


class DecoratedGate(nn.Linear):
    @keep_activations()
    def forward(self, x):
        return super().forward(x).sigmoid()


class Plain(Gate):
    def forward(self, x):
        return nn.Linear.forward(self, x).sigmoid()


def net(gate):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), gate(64, 64), nn.Tanh())


def step(model, context):
    with context as saver:
        loss = model(torch.randn(64, 64, generator=torch.Generator().manual_seed(1))).square().sum()
    loss.backward()
    return gradients(model), saver


@pytest.mark.parametrize("gate", [Gate, DecoratedGate])
@pytest.mark.parametrize("policy", [stored(COARSE), Policy([Rule(COARSE)])], ids=["waits", "at once"])
def test_in_the_forward_pass_of_a_module(gate, policy):
    model = net(gate)
    found, saver = step(model, ours(model, policy))
    expected, _ = step(model, untouched())
    # The first tanh is compressed where it is saved outside, and exact where the gate saves it.
    rows = [row.kept for row in saver.report().rows if row.counted]  # input, tanh, tanh, sigmoid, tanh
    assert rows == ["compressed", "compressed", KEPT, KEPT, "compressed"]
    assert (saver.original_bytes, saver.stored_bytes) == (5 * 16384, 3 * 2304 + 2 * 16384)
    # The gradient that comes to the gate is not exact, what it makes of it is.
    assert unequal(found, expected) == list(expected)


def test_what_is_kept_is_exact():
    x = leaf(64, 64)
    with ours() as saver:
        with keep_activations():
            y = (x * 2).sin()
        z = (x * 3).cos()
    assert [row.kept for row in saver.report().rows] == [KEPT, "compressed"]
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], 2 * (2 * x).cos())
    assert not torch.equal(torch.autograd.grad(z.sum(), x)[0], -3 * (3 * x).sin())


def test_what_is_kept_is_shared_with_what_is_saved_later():
    with ours() as saver:
        h = leaf(64, 64) * 2
        with keep_activations():
            first = h.sin()
        others = [h.cos(), h.t().exp() * h.t(), h[3:9].sin()]
    rows = {row.op: (row.kept, row.tensors) for row in saver.report().rows}
    assert rows == {"mul": (KEPT, 1), "exp": ("compressed", 1)}
    assert len([first, *others]) == 4


def test_contexts_nest():
    def modes(*contexts):
        """What happens to what is saved in each of nested contexts, and after it."""
        if not contexts:
            return []
        with contexts[0] as saver:
            savers.append(saver if saver is not None else savers[-1])
            inside = modes(*contexts[1:])
            before = savers[-1].stored_bytes
            outputs.append((leaf(64, 64) * 2).sin())
            here = "kept" if savers[-1].stored_bytes - before == 64 * 64 * 4 else "compressed"
            savers.pop()
        return [here, *inside]

    savers, outputs = [], []
    assert modes(ours(), keep_activations(), keep_activations()) == ["compressed", "kept", "kept"]
    assert modes(ours(), keep_activations(), ours()) == ["compressed", "kept", "compressed"]
    assert modes(ours(), ours(), keep_activations()) == ["compressed", "compressed", "kept"]
    assert modes(ours(), keep_activations(), ours(), keep_activations()) == ["compressed", "kept"] * 2


def test_after_a_failure_what_was_before_holds_again():
    with ours() as saver:
        with pytest.raises(ArithmeticError), keep_activations():
            raise ArithmeticError
        leaf(64, 64).sin()
    assert kept(saver) == {"randn": "compressed"}


def test_it_holds_for_its_thread_alone():
    inside, done = threading.Event(), threading.Event()

    def other():
        with keep_activations():
            inside.set()
            done.wait(10)

    thread = threading.Thread(target=other)
    with ours() as saver:
        thread.start()
        inside.wait(10)
        leaf(64, 64).sin()
    done.set()
    thread.join()
    assert kept(saver) == {"randn": "compressed"}


def test_without_a_compressor_it_does_nothing():
    x = leaf(64, 64)
    with keep_activations():
        y = x.sin()
    y.sum().backward()
    assert torch.equal(x.grad, x.cos())


def test_what_is_kept_is_not_offloaded(tmp_path):
    with ours(offload=Offload(tmp_path, amount="all")) as saver:
        with keep_activations():
            leaf(64, 64).sin()
        assert saver.offloaded_bytes == 0
    assert kept(saver) == {"randn": KEPT}


@pytest.mark.parametrize("use_reentrant", [False, True], ids=["non-reentrant", "reentrant"])
@pytest.mark.parametrize("backward", ["inside", "after"])
def test_in_a_checkpoint_it_changes_nothing(use_reentrant, backward):
    model = net(Gate)
    x = leaf(64, 64)

    def run(gate):
        model[2].__class__ = gate
        with ours(model) as saver:
            loss = checkpoint(model, x * 1, use_reentrant=use_reentrant).square().sum()
            saved = kept(saver)
            if backward == "inside":
                loss.backward()
        if backward == "after":
            loss.backward()
        return gradients(model), saved

    found, saved = run(Gate)
    assert saved["mul"] == "compressed"
    assert KEPT not in saved.values()
    expected, _ = run(Plain)
    # A reentrant checkpoint saves what it computes anew, in the context if that is still there.
    assert bool(unequal(found, expected)) == (use_reentrant and backward == "inside")


def test_torch_compile_leaves_it_out_of_its_graphs():
    model = net(Gate)
    found, saver = step(model, ours(model))
    torch._dynamo.reset()
    again, compiled = step(torch.compile(model, backend="aot_eager"), ours(model))
    assert unequal({name.removeprefix("_orig_mod."): g for name, g in again.items()}, found) == []
    assert sorted(kept(compiled).items()) == sorted(kept(saver).items())
