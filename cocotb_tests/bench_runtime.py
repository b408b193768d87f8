"""The engines that are switched between formats, against golden/.

Run as :mod:`cocotb_tests.bench_engines` is.
"""

from __future__ import annotations

from dataclasses import dataclass

import cocotb
import numpy as np
from cocotb.triggers import ClockCycles, RisingEdge

from cocotb_tests import stimulus
from cocotb_tests.bench_engines import TASK, words_of
from cocotb_tests.streams import PATTERNS, Bench, Word, never, often
from golden import PlaneFormat

FORMATS = TASK.formats


@dataclass(frozen=True)
class Job:
    """A tensor and the configuration it travels under, None for the one before."""

    config: int | None  # payload of the configuration stream
    sent: bytes
    expected: bytes
    blocks: int


def config_of(number: int, *, bypass: bool = False) -> int:
    """The payload of rtl/runtime.py, config_layout."""
    return number | bypass << (max(len(FORMATS), 2) - 1).bit_length()


def job(config: int | None, fmt: PlaneFormat | None, tensor: bytes) -> Job:
    """What golden/ makes of a tensor in a format, or in bypass if there is none."""
    if fmt is None:
        return Job(config, tensor, tensor, 0)
    blocks = -(-len(tensor) // fmt.raw_bytes)
    whole = tensor.ljust(blocks * fmt.raw_bytes, b"\0")
    stored = fmt.compress(np.frombuffer(whole, fmt.float_type.bits).view(fmt.float_type.array))
    if TASK.part == "compressor":
        return Job(config, tensor, stored.tobytes(), blocks)
    return Job(config, stored.tobytes(), fmt.decompress(stored, blocks * fmt.block).tobytes(), blocks)


def is_answer(words: list[Word], expected: bytes) -> bool:
    sizes = range(0, len(expected), TASK.bus_bytes)
    want = [expected[i : i + TASK.bus_bytes] for i in sizes]
    lasts = [i + TASK.bus_bytes >= len(expected) for i in sizes]
    return [word.data for word in words] == want and [word.last for word in words] == lasts


async def started(*salt: int) -> Bench:
    bench = Bench(cocotb.top, TASK.bus_bytes, int(TASK.rng(*salt).integers(1 << 32)))
    cocotb.top.config__valid.value = 0
    cocotb.top.config__payload.value = 0
    await bench.start()
    return bench


async def configure(payload: int) -> None:
    """Offer a configuration until it is taken."""
    dut = cocotb.top
    dut.config__payload.value = payload
    dut.config__valid.value = 1
    for _ in range(2000):
        await RisingEdge(dut.clk)
        if dut.config__ready.value:
            dut.config__valid.value = 0
            return
    raise AssertionError("hangs: a configuration is not taken")


async def send_all(bench: Bench, jobs: list[Job]) -> None:
    """Send tensors back to back; a configuration is offered as soon as the tensor before has begun."""
    queued = began = 0  # words: all so far, and those before the last tensor
    for task in jobs:
        waiting = None
        if task.config is not None:
            while queued and len(bench.sent) <= began:
                await RisingEdge(cocotb.top.clk)
            waiting = cocotb.start_soon(configure(task.config))
        began = queued
        queued += bench.send(task.sent)
        if waiting:
            await waiting


def random_jobs(blocks: int, rng: np.random.Generator) -> list[Job]:
    """Tensors of all lengths: in each format, in bypass, and under the configuration before."""
    jobs: list[Job] = []
    fmt: PlaneFormat | None = FORMATS[0]
    while sum(task.blocks for task in jobs) < blocks:
        config = None
        if rng.random() < 0.7:
            number = int(rng.integers(len(FORMATS)))
            bypass = rng.random() < 0.2
            config, fmt = config_of(number, bypass=bypass), None if bypass else FORMATS[number]
        shape = fmt or FORMATS[0]
        values = stimulus.blocks(shape, "mixed", int(rng.integers(1, 12)), rng, TASK.activations)
        size = values.nbytes - int(rng.choice([0, rng.integers(shape.raw_bytes)]))
        jobs.append(job(config, fmt, values.tobytes()[:size]))
    return jobs


@cocotb.test()
@cocotb.parametrize(idle=list(PATTERNS), stall=list(PATTERNS))
async def matches_golden(dut, idle, stall):
    """Each tensor is golden/'s in its format, or itself in bypass, however the ends stall."""
    number = list(PATTERNS).index(idle) * len(PATTERNS) + list(PATTERNS).index(stall)
    bench = await started(20, number)
    bench.pause(PATTERNS[idle], PATTERNS[stall])
    jobs = random_jobs(TASK.blocks // len(PATTERNS) ** 2 + 1, TASK.rng(20, number))
    sending = cocotb.start_soon(send_all(bench, jobs))
    wrong = 0
    for task in jobs:
        if not is_answer(await bench.receive(words_of(task.expected)), task.expected):
            wrong += max(task.blocks, 1)
    await sending
    blocks = sum(task.blocks for task in jobs)
    TASK.note(blocks=blocks, mismatches=wrong)
    assert wrong == 0, (
        f"{wrong} of {blocks} blocks are in tensors that differ from golden/ (seed {TASK.seed})"
    )
    assert not bench.received, "words without a tensor"


@cocotb.test()
async def sustains_its_throughput_and_latency(dut):
    """In every format a word a cycle without stalls, and the stated latency; the slowest is noted."""
    bench = await started(21)
    latencies, rates, stalled = [], [], []
    for number, fmt in enumerate(FORMATS):
        values = stimulus.blocks(fmt, "mixed", 128, TASK.rng(21, number), TASK.activations)
        bench.pause(never, never)
        await configure(config_of(number))
        for block in values[:20]:
            one = job(None, fmt, block.tobytes())
            bench.send(one.sent)
            words = await bench.receive(words_of(one.expected))
            assert is_answer(words, one.expected)
            latencies.append(words[0].offered - bench.sent[-1].cycle)
        for pattern, found in ((never, rates), (often, stalled)):
            bench.pause(pattern, pattern)
            bench.sent.clear()
            many = job(None, fmt, values.tobytes())
            bench.send(many.sent)
            words = await bench.receive(words_of(many.expected))
            assert is_answer(words, many.expected)
            cycles = [word.cycle for word in (bench.sent if TASK.part == "compressor" else words)]
            found.append(values.nbytes / (cycles[-1] - cycles[0] + 1))
        promised = min(TASK.bus_bytes, fmt.raw_bytes / 2)
        assert rates[-1] >= promised, f"{rates[-1]:.2f} bytes a cycle of {fmt}, not {promised}"
    TASK.note(bytes_per_cycle=min(rates), bytes_per_cycle_stalled=min(stalled))
    TASK.note(latency_min=min(latencies), latency_mean=float(np.mean(latencies)), latency_max=max(latencies))
    assert max(latencies) <= TASK.latency, f"{max(latencies)} cycles of latency, not {TASK.latency}"


@cocotb.test()
async def a_bypassed_word_takes_no_cycle(dut):
    """In bypass a word is offered in the cycle in which it comes."""
    bench = await started(22)
    await configure(config_of(0, bypass=True))
    tensor = TASK.rng(22).bytes(20 * TASK.bus_bytes - 3)
    bench.send(tensor)
    words = await bench.receive(words_of(tensor))
    assert is_answer(words, tensor)
    assert [word.offered for word in words] == [word.cycle for word in bench.sent]


@cocotb.test()
async def reset_leaves_no_trace(dut):
    """A reset in any cycle: the engine holds nothing and has its first format again."""
    bench, rng = await started(23), TASK.rng(23)
    bench.pause(often, often)
    for phase in range(40):
        before, after = random_jobs(6, rng), job(None, FORMATS[0], rng.bytes(3 * FORMATS[0].raw_bytes))
        sending = cocotb.start_soon(send_all(bench, before))
        await ClockCycles(dut.clk, phase + 1)
        sending.cancel()
        dut.config__valid.value = 0
        await bench.reset()
        bench.send(after.sent)
        words = await bench.receive(words_of(after.expected))
        assert is_answer(words, after.expected), f"wrong after a reset in cycle {phase} (seed {TASK.seed})"
