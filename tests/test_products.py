"""What matrix products made is computed anew: a language model's head always, others within a time."""

import gc
from contextlib import nullcontext
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional
from torch.profiler import profile
from torch.utils.checkpoint import checkpoint
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from golden import HadamardFormat
from torch_bridge import Compressor, Policy, Rule
from torch_bridge.facts.watch import Watch
from torch_bridge.store.entries import Entry

from .plain_hooks import gradients, unequal

VOCABULARY, WIDTH, TOKENS = 640, 64, 48
FOUR_BITS = HadamardFormat(target=64)
HEAD = Policy([Rule("recompute")])  # the rest stays exact
PRODUCTS = Policy([Rule("recompute", products=True)])


class Model(nn.Module):
    """An embedding, a layer, a norm and a head."""

    def __init__(self, bias=False, tied=False):
        super().__init__()
        torch.manual_seed(1)
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layer, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=bias)
        if tied:
            self.head.weight = self.embedding.weight

    def hidden(self, tokens):
        x = self.embedding(tokens)
        return self.norm(x + self.layer(functional.gelu(x)))


def tokens(seed=0, count=TOKENS):
    return torch.randint(VOCABULARY, (2, count), generator=torch.Generator().manual_seed(seed))


def cross_entropy(logits, targets, **options):
    return functional.cross_entropy(logits.flatten(0, -2), targets.flatten(), **options)


def ignored(targets):
    return targets.masked_fill(targets % 3 == 0, -100)


def padded(model, h, y):
    labels = functional.pad(y, (0, 1), value=-100)[..., 1:].contiguous()
    return cross_entropy(model.head(h).float(), labels, ignore_index=-100)


def shifted(model, h, y):
    logits = model.head(h)[..., :-1, :].contiguous()
    return functional.cross_entropy(logits.view(-1, VOCABULARY), y[..., 1:].reshape(-1))


def chunked(model, h, y):
    parts = zip(h.chunk(3, 1), y.chunk(3, 1), strict=True)
    return sum(cross_entropy(model.head(part), target, reduction="sum") for part, target in parts)


def capped(model, h, y):
    return cross_entropy(torch.tanh(model.head(h) / 30) * 30, y)


def distilled(model, h, y):
    target = functional.one_hot(y, VOCABULARY).float() * 0.9 + 0.1 / VOCABULARY
    return functional.cross_entropy(model.head(h).flatten(0, 1), target.flatten(0, 1))


LOSSES = {
    "linear": lambda m, h, y: cross_entropy(m.head(h), y),
    "matmul": lambda m, h, y: cross_entropy(h @ m.head.weight.t(), y),
    "einsum": lambda m, h, y: cross_entropy(torch.einsum("btc,vc->btv", h, m.head.weight), y),
    "functional": lambda m, h, y: cross_entropy(functional.linear(h.flatten(0, 1), m.head.weight), y),
    "float": lambda m, h, y: cross_entropy(m.head(h).float(), y),
    "label smoothing": lambda m, h, y: cross_entropy(m.head(h), y, label_smoothing=0.1),
    "ignored labels": lambda m, h, y: cross_entropy(m.head(h), ignored(y)),
    "weights of classes": lambda m, h, y: cross_entropy(m.head(h), y, weight=torch.ones(VOCABULARY)),
    "padded labels": padded,
    "shifted": shifted,
    "chunks": chunked,
    "a temperature": lambda m, h, y: cross_entropy(m.head(h) / 0.7, y),
    "a cap": capped,
    "probabilities": distilled,
    "nll of log-softmax": lambda m, h, y: functional.nll_loss(
        m.head(h).log_softmax(-1).flatten(0, 1), y.flatten()
    ),
}
HEADS = {
    "fp32": ({}, False),
    "tied": ({"tied": True}, False),
    "bias": ({"bias": True}, False),
    "autocast": ({}, True),
    "tied, autocast": ({"tied": True}, True),
    "bias, autocast": ({"bias": True}, True),
}


def step(model, loss, context, autocast=False):
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast), context:
        value = loss(model, model.hidden(tokens()), tokens(1))
    value.backward()
    return gradients(model)


def kept(saver, op):
    return {row.kept for row in saver.report().rows if row.op == op}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", LOSSES)
def test_the_head_is_recomputed_to_the_last_bit(name, head):
    options, autocast = HEADS[head]
    model = Model(**options)
    expected = step(model, LOSSES[name], nullcontext(), autocast)
    saver = Compressor(model, HEAD)
    for _ in range(2):
        assert unequal(step(model, LOSSES[name], saver, autocast), expected) == []
        # A bias is copied for it.
        assert kept(saver, "_log_softmax") - {"recomputation input"} == {"recomputed"}, saver.report()


@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "autocast"])
def test_what_the_head_is_given_stays_exact_from_the_first_step(autocast):
    model = Model()
    expected = step(model, LOSSES["linear"], nullcontext(), autocast)["head.weight"]
    saver = Compressor(model, Policy.default(FOUR_BITS))
    found = step(model, LOSSES["linear"], saver, autocast)
    assert torch.equal(found["head.weight"], expected)
    (row,) = [row for row in saver.report().rows if row.kept == "input of a wide matrix product"]
    assert row.original_bytes == 2 * TOKENS * WIDTH * (2 if autocast else 4)
    assert kept(saver, "_log_softmax") == {"recomputed"}


def test_a_narrow_product_is_not_done_again_by_default():
    model = Model()
    saver = Compressor(model, HEAD)
    with saver:
        x = model.embedding(tokens())
        loss = functional.silu(model.layer(x)).sum()
    loss.backward()
    assert kept(saver, "addmm") == {"no rule"}, saver.report()


@pytest.mark.parametrize("policy", [HEAD, PRODUCTS], ids=["head", "products"])
def test_a_weight_that_was_written_to_since_is_an_error(policy):
    model = Model()
    with Compressor(model, policy):
        loss = LOSSES["linear"](model, model.hidden(tokens()), tokens(1))
    with torch.no_grad():
        model.head.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_bf16_copy_of_a_weight_is_not_kept_for_it():
    """Where the product keeps none, as its input needs no gradient, the copy is made of the parameter."""
    weight = nn.Parameter(torch.randn(VOCABULARY, WIDTH))
    h = torch.randn(2 * TOKENS, WIDTH)
    model = nn.ParameterList([weight])
    copies = {}

    def loss():
        logits = functional.linear(h, weight)
        return functional.cross_entropy(logits.float(), tokens().flatten())

    class Noting(Watch):
        def _note_copy(self, op, storage, copied):
            copies[storage.nbytes()] = StorageWeakRef(storage)
            return super()._note_copy(op, storage, copied)

    with torch.autocast("cpu", torch.bfloat16):
        expected = loss()
    expected.backward()
    expected, weight.grad = weight.grad, None
    saver = Compressor(model, HEAD)
    saver._watch.__class__ = Noting
    with torch.autocast("cpu", torch.bfloat16), saver:
        value = loss()
    assert copies[2 * weight.numel()].expired()
    assert not copies[2 * h.numel()].expired()
    value.backward()
    assert torch.equal(weight.grad, expected)


def test_a_gathered_weight_is_not_kept_alive():
    """As ZeRO-3 does it: the head's memory is there while its module runs, forward and backward."""

    def run(context, free):
        gathered = nn.Parameter(torch.randn(VOCABULARY, WIDTH, generator=torch.Generator().manual_seed(3)))
        memory, values = gathered.untyped_storage(), gathered.detach().clone()
        h = torch.randn(2 * TOKENS, WIDTH, generator=torch.Generator().manual_seed(4), requires_grad=True)
        with context as saver:  # whose model has another parameter
            logits = functional.linear(h.sin(), gathered)
            loss = functional.cross_entropy(logits, tokens().flatten())
        if free:
            memory.resize_(0)

        def fill(grad):
            memory.resize_(values.nbytes)
            memory.copy_(values.untyped_storage())

        logits.register_hook(fill)
        loss.backward()
        return gathered.grad, h.grad, saver

    *expected, _ = run(nullcontext(), False)
    *found, saver = run(Compressor(nn.Linear(1, 1), HEAD), True)
    assert all(map(torch.equal, found, expected))
    assert kept(saver, "_log_softmax") == {"no rule"}


def llama(layers=3):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


def train(model, context, autocast=False):
    x = torch.randint(1024, (2, TOKENS), generator=torch.Generator().manual_seed(2))
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast), context:
        loss = model(x, labels=x).loss
    loss.backward()
    return gradients(model)


def flat(found):
    return torch.cat([one.flatten() for one in found.values()])


MODES = pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "autocast"])


@MODES
@pytest.mark.parametrize("time", [None, 1, 1.1, 1.3], ids=str)
def test_from_exact_tensors_products_give_the_same_gradient_to_the_last_bit(time, autocast):
    model = llama()
    expected = train(model, nullcontext(), autocast)
    saver = Compressor(model, PRODUCTS, time=time)
    for _ in range(3):
        assert unequal(train(model, saver, autocast), expected) == []


@MODES
def test_products_from_four_bits_are_as_close_as_four_bits(autocast):
    model = llama()
    exact = flat(train(model, nullcontext(), autocast))
    stored, made = Compressor(model), Compressor(model, time=1.4)
    errors = [
        float((flat(train(model, saver, autocast)) - exact).norm() / exact.norm()) for saver in (stored, made)
    ]
    assert 0 < errors[1] < 1.1 * errors[0] < 0.2
    assert made.ratio > 2.5 * stored.ratio


def test_a_layer_stores_what_it_was_given_and_little_else():
    model = llama()
    saver = Compressor(model, time=1.4)
    train(model, saver)
    found = {
        row.module
        for row in saver.report().rows
        if row.kept == "compressed" and row.module.startswith("model.layers")
    }
    assert found == {f"model.layers.{number}.input_layernorm" for number in range(3)}


def test_queries_of_fewer_bits_than_attention_bears_are_stored():
    model = llama()
    saver = Compressor(model, bits=2, time=1.4)
    train(model, saver)
    rows = [row for row in saver.report().rows if row.saved_by.startswith("_scaled_dot") and row.op == "add"]
    assert {row.kept for row in rows} == {"compressed"}
    assert all(row.stored_bytes * 8 == row.original_bytes for row in rows)  # 4 bits of 32


def test_the_time_limits_what_is_picked():
    model, picked, stored = llama(), [], []
    for time in (1, 1.05, 1.1, 1.2, 1.4):
        saver = Compressor(model, time=time)
        train(model, saver)
        train(model, saver)
        curve = saver.report().curve
        assert curve.limit == time
        assert 1 <= curve.time <= time
        assert curve.time == pytest.approx(1 + sum(_steps(curve)))
        assert curve.points[-1].stored_bytes <= saver.stored_bytes <= 1.02 * curve.stored_bytes
        picked.append(sum(point.is_picked for point in curve.points))
        stored.append(saver.stored_bytes)
    assert picked == sorted(picked)
    assert picked[0] == 0 < picked[1] < picked[-1] == len(curve.points)
    assert stored == sorted(stored, reverse=True)


@pytest.mark.parametrize("time", [1.05, 1.2, 1.5])
def test_more_time_never_keeps_more(time):
    """GPT-2's GELU saves a tanh, which has more bits than what it is recomputed from."""
    config = GPT2Config(n_layer=3, n_embd=128, n_head=4, n_positions=64, vocab_size=256, use_cache=False)
    torch.manual_seed(0)
    model, given = GPT2LMHeadModel(config), torch.randint(256, (4, 64))
    kept = []
    for options in ({}, {"time": time}):
        saver = Compressor(model, bits=4, min_values=256, **options)
        for _ in range(2):
            with saver:
                loss = model(given, labels=given).loss
            loss.backward()
        kept.append(saver.stored_bytes)
    assert kept[1] < kept[0]


def _steps(curve):
    """What each picked point adds to the time."""
    before = 1.0
    for point in curve.points:
        if point.is_picked:
            yield point.time - before
        before = point.time


def test_most_bytes_for_an_operation_come_first():
    model = llama()
    saver = Compressor(model, time=1.4)
    train(model, saver)
    points = saver.report().curve.points
    assert points[0].op == "_log_softmax"
    times, left = [1.0, *(point.time for point in points)], [saver.report().curve.stored_bytes]
    left += [point.stored_bytes for point in points]
    worth = [(left[i] - left[i + 1]) / (times[i + 1] - times[i]) for i in range(len(points))]
    assert all(one >= 0.999 * other for one, other in pairwise(worth))


def test_operations_of_a_step_are_counted():
    """Of the head: forward, and backward with two products as large."""
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1024, bias=False))
    saver = Compressor(model, PRODUCTS, min_values=0)
    x = torch.randn(16, 64)
    with saver:
        model(x).square().sum()
    first, last = 2 * 16 * 64 * 32, 2 * 16 * 32 * 1024
    assert saver._watch.flops == 2 * first + 3 * last  # the input needs no gradient
    assert saver.report().curve.time == pytest.approx(1 + (first + last) / saver._watch.flops)


@MODES
def test_a_product_is_done_once(autocast):
    model = llama()
    counts = []
    for context in (nullcontext(), Compressor(model, PRODUCTS)):
        x = torch.randint(1024, (2, TOKENS))
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast), context:
            loss = model(x, labels=x).loss
        with profile() as found:
            loss.backward()
        counts.append({event.key: event.count for event in found.key_averages()}["aten::mm"])
    # Per layer queries, keys, values, gate, up and what attention adds; and the head.
    assert counts[1] - counts[0] == 3 * 6 + 1


@pytest.mark.parametrize("options", [{"time": 1.4}, {"time": 1.2}, {"policy": HEAD}], ids=str)
def test_nothing_that_products_made_stays(options):
    model = llama()
    saver = Compressor(model, **options)
    train(model, saver)
    gc.collect()
    gc.disable()
    try:
        train(model, saver)
        assert [type(one) for one in gc.get_objects() if issubclass(type(one), Entry)] == []
    finally:
        gc.enable()


def test_a_graph_that_is_retained_gives_the_same_again():
    model = llama()
    saver = Compressor(model, time=1.4)
    x = torch.randint(1024, (2, TOKENS))
    with saver:
        loss = model(x, labels=x).loss
    found = []
    for retain in (True, False):
        loss.backward(retain_graph=retain)
        found.append(gradients(model))
    assert unequal(*found) == []


class LowRank(nn.Module):
    """A frozen linear layer with a trained update of low rank."""

    def __init__(self, layer, rank=8):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.a, self.b = nn.Linear(layer.in_features, rank, False), nn.Linear(rank, layer.out_features, False)

    def forward(self, x):
        return self.layer(x) + 2 * self.b(self.a(x))


@MODES
def test_low_rank_updates_of_frozen_layers(autocast):
    model = llama().requires_grad_(False)
    for layer in model.model.layers:
        layer.mlp.gate_proj, layer.mlp.up_proj = LowRank(layer.mlp.gate_proj), LowRank(layer.mlp.up_proj)
        layer.self_attn.q_proj = LowRank(layer.self_attn.q_proj)
    expected = train(model, nullcontext(), autocast)
    saver = Compressor(model, PRODUCTS)
    assert unequal(train(model, saver, autocast), expected) == []
    made = {(row.op, row.kept) for row in saver.report().rows if row.saved_by == "silu"}
    assert made - {("add", "recomputation input")} == {("add", "recomputed")}


class Fused(nn.Module):
    """Queries, keys and values of one product, with a bias."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x):
        q, k, v = (one.unflatten(-1, (4, 16)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).flatten(2))


@MODES
def test_a_fused_product_with_a_bias(autocast):
    model = nn.Sequential(nn.LayerNorm(64), Fused(), nn.LayerNorm(64), Fused())
    x = torch.randn(2, 40, 64)

    def run(context):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast), context:
            loss = model(x).square().mean()
        loss.backward()
        return gradients(model)

    expected = run(nullcontext())
    saver = Compressor(model, PRODUCTS)
    assert unequal(run(saver), expected) == []
    rows = [row for row in saver.report().rows if row.op == "addmm" and row.saved_by.startswith("_scaled")]
    assert {row.kept for row in rows} == {"recomputed"}


@pytest.mark.parametrize("time", [0.9, float("nan"), "1.2", True - 2])
def test_a_time_that_is_none_is_an_error(time):
    with pytest.raises(ValueError, match=r"time must be a number from 1, .*, not "):
        Compressor(nn.Linear(2, 2), time=time)


def test_a_time_for_a_policy_without_products_is_an_error():
    with pytest.raises(ValueError, match="time must be None where no rule of the policy recomputes products"):
        Compressor(nn.Linear(2, 2), HEAD, time=1.2)
    with pytest.raises(ValueError, match="products must be False where nothing is recomputed, not True"):
        Rule("exact", products=True)


def test_the_report_shows_the_curve():
    model = llama()
    saver = Compressor(model, time=1.2)
    train(model, saver)
    text = str(saver.report())
    assert "time at most 1.2" in text
    assert "_log_softmax" in text.split("time at most")[1]
    plain = Compressor(model)
    train(model, plain)
    assert plain.report().curve is None
    assert "time at most" not in str(plain.report())


@pytest.mark.parametrize("use_reentrant", [False, True], ids=["non-reentrant", "reentrant"])
@pytest.mark.parametrize(("bits", "ratio"), [(4, 7.5), (2, 14)])
def test_boundaries_of_checkpoints_are_compressed(use_reentrant, bits, ratio):
    """What a checkpointed layer was given is all that is kept of it."""
    torch.manual_seed(0)
    layers = nn.ModuleList(
        nn.Sequential(nn.LayerNorm(128), nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128))
        for _ in range(6)
    )
    x = torch.randn(4, 64, 128)

    def run(context):
        h = x.clone().requires_grad_()
        with context:
            for layer in layers:
                h = h + checkpoint(layer, h, use_reentrant=use_reentrant)
            loss = h.mean()
        loss.backward()
        return gradients(layers)

    expected = flat(run(nullcontext()))
    saver = Compressor(layers, bits=bits)
    found = flat(run(saver))
    boundaries = [row for row in saver.report().rows if row.original_bytes >= 5 * x.nbytes]
    assert boundaries, saver.report()
    original, stored = (
        sum(getattr(row, name) for row in boundaries) for name in ("original_bytes", "stored_bytes")
    )
    assert original / stored >= ratio
    assert float((found - expected).norm() / expected.norm()) < (0.15 if bits == 4 else 0.5)
