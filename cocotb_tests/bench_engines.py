"""The promises of both engines, checked in a simulator. Run by ``python -m cocotb_tests``, not by pytest.

Which engine the simulator holds, and where to leave the measurements, stands in the environment
variable ``BITSTASH_BENCH``, as written by :mod:`cocotb_tests.runner`.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cache
from itertools import chain, product, repeat
from math import gcd
from pathlib import Path
from zlib import crc32

import cocotb
import numpy as np
from cocotb.triggers import ClockCycles

import golden
from cocotb_tests import oracle, stimulus
from cocotb_tests.corners import engine_coverage
from cocotb_tests.notes import Noting
from cocotb_tests.promises import Promise, promise
from cocotb_tests.streams import AT_LENGTH, PATTERNS, Bench, Tensor, Word, bursts, never, often
from golden import Format


@dataclass(frozen=True)
class Stall:
    """A stall of a decompressor's sink, which has passed when all that was sent has come as far as it can.

    Attributes:
        first: words that are sent before the source pauses: they have a whole block, or several.
        blocks: in all.
        places: how many words the sink may take before it stalls.
        patience: cycles in which whatever was sent comes as far as it can.
        word_cycles: cycles from one word of the answer to the next.
    """

    first: int
    blocks: int
    places: int
    patience: int
    word_cycles: int

    def assert_no_gap(self, cycles: list[int]) -> None:
        """The words that were left came one behind the other, in these cycles."""
        found, promised = cycles[-1] - cycles[0] + 1, (len(cycles) - 1) * self.word_cycles + 1
        assert found <= promised, f"{len(cycles)} words in {found} cycles, not {promised}"


@dataclass(frozen=True)
class Task(Noting):
    """What this simulator run is about, as read from the environment."""

    part: str
    fmt: Format
    formats: list[Format]
    bus_bytes: int
    interface: str
    memories: bool
    blocks: int
    seed: int
    activations: Path | None
    mutants: list[int]
    benches: str

    @classmethod
    def read(cls) -> Task:
        task = json.loads(os.environ["BITSTASH_BENCH"])
        task["formats"] = [getattr(golden, kind)(**parameters) for kind, parameters in task["formats"]]
        task["fmt"] = task["formats"][0]
        task["activations"] = task["activations"] and Path(task["activations"])
        return cls(**task)

    def promise(self, fmt: Format | None = None) -> Promise:
        """What the datasheet says of one of the formats, the first if none is given."""
        return promise(self.part, fmt or self.fmt, self.formats, self.bus_bytes)

    def stall(self, fmt: Format) -> Stall:
        """A stall behind the first words of a tensor."""
        promised, first = self.promise(fmt), -(-fmt.target // self.bus_bytes)
        blocks = first * self.bus_bytes // fmt.target
        places = -(-blocks * fmt.original_bytes // self.bus_bytes) + 1
        patience = 2 * promised.latency + 2 * blocks * promised.block_cycles
        return Stall(first, blocks + 5, places, patience, promised.word_cycles)

    def phases(self, fmt: Format | None = None) -> int:
        """Cycles until the second of two blocks is out, if neither end pauses."""
        promised = self.promise(fmt)
        return 2 * promised.block_cycles + promised.latency + 2

    def rng(self, *salt: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *salt])


TASK = Task.read()
KINDS = ["mixed", *stimulus.kinds(TASK.fmt), *(["captured"] if TASK.activations else [])]
COMBINATIONS = list(product(KINDS, PATTERNS, PATTERNS))


@cache  # mutants are given the same, one after the other
def in_and_out(tensor: bytes) -> tuple[Tensor, bytes]:
    """The bytes to send for a tensor of any number of bytes and those that golden/ expects in return."""
    fmt = TASK.fmt
    blocks = -(-len(tensor) // fmt.original_bytes)
    whole, first = tensor.ljust(blocks * fmt.original_bytes, b"\0"), number_of(tensor)
    stored = fmt.compress(np.frombuffer(whole, fmt.float_type.bits).view(fmt.float_type.array), first)
    if TASK.part == "compressor":
        return Tensor(tensor, first), stored.tobytes()
    return Tensor(stored.tobytes(), first), fmt.decompress(stored, blocks * fmt.block, first).tobytes()


def number_of(data: bytes) -> int:
    """A tensor's own number of its first block; else any, a small one, one before a carry or the largest."""
    if isinstance(data, Tensor):
        return data.first
    number = crc32(data)
    return (number, number % 7, (1 << 32) - 1 - number % 7, (number | 0xFFFF) - number % 7)[number >> 30]


def words_of(expected: bytes) -> int:
    return -(-len(expected) // TASK.bus_bytes)


def mismatches(words: list[Word], expected: bytes, errors: set[int] = frozenset()) -> int:
    """Blocks in which the received words differ from the expected bytes, or a flag is wrong.

    Args:
        words: all words of one tensor.
        expected: its bytes.
        errors: the blocks that must come with ``error``.
    """
    size = TASK.bus_bytes
    block = TASK.fmt.target if TASK.part == "compressor" else TASK.fmt.original_bytes
    bad = set()
    flags = oracle.error_flags(errors, block, len(expected), size)
    for i, (word, error) in enumerate(zip(words, flags, strict=True)):
        is_last = (i + 1) * size >= len(expected)
        if (word.data, word.last, word.error) != (expected[i * size : (i + 1) * size], is_last, error):
            bad.update(range(i * size // block, -(-(i + 1) * size // block)))
    return len(bad)


def note_coverage(bench: Bench) -> None:
    """Count the corners that the ports of an engine without faults have shown since the last reset."""
    if TASK.mutants:
        return
    coverage = engine_coverage(TASK.fmt, TASK.part, TASK.bus_bytes, bench.sent, bench.sink.given)
    TASK.note(coverage=coverage.as_rows())


async def started(*salt: int) -> Bench:
    bench = Bench(cocotb.top, TASK.bus_bytes, int(TASK.rng(*salt).integers(1 << 32)))
    await bench.start()
    return bench


@cocotb.test()
@cocotb.parametrize(kind=KINDS, idle=list(PATTERNS), stall=list(PATTERNS))
async def matches_golden(dut, kind, idle, stall):
    """Every block equals golden/'s, in tensors of all lengths, back to back, however the ends stall."""
    number, combinations = COMBINATIONS.index((kind, idle, stall)), len(COMBINATIONS)
    count = TASK.blocks * (number + 1) // combinations - TASK.blocks * number // combinations
    await compare_with_golden(dut, kind, idle, stall, count, salt=number)


@cache
def tensors_of(kind: str, count: int, salt: int) -> list[tuple[Tensor, bytes]]:
    """Tensors of ``count`` blocks in all, and what golden/ makes of them."""
    fmt, rng = TASK.fmt, TASK.rng(1, salt)
    data = stimulus.blocks(fmt, kind, count, rng, TASK.activations).tobytes()
    tensors, start = [], 0
    for size in stimulus.tensor_lengths(count, fmt.original_bytes, rng):
        tensors.append(in_and_out(data[start : start + size]))
        start += fmt.original_bytes * -(-size // fmt.original_bytes)
    return tensors


async def compare_with_golden(dut, kind: str, idle: str, stall: str, count: int, salt: int) -> None:
    bench = await started(1, salt)
    patterns = PATTERNS | AT_LENGTH
    bench.pause(patterns[idle], patterns[stall])
    tensors = tensors_of(kind, count, salt)
    for sent, _ in tensors:
        bench.send(sent)
    wrong = 0
    for _, expected in tensors:
        wrong += mismatches(await bench.receive(words_of(expected)), expected)
    TASK.note(blocks=count, mismatches=wrong)
    assert wrong == 0, f"{wrong} of {count} blocks differ from golden/ (seed {TASK.seed})"
    assert not bench.received, "words without a tensor"
    note_coverage(bench)


@cocotb.test()
@cocotb.parametrize(ends=list(PATTERNS))
async def meets_every_place(dut, ends):
    """Blocks start at each place of a bus word, and tensors end in each cycle of a block, back to back."""
    fmt, rng = TASK.fmt, TASK.rng(13)
    bench = await started(13)
    bench.pause(PATTERNS[ends], PATTERNS[ends])
    places, cycles = TASK.bus_bytes // gcd(fmt.target, TASK.bus_bytes), TASK.promise().block_cycles
    sizes = [places * fmt.original_bytes] * 12
    sizes += [fmt.original_bytes * (i + 1) // cycles - int(rng.integers(2)) for i in range(cycles)] * 12
    tensors = []
    for size in sizes:
        values = stimulus.blocks(fmt, "mixed", -(-size // fmt.original_bytes), rng, TASK.activations)
        tensors.append(in_and_out(values.tobytes()[:size]))
        bench.send(tensors[-1][0])
    for _, expected in tensors:
        assert mismatches(await bench.receive(words_of(expected)), expected) == 0
    note_coverage(bench)


@cocotb.test()
async def takes_its_latency(dut):
    """A block on its own takes the stated cycles; a tail as many more as a whole one has further words."""
    fmt, rng, promised = TASK.fmt, TASK.rng(2), TASK.promise()
    bench = await started(2)
    bench.pause(bursts, never)
    whole = []
    for i, block in enumerate(stimulus.blocks(fmt, "mixed", 100, rng, TASK.activations)):
        size = fmt.original_bytes if i % 2 else int(rng.integers(1, fmt.original_bytes))
        sent, expected = in_and_out(block.tobytes()[:size])
        bench.send(sent)
        words = await bench.receive(words_of(expected))
        assert mismatches(words, expected) == 0
        latency = words[0].offered - bench.sent[-1].cycle
        missing = (fmt.original_bytes - size) * promised.block_cycles // fmt.original_bytes
        expected_latency = promised.latency + (missing if TASK.part == "compressor" else 0)
        # A delay memory does not hold a tail back as a row of registers does.
        soonest = promised.latency if TASK.memories else expected_latency
        assert soonest <= latency <= expected_latency, (
            f"{latency} cycles for {size} bytes, not {expected_latency}"
        )
        whole += [latency] * (i % 2)
    TASK.note(latency_min=min(whole), latency_mean=float(np.mean(whole)), latency_max=max(whole))


@cocotb.test()
@cocotb.parametrize(stalls=[False, True])
async def sustains_its_throughput(dut, stalls):
    """Without stalls the uncompressed side moves a word in every cycle, or in as many as a small block takes;
    with them the rate is only measured."""
    fmt = TASK.fmt
    bench = await started(3)
    bench.pause(*((often, often) if stalls else (never, never)))
    values = stimulus.blocks(fmt, "mixed", 256, TASK.rng(3), TASK.activations)
    sent, expected = in_and_out(values.tobytes())
    bench.send(sent)
    words = await bench.receive(words_of(expected))
    assert mismatches(words, expected) == 0
    cycles = [word.cycle for word in (bench.sent if TASK.part == "compressor" else words)]
    rate = values.nbytes / (cycles[-1] - cycles[0] + 1)
    if stalls:
        TASK.note(bytes_per_cycle_stalled=rate)
        return
    TASK.note(bytes_per_cycle=rate)
    taken, promised = cycles[-1] - cycles[0] + 1, TASK.promise().cycles(len(cycles))
    assert taken == promised, f"{taken} cycles for {len(cycles)} words, not {promised}"


@cocotb.test()
async def waits_for_no_ready(dut):
    """A sink that is ready only once it sees a word gets all of them."""
    bench = await started(8)
    bench.pause(never, bench.until_offered)
    values = stimulus.blocks(TASK.fmt, "mixed", 20, TASK.rng(8), TASK.activations)
    sent, expected = in_and_out(values.tobytes())
    bench.send(sent)
    assert mismatches(await bench.receive(words_of(expected)), expected) == 0


@cocotb.test(skip=TASK.part != "decompressor")
async def a_stall_leaves_no_gap(dut):
    """What arrives while the sink stalls follows word for word, even if the source had paused before."""
    bench, stall = await started(9), TASK.stall(TASK.fmt)
    values = stimulus.blocks(TASK.fmt, "mixed", stall.blocks, TASK.rng(9), TASK.activations)
    sent, expected = in_and_out(values.tobytes())
    for taken in range(stall.places):
        received = await received_behind_a_stall(bench, stall, taken, sent, words_of(expected))
        assert mismatches(received, expected) == 0
        stall.assert_no_gap([word.cycle for word in received[taken:]])


async def received_behind_a_stall(
    bench: Bench, stall: Stall, taken: int, sent: bytes, count: int
) -> list[Word]:
    """As many words of an answer, during which the source pauses, and the sink stalls behind some words."""
    bench.pause(
        lambda _: chain([False] * stall.first, [True] * stall.patience, repeat(False)),
        lambda _: (len(bench.received) >= taken for _ in repeat(None)),
    )
    await ClockCycles(bench.dut.clk, bench.send(sent) + 2 * stall.patience)
    bench.pause(never, never)
    return await bench.receive(count)


@cocotb.test()
@cocotb.parametrize(ends=["never", "often"])
async def reset_leaves_no_trace(dut, ends):
    """A reset in any cycle of a block: what comes after is as if nothing had been before."""
    bench = await started(4)
    bench.pause(PATTERNS[ends], PATTERNS[ends])
    values = stimulus.blocks(TASK.fmt, "mixed", 5 * TASK.phases(), TASK.rng(4), TASK.activations)
    wrong = 0
    for phase in range(TASK.phases()):
        blocks = values[5 * phase : 5 * phase + 5]
        before, _ = in_and_out(blocks[:3].tobytes())
        after, expected = in_and_out(blocks[3:].tobytes())
        bench.send(before)
        if phase:
            await ClockCycles(dut.clk, phase)
        await bench.reset()
        bench.send(after)
        wrong += mismatches(await bench.receive(words_of(expected)), expected)
    assert wrong == 0, f"{wrong} blocks differ after a reset (seed {TASK.seed})"


@cocotb.test(skip=TASK.part != "compressor")
@cocotb.parametrize(idle=list(PATTERNS), stall=list(PATTERNS))
async def matches_golden_in_rare_blocks(dut, idle, stall):
    """So are blocks that random ones hardly ever are: lone bits of NaNs, nothing that has a field."""
    fmt, rng, bench = TASK.fmt, TASK.rng(11), await started(11)
    bench.pause(PATTERNS[idle], PATTERNS[stall])
    first = number_of(rng.bytes(4))
    tensors = stimulus.rare_values(fmt, first, rng)
    for values in tensors:
        bench.send(Tensor(values.tobytes(), first))
    for values in tensors:
        expected = fmt.compress(values, first).tobytes()
        assert mismatches(await bench.receive(words_of(expected)), expected) == 0
    note_coverage(bench)


@cocotb.test(skip=TASK.part != "decompressor")
@cocotb.parametrize(ends=list(PATTERNS))
async def invalid_headers_give_zeros_and_an_error(dut, ends):
    """A block with an invalid header is zeros with ``error``; behind a valid one any bytes are decoded."""
    fmt, rng = TASK.fmt, TASK.rng(5, list(PATTERNS).index(ends))
    bench = await started(5)
    bench.pause(PATTERNS[ends], PATTERNS[ends])
    ordinary = [fmt.compress(stimulus.blocks(fmt, "mixed", 20, rng, TASK.activations)) for _ in range(20)]
    tensors = [stimulus.with_broken_headers(fmt, stored, rng) for stored in ordinary]
    rows = stimulus.rare_stored(fmt, TASK.bus_bytes, rng)
    tensors += np.array_split(rows, -(-len(rows) // 20))
    wrong = 0
    firsts = [number_of(stored.tobytes()) for stored in tensors]
    for stored, first in zip(tensors, firsts, strict=True):
        bench.send(Tensor(stored.tobytes(), first))
    for stored, first in zip(tensors, firsts, strict=True):
        expected, errors = oracle.decoded(fmt, stored, first)
        wrong += mismatches(await bench.receive(words_of(expected)), expected, errors)
    assert wrong == 0, f"{wrong} blocks are wrong beside invalid ones (seed {TASK.seed})"
    note_coverage(bench)


@cocotb.test(skip=TASK.part != "decompressor")
@cocotb.parametrize(ends=list(PATTERNS))
async def a_stream_that_breaks_off_ends_with_an_error(dut, ends):
    """Bytes that end in the middle of a block give one block with ``error``, and ``last``."""
    fmt, rng = TASK.fmt, TASK.rng(6)
    bench = await started(6)
    bench.pause(PATTERNS[ends], PATTERNS[ends])
    blocks = max(3 * TASK.bus_bytes // fmt.target, 3)
    data = stimulus.blocks(fmt, "mixed", blocks, rng).tobytes()
    stored, values = in_and_out(data)
    whole, after = in_and_out(data[: fmt.original_bytes])
    inside_headers = [b * fmt.target + h for b in range(blocks) for h in range(1, fmt.header_bytes)]
    anywhere = rng.permutation(range(1, len(stored)))[:100]
    behind_blocks = [b * fmt.target + h for b in range(1, blocks) for h in range(1, min(fmt.target, 16))]
    sizes = rng.permutation([*anywhere, *np.resize(inside_headers, 50), *behind_blocks])
    for size in sizes:
        bench.send(stored[:size])
        bench.send(whole)
    for size in sizes:
        complete, rest = divmod(int(size), fmt.target)
        expected = values[: complete * fmt.original_bytes] + bytes(fmt.original_bytes if rest else 0)
        errors = {complete} if rest else set()
        assert mismatches(await bench.receive(words_of(expected)), expected, errors) == 0, f"{size} bytes"
        assert mismatches(await bench.receive(words_of(after)), after) == 0, f"after {size} bytes"
    note_coverage(bench)


@cocotb.test(skip=TASK.part != "decompressor")
async def any_bytes_give_one_last_word_a_tensor(dut):
    """Whatever the bytes, the decompressor neither hangs nor loses track of tensors."""
    rng = TASK.rng(7)
    bench = await started(7)
    bench.pause(often, often)
    for _ in range(100):
        size = int(rng.integers(1, 8 * TASK.bus_bytes))
        density = rng.choice([0.0, 0.1, 1.0])
        noise = np.where(rng.random(size) < density, rng.integers(0, 256, size), 0).astype(np.uint8)
        bench.send(noise.tobytes())
        while not (await bench.receive(1))[0].last:
            pass
    assert not bench.received
