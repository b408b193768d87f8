"""The promises of the memory engine, against golden/memory.py.

Which engine it is stands in the environment variable ``BITSTASH_BENCH``.
"""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cocotb
import numpy as np
from cocotb.triggers import RisingEdge, Timer

from cocotb_tests.axi4 import Accelerator, Lite, SlowMemory
from cocotb_tests.streams import often
from golden import FORMATS
from golden.bursts import PAGE, Burst, BurstKind, Response
from golden.memory import Dram, ErrorKind, MemoryModel, Region
from rtl.memory.map import COUNTERS, address_of


@dataclass(frozen=True)
class Task:
    """What this simulator run is about, as read from the environment."""

    formats: list[tuple[str, dict[str, Any]]]
    bus_bytes: int
    memory_bytes: int
    bursts: int
    seed: int
    results: str

    def note(self, **figures) -> None:
        """Leave measurements for the runner: a line for each call."""
        with Path(self.results).open("a") as file:
            file.write(json.dumps(figures) + "\n")


TASK = Task(**json.loads(os.environ["BITSTASH_BENCH"]))
FORMATS_HERE = [FORMATS[scheme](**parameters) for scheme, parameters in TASK.formats]
BUS = TASK.bus_bytes
KINDS = list(ErrorKind)
REGION_PAGES = 4
OKAY, SLVERR = Response.OKAY, Response.SLVERR


class TB:
    """Clock, reset, accelerator, memory, registers, and the model that says what must come of it all."""

    def __init__(self, dut, salt: str, latency: int):
        self.dut = dut
        self.rng = random.Random(f"{TASK.seed} {salt}")
        self.random = np.random.default_rng([TASK.seed, len(salt)])
        self.cycle = 0
        content = np.zeros(1 << 18, np.uint8)
        self.accelerator = Accelerator(dut, BUS)
        self.memory = SlowMemory(dut, Dram(content, TASK.memory_bytes), latency)
        self.lite = Lite(dut)
        self.model = MemoryModel(Dram(content.copy(), TASK.memory_bytes), BUS)
        self.regions: list[Region] = []

    @classmethod
    async def started(cls, salt: str, latency: int = 8) -> TB:
        """An engine with a region for each format and one in bypass behind them, 16 pages apart."""
        dut = cocotb.top
        tb = cls(dut, salt, latency)
        dut.aclk.value = 0
        dut.aresetn.value = 0
        cocotb.start_soon(tb._tick())
        for _ in range(3):
            await RisingEdge(dut.aclk)
        dut.aresetn.value = 1
        cocotb.start_soon(tb._run())
        for i, fmt in enumerate([*FORMATS_HERE, None]):
            await tb.enable(i, Region(16 * i * PAGE, REGION_PAGES * PAGE, (40 - 5 * i) * PAGE, fmt))
        return tb

    async def _tick(self) -> None:
        while True:
            self.dut.aclk.value = 1
            await Timer(1)
            self.dut.aclk.value = 0
            await Timer(1)

    async def _run(self) -> None:
        while True:
            await RisingEdge(self.dut.aclk)
            self.cycle += 1
            for part in (self.accelerator, self.memory, self.lite):
                part.edge(self.cycle)

    async def cycles(self, count: int) -> None:
        for _ in range(count):
            await RisingEdge(self.dut.aclk)

    async def until(self, condition, limit: int = 20_000) -> None:
        for _ in range(limit):
            if condition():
                return
            await RisingEdge(self.dut.aclk)
        raise AssertionError(f"nothing happens any more in cycle {self.cycle}")

    async def set(self, name: str, value: int, index: int = 0) -> Response:
        self.lite.write(address_of(name, index), value)
        await self.until(lambda: self.lite.b.received)
        return Response(self.lite.written())

    async def get(self, name: str, index: int = 0) -> int:
        self.lite.read(address_of(name, index))
        await self.until(lambda: self.lite.r.received)
        found = self.lite.found()
        assert found["resp"] == OKAY
        return found["data"]

    async def enable(self, index: int, region: Region) -> None:
        values = {
            "REGION_BASE": region.base // PAGE,
            "REGION_SIZE": region.size // PAGE,
            "REGION_STORED": region.stored // PAGE,
            "REGION_CONTROL": 1 | (FORMATS_HERE.index(region.fmt) + 1 if region.fmt else 0) << 8,
        }
        for name, value in values.items():
            assert await self.set(name, value, index) == OKAY
        self.model.enable(index, region)
        self.regions.append(region)

    async def quiet(self) -> None:
        """Until nothing moves any more but what waits for a block."""
        quiet, before, start = 0, None, self.cycle
        while quiet < 70 + 2 * self.memory.latency:
            await RisingEdge(self.dut.aclk)
            assert self.cycle < start + 20_000, f"nothing happens any more in cycle {self.cycle}"
            now = len(self.accelerator.responses), self.memory.beats_written
            quiet = quiet + 1 if now == before and self.accelerator.is_idle else 0
            before = now

    def random_burst(self) -> Burst:
        """Any burst that AXI4 allows, in any region or none."""
        rng = self.rng
        size = 1 << rng.randint(0, BUS.bit_length() - 1)
        if rng.random() < 0.6:
            size = BUS
        region = rng.choice(self.regions)
        address = region.base + rng.randrange(region.size)
        if rng.random() < 0.7:  # close together
            address = region.base + rng.choice([0, 0x400, PAGE]) + rng.randrange(0x180)
        if rng.random() < 0.03:
            address = region.base + region.size + rng.randrange(PAGE)
        kind = rng.choices(list(BurstKind), [1, 8, 3])[0]
        if kind == BurstKind.WRAP:
            return Burst(address - address % size, rng.choice([2, 4, 8, 16]), size, kind)
        if kind == BurstKind.FIXED:
            return Burst(address, rng.randint(1, 16), size, kind)
        if rng.random() < 0.4:  # whole blocks, perhaps
            address -= address % 512
        most = (PAGE - address % PAGE + address % size) // size
        return Burst(address, min(most, rng.choice([1, 2, 3, 8, 16, 64, 256])), size, kind)

    def random_content(self, burst: Burst) -> tuple[np.ndarray, np.ndarray]:
        lanes = burst.lanes(BUS)
        words = self.random.integers(0, 256, lanes.shape, np.uint8)
        share = self.rng.choice([1, 1, 1, 0.5, 0])
        return words, lanes & (self.random.random(lanes.shape) < share)


@cocotb.test()
async def bursts_one_after_the_other_are_as_the_model_says(_):
    """Every burst waits for the one before, or until that one waits for a block."""
    tb = await TB.started("one after the other", latency=3)
    await tb.set("TIMEOUT", 1 << 30)
    for _ in range(TASK.bursts):
        await one_burst(tb)
    assert (tb.memory.dram.content == tb.model.dram.content).all()
    await check_errors(tb)
    TASK.note(bursts=TASK.bursts)


async def one_burst(tb: TB) -> None:
    burst = tb.random_burst()
    if tb.rng.random() < 0.5:
        ticket = tb.accelerator.read(burst, master=tb.rng.randrange(4))
        await tb.quiet()
        words, responses = tb.model.read(burst)
        found, answers = tb.accelerator.reads.pop(ticket)
        assert answers == responses, f"{burst}: {answers}, not {responses}"
        assert (found == words).all(), f"{burst}: beats {np.flatnonzero((found != words).any(axis=1))}"
    else:
        words, strobes = tb.random_content(burst)
        options = {"bufferable": tb.rng.random() < 0.3, "master": tb.rng.randrange(4)}
        ticket = tb.accelerator.write(burst, words, strobes, **options)
        model_ticket = tb.model.write(burst, words, strobes, **options)
        tickets[ticket] = model_ticket
        await tb.quiet()
    found = {tickets[ticket]: answer for ticket, answer in tb.accelerator.responses.items()}
    assert found == tb.model.responses, f"{burst}: {set(found.items()) ^ set(tb.model.responses.items())}"


tickets: dict[int, int] = {}


async def check_errors(tb: TB) -> None:
    kinds = await tb.get("ERRORS")
    for i, kind in enumerate(KINDS):
        addresses = [address for found, address in tb.model.errors if found == kind]
        assert kinds >> i & 1 == bool(addresses), f"{kind}: {addresses}"
        if addresses:
            low, high = await tb.get("ERROR_ADDRESS_LOW", i), await tb.get("ERROR_ADDRESS_HIGH", i)
            assert low | high << 32 == addresses[0], kind


@cocotb.test()
async def masters_at_once_each_see_their_own_writes(_):
    """Each in places of its own: whole blocks written and read back, with pauses on every channel."""
    tb = await TB.started("masters at once", latency=5)
    for channel in (*tb.accelerator.channels, *tb.memory.channels):
        channel.pause = often(tb.rng)
    await tb.set("TIMEOUT", 1 << 30)
    each = max(TASK.bursts // 8, 4)
    for master in [cocotb.start_soon(one_master(tb, master, each)) for master in range(4)]:
        await master
    await tb.quiet()
    assert (tb.memory.dram.content == tb.model.dram.content).all()
    assert await tb.get("ERRORS") == 0
    TASK.note(bursts=8 * each)


async def one_master(tb: TB, master: int, count: int) -> None:
    accelerator, rng = tb.accelerator, random.Random(f"{TASK.seed} {master}")
    for _ in range(count):
        region = rng.choice(tb.regions)
        block = region.fmt.raw_bytes if region.fmt else 256
        blocks = rng.randint(1, 1024 // block)
        start = (
            region.base
            + master * PAGE // 4
            + rng.choice([0, PAGE])
            + block * rng.randint(0, 1024 // block - blocks)
        )
        burst = Burst(start, blocks * block // BUS, BUS)
        words = tb.random.integers(0, 256, (burst.beats, BUS), np.uint8)
        strobes = np.ones(words.shape, bool)
        options = {"bufferable": rng.random() < 0.5, "master": master}
        ticket = accelerator.write(burst, words, strobes, **options)
        tb.model.write(burst, words, strobes, **options)
        await tb.until(lambda ticket=ticket: ticket in accelerator.responses)
        assert accelerator.responses[ticket] == OKAY
        place = Burst(burst.address - burst.address % 1024, 1024 // BUS, BUS) if rng.random() < 0.5 else burst
        ticket = accelerator.read(place, master=master)
        await tb.until(lambda ticket=ticket: ticket in accelerator.reads)
        found, answers = accelerator.reads.pop(ticket)
        expected, responses = tb.model.read(place)
        assert answers == responses, f"master {master}, {place}"
        assert (found == expected).all(), f"master {master}, {place}"


@cocotb.test()
async def long_bursts_keep_both_directions_busy(_):
    """Reads and writes of 1 KiB and 4 KiB, behind a memory of 100 cycles; the formats in turn, too."""
    tb = await TB.started("rates", latency=100)
    figures = {}
    for name, regions in rated(tb):
        for size in (1024, PAGE):
            figures[f"{name}_{size}"] = await rates(tb, regions, size)
    TASK.note(rates=figures)


def rated(tb: TB) -> list[tuple[str, list[Region]]]:
    *compressed, bypass = tb.regions
    named = [(region.fmt.scheme, [region]) for region in compressed]
    return [*named, ("bypass", [bypass]), *([("in_turn", compressed)] if len(compressed) > 1 else [])]


async def rates(tb: TB, regions: list[Region], size: int) -> dict[str, float]:
    """Bytes a cycle in either direction, and beats of memory beyond the stored bytes."""
    accelerator, count = tb.accelerator, 64 * 1024 // size
    before = await counters(tb)
    written, read = [], []
    for i in range(count):
        region = regions[i % len(regions)]
        place = i // len(regions) * size % (REGION_PAGES // 2 * PAGE)
        burst = Burst(region.base + place, size // BUS, BUS)
        words = tb.random.normal(size=(burst.beats, BUS // 4)).astype(np.float32).view(np.uint8)
        written.append(accelerator.write(burst, words, np.ones(words.shape, bool), bufferable=True))
        behind = Burst(burst.address + REGION_PAGES // 2 * PAGE, burst.beats, BUS)
        read.append(accelerator.read(behind))
    await tb.until(
        lambda: len(accelerator.reads) == count and all(t in accelerator.responses for t in written)
    )
    # Without the first quarter, in which the pipelines fill.
    figures = {}
    for name, sent in (("write", written), ("read", read)):
        ends = [accelerator.ended[ticket] for ticket in sent]
        first = count // 4
        figures[name] = (count - first - 1) * size / (ends[-1] - ends[first])
    accelerator.reads.clear()
    await tb.quiet()
    after = await counters(tb)
    for direction in ("READ", "WRITE"):
        beats = after[f"MEMORY_{direction}_BEATS"] - before[f"MEMORY_{direction}_BEATS"]
        stored = sum(
            size * (region.fmt.target / region.fmt.raw_bytes if region.fmt else 1) for region in regions
        )
        stored *= count / len(regions)
        figures[f"{direction.lower()}_excess"] = beats * TASK.memory_bytes / stored - 1
    return figures


async def counters(tb: TB) -> dict[str, int]:
    return {name: await tb.get(name) for name, _ in COUNTERS}


@cocotb.test()
async def single_reads_add_little(_):
    """Cycles of a read of a block, or of a word in bypass, beyond those of the memory."""
    tb = await TB.started("latency", latency=20)
    figures = {}
    for region in tb.regions:
        ticket = tb.accelerator.read(Burst(region.base + PAGE, 1, BUS))
        await tb.until(lambda ticket=ticket: ticket in tb.accelerator.reads)
        ended = tb.accelerator.ended[ticket]
        asked, answered = tb.memory.times.pop()
        name = region.fmt.scheme if region.fmt else "bypass"
        figures[name] = {"there": asked - tb.accelerator.ar.taken_at, "back": ended - answered}
    TASK.note(latency=figures)


@cocotb.test(skip=not FORMATS_HERE)
async def small_reads_in_a_row_use_the_block_that_is_there(_):
    """Single words, one behind the other."""
    tb = await TB.started("small reads", latency=6)
    count, figures = 256, {}
    for region in tb.regions[:-1]:
        asked = [tb.accelerator.read(Burst(region.base + i * BUS % (2 * PAGE), 1, BUS)) for i in range(count)]
        await tb.until(lambda: len(tb.accelerator.reads) == count)
        ends = [tb.accelerator.ended[ticket] for ticket in asked]
        figures[region.fmt.scheme] = (count - 65) * BUS / (ends[-1] - ends[64])
        tb.accelerator.reads.clear()
    TASK.note(small_reads=figures)


@cocotb.test(skip=not FORMATS_HERE)
async def a_block_that_stays_incomplete_is_dropped_in_time(_):
    tb = await TB.started("timeout")
    region = tb.regions[0]
    await tb.set("TIMEOUT", 200)
    await tb.set("INTERRUPTS", 63)
    burst = Burst(region.base, 1, BUS)
    ticket = tb.accelerator.write(burst, np.ones((1, BUS), np.uint8), np.ones((1, BUS), bool))
    await tb.cycles(150)
    assert not tb.accelerator.responses
    assert not tb.dut.irq.value
    await tb.until(lambda: tb.accelerator.responses, 100)
    assert tb.accelerator.responses == {ticket: SLVERR}
    assert tb.dut.irq.value
    assert await tb.get("ERRORS") == 1 << KINDS.index(ErrorKind.EVICTED)
    assert await tb.set("ERRORS", 63) == OKAY
    assert not tb.dut.irq.value


@cocotb.test(skip=not FORMATS_HERE)
async def a_region_is_disabled_once_it_is_drained(_):
    """Its open blocks are dropped first; it cannot be changed before, nor at all when it is locked."""
    tb = await TB.started("disable")
    region = tb.regions[0]
    await tb.set("TIMEOUT", 1 << 30)
    ticket = tb.accelerator.write(
        Burst(region.base, 1, BUS), np.ones((1, BUS), np.uint8), np.ones((1, BUS), bool)
    )
    whole = Burst(region.base + PAGE, PAGE // BUS // 16, BUS)
    read = tb.accelerator.read(whole)
    assert await tb.set("REGION_BASE", 77) == SLVERR
    assert await tb.get("REGION_BASE") == region.base // PAGE
    assert await tb.set("REGION_CONTROL", 0) == OKAY
    assert tb.accelerator.responses.get(ticket, SLVERR) == SLVERR
    assert read in tb.accelerator.reads
    await tb.quiet()
    assert tb.accelerator.responses == {ticket: SLVERR}
    late = tb.accelerator.read(whole)
    await tb.quiet()
    assert set(tb.accelerator.reads[late][1]) == {Response.DECERR}
    assert await tb.set("REGION_BASE", 77) == OKAY
    assert await tb.set("REGION_CONTROL", 2) == OKAY
    assert await tb.set("REGION_BASE", 78) == SLVERR
    assert await tb.get("REGION_BASE") == 77


@cocotb.test()
async def errors_of_memory_and_invalid_blocks_stay_where_they_are(_):
    """The engine goes on, and says where it was."""
    tb = await TB.started("faults")
    await tb.set("TIMEOUT", 1 << 30)
    for region in tb.regions:
        for dram in (tb.memory.dram, tb.model.dram):
            beat = region.stored + 3 * TASK.memory_bytes
            dram.faults.append((beat, beat + 1, SLVERR))
            beat = region.stored + 9 * TASK.memory_bytes
            dram.faults.append((beat, beat + 1, Response.DECERR))
            if region.fmt:
                invalid = region.stored + (PAGE // region.fmt.raw_bytes + 1) * region.fmt.target
                dram.content[invalid : invalid + region.fmt.target] = 5
        for page in range(2):
            burst = Burst(region.base + page * PAGE, min(PAGE // BUS, 256), BUS)
            ticket = tb.accelerator.read(burst)
            await tb.quiet()
            found, answers = tb.accelerator.reads.pop(ticket)
            words, responses = tb.model.read(burst)
            assert answers == responses, f"{region}: {answers}, not {responses}"
            assert (found == words).all()
            await check_errors(tb)
        assert await tb.set("ERRORS", 63) == OKAY
        tb.model.errors.clear()
        beat = region.stored + 3 * TASK.memory_bytes
        size = region.fmt.raw_bytes if region.fmt else BUS
        address = region.base + (beat - region.stored) // (region.fmt.target if region.fmt else 1) * size
        if not region.fmt:
            address = region.base + 3 * TASK.memory_bytes // BUS * BUS
        burst = Burst(address, size // BUS, BUS)
        ticket = tb.accelerator.write(
            burst, np.ones((burst.beats, BUS), np.uint8), np.ones((burst.beats, BUS), bool)
        )
        await tb.quiet()
        assert tb.accelerator.responses[ticket] == SLVERR
        assert await tb.get("ERRORS") == 1 << KINDS.index(ErrorKind.WRITE)
        assert await tb.set("ERRORS", 63) == OKAY
