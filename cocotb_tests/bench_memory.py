"""The promises of the memory engine, against golden/memory.py. Which engine it is stands in ``BITSTASH_BENCH``."""

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
from rtl.memory.map import address_of


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
        quiet, before = 0, None
        while quiet < 70 + 2 * self.memory.latency:
            await RisingEdge(self.dut.aclk)
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
