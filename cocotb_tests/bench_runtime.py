"""The engines that are switched between formats, against golden/.

Run as :mod:`cocotb_tests.bench_engines` is.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from itertools import product

import cocotb
import numpy as np
from cocotb.triggers import ClockCycles, RisingEdge

from cocotb_tests import oracle, stimulus
from cocotb_tests.bench_engines import TASK, number_of, received_behind_a_stall, words_of
from cocotb_tests.coverage import Corner, Coverage, flows_of
from cocotb_tests.streams import (
    AT_LENGTH,
    PATTERNS,
    Bench,
    Tensor,
    Word,
    after_pauses,
    fields_of,
    held_up,
    never,
    often,
    pack,
)
from golden import Format
from rtl.ports.runtime import config_layout

FORMATS = TASK.formats


@dataclass(frozen=True)
class Job:
    """A tensor and the configuration it travels under, None for the one before."""

    config: int | None  # payload of the configuration stream
    sent: bytes
    expected: bytes
    fmt: Format | None = None  # none in bypass
    blocks: int = 0
    errors: Collection[int] = ()  # those of them that must come with ``error``


def config_of(number: int, *, bypass: bool = False) -> int:
    """A payload of the stream of configurations."""
    return pack(fields_of(config_layout(FORMATS)), {"format": number, "bypass": bypass})


@cache  # mutants are given the same, one after the other
def job(config: int | None, fmt: Format | None, tensor: bytes) -> Job:
    """What golden/ makes of a tensor in a format, or in bypass if there is none."""
    if fmt is None:
        return Job(config, tensor, tensor)
    blocks = -(-len(tensor) // fmt.original_bytes)
    whole = tensor.ljust(blocks * fmt.original_bytes, b"\0")
    first = number_of(tensor)
    stored = fmt.compress(np.frombuffer(whole, fmt.float_type.bits).view(fmt.float_type.array), first)
    if TASK.part == "compressor":
        return Job(config, Tensor(tensor, first), stored.tobytes(), fmt, blocks)
    return stored_job(config, fmt, stored)


def stored_job(config: int | None, fmt: Format, stored: np.ndarray, missing: int = 0) -> Job:
    """What golden/ makes of blocks, valid or not, of which the last one lacks some bytes."""
    rows = stored.copy()
    if missing:
        rows[-1] = oracle.invalid_block(fmt)  # as one is that breaks off
    sent = stored.tobytes()[: stored.size - missing]
    first = number_of(sent)
    expected, errors = oracle.decoded(fmt, rows, first)
    return Job(config, Tensor(sent, first), expected, fmt, len(stored), errors)


def is_answer(words: list[Word], task: Job) -> bool:
    size, end = TASK.bus_bytes, len(task.expected)
    block = end // task.blocks if task.blocks else end
    flags = oracle.error_flags(task.errors, block, end, size)
    want = [(task.expected[i : i + size], i + size >= end) for i in range(0, end, size)]
    return [(word.data, word.last) for word in words] == want and [word.error for word in words] == flags


def note_coverage(bench: Bench, jobs: list[Job]) -> None:
    """Count which formats followed which, and which had errors, since the last reset."""
    if TASK.mutants:
        return
    names = [*(f"format {number}" for number in range(len(FORMATS))), "bypass"]
    here = np.array([FORMATS.index(task.fmt) if task.fmt else len(FORMATS) for task in jobs])
    before = np.concatenate([[0], here[:-1]])
    configured = np.array([task.config is not None for task in jobs], bool)
    errors = np.array([len(task.errors) > 0 for task in jobs], bool)
    corners = [
        Corner("configuration", f"{a} to {b}", configured & (before == i) & (here == j))
        for i, a in enumerate(names)
        for j, b in enumerate(names)
    ]
    for number, name in enumerate(names):
        corners.append(Corner("configuration", f"{name} stays", ~configured & (here == number)))
        can_err = TASK.part == "decompressor" and name != "bypass"
        corners.append(Corner("error", name, errors & (here == number), can_err))
    # A first word waits for its configuration.
    starts = [True, *(word.last for word in bench.sent)]
    pauses = [flag and not is_first for flag, is_first in zip(after_pauses(bench.sent), starts, strict=False)]
    paused = of_tensors(bench.sent, pauses)
    stalled = of_tensors(bench.sink.given, held_up(bench.sink.given))
    coverage = Coverage()
    coverage.count(corners, flows_of(paused, stalled))
    TASK.note(coverage=coverage.as_rows())


def of_tensors(words: list[Word], flags: list[bool]) -> np.ndarray:
    """Which tensors have a flagged word."""
    found, flagged = [], False
    for word, flag in zip(words, flags, strict=True):
        flagged |= flag
        if word.last:
            found.append(flagged)
            flagged = False
    return np.array(found, bool)


async def started(*salt: int) -> Bench:
    bench = Bench(cocotb.top, TASK.bus_bytes, int(TASK.rng(*salt).integers(1 << 32)))
    cocotb.top.config_valid.value = 0
    cocotb.top.config_payload.value = 0
    await bench.start()
    return bench


async def configure(payload: int) -> None:
    """Offer a configuration until it is taken."""
    dut = cocotb.top
    dut.config_payload.value = payload
    dut.config_valid.value = 1
    for _ in range(2000):
        await RisingEdge(dut.clk)
        if dut.config_ready.value:
            dut.config_valid.value = 0
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


async def answers(bench: Bench, jobs: list[Job]) -> None:
    """Send tensors back to back and fail unless each has its answer."""
    sending = cocotb.start_soon(send_all(bench, jobs))
    for number, task in enumerate(jobs):
        words = await bench.receive(words_of(task.expected))
        assert is_answer(words, task), f"wrong answer to tensor {number} (seed {TASK.seed})"
    await sending
    note_coverage(bench, jobs)


def random_jobs(blocks: int, rng: np.random.Generator) -> list[Job]:
    """Tensors of all lengths: in each format, in bypass, and under the configuration before.

    Every other one of blocks has some that are invalid.
    """
    jobs: list[Job] = []
    fmt: Format | None = FORMATS[0]
    while sum(task.blocks for task in jobs) < blocks:
        config = None
        if rng.random() < 0.7:
            number = int(rng.integers(len(FORMATS)))
            bypass = rng.random() < 0.2
            config, fmt = config_of(number, bypass=bypass), None if bypass else FORMATS[number]
        shape = fmt or FORMATS[0]
        values = stimulus.blocks(shape, "mixed", int(rng.integers(1, 12)), rng, TASK.activations)
        size = values.nbytes - int(rng.choice([0, rng.integers(shape.original_bytes)]))
        if TASK.part == "decompressor" and fmt and rng.random() < 0.5:
            broken = stimulus.with_broken_headers(fmt, fmt.compress(values), rng)
            jobs.append(stored_job(config, fmt, broken))
        else:
            jobs.append(job(config, fmt, values.tobytes()[:size]))
    return jobs


@cache
def jobs_of(blocks: int, salt: int) -> list[Job]:
    return random_jobs(blocks, TASK.rng(20, salt))


@cache
def jobs_with_invalid_blocks() -> list[Job]:
    """Headers that each format, or another one, just allows or not, among ordinary blocks; some break off.

    Each tensor has a format of its own, so that an error that outlasts its tensor shows in another format.
    """
    rng, jobs = TASK.rng(24), []
    nearly = [stimulus.nearly_valid_headers(fmt) for fmt in FORMATS]
    for number, fmt in enumerate(FORMATS):
        few = [rng.permutation(stored)[:100, : min(fmt.target, stored.shape[1])] for stored in nearly]
        others = [np.pad(stored, ((0, 0), (0, fmt.target - stored.shape[1]))) for stored in few]
        ordinary = fmt.compress(stimulus.blocks(fmt, "mixed", len(nearly[number]), rng, TASK.activations))
        broken = stimulus.with_broken_headers(fmt, ordinary, rng)
        rare = stimulus.rare_stored(fmt, TASK.bus_bytes, rng)
        rows = rng.permutation(np.concatenate([rare, broken, *others]))
        parts = np.array_split(rows, -(-len(rows) // 20))
        missing = rng.integers(0, fmt.target, len(parts)) * (rng.random(len(parts)) < 0.2)
        jobs += [
            stored_job(config_of(number), fmt, *part) for part in zip(parts, missing.tolist(), strict=True)
        ]
    return [jobs[i] for i in rng.permutation(len(jobs))]


@cocotb.test()
@cocotb.parametrize(idle=list(PATTERNS), stall=list(PATTERNS))
async def matches_golden(dut, idle, stall):
    """Each tensor is golden/'s in its format, or itself in bypass, however the ends stall."""
    number = list(PATTERNS).index(idle) * len(PATTERNS) + list(PATTERNS).index(stall)
    await compare_with_golden(dut, idle, stall, TASK.blocks // len(PATTERNS) ** 2 + 1, salt=number)


async def compare_with_golden(dut, idle: str, stall: str, count: int, salt: int) -> None:
    bench, patterns = await started(20, salt), PATTERNS | AT_LENGTH
    bench.pause(patterns[idle], patterns[stall])
    jobs = jobs_of(count, salt)
    sending = cocotb.start_soon(send_all(bench, jobs))
    wrong = 0
    for task in jobs:
        if not is_answer(await bench.receive(words_of(task.expected)), task):
            wrong += max(task.blocks, 1)
    await sending
    blocks = sum(task.blocks for task in jobs)
    TASK.note(blocks=blocks, mismatches=wrong)
    assert wrong == 0, (
        f"{wrong} of {blocks} blocks are in tensors that differ from golden/ (seed {TASK.seed})"
    )
    assert not bench.received, "words without a tensor"
    note_coverage(bench, jobs)


@cocotb.test()
@cocotb.parametrize(ends=list(PATTERNS))
async def switches_from_each_format_to_each(dut, ends):
    """Each format, and bypass, behind each other and itself, with a configuration between them or without."""
    bench, rng = await started(25), TASK.rng(25)
    bench.pause(PATTERNS[ends], PATTERNS[ends])
    choices = [(config_of(number), fmt) for number, fmt in enumerate(FORMATS)]
    choices.append((config_of(0, bypass=True), None))
    jobs = []
    for first, second, _ in product(choices, choices, range(3)):
        for config, fmt in (first, second, (None, second[1])):
            size = int(rng.integers(4 * FORMATS[0].original_bytes, 8 * FORMATS[0].original_bytes))
            jobs.append(job(config, fmt, rng.bytes(size)))
    await answers(bench, jobs)


@cocotb.test(skip=TASK.part != "decompressor")
@cocotb.parametrize(ends=list(PATTERNS))
async def invalid_headers_give_zeros_and_an_error(dut, ends):
    """In every format a block with an invalid header is zeros with ``error``; no other block has it."""
    bench = await started(24)
    bench.pause(PATTERNS[ends], PATTERNS[ends])
    jobs = jobs_with_invalid_blocks()
    await answers(bench, jobs)


@cocotb.test(skip=TASK.part != "compressor")
@cocotb.parametrize(ends=list(PATTERNS))
async def matches_golden_in_rare_blocks(dut, ends):
    """So are in each format blocks that random ones hardly ever are."""
    bench, rng = await started(26), TASK.rng(26)
    bench.pause(PATTERNS[ends], PATTERNS[ends])
    jobs = []
    for number, fmt in enumerate(FORMATS):
        first = number_of(rng.bytes(4))
        for values in stimulus.rare_values(fmt, first, rng):
            for start in range(0, len(values), 20):
                tensor = Tensor(values[start : start + 20].tobytes(), (first + start) % (1 << 32))
                jobs.append(job(config_of(number), fmt, tensor))
    await answers(bench, jobs)


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
            assert is_answer(words, one)
            latencies.append(words[0].offered - bench.sent[-1].cycle)
            promised = TASK.promise(fmt).latency
            assert latencies[-1] == promised, f"{latencies[-1]} cycles of latency in {fmt}, not {promised}"
        for pattern, found in ((never, rates), (often, stalled)):
            bench.pause(pattern, pattern)
            bench.sent.clear()
            many = job(None, fmt, values.tobytes())
            bench.send(many.sent)
            words = await bench.receive(words_of(many.expected))
            assert is_answer(words, many)
            cycles = [word.cycle for word in (bench.sent if TASK.part == "compressor" else words)]
            taken = cycles[-1] - cycles[0] + 1
            found.append(values.nbytes / taken)
            promised = TASK.promise(fmt).cycles(len(cycles))
            stalls = pattern is not never
            assert stalls or taken == promised, (
                f"{taken} cycles for {len(cycles)} words of {fmt}, not {promised}"
            )
    TASK.note(bytes_per_cycle=min(rates), bytes_per_cycle_stalled=min(stalled))
    TASK.note(latency_min=min(latencies), latency_mean=float(np.mean(latencies)), latency_max=max(latencies))


@cocotb.test(skip=TASK.part != "decompressor")
async def a_stall_leaves_no_gap(dut):
    """In every format what arrives while the sink stalls follows word for word."""
    bench = await started(27)
    for number, fmt in enumerate(FORMATS):
        stall = TASK.stall(fmt)
        bench.pause(never, never)
        await configure(config_of(number))
        values = stimulus.blocks(fmt, "mixed", stall.blocks, TASK.rng(27, number), TASK.activations)
        task = job(None, fmt, values.tobytes())
        for taken in range(stall.places):
            words = await received_behind_a_stall(bench, stall, taken, task.sent, words_of(task.expected))
            assert is_answer(words, task)
            stall.assert_no_gap([word.cycle for word in words[taken:]])


@cocotb.test()
async def a_bypassed_word_takes_no_cycle(dut):
    """In bypass a word is offered in the cycle in which it comes."""
    bench = await started(22)
    await configure(config_of(0, bypass=True))
    tensor = TASK.rng(22).bytes(20 * TASK.bus_bytes - 3)
    bench.send(tensor)
    words = await bench.receive(words_of(tensor))
    assert is_answer(words, Job(None, tensor, tensor))
    assert [word.offered for word in words] == [word.cycle for word in bench.sent]


@cocotb.test()
async def takes_a_configuration_at_once_while_empty(dut):
    """In any cycle after the last word of all tensors was given, however many there were."""
    bench, rng = await started(28), TASK.rng(28)
    for count in range(20):
        jobs = [job(None, FORMATS[0], rng.bytes(FORMATS[0].original_bytes)) for _ in range(count)]
        for task in jobs:
            bench.send(task.sent)
        for task in jobs:
            assert is_answer(await bench.receive(words_of(task.expected)), task)
        for _ in range(20):
            await RisingEdge(dut.clk)
            assert dut.config_ready.value, f"no configuration is taken after {count} tensors"


@cocotb.test()
@cocotb.parametrize(ends=["never", "often"])
async def reset_leaves_no_trace(dut, ends):
    """A reset in any cycle: the engine holds nothing and has its first format again."""
    bench, rng = await started(23), TASK.rng(23)
    bench.pause(PATTERNS[ends], PATTERNS[ends])
    for phase in range(max(TASK.phases(fmt) for fmt in FORMATS)):
        before, after = random_jobs(6, rng), job(None, FORMATS[0], rng.bytes(3 * FORMATS[0].original_bytes))
        sending = cocotb.start_soon(send_all(bench, before))
        await ClockCycles(dut.clk, phase + 1)
        sending.cancel()
        dut.config_valid.value = 0
        await bench.reset()
        bench.send(after.sent)
        words = await bench.receive(words_of(after.expected))
        assert is_answer(words, after), f"wrong after a reset in cycle {phase} (seed {TASK.seed})"
