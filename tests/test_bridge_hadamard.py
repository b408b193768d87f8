"""The Hadamard format on the bridge: fast backends make golden's bytes, and golden's values from them."""

import re
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from golden import HadamardFormat
from torch_bridge import backends
from torch_bridge.backends import threads
from torch_bridge.backends.dtypes import TORCH_DTYPES

from .blocks import DTYPES, UINTS, adversarial, as_values, as_words
from .hadamard_blocks import BLOCKS, FIRSTS, blocks_of, target_range

FAST = ("cpu", "torch")  # Triton's kernels have tests of their own
LAST = (1 << 32) - 1


def as_tensor(fmt, words):
    octets = torch.from_numpy(np.ascontiguousarray(words).reshape(-1).view(np.uint8).copy())
    return octets.view(TORCH_DTYPES[fmt.dtype])


def same_bits(a, b):
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def hard_values(fmt, first, count, seed):
    """Blocks of all recipes, as many with specials, and the tail of a third kind of block."""
    words = [
        blocks_of(fmt, first, count, seed),
        adversarial(fmt, count, seed),
        blocks_of(fmt, first, 1, seed),
    ]
    return as_tensor(fmt, np.concatenate(words))[: -fmt.block // 3]


def any_rows(fmt, count, seed):
    """Random bytes, uint8[count, target], behind headers at the edges of the rules and random ones."""
    rows = np.random.default_rng(seed).integers(0, 256, (count, fmt.target), dtype=np.uint8)
    headers = np.array([0, 1, 15, 16, 17, 31, 4063, 4064, 4079, 4080, 4094, 4095, 1, 0, 2, 3, 8, 14])
    edges = rows[: len(headers)]
    edges[:, 0], edges[:, 1] = headers & 0xFF, edges[:, 1] & 0xF0 | headers >> 8
    return rows


def decoded_by_golden(fmt, rows, first=0):
    """Which rows are valid, and the bit patterns of these, of which each keeps its number."""
    headers = rows[:, 0] | rows[:, 1].astype(np.int64) << 8 & 0xFFF
    valid = ~fmt.check_headers(headers)
    cleared = np.where(valid[:, None], rows, 0).astype(np.uint8)
    return valid, as_words(fmt.decompress(cleared, (len(rows), fmt.block), first))[valid]


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_fast_backends_make_goldens_bytes_and_values(dtype, block, name):
    low, high = target_range(block)
    for target in range(low, high + 1, 1 if block == 64 else 5):
        fmt = HadamardFormat(dtype, block, target)
        first = FIRSTS[target % len(FIRSTS)]
        golden, ours = backends.get("golden", fmt), backends.get(name, fmt)
        values = hard_values(fmt, first, 12, seed=target)
        stored = golden.compress(values, first)
        found = ours.compress(values, first)
        assert torch.equal(found, stored), (fmt, first, "blocks", (found != stored).any(1).nonzero()[:3])
        decoded = ours.decompress(stored, len(values), first)
        assert same_bits(decoded, golden.decompress(stored, len(values), first)), (fmt, first)


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_bytes_decode_as_golden_does_or_are_refused_as_it_does(dtype, block, name):
    low, high = target_range(block)
    for target in (low, low + 1, low + 2, 2 * low, 3 * low, high):
        fmt = HadamardFormat(dtype, block, target)
        backend, rows = backends.get(name, fmt), any_rows(fmt, 60, seed=target)
        valid, expected = decoded_by_golden(fmt, rows)
        assert 5 <= (~valid).sum() < 20
        for number in np.flatnonzero(~valid):
            message = re.escape(fmt.complaint(0, rows[number]))
            with pytest.raises(ValueError, match=message):
                backend.decompress(torch.from_numpy(rows[number : number + 1]), block)
        rows[~valid] = 0
        found = backend.decompress(torch.from_numpy(rows), len(rows) * block)
        assert same_bits(found.view(len(rows), block)[valid], as_tensor(fmt, expected).view(-1, block)), fmt


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("first", [0, LAST - 3000])
def test_blocks_are_numbered_through_whatever_thread_has_them(first, name, monkeypatch):
    monkeypatch.setattr(threads, "_LEAST_SHARE", 1)
    fmt = HadamardFormat("bf16", 64, 16)
    golden, values = backends.get("golden", fmt), torch.randn(400_003).bfloat16()
    stored = golden.compress(values, first)
    decoded = golden.decompress(stored, len(values), first)
    before = torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            backend = backends.get(name, fmt)
            assert torch.equal(backend.compress(values, first), stored)
            assert same_bits(backend.decompress(stored, len(values), first), decoded)
    finally:
        torch.set_num_threads(before)


@contextmanager
def unusual_settings(autocast):
    """Other types and devices by default, imprecise products of matrices, subnormals as zeros."""
    torch.set_default_dtype(torch.float64)
    torch.set_float32_matmul_precision("medium")
    torch.use_deterministic_algorithms(True)
    torch.set_flush_denormal(True)
    try:
        with torch.autocast("cpu", autocast), torch.device("meta"):
            yield
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision("highest")
        torch.use_deterministic_algorithms(False)
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize(("dtype", "other"), [("fp16", "bf16"), ("bf16", "fp16"), ("fp32", "bf16")])
def test_neither_settings_of_torch_nor_strides_change_a_byte(dtype, other, name):
    fmt = HadamardFormat(dtype, 128, 50)
    words = np.concatenate([adversarial(fmt, 40, seed=1), blocks_of(fmt, 7, 40, seed=1)])
    stored = torch.from_numpy(fmt.compress(as_values(fmt, words), 7))
    values = as_tensor(fmt, as_words(fmt.decompress(stored.numpy(), words.size, 7)))
    strided = as_tensor(fmt, words.reshape(-1).repeat(2))[::2]
    backend = backends.get(name, fmt)
    with unusual_settings(TORCH_DTYPES[other]):
        found = backend.compress(strided, 7)
        decoded = backend.decompress(stored, words.size, 7)
    assert torch.equal(found, stored)
    assert same_bits(decoded, values)


@pytest.mark.parametrize("name", FAST)
def test_a_backend_first_used_in_inference_serves_training(name):
    fmt = HadamardFormat("fp32", 64, 20)
    backend, values = backends.get(name, fmt), torch.randn(1000)
    with torch.inference_mode():
        stored = backend.compress(values.clone(), 3)
        decoded = backend.decompress(stored, 1000, 3)
    again = values.clone().requires_grad_()
    assert torch.equal(backend.compress(again.detach(), 3), stored)
    factor = backend.decompress(stored.clone(), 1000, 3)
    assert torch.equal(factor, decoded)
    (again * factor).sum().backward()
    assert torch.equal(again.grad, decoded)


@pytest.mark.parametrize("name", ["golden", *FAST])
@pytest.mark.parametrize("count", [0, 1, 63, 64, 65])
def test_tails_and_empty_tensors_keep_their_length(name, count):
    fmt = HadamardFormat("fp32", 64, 32)
    backend, values = backends.get(name, fmt), torch.randn(count)
    stored = backend.compress(values, LAST)
    assert stored.shape == (-(-count // 64), 32)
    decoded = backend.decompress(stored, count, LAST)
    assert decoded.shape == (count,)
    assert as_words(fmt.decompress(stored.numpy(), count, LAST)).tolist() == (
        decoded.numpy().view(UINTS["fp32"]).tolist()
    )


@pytest.mark.parametrize("name", ["golden", *FAST])
def test_an_invalid_header_names_the_block(name):
    backend = backends.get(name, HadamardFormat("fp32", 64, 16))
    stored = backend.compress(torch.randn(200_000))
    stored[2500, :2] = torch.tensor([7, 0x50])
    with pytest.raises(ValueError, match="block 2500: no encoder produces the header 07 50"):
        backend.decompress(stored, 200_000)
