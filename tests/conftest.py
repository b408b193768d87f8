"""What several test files need, made once: captured activations and Verilated libraries."""

import gc
import os
import signal
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from cocotb_tests import stimulus
from cocotb_tests.memory import harness
from gen import library, system
from gen.config import Config
from golden import HadamardFormat, PlaneFormat
from rtl.memory import MemoryParameters
from torch_bridge.backends.simulated import memory_engine, verilated

ROOT = Path(__file__).resolve().parent.parent

# The tests run side by side, and PyTorch's threads wait for each other without going to sleep: with two of
# them small models take several times as much of both cores. Programs that tests start get one as well.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"

# MKL chooses a vector function's code for this processor when one is first called. If two threads of PyTorch
# make that call at once, as a large first tensor has them do, one in twenty processes gets results that
# differ in their last bits from all later ones; and tests here compare to the last bit.
torch.ones(8).sin()

# Hardware is trees of millions of objects that stay; with Python's own threshold the collector goes through
# all of them so often that a third of the time is its.
gc.set_threshold(100_000, 20, 100)

# A script that runs the tests in its background has them ignore Ctrl-C, and with them all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module", autouse=True)
def collector() -> None:
    """What earlier files left stays, and the collections that tests ask for need not go through it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def build() -> Path:
    """Where the tests build: kept between runs, for nothing is built twice from the same sources."""
    folder = ROOT / "build" / "test"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def activations(build) -> Path:
    """Real activations from a training step of the bridge's GPT-2, for the benches."""
    path = build / "activations.npz"

    with FileLock(path.with_suffix(".lock")):  # the tests run in several processes
        return stimulus.capture_activations(path)


LIBRARIES = (
    Config(PlaneFormat("fp32", 64, 80), bus_bytes=16),
    Config(HadamardFormat("fp32", 128, 32), bus_bytes=16),
    Config(HadamardFormat("fp32", 128, 32).for_rows(64), bus_bytes=16),
    Config(PlaneFormat("fp16", 16, 20), bus_bytes=64),
)


@pytest.fixture(scope="session")
def verilated_library(build) -> Path:
    """Libraries for the ``verilated`` backend; returns $BITSTASH_LIBRARIES.

    One of each scheme's default format, narrow so that they are built soon, one for rows that its blocks do
    not divide, and one of blocks that share a bus word.
    """
    folder = build / "verilated"
    folder.mkdir(exist_ok=True)
    with FileLock(folder / "lock"):
        for config in LIBRARIES:
            library.build(config, verilated.library_path(config.fmt, folder), optimise="-O0")
    return folder


MEMORY = MemoryParameters(
    formats=(PlaneFormat("fp32", 64, 80), HadamardFormat("fp32", 64, 16)),
    bus_bytes=16,
    memory_bytes=16,
    regions=4,
    buffers=2,
    least_slots=16,
    reads=16,
)


@pytest.fixture(scope="session")
def memory_system(build) -> Path:
    """Libraries for the ``memory`` backend, of a small engine; returns $BITSTASH_LIBRARIES."""
    folder = build / "memory"
    folder.mkdir(exist_ok=True)
    with FileLock(folder / "lock"):
        system.build(MEMORY, folder / memory_engine.ENGINE, optimise="-O0")
    return folder


@pytest.fixture(scope="session")
def memory_harness(memory_system) -> Path:
    """The same engine with random bursts."""
    with FileLock(memory_system / "lock"):
        return harness.build(MEMORY, memory_system / memory_engine.ENGINE / "memory")
