"""The bridge beside what else makes a training step; gradients are those of plain hooks in its place."""

import gc
import resource
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.func import functional_call, grad, jacrev, jvp, vmap
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.checkpoint import checkpoint

from torch_bridge import Compressor

from .compiling import needs_a_compiler
from .plain_hooks import COARSE, FMT, gradients, is_log_softmax, reference, stored, unequal, untouched


def bridge(model, fmt=COARSE):
    return Compressor(model, stored(fmt), min_values=2)  # a single value is what a loss is divided by


def plain(model, fmt=COARSE):
    return reference(model, fmt, is_log_softmax, min_values=2)


def exact(model, fmt=COARSE):
    return untouched()


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 32))


def batch(seed=0):
    return torch.randn(40, 32, generator=torch.Generator().manual_seed(seed))


def agree(step):
    """A step, from a kind of hooks to gradients, gives what the plain hooks give, and not the exact ones."""
    found = step(bridge)
    assert unequal(found, step(plain)) == []
    assert unequal(found, step(exact)) != []


class TiedNet(nn.Module):
    """Embedding and output layer share a matrix."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.net = mlp()
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        logits = self.head(self.net(self.embedding(tokens)))
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def test_tied_weights():
    model = TiedNet()
    tokens = torch.randint(50, (4, 20))

    def step(hooks):
        with hooks(model) as saver:
            loss = model(tokens)
        loss.backward()
        if hooks is bridge:
            (row,) = [row for row in saver.report().rows if row.shape == (32, 50)]
            assert (row.kept, row.counted) == ("parameter", False)
        return gradients(model)

    agree(step)


def test_frozen_layers_save_nothing_more():
    original_bytes = []

    def step(hooks, frozen=True):
        model = mlp()
        model[:3].requires_grad_(not frozen)
        with hooks(model) as saver:
            loss = model(batch()).square().mean()
        loss.backward()
        if hooks is bridge:
            original_bytes.append(saver.original_bytes)
        found = gradients(model)
        assert len(found) == (2 if frozen else 6)
        return found

    agree(step)
    step(bridge, frozen=False)
    # The last layer's input and the loss's; those of all layers when all are trained.
    assert original_bytes == [4 * 40 * (64 + 32), 4 * 40 * (32 + 64 + 64 + 64 + 32)]


class LoRA(nn.Module):
    """A frozen linear layer, and what is learnt beside it in few dimensions."""

    def __init__(self, layer, rank=4):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


def test_low_rank_adapters():
    model = mlp()
    for i in (0, 2, 4):
        model[i] = LoRA(model[i])

    def step(hooks):
        with hooks(model):
            loss = model(batch()).square().mean()
        loss.backward()
        found = gradients(model)
        assert all("layer" not in name for name in found)
        return found

    agree(step)


@pytest.mark.parametrize("contexts", ["one for each", "one for all"])
def test_gradient_accumulation(contexts):
    model = mlp()

    def step(hooks):
        def backward(seed):
            (model(batch(seed)).square().mean() / 4).backward()

        if contexts == "one for all":
            with hooks(model):
                for seed in range(4):
                    backward(seed)
        else:
            for seed in range(4):
                with hooks(model):
                    loss = model(batch(seed)).square().mean() / 4
                loss.backward()
        return gradients(model)

    agree(step)


@pytest.mark.parametrize("backward", ["inside", "after"])
@pytest.mark.parametrize("use_reentrant", [False, True], ids=["non-reentrant", "reentrant"])
def test_checkpointing_inside(use_reentrant, backward):
    model = mlp()
    original_bytes = {}

    def step(hooks, checkpointed=True):
        x = batch().requires_grad_()
        with hooks(model) as saver:
            middle = model[:4]
            h = checkpoint(middle, x, use_reentrant=use_reentrant) if checkpointed else middle(x)
            loss = model[4](h).square().mean()
            if hooks is bridge:
                original_bytes[checkpointed] = saver.original_bytes
            if backward == "inside":
                loss.backward()
        if backward == "after":
            loss.backward()
        return gradients(model)

    agree(step)
    step(bridge, checkpointed=False)
    # What the checkpoint was given is saved, and nothing that it will compute anew.
    assert original_bytes == {True: 4 * 40 * (32 + 64 + 32), False: 4 * 40 * (32 + 64 + 64 + 64 + 32)}


@pytest.mark.parametrize("use_reentrant", [False, True], ids=["non-reentrant", "reentrant"])
def test_inside_a_checkpointed_function(use_reentrant):
    model = mlp()

    def step(hooks):
        def forward(x):
            with hooks(model):
                return model(x).square().mean()

        checkpoint(forward, batch().requires_grad_(), use_reentrant=use_reentrant).backward()
        return gradients(model)

    agree(step)


def test_inside_save_on_cpu_it_compresses():
    model = mlp()

    def step(hooks):
        with save_on_cpu(), hooks(model):
            loss = model(batch()).square().mean()
        loss.backward()
        return gradients(model)

    agree(step)


def test_save_on_cpu_inside_takes_what_it_covers():
    model = mlp()

    def step(hooks):
        with hooks(model) as saver:
            with save_on_cpu():
                h = model[:4](batch())
            loss = model[4](h).square().mean()
        loss.backward()
        if hooks is bridge:
            assert saver.original_bytes == 4 * 40 * (64 + 32)
        return gradients(model)

    agree(step)


def test_a_finer_format_inside():
    model = mlp()

    def step(hooks):
        with hooks(model):
            h = model[:2](batch())
            with hooks(model, FMT):
                h = model[2:4](h)
            loss = model[4](h).square().mean()
        loss.backward()
        return gradients(model)

    agree(step)


def test_functional_call():
    model = mlp()

    def step(hooks):
        with hooks(model):
            loss = functional_call(model, dict(model.named_parameters()), batch()).square().mean()
        loss.backward()
        return gradients(model)

    agree(step)


def test_vmap_of_the_forward_pass():
    model = mlp()

    def step(hooks):
        with hooks(model):
            loss = vmap(lambda row: model(row).square().mean())(batch()).mean()
        loss.backward()
        return gradients(model)

    agree(step)


def test_forward_mode_is_not_touched():
    model = mlp()
    x = batch()
    with bridge(model):
        found = jvp(model, (x,), (x,))
    expected = jvp(model, (x,), (x,))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("transform", [grad, jacrev])
def test_reverse_mode_transforms_are_an_error_of_pytorch(transform):
    model = mlp()

    def loss(x):
        return model(x).square().mean()

    def compressed_loss(x):
        with bridge(model):
            return loss(x)

    with bridge(model), pytest.raises(RuntimeError, match="don't yet support saved tensor hooks"):
        transform(loss)(batch())
    with pytest.raises(RuntimeError, match="don't yet support saved tensor hooks"):
        transform(compressed_loss)(batch())
    assert _get_current_dispatch_mode() is None


def compiled_step(model, backend):
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend, dynamic=False)

    def step(hooks):
        with hooks(model) as saver:
            loss = compiled(batch()).square().mean()
        loss.backward()
        if hooks is bridge:
            assert saver.report().ratio > 7
        return gradients(model)

    return step


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=needs_a_compiler)])
def test_a_compiled_model(backend):
    agree(compiled_step(mlp(), backend))


@needs_a_compiler
def test_the_size_floor_keeps_the_statistics_of_norms_in_fused_kernels():
    # What Inductor's kernels save is not known: they do several operations at once.
    model = nn.Sequential(nn.LayerNorm(32), mlp())
    torch._dynamo.reset()
    compiled = torch.compile(model, dynamic=False)
    kept = []
    for floor in (0, 41):  # there are 40 rows
        with Compressor(model, COARSE, min_values=floor) as saver:
            loss = compiled(batch()).square().mean()
        loss.backward()
        statistics = [row for row in saver.report().rows if row.shape == (40, 1)]
        kept.append({row.kept for row in statistics})
    assert kept == [{"unknown operation"}, {"under 41 values"}]


def test_a_compiled_step_runs_as_if_it_were_not(monkeypatch):
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", lambda error: unraisable.append(error.exc_value))
    torch._dynamo.reset()
    model = mlp()

    def forward(x):
        with bridge(model):
            return model(x).square().mean()

    torch.compile(forward, backend="aot_eager")(batch()).backward()
    found = gradients(model)
    forward(batch()).backward()
    assert unequal(found, gradients(model)) == []
    assert unraisable == []


class Fails(torch.autograd.Function):
    """Fails in the middle of the backward pass."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ArithmeticError("backward")


def resident_bytes():
    """Of this process, after what can be freed has been."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_hundred_failed_steps_leave_memory_where_it_was(where):
    model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256))
    x = torch.randn(1024, 256)  # a step saves four tensors of 1 MB, and keeps 1.1 MB of them

    def step():
        with Compressor(model, FMT):
            h = model(x)
            if where == "forward":
                raise ArithmeticError("forward")
            loss = Fails.apply(h.sin()).exp().mean()
        loss.backward()

    def fail():
        with pytest.raises(ArithmeticError, match=where):
            step()

    for _ in range(10):
        fail()
    before = resident_bytes()
    for _ in range(100):
        fail()
    assert resident_bytes() - before < 10e6
    assert _get_current_dispatch_mode() is None
    y = batch().requires_grad_()
    (y * y).sum().backward()
    assert torch.equal(y.grad, 2 * y)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_memory_is_saved_and_given_back():
    model = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(512, 512), nn.GELU()))).cuda()
    x = torch.randn(4096, 512, device="cuda")

    def kept(context):
        before = torch.cuda.memory_allocated()
        with context:
            loss = model(x).square().mean()
        after = torch.cuda.memory_allocated()
        del loss
        gc.collect()
        assert torch.cuda.memory_allocated() == before
        return after - before

    kept(untouched())  # cuBLAS takes its workspace
    assert kept(Compressor(model, FMT)) < kept(untouched()) / 2.5
