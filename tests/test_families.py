"""One training step of families of models: exact policies change no bit of a gradient, lossy ones little.

Each runs in fp32 and under bf16 autocast, with eager and with fused attention, its dropout on. No warning may
say that an operation of one of them is not known.
"""

import warnings
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

import bitstash
from bitstash import HadamardFormat, PlaneFormat, Policy, Rule

from .families import FAMILIES, loss_of

MIN_VALUES = 256  # these models are small
PLANES, HADAMARD = PlaneFormat("fp32", block=64, target=80), HadamardFormat(target=64)
EXACT = {"stored": Policy([]), "recomputed": Policy([Rule("recompute")])}
# Of the gradient's relative error, with bit planes of 10 bits a value (3.2x in fp32) and with the Hadamard
# format of 4 (8x). Sparse experts take a token or leave it, and few tokens reach an expert.
BOUNDS = {"planes": 0.025, "hadamard": 0.25}
WIDER = {"switch_transformers": {"planes": 0.06, "hadamard": 0.35}}
LEAST_RATIO = 1.4  # ResNet's in planes under bf16 autocast, which keep 10 of 16 bits

CASES = [
    pytest.param(name, attention, dtype, id=f"{name}-{attention}-{dtype}")
    for name, family in FAMILIES.items()
    for attention in family.attentions
    for dtype in ("fp32", "bf16")
]


def step(
    name: str, model: nn.Module, dtype: str, saver: bitstash.Compressor | None = None
) -> dict[str, Tensor]:
    """The gradients of one step by the parameters' names, of the same batch and dropout masks every time."""
    torch.manual_seed(1)
    batch = FAMILIES[name].batch()
    with saver or nullcontext(), torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
        loss = loss_of(model(**batch))
    loss.backward()
    found = {name: part.grad for name, part in model.named_parameters() if part.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


@pytest.mark.parametrize(("name", "attention", "dtype"), CASES)
def test_exact_policies_change_no_bit(name, attention, dtype):
    model = FAMILIES[name].build(attention)
    expected = step(name, model, dtype)
    for how, policy in EXACT.items():
        found = step(name, model, dtype, bitstash.Compressor(model, policy, min_values=MIN_VALUES))
        unequal = [part for part in expected if not torch.equal(found[part], expected[part])]
        assert not unequal, f"{how}: {unequal}"


@pytest.mark.parametrize("fmt", [PLANES, HADAMARD], ids=lambda fmt: fmt.scheme)
@pytest.mark.parametrize(("name", "attention", "dtype"), CASES)
def test_lossy_formats_stay_under_their_bounds(name, attention, dtype, fmt):
    model = FAMILIES[name].build(attention)
    expected = flat(step(name, model, dtype))
    saver = bitstash.Compressor(model, fmt, min_values=MIN_VALUES)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        found = flat(step(name, model, dtype, saver))
    error = float((found - expected).norm() / expected.norm())
    assert 0 < error < WIDER.get(name, BOUNDS)[fmt.scheme]
    assert saver.ratio > LEAST_RATIO


def flat(gradients: dict[str, Tensor]) -> Tensor:
    return torch.cat([gradient.float().flatten() for gradient in gradients.values()])


def test_there_are_as_many_families_as_the_docs_say():
    assert len(FAMILIES) >= 45
