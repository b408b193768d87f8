"""Parameters that change between the passes: what is recomputed from them is what autograd would keep."""

import gc
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional

from torch_bridge import Compressor, Policy, Rule

RECOMPUTED = Policy([Rule("recompute")])
SMALL, LARGE = 200, 20  # rows of what a parameter is added to, of which it is a small part or a large one


class Shifted(nn.Module):
    """A sum with a parameter, which nobody saves, in a function that saves the sum."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.shift = nn.Parameter(torch.randn(50))

    def forward(self, x):
        h = x.sin()
        saved = h.cos()
        return ((h + self.shift).cos() + saved).sum()


class Normed(nn.Module):
    """A norm whose output a linear layer saves."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.shift, self.bias = nn.Parameter(torch.randn(50)), nn.Parameter(torch.randn(50))
        self.linear = nn.Linear(50, 50)

    def forward(self, x):
        return self.linear(functional.layer_norm(x.sin(), (50,), self.shift, self.bias)).square().sum()


def in_place(parameter):
    with torch.no_grad():
        parameter.mul_(3)


def past_its_version(parameter):
    parameter.data.mul_(3)


def replaced(parameter):
    parameter.data = 3 * parameter.data


CHANGES = [in_place, past_its_version, replaced]


def gradient(model, change, rows, around=None):
    x = torch.randn(rows, 50, generator=torch.Generator().manual_seed(1)).requires_grad_()
    with around or nullcontext():
        loss = model(x)
    change(model.shift)
    return torch.autograd.grad(loss, [x, *([model.linear.weight] if hasattr(model, "linear") else [])])


def recomputed(saver):
    return [row for row in saver.report().rows if row.kept == "recomputed"]


@pytest.mark.parametrize("change", CHANGES)
def test_a_small_parameter_that_changes_changes_nothing(change):
    exact = gradient(Shifted(), change, SMALL)
    model = Shifted()
    saver = Compressor(model, RECOMPUTED, min_values=0)
    found = gradient(model, change, SMALL, saver)
    assert recomputed(saver)
    assert all(map(torch.equal, found, exact))


@pytest.mark.parametrize("change", [past_its_version, replaced])
def test_a_norms_weight_that_changes_past_its_version_changes_only_what_reads_it(change):
    exact = gradient(Normed(), change, SMALL)
    model = Normed()
    saver = Compressor(model, RECOMPUTED, min_values=0)
    found = gradient(model, change, SMALL, saver)
    assert recomputed(saver)
    assert all(map(torch.equal, found, exact))


@pytest.mark.parametrize(
    ("change", "what"), [(in_place, "is at version 1; expected version 0"), (replaced, "has other memory")]
)
def test_a_large_parameter_that_changes_is_an_error(change, what):
    model = Shifted()
    saver = Compressor(model, RECOMPUTED, min_values=0)
    with pytest.raises(RuntimeError, match=f"modified by an inplace .*{what}"):
        gradient(model, change, LARGE, saver)
    assert recomputed(saver)


def test_all_that_use_a_parameter_share_a_copy_which_the_report_counts():
    model = Shifted()
    saver = Compressor(model, RECOMPUTED, min_values=0)
    x = torch.randn(SMALL, 50).requires_grad_()
    with saver:
        losses = [model(x * factor) for factor in (1.0, 2.0, 3.0)]
    assert sum(row.tensors for row in recomputed(saver)) >= 3
    (row,) = [row for row in saver.report().rows if row.kept == "recomputation input"]
    assert row.stored_bytes == 200
    torch.stack(losses).sum().backward()


@pytest.mark.parametrize("rows", [SMALL, LARGE])
def test_what_deepspeed_gathers_is_not_kept_alive_and_may_lie_elsewhere_later(rows):
    def freed(parameter):
        parameter.data = parameter.data.new_empty(0)
        gc.collect()
        assert memory.expired()

    exact = gradient(Shifted(), lambda parameter: None, rows)
    model = Shifted()
    model.shift.ds_id = 0  # as DeepSpeed numbers what it gathers and frees
    memory = StorageWeakRef(model.shift.untyped_storage())
    saver = Compressor(model, RECOMPUTED, min_values=0)
    found = gradient(model, freed, rows, saver)
    assert bool(recomputed(saver)) == (rows == SMALL)
    assert all(map(torch.equal, found, exact))
