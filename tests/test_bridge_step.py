"""The step format on the bridge: backends make golden's bytes, and gradients are those of what was stored."""

import re

import ml_dtypes
import numpy as np
import pytest
import torch

from golden import StepFormat
from torch_bridge import backends, compress_activations, train
from torch_bridge.backends import threads
from torch_bridge.dtypes import TORCH_DTYPES

from .blocks import ARRAYS, DTYPES, UINTS
from .test_golden_step import as_values, blocks_of, formats

FAST = ("cpu", "torch")  # Triton's kernels have tests of their own


def as_tensor(dtype, values):
    return torch.from_numpy(values.view(np.uint8).copy()).view(TORCH_DTYPES[dtype])


def as_words(dtype, tensor):
    return tensor.view(torch.uint8).numpy().view(UINTS[dtype])


def extremes(dtype, block, seed):
    """Bit patterns of blocks in which a rule is all there is: uint[blocks, N]."""
    rng = np.random.default_rng(seed)
    info = np.finfo(np.float32) if dtype == "fp32" else ml_dtypes.finfo(ARRAYS[dtype])
    sign, infinity = 1 << 8 * UINTS[dtype]().itemsize - 1, int(as_pattern(dtype, np.inf))
    rows = np.zeros((13, block), np.int64)
    rows[:3] = rng.integers(0, 2 * sign, (3, block))
    rows[3:5] = rng.integers(0, 1 << info.nmant, (2, block))  # subnormals
    rows[4] >>= rng.integers(info.nmant)
    rows[5, rng.integers(block)] = infinity - 1 | sign  # the largest, alone
    rows[6] = as_pattern(dtype, rng.standard_normal(block))
    rows[6, rng.integers(block)] = as_pattern(dtype, 1000)
    rows[7] = infinity + 1  # NaNs
    rows[8] = infinity | rng.integers(0, 2, block) * sign
    rows[9] = np.where(rng.random(block) < 0.5, infinity + 1, rows[8])
    rows[10] = np.where(rng.random(block) < 0.1, rows[9], rows[6])
    least = rng.integers(0, 4 << info.nmant, block) | rng.integers(0, 2, block) * sign
    rows[11] = np.where(rng.random(block) < 0.1, rows[8], least)  # infinities beside the least numbers
    return rows.astype(UINTS[dtype])  # the last has only zeros


def as_pattern(dtype, numbers):
    return np.asarray(numbers).astype(ARRAYS[dtype]).view(UINTS[dtype])


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_fast_backends_make_goldens_bytes_and_values(dtype, rounding, name):
    for _, block, target in (one for one in formats() if one[0] == dtype):
        fmt = StepFormat(dtype, block, target, rounding)
        words = np.concatenate([extremes(dtype, block, target), blocks_of(dtype, block, 30, seed=target)])
        values = as_values(dtype, words).reshape(-1)[:-3]
        backend = backends.get(name, fmt)
        expected = fmt.compress(values, seed=1 << 31)
        found = backend.compress(as_tensor(dtype, values), seed=1 << 31)
        wrong = (found.numpy() != expected).any(axis=1).nonzero()[0]
        assert not len(wrong), (fmt, "blocks", wrong[:3])
        decoded = as_words(dtype, backend.decompress(found, len(values)))
        assert (decoded == fmt.decompress(expected, len(values)).view(UINTS[dtype])).all(), fmt


def any_rows(fmt, count, seed):
    """Random bytes, uint8[count, target], many of which a decoder takes."""
    rows = np.random.default_rng(seed).integers(0, 256, (count, fmt.target), dtype=np.uint8)
    rows[::3, 1] &= 0x87  # few fine bits
    rows[::3, 2] &= 0xF1  # a narrow core
    rows[1::3, :3] = 0, 0x80, 0  # no core
    rows[1::6, 0] = 1
    return rows


def decoded_by_golden(fmt, row):
    """The bit patterns of a block, or why it has none."""
    try:
        return fmt.decompress(row[None], fmt.block).view(UINTS[fmt.dtype]), None
    except ValueError as error:
        return None, str(error)


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize(
    "fmt",
    [
        StepFormat("bf16", 16, 20),
        StepFormat("fp16", 16, 6),
        StepFormat("fp32", 32, 60),
        StepFormat("fp16", 128, 81),
    ],
)
def test_any_bytes_decode_as_golden_does_or_are_refused_as_it_does(fmt, name):
    backend = backends.get(name, fmt)
    refused = 0
    for row in any_rows(fmt, 240, seed=fmt.target):
        expected, complaint = decoded_by_golden(fmt, row)
        if complaint is None:
            found = backend.decompress(torch.from_numpy(row[None].copy()), fmt.block)
            assert (as_words(fmt.dtype, found) == expected).all()
        else:
            refused += 1
            with pytest.raises(ValueError, match=re.escape(complaint)):
                backend.decompress(torch.from_numpy(row[None].copy()), fmt.block)
    assert 20 < refused < 220


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("count", [1, 3])
def test_blocks_are_numbered_through_whatever_thread_has_them(count, name, monkeypatch):
    monkeypatch.setattr(threads, "_LEAST_SHARE", 1)
    fmt = StepFormat("fp32", 16, 8, "stochastic")
    values = np.random.default_rng(0).standard_normal(200_003).astype(np.float32)
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        found = backends.get(name, fmt).compress(torch.from_numpy(values), seed=3)
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
    assert all(np.corrcoef(grad, values)[0, 1] > 0.7 for grad in found)


@pytest.mark.parametrize("name", ["golden", *FAST])
def test_tails_and_empty_tensors_keep_their_length(name):
    backend = backends.get(name, StepFormat("fp32", 16, 64))
    for count in (0, 1, 15, 16, 17):
        stored = backend.compress(torch.arange(count, dtype=torch.float32))
        assert stored.shape == (-(-count // 16), 64)
        assert torch.equal(backend.decompress(stored, count), torch.arange(count, dtype=torch.float32))


@pytest.mark.parametrize("name", ["golden", *FAST])
def test_an_invalid_block_is_named(name):
    backend = backends.get(name, StepFormat("fp32", 64, 32))
    stored = backend.compress(torch.randn(200_000))
    stored[2500, :3] = 0
    message = "block 2500: no encoder produces the header 00 00 00"
    with pytest.raises(ValueError, match=message):
        backend.decompress(stored, 200_000)


@pytest.mark.parametrize("name", ["golden", *FAST])
def test_stored_of_the_wrong_size_is_an_error(name):
    backend = backends.get(name, StepFormat("fp32", 64, 80))
    with pytest.raises(ValueError, match=r"\(3, 80\)"):
        backend.decompress(torch.zeros((2, 80), dtype=torch.uint8), 129)


def test_verilated_makes_the_same_bytes_and_values_as_golden(verilated_library, monkeypatch):
    monkeypatch.setenv("BITSTASH_LIBRARIES", str(verilated_library))
    fmt = StepFormat("fp32", 16, 11, "stochastic")
    golden, ours = backends.get("golden", fmt), backends.get("verilated", fmt)
    words = np.concatenate([extremes("fp32", 16, 1), blocks_of("fp32", 16, 100, seed=2)])
    values = as_tensor("fp32", as_values("fp32", words).reshape(-1)[:-3])
    for seed in (0, 1, 0xFFFFFFFF):
        stored = golden.compress(values, seed)
        assert torch.equal(ours.compress(values, seed), stored)
        back = ours.decompress(stored, len(values))
        assert (as_words("fp32", back) == as_words("fp32", golden.decompress(stored, len(values)))).all()
    stored[7] = 0
    with pytest.raises(ValueError, match="block 7: no encoder"):
        ours.decompress(stored, len(values))


def test_a_missing_library_names_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("BITSTASH_LIBRARIES", str(tmp_path))
    command = "python -m gen library --scheme step --dtype bf16 --block 128 --target 64 --rounding stochastic"
    with pytest.raises(FileNotFoundError, match=command):
        backends.get("verilated", StepFormat("bf16", 128, 64, "stochastic"))


def test_a_short_training_run():
    options = train.Options(scheme="step", steps=2, batch=1, validations=1)
    result = train.run(options)
    assert result["ratio"] > 6
    assert np.isfinite(result["val_loss"])
