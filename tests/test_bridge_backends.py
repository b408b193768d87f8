"""Every backend makes golden's bytes, and golden's values from them."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

from gen import toolchain
from golden import HadamardFormat, PlaneFormat
from torch_bridge import QuantFormat, backends
from torch_bridge.backends import instructions, threads
from torch_bridge.backends.dtypes import TORCH_DTYPES, format_for
from torch_bridge.backends.simulated.verilated import library_path

from .blocks import BLOCKS, DTYPES, ROUNDINGS, adversarial, target_range

FAST = ("cpu", "torch")


def spread_of_targets(dtype, block):
    """The smallest targets (blocks of specials), whole and partial planes, and the uncompressed size."""
    low, high = target_range(dtype, block)
    plane = block // 8
    return sorted({low, low + 1, low + plane, low + 2 * plane, high * 5 // 16, high // 2 + 1, high - 1, high})


def adversarial_tensor(fmt, blocks, seed):
    words = np.asarray(adversarial(fmt, blocks, seed)).astype(fmt.float_type.bits).reshape(-1)
    return torch.from_numpy(words.view(np.uint8)).view(TORCH_DTYPES[fmt.dtype])


def same_bits(a, b):
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


@pytest.mark.parametrize("name", ["golden", *FAST])
@pytest.mark.parametrize("fmt", [PlaneFormat("fp32", 64, 80), HadamardFormat("bf16", 64, 16)], ids=str)
def test_a_single_value_may_have_any_stride(fmt, name):
    values = torch.arange(1, 9).to(TORCH_DTYPES[fmt.dtype])
    backend = backends.get(name, fmt)
    assert torch.equal(backend.compress(values[::8]), backend.compress(values[:1].clone()))


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_fast_backends_make_the_same_bytes_and_values_as_golden(dtype, block, rounding, name):
    for target in spread_of_targets(dtype, block):
        fmt = PlaneFormat(dtype, block, target, rounding)
        golden, ours = backends.get("golden", fmt), backends.get(name, fmt)
        values = adversarial_tensor(fmt, 300, seed=block)[: -block // 3]
        stored = golden.compress(values)
        found = ours.compress(values)
        assert torch.equal(found, stored), (fmt, "blocks", (found != stored).any(1).nonzero()[:3])
        decoded = ours.decompress(stored, len(values))
        assert same_bits(decoded, golden.decompress(stored, len(values))), fmt


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("dtype", DTYPES)
def test_fast_backends_agree_with_golden_over_several_chunks_and_threads(dtype, name, monkeypatch):
    monkeypatch.setattr(threads, "_LEAST_SHARE", 1)
    fmt = PlaneFormat(dtype, 64, target_range(dtype, 64)[1] // 3)
    values = torch.randn(400_003).to(TORCH_DTYPES[dtype])
    stored = backends.get("golden", fmt).compress(values)
    before = torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            ours = backends.get(name, fmt)
            assert torch.equal(ours.compress(values), stored)
            decoded = ours.decompress(stored, len(values))
            assert same_bits(decoded, backends.get("golden", fmt).decompress(stored, len(values)))
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("name", ["golden", *FAST])
@pytest.mark.parametrize(("dtype", "other"), [("fp16", "bf16"), ("bf16", "fp16"), ("fp32", "fp16")])
def test_neither_autocast_nor_a_default_device_nor_strides_change_a_byte(dtype, other, name):
    backend = backends.get(name, PlaneFormat(dtype, 16, 20))
    values = torch.randn(3001).to(TORCH_DTYPES[dtype])[::2]
    stored = backends.get("golden", backend.fmt).compress(values.clone())
    with torch.autocast("cpu", TORCH_DTYPES[other]), torch.device("meta"):
        assert torch.equal(backend.compress(values), stored)
        decoded = backend.decompress(stored, len(values))
    assert same_bits(decoded, backend.decompress(stored, len(values)))


@pytest.mark.parametrize("name", ["golden", *FAST])
@pytest.mark.parametrize("count", [0, 1, 63, 64, 65])
def test_tails_and_empty_tensors_keep_their_length(name, count):
    backend = backends.get(name, PlaneFormat("fp32", 64, 256))
    values = torch.randn(count)
    stored = backend.compress(values)
    assert stored.shape == (-(-count // 64), 256)
    assert torch.equal(backend.decompress(stored, count), values)


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize(
    "fmt", [PlaneFormat("fp32", 64, 80), PlaneFormat("fp16", 16, 8), PlaneFormat("bf16", 32, 11)]
)
def test_fast_backends_reject_the_headers_that_golden_rejects(fmt, name):
    generator = torch.Generator().manual_seed(0)
    headers = torch.randint(256, (4000, fmt.header_bytes), generator=generator, dtype=torch.uint8)
    headers[:2000] &= torch.randint(256, (2000, fmt.header_bytes), generator=generator, dtype=torch.uint8)
    valid = backends.get(name, fmt).compress(adversarial_tensor(fmt, 500, 1))[:, : fmt.header_bytes]
    cleared = torch.zeros((7, fmt.header_bytes), dtype=torch.uint8)
    headers = torch.cat([cleared, headers, valid, valid ^ 1])
    expected = fmt.check_headers(headers.numpy())
    assert 0 < expected.sum() < len(headers)
    codec = backends.get(name, fmt)
    for header, invalid in zip(headers[::7], expected[::7], strict=True):
        row = torch.zeros((1, fmt.target), dtype=torch.uint8)
        row[0, : fmt.header_bytes] = header
        if invalid:
            with pytest.raises(ValueError, match="block 0"):
                codec.decompress(row, fmt.block)
        else:
            codec.decompress(row, fmt.block)


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize(
    "fmt", [PlaneFormat("fp32", 64, 80), PlaneFormat("bf16", 64, 64), PlaneFormat("fp16", 64, 64)]
)
def test_exponents_that_no_encoder_writes_wrap_as_in_golden(fmt, name):
    values = torch.tensor([1.0, 2.0, 16.0, 64.0] * 16, dtype=TORCH_DTYPES[fmt.dtype])
    stored = backends.get(name, fmt).compress(values)
    stored[0, 0] = fmt.float_type.exponent_max - 3  # the largest base of deltas with three planes
    expected = fmt.decompress(stored.numpy(), 64)
    assert (expected == 0).any(), "one wraps"
    found = backends.get(name, fmt).decompress(stored, 64)
    assert found.view(torch.uint8).numpy().tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", ["golden", *FAST])
@pytest.mark.parametrize(
    "fmt", [PlaneFormat("fp32", 64, 80), PlaneFormat("fp16", 16, 7), PlaneFormat("bf16", 32, 11)]
)
def test_cleared_memory_reads_as_zeros(fmt, name):
    stored = torch.zeros((9, fmt.target), dtype=torch.uint8)
    stored[4:, fmt.header_bytes :] = 0xFF
    values = backends.get(name, fmt).decompress(stored, 9 * fmt.block)
    assert not values.view(torch.uint8).any()


@pytest.mark.parametrize("name", ["golden", *FAST])
def test_an_invalid_header_names_the_block(name):
    fmt = PlaneFormat("fp32", 64, 80)
    stored = backends.get(name, fmt).compress(torch.randn(200_000))
    stored[2500, 0] = 0
    with pytest.raises(ValueError, match=r"block 2500.*header 00"):
        backends.get(name, fmt).decompress(stored, 200_000)


@pytest.mark.parametrize("name", ["auto", "golden", *FAST])
@pytest.mark.parametrize("fmt", [PlaneFormat("fp32", 16, 20), QuantFormat("fp32", 8)])
def test_every_backend_takes_the_number_of_the_first_block(fmt, name):
    backend, values = backends.get(name, fmt), torch.randn(600)
    stored = backend.compress(values, np.uint32(7))
    again = backend.decompress(stored, 600, first=7)
    for last in ((1 << 32) - 1, np.int64((1 << 32) - 1)):
        assert torch.equal(backend.compress(values, first=last), stored)  # no byte of these depends on it
        assert same_bits(backend.decompress(stored, 600, last), again)
    for wrong in (-1, 1 << 32, 1.5, "0", None, True):
        message = re.escape(f"first must be a whole number from 0 to 2**32 - 1, not {wrong!r}")
        with pytest.raises(ValueError, match=message):
            backend.compress(values, wrong)
        with pytest.raises(ValueError, match=message):
            backend.decompress(stored, 600, first=wrong)


@pytest.mark.parametrize("name", FAST)
def test_blocks_are_numbered_through_whatever_thread_has_them(name, monkeypatch):
    monkeypatch.setattr(threads, "_LEAST_SHARE", 1)
    backend, first = backends.get(name, PlaneFormat("fp32", 16, 64)), (1 << 32) - 5000
    values = (torch.arange(200_003) // 16).float()  # those of a block say which it is
    seen = []

    def compress(real):
        def spy(words, stored, *rest):
            seen.append((int(np.asarray(words).reshape(-1)[:1].view(np.float32)[0]), rest[-1]))
            return real(words, stored, *rest)

        return spy

    def decompress(real):
        def spy(stored, words, *rest):
            result = real(stored, words, *rest)
            seen.append((int(np.asarray(words).reshape(-1)[:1].view(np.float32)[0]), rest[-1]))
            return result

        return spy

    worker, names = backend, ("_encode", "_decode")
    if name == "torch":
        worker, names = backend._codec(torch.device("cpu")), ("compress", "decompress")
    for attribute, spy in zip(names, (compress, decompress), strict=True):
        monkeypatch.setattr(worker, attribute, spy(getattr(worker, attribute)))
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        decoded = backend.decompress(backend.compress(values, first), len(values), first)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(decoded, values)
    assert len(seen) >= 4
    assert [number for _, number in seen] == [(first + block) % (1 << 32) for block, _ in seen]
    assert max(block for block, _ in seen) > 5000


SOME = [PlaneFormat("fp32", 64, 80), HadamardFormat("fp32", 128, 32), QuantFormat("fp32", 2)]


@pytest.mark.parametrize("name", ["auto", "golden", "regions", *FAST])
@pytest.mark.parametrize("fmt", SOME)
def test_values_of_another_type_or_shape_are_an_error(fmt, name):
    backend, right = backends.get(name, fmt), torch.ones(300)
    for wrong in (right.double(), right.bfloat16(), right.view(torch.uint8), right.view(3, 100), right[0]):
        kind = f"not {wrong.dtype} of {tuple(wrong.shape)}"
        with pytest.raises(
            ValueError, match=re.escape(f"values must be torch.float32 in one dimension, {kind}")
        ):
            backend.compress(wrong)


@pytest.mark.parametrize("name", ["auto", "golden", *FAST])
@pytest.mark.parametrize("fmt", SOME)
def test_what_waits_for_its_negation_is_negative(fmt, name):
    waiting = torch.complex(torch.zeros(300), torch.arange(300.0)).conj().imag
    backend = backends.get(name, fmt)
    for values in (waiting, waiting[3:4]):  # one value lies in a row, whatever its stride
        assert values.is_neg()
        assert torch.equal(backend.compress(values), backend.compress(values.resolve_neg()))


@pytest.mark.parametrize("fmt", SOME[:2])
def test_blocks_of_a_region_are_decompressed_where_they_are(fmt):
    backend = backends.get("regions", fmt)
    stored = backend.compress(torch.randn(6 * fmt.block))
    for moved in (stored[::2], stored[:1].expand(3, -1)):
        with pytest.raises(ValueError, match=re.escape(f"in a row, not of strides {moved.stride()}")):
            backend.decompress(moved, 3 * fmt.block)


@pytest.mark.parametrize("name", ["auto", "golden", *FAST])
@pytest.mark.parametrize("fmt", SOME)
def test_stored_of_the_wrong_size_is_an_error(fmt, name):
    backend, count = backends.get(name, fmt), 2 * fmt.block + 1
    right = (3, fmt.target)
    for wrong in ((2, fmt.target), (4, fmt.target), (3, fmt.target - 1), (3 * fmt.target,)):
        message = f"stored must be uint8 of shape {right}, not torch.uint8 of {wrong}"
        with pytest.raises(ValueError, match=re.escape(message)):
            backend.decompress(torch.zeros(wrong, dtype=torch.uint8), count)
    with pytest.raises(ValueError, match=re.escape(f"not torch.int8 of {right}")):
        backend.decompress(torch.zeros(right, dtype=torch.int8), count)
    with pytest.raises(ValueError, match="stored must be a tensor, not a ndarray"):
        backend.decompress(np.zeros(right, np.uint8), count)


def test_the_cpu_backend_keeps_its_machine_code_for_the_next_process(tmp_path):
    program = (
        "import torch; from golden import PlaneFormat; from torch_bridge import backends\n"
        "backend = backends.get('cpu', PlaneFormat('bf16', 16, 16))\n"
        "values = torch.zeros(16).bfloat16()\n"
        "assert backend.decompress(backend.compress(values), 16).equal(values)\n"
        "print(sum(backend._encode.stats.cache_hits.values()))"
    )
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    for hits in (0, 1):
        run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
        assert (run.returncode, run.stdout) == (0, f"{hits}\n"), run.stderr


def test_machine_code_that_no_folder_can_keep_is_compiled_all_the_same():
    scope = {}
    exec("def double(number):\n    return 2 * number", scope)
    assert instructions.compiled(scope["double"])(21) == 42


def test_an_unknown_backend_is_named():
    names = "auto, golden, cpu, torch, verilated, regions, memory, triton"
    with pytest.raises(ValueError, match=f"backend must be one of {names}, not 'gpu'"):
        backends.get("gpu", PlaneFormat())


def test_a_lossless_format_is_an_error():
    with pytest.raises(ValueError, match="must have a target, not None"):
        backends.get("torch", PlaneFormat("fp32", 64, None))


def test_other_types_get_as_many_bits_and_wider_ones_the_same_share():
    fmt = PlaneFormat("fp32", 64, 80, "truncate")
    assert format_for(fmt, torch.bfloat16) == PlaneFormat("bf16", 64, 80, "truncate")
    assert format_for(PlaneFormat("bf16", 64, 64), torch.float32) == PlaneFormat("fp32", 64, 128)
    assert format_for(PlaneFormat("fp32", 64, 21), torch.float16).target == 21
    assert format_for(PlaneFormat("fp32", 64, 160), torch.float16).target == 128  # all that there is


def test_a_missing_library_names_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("BITSTASH_LIBRARIES", str(tmp_path))
    command = (
        "python -m gen library --scheme planes --dtype bf16 --block 128 --target 160 --rounding truncate"
    )
    with pytest.raises(FileNotFoundError, match=command):
        backends.get("verilated", PlaneFormat("bf16", 128, 160, "truncate"))


def test_a_library_of_another_version_names_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("BITSTASH_LIBRARIES", str(tmp_path))
    fmt = PlaneFormat("bf16", 128, 160, "truncate")
    path = library_path(fmt)
    path.parent.mkdir()
    source = tmp_path / "old.cpp"
    source.write_text(
        'extern "C" { int bitstash_compress() { return 0; } long bitstash_decompress() { return 0; } }'
    )
    subprocess.run([toolchain.cxx(), "-shared", "-fPIC", "-o", path, source], check=True)
    with pytest.raises(
        RuntimeError, match=r"another version of bitstash; build it with: python -m gen library"
    ):
        backends.get("verilated", fmt)


def test_verilated_makes_the_same_bytes_and_values_as_golden(verilated_library, monkeypatch):
    monkeypatch.setenv("BITSTASH_LIBRARIES", str(verilated_library))
    fmt = PlaneFormat("fp32", 64, 80)
    golden, ours = backends.get("golden", fmt), backends.get("verilated", fmt)
    values = adversarial_tensor(fmt, 500, seed=3)[:-5]
    stored = golden.compress(values)
    assert torch.equal(ours.compress(values), stored)
    assert same_bits(ours.decompress(stored, len(values)), golden.decompress(stored, len(values)))
    stored[7, 0] = 0
    with pytest.raises(ValueError, match="block 7"):
        ours.decompress(stored, len(values))


@pytest.mark.timeout(900)
def test_verilated_makes_goldens_bytes_of_blocks_with_numbers(verilated_library, monkeypatch):
    monkeypatch.setenv("BITSTASH_LIBRARIES", str(verilated_library))
    fmt = HadamardFormat()
    golden, ours = backends.get("golden", fmt), backends.get("verilated", fmt)
    values = adversarial_tensor(fmt, 60, seed=3)[:-5]
    for first in (0, 1, 77, (1 << 32) - 2):
        stored = golden.compress(values, first)
        assert torch.equal(ours.compress(values, first), stored)
        back = ours.decompress(stored, len(values), first)
        assert same_bits(back, golden.decompress(stored, len(values), first))
    assert not torch.equal(golden.compress(values, 0), golden.compress(values, 1))
    stored[7, 0], stored[7, 1] = 2, stored[7, 1] & 0xF0
    with pytest.raises(ValueError, match="block 7"):
        ours.decompress(stored, len(values), first)


def test_verilated_keeps_small_blocks_of_successive_tensors_apart(verilated_library, monkeypatch):
    """Several blocks share a bus word, whose empty bytes must not reach the next tensor."""
    monkeypatch.setenv("BITSTASH_LIBRARIES", str(verilated_library))
    fmt = PlaneFormat("fp16", 16, 20)
    golden, ours = backends.get("golden", fmt), backends.get("verilated", fmt)
    for count in (1, 16, 33, 48, 47, 0, 500, 7):
        values = torch.linspace(-3, 5, count).half()
        stored = golden.compress(values)
        assert torch.equal(ours.compress(values), stored)
        assert same_bits(ours.decompress(stored, count), golden.decompress(stored, count))
    stored = golden.compress(torch.ones(7 * 16).half())
    for block in (6, 3):
        broken = stored.clone()
        broken[block, 0] = 0
        with pytest.raises(ValueError, match=f"block {block}: no encoder"):
            ours.decompress(broken, 7 * 16)
        assert same_bits(ours.decompress(stored, 7 * 16), golden.decompress(stored, 7 * 16))


def test_the_cpu_backend_leaves_a_storage_that_can_be_resized():
    values = torch.arange(64.0) * 1
    backend = backends.get("cpu", PlaneFormat("fp32", 64, 256))
    stored = backend.compress(values)
    values.untyped_storage().resize_(0)
    assert torch.equal(backend.decompress(stored, 64), torch.arange(64.0))
