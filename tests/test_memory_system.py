"""The simulated memory engine as a library, and training through it."""

import gc
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from golden import HadamardFormat, PlaneFormat
from golden.memory import Region
from torch_bridge import backends
from torch_bridge.backends.simulated import memory_system as memory_system_module
from torch_bridge.backends.simulated.memory_engine import DramFigures, MemoryEngine, MemoryEngineError
from torch_bridge.backends.simulated.regions import GoldenStore, RegionBackend
from torch_bridge.job import train

PLANES, HADAMARD = PlaneFormat("fp32", 64, 80), HadamardFormat("fp32", 64, 16)
FIGURES = DramFigures(size=1 << 24)


@pytest.fixture
def engine(memory_system):
    return MemoryEngine(
        memory_system / memory_system_module.library_path().parent.name / "libmemory.so", FIGURES
    )


@pytest.fixture
def libraries(memory_system, monkeypatch):
    monkeypatch.setenv("BITSTASH_LIBRARIES", str(memory_system))
    return memory_system


def octets(values):
    return np.ascontiguousarray(values).view(np.uint8).reshape(-1)


@pytest.mark.timeout(900)
def test_what_is_written_at_an_address_is_stored_and_read_as_golden_says(engine):
    assert (engine.formats, engine.bus_bytes, engine.memory_bytes) == ((PLANES, HADAMARD), 16, 16)
    rng = np.random.default_rng(1)
    for index, fmt in enumerate(engine.formats):
        region = Region(index << 32, 1 << 16, index << 20, fmt)
        engine.enable(index, region)
        values = rng.normal(size=100 * 64).astype(np.float32)
        first = 7
        before = engine.traffic
        engine.write(region.base + first * fmt.original_bytes, octets(values))
        stored = fmt.compress(values, first)
        place = region.stored + first * fmt.target
        assert (engine.content[place : place + stored.size] == stored.reshape(-1)).all()
        back = octets(fmt.decompress(stored, len(values), first))
        # Ranges begin and end anywhere.
        for start, count in ((0, len(back)), (3, 5000), (4090, 11), (255, 1)):
            assert (
                engine.read(region.base + first * fmt.original_bytes + start, count) == back[start:][:count]
            ).all()
        moved = engine.traffic - before
        assert moved.accelerator_bytes == 2 * len(back) + 5012
        assert stored.size * 2 <= moved.memory_bytes < stored.size * 2.6


def test_bypass_keeps_bytes_at_any_address(engine):
    engine.enable(1, Region(0x5000, 0x3000, 0x1000))
    rng, seen = np.random.default_rng(2), np.zeros(0x3000, np.uint8)
    for _ in range(20):
        start, count = rng.integers(0x2000), rng.integers(1, 0x1000)
        seen[start : start + count] = values = rng.integers(0, 256, count, np.uint8)
        engine.write(0x5000 + start, values)
    assert (engine.read(0x5000, 0x3000) == seen).all()
    assert (engine.content[0x1000:0x4000] == seen).all()


def test_errors_say_where_they_are(engine):
    with pytest.raises(MemoryEngineError, match="a read at 0x9000 was answered DECERR; DECODE at 0x9000"):
        engine.read(0x9000, 64)
    region = Region(0, 0x1000, 0x3000, PLANES)
    engine.enable(0, region)
    with pytest.raises(MemoryEngineError, match="region 0 is not usable"):
        engine.enable(0, region)
    with pytest.raises(ValueError, match=r"fmt must be one of PlaneFormat.*, not PlaneFormat.*bf16"):
        engine.enable(1, Region(0x1000, 0x1000, 0x8000, PlaneFormat("bf16", 64, 64)))
    engine.content[0x3000 + 80] = 5
    with pytest.raises(MemoryEngineError, match="a read at 0x0 was answered SLVERR; INVALID at 0x100"):
        engine.read(0, 1024)
    engine.fail(0x3000, 0x3010, 3)
    with pytest.raises(MemoryEngineError, match="a write at 0x0 was answered DECERR; WRITE at 0x3000"):
        engine.write(0, np.zeros(256, np.uint8))
    assert not engine.read(512, 256).any()
    engine.disable(0)
    with pytest.raises(MemoryEngineError, match="DECERR"):
        engine.read(512, 16)


def test_the_same_accesses_take_longer_behind_a_slower_memory(memory_system):
    cycles = []
    for figures in (
        FIGURES,
        DramFigures(1 << 24, latency=300),
        DramFigures(1 << 24, interval=3),
        DramFigures(1 << 24, refresh_period=200, refresh_cycles=100),
    ):
        engine = MemoryEngine(memory_system / "gpt2-fp32-memory-16" / "libbypass.so", figures)
        engine.enable(0, Region(0, 1 << 16, 0))
        before = engine.traffic
        engine.write(0, np.zeros(1 << 14, np.uint8))
        cycles.append((engine.traffic - before).cycles)
    fast, latent, rare, refreshing = cycles
    assert 1 << 10 < fast < 1300
    assert fast + 200 < latent
    assert 3 * fast < 1.2 * rare
    assert 1.7 * fast < refreshing < 2.3 * fast


@pytest.mark.parametrize("fmt", [PLANES, HADAMARD], ids=["planes", "hadamard"])
def test_memory_and_golden_regions_give_the_same_bytes_and_values(fmt, libraries):
    ours, golden = backends.get("memory", fmt), backends.get("regions", fmt)
    compressed = []
    for count in (1, 64, 1000, 0, 333):
        values = torch.randn(count)
        pair = [backend.compress(values) for backend in (ours, golden)]
        assert pair[0].shape == (fmt.blocks(count), fmt.target)
        assert torch.equal(*pair)
        compressed.append((count, pair))
    numbers = fmt.compress(values.numpy(), 1 + 1 + 16)  # those before take as many blocks
    assert torch.equal(pair[0], torch.from_numpy(numbers))
    for count, (one, other) in reversed(compressed):
        assert torch.equal(ours.decompress(one, count), golden.decompress(other, count))


def test_blocks_are_numbered_from_0_again_when_none_is_used_any_more():
    backend = RegionBackend(HADAMARD, GoldenStore(Region(0, 0x2000, 0, HADAMARD)))
    values = torch.randn(640)
    first, second = backend.compress(values), backend.compress(values)
    assert not torch.equal(first, second)
    kept = first.clone()
    del first
    with pytest.raises(MemoryError, match="the region has 12 free blocks, not 20"):
        backend.compress(torch.randn(1280))
    with pytest.raises(ValueError, match="stored must be where compress put it, not a copy"):
        backend.decompress(kept, 640)
    with pytest.raises(ValueError, match="first must be 0 where a region numbers the blocks, not 3"):
        backend.compress(values, 3)
    with pytest.raises(ValueError, match="what regions keep must come from the CPU, not from meta"):
        backend.compress(torch.empty(64, device="meta"))
    del second
    gc.collect()
    assert torch.equal(backend.compress(values), kept)


class Interrupted:
    """Memory of a store, in the middle of whose first use another thread runs."""

    def __init__(self, content, run):
        self._content, self._threads, self._run = content, [], run

    def __len__(self):
        if not self._threads:
            self._threads.append(threading.Thread(target=self._run))
            self._threads[0].start()
            self._threads[0].join(0.3)
        return len(self._content)

    def __getattr__(self, name):
        return getattr(self._content, name)

    def __getitem__(self, place):
        return self._content[place]

    def __setitem__(self, place, values):
        self._content[place] = values


def test_threads_get_blocks_of_their_own():
    backend, stored = RegionBackend(PLANES, GoldenStore(Region(0, 0x2000, 0, PLANES))), []
    store = backend._store

    def other():
        stored.append(backend.compress(torch.full((64,), 2.0)))

    store._stored = Interrupted(store._stored, other)
    stored.append(backend.compress(torch.full((64,), 1.0)))
    store._stored._threads[0].join()
    assert {backend.decompress(one, 64)[0].item() for one in stored} == {1.0, 2.0}


def test_what_the_memory_backend_cannot_do_is_named(tmp_path, monkeypatch, libraries):
    with pytest.raises(ValueError, match=r"format must be one of the engine's, .*, not PlaneFormat.*bf16"):
        backends.get("memory", PlaneFormat("bf16", 64, 64))
    monkeypatch.setenv("BITSTASH_LIBRARIES", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="python -m gen library --preset gpt2-fp32-memory-16"):
        backends.get("memory", PLANES)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("scheme", ["planes", "hadamard"])
def test_training_through_memory_is_as_golden_with_its_numbers(scheme, libraries, monkeypatch, capsys):
    monkeypatch.setattr(train, "_VALIDATION_TOKENS", 64)
    tiny = {"n_layer": 1, "n_embd": 32, "n_head": 2, "n_positions": 32, "vocab_size": 256}
    monkeypatch.setitem(train.CONFIGS, "small", tiny)
    options = train.Options(scheme=scheme, recompute=False, steps=2, batch=2, validations=1)
    if scheme == "hadamard":
        monkeypatch.setattr(train.Options, "format", HADAMARD)
    golden, ours = (train.run(replace(options, backend=name)) for name in ("regions", "memory"))
    assert ours["train_loss"] == golden["train_loss"]
    assert ours["val_loss"] == golden["val_loss"]
    assert "cycles" not in golden
    original, stored = ours["accelerator_bytes"], ours["memory_bytes"]
    assert original > ours["original_bytes"]
    least, most = (3, 3.2) if scheme == "planes" else (9, 16)
    assert least < original / stored <= most
    assert ours["cycles_without"] > 0.9 * ours["cycles"]  # the port is no wider than the memory
    printed = " ".join(capsys.readouterr().out.split())
    assert f"step 2: the accelerator moved {original / 1e6:.1f} MB" in printed
