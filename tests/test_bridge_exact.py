"""What stays exact whatever the policy says: parameters, buffers, statistics, integers, small tensors."""

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from golden import PlaneFormat
from torch_bridge import Compressor, Policy, Rule

from .plain_hooks import COARSE, FMT, NOTHING, leaf, ours, untouched


def test_parameters_and_their_views_are_exact():
    model = torch.nn.Linear(64, 64)

    def gradient(context):
        x = leaf(64, 64)
        with context as saver:
            weight = model.weight
            # Each product also saves x, but only the weight reaches x's gradient.
            y = x @ weight + x @ weight.t() + x * weight.view(-1)[:64] + x * weight[3].expand(64, 64)
        y.sum().backward()
        return x.grad, saver

    expected, _ = gradient(torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), lambda t: t))
    found, saver = gradient(ours(model, COARSE))
    rows = [row for row in saver.report().rows if row.kept == "parameter"]
    assert rows
    assert not any(row.counted for row in rows)
    assert torch.equal(found, expected)


def test_a_parameter_is_held_itself_and_counted_once():
    model, x = torch.nn.Linear(64, 64), leaf(64, 64)
    with ours(model, FMT) as saver:
        product = x * model.weight
        loss = (product + x @ model.weight).sum()
    rows = [row for row in saver.report().rows if row.kept == "parameter"]
    assert [(row.tensors, row.original_bytes, row.counted) for row in rows] == [(1, 64 * 64 * 4, False)]
    assert product.grad_fn._saved_other.data_ptr() == model.weight.data_ptr()
    model.weight.data = 3 * model.weight.data  # as ZeRO-3 frees and gathers it
    assert torch.equal(product.grad_fn._saved_other, model.weight)
    with torch.no_grad():
        model.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified"):
        loss.backward()


@pytest.mark.parametrize("before", [False, True], ids=["made inside", "made before"])
def test_what_is_made_of_an_expanded_parameter_is_no_copy_of_it(before):
    model = torch.nn.ParameterList([torch.randn(8, 64)])

    def repeated():
        return model[0].expand(16, 8, 64).contiguous()

    made = repeated() if before else None
    with ours(model, FMT) as saver:
        loss = (repeated() if made is None else made).square().sum()
    loss.backward()
    assert [(row.kept, row.original_bytes) for row in saver.report().rows if row.counted] == [
        ("compressed", 16 * 8 * 64 * 4)
    ]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_copies_of_parameters_are_exact(dtype):
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))

    def gradient(context):
        x = leaf(64, 64)
        with torch.autocast("cpu", dtype):
            model(x)  # fills autocast's cache with copies made before the context is entered
            with context as saver:
                loss = model(x).float().sum()
        loss.backward()
        return x.grad, saver

    expected, _ = gradient(torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), lambda t: t))
    found, saver = gradient(ours(model, COARSE))
    assert torch.equal(found, expected)
    kept = {row.kept for row in saver.report().rows if row.shape == (64, 64) and not row.counted}
    assert kept == {"parameter copy"}


def mlp(is_trained=True):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))
    return model.requires_grad_(is_trained)


def cast_step(model, context, between=lambda: None):
    """Gradients under autocast, and bytes of bf16 copies of weights that are there between the passes."""
    x = leaf(16, 64)
    with context as saver, torch.autocast("cpu", torch.bfloat16), Made() as made:
        loss = model(x).float().square().mean()
    there = sum(one.nbytes() for ref in made.copies if (one := ref()) is not None)
    between()
    loss.backward()
    return [x.grad, *(one.grad for one in model.parameters() if one.grad is not None)], there, saver


class Made(TorchDispatchMode):
    """Holds weak references to what was cast of weights."""

    def __init__(self):
        super().__init__()
        self.copies = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and args[0].numel() == 64 * 256:
            self.copies.append(weakref.ref(result.untyped_storage()))
        return result


RECOMPUTING = Policy([Rule("recompute"), Rule("exact")])


@pytest.mark.parametrize("is_trained", [True, False], ids=["trained", "frozen"])
@pytest.mark.parametrize("policy", [RECOMPUTING, FMT], ids=["exact", "lossy"])
def test_what_autocast_makes_of_a_parameter_is_made_again(policy, is_trained):
    model = mlp(is_trained)
    expected, before, _ = cast_step(model, untouched())
    model.zero_grad()
    found, after, saver = cast_step(model, Compressor(model, policy))
    assert (before, after) == (2 * 2 * 64 * 256, 0)
    if policy is RECOMPUTING:
        assert all(map(torch.equal, found, expected))
    copies = [row for row in saver.report().rows if row.dtype == "bfloat16" and not row.counted]
    assert {(row.kept, row.original_bytes, row.stored_bytes) for row in copies} == {
        ("recomputed", 2 * 64 * 256, 0)
    }
    assert saver.original_bytes == sum(row.original_bytes for row in saver.report().rows if row.counted)


def test_a_parameter_that_changes_before_the_backward_pass_under_autocast_is_named():
    model = mlp()

    def change():
        with torch.no_grad():
            model[2].weight.mul_(2)

    with pytest.raises(
        RuntimeError, match=r"modified by an inplace operation: \[torch.float32 \[64, 256\]\]"
    ):
        cast_step(model, Compressor(model, FMT), change)


def test_a_policy_without_recomputation_keeps_what_autocast_makes_of_a_parameter():
    model = mlp()

    def change():
        with torch.no_grad():
            model[2].weight.mul_(2)

    expected, before, _ = cast_step(model, untouched(), change)
    model[2].weight.data = model[2].weight.detach() / 2
    model.zero_grad()
    found, after, _ = cast_step(model, Compressor(model, Policy([Rule("exact")])), change)
    assert after == before
    assert all(map(torch.equal, found, expected))


def test_buffers_are_exact():
    model = torch.nn.Module()
    model.register_buffer("scale", torch.randn(64, 64))
    x = leaf(64, 64)
    with ours(model, COARSE) as saver:
        y = x * model.scale
    y.sum().backward()
    assert torch.equal(x.grad, model.scale)
    assert saver.original_bytes == 0


def test_log_softmax_is_told_by_its_operation():
    x = leaf(64, 64)
    targets = torch.arange(64)
    with Compressor(NOTHING, COARSE, min_values=0) as saver:
        loss = torch.nn.functional.cross_entropy(x, targets)
    loss.backward()
    y = leaf(64, 64)
    torch.nn.functional.cross_entropy(y, targets).backward()
    assert torch.equal(x.grad, y.grad)

    with Compressor(NOTHING, Policy.default(FMT, recompute=False), min_values=0) as saver:
        z = torch.log_softmax(leaf(64, 64), 1)
        z.sin()  # saves the same tensor, which is still a log-softmax
        (z * 1).sin()  # of the same shape, but any tensor
    kept = [(row.op, row.kept) for row in saver.report().rows]
    assert ("_log_softmax", "log-softmax") in kept
    assert ("mul", "compressed") in kept


def test_log_sum_exp_of_attention_is_told_by_its_operation():
    q = leaf(2, 4, 64, 32)
    with Compressor(NOTHING, Policy.default(FMT, recompute=False), min_values=0) as saver:
        y = torch.nn.functional.scaled_dot_product_attention(q, q * 2, q * 3, is_causal=True)
        like = y[..., 0].contiguous()
        like.sin()
    rows = {(row.shape, row.kept) for row in saver.report().rows}
    assert ((2, 4, 64), "log-sum-exp") in rows
    assert ((2, 4, 64), "compressed") in rows


def test_norm_statistics_are_told_by_their_operation():
    x = leaf(2000, 8)
    with Compressor(NOTHING, Policy.default(FMT, recompute=False), min_values=0) as saver:
        torch.nn.functional.layer_norm(x, (8,))
        torch.nn.functional.group_norm(x.view(500, 4, 8), 2)
        torch.nn.functional.batch_norm(x.t(), None, None, training=True)
        (x * torch.rsqrt((x * x).mean(1, keepdim=True))).sin()
    kept = [row.op for row in saver.report().rows if row.kept == "norm statistics"]
    assert {f"native_{kind}_norm.{i}" for kind in ("layer", "group", "batch") for i in (1, 2)} <= set(kept)
    assert "rsqrt" in kept


def test_boolean_masks_and_indices_are_exact():
    x = leaf(64, 64)
    with ours(fmt=COARSE) as saver:
        y, mask = torch.native_dropout(x, 0.5, True)
        z = y.gather(1, torch.arange(64).expand(64, 64)) + y.masked_fill(x > 0, 0)
    z.sum().backward()
    assert torch.equal(x.grad, mask * 2.0 * (1.0 + (x <= 0)))
    assert {"bits", "not floating point"} <= {row.kept for row in saver.report().rows}


def test_the_size_floor_keeps_small_tensors_exact():
    x = leaf(10, 10)
    with ours(fmt=COARSE, min_values=101) as saver:
        y = x * x
    assert y.grad_fn._saved_self.data_ptr() == x.data_ptr()  # not a copy
    y.sum().backward()
    assert torch.equal(x.grad, 2 * x)
    assert saver.report().rows[0].kept == "under 101 values"


def test_strided_nested_tensors_stay_exact():
    def gradients(context):
        x, y = leaf(40, 64), leaf(30, 64, seed=1)
        with context as saver:
            loss = torch.nested.as_nested_tensor([x, y]).relu().to_padded_tensor(0).sin().sum()
        loss.backward()
        return (x.grad, y.grad), saver

    exact, _ = gradients(untouched())
    found, saver = gradients(ours(fmt=PlaneFormat("fp32", 64, 256)))
    assert all(torch.equal(a, b) for a, b in zip(found, exact, strict=True))
    (row,) = [row for row in saver.report().rows if row.kept == "not a plain strided tensor"]
    assert (row.shape, row.original_bytes) == ((70 * 64,), row.tensors * 70 * 64 * 4)


def test_float64_stays_exact():
    x = leaf(64, 64).double()
    with ours() as saver:
        x.sin()
    assert saver.report().rows[0].kept == "no format for float64"
