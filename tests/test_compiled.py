"""Compressed tensors inside compiled graphs: the same decisions as with hooks, and gradients that agree.

Most run on ``aot_eager``: the partitioner sees a graph there as with Inductor, and nothing is built.
"""

import os
import pickle
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from functools import partial

import pytest
import torch
import transformers
from torch import nn
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import bitstash
from bitstash import HadamardFormat, Partitioner, PlaneFormat, Policy, Rule
from torch_bridge.backends import GoldenBackend
from torch_bridge.backends.rows import pad_rows, unpad_rows
from torch_bridge.compiled import cached, operators
from torch_bridge.compiled import partitioner as partitioner_module
from torch_bridge.compiled.measured import (
    Choices,
    compress_measured,
    decompress_measured,
    logit_spread,
    sizes_of,
    softmax_amplification,
    text_of_all,
)
from torch_bridge.compiled.partitioner import PARTITIONER
from torch_bridge.compiled.plan import NOT_MEASURED
from torch_bridge.policy.policy import TABLE
from torch_bridge.report.rows import INFINITIES, INPUT
from torch_bridge.store.verdicts import Number

from .compiling import needs_a_compiler, nothing_compiled

__all__ = ["nothing_compiled"]  # around every test here

FMT = HadamardFormat(target=64)
MIN_VALUES = 256
EXACT = Policy([Rule("exact")])


class Block(nn.Module):
    """A block of a GPT: layer norm, attention, and an MLP whose activation is written in plain PyTorch."""

    def __init__(self, width=64, dropout=0.0):
        super().__init__()
        self.norm, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        parts = self.qkv(self.norm(x)).chunk(3, 2)
        q, k, v = (part.unflatten(2, (4, -1)).transpose(1, 2) for part in parts)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(y.transpose(1, 2).flatten(2)))
        h = self.up(self.norm_2(x))
        return x + self.down(0.5 * h * (1 + torch.tanh(0.8 * (h + 0.04 * torch.pow(h, 3.0)))))


def blocks(count=2, **settings):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), *(Block(**settings) for _ in range(count)))


def batch(length=32):
    return torch.randn(4, length, 64, generator=torch.Generator().manual_seed(1))


def gradients(model):
    found = torch.cat([part.grad.float().flatten() for part in model.parameters() if part.grad is not None])
    model.zero_grad(set_to_none=True)
    return found


def step(model, call=None, x=None, around=None):
    torch.manual_seed(2)
    with around or nullcontext():
        loss = (model if call is None else call)(batch() if x is None else x).square().mean()
    loss.backward()
    return gradients(model)


def error(found, expected):
    return float((found - expected).norm() / expected.norm())


def compiled(model, policy=FMT, **settings):
    return bitstash.compile(model, policy, min_values=MIN_VALUES, backend="aot_eager", **settings)


def kept(report):
    """How tensors are kept, by what made them, their type and their values: of parameters nothing.

    A table that is made of indices is no tensor of the graph's: it makes it anew.
    """
    found = {}
    for row in report.rows:
        if row.counted and "float" in row.dtype and row.kept not in (INPUT, TABLE):
            key = row.op, row.dtype, row.original_bytes // row.tensors
            found.setdefault(key, Counter())[row.kept] += row.tensors
    return found


# The operations


SHAPES = [
    pytest.param((6, 96), (96, 1), id="rows"),
    pytest.param((6, 100), (100, 1), id="padded rows"),
    pytest.param((2, 4, 32, 16), (6144, 16, 192, 1), id="heads of a split"),
    pytest.param((64, 48), (1, 64), id="transposed"),
    pytest.param((1000,), (1,), id="flat"),
]


@pytest.mark.parametrize(("size", "stride"), SHAPES)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("fmt", [FMT, PlaneFormat("fp32", block=64, target=80)], ids=lambda fmt: fmt.scheme)
def test_the_bytes_of_the_operation_are_the_golden_ones(size, stride, dtype, fmt):
    fmt = operators.format_of(operators.text_of(fmt).replace("fp32", dtype))
    memory = torch.randn(1 << 15).to({"fp32": torch.float32, "bf16": torch.bfloat16}[dtype])
    values = memory.as_strided(size, stride)
    row = size[-1] if fmt.scheme == "hadamard" and len(size) > 1 and stride[-1] == 1 else 0
    text = operators.text_of(fmt)
    order = sorted(range(len(size)), key=lambda one: -stride[one])
    stored = operators.compress(values, text, "values", row, "auto", order)
    # Whatever strides a compiler has chosen.
    assert torch.equal(stored, operators.compress(values.contiguous(), text, "values", row, "auto", order))
    flat = values.permute(order).reshape(-1)
    own = fmt.for_rows(row) if row else fmt
    padded = pad_rows(flat, row, own) if row else flat
    golden = GoldenBackend(own)
    assert torch.equal(stored, golden.compress(padded))
    back = operators.decompress(stored, text, "values", row, "auto", list(size), order)
    expected = golden.decompress(stored, len(padded))
    expected = unpad_rows(expected, row, own) if row else expected
    assert torch.equal(back.permute(order).reshape(-1), expected)
    assert back.shape == values.shape
    assert back.stride() == tuple(
        torch.empty(size).permute(order).contiguous().permute(inverse(order)).stride()
    )


def inverse(order):
    return [order.index(dimension) for dimension in range(len(order))]


def test_the_operations_are_as_pytorch_wants_them():
    values = torch.randn(6, 96)
    text = operators.text_of(FMT)
    stored = operators.compress(values, text, "values", 96, "auto", [0, 1])
    torch.library.opcheck(operators.compress, (values, text, "values", 96, "auto", [0, 1]))
    torch.library.opcheck(operators.compress, (values, text, "values", 0, "torch", [1, 0]))
    torch.library.opcheck(operators.decompress, (stored, text, "values", 96, "auto", [6, 96], [0, 1]))
    mask = values > 0
    torch.library.opcheck(operators.pack_bits, (mask, [0, 1]))
    bits = operators.pack_bits(mask, [0, 1])
    torch.library.opcheck(operators.unpack_bits, (bits, [6, 96], [0, 1]))
    assert torch.equal(operators.unpack_bits(bits, [6, 96], [0, 1]), mask)
    query, formats = values.view(1, 1, 6, 96), text_of_all([FMT, None])
    torch.library.opcheck(logit_spread, (query, query, None))
    torch.library.opcheck(softmax_amplification, (values.softmax(-1),))
    spread = logit_spread(query, query, None)
    torch.library.opcheck(compress_measured, (values, spread, "", formats, [3.0], 96, "auto", [0, 1]))
    stored = compress_measured(values, spread, "", formats, [3.0], 96, "auto", [0, 1])
    torch.library.opcheck(decompress_measured, (stored, formats, 96, "auto", [6, 96], [0, 1]))


@pytest.mark.parametrize("fmt", [FMT, PlaneFormat("bf16"), bitstash.QuantFormat("fp16", 3, 64)], ids=str)
def test_a_format_is_a_plain_argument(fmt):
    assert operators.format_of(operators.text_of(fmt)) == fmt


def test_what_is_no_format_is_named():
    for text in ("lossy,fp32,128,32", "hadamard,fp32"):
        with pytest.raises(ValueError, match=text.replace(",", "[,]")):
            operators.format_of(text)


# Decisions


def test_decisions_agree_with_hooks_for_gpt2():
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_embd=64, n_layer=2, n_head=4, vocab_size=128, n_positions=64, use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    agree_with_hooks(transformers.GPT2LMHeadModel(config).train())


def test_decisions_agree_with_hooks_for_llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, vocab_size=128, max_position_embeddings=64, use_cache=False,
    )  # fmt: skip
    agree_with_hooks(transformers.LlamaForCausalLM(config).train())


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_keys_of_groups_of_queries_are_kept_once(attention):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=128, max_position_embeddings=64, use_cache=False,
        attn_implementation=attention,
    )  # fmt: skip
    call = agree_with_hooks(transformers.LlamaForCausalLM(config).train(), tensor_by_tensor=False)
    repeated = 2 * 4 * 48 * 16 * 4
    assert sum(row.kept == "recomputed" and row.original_bytes == 2 * repeated for row in call.report().rows)


def agree_with_hooks(model, tensor_by_tensor=True):
    model.loss_type = "ForCausalLM"  # or a warning breaks the graph
    ids = torch.randint(5, 128, (2, 48), generator=torch.Generator().manual_seed(1))
    model(input_ids=ids, labels=ids).loss.backward()
    expected = gradients(model)
    saver = bitstash.Compressor(model, FMT, min_values=MIN_VALUES)
    with saver:
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    of_hooks = gradients(model)
    call = compiled(model, fullgraph=True)
    call(input_ids=ids, labels=ids).loss.backward()
    found = gradients(model)
    assert error(found, expected) < 1.02 * error(of_hooks, expected) < 0.3
    assert not tensor_by_tensor or kept(call.report()) == kept(saver.report())
    assert call.report().stored_bytes <= 1.05 * saver.report().stored_bytes
    return call


class Spread(nn.Module):
    """Attention between products, with queries and keys whose logits have a standard deviation."""

    def __init__(self, spread):
        super().__init__()
        draws = torch.Generator().manual_seed(0)
        self.parts = nn.ParameterList(torch.randn(2, 128, 2, 32, generator=draws) for _ in range(3))
        self.product = nn.Parameter(torch.eye(32))
        self.become(spread)

    def become(self, spread):
        with torch.no_grad():
            factor = (spread / logit_spread(*self.parts[:2], None).item()) ** 0.5
            for part in self.parts[:2]:
                part *= 0.999 * factor

    def forward(self):
        q, k, v = (part @ self.product for part in self.parts)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        return nn.functional.scaled_dot_product_attention(q, k, v)


def attend(model, call=None, around=None):
    with around or nullcontext():
        y = (model if call is None else call)()
    (y * torch.randn(y.shape, generator=torch.Generator().manual_seed(1))).sum().backward()
    return gradients(model)


# Of attention at standard deviations of its logits: bytes that queries and keys take in all, and an error.
SPREADS = [(1, 16384, 0.25), (3, 16384, 0.45), (16, 40960, 0.3), (60, 49152, 0.25), (100, 131072, 0.15)]


@pytest.mark.parametrize(("spread", "nbytes", "bound"), SPREADS)
def test_queries_and_keys_are_as_fine_as_with_hooks(spread, nbytes, bound):
    model = Spread(spread)
    expected, saver, call = attend(model), bitstash.Compressor(model, FMT), compiled(model, fullgraph=True)
    of_hooks = attend(model, around=saver)
    found = attend(model, call)
    assert error(found, expected) == pytest.approx(error(of_hooks, expected), rel=1e-3)
    assert error(found, expected) < bound
    assert kept(call.report()) == kept(saver.report())
    values = 8192  # of v at 4 bits
    assert call.report().stored_bytes == saver.report().stored_bytes == nbytes + values


def test_a_graph_chooses_how_fine_queries_and_keys_are_in_each_step():
    model = Spread(1)
    call = compiled(model, fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for spread, nbytes, bound in (*SPREADS, *reversed(SPREADS)):
            model.become(spread)
            expected = attend(model)
            assert error(attend(model, call), expected) < bound
            assert call.report().stored_bytes == nbytes + 8192
            assert sum(row.tensors for row in call.report().rows if row.kept != "recomputed") == 7


class Softmax(nn.Module):
    """A softmax between products, of logits with a standard deviation."""

    def __init__(self, spread):
        super().__init__()
        self.logits = nn.Parameter(torch.randn(2, 4, 64, 64, generator=torch.Generator().manual_seed(0)))
        self.product, self.spread = nn.Parameter(torch.eye(64)), spread

    def forward(self):
        return (self.spread * self.logits @ self.product).softmax(-1) @ self.product


@pytest.mark.parametrize(("spread", "nbytes"), [(1, 16384), (8, 49152)])
def test_a_softmax_is_as_fine_as_with_hooks(spread, nbytes):
    model = Softmax(spread)
    expected, saver, call = attend(model), bitstash.Compressor(model, FMT), compiled(model, fullgraph=True)
    of_hooks = attend(model, around=saver)
    found = attend(model, call)
    assert error(found, expected) == pytest.approx(error(of_hooks, expected), rel=1e-3)
    assert sum(row.stored_bytes for row in call.report().rows if row.op == "_softmax") == nbytes
    assert kept(call.report()) == kept(saver.report())


def test_queries_and_keys_stay_exact_where_a_gpu_replays_a_graph(monkeypatch):
    monkeypatch.setattr("torch_bridge.compiled.partitioner._is_captured", lambda joint: True)
    model = Spread(1)
    expected, call = attend(model), compiled(model)
    assert error(attend(model, call), expected) < 0.2
    assert sum(row.stored_bytes for row in call.report().rows if row.kept == NOT_MEASURED) == 131072


def test_attention_of_exact_tensors_is_done_again():
    model = Spread(1)
    call = compiled(model, Policy([Rule("recompute"), Rule("exact")]))
    assert torch.allclose(attend(model, call), attend(model), rtol=1e-5, atol=1e-5)
    assert {row.op for row in call.report().rows if row.kept == "recomputed"} == {
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention_for_cpu.1",
    }


class Awaited:
    """A number that is still on its way from a device."""

    def __init__(self, number):
        self.number, self.value = number, None

    def arrive(self):
        self.value = self.number

    def wait(self):
        return self.number


def test_a_device_is_waited_for_once_and_a_spread_that_grows_too_fast_is_named():
    choices, bounds = Choices(), [3.0, 16.0, 64.0]
    first, second, third, last = (Awaited(number) for number in (1.4, 1.0, 50.0, 50.0))
    assert choices.choose("h.0#q", first, bounds) == 0  # waited for
    first.wait = second.wait = third.wait = last.wait = None
    assert choices.choose("h.0#q", second, bounds) == 0  # by twice the spread of the first step
    second.arrive()
    assert choices.choose("h.0#q", third, bounds) == 0
    third.arrive()
    with pytest.warns(RuntimeWarning, match=r"'h\.0' saves .* measure of 3, which was 50 in"):
        assert choices.choose("h.0#q", last, bounds) == 3
    assert choices.chosen("h.0#q") == 3


def test_a_spread_that_is_no_number_is_the_widest():
    assert Choices().choose("", Number(torch.tensor(float("nan"))), [3.0, 16.0]) == 2


@pytest.mark.parametrize("spread", [1, 10, 30, 100])
@pytest.mark.parametrize("count", [20, 96, 6 * 96])
def test_the_number_of_bytes_says_which_format_it_is(count, spread):
    planes = (PlaneFormat("fp32", target=80), PlaneFormat("fp32", target=96))
    formats, bounds = text_of_all([FMT, *planes, None]), [3.0, 16.0, 64.0]
    values, order = torch.randn(count // 4, 4).t(), [1, 0]
    stored = compress_measured(values, torch.tensor(float(spread)), "test", formats, bounds, 0, "auto", order)
    back = decompress_measured(stored, formats, 0, "auto", list(values.shape), order)
    assert back.stride() == values.stride()
    assert error(back, values) <= {1: 0.12, 10: 0.02, 30: 0.005, 100: 0.0}[spread]
    assert len(stored) in sizes_of(formats, count, 0)
    assert len(stored) <= 4 * count
    with pytest.raises(RuntimeError, match=r"stored must have one of \[.*\] bytes, not 7"):
        decompress_measured(torch.zeros(7, dtype=torch.uint8), formats, 0, "auto", list(values.shape), order)


def test_norm_statistics_and_log_sum_exps_stay_exact():
    call = compiled(model := blocks())
    step(model, call)
    statistics = [
        row for row in call.report().rows if row.op in ("native_layer_norm.1", "native_layer_norm.2")
    ]
    assert {row.kept for row in statistics} == {f"under {MIN_VALUES} values"}
    torch._dynamo.reset()
    big = bitstash.compile(model, FMT, min_values=16, backend="aot_eager")
    step(model, big)
    kinds = {row.kept for row in big.report().rows if row.op.startswith("native_layer_norm.")}
    assert kinds == {"norm statistics"}


def test_attention_is_done_again_for_its_own_backward_pass():
    call = compiled(model := blocks())
    step(model, call)
    again = {
        row.op: row.kept for row in call.report().rows
        if "attention" in row.saved_by and "attention" in row.op
    }  # fmt: skip
    assert {*again.values()} == {"recomputed"}
    assert len(again) == 2


def test_attention_is_done_again_once_for_outputs_and_log_sum_exps():
    call = compiled(model := blocks(count=2))
    step(model, call)
    with torch.profiler.profile() as found:
        step(model, call)
    counts = {event.key: event.count for event in found.key_averages()}
    assert counts["aten::_scaled_dot_product_flash_attention_for_cpu"] == 2 * 2


def test_a_dropout_mask_is_kept_as_bits():
    model = blocks(dropout=0.2)
    expected, call = step(model), compiled(model)
    found = step(model, call)
    masks = [row for row in call.report().rows if row.dtype == "bool"]
    assert {row.kept for row in masks} == {"bits"}
    assert sum(row.original_bytes for row in masks) == 8 * sum(row.stored_bytes for row in masks)
    assert error(found, expected) < 0.15


class Masked(nn.Module):
    """Dropout in plain PyTorch: its mask is a tensor of floats."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x):
        h = self.first(x)
        return self.second(h * ((torch.rand_like(h) > 0.2).float() / 0.8))


def test_a_mask_of_floats_is_made_anew_of_bits():
    torch.manual_seed(0)
    model = Masked()
    expected, call = step(model), compiled(model)
    assert error(step(model, call), expected) < 0.15
    rows = {(row.op, row.kept): row.stored_bytes for row in call.report().rows if row.saved_by == "mul"}
    assert rows == {("div", "recomputed"): 0, ("gt", "bits"): 4 * 32 * 64 // 8}


def test_what_requires_no_gradient_stays_exact_while_it_has_infinities():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 64)

        def forward(self, x, factors):
            return self.linear(x) * factors

    torch.manual_seed(0)
    model, x = Model(), batch()
    call = compiled(model, fullgraph=True)
    for value, way in ((1.0, "compressed"), (float("-inf"), INFINITIES), (2.0, "compressed")):
        factors = torch.randn(4, 32, 64)
        factors[0, 0, 0] = value
        y = call(x, factors)
        y.flatten()[1:].sum().backward()
        found = gradients(model)
        model(x, factors).flatten()[1:].sum().backward()
        expected = gradients(model)
        assert error(found, expected) < 0.25 or not expected.isfinite().all()
        assert torch.equal(found.isfinite(), expected.isfinite())
        assert {row.kept for row in call.report().rows if row.saved_by == "mul" and row.counted} == {way}


def test_what_is_detached_requires_no_gradient():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 64)

        def forward(self, x):
            y = self.linear(x)
            return y * y.detach().abs().reciprocal().clamp(max=1e6)  # numbers that may stand for infinities

    torch.manual_seed(0)
    model = Model()
    call, saver = compiled(model), bitstash.Compressor(model, FMT, min_values=MIN_VALUES)
    expected, of_hooks, found = step(model), step(model, around=saver), step(model, call)
    assert error(found, expected) < 1.1 * error(of_hooks, expected)
    for report in (call.report(), saver.report()):
        assert [row.kept for row in report.rows if row.op == "clamp"] == [INFINITIES]


@needs_a_compiler
@pytest.mark.parametrize("fmt", [FMT, PlaneFormat("fp32", block=64, target=80)], ids=lambda fmt: fmt.scheme)
def test_the_layouts_that_inductor_chooses_are_its_own(fmt):
    """A tensor that is compressed may have other strides than the graph said when it was rewritten."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(8, 16, 3, stride=2, padding=1)
            self.qkv = nn.Linear(16, 48)

        def forward(self, x):
            h = self.conv(x.contiguous(memory_format=torch.channels_last)).relu()
            parts = self.qkv(h.flatten(2).transpose(1, 2)).chunk(3, 2)
            q, k, v = (part.unflatten(2, (2, 8)).transpose(1, 2) for part in parts)
            return 2 * torch.tanh(q @ k.transpose(2, 3) / 2).softmax(-1) @ v

    torch.manual_seed(0)
    model, x = Model(), torch.randn(4, 8, 16, 16)
    call = bitstash.compile(model, fmt, min_values=MIN_VALUES)
    saver = bitstash.Compressor(model, fmt, min_values=MIN_VALUES)
    expected, of_hooks, found = step(model, x=x), step(model, x=x, around=saver), step(model, call, x=x)
    assert error(found, expected) < 2 * error(of_hooks, expected) < 0.4


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=needs_a_compiler)])
def test_what_is_recomputed_lies_in_memory_as_it_did(backend):
    """A norm gives the layout of rows whatever that of its input is, and views of the result rely on it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
    x = torch.randn(64, 32, 4).permute(2, 1, 0)
    call = bitstash.compile(model, FMT, min_values=MIN_VALUES, backend=backend)
    saver = bitstash.Compressor(model, FMT, min_values=MIN_VALUES)
    expected, of_hooks, found = step(model, x=x), step(model, x=x, around=saver), step(model, call, x=x)
    assert error(found, expected) < 1.05 * error(of_hooks, expected)
    if backend == "aot_eager":  # Inductor may have the graphs in its cache
        kept = {row.op: row.kept for row in call.report().rows if row.counted}
        assert kept["native_layer_norm"] == "recomputed"


def test_the_head_is_done_again_for_the_loss():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.head = nn.Linear(64, 64), nn.Linear(64, 4096)

        def forward(self, x):
            logits = self.head(self.linear(x)).flatten(0, 1)
            return nn.functional.cross_entropy(logits, torch.arange(128))

    torch.manual_seed(0)
    model = Model()
    expected, call = step(model), compiled(model)
    saver = bitstash.Compressor(model, FMT, min_values=MIN_VALUES)
    of_hooks = step(model, around=saver)
    assert error(step(model, call), expected) == pytest.approx(error(of_hooks, expected), rel=1e-3)
    assert {row.kept for row in call.report().rows if row.op == "_log_softmax"} == {"recomputed"}
    assert call.report().stored_bytes <= saver.report().stored_bytes


class Masquerade(torch.autograd.Function):
    """What it saves looks like a factor of a product, and its backward pass takes the exponential of it."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x)
        return x * y

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (2 * x).exp(), grad * x


def test_what_is_not_known_stays_exact_and_is_named():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x):
            return Masquerade.apply(2 * self.one(x), self.other(x))

    torch.manual_seed(0)
    model = Model()
    expected, call = step(model), compiled(model)
    with pytest.warns(RuntimeWarning, match="stay exact: what it needs of them is not known"):
        step(model, call)
    rows = [row for row in call.report().rows if row.op in ("mul", "exp")]
    assert rows
    assert "compressed" not in {row.kept for row in rows}
    assert error(step(model, call), expected) < 0.1


def test_only_what_bears_errors_meets_them():
    # The exponential of what is compressed would be off by its factor: only the exact tensor may be under it.
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 64)

        def forward(self, x):
            h = 8 * self.linear(x)
            return (h * h).mean() + h.exp().log1p()

    torch.manual_seed(0)
    model = Model()
    expected, call = step(model), compiled(model)
    found = step(model, call)
    lossy = {row.op for row in call.report().rows if row.kept == "compressed"}
    assert lossy == {"", "mul"}  # what the model is given, and a factor
    assert error(found, expected) < 0.1


def test_exact_policies_change_no_bit():
    model = blocks(dropout=0.1)
    plain = torch.compile(model, backend="aot_eager")
    expected = step(model, plain)
    torch._dynamo.reset()
    call = compiled(model, EXACT)
    assert torch.equal(step(model, call), expected)
    assert call.report().ratio == 1


def test_a_rule_for_a_module_holds():
    rules = [Rule("exact", module="1.*"), *Policy.default(FMT).rules]
    call = compiled(model := blocks(), Policy(rules))
    step(model, call)
    modules = {row.module.partition(".")[0] for row in call.report().rows if row.kept == "compressed"}
    assert "2" in modules
    assert "1" not in {
        row.module for row in call.report().rows if row.kept == "compressed" and row.module != "1"
    }


# What a model may do


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_gradients_agree(dtype):
    model = blocks()
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16")
    expected = step(model, around=autocast)
    call = compiled(model, fullgraph=True)
    assert error(step(model, call, around=autocast), expected) < 0.15
    assert call.report().ratio > (16 if dtype == "fp32" else 9)


def test_what_autocast_makes_of_a_parameter_is_made_again():
    model = blocks()
    call = compiled(model, fullgraph=True)
    step(model, call, around=torch.autocast("cpu", torch.bfloat16))
    constants = {row.kept for row in call.report().rows if not row.counted}
    assert constants == {"parameter"}


def test_a_parameter_that_changes_before_the_backward_pass_is_named_under_autocast():
    model = blocks(1)
    with torch.autocast("cpu", torch.bfloat16):
        loss = compiled(model)(batch()).square().mean()
    with torch.no_grad():
        model[1].up.weight.mul_(0.5)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_sizes_may_change():
    model = blocks()
    call = compiled(model, dynamic=True)
    for length in (32, 48, 20):
        expected = step(model, x=batch(length))
        assert error(step(model, call, x=batch(length)), expected) < 0.15
    assert call.report().ratio > 8
    assert sum(row.tensors for row in call.report().rows if row.saved_by == "pow") == 2  # compiled once


def test_graphs_between_breaks_are_added_up():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = blocks(1), Block()

        def forward(self, x):
            x = self.first(x)
            torch._dynamo.graph_break()
            return self.second(x)

    torch.manual_seed(0)
    model = Broken()
    expected, call = step(model), compiled(model)
    assert error(step(model, call), expected) < 0.15
    assert sum(row.tensors for row in call.report().rows if row.saved_by == "pow") == 2


def test_gradients_accumulate():
    model = blocks(1)
    call = compiled(model)
    once = step(model, call)
    for _ in range(2):
        torch.manual_seed(2)
        call(batch()).square().mean().backward()
    assert torch.equal(gradients(model), 2 * once)


class Written(nn.Module):
    """Writes to a buffer behind what the backward pass needs of it."""

    def __init__(self, table):
        super().__init__()
        self.linear, self.table = nn.Linear(64, 64), table
        self.register_buffer("buffer", torch.rand(64, 64))

    def forward(self, x):
        y = self.linear(x) * self.table(self.buffer)[:32]
        self.buffer.mul_(3.0)
        return y


@needs_a_compiler
@pytest.mark.parametrize("table", [lambda one: one + 1, lambda one: one @ one], ids=["sum", "product"])
@pytest.mark.parametrize("policy", [EXACT, FMT], ids=["exact", "4 bits"])
def test_a_buffer_is_read_as_it_was_before_the_graph_wrote_to_it(table, policy):
    # PyTorch's own partitioner makes the sum anew of what was written.
    found = []
    for is_compiled in (False, True):
        torch.manual_seed(0)
        model = Written(table)
        call = bitstash.compile(model, policy, min_values=MIN_VALUES) if is_compiled else model
        found.append(torch.cat([step(model, call) for _ in range(2)]))
        assert model.buffer.amax() > 3
    assert error(found[1], found[0]) < (1e-5 if policy is EXACT else 0.15)


def test_what_checkpointing_recomputes_is_left_to_it():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = blocks(1), Block()

        def forward(self, x):
            return self.second(checkpoint(self.first, x, use_reentrant=False))

    torch.manual_seed(0)
    model = Checkpointed()
    expected, call = step(model), compiled(model)
    assert error(step(model, call), expected) < 0.15
    saved = [row for row in call.report().rows if row.module.startswith("first") and row.kept == "compressed"]
    assert saved == []
    assert any(row.kept == "compressed" for row in call.report().rows)


@pytest.mark.parametrize("tag", [CheckpointPolicy.MUST_SAVE, CheckpointPolicy.MUST_RECOMPUTE], ids=str)
def test_tags_of_selective_checkpointing_are_obeyed(tag):
    products = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)

    def policy(context, operation, *args, **kwargs):
        return tag if operation in products else CheckpointPolicy.PREFER_RECOMPUTE

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = blocks(1), Block()

        def forward(self, x):
            contexts = partial(create_selective_checkpoint_contexts, policy)
            return self.second(checkpoint(self.first, x, use_reentrant=False, context_fn=contexts))

    torch.manual_seed(0)
    model = Checkpointed()
    expected, call = step(model), compiled(model)
    assert error(step(model, call), expected) < 0.15
    inside = [row for row in call.report().rows if row.module.startswith("first") and row.counted]
    assert "compressed" not in {row.kept for row in inside}
    saved = sum(
        row.stored_bytes for row in call.report().rows if row.op == "addmm" and row.kept == PARTITIONER
    )
    assert (saved > 4 * 128 * 192) == (tag is CheckpointPolicy.MUST_SAVE)


def normed(norm, size, mean):
    """A model that adds a mean to what a norm is given."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.before = nn.Conv1d(32, 32, 1) if len(size) == 3 and size[1] == 32 else nn.Linear(64, 64)
            self.norm, self.after = norm(), nn.Linear(size[-1], 8)

        def forward(self, x):
            return self.after(self.norm(self.before(x) + mean * self.before(x).detach().std()))

    torch.manual_seed(0)
    return Model(), torch.randn(size)


NORMS = [
    pytest.param(lambda: nn.LayerNorm(64), (4, 32, 64), id="rows"),
    pytest.param(lambda: nn.BatchNorm1d(32), (16, 32, 64), id="channels"),
    pytest.param(lambda: nn.BatchNorm1d(64), (512, 64), id="channels last"),
    pytest.param(lambda: nn.GroupNorm(4, 32), (16, 32, 64), id="groups"),
]


@pytest.mark.parametrize(("norm", "size"), NORMS)
def test_inputs_of_norms_are_kept_without_their_means(norm, size):
    for mean in (0, 35):
        torch._dynamo.reset()
        model, x = normed(norm, size, mean)
        expected, call = step(model, x=x), compiled(model)
        saver = bitstash.Compressor(model, FMT, min_values=MIN_VALUES)
        of_hooks, found = step(model, x=x, around=saver), step(model, call, x=x)
        read = [row for row in call.report().rows if "norm" in row.saved_by and row.op == "add"]
        assert {row.kept for row in read} == {"compressed"}
        assert error(found, expected) < 1.1 * error(of_hooks, expected) < 0.3


@needs_a_compiler
def test_a_norm_of_heads_whose_input_stays_exact_compiles():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.norm, self.after = nn.Linear(64, 64), nn.LayerNorm(16), nn.Linear(64, 64)

        def forward(self, x):
            heads = self.before(x).unflatten(2, (4, 16)).transpose(1, 2)
            return self.after(self.norm(heads).transpose(1, 2).flatten(2))

    torch.manual_seed(0)
    model = Model()
    expected, call = step(model), bitstash.compile(model, FMT, min_values=MIN_VALUES)
    assert error(step(model, call), expected) < 0.15
    rows = [row for row in call.report().rows if "norm" in row.saved_by]
    assert {row.kept for row in rows if row.shape[-1:] == (1,)} == {"norm statistics"}


def test_means_of_channels_are_kept_beside_what_is_left():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)
            nn.init.normal_(self.up.bias, std=3.0)

        def forward(self, x):
            return self.down(nn.functional.silu(self.up(x)))

    torch.manual_seed(0)
    model, x = Model(), torch.randn(2, 1024, 64, requires_grad=True)
    expected, call = step(model, x=x), compiled(model, fullgraph=True)
    saver = bitstash.Compressor(model, FMT, min_values=MIN_VALUES)
    of_hooks, found = step(model, x=x, around=saver), step(model, call, x=x)
    assert error(found, expected) < 1.05 * error(of_hooks, expected)
    means = {row.stored_bytes for row in call.report().rows if row.shape in ((2, 1, 128), (1, 128))}
    assert means == {2 * 128 * 4}


def test_compiled_autograd_runs_the_same_graphs():
    model = blocks(1)
    call = compiled(model)
    expected = step(model, call)
    with torch._dynamo.utils.maybe_enable_compiled_autograd(True, dynamic=False):
        found = step(model, call)
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_what_is_compressed_on_a_gpu_waits_in_the_memory_of_the_cpu(monkeypatch):
    """The device stands in for a GPU: PyTorch moves what the partitioner marks, here to where it is."""
    model = blocks(1)
    expected = step(model, compiled(model))
    kept = []
    split = min_cut_rematerialization_partition

    def spy(*args, **kwargs):
        forward, backward = split(*args, **kwargs)
        kept.extend(forward.graph.find_nodes(op="output")[0].args[0])
        return forward, backward

    monkeypatch.setattr(partitioner_module, "_is_on_gpu", lambda node: True)
    monkeypatch.setattr("torch._functorch.partitioners.min_cut_rematerialization_partition", spy)
    ours, offloading = (
        Partitioner(FMT, min_values=MIN_VALUES),
        Partitioner(FMT, min_values=MIN_VALUES, offload=True),
    )
    assert ours.uuid() != offloading.uuid()
    reports = []
    for partitioner, moved in ((ours, False), (offloading, True)):
        kept.clear()
        torch.compiler.reset()
        assert torch.equal(step(model, torch.compile(model, backend=partitioner.aot_eager())), expected)
        names = [node.name for node in kept if isinstance(node, torch.fx.Node)]
        assert any(name.startswith("cpu_offload_compress") for name in names) == moved
        assert not (moved and any(name.startswith("compress") for name in names))
        reports.append(partitioner.report())
    assert reports[0] == reports[1]


def test_there_is_nothing_to_offload_from_a_cpu():
    model = blocks(1)
    partitioner = Partitioner(FMT, min_values=MIN_VALUES, offload=True)
    with pytest.warns(RuntimeWarning, match="offload=True moves nothing of a graph whose tensors are on the"):
        step(model, torch.compile(model, backend=partitioner.aot_eager()))


def test_a_compressor_around_a_compiled_model_says_what_to_write():
    model = blocks(1)
    call = torch.compile(model, backend="aot_eager")
    with pytest.warns(RuntimeWarning, match=r"bitstash\.compile\(model, policy\)"):
        step(model, call, around=bitstash.Compressor(model, FMT))


# Inductor


@needs_a_compiler
def test_inductor_agrees_and_its_cache_is_used(tmp_path):
    # One process compiles, with the exact policy as well, and another takes its graphs from the cache.
    counts = [run_inductor(tmp_path) for _ in range(2)]
    assert counts[0] == "misses"
    assert counts[1] == "hits"


INDUCTOR = """
import torch, bitstash, warnings
from torch import nn
from torch._dynamo.utils import counters
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
x = torch.randn(64, 64)
def step(call):
    model.zero_grad()
    call(x).square().mean().backward()
    return torch.cat([part.grad.flatten() for part in model.parameters()])
expected = step(model)
plain = step(torch.compile(model))
torch._dynamo.reset()
exact = step(bitstash.compile(model, bitstash.Policy([bitstash.Rule("exact")])))
assert torch.equal(exact, plain), "an exact policy changed bits"
torch._dynamo.reset()
counters.clear()
call = bitstash.compile(model, bits=4, fullgraph=True)
found = step(call)
assert 0 < (found - expected).norm() / expected.norm() < 0.15
missed = counters["aot_autograd"]["autograd_cache_miss"]
print("misses" if missed else "hits" if counters["aot_autograd"]["autograd_cache_hit"] else dict(counters))
if missed:
    kept = {row.saved_by: row.kept for row in call.report().rows if row.counted}
    assert kept["gelu"] == "compressed", kept
    assert call.report().ratio > 4
else:
    try:
        call.report()
        raise AssertionError("a report of nothing")
    except RuntimeError as error:
        assert "cache" in str(error)
    # Of one more layer, which is in no cache, there is a report: it says that others are not in it.
    partitioner = call.report.__self__
    more = torch.compile(nn.Linear(64, 64), options={"custom_partitioner_fn": partitioner})
    with torch.compiler.config.patch(force_disable_caches=True):
        more(x).square().mean().backward()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert partitioner.report().rows
    assert ["lacks what 1 graphs save" in str(one.message) for one in told] == [True], told
"""


def run_inductor(folder):
    variables = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(folder), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", INDUCTOR], env=variables, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def test_graphs_from_a_cache_are_told_from_those_that_were_split(monkeypatch):
    class Compilation:
        pass

    hits, present = [0], [Compilation()]
    monkeypatch.setattr(cached, "cache_hits", lambda: hits[0])
    monkeypatch.setattr(cached, "compilation", lambda: present[0])
    graphs = cached.Cached()
    graphs.look_up()
    hits[0] += 1
    assert graphs.count == 1
    present[0] = Compilation()
    graphs.look_up()
    graphs.miss()
    graphs.look_up()  # for its parts
    hits[0] += 1  # of another partitioner
    assert graphs.count == 1
    present[0] = Compilation()
    with torch.no_grad():
        graphs.look_up()
        hits[0] += 1
    assert graphs.count == 1
    assert pickle.loads(pickle.dumps(graphs)).count == 0  # PyTorch makes keys of partitioners


# Arguments


def test_the_policy_and_the_source_name_a_partitioner_in_caches():
    assert Partitioner(FMT).uuid() == Partitioner(Policy.default(FMT)).uuid()
    others = [Partitioner(bits=2), Partitioner(FMT, min_values=1), Partitioner(FMT, "torch")]
    assert len({Partitioner(FMT).uuid(), *(one.uuid() for one in others)}) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bits": 5}, "bits must be one of 2, 3, 4, not 5"),
        ({"policy": "4"}, "policy must be a format or a Policy, not '4'"),
        ({"backend": "memory"}, "backend must be one that gives its blocks away, not 'memory'"),
        ({"min_values": -1}, "min_values must be a number of values, not -1"),
        ({"offload": "cpu"}, "offload must be True or False, not 'cpu'"),
    ],
)
def test_a_partitioner_names_what_is_wrong(arguments, message):
    with pytest.raises(ValueError, match=message):
        Partitioner(**arguments)


def test_compile_names_what_is_wrong():
    with pytest.raises(ValueError, match=r"model must be a torch.nn.Module, not 1"):
        bitstash.compile(1)
    with pytest.raises(ValueError, match="backend must be one of inductor, aot_eager, not 'eager'"):
        bitstash.compile(nn.Linear(1, 1), backend="eager")
    with pytest.raises(ValueError, match=r"codec must be one of auto, .*, not 'memory'"):
        bitstash.compile(nn.Linear(1, 1), codec="memory")
    for options in (3, {"custom_partitioner_fn": print}):
        with pytest.raises(ValueError, match="must be a dictionary without 'custom_partitioner_fn', not "):
            bitstash.compile(nn.Linear(1, 1), options=options)
    for given in ({"options": {"cpp.threads": 1}}, {"mode": "reduce-overhead"}):
        with pytest.raises(ValueError, match="must be None with backend 'aot_eager', which has none, not "):
            bitstash.compile(nn.Linear(1, 1), backend="aot_eager", **given)
    with pytest.raises(RuntimeError, match="no graph with a backward pass was compiled"):
        bitstash.compile(nn.Linear(1, 1), backend="aot_eager").report()
