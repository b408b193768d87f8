"""The promises of both engines, checked in a simulator. Run by ``python -m cocotb_tests``, not by pytest.

Which engine the simulator holds, and where to leave the measurements, stands in the environment
variable ``BITSTASH_BENCH``, as written by :mod:`cocotb_tests.runner`.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import cocotb
import numpy as np

from cocotb_tests import stimulus
from cocotb_tests.streams import PATTERNS, Bench, Word, often
from golden import PlaneFormat


@dataclass(frozen=True)
class Task:
    """What this simulator run is about, as read from the environment."""

    part: str
    fmt: PlaneFormat
    bus_bytes: int
    latency: int
    blocks: int
    seed: int
    activations: Path | None
    results: Path

    @classmethod
    def read(cls) -> Task:
        task = json.loads(os.environ["BITSTASH_BENCH"])
        task["fmt"] = PlaneFormat(**task["fmt"])
        task["activations"] = task["activations"] and Path(task["activations"])
        return cls(**(task | {"results": Path(task["results"])}))

    def note(self, **figures) -> None:
        """Leave measurements for the runner."""
        known = json.loads(self.results.read_text()) if self.results.exists() else {}
        self.results.write_text(json.dumps(known | figures))

    def rng(self, salt: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, salt])


TASK = Task.read()
PASSES = list(PATTERNS)  # of idling and stalling: every pair is a share of the blocks


def padded(data: bytes, size: int) -> bytes:
    return data.ljust(-(-len(data) // size) * size, b"\0")


def in_and_out(values: np.ndarray) -> tuple[bytes, bytes]:
    """The bytes to send for a tensor and those that golden/ expects in return."""
    fmt = TASK.fmt
    raw = padded(values.tobytes(), fmt.raw_bytes)
    stored = fmt.compress(np.frombuffer(raw, fmt.float_type.bits).view(fmt.float_type.array))
    if TASK.part == "compressor":
        # The hardware pads a tail block itself, but values that fill the bus word count as values.
        sent = padded(values.tobytes(), TASK.bus_bytes)
        whole = padded(sent, fmt.raw_bytes)
        stored = fmt.compress(np.frombuffer(whole, fmt.float_type.bits).view(fmt.float_type.array))
        return sent, padded(stored.tobytes(), TASK.bus_bytes)
    values = fmt.decompress(stored, len(raw) * 8 // fmt.float_type.width)
    return stored.tobytes(), padded(values.tobytes(), TASK.bus_bytes)


def mismatches(words: list[Word], expected: bytes, errors: set[int] = frozenset()) -> int:
    """Blocks in which the received words differ from the expected bytes, or a flag is wrong.

    Args:
        words: all words of one tensor.
        expected: its bytes, a whole number of words.
        errors: the blocks that must come with ``error``.
    """
    size = TASK.bus_bytes
    block = TASK.fmt.target if TASK.part == "compressor" else TASK.fmt.raw_bytes
    bad = set()
    for i, word in enumerate(words):
        blocks = range(i * size // block, -(-(i + 1) * size // block))
        should_err = any(b in errors for b in blocks)
        is_last = (i + 1) * size == len(expected)
        if word.data != expected[i * size : (i + 1) * size] or (word.last, word.error) != (
            is_last,
            should_err,
        ):
            bad.update(blocks)
    return len(bad)


async def started(salt: int) -> Bench:
    bench = Bench(cocotb.top, TASK.bus_bytes, TASK.seed + salt)
    await bench.start()
    return bench


@cocotb.test()
async def matches_golden_under_any_back_pressure(dut):
    """Every block equals golden/'s, in tensors of all lengths, back to back, however the ends stall."""
    rng = TASK.rng(1)
    bench = await started(1)
    fmt = TASK.fmt
    done = wrong = 0
    passes = [(idle, stall) for idle in PASSES for stall in PASSES]
    for number, (idle, stall) in enumerate(passes):
        bench.pause(PATTERNS[idle], PATTERNS[stall])
        count = TASK.blocks * (number + 1) // len(passes) - TASK.blocks * number // len(passes)
        values = stimulus.blocks(fmt, count, rng, TASK.activations).reshape(-1)
        start = 0
        tensors = []
        for length in stimulus.tensor_lengths(count, fmt.block, rng):
            tensors.append(in_and_out(values[start : start + length]))
            start += fmt.blocks(length) * fmt.block
        for sent, _ in tensors:
            bench.send(sent)
        for _, expected in tensors:
            words = await bench.receive(len(expected) // TASK.bus_bytes)
            wrong += mismatches(words, expected)
        done += count
    TASK.note(blocks=done, mismatches=wrong)
    assert wrong == 0, f"{wrong} of {done} blocks differ from golden/ (seed {TASK.seed})"
    assert not bench.received, "words without a tensor"


@cocotb.test()
async def sustains_its_throughput_and_latency(dut):
    """Without stalls the uncompressed side moves a word a cycle; one block takes the stated latency."""
    fmt = TASK.fmt
    bench = await started(2)
    values = stimulus.blocks(fmt, 64, TASK.rng(2), TASK.activations)
    latencies = []
    for block in values[:8]:
        sent, expected = in_and_out(block)
        bench.send(sent)
        words = await bench.receive(len(expected) // TASK.bus_bytes)
        assert mismatches(words, expected) == 0
        latencies.append(words[0].offered - bench.sent[-1].cycle)

    bench.sent.clear()
    sent, expected = in_and_out(values.reshape(-1))
    bench.send(sent)
    words = await bench.receive(len(expected) // TASK.bus_bytes)
    assert mismatches(words, expected) == 0
    cycles = [word.cycle for word in (bench.sent if TASK.part == "compressor" else words)]
    rate = values.nbytes / (cycles[-1] - cycles[0] + 1)
    TASK.note(bytes_per_cycle=rate, latency_cycles=max(latencies))
    floor = TASK.bus_bytes if fmt.raw_bytes >= 2 * TASK.bus_bytes else fmt.raw_bytes / 2
    assert rate >= 0.97 * floor, f"{rate:.1f} bytes a cycle, not {floor}"
    assert max(latencies) <= TASK.latency, f"{max(latencies)} cycles of latency, not {TASK.latency}"


@cocotb.test()
async def reset_leaves_no_trace(dut):
    """A reset in any cycle of a block: what comes after is as if nothing had been before."""
    bench = await started(3)
    bench.pause(often, often)
    values = stimulus.blocks(TASK.fmt, 200, TASK.rng(3), TASK.activations)
    wrong = 0
    for phase in range(40):
        before, _ = in_and_out(values[phase : phase + 3].reshape(-1))
        after, expected = in_and_out(values[100 + phase : 102 + phase].reshape(-1))
        bench.send(before)
        for _ in range(phase):
            await cocotb.triggers.RisingEdge(dut.clk)
        await bench.reset()
        bench.send(after)
        wrong += mismatches(await bench.receive(len(expected) // TASK.bus_bytes), expected)
    assert wrong == 0, f"{wrong} blocks differ after a reset (seed {TASK.seed})"


@cocotb.test(skip=TASK.part != "decompressor")
async def invalid_headers_give_zeros_and_an_error(dut):
    """A block with a header that no encoder produces is zeros with ``error``; its neighbours are intact."""
    fmt, rng = TASK.fmt, TASK.rng(4)
    bench = await started(4)
    bench.pause(often, often)
    wrong = invalid_count = 0
    for _ in range(60):
        stored = fmt.compress(stimulus.blocks(fmt, 20, rng, TASK.activations).reshape(-1))
        hit = np.flatnonzero(rng.random(len(stored)) < 0.5)
        stored[hit, rng.integers(0, fmt.header_bytes, len(hit))] ^= rng.integers(1, 256, len(hit)).astype(
            np.uint8
        )
        # Of a word's fill only an all-zero header is told from a block: keep those for the middle.
        stored[-1, 0] |= not stored[-1, : fmt.header_bytes].any()
        invalid = fmt.check_headers(stored[:, : fmt.header_bytes])
        safe = stored.copy()
        safe[invalid] = fmt.compress(np.zeros(fmt.block, fmt.float_type.array))
        values = fmt.decompress(safe, (len(stored), fmt.block))
        bench.send(stored.tobytes())
        expected = padded(values.tobytes(), TASK.bus_bytes)
        words = await bench.receive(len(expected) // TASK.bus_bytes)
        wrong += mismatches(words, expected, set(np.flatnonzero(invalid).tolist()))
        invalid_count += int(invalid.sum())
    assert invalid_count > 100
    assert wrong == 0, f"{wrong} blocks are wrong beside {invalid_count} invalid ones (seed {TASK.seed})"


@cocotb.test(skip=TASK.part != "decompressor")
async def a_stream_that_breaks_off_ends_with_an_error(dut):
    """Bytes that end in the middle of a block give one block with ``error``, and ``last``."""
    fmt = TASK.fmt
    bench = await started(5)
    blocks = max(3 * TASK.bus_bytes // fmt.target, 3)
    values = stimulus.blocks(fmt, blocks, TASK.rng(5), None).reshape(-1)
    stored = fmt.compress(values).tobytes()
    whole, expected = in_and_out(values[: fmt.block])
    for words in range(1, len(stored) // TASK.bus_bytes):
        cut = stored[: words * TASK.bus_bytes]
        complete, rest = divmod(len(cut), fmt.target)
        bench.send(cut)
        bench.send(whole)
        broken = complete == 0 or rest >= TASK.bus_bytes
        count = -(-(complete + broken) * fmt.raw_bytes // TASK.bus_bytes)
        received = await bench.receive(count)
        assert [word.last for word in received] == [False] * (count - 1) + [True]
        assert received[-1].error == broken
        assert mismatches(await bench.receive(len(expected) // TASK.bus_bytes), expected) == 0


@cocotb.test(skip=TASK.part != "decompressor")
async def any_bytes_give_one_last_word_a_tensor(dut):
    """Whatever the bytes, the decompressor neither hangs nor loses track of tensors."""
    rng = TASK.rng(6)
    bench = await started(6)
    bench.pause(often, often)
    for _ in range(100):
        size = int(rng.integers(1, 8)) * TASK.bus_bytes
        density = rng.choice([0.0, 0.1, 1.0])
        noise = np.where(rng.random(size) < density, rng.integers(0, 256, size), 0).astype(np.uint8)
        bench.send(noise.tobytes())
        while not (await bench.receive(1))[0].last:
            pass
    assert not bench.received
