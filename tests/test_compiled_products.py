"""What matrix products made is computed anew in compiled graphs too, within a time."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.profiler import profile
from torch.utils.checkpoint import checkpoint
from transformers import LlamaConfig, LlamaForCausalLM

import bitstash
from bitstash import Compressor, HadamardFormat, Partitioner, Policy, Rule
from torch_bridge.report.curve import Curve, Point, together

from .compiling import needs_a_compiler, nothing_compiled
from .plain_hooks import gradients, unequal

__all__ = ["nothing_compiled"]  # around every test here

PRODUCTS = Policy([Rule("recompute", products=True)])  # all that is stored stays exact
FOUR_BITS = HadamardFormat(target=64)
LAYERS, TOKENS = 2, 48
MODES = pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "autocast"])


def llama():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1024, hidden_size=128, intermediate_size=384, num_hidden_layers=LAYERS,
        num_attention_heads=4, num_key_value_heads=4, use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def train(model, call=None, around=None, autocast=False):
    x = torch.randint(1024, (2, TOKENS), generator=torch.Generator().manual_seed(2))
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast), around or nullcontext():
        loss = (model if call is None else call)(x, labels=x).loss
    loss.backward()
    return gradients(model)


def compiled(model, policy=None, **settings):
    return bitstash.compile(model, policy, backend="aot_eager", fullgraph=True, **settings)


def of_hooks(model, autocast=False, **settings):
    """A Compressor after two steps, the first of which finds out what products cost."""
    saver = Compressor(model, **settings)
    for _ in range(2):
        train(model, around=saver, autocast=autocast)
    return saver


def distance(found, expected):
    pairs = [(found[name].flatten(), expected[name].flatten()) for name in expected]
    one, other = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    return float((one - other).norm() / other.norm())


@MODES
@pytest.mark.parametrize("time", [None, 1, 1.1, 1.4], ids=str)
def test_from_exact_tensors_products_give_the_same_gradient_to_the_last_bit(time, autocast):
    model = llama()
    plain = torch.compile(model, backend="aot_eager")
    expected = train(model, plain, autocast=autocast)
    torch._dynamo.reset()
    call = compiled(model, PRODUCTS, time=time)
    assert unequal(train(model, call, autocast=autocast), expected) == []
    assert any(point.is_picked for point in call.report().curve.points) == (time != 1)


@MODES
def test_products_from_four_bits_are_as_close_as_four_bits(autocast):
    model = llama()
    exact = train(model, autocast=autocast)
    errors, kept = [], []
    for settings in ({}, {"time": 1.4}):
        torch._dynamo.reset()
        call = compiled(model, bits=4, **settings)
        errors.append(distance(train(model, call, autocast=autocast), exact))
        kept.append(call.report().stored_bytes)
    assert 0 < errors[1] < 1.1 * errors[0] < 0.2
    assert kept[1] < 0.6 * kept[0]


def costs(curve, *parts):
    """What is picked of parts of the model, and what each adds to the time."""
    before, found = 1.0, {}
    for point in curve.points:
        if point.is_picked and point.module.endswith(parts):
            found[point.module, point.op, point.saved_by] = pytest.approx(point.time - before)
        before = point.time
    return found


def test_the_head_and_gated_mlps_are_recomputed_as_with_hooks():
    model = llama()
    call = compiled(model, bits=4, time=1.5)
    train(model, call)
    found, expected = call.report().curve, of_hooks(model, bits=4, time=1.5).report().curve
    gated = costs(found, "mlp", "act_fn")
    assert len(gated) == 2 * LAYERS
    assert gated == costs(expected, "mlp", "act_fn")
    assert found.points[0].op == expected.points[0].op == "_log_softmax"
    assert found.points[0].time == pytest.approx(expected.points[0].time)


def test_queries_keys_and_sums_are_not_recomputed_from_what_is_lossy():
    model = llama()
    call = compiled(model, bits=4, time=2)
    train(model, call)
    kept = {}
    for row in call.report().rows:
        kept.setdefault((row.op, row.saved_by.partition("_product")[0]), set()).add(row.kept)
    assert kept["add", "_scaled_dot"] == {"compressed"}  # behind their rotation
    assert kept["mm", "_scaled_dot"] == {"recomputed"}  # values
    assert kept["add", "pow"] == {"compressed"}


def test_the_time_limits_what_is_picked():
    model, picked, stored = llama(), [], []
    for time in (1, 1.05, 1.1, 1.2, 1.4):
        torch._dynamo.reset()
        call = compiled(model, bits=4, time=time)
        train(model, call)
        report = call.report()
        curve = report.curve
        assert curve.limit == time
        assert 1 <= curve.time <= time
        assert curve.time == pytest.approx(1 + sum(one.expected for one in costs(curve, "").values()))
        assert 0.97 * curve.points[-1].stored_bytes <= report.stored_bytes <= 1.03 * curve.stored_bytes
        picked.append(sum(point.is_picked for point in curve.points))
        stored.append(report.stored_bytes)
    assert picked == sorted(picked)
    assert picked[0] == 0 < picked[1] < picked[-1] == len(curve.points)
    assert stored == sorted(stored, reverse=True)
    assert stored[-1] < 0.3 * stored[0]


@MODES
def test_a_product_is_done_once(autocast):
    model, counts = llama(), []
    for policy in (Policy([Rule("exact")]), PRODUCTS):
        torch._dynamo.reset()
        call = compiled(model, policy)
        train(model, call, autocast=autocast)
        with profile() as found:
            train(model, call, autocast=autocast)
        counts.append({event.key: event.count for event in found.key_averages()}["aten::mm"])
    # Per layer queries, keys, values, gate, up and what attention adds; and the head.
    assert counts[1] - counts[0] == 6 * LAYERS + 1


class Gated(nn.Module):
    """A gated MLP behind a norm."""

    def __init__(self, width=64, inner=192):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gate, self.up, self.down = (
            nn.Linear(width, inner),
            nn.Linear(width, inner),
            nn.Linear(inner, width),
        )

    def forward(self, x):
        h = self.norm(x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


def step(model, x, call=None):
    (model if call is None else call)(x).square().mean().backward()
    return gradients(model)


def test_graphs_between_breaks_have_a_time_each_and_one_curve():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Gated(), nn.Sequential(Gated(), Gated())

        def forward(self, x):
            x = self.first(x)
            torch._dynamo.graph_break()
            return self.second(x)

    torch.manual_seed(0)
    model, x = Broken(), torch.randn(2, 64, 64)
    expected = step(model, x)
    call = bitstash.compile(model, bits=4, time=1.3, backend="aot_eager")
    assert distance(step(model, x, call), expected) < 0.2
    curve = call.report().curve
    assert len([point for point in curve.points if point.op == "addmm"]) == 6
    assert 1 < curve.time <= 1.3
    assert curve.time == pytest.approx(1 + sum(one.expected for one in costs(curve, "").values()))


def test_curves_of_graphs_become_one():
    one = Curve(
        1.2, 1000, (Point("a", "mm", "mul", 1.1, 500, True), Point("b", "mm", "mul", 1.3, 400, False)), 1.1
    )
    other = Curve(1.2, 300, (Point("c", "mm", "mul", 1.2, 100, True),), 1.2)
    found = together([(300, one), (100, other)])
    assert (found.limit, found.stored_bytes) == (1.2, 1300)
    assert [(point.module, point.stored_bytes) for point in found.points] == [
        ("a", 800),
        ("c", 600),
        ("b", 500),
    ]
    assert [point.time for point in found.points] == pytest.approx([1.075, 1.125, 1.275])
    assert found.time == pytest.approx(1.125)


def test_products_of_checkpointed_layers_are_left_to_checkpointing():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Gated(), Gated()

        def forward(self, x):
            return self.second(checkpoint(self.first, x, use_reentrant=False))

    torch.manual_seed(0)
    model, x = Checkpointed(), torch.randn(2, 64, 64)
    expected = step(model, x)
    call = compiled(model, bits=4, time=2)
    assert distance(step(model, x, call), expected) < 0.2
    assert {point.module.partition(".")[0] for point in call.report().curve.points} == {"second"}


def test_sizes_may_change():
    torch.manual_seed(0)
    model = Gated()
    call = compiled(model, bits=4, time=1.6, dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for length in (32, 48, 20):
            x = torch.randn(4, length, 64)
            expected = step(model, x)
            assert distance(step(model, x, call), expected) < 0.2
    assert [point.is_picked for point in call.report().curve.points] == [True, True]


@needs_a_compiler
def test_inductor_does_products_again():
    torch.manual_seed(0)
    model, x = nn.Sequential(Gated(), Gated()), torch.randn(4, 64, 64)
    expected = step(model, x)
    call = bitstash.compile(model, bits=4, time=2)
    assert distance(step(model, x, call), expected) < 0.2
    report = call.report()
    assert {row.kept for row in report.rows if row.op == "addmm" and row.counted} == {"recomputed"}
    assert all(point.is_picked for point in report.curve.points)


@pytest.mark.parametrize("time", [0.9, float("nan"), "1.2"])
def test_a_time_that_is_none_is_an_error(time):
    with pytest.raises(ValueError, match=r"time must be a number from 1, .*, not "):
        Partitioner(time=time)


def test_a_time_for_a_policy_without_products_is_an_error():
    with pytest.raises(ValueError, match="time must be None where no rule of the policy recomputes products"):
        Partitioner(Policy.default(FOUR_BITS), time=1.2)


def test_caches_tell_times_apart():
    assert len({Partitioner(bits=4, time=time).uuid() for time in (None, 1.1, 1.2)}) == 3


def test_without_a_time_there_is_no_curve():
    call = compiled(model := llama(), bits=4)
    train(model, call)
    assert call.report().curve is None
