"""Families of models whose compiled graphs train with compressed tensors, and gradients that agree.

On ``aot_eager``, where the partitioner sees the graph that Inductor gives it but for decompositions; without
dropout, whose masks a graph need not draw as eager training does.
"""

import warnings

import pytest
import torch
from torch import nn

from bitstash import HadamardFormat, Partitioner

from .families import FAMILIES, loss_of

FMT = HadamardFormat(target=64)
BOUND, LEAST_RATIO = 0.25, 2.5
# Chosen by the time that they take to compile.
NAMES = (
    *(
        "gpt2",
        "gpt_neox",
        "gptj",
        "opt",
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "phi",
        "phi3",
        "gemma",
        "gemma2",
    ),
    *("falcon", "stablelm", "olmo2", "bert", "roberta", "distilbert", "electra", "vit", "dinov2"),
)
# Their own autograd.Function is in no table as a graph has it: what it saves stays exact, and is named.
UNKNOWN = {"bloom": "mul"}


def without_dropout(model):
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        for name, value in vars(part).items():
            if "dropout" in name and isinstance(value, float):
                setattr(part, name, 0.0)
    return model


def gradient(model, call, batch):
    model.zero_grad(set_to_none=True)
    loss_of(call(**batch)).backward()
    return torch.cat([part.grad.flatten() for part in model.parameters() if part.grad is not None])


def train(name):
    """The gradient's relative error of a compiled step, its report, and what warnings name as unknown."""
    family = FAMILIES[name]
    model = without_dropout(family.build(family.attentions[-1]))
    torch.manual_seed(1)
    batch = family.batch()
    expected = gradient(model, model, batch)
    partitioner = Partitioner(FMT, min_values=256)
    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = gradient(model, torch.compile(model, backend=partitioner.aot_eager()), batch)
    unknown = [str(one.message).split("'")[1] for one in told if "stay exact" in str(one.message)]
    return float((found - expected).norm() / expected.norm()), partitioner.report(), unknown


@pytest.mark.parametrize("name", NAMES)
def test_a_family_compiles_and_trains(name):
    error, report, unknown = train(name)
    assert 0 < error < BOUND
    assert report.ratio > LEAST_RATIO
    assert unknown == []


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_a_family_has_of_its_own_stays_exact(name):
    error, report, unknown = train(name)
    assert 0 < error < BOUND
    assert report.ratio > LEAST_RATIO
    assert unknown == [UNKNOWN[name]]
