"""The step format on the bridge: the CPU's bytes are golden's, and gradients are those of what was stored."""

import re

import numpy as np
import pytest
import torch

from golden import StepFormat
from torch_bridge import backends, compress_activations, train
from torch_bridge.backends import threads
from torch_bridge.dtypes import TORCH_DTYPES

from .blocks import DTYPES, UINTS
from .test_golden_step import as_values, blocks_of, formats


def as_tensor(dtype, values):
    return torch.from_numpy(values.view(np.uint8).copy()).view(TORCH_DTYPES[dtype])


def as_words(dtype, tensor):
    return tensor.view(torch.uint8).numpy().view(UINTS[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_the_cpu_makes_goldens_bytes(dtype, rounding):
    for _, block, target in (one for one in formats() if one[0] == dtype):
        fmt = StepFormat(dtype, block, target, rounding)
        values = as_values(dtype, blocks_of(dtype, block, 30, seed=target)).reshape(-1)[:-3]
        backend = backends.get("cpu", fmt)
        expected = fmt.compress(values, seed=5)
        found = backend.compress(as_tensor(dtype, values), seed=5)
        assert (found.numpy() == expected).all(), fmt
        decoded = as_words(dtype, backend.decompress(found, len(values)))
        assert (decoded == fmt.decompress(expected, len(values)).view(UINTS[dtype])).all(), fmt


def test_any_bytes_decode_as_golden_does_or_are_refused_as_it_does():
    fmt = StepFormat("bf16", 16, 20)
    backend = backends.get("cpu", fmt)
    rows = np.random.default_rng(0).integers(0, 256, (400, 20), dtype=np.uint8)
    rows[:200, 2] &= 0x9E
    refused = 0
    for row in rows:
        try:
            expected = fmt.decompress(row[None], 16).view(np.uint16)
        except ValueError as error:
            refused += 1
            with pytest.raises(ValueError, match=re.escape(str(error))):
                backend.decompress(torch.from_numpy(row[None].copy()), 16)
        else:
            found = backend.decompress(torch.from_numpy(row[None].copy()), 16)
            assert (as_words("bf16", found) == expected).all()
    assert 100 < refused < 350


@pytest.mark.parametrize("count", [1, 3])
def test_blocks_are_numbered_through_whatever_thread_has_them(count, monkeypatch):
    monkeypatch.setattr(threads, "_LEAST_SHARE", 1)
    fmt = StepFormat("fp32", 16, 8, "stochastic")
    values = np.random.default_rng(0).standard_normal(200_003).astype(np.float32)
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        found = backends.get("cpu", fmt).compress(torch.from_numpy(values), seed=3)
    finally:
        torch.set_num_threads(before)
    assert (found.numpy() == fmt.compress(values, seed=3)).all()


def gradients(model, tokens, fmt, backend):
    model.zero_grad()
    with compress_activations(model, fmt, backend) as stash:
        loss = model(tokens).logits.float().logsumexp(-1).sum()
    loss.backward()
    return [parameter.grad.clone() for parameter in model.parameters()], stash.report()


def test_gradients_are_the_same_with_each_backend_and_near_the_exact_ones():
    model = train.build(train.Options())
    tokens = torch.randint(0, 256, (2, 64), generator=torch.Generator().manual_seed(0))
    fmt = StepFormat("fp32", 128, 64)
    exact = torch.autograd.grad(model(tokens).logits.float().logsumexp(-1).sum(), list(model.parameters()))
    golden, report = gradients(model, tokens, fmt, "golden")
    cpu, _ = gradients(model, tokens, fmt, "auto")
    assert all(torch.equal(a, b) for a, b in zip(golden, cpu, strict=True))
    error = sum((a - b).square().sum() for a, b in zip(cpu, exact, strict=True))
    size = sum(b.square().sum() for b in exact)
    assert 0 < (error / size).sqrt() < 0.2
    assert report.ratio > 6


def test_each_tensor_and_each_step_rounds_with_bits_of_its_own():
    fmt = StepFormat("fp32", 128, 32, "stochastic")
    values = torch.randn(2048)
    found = []
    for _ in range(2):
        with compress_activations(torch.nn.Identity(), fmt):
            once = values.clone().requires_grad_()
            again = values.clone().requires_grad_()
            total = once.square().sum() + again.square().sum()
        total.backward()
        found += [once.grad, again.grad]
    assert all(not torch.equal(a, b) for i, a in enumerate(found) for b in found[:i])
    assert all(torch.allclose(grad, 2 * values, atol=10) for grad in found)


def test_nothing_becomes_nothing():
    backend = backends.get("cpu", StepFormat())
    assert backend.compress(torch.empty(0)).shape == (0, 64)
    assert backend.decompress(torch.empty((0, 64), dtype=torch.uint8), 0).shape == (0,)


def test_backends_without_the_step_format():
    for name in ("torch", "triton", "verilated"):
        message = f"backend must be one of auto, golden, cpu for the step format, not '{name}'"
        with pytest.raises(ValueError, match=message):
            backends.get(name, StepFormat())


def test_a_short_training_run():
    options = train.Options(scheme="step", steps=2, batch=1, validations=1)
    result = train.run(options)
    assert result["ratio"] > 6
    assert np.isfinite(result["val_loss"])
