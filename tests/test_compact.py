"""CompAct: outputs and the gradients of inputs are exact, those of weights are projections of the exact ones.

As a program it trains on the ranks of torchrun and writes the weights of each to a folder:

    torchrun --standalone --nproc-per-node 2 -m tests.test_compact FOLDER
"""

import copy
import gc
import os
import sys
import weakref
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group: its functions' defaults would hold the group for ever
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from golden import PlaneFormat
from torch_bridge import Compressor
from torch_bridge.schemes import compact

from .launch import TORCHRUN, python

WIDTH, HIDDEN, VOCABULARY = 32, 96, 50


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def linear(inputs=WIDTH, outputs=48, **kwargs):
    torch.manual_seed(1)
    return nn.Linear(inputs, outputs, **kwargs)


def converted(layer, rank=8, **kwargs):
    """A copy of a module with all of its layers converted."""
    layer = copy.deepcopy(layer)
    compact.convert(layer, rank, names=["*"], **kwargs)
    return layer


def p_of(layer):
    return layer.projection.matrix(layer.weight.dtype, layer.weight.device)


def gradients(layer, x, grad, autocast=False):
    """The output, and the gradients of input and bias."""
    x = x.detach().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out = layer(x)
    out.backward(grad.to(out.dtype))
    return out, x.grad, layer.bias.grad if layer.bias is not None else torch.zeros(0)


def saved(run):
    """The tensors that autograd saves in a call, one for each storage."""
    tensors = {}

    def pack(tensor):
        tensors[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = run()
    return result, list(tensors.values())


def llama(layers=2, **settings):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": WIDTH, "intermediate_size": HIDDEN, "num_hidden_layers": layers}
    return LlamaForCausalLM(
        LlamaConfig(**sizes, num_attention_heads=4, vocab_size=VOCABULARY, use_cache=False, **settings)
    )


def tokens(seed=0):
    return torch.randint(VOCABULARY, (3, 20), generator=torch.Generator().manual_seed(seed))


# One layer


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float64", "autocast"])
@pytest.mark.parametrize("shape", [(7,), (2, 5), (2, 3, 5), (), (0,), (2, 0)])
def test_output_and_gradient_of_the_input_are_exact(shape, kind, bias):
    dtype = torch.float32 if kind == "autocast" else getattr(torch, kind)
    plain = linear(bias=bias, dtype=dtype)
    x, grad = random(*shape, WIDTH).to(dtype), random(*shape, 48, seed=1).to(dtype)
    exact = gradients(plain, x, grad, kind == "autocast")
    layer = converted(plain)
    ours = gradients(layer, x, grad, kind == "autocast")
    for found, expected in zip(ours, exact, strict=True):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
    assert layer.weight.grad is None
    projected = plain.weight.grad @ p_of(layer)
    error = (layer.subspace.grad - projected).norm()
    assert error <= {"float32": 1e-6, "float64": 1e-14}.get(kind, 0.02) * projected.norm()
    assert layer.subspace.grad.dtype == dtype


def test_projections_are_identities_in_the_mean():
    projection = compact.Projection(16, 4, (0,))
    mean = torch.zeros(16, 16)
    for projection.number in range(4000):
        p = projection.matrix(torch.float32, torch.device("cpu"))
        mean += p @ p.T / 4000
    assert (mean - torch.eye(16)).abs().max() < 0.05  # the standard deviation is 0.011 on the diagonal


@pytest.mark.parametrize(("rank", "expected"), [(1 / 2, 16), (1 / 4, 8), (1 / 8, 4), (4, 4), (1.0, 32)])
def test_what_is_saved_falls_to_the_share(rank, expected):
    plain = linear()
    layer = converted(plain, rank)
    x = random(10, WIDTH).requires_grad_()
    _, before = saved(lambda: plain(x))
    _, after = saved(lambda: layer(x))
    assert [tuple(tensor.shape) for tensor in before if len(tensor) == 10] == [(10, WIDTH)]
    assert [tuple(tensor.shape) for tensor in after if tensor is not layer.weight] == [(10, expected)]
    assert layer.subspace.shape == (48, expected)


def test_nothing_is_projected_without_gradients(monkeypatch):
    layer = converted(linear())
    monkeypatch.setattr(compact.Projection, "project", None)
    with torch.no_grad():
        layer(random(4, WIDTH))
    with torch.inference_mode():
        layer(random(4, WIDTH))
    layer.subspace.requires_grad_(False)
    layer(random(4, WIDTH).requires_grad_()).sum().backward()


def test_a_second_backward_pass_is_the_same_and_a_second_derivative_is_refused():
    layer = converted(linear())
    x = random(4, WIDTH).requires_grad_()
    loss = layer(x).square().sum()
    first, again = (torch.autograd.grad(loss, layer.subspace, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, again)
    (grad,) = torch.autograd.grad(loss, layer.subspace, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


# Which layers, and what they share


def test_llama_is_converted_but_for_the_output_projection():
    model = llama(1)
    names = compact.convert(model)
    stem = "model.layers.0."
    assert names == [
        *(f"{stem}self_attn.{letter}_proj" for letter in "qkv"),
        *(f"{stem}mlp.{part}_proj" for part in ("gate", "up", "down")),
    ]
    assert type(model.get_submodule(f"{stem}self_attn.o_proj")) is nn.Linear
    assert type(model.lm_head) is nn.Linear
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert {name + ".subspace" for name in names} <= trained
    assert not {name + ".weight" for name in names} & trained


@pytest.mark.parametrize("autocast", [True, False])
def test_layers_with_one_input_keep_one_projection_of_it(autocast):
    model = llama()
    compact.convert(model, 5)

    def run():
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return model(tokens(), labels=tokens()).loss

    loss, tensors = saved(run)
    narrow = [tensor for tensor in tensors if tensor.shape[-1:] == (5,)]
    assert len(narrow) == 2 * 3  # of the inputs of q, k and v, of gate and up, and of down
    assert {tensor.dtype for tensor in narrow} == {torch.bfloat16 if autocast else torch.float32}
    loss.backward()


@pytest.mark.parametrize("autocast", [True, False])
def test_llamas_gradients_are_projections_of_the_exact_ones(autocast):
    plain = llama()
    model = copy.deepcopy(plain)
    names = compact.convert(model)
    for each in (plain, model):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = each(tokens(), labels=tokens()).loss
        loss.backward()
    bound = 0.02 if autocast else 1e-5
    for name in names:
        layer, expected = model.get_submodule(name), plain.get_submodule(name).weight.grad
        projected = expected @ p_of(layer)
        assert (layer.subspace.grad - projected).norm() < bound * projected.norm(), name
    others = [n for n, parameter in plain.named_parameters() if n.removesuffix(".weight") not in names]
    for name in others:
        found, expected = (each.get_parameter(name).grad for each in (model, plain))
        assert torch.equal(found, expected), name


class Pair(nn.Module):
    """Two layers side by side, given one tensor or two."""

    def __init__(self):
        super().__init__()
        self.a, self.b = linear(), linear()

    def forward(self, x, y):
        return self.a(x), self.b(y)


def test_projections_differ_by_parent_width_and_seed():
    def matrices(seed):
        model = nn.ModuleDict({"a": nn.Sequential(linear(), linear(16)), "b": nn.Sequential(linear())})
        compact.convert(model, 4, names="*", seed=seed)
        return [p_of(model["a"][0]), p_of(model["b"][0])]

    first, again, others = matrices(0), matrices(0), matrices(1)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], first[1])
    assert not any(torch.equal(a, b) for a, b in zip(first, others, strict=True))


def test_each_layer_may_keep_a_projection_of_its_own_as_in_the_paper():
    x = random(6, WIDTH)
    shared, own = (converted(Pair(), shared=shared) for shared in (True, False))
    assert not torch.equal(p_of(own.a), p_of(own.b))
    narrow = [[t for t in saved(lambda net=net: net(x, x))[1] if t.shape == (6, 8)] for net in (shared, own)]
    assert [len(tensors) for tensors in narrow] == [1, 2]


def test_layers_with_other_inputs_keep_others():
    pair = converted(Pair())
    x = random(6, WIDTH)
    same, equal = (len(saved(lambda y=y: pair(x, y))[1]) for y in (x, x.clone()))
    assert equal == same + 1


def test_a_tensor_that_was_written_to_is_projected_again():
    pair = converted(Pair())
    x = random(6, WIDTH)
    first = pair.a(x)
    x.mul_(2)
    second = pair.b(x)
    (first + second).sum().backward()
    assert torch.allclose(pair.b.subspace.grad, 2 * pair.a.subspace.grad)


def test_an_address_that_is_used_again_is_another_tensor():
    pair = converted(Pair())
    addresses = set()
    for seed in range(20):
        x = random(6, WIDTH, seed=seed)
        addresses.add(x.data_ptr())
        for layer in (pair.a, pair.b):
            layer.subspace.grad = None
            layer(x).sum().backward()
            expected = torch.ones(48, 6) @ (x @ p_of(layer))
            assert torch.allclose(layer.subspace.grad, expected, rtol=1e-4, atol=1e-4)
        del x
    assert len(addresses) < 20


def test_a_projection_is_kept_no_longer_than_its_input_and_the_graph():
    pair = converted(Pair())
    x = random(6, WIDTH)

    def projected(x):
        _, tensors = saved(lambda: pair(x, x))
        (z,) = [tensor for tensor in tensors if tensor.shape == (6, 8)]
        return StorageWeakRef(z.untyped_storage())

    z = projected(x)
    assert not z.expired()
    del x
    gc.collect()
    assert z.expired()


def test_layers_that_are_not_plain_or_not_trained_are_left_alone():
    class Special(nn.Linear):
        pass

    model = nn.ModuleDict({"special": Special(4, 4), "frozen": nn.Linear(4, 4), "plain": nn.Linear(4, 4)})
    model["frozen"].weight.requires_grad_(False)
    before = {name: module for name, module in model.items() if name != "plain"}
    assert compact.convert(model, 2, names=["*"]) == ["plain"]
    for name, module in before.items():
        assert model[name] is module
        assert not hasattr(module, "subspace")


def test_one_layer_used_twice_adds_its_gradients():
    layer = converted(linear(outputs=WIDTH))
    model = nn.Sequential(layer, nn.Tanh(), layer)
    plain = nn.Sequential(one := linear(outputs=WIDTH), nn.Tanh(), one)
    for each in (model, plain):
        each(random(5, WIDTH)).square().sum().backward()
    assert torch.allclose(layer.subspace.grad, one.weight.grad @ p_of(layer), atol=1e-4)


# The optimizer


def test_a_converted_weight_makes_adamws_step_in_the_subspace():
    layer = converted(linear(bias=False, dtype=torch.float64))
    optimizer = compact.CompActAdamW(
        layer, lr=0.1, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.2, scale=0.5, period=3
    )
    weight, first, second = layer.weight.detach().clone(), 0.0, 0.0
    drawn = []
    for step in range(1, 8):
        grad = random(48, 8, seed=step).double()
        layer.subspace.grad = grad.clone()
        drawn.append(p_of(layer))
        optimizer.step()
        first, second = 0.8 * first + 0.2 * grad, 0.9 * second + 0.1 * grad**2
        normal = first / (1 - 0.8**step) / ((second / (1 - 0.9**step)).sqrt() + 1e-3)
        weight = weight * (1 - 0.1 * 0.2) - 0.1 * 0.5 * normal @ drawn[-1].T
        torch.testing.assert_close(layer.weight, weight, rtol=1e-10, atol=1e-12)
        assert not layer.subspace.any()
    state = optimizer.state[layer.subspace]
    assert state["exp_avg"].shape == state["exp_avg_sq"].shape == (48, 8)
    assert [torch.equal(a, b) for a, b in pairwise(drawn)] == [1, 1, 0, 1, 1, 0]


def test_a_subspace_has_memory_within_a_step_alone():
    layer = converted(linear())
    optimizer = compact.CompActAdamW(layer)

    def closure():
        layer.subspace.grad = None
        loss = layer(random(4, WIDTH)).square().sum()
        loss.backward()
        return loss

    before = layer.weight.clone()
    for step in (lambda: closure() and optimizer.step(), lambda: optimizer.step(closure)):
        step()
        assert layer.subspace.untyped_storage().nbytes() == 4
        assert layer.subspace.shape == layer.subspace.grad.shape == (48, 8)
        assert not layer.subspace.any()
        assert not torch.equal(layer.weight, before)
        before = layer.weight.clone()


@pytest.mark.parametrize("options", [{}, {"amsgrad": True}, {"foreach": True}], ids=str)
def test_other_parameters_make_adamws_step_bit_for_bit(options):
    plain = nn.Sequential(linear(), linear(48, 5))
    model = copy.deepcopy(plain)
    compact.convert(model, names=["0"])

    def groups(parts):
        return [{"params": [parts[1].weight], "lr": 0.05}, {"params": [parts[0].bias], "weight_decay": 0.0}]

    theirs = torch.optim.AdamW(groups(plain), lr=0.1, weight_decay=0.3, **options)
    ours = [*groups(model), {"params": [model[0].subspace]}]
    optimizer = compact.CompActAdamW(model, ours, lr=0.1, weight_decay=0.3, **options)
    for seed in range(4):
        for parts in (plain, model):
            parts[1].weight.grad, parts[0].bias.grad = random(5, 48, seed=seed), random(48, seed=seed)
        model[0].subspace.grad = random(48, 8, seed=seed)
        theirs.step()
        optimizer.step()
    assert torch.equal(model[1].weight, plain[1].weight)
    assert torch.equal(model[0].bias, plain[0].bias)
    assert torch.equal(model[1].bias, plain[1].bias)  # in no group
    assert not torch.equal(model[0].weight, plain[0].weight)


def test_a_layer_without_a_gradient_or_in_no_group_stays():
    pair = converted(Pair())
    before = copy.deepcopy(pair.state_dict())
    optimizer = compact.CompActAdamW(pair, [pair.a.subspace], lr=0.1)
    optimizer.step()
    pair.b.subspace.grad = torch.ones_like(pair.b.subspace)
    optimizer.step()
    assert all(torch.equal(value, before[name]) for name, value in pair.state_dict().items())


def train(model, optimizer, steps, first=0):
    for step in range(first, first + steps):
        optimizer.zero_grad()
        model(tokens(step), labels=tokens(step)).loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def test_training_goes_on_as_if_it_had_not_stopped(tmp_path):
    def start(seed):
        torch.manual_seed(seed)
        model = llama(1)
        compact.convert(model, seed=3)
        return model, compact.CompActAdamW(model, lr=0.01, period=3)

    model, optimizer = start(0)
    train(model, optimizer, 5)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "saved.pt")
    train(model, optimizer, 5, 5)

    other, resumed = start(1)
    state = torch.load(tmp_path / "saved.pt")
    other.load_state_dict(state["model"])
    resumed.load_state_dict(state["optimizer"])
    train(other, resumed, 5, 5)
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
    assert optimizer.param_groups[0]["steps"] == resumed.param_groups[0]["steps"] == 10


def test_the_state_of_the_model_is_that_of_the_plain_one():
    plain = llama(1)
    model = copy.deepcopy(plain)
    compact.convert(model)
    assert list(model.state_dict()) == list(plain.state_dict())
    model.load_state_dict(plain.state_dict())
    plain.load_state_dict(model.state_dict())
    state = plain.state_dict()
    del state["model.layers.0.mlp.up_proj.weight"]
    with pytest.raises(RuntimeError, match=r"Missing key.*up_proj\.weight\"\.\s*$"):
        model.load_state_dict(state)


def test_gradients_accumulate():
    layer = converted(linear())
    x = random(8, WIDTH)
    layer(x).square().sum().backward()
    whole = layer.subspace.grad
    layer.subspace.grad = None
    for part in x.split(4):
        layer(part).square().sum().backward()
    torch.testing.assert_close(layer.subspace.grad, whole)


def test_what_is_clipped_is_the_gradient_in_the_subspace():
    layer = converted(linear(bias=False))
    (layer(random(8, WIDTH)) * 100).sum().backward()
    norm = layer.subspace.grad.norm()
    assert torch.equal(nn.utils.clip_grad_norm_(layer.parameters(), 1.0), norm)
    torch.testing.assert_close(layer.subspace.grad.norm(), torch.tensor(1.0), rtol=1e-4, atol=0)


def test_a_step_that_the_scaler_skips_moves_nothing():
    layer = converted(linear())
    before = layer.weight.clone()
    optimizer = compact.CompActAdamW(layer, lr=0.1, period=1)
    scaler = torch.amp.GradScaler("cpu")
    for factor, steps in ((float("inf"), 0), (1.0, 1)):
        optimizer.zero_grad()
        scaler.scale((layer(random(4, WIDTH)) * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert layer.projection.number == optimizer.param_groups[0]["steps"] == steps
        assert torch.equal(layer.weight, before) == (steps == 0)


def test_schedulers_and_hooks_run_once_a_step():
    layer = converted(linear())
    optimizer = compact.CompActAdamW(layer, lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    calls = []
    optimizer.register_step_post_hook(lambda *_: calls.append(layer.subspace.any().item()))
    for _ in range(3):
        layer(random(4, WIDTH)).sum().backward()
        optimizer.step()
        scheduler.step()
    assert calls == [False] * 3
    assert optimizer.param_groups[0]["lr"] == 1 / 8


def test_a_llama_learns():
    model = llama(1)
    compact.convert(model)
    optimizer = compact.CompActAdamW(model, lr=0.01, period=5)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = model(tokens(), labels=tokens()).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


# With other things


def test_projections_are_compressed_like_other_tensors():
    plain = llama()
    model = copy.deepcopy(plain)
    names = compact.convert(model)
    loss = model(tokens(), labels=tokens()).loss
    loss.backward()
    exact = {name: model.get_submodule(name).subspace.grad.clone() for name in names}
    model.zero_grad()
    savers = []
    for each in (plain, model):
        with Compressor(each, PlaneFormat("fp32", 64, 128), min_values=64) as saver:
            loss = each(tokens(), labels=tokens()).loss
        loss.backward()
        savers.append(saver)
    for name, expected in exact.items():
        found = model.get_submodule(name).subspace.grad
        assert 0 < (found - expected).norm() < 0.05 * expected.norm(), name
    assert savers[1].original_bytes < savers[0].original_bytes
    narrow = [row for row in savers[1].report().rows if row.shape == (3, 20, WIDTH // 4)]
    assert {row.kept for row in narrow} == {"compressed"}
    assert sum(row.tensors for row in narrow) == 2 * 2
    assert not any(row.kept == "parameter" and row.counted for row in savers[1].report().rows)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_compute_the_same(reentrant):
    plain = nn.Sequential(linear(outputs=WIDTH), nn.Tanh(), linear(outputs=WIDTH))
    model, other = converted(plain), converted(plain)
    x = random(5, WIDTH).requires_grad_()
    plain(x).square().sum().backward()
    model(x).square().sum().backward()
    loss, kept = saved(lambda: checkpoint(other, x, use_reentrant=reentrant).square().sum())
    assert {tuple(tensor.shape) for tensor in kept} == {(5, WIDTH)}  # nothing that is projected
    loss.backward()
    for one, two, exact in zip(model, other, plain, strict=True):
        if exact is not plain[1]:
            assert torch.equal(two.subspace.grad, one.subspace.grad)
            assert torch.equal(two.bias.grad, exact.bias.grad)
            assert torch.allclose(two.subspace.grad, exact.weight.grad @ p_of(two), rtol=1e-4, atol=1e-4)


def test_a_copy_shares_nothing(tmp_path):
    pair = converted(Pair())
    x = random(4, WIDTH)
    pair(x, x)
    twin = copy.deepcopy(pair)
    assert twin.a.projection is twin.b.projection is not pair.a.projection
    torch.save(pair, tmp_path / "pair.pt")
    loaded = torch.load(tmp_path / "pair.pt", weights_only=False)
    for other in (twin, loaded):
        assert torch.equal(p_of(other.a), p_of(pair.a))
        optimizer = compact.CompActAdamW(other, period=1)
        other(x, x)[0].sum().backward()
        optimizer.step()
        assert (pair.a.projection.number, other.a.projection.number) == (0, 1)


# Errors


@pytest.mark.parametrize("rank", [0, -1, 0.0, 1.5, -0.25, float("nan"), True])
def test_a_wrong_rank_is_named(rank):
    with pytest.raises(ValueError, match=f"rank must be a share up to 1.0 or an int from 1, not {rank!r}"):
        compact.convert(linear(), rank, names=["*"])


def test_a_rank_above_the_width_is_named_and_nothing_is_converted():
    model = nn.Sequential(nn.Linear(64, 16), nn.Linear(16, 4))
    with pytest.raises(ValueError, match="rank must be at most 16, the width of 1's input, not 17"):
        compact.convert(model, 17, names=["*"])
    assert [type(layer) for layer in model] == [nn.Linear, nn.Linear]


@pytest.mark.parametrize("both", [True, False])
def test_a_tied_weight_is_an_error(both):
    model = nn.ModuleDict({"embedding": nn.Embedding(10, 4), "a": nn.Linear(4, 10), "b": nn.Linear(4, 10)})
    if both:
        model["a"].weight = model["b"].weight
    else:
        model["a"].weight = model["embedding"].weight
    with pytest.raises(ValueError, match=r"the weight of .* must be its own, not that of .* as well"):
        compact.convert(model, 2, names=["a", "b"])
    assert type(model["a"]) is nn.Linear


def test_no_layer_is_an_error():
    with pytest.raises(ValueError, match=r"names must fit a linear layer that is trained, not \['x'\]"):
        compact.convert(linear(), names=["x"])
    layer = converted(linear())
    with pytest.raises(ValueError, match="names must fit"):
        compact.convert(layer, names=["*"])
    with pytest.raises(ValueError, match="model must have converted layers, not none"):
        compact.CompActAdamW(linear())


def test_what_is_no_model_is_named():
    with pytest.raises(ValueError, match=r"model must be a torch\.nn\.Module, not None"):
        compact.convert(None)


def test_a_wrong_seed_or_period_is_named():
    with pytest.raises(ValueError, match="seed must not be negative, not -1"):
        compact.convert(linear(), names="*", seed=-1)
    with pytest.raises(ValueError, match="period must be positive, not 0"):
        compact.CompActAdamW(converted(linear()), period=0)


# Several processes


def build():
    """What the ranks train: converted layers, a norm between them, a plain layer after them."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(WIDTH, HIDDEN),
        nn.GELU(),
        nn.LayerNorm(HIDDEN),
        nn.Linear(HIDDEN, WIDTH),
        nn.Linear(WIDTH, 7),
    )
    compact.convert(model, names=["0", "3"])
    return model, compact.CompActAdamW(model, lr=0.01, eps=1e-4, period=2)


def fit(model, optimizer, rank, ranks):
    for step in range(5):
        x, y = random(8, WIDTH, seed=step), random(8, 7, seed=100 + step)
        mine = slice(rank * 8 // ranks, (rank + 1) * 8 // ranks)
        optimizer.zero_grad()
        (model(x[mine]) - y[mine]).square().mean().backward()
        optimizer.step()


def test_two_ranks_train_as_one_process_on_all_of_the_batch(tmp_path):
    python(*TORCHRUN, "-m", "tests.test_compact", str(tmp_path))
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    model, optimizer = build()
    start = copy.deepcopy(model.state_dict())
    fit(model, optimizer, 0, 1)
    for name, expected in model.state_dict().items():
        assert torch.equal(ranks[0]["weights"][name], ranks[1]["weights"][name]), name
        torch.testing.assert_close(ranks[0]["weights"][name], expected, rtol=1e-4, atol=1e-6)
        assert not torch.equal(expected, start[name]), name
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert ranks[0]["reduced"] == ranks[1]["reduced"] == 5 * trained


def main(folder):
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    net, optimizer = build()
    model = DistributedDataParallel(net)
    reduced = []

    def reduce(_, bucket):
        reduced.append(bucket.buffer().numel())
        future = dist.all_reduce(bucket.buffer() / ranks, async_op=True).get_future()
        return future.then(lambda done: done.value()[0])

    model.register_comm_hook(None, reduce)
    fit(model, optimizer, rank, ranks)
    result = {"weights": net.state_dict(), "reduced": sum(reduced)}
    torch.save(result, Path(folder, f"{os.environ['RANK']}.pt"))
    del model  # see examples/train_ddp.py
    group = weakref.ref(dist.group.WORLD)
    dist.destroy_process_group()
    assert (
        group() is None
    )  # or its threads outlive it, and abort if they need Python's lock when Python is gone


if __name__ == "__main__":
    main(sys.argv[1])
