"""Compiled graphs keep what hooks keep, and their gradients agree."""

from functools import partial

import pytest
import torch
import transformers
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import bitstash
from bitstash import PlaneFormat, Policy, Rule
from torch_bridge.compiled.partitioner import PARTITIONER
from torch_bridge.report.rows import INFINITIES

from .compiling import (
    EXACT,
    FMT,
    MIN_VALUES,
    Block,
    batch,
    blocks,
    compiled,
    error,
    gradients,
    kept,
    needs_a_compiler,
    nothing_compiled,
    step,
)

__all__ = ["nothing_compiled"]  # around every test here


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


class Bits(nn.Module):
    """Rounds to bf16 by what the bits of floats say."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x):
        h = self.first(x)
        rounded = ((h.detach().view(torch.int32) + 0x8000) & -65536).view(torch.float32)
        return self.second(h + (rounded - h).detach()) * rounded


def test_bits_of_floats_are_integers_of_their_own():
    model = Bits()
    expected = step(model)
    assert error(step(model, compiled(model)), expected) < 0.2


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
    assert [row for row in call.report().rows if row.kept == "compressed"] == []
    assert error(step(model, call), expected) < 0.1


class Squares(torch.autograd.Function):
    """A mean of squares of differences, whose backward pass multiplies what its forward pass began with."""

    @staticmethod
    def forward(ctx, x, target):
        scaled = x * 1.0
        ctx.save_for_backward(x, target)
        return (scaled - target).square().mean()

    @staticmethod
    def backward(ctx, grad):
        x, target = ctx.saved_tensors
        count = 2 / x.numel()
        return count * grad * x - count * grad * target, None


def test_one_tensor_that_matches_nothing_says_that_none_does():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 64)

        def forward(self, x):
            h = self.linear(x)
            return Squares.apply(h, (h + 0.05 * x).detach())

    torch.manual_seed(0)
    model = Model()
    expected, call = step(model), compiled(model)
    assert error(step(model, call), expected) < 0.2


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
