"""Queries, keys and outputs of a softmax in compiled graphs: as fine as each step needs."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

import bitstash
from bitstash import PlaneFormat, Policy, Rule
from torch_bridge.compiled.measured import (
    Choices,
    compress_measured,
    decompress_measured,
    logit_spread,
    sizes_of,
    text_of_all,
)
from torch_bridge.compiled.plan import NOT_MEASURED
from torch_bridge.store.verdicts import Number

from .compiling import FMT, compiled, error, gradients, kept, nothing_compiled

__all__ = ["nothing_compiled"]  # around every test here


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
    torch.manual_seed(0)  # four bits may be a little worse on other values
    values, order = torch.randn(count // 4, 4).t(), [1, 0]
    stored = compress_measured(values, torch.tensor(float(spread)), "test", formats, bounds, 0, "auto", order)
    back = decompress_measured(stored, formats, 0, "auto", list(values.shape), order)
    assert back.stride() == values.stride()
    assert error(back, values) <= {1: 0.12, 10: 0.02, 30: 0.005, 100: 0.0}[spread]
    assert len(stored) in sizes_of(formats, count, 0)
    assert len(stored) <= 4 * count
    with pytest.raises(RuntimeError, match=r"stored must have one of \[.*\] bytes, not 7"):
        decompress_measured(torch.zeros(7, dtype=torch.uint8), formats, 0, "auto", list(values.shape), order)
