"""The Triton backend makes golden's bytes and values: on the GPU if there is one, else interpreted."""

import importlib
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from golden import HadamardFormat, PlaneFormat
from torch_bridge import backends
from torch_bridge.backends.dtypes import TORCH_DTYPES

from . import hadamard_blocks
from .blocks import BLOCKS, DTYPES, ROUNDINGS, adversarial, target_range
from .test_bridge_hadamard import any_rows, decoded_by_golden, hard_values

# The interpreter warns of what is meant to: a value too large for a float becomes infinite, and then finite.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in multiply")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NATIVE = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}


def triton_backend():
    """The backend; where there is no GPU that of modules of our own, whose kernels are interpreted.

    Triton decides while a module is loaded, and other tests may want it compiled.
    """
    name = "torch_bridge.backends.triton_backend"
    loaded = importlib.import_module(name)
    if DEVICE == "cuda":
        return loaded.TritonBackend
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        for module in [module for module in vars(backends) if module.startswith("triton_")]:
            patch.delitem(sys.modules, f"torch_bridge.backends.{module}")
            patch.delattr(backends, module)
        return importlib.import_module(name).TritonBackend


pytest.importorskip("triton", reason="there is no Triton for this system")
TritonBackend = triton_backend()


def spread_of_targets(dtype, block):
    """The smallest target (blocks of specials), whole and partial planes, and the uncompressed size."""
    low, high = target_range(dtype, block)
    plane = block // 8
    return sorted({low, low + 1, low + plane, high * 5 // 16, high // 2 + 1, high})


def as_tensor(fmt, words):
    words = np.asarray(words).astype(fmt.float_type.bits).reshape(-1)
    return torch.from_numpy(words.view(np.uint8)).view(TORCH_DTYPES[fmt.dtype])


def compress(backend, values, first=0):
    stored = backend.compress(values.to(DEVICE), first)
    assert stored.device.type == DEVICE
    return stored.cpu()


def decompress(backend, stored, count, first=0):
    values = backend.decompress(stored.to(DEVICE), count, first)
    assert values.device.type == DEVICE
    backend.check()
    return values.cpu()


def assert_same_bits(fmt, found, expected):
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    wrong = (found.view(torch.uint8) != expected.view(torch.uint8)).nonzero()[:1]
    size = found.element_size() * fmt.block
    assert not len(wrong), f"{fmt}: block {int(wrong[0]) // size} differs"


def refuse(backend, stored, count):
    """The message with which the backend refuses what is stored."""
    with pytest.raises(ValueError, match="no encoder") as error:
        decompress(backend, stored, count)
    return str(error.value)


def message(block, header):
    return f"block {block}: no encoder produces the header {bytes(header.tolist()).hex(' ')}"


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bytes_and_values_are_goldens(dtype, block, rounding):
    for target in spread_of_targets(dtype, block):
        fmt = PlaneFormat(dtype, block, target, rounding)
        golden, ours = backends.get("golden", fmt), TritonBackend(fmt)
        values = as_tensor(fmt, adversarial(fmt, 60, seed=target))[: -block // 3]
        stored = golden.compress(values)
        found = compress(ours, values)
        assert torch.equal(found, stored), (fmt, "blocks", (found != stored).any(1).nonzero()[:3])
        assert_same_bits(fmt, decompress(ours, stored, len(values)), golden.decompress(stored, len(values)))


def test_the_number_of_the_first_block_changes_nothing_about_planes():
    fmt = PlaneFormat("fp32", 64, 80)
    backend, values = TritonBackend(fmt), torch.randn(1000, device=DEVICE)
    stored = backend.compress(values)
    for first in (1, 1 << 31, (1 << 32) - 1):
        assert torch.equal(backend.compress(values, first), stored)
        decoded = backend.decompress(stored, 1000, first)
        assert_same_bits(fmt, decoded.cpu(), backend.decompress(stored, 1000).cpu())
    with pytest.raises(ValueError, match=r"first must be a whole number from 0 to 2\*\*32 - 1, not -1"):
        backend.compress(values, -1)


@pytest.mark.parametrize("block", hadamard_blocks.BLOCKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bytes_and_values_of_the_hadamard_format_are_goldens(dtype, block):
    low, high = hadamard_blocks.target_range(block)
    for target in (low, low + 2, 2 * low + 1, 3 * low, high):
        fmt = HadamardFormat(dtype, block, target)
        first = hadamard_blocks.FIRSTS[target % len(hadamard_blocks.FIRSTS)]
        golden, ours = backends.get("golden", fmt), TritonBackend(fmt)
        values = hard_values(fmt, first, 9 if block == 256 else 15, seed=target)
        stored = golden.compress(values, first)
        found = compress(ours, values, first)
        assert torch.equal(found, stored), (fmt, first, "blocks", (found != stored).any(1).nonzero()[:3])
        decoded = decompress(ours, stored, len(values), first)
        assert_same_bits(fmt, decoded, golden.decompress(stored, len(values), first))


@pytest.mark.parametrize("fmt", [HadamardFormat("fp32", 64, 16), HadamardFormat("bf16", 256, 100)])
def test_blocks_are_numbered_through_whatever_program_has_them(fmt):
    values = torch.randn(100 * fmt.block - 3).to(TORCH_DTYPES[fmt.dtype])
    golden, ours, first = backends.get("golden", fmt), TritonBackend(fmt), (1 << 32) - 70
    stored = golden.compress(values, first)
    assert torch.equal(compress(ours, values, first), stored)
    decoded = decompress(ours, stored, len(values), first)
    assert_same_bits(fmt, decoded, golden.decompress(stored, len(values), first))


@pytest.mark.parametrize("block", hadamard_blocks.BLOCKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_bytes_decode_as_golden_does_or_are_refused_as_it_does(dtype, block):
    low, high = hadamard_blocks.target_range(block)
    for target in (low, 2 * low + 1, high):
        fmt = HadamardFormat(dtype, block, target)
        backend, rows = TritonBackend(fmt), any_rows(fmt, 30, seed=target)
        valid, expected = decoded_by_golden(fmt, rows, 5)
        number = int(np.flatnonzero(~valid)[0])
        assert refuse(backend, torch.from_numpy(rows), len(rows) * block) == fmt.complaint(
            number, rows[number]
        )
        rows[~valid] = 0
        found = decompress(backend, torch.from_numpy(rows), len(rows) * block, 5)
        assert_same_bits(fmt, found.view(len(rows), block)[valid].view(-1), as_tensor(fmt, expected))


@pytest.mark.parametrize("fmt", [PlaneFormat("fp32", 32, 60), PlaneFormat("fp16", 128, 96)])
def test_programs_side_by_side_make_what_one_makes(fmt):
    values = as_tensor(fmt, adversarial(fmt, 300, seed=0))[:-1]
    golden, ours = backends.get("golden", fmt), TritonBackend(fmt)
    stored = golden.compress(values)
    assert torch.equal(compress(ours, values), stored)
    assert_same_bits(fmt, decompress(ours, stored, len(values)), golden.decompress(stored, len(values)))


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_payload_behind_a_valid_header_decodes_as_golden_does(dtype, block):
    generator = torch.Generator().manual_seed(block)
    low, high = target_range(dtype, block)
    for target in (low, high // 2):
        fmt = PlaneFormat(dtype, block, target)
        golden, ours = backends.get("golden", fmt), TritonBackend(fmt)
        stored = golden.compress(as_tensor(fmt, adversarial(fmt, 60, seed=target)))
        payload = stored[:, fmt.header_bytes :]
        payload.copy_(torch.randint(256, payload.shape, generator=generator, dtype=torch.uint8))
        count = len(stored) * block
        assert_same_bits(fmt, decompress(ours, stored, count), golden.decompress(stored, count))


@pytest.mark.parametrize("block", [16, 128])
@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 127, 128, 129])
def test_tails_and_empty_tensors_keep_their_length(count, block):
    fmt = PlaneFormat("fp32", block, 4 * block)
    backend, values = TritonBackend(fmt), torch.randn(count)
    stored = compress(backend, values)
    assert stored.shape == (-(-count // block), 4 * block)
    assert torch.equal(stored, backends.get("golden", fmt).compress(values))
    assert torch.equal(decompress(backend, stored, count), values)


@pytest.mark.parametrize("fmt", [PlaneFormat("bf16", 64, 41), HadamardFormat("bf16", 64, 23)])
def test_what_lies_beside_a_tensor_is_neither_used_nor_changed(fmt, monkeypatch):
    ours = TritonBackend(fmt)
    values = as_tensor(fmt, adversarial(fmt, 5, seed=2))[:-30].to(DEVICE)
    stored = ours.compress(values)
    decoded = ours.decompress(stored, len(values))
    among_others = torch.cat([values, values, -values])[len(values) : 2 * len(values)]
    rows_among_others = torch.cat([~stored, stored, ~stored])[5:10]

    buffers, new_empty = [], torch.Tensor.new_empty

    def amid_a_buffer(tensor, shape, dtype=None, **options):
        """Instead of ``new_empty``: a tensor with 1 KiB of marks on either side."""
        if dtype is None:  # Triton's own use of it
            return new_empty(tensor, shape, **options)
        size = torch.Size([shape]) if isinstance(shape, int) else torch.Size(shape)
        end = 1024 + size.numel() * dtype.itemsize
        buffers.append((torch.full((end + 1024,), 0xA5, dtype=torch.uint8, device=DEVICE), end))
        return buffers[-1][0][1024:end].view(dtype).view(size)

    monkeypatch.setattr(torch.Tensor, "new_empty", amid_a_buffer)
    found = ours.compress(among_others), ours.decompress(rows_among_others, len(values))
    monkeypatch.undo()
    assert torch.equal(found[0], stored)
    assert_same_bits(fmt, found[1].cpu(), decoded.cpu())
    assert len(buffers) == 2
    for buffer, end in buffers:
        assert (buffer[:1024] == 0xA5).all()
        assert (buffer[end:] == 0xA5).all()


@pytest.mark.parametrize(
    "fmt", [PlaneFormat("fp32", 64, 80), PlaneFormat("fp16", 16, 8), PlaneFormat("bf16", 32, 11)]
)
def test_the_headers_that_golden_rejects_are_rejected(fmt):
    generator = torch.Generator().manual_seed(0)
    valid = backends.get("golden", fmt).compress(as_tensor(fmt, adversarial(fmt, 60, seed=1)))
    # Each header with one bit of it turned over, and headers of random bytes.
    places = torch.arange(len(valid)) % (8 * fmt.header_bytes)
    turned = valid.clone()
    turned[torch.arange(len(valid)), places // 8] ^= (1 << places % 8).to(torch.uint8)
    noise = torch.randint(256, (10, fmt.target), generator=generator, dtype=torch.uint8)
    cleared = noise[:3].clone()
    cleared[:, : fmt.header_bytes] = 0
    stored = torch.cat([valid, turned, noise, cleared])
    headers = stored[:, : fmt.header_bytes]
    invalid = torch.from_numpy(fmt.check_headers(headers.numpy()))
    assert not invalid[: len(valid)].any()
    assert 0 < invalid[len(valid) : 2 * len(valid)].sum() < len(valid)

    backend = TritonBackend(fmt)
    assert not invalid[-len(cleared) :].any()
    accepted = stored[~invalid]
    values = decompress(backend, accepted, len(accepted) * fmt.block)
    assert not values[-len(cleared) * fmt.block :].view(torch.uint8).any()
    for row in stored[invalid]:
        assert refuse(backend, row[None], fmt.block) == message(0, row[: fmt.header_bytes])


def test_the_first_invalid_block_is_named():
    fmt = PlaneFormat("fp32", 64, 80)
    backend = TritonBackend(fmt)
    stored = compress(backend, torch.randn(200 * 64))
    for block in (199, 77, 78):
        stored[block, 0] = 0
        stored[block, 4] = block
    assert refuse(backend, stored, 200 * 64) == message(77, stored[77, :5])


def test_a_check_reports_the_first_tensor_since_the_last_check_once(monkeypatch):
    fmt = PlaneFormat("fp32", 64, 80)
    backend = TritonBackend(fmt)
    good = compress(backend, torch.randn(10 * 64)).to(DEVICE)
    first, second = good.clone(), good.clone()
    first[6, 0], second[2, 0] = 0, 255
    with monkeypatch.context() as later:
        later.setattr(backend, "check", lambda: None)  # as on CUDA, where decompressing does not wait
        for stored in (good, first, second, good):
            backend.decompress(stored, 10 * 64)
    with pytest.raises(ValueError, match="no encoder") as error:
        backend.check()
    assert str(error.value) == message(6, first[6, :5])
    backend.check()
    backend.decompress(good, 10 * 64)
    backend.check()


def test_stored_of_the_wrong_size_or_type_is_an_error():
    backend = TritonBackend(PlaneFormat("fp32", 64, 80))
    with pytest.raises(ValueError, match=r"uint8 of shape \(3, 80\), not torch.uint8 of \(2, 80\)"):
        backend.decompress(torch.zeros((2, 80), dtype=torch.uint8, device=DEVICE), 129)
    with pytest.raises(ValueError, match=r"not torch.int32 of \(3, 80\)"):
        backend.decompress(torch.zeros((3, 80), dtype=torch.int32, device=DEVICE), 129)


def test_it_is_a_backend_of_the_bridge():
    assert "triton" in backends.NAMES
    for fmt in (PlaneFormat(), HadamardFormat()):
        assert type(backends.get("triton", fmt)).__name__ == "TritonBackend"


def test_a_missing_triton_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch_bridge.backends.triton_backend", raising=False)
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ImportError, match="needs Triton, for Linux only: pip install triton"):
        backends.get("triton", PlaneFormat())


def run_native(program, **environment):
    """Run Python where Triton compiles; what it printed."""
    run = subprocess.run(
        [sys.executable, "-c", program], env=NATIVE | environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_cpu_tensors_need_the_interpreter():
    program = """
import torch
from golden import PlaneFormat
from torch_bridge import backends
fmt = PlaneFormat()
backend = backends.get("triton", fmt)
for call in (
    lambda: backend.compress(torch.ones(5)),
    lambda: backend.decompress(torch.zeros((1, fmt.target), dtype=torch.uint8), 5),
):
    try:
        call()
    except ValueError as error:
        print(error)
"""
    assert run_native(program) == 2 * "the triton backend needs CUDA tensors, not 'cpu'\n"


def test_the_kernels_compile_for_a_gpu(tmp_path):
    """The interpreter takes code that the compiler does not. An A100 is of compute capability 8.0, an H100
    or H200 of 9.0, a B200 of 10.0."""
    program = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from golden import HadamardFormat, PlaneFormat
from torch_bridge import backends
from torch_bridge.backends.triton_tiles import WARPS

aligned = {(i,): [["tt.divisibility", 16]] for i in (0, 1)}  # as tensors are, both values and stored
for fmt, capability in (
    (PlaneFormat("fp32", 64, 80), 90),
    (PlaneFormat("fp32", 16, 64, "truncate"), 80),
    (PlaneFormat("bf16", 128, 36), 100),
    (PlaneFormat("fp16", 16, 7), 90),
    (HadamardFormat("fp32", 128, 32), 80),
    (HadamardFormat("bf16", 64, 32), 90),
    (HadamardFormat("fp16", 256, 32), 100),
):
    kernels = backends.get("triton", fmt)._kernels
    constants = kernels.constants(fmt)
    words = "*u32" if fmt.dtype == "fp32" else "*u16"
    for kernel, arguments in (
        (kernels.compress, {"values": words, "stored": "*u8", "count": "i32", "first": "i32"}),
        (
            kernels.decompress,
            {"stored": "*u8", "values": words, "count": "i64", "first": "i32"}
            | {"record": "*i64", "call": "i32"},
        ),
    ):
        signature = arguments | dict.fromkeys(constants, "constexpr")
        source = ASTSource(kernel, signature, constants, attrs=aligned)
        compiled = compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": WARPS})
        assert compiled.asm["cubin"], (fmt, kernel)
        lines = compiled.asm["ptx"].count("\\n")
        # Several times that if threads of a tile repeat each other's work.
        assert lines < 6000, (fmt, kernel, lines)
        print(kernel.__name__)
"""
    assert run_native(program, TRITON_CACHE_DIR=str(tmp_path)) == 7 * "_compress\n_decompress\n"
