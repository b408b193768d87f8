"""Rules say how each tensor is kept: as bits, exact or in a format of its own."""

import contextlib

import numpy as np
import pytest
import torch

from golden import HadamardFormat, PlaneFormat
from torch_bridge import Compressor, Policy, Rule
from torch_bridge.backends.bits import BitsCodec

FMT = PlaneFormat("fp32", block=64, target=80)
COARSE = PlaneFormat("fp32", block=16, target=9)
NOTHING = torch.nn.Module()


def leaf(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), requires_grad=True)


def kept(saver):
    return {row.kept for row in saver.report().rows}


# Masks as bits


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("count", [0, 1, 511, 512, 513, 5000])
def test_bits_give_back_the_same_two_values(dtype, count):
    mask = torch.rand(count, generator=torch.Generator().manual_seed(count)) < 0.9
    values = mask if dtype == torch.bool else mask.to(dtype) / 0.9
    codec = BitsCodec.of(values)
    stored = codec.compress(values)
    assert stored.shape == (-(-count // 512), 64)
    assert torch.equal(codec.decompress(stored, count), values)


def test_two_values_are_told_by_their_bits():
    nan, zeros = float("nan"), torch.tensor([0.0, -0.0] * 9)
    for values in (zeros, torch.tensor([nan, 1.0, nan]), torch.full((70,), 3.5)):
        codec = BitsCodec.of(values)
        words = codec.decompress(codec.compress(values), len(values)).view(torch.int32)
        assert torch.equal(words, values.view(torch.int32))
    assert BitsCodec.of(torch.tensor([0.0, -0.0, 1.0])) is None
    assert BitsCodec.of(torch.tensor([0.0, nan, 1.0])) is None


def test_the_first_value_is_in_bit_0():
    stored = BitsCodec.of(torch.ones(1, dtype=torch.bool)).compress(torch.arange(12) % 3 == 0)
    expected = np.packbits(np.arange(12) % 3 == 0, bitorder="little")
    assert stored[0, :2].tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_a_dropout_mask_is_kept_as_bits_and_exact(dtype):
    def gradient(policy):
        torch.manual_seed(0)
        x = leaf(100, 100).to(dtype).detach().requires_grad_()
        with Compressor(NOTHING, policy) as saver:
            loss = torch.nn.functional.dropout(x, 0.3).sum()
        loss.backward()
        return x.grad, saver

    exact, _ = gradient(Policy([]))
    grad, saver = gradient(COARSE)
    assert torch.equal(grad, exact)
    assert kept(saver) == {"bits"}
    assert saver.stored_bytes == -(-10_000 // 512) * 64


def test_quotients_of_16_bytes_stay_exact():
    def gradient(context):
        x = torch.randn(40, 40, dtype=torch.complex128, generator=torch.Generator().manual_seed(0))
        x.requires_grad_()
        with context as saver:
            loss = (x * 2).div_(3).square().abs().sum()
        loss.backward()
        return x.grad, saver

    found, saver = gradient(Compressor(NOTHING, FMT))
    assert torch.equal(found, gradient(contextlib.nullcontext())[0])
    assert "not floating point" in kept(saver)


def test_a_quotient_is_no_mask():
    with Compressor(NOTHING, FMT) as saver:
        (leaf(64, 64) * 2).div_(3).sin()
    assert kept(saver) == {"compressed"}


def test_boolean_masks_take_a_bit():
    x = leaf(64, 64)
    with Compressor(NOTHING, COARSE) as saver:
        y = torch.where(x > 0, x, 2 * x)
    y.sum().backward()
    assert torch.equal(x.grad, torch.where(x > 0, 1.0, 2.0))
    assert saver.stored_bytes == 64 * 64 // 8


# Rules


def test_the_first_rule_that_fits_holds():
    policy = Policy(
        [Rule("exact", op="sin", why="a test"), Rule(COARSE, op="ad*", unchecked=True), Rule(FMT)]
    )
    with Compressor(NOTHING, policy) as saver:
        x = leaf(64, 64) * 1
        (x.sin().cos(), (x + 1).cos(), (x * 2).cos())
    rows = {(row.op, row.saved_by): (row.kept, row.stored_bytes) for row in saver.report().rows}
    assert rows["sin", "cos"] == ("a test", 64 * 64 * 4)
    assert rows["add", "cos"] == ("compressed", 64 * 64 // 16 * 9)
    assert rows["mul", "sin"] == rows["mul", "cos"] == ("compressed", 64 * 80)


def test_rules_by_size_and_dtype():
    policy = Policy(
        [
            Rule("exact", most=2047, why="small"),
            Rule("exact", least=8192, why="large"),
            Rule("exact", dtype="b*16", why="short"),
            Rule(FMT),
        ]
    )
    with Compressor(NOTHING, policy) as saver:
        for rows, dtype in (
            (31, torch.float32),
            (32, torch.float32),
            (128, torch.float32),
            (64, torch.bfloat16),
        ):
            leaf(rows, 64).to(dtype).sin()
    assert [row.kept for row in saver.report().rows] == ["small", "compressed", "large", "short"]


class Broken(torch.nn.Module):
    def forward(self, x):
        raise RuntimeError("broken")


def test_rules_by_module_also_after_one_has_failed():
    model = torch.nn.Sequential(
        torch.nn.Tanh(), torch.nn.Sequential(torch.nn.Tanh(), Broken()), torch.nn.Tanh()
    )
    policy = Policy(
        [Rule("exact", module="1.*", why="inner"), Rule("exact", module="", why="outside"), Rule(FMT)]
    )
    with Compressor(model, policy) as saver:
        x = model[0](leaf(64, 64))
        with pytest.raises(RuntimeError, match="broken"):
            model[1](x)
        x = model[2](x)
        x.sin()
    kept_in = [(row.module, row.kept) for row in saver.report().rows]
    assert kept_in == [("0", "compressed"), ("1.0", "inner"), ("2", "compressed"), ("", "outside")]
    assert not torch.nn.modules.module._global_forward_hooks
    with Compressor(model, policy) as saver:
        leaf(64, 64).sin()
    assert kept(saver) == {"outside"}


def test_each_node_has_what_it_needs_of_a_tensor_that_several_save():
    model = torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Linear(64, 64))
    for first, then, expected in (("exact", FMT, ["exact"]), (FMT, "exact", ["compressed", "exact"])):
        with Compressor(model, Policy([Rule(first, module="0"), Rule(then)])) as saver:
            model(leaf(64, 64))
        assert [row.kept for row in saver.report().rows if row.counted] == expected


def test_a_tensor_that_a_later_node_needs_finer_is_stored_once():
    with Compressor(NOTHING, HadamardFormat(target=32)) as saver:
        y = leaf(64, 64) * 1
        one, two = torch.nn.functional.silu(y), torch.ones_like(y) / y
    assert [row.stored_bytes for row in saver.report().rows if row.op == "mul"] == [64 * 80]
    exact = y.detach()
    assert (two.grad_fn._saved_other / exact - 1).abs().max() < 0.05
    assert torch.equal(one.grad_fn._saved_self, two.grad_fn._saved_other)


def test_bits_fall_through_where_there_are_more_values():
    with Compressor(NOTHING, Policy([Rule("bits"), Rule(FMT)])) as saver:
        leaf(64, 64).sin()
        (leaf(64, 64) > 0).float().requires_grad_().sin()
    assert [row.kept for row in saver.report().rows] == ["compressed", "bits"]


def test_without_a_rule_all_stays_exact():
    with Compressor(NOTHING, Policy([])) as saver:
        leaf(64, 64).sin()
    assert saver.original_bytes == saver.stored_bytes
    assert kept(saver) == {"no rule"}


def test_a_large_log_softmax_has_a_rate_of_its_own():
    rows, classes = 64, 16_384
    with Compressor(NOTHING, FMT) as saver:
        leaf(rows, classes).log_softmax(1)
        leaf(rows, 100).log_softmax(1)
    large, small = saver.report().rows
    assert (large.kept, large.stored_bytes) == ("compressed", rows * classes // 64 * 96)
    assert (small.kept, small.stored_bytes) == ("log-softmax", rows * 100 * 4)


@pytest.mark.parametrize("keep", ["half", None, 80])
def test_a_wrong_treatment_is_named(keep):
    with pytest.raises(
        ValueError, match=f"keep must be 'exact', 'bits', 'recompute' or a format, not {keep!r}"
    ):
        Rule(keep)


def test_what_no_tensor_can_fit_is_named():
    with pytest.raises(
        ValueError, match=r"dtype must be one of torch's, as 'float32', or fit one, not 'fp32'"
    ):
        Rule("exact", dtype="fp32")
    with pytest.raises(ValueError, match=r"dtype must be a name or a shell pattern, not torch.float32"):
        Rule("exact", dtype=torch.float32)
    with pytest.raises(ValueError, match="most must be a number of values, from 10, not 5"):
        Rule("exact", least=10, most=5)
    with pytest.raises(ValueError, match="least must be a number of values, from 0, not -1"):
        Rule("exact", least=-1)
    with pytest.raises(ValueError, match=r"rules must be a sequence of Rule, not \[PlaneFormat"):
        Policy([PlaneFormat("fp32", 64, 80)])
    with pytest.raises(ValueError, match=r"rules must be a sequence of Rule, not Rule"):
        Policy(Rule("exact"))


def test_a_lossless_format_is_an_error():
    with pytest.raises(ValueError, match="must have a target"):
        Rule(PlaneFormat("fp32", 64, None))


def test_a_policy_prints_as_a_table():
    text = str(Policy.default(FMT))
    for words in (
        "10 bits: 64 fp32 in 80 bytes",
        "recompute",
    ):
        assert words in text


def test_modules_have_the_names_of_named_modules_where_they_are_shared():
    class Shared(torch.nn.Module):
        def __init__(self):
            super().__init__()
            inner = torch.nn.Sequential(torch.nn.GELU())
            self.first = torch.nn.Sequential(torch.nn.Sequential(inner), torch.nn.SiLU())
            self.second, self.none = inner, None

        def forward(self, x):
            return self.second(self.first(x))

    model = Shared()
    with Compressor(model, FMT, "golden") as saver:
        model(torch.randn(4096, requires_grad=True)).sum()
    names = {name for name, part in model.named_modules() if not list(part.children())}
    assert {row.module for row in saver.report().rows} == names == {"first.0.0.0", "first.1"}
