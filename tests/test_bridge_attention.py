"""Fused attention: its backward pass takes the exponential of what a format leaves of queries and keys."""

import gc
import weakref
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.profiler import profile

from bench.known_cases import Kernel
from golden import HadamardFormat, PlaneFormat
from torch_bridge import Compressor, Policy, Rule
from torch_bridge.backends.quant_format import QuantFormat
from torch_bridge.facts.operations import operation
from torch_bridge.store.attention import Logits, may_be_again
from torch_bridge.store.recomputed import Recomputed

from . import kernels
from .overwriting import Sine
from .plain_hooks import NOTHING

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
    """Of a model's parameters, flat, and the Compressor."""
    around = nullcontext() if policy is None else Compressor(model, policy)
    with around as saver:
        loss = model(inputs(dtype)).float().square().mean()
    found = torch.autograd.grad(loss, list(model.parameters()))
    return torch.cat([part.flatten().float() for part in found]), saver


def error(model, policy, dtype=torch.float32):
    exact, _ = gradient(model, None, dtype)
    found, _ = gradient(model, policy, dtype)
    return float((found - exact).norm() / exact.norm())


def kept(saver):
    return {row.op: row.kept for row in saver.report().rows}


@pytest.mark.parametrize("options", [{}, CAUSAL], ids=["full", "causal"])
@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_large_logits_survive_few_bits(fmt, options):
    policy = Policy.default(fmt)
    found, saver = gradient(Trained(**options), policy)
    exact, _ = gradient(Trained(**options), None)
    assert kept(saver)[FLASH] == kept(saver)[f"{FLASH}.1"] == "recomputed"
    assert (found - exact).norm() < 2.5 * exact.norm()
    plain = Policy([Rule(fmt, saved_by="*attention*.[!l]*", unchecked=True), Rule(fmt)])
    assert not error(Trained(**options), plain) < 1.05  # infinite for some


@pytest.mark.parametrize("fmt", [FORMATS[1], FORMATS[2]], ids=str)
def test_queries_and_keys_are_finer_where_attention_is_not_done_again(fmt):
    policy = Policy.default(fmt, recompute=False)
    assert error(Trained(), policy) < 0.5
    assert error(Trained(), Policy([Rule(fmt, saved_by="*attention*.[!l]*", unchecked=True), Rule(fmt)])) > 1


def spread_attention(attend, spread):
    """A model of copies of queries, keys and values whose logits have a standard deviation."""
    shape = 2, 128, 2, 32
    parts = (
        scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        for seed, scale in enumerate((spread**0.5, spread**0.5, 1.0))
    )
    return Kernel(attend, *parts)


def own(q, k, v):
    heads_first = (part.transpose(1, 2) for part in (q, k, v))
    return functional.scaled_dot_product_attention(*heads_first, is_causal=True)


def flash(q, k, v):
    return kernels.FlashAttnFunc.apply(q, k, v, q.shape[-1] ** -0.5, True)


def flex(q, k, v):
    heads_first = (part.transpose(1, 2) for part in (q, k, v))
    return kernels.FlexAttentionAutogradOp.apply(*heads_first, q.shape[-1] ** -0.5, True)


ATTENTIONS = {"own": own, "flash": flash, "flex": flex}


@pytest.mark.parametrize("fmt", [TWO_BITS, FORMATS[1], PlaneFormat("fp32", 64, 80)], ids=str)
@pytest.mark.parametrize("spread", [1.3, 2.9, 8.0, 15.0, 30.0, 60.0, 100.0])
@pytest.mark.parametrize("name", ATTENTIONS)
def test_gradients_of_queries_and_keys_hold_however_widely_logits_spread(name, spread, fmt):
    model = spread_attention(ATTENTIONS[name], spread)

    def found(around):
        with around or nullcontext() as saver:
            loss = model()
        grads = torch.autograd.grad(loss, [*model.given][:2])
        return torch.cat([grad.flatten() for grad in grads]), saver

    exact, _ = found(None)
    lossy, saver = found(Compressor(model, fmt))
    assert relative(lossy, exact) < (0.75 if fmt is TWO_BITS else 0.45)  # values have two bits there
    assert saver.ratio > 1.4


def test_a_head_of_large_logits_is_seen_among_others():
    shape = 1, 8, 128, 32
    q = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    q[:, 3] *= 30
    assert 25 < float(Logits([q, torch.ones(shape)]).spread()) < 35
    assert 25 < float(Logits([q.transpose(1, 2), torch.ones(shape).transpose(1, 2)]).spread()) < 35


def test_queries_are_finer_as_long_as_their_logits_spread():
    model = spread_attention(own, 1.0)
    saver, ratios = Compressor(model, FORMATS[1]), []
    for factor in (1.0, 3.0, 1 / 3):
        with torch.no_grad():
            model.given[0].mul_(factor)
            model.given[1].mul_(factor)
        with saver:
            model()
        ratios.append(saver.ratio)
    assert ratios[1] < ratios[0]
    assert ratios[2] == ratios[0]  # and coarse again when they do not


@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_a_softmax_is_not_recomputed_from_logits_that_are_too_coarse_for_it(scale):
    torch.manual_seed(0)
    linear, values = nn.Linear(96, 8), torch.randn(96, 32)

    def forward(x):
        logits = scale * x
        other = 1e-6 * linear(logits).mean()  # saves them
        return (logits.softmax(-1) @ values).square().sum() + other

    exact, _ = step(None, forward, 256, 96)
    found, _ = step(Policy.default(TWO_BITS), forward, 256, 96)
    assert relative(found, exact) < 0.65  # recomputed from two bits: 0.35 and 1.3


class Eager(Trained):
    """The same without an operation for it."""

    def forward(self, x):
        for projection in self.projections:
            q, k, v = (part.view(2, 96, 2, 32).transpose(1, 2) for part in projection(x).split(64, -1))
            y = (3 * q @ (3 * k).transpose(-1, -2) / 32**0.5).softmax(-1) @ v
            x = x + y.transpose(1, 2).reshape(2, 96, 64)
        return x


@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("fmt", [TWO_BITS, QuantFormat("fp32", 2)], ids=str)
def test_probabilities_of_eager_attention_are_finer(fmt, recompute):
    model = Eager()

    def of_queries_and_keys(policy):
        found, saver = gradient(model, policy)
        return found.view(2, -1)[:, : 128 * 64], saver  # rows of the projections' weights

    exact, _ = of_queries_and_keys(None)
    found, saver = of_queries_and_keys(Policy.default(fmt, recompute=recompute))
    (row,) = [row for row in saver.report().rows if row.op == "_softmax"]
    bits = 4 if recompute else 10
    padded = 128 / 96 if recompute else 1  # rows of 96 values in blocks of their own
    assert bits / 32 <= row.stored_bytes / row.original_bytes / padded < (bits + 0.5) / 32
    coarse, _ = of_queries_and_keys(
        Policy([Rule(fmt, op="_softmax", unchecked=True), *Policy.default(fmt, recompute=recompute).rules])
    )
    assert (found - exact).norm() < 0.8 * (coarse - exact).norm()


@pytest.mark.parametrize("after", [torch.sum, lambda y: nn.Linear(32, 8)(y).sum()], ids=["sum", "linear"])
def test_attention_is_done_again_once(after):
    x = torch.randn(2, 2, 96, 32, requires_grad=True)
    with Compressor(NOTHING, TWO_BITS) as saver:
        loss = after(functional.scaled_dot_product_attention(x * 1, x * 2, x * 3))
    assert kept(saver)[FLASH] == "recomputed"
    with profile() as found:
        loss.backward()
    assert [event.count for event in found.key_averages() if event.key == f"aten::{FLASH}"] == [1]


def test_sums_that_are_under_the_size_floor_go_with_the_outputs():
    model = Trained()
    assert 2 * 2 * 96 < 1024
    _, saver = gradient(model, Policy.default(TWO_BITS))
    assert kept(saver)[f"{FLASH}.1"] == "recomputed"


@pytest.mark.parametrize("rule", [{"op": FLASH}, {"op": f"{FLASH}.1"}, {"most": 384}], ids=str)
def test_where_a_rule_keeps_a_result_queries_and_keys_are_finer(rule):
    _, saver = gradient(Trained(), Policy([Rule("exact", **rule), *Policy.default(TWO_BITS).rules]))
    by_rate = {row.stored_bytes / row.original_bytes for row in saver.report().rows if row.op == "mul"}
    assert max(by_rate) == 10 / 32


def relative(found, exact):
    return float((found - exact).norm() / exact.norm())


def step(policy, forward, *shape):
    """A gradient of what is given a tensor of normal values, and the Compressor."""
    x = torch.randn(*shape or (2, 2, 96, 32), generator=torch.Generator().manual_seed(0)).requires_grad_()
    around = nullcontext() if policy is None else Compressor(NOTHING, policy)
    with around as saver:
        loss = forward(x)
    return torch.autograd.grad(loss, x)[0], saver


EXACT = Policy([Rule("recompute"), Rule("exact")])


@pytest.mark.parametrize("fmt", [TWO_BITS, PlaneFormat("fp32", 64, 40), QuantFormat("fp32", 2)], ids=str)
def test_its_results_are_made_of_what_its_own_node_holds(fmt):
    """Not of coarser keys, that another operation has saved before."""
    torch.manual_seed(0)
    values = nn.Linear(32, 32)

    def forward(x):
        context = 8 * x
        v = values(context)  # saves it
        return functional.scaled_dot_product_attention(x * 8, context, v).square().sum()

    exact, _ = step(None, forward)
    found, saver = step(Policy.default(fmt), forward)
    assert kept(saver)[FLASH] == "recomputed"
    assert relative(found, exact) < 3


@pytest.mark.parametrize("after", [nn.MSELoss(), lambda y, z: (y.relu() * z).sum()], ids=["mse", "relu"])
def test_it_is_done_again_whatever_keeps_the_outputs_as_well(after):
    """Each query meets one key, which has all of its attention, where little is left of the differences."""

    def forward(x):
        y = functional.scaled_dot_product_attention(3 * x, 3 * x.roll(1, 2), 1 * x)
        return after(y, target)

    target = torch.randn(2, 2, 96, 32, generator=torch.Generator().manual_seed(1)) / 2
    exact, _ = step(None, forward)
    found, saver = step(Policy.default(FORMATS[1]), forward)
    assert kept(saver)[f"{FLASH}.1"] == "recomputed"
    assert relative(found, exact) < 0.25


def test_values_that_are_recomputed_take_part():
    def forward(x):
        v = functional.rms_norm(x, (32,)) * x.sigmoid()
        return functional.scaled_dot_product_attention(6 * x, 7 * x, v).square().sum()

    exact, _ = step(None, forward)
    assert torch.equal(step(EXACT, forward)[0], exact)
    found, saver = step(Policy.default(FORMATS[1]), forward)
    assert kept(saver)[f"{FLASH}.1"] == "recomputed"
    assert relative(found, exact) < 0.5


def test_outputs_that_a_node_wrote_over_are_made_once_more():
    def forward(function):
        return lambda x: function(functional.scaled_dot_product_attention(3 * x, 4 * x, 2 * x)).sum()

    exact, _ = step(None, forward(torch.sin))
    assert torch.equal(step(EXACT, forward(Sine.apply))[0], exact)


def test_attention_without_a_node_is_no_link_in_a_chain():
    def forward(x):
        h = 1.5 * x
        with torch.no_grad():
            y = functional.scaled_dot_product_attention(h, h, h)
            one, two = y * 2, y * 3
        return (h * one).sum() + (h.cos() * two).sum() + h.sin().sum()

    exact, _ = step(None, forward)
    found, saver = step(EXACT, forward)
    assert torch.equal(found, exact)
    assert kept(saver)["mul"] == "exact"


@pytest.mark.parametrize("recompute", [True, False])
def test_a_bias_that_the_step_made_is_finer(recompute):
    slopes = 2.0 ** -(2 * torch.arange(1.0, 5))

    def forward(x):
        place = torch.arange(96.0)
        bias = -slopes[:, None, None] * (place[:, None] - place).abs()
        q, k, v = (x * 2, x * 3, functional.silu(x))
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(2, 4, 96, 96))
        return y.square().sum()

    exact, _ = step(None, forward, 2, 4, 96, 16)
    found, _ = step(Policy.default(TWO_BITS, recompute=recompute), forward, 2, 4, 96, 16)
    assert relative(found, exact) < 0.6


def test_no_outputs_stay_in_memory_behind_the_backward_pass():
    class Layer(nn.Linear):
        def forward(self, x):
            q, k, v = (part.view(2, 96, 2, 32).transpose(1, 2) for part in super().forward(x).split(64, -1))
            return x + functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2).sin()

    torch.manual_seed(0)
    model = nn.Sequential(*(Layer(64, 192) for _ in range(8)))
    x = torch.randn(2, 96, 64)
    with Compressor(model, EXACT):
        loss = model(x).sum()
    made = []
    with pytest.MonkeyPatch.context() as patch:
        write_to = Recomputed.write_to

        def watched(self, memory, where):
            values = write_to(self, memory, where)
            made.append(weakref.ref(values.untyped_storage()))
            return values

        patch.setattr(Recomputed, "write_to", watched)
        for _ in range(2):
            torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
            gc.collect()
            assert len(made) >= 8
            assert sum(ref() is not None for ref in made) <= 4


def test_attention_with_dropout_is_not_done_again():
    attention = operation(getattr(torch.ops.aten, FLASH).default)
    assert may_be_again(attention, (None, None, None), {})
    assert may_be_again(attention, (None, None, None, 0.0, True), {})
    assert not may_be_again(attention, (None, None, None, 0.1, True), {})
    assert not may_be_again(attention, (None, None, None), {"dropout_p": 0.1})


def test_a_rule_names_one_of_what_an_operation_saves():
    x = torch.randn(64, 64, requires_grad=True)
    rules = [Rule("exact", saved_by="mul.other", why="the second"), Rule(PlaneFormat("fp32", 64, 80))]
    with Compressor(NOTHING, Policy(rules)) as saver:
        y = (x.sin() * x.cos()).sum()
    y.backward()
    found = {row.op: row.kept for row in saver.report().rows}
    assert (found["sin"], found["cos"]) == ("compressed", "the second")


@pytest.mark.parametrize(
    ("saved_by", "fits"),
    [(FLASH, "012"), ("*attention*.[qk]*", "01"), ("*attention*.[!q]*", "12"), ("*.key", "1")],
)
@pytest.mark.parametrize("recompute", [True, False])
def test_a_rule_about_attention_fits_it_done_again_or_not(saved_by, fits, recompute):
    rules = [
        Rule("exact", saved_by=saved_by, why="mine"),
        *Policy.default(TWO_BITS, recompute=recompute).rules,
    ]
    _, saver = step(Policy(rules), lambda x: attend(x.sin(), x.cos(), x.tan()))
    mine = {row.op for row in saver.report().rows if row.kept == "mine"}
    assert mine - {FLASH, f"{FLASH}.1"} == {("sin", "cos", "tan")[int(place)] for place in fits}


def attend(q, k, v):
    return functional.scaled_dot_product_attention(q, k, v).sum()


def test_queries_that_are_the_keys_as_well():
    """Both are made anew from what is stored, as tensor or as views of one: neither stays exact for it."""

    def found(views, policy=FORMATS[1]):
        x = torch.randn(2, 2, 96, 32, generator=torch.Generator().manual_seed(3)).requires_grad_()
        with Compressor(nn.Module(), policy) as saver:
            y = x * 1
            q, k = (y.view(y.shape), y.view(y.shape)) if views else (y, y)
            loss = functional.scaled_dot_product_attention(q, k, x * 2).square().mean()
        return torch.autograd.grad(loss, x)[0], saver

    (one, saver), (other, _) = found(True), found(False)
    assert torch.equal(one, other)
    exact, _ = found(False, Policy([]))
    assert (one - exact).norm() < 0.3 * exact.norm()
    assert {row.kept for row in saver.report().rows if row.saved_by == FLASH} == {"compressed", "recomputed"}
