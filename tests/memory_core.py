"""A memory engine in Amaranth's simulator, between an accelerator and a memory, beside the model."""

import random
from collections import deque
from dataclasses import replace

import numpy as np
from amaranth.sim import Simulator

from golden import PlaneFormat
from golden.bursts import PAGE, Burst, Response
from golden.memory import Dram, MemoryModel, Region
from rtl.memory import MemoryParameters
from rtl.memory.engine import _Core
from rtl.memory.registers.map import address_of

BUS = 16
FORMAT = PlaneFormat("bf16", 32, 21)
REGIONS = (
    Region(0, 4 * PAGE, 4 * PAGE, FORMAT, merge=True),
    Region(4 * PAGE, 4 * PAGE, 8 * PAGE, FORMAT),
    Region(8 * PAGE, 4 * PAGE, 0, None),
)


class Bench:
    """An engine between an accelerator that sends a burst at a time and a memory that mixes its IDs.

    Args:
        memory_bytes: of its data bus.
        bus: bytes of the accelerator's.
        most_reads: bursts after which memory takes no address of a read before it has answered one.
        options: further parameters of the engine.
    """

    def __init__(self, memory_bytes: int, seed: int, bus: int = BUS, most_reads: int = 1000, **options):
        sizes = {"regions": 4, "buffers": 2, "least_slots": 4, "reads": 4, "bursts": 4, "merging": True}
        parameters = MemoryParameters(
            formats=(FORMAT,),
            bus_bytes=bus,
            memory_bytes=memory_bytes,
            address_bits=20,
            **sizes | options,
        )
        self.core = _Core(parameters)
        self.bus, self._most_reads, self._open_reads = bus, most_reads, 0
        self.regions = [replace(region, merge=region.merge and parameters.merging) for region in REGIONS]
        self.rng = random.Random(seed)
        self.dram = Dram(np.zeros(16 * PAGE, np.uint8), memory_bytes)
        model_dram = Dram(self.dram.content.copy(), memory_bytes)
        sizes = {name: getattr(parameters, name) for name in ("buffers", "slots", "address_bits")}
        self.model = MemoryModel(model_dram, bus, **sizes)
        self.reads, self.writes = [deque(), deque()], deque()  # of the memory
        self.data, self.answers = deque(), deque()
        self.answered, self.beats = {}, []  # of the accelerator, by ID; what was read
        self.takes_reads = True

    def run(self, act) -> None:
        async def bench(context) -> None:
            self.context = context
            await self._begin()
            await act()

        simulator = Simulator(self.core)
        simulator.add_clock(1e-6)
        simulator.add_testbench(bench)
        simulator.run()

    async def _begin(self) -> None:
        context = self.context
        for name in ("s_axi_b", "m_axi_aw", "m_axi_w", "s_axil_b", "s_axil_r"):
            context.set(getattr(self.core, name).ready, 1)
        for i, region in enumerate(self.regions):
            for name in ("base", "size", "stored"):
                await self.put(f"REGION_{name.upper()}", getattr(region, name) // PAGE, i)
            await self.put("REGION_CONTROL", 1 | region.merge << 3 | (region.fmt is not None) << 8, i)
            self.model.enable(i, region)
        await self.put("TIMEOUT", 1 << 30)

    async def tick(self) -> None:
        """A cycle, with the memory's side of it."""
        context, core = self.context, self.core
        waiting = [queue for queue in self.reads if queue]
        port = core.m_axi_r
        if not context.get(port.valid) and waiting and self.rng.random() < 0.8:
            context.set(port.payload, self.rng.choice(waiting).popleft())
            context.set(port.valid, 1)
        context.set(core.m_axi_b.valid, bool(self.answers))
        if self.answers:
            context.set(core.m_axi_b.p.resp, self.answers[0])
        context.set(core.s_axi_r.ready, self.takes_reads)
        context.set(core.m_axi_ar.ready, self._open_reads < self._most_reads)
        names = ("m_axi_ar", "m_axi_aw", "m_axi_w", "m_axi_r", "m_axi_b", "s_axi_b", "s_axi_r")
        ports = [getattr(core, name) for name in names]
        moves = [context.get(port.valid & port.ready) for port in ports]
        ar, aw, w, beat, _, b, r = (context.get(port.payload) for port in ports)
        await context.tick()
        if moves[0]:
            self._read(ar)
            self._open_reads += 1
        if moves[1]:
            self.writes.append(aw)
        if moves[2]:
            self.data.append(w)
        if moves[3]:
            context.set(port.valid, 0)
            self._open_reads -= beat.last
        if moves[4]:
            self.answers.popleft()
        if moves[5]:
            self.answered.setdefault(b.id, []).append(b.resp)
        if moves[6]:
            self.beats.append(r)
        while self.writes and len(self.data) > self.writes[0].len:
            self._write(self.writes.popleft())

    def _read(self, burst) -> None:
        size = self.dram.beat
        assert burst.addr // PAGE == (burst.addr + (burst.len + 1) * size - 1) // PAGE
        for i in range(burst.len + 1):
            place = burst.addr + i * size
            response = self.dram.response(place, size)
            content = self.dram.content[place : place + size].tobytes() if response == 0 else b"\xad"
            beat = {"data": int.from_bytes(content, "little"), "resp": response, "last": i == burst.len}
            self.reads[burst.id].append(beat | {"id": burst.id})

    def _write(self, burst) -> None:
        size, worst = self.dram.beat, Response.OKAY
        for i in range(burst.len + 1):
            beat, place = self.data.popleft(), burst.addr + i * size
            response = self.dram.response(place, size)
            worst = max(worst, response)
            for j in range(size):
                if beat.strb >> j & 1 and response == Response.OKAY:
                    self.dram.content[place + j] = beat.data >> 8 * j & 255
        self.answers.append(worst)

    async def until(self, condition, limit: int = 1500) -> None:
        for _ in range(limit):
            if condition():
                return
            await self.tick()
        raise AssertionError("nothing happens any more")

    async def offer(self, name: str, payload) -> None:
        context, port = self.context, getattr(self.core, name)
        context.set(port.payload, payload)
        context.set(port.valid, 1)
        for _ in range(1500):
            ready = context.get(port.ready)
            await self.tick()
            if ready:
                context.set(port.valid, 0)
                return
        raise AssertionError(f"{name} is not taken any more")

    async def put(self, name: str, value: int, index: int = 0) -> None:
        context, core = self.context, self.core
        context.set(core.s_axil_w.payload, {"data": value, "strb": 15})
        context.set(core.s_axil_w.valid, 1)
        await self.offer("s_axil_aw", {"addr": address_of(name, index)})
        context.set(core.s_axil_w.valid, 0)
        await self.until(lambda: context.get(core.s_axil_b.valid))
        assert context.get(core.s_axil_b.p.resp) == Response.OKAY
        await self.tick()

    async def get(self, name: str, index: int = 0) -> int:
        await self.offer("s_axil_ar", {"addr": address_of(name, index)})
        await self.until(lambda: self.context.get(self.core.s_axil_r.valid))
        found = self.context.get(self.core.s_axil_r.p.data)
        await self.tick()
        return found

    async def write(self, burst: Burst, words, strobes, *, bufferable: bool, master: int = 0) -> None:
        self.model.write(burst, words, strobes, bufferable=bufferable, master=master)
        size, kind = burst.size.bit_length() - 1, int(burst.kind)
        address = {"addr": burst.address, "len": burst.beats - 1, "size": size, "burst": kind}
        await self.offer("s_axi_aw", address | {"id": master, "cache": 2 + bufferable})
        for i, (word, strobe) in enumerate(zip(words, strobes, strict=True)):
            strb = int.from_bytes(np.packbits(strobe, bitorder="little").tobytes(), "little")
            beat = {"data": int.from_bytes(word.tobytes(), "little"), "strb": strb}
            await self.offer("s_axi_w", beat | {"last": i == burst.beats - 1})

    async def settle(self) -> None:
        """Until all writes are answered that the model has answered."""
        count = len(self.model.responses)
        await self.until(lambda: sum(map(len, self.answered.values())) >= count)
        for _ in range(3):
            await self.tick()
        assert sum(map(len, self.answered.values())) == count

    async def read(self, burst: Burst) -> None:
        words, responses = self.model.read(burst)
        size, kind = burst.size.bit_length() - 1, int(burst.kind)
        address = {"addr": burst.address, "len": burst.beats - 1, "size": size, "burst": kind}
        self.beats.clear()
        await self.offer("s_axi_ar", address)
        await self.until(lambda: len(self.beats) == burst.beats)
        assert [beat.resp for beat in self.beats] == responses
        lanes = burst.lanes(self.bus)
        for i, beat in enumerate(self.beats):
            found = np.frombuffer(beat.data.to_bytes(self.bus, "little"), np.uint8)
            assert (found[lanes[i]] == words[i][lanes[i]]).all(), f"{burst}, beat {i}"


def part(address: int, value: int = 7) -> tuple[Burst, np.ndarray, np.ndarray]:
    """A word of a block."""
    return Burst(address, 1, BUS), np.full((1, BUS), value, np.uint8), np.ones((1, BUS), bool)
