"""What every bench of the memory engine begins with: clock, reset, both ends, registers, and the model.

Which engine it is stands in the environment variable ``BITSTASH_BENCH``.
"""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass
from typing import Any

import cocotb
import numpy as np
from cocotb.triggers import RisingEdge, Timer

from cocotb_tests.memory.axi4 import Accelerator, Lite, SlowMemory
from cocotb_tests.notes import Noting
from golden import FORMATS
from golden.bursts import PAGE, Response
from golden.memory import Dram, ErrorKind, MemoryModel, Region
from rtl.memory.registers.map import address_of


@dataclass(frozen=True)
class Task(Noting):
    """What this simulator run is about, as read from the environment."""

    formats: list[tuple[str, dict[str, Any]]]
    bus_bytes: int
    memory_bytes: int
    merging: bool
    bursts: int
    seed: int


TASK = Task(**json.loads(os.environ["BITSTASH_BENCH"]))
FORMATS_HERE = [FORMATS[scheme](**parameters) for scheme, parameters in TASK.formats]
BUS = TASK.bus_bytes
KINDS = list(ErrorKind)
REGION_PAGES = 4
FIRST_BASE = 0xA55A3C0000  # of the first region
OKAY, SLVERR = Response.OKAY, Response.SLVERR


class TB:
    """Clock, reset, accelerator, memory, registers, and the model that says what must come of it all."""

    def __init__(self, dut, salt: str, latency: int):
        self.dut = dut
        self.rng = random.Random(f"{TASK.seed} {salt}")
        self.random = np.random.default_rng([TASK.seed, len(salt)])
        self.cycle = 0
        self._is_reset = False
        content = np.zeros(1 << 18, np.uint8)
        self.accelerator = Accelerator(dut, BUS)
        self.memory = SlowMemory(dut, Dram(content, TASK.memory_bytes), latency)
        self.lite = Lite(dut)
        self.ends = [self.accelerator, self.memory, self.lite]
        self.model = MemoryModel(Dram(content.copy(), TASK.memory_bytes), BUS)
        self.regions: list[Region] = []

    @classmethod
    async def started(cls, salt: str, latency: int = 8) -> TB:
        """An engine with a region for each format and one in bypass behind them, 16 pages apart.

        With ``merging``, those of formats merge.
        """
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
            merge = TASK.merging and fmt is not None
            base, stored = FIRST_BASE + 16 * i * PAGE, (40 - 5 * i) * PAGE
            await tb.enable(i, Region(base, REGION_PAGES * PAGE, stored, fmt, merge))
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
            for part in () if self._is_reset else self.ends:
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
            "REGION_CONTROL": 1
            | region.merge << 3
            | (FORMATS_HERE.index(region.fmt) + 1 if region.fmt else 0) << 8,
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
            writes = self.dut.m_axi_awvalid.value or self.dut.m_axi_wvalid.value or not self.memory.is_idle
            quiet = quiet + 1 if now == before and self.accelerator.is_idle and not writes else 0
            before = now

    async def check_errors(self) -> None:
        """The kinds that were recorded, and the first address of each but WRITE, which writes share."""
        kinds = await self.get("ERRORS")
        for i, kind in enumerate(KINDS):
            addresses = [address for found, address in self.model.errors if found == kind]
            assert kinds >> i & 1 == bool(addresses), f"{kind}: {addresses}"
            if addresses and kind != ErrorKind.WRITE:
                low = await self.get("ERROR_ADDRESS_LOW", i)
                address = low | await self.get("ERROR_ADDRESS_HIGH", i) << 32
                assert address == addresses[0], f"{kind}: {address:#x}, not {addresses[0]:#x}"

    async def reset(self, cycles: int) -> None:
        """Pull the reset, in which nothing is offered or taken; memory keeps what it has."""
        self.dut.aresetn.value = 0
        self._is_reset = True
        for part in self.ends:
            part.reset()
        for cycle in range(cycles):
            await RisingEdge(self.dut.aclk)
            if not cycle:  # what is seen is from before
                continue
            for name in ("s_axi_b", "s_axi_r", "m_axi_ar", "m_axi_aw", "m_axi_w", "s_axil_b", "s_axil_r"):
                assert not getattr(self.dut, f"{name}valid").value, f"{name}valid in reset"
            for name in ("s_axi_ar", "s_axi_aw", "s_axi_w", "m_axi_r", "m_axi_b"):
                assert not getattr(self.dut, f"{name}ready").value, f"{name}ready in reset"
        self.dut.aresetn.value = 1
        self._is_reset = False
        self.model = MemoryModel(Dram(self.memory.dram.content.copy(), TASK.memory_bytes), BUS)
        regions, self.regions = self.regions, []
        for i, region in enumerate(regions):
            await self.enable(i, region)
