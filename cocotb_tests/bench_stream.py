"""The promises of the parts of rtl/stream, checked in a simulator. Run by ``python -m cocotb_tests``.

Which part the simulator holds stands in the environment variable ``BITSTASH_BENCH``, as written by
:mod:`cocotb_tests.runner`.
"""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import RisingEdge, Timer
from cocotb.utils import get_sim_time

from cocotb_tests.notes import Noting
from cocotb_tests.streams import PATTERNS, Pattern, Sink, Source, Word, never, often


@dataclass(frozen=True)
class Task(Noting):
    """What this simulator run is about, as read from the environment."""

    kind: str
    size: int
    depth: int | None
    words: int
    seed: int


TASK = Task(**json.loads(os.environ["BITSTASH_BENCH"]))
HAS_TWO_CLOCKS = TASK.kind == "AsyncFifo"

# Periods of the source's and the sink's clock, and by how much the latter lags: equal, a multiple, nearly
# equal, coprime; in simulation steps.
CLOCKS = [(2, 2, 0), (4, 4, 1), (2, 14, 3), (14, 2, 0), (20, 22, 7), (22, 20, 5), (10, 26, 1)]
CLOCKS = CLOCKS if HAS_TWO_CLOCKS else CLOCKS[:1]

# What a part holds, how many cycles of the slower clock a word takes, and how many edges of the sink's clock
# after a word was taken see it first.
CAPACITY = {"FullSlice": 2, "HalfSlice": 1}.get(TASK.kind, TASK.depth)
WORD_CYCLES = 2 if TASK.kind == "HalfSlice" else 1
LATENCY = 3 if HAS_TWO_CLOCKS else 1
RESET_CYCLES = 6 if HAS_TWO_CLOCKS else 1


class TB:
    """Clocks, resets, source and sink. Times are in simulation steps."""

    def __init__(self, dut, clocks: tuple[int, int, int], salt: int):
        self.dut = dut
        self.rng = random.Random(f"{TASK.seed} {salt}")
        self.source = Source(dut, TASK.size, never(self.rng))
        self.sink = Sink(dut, TASK.size, never(self.rng))
        *self.periods, self.lag = clocks
        prefixes = ("write_", "read_") if HAS_TWO_CLOCKS else ("",)
        self.clks = [getattr(dut, f"{prefix}clk") for prefix in prefixes]
        self.rsts = [getattr(dut, f"{prefix}rst") for prefix in prefixes]

    @classmethod
    async def started(cls, clocks: tuple[int, int, int], salt: int) -> TB:
        tb = cls(cocotb.top, clocks, salt)
        tb.dut.i_payload.value = 0
        tb.dut.o_ready.value = 0
        for clk, period, lag in zip(tb.clks, tb.periods, (0, tb.lag), strict=False):
            clk.value = 0
            cocotb.start_soon(tb._tick(clk, period, lag))
        ends = (tb.source, tb.sink)
        for clk, rst, own in zip(
            tb.clks, tb.rsts, (ends[:1], ends[1:]) if HAS_TWO_CLOCKS else (ends,), strict=True
        ):
            cocotb.start_soon(tb._run(clk, rst, own))
        await tb.reset()
        return tb

    async def reset(self) -> None:
        """Reset all there is; what was queued and received is gone."""
        self.dut.i_valid.value = 0
        self.source.queue.clear()
        for rst in self.rsts:
            rst.value = 1
        await self.cycles(1)
        for _ in range(RESET_CYCLES):
            assert not int(self.dut.o_valid.value), "offers a word in the cycle after reset asserts"
            await self.cycles(1)
        for rst in self.rsts:
            rst.value = 0
        for words in (self.source.taken, self.sink.given, self.sink.received):
            words.clear()

    async def cycles(self, count: int) -> None:
        """Wait for cycles of the slower clock."""
        await Timer(count * self.slower, unit="step")

    @property
    def slower(self) -> int:
        return max(self.periods)

    def pause(self, idle: Pattern, stall: Pattern) -> None:
        self.source.idle, self.sink.stall = idle(self.rng), stall(self.rng)

    def send(self, count: int) -> list[Word]:
        """Queue words of anything; the bytes that are empty behind a tensor's end are 0."""
        rng, words = self.rng, []
        for _ in range(count):
            last = rng.random() < 0.2
            size = rng.randint(1, TASK.size) if last else TASK.size
            words.append(Word(rng.randbytes(size), last))
        self.source.queue.extend(words)
        return words

    async def receive(self, count: int) -> list[Word]:
        received = self.sink.received
        since, progress = 0, -1
        while len(received) < count:
            since, progress = (since + 1, progress) if len(received) == progress else (0, len(received))
            assert since < 1000, f"hangs: {len(received)} of {count} words received"
            await self.cycles(1)
        words = received[:count]
        del received[:count]
        return words

    async def _tick(self, clk, period: int, lag: int) -> None:
        await Timer(1 + lag, unit="step")
        Clock(clk, period, unit="step").start()

    async def _run(self, clk, rst, ends: tuple[Source | Sink, ...]) -> None:
        while True:
            await RisingEdge(clk)
            now = get_sim_time("step")
            for end in ends:
                if rst.value:
                    end.reset()
                else:
                    end.edge(now)


def mismatches(received: list[Word], sent: list[Word]) -> int:
    pairs = zip(received, sent, strict=True)
    return sum((got.data, got.last) != (word.data, word.last) for got, word in pairs)


@cocotb.test()
@cocotb.parametrize(idle=list(PATTERNS), stall=list(PATTERNS), clocks=range(len(CLOCKS)))
async def gives_every_word_in_its_turn(dut, idle, stall, clocks):
    """Nothing is lost, added or changed, however the ends pause."""
    tb = await TB.started(CLOCKS[clocks], 1)
    tb.pause(PATTERNS[idle], PATTERNS[stall])
    sent = tb.send(TASK.words // (len(PATTERNS) ** 2 * len(CLOCKS)) + 1)
    wrong = mismatches(await tb.receive(len(sent)), sent)
    TASK.note(words=len(sent), mismatches=wrong)
    assert wrong == 0, f"{wrong} of {len(sent)} words are wrong (seed {TASK.seed})"
    await tb.cycles(20)
    assert not tb.sink.received, "words that nobody sent"


@cocotb.test()
@cocotb.parametrize(clocks=range(len(CLOCKS)))
async def sustains_its_throughput(dut, clocks):
    """Without pauses a word takes just as many cycles of the slower clock as promised."""
    count = 200
    tb = await TB.started(CLOCKS[clocks], 2)
    for pattern, name in ((never, "words_per_cycle"), (often, "words_per_cycle_stalled")):
        tb.pause(pattern, pattern)
        tb.source.taken.clear()
        sent = tb.send(count)
        given = await tb.receive(count)
        assert mismatches(given, sent) == 0
        # At the source all of a FIFO's depth may be taken at once.
        source_is_slower = tb.periods[0] > tb.periods[1]
        times = [word.cycle for word in (tb.source.taken if source_is_slower else given)]
        cycles = (times[-1] - times[0]) // tb.slower + 1
        if clocks == 0:
            TASK.note(**{name: count / cycles})
        if pattern is never and TASK.depth != 4:
            promised = (count - 1) * WORD_CYCLES + 1
            assert cycles == promised, f"{cycles} cycles for {count} words, not {promised}"


@cocotb.test()
@cocotb.parametrize(clocks=range(len(CLOCKS)))
async def takes_its_latency(dut, clocks):
    """A word into an empty part is first seen by the stated edge of the sink's clock after it was taken."""
    tb = await TB.started(CLOCKS[clocks], 3)
    latencies = set()
    for _ in range(50):
        await Timer(tb.rng.randint(1, 3 * tb.slower), unit="step")
        sent = tb.send(1)
        (word,) = await tb.receive(1)
        assert mismatches([word], sent) == 0
        period, taken = tb.periods[1], tb.source.taken[-1].cycle
        latencies.add(-(-(word.offered - taken) // period))
    TASK.note(latency_min=min(latencies), latency_max=max(latencies))
    assert latencies == {LATENCY}, f"seen by edges {latencies}, not {LATENCY}"


@cocotb.test()
@cocotb.parametrize(clocks=range(len(CLOCKS)))
async def holds_as_many_words_as_it_says(dut, clocks):
    """A sink that takes none stops the source after so many; all of them come once it takes them."""
    tb = await TB.started(CLOCKS[clocks], 4)
    tb.pause(never, lambda rng: iter(lambda: True, None))
    sent = tb.send(3 * CAPACITY)
    await tb.cycles(6 * CAPACITY + 20)
    assert len(tb.source.taken) == CAPACITY
    tb.pause(never, never)
    assert mismatches(await tb.receive(len(sent)), sent) == 0


@cocotb.test()
@cocotb.parametrize(clocks=range(len(CLOCKS)))
async def waits_for_no_ready(dut, clocks):
    """A sink that is ready only once it sees a word gets all of them."""
    tb = await TB.started(CLOCKS[clocks], 5)
    tb.pause(never, lambda rng: (not tb.sink.is_offered for _ in iter(int, 1)))
    sent = tb.send(50)
    assert mismatches(await tb.receive(len(sent)), sent) == 0


@cocotb.test()
@cocotb.parametrize(clocks=range(len(CLOCKS)))
async def reset_leaves_no_trace(dut, clocks):
    """A reset at any time: what comes after is as if nothing had been before."""
    tb = await TB.started(CLOCKS[clocks], 6)
    for phase in range(40):
        tb.pause(*((often, often) if phase % 2 else (never, often)))
        tb.send(3 * CAPACITY)
        await Timer(1 + phase * tb.slower // 2 + phase % 3, unit="step")
        await tb.reset()
        sent = tb.send(3 * CAPACITY)
        wrong = mismatches(await tb.receive(len(sent)), sent)
        assert wrong == 0, f"{wrong} words are wrong after reset {phase} (seed {TASK.seed})"
