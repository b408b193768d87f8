"""Writes of parts of blocks through the memory engine, merged, in Amaranth's simulator, against the model."""

import random
from collections import deque

import numpy as np
import pytest
from amaranth.sim import Simulator

from golden import PlaneFormat
from golden.bursts import PAGE, Burst, BurstKind, Response
from golden.memory import Dram, ErrorKind, MemoryModel, Region
from rtl.memory import MemoryParameters
from rtl.memory.engine import _Core
from rtl.memory.map import address_of

BUS = 16
FORMAT = PlaneFormat("bf16", 32, 21)
REGIONS = (
    Region(0, 4 * PAGE, 4 * PAGE, FORMAT, merge=True),
    Region(4 * PAGE, 4 * PAGE, 8 * PAGE, FORMAT),
    Region(8 * PAGE, 4 * PAGE, 0, None),
)
KINDS = list(ErrorKind)


class Bench:
    """An engine between an accelerator that sends a burst at a time and a memory that mixes its IDs."""

    def __init__(self, memory_bytes: int, seed: int):
        parameters = MemoryParameters(
            formats=(FORMAT,),
            bus_bytes=BUS,
            memory_bytes=memory_bytes,
            address_bits=20,
            regions=4,
            buffers=2,
            least_slots=4,
            reads=4,
            bursts=4,
            merging=True,
        )
        self.core = _Core(parameters)
        self.rng = random.Random(seed)
        self.dram = Dram(np.zeros(16 * PAGE, np.uint8), memory_bytes)
        self.model = MemoryModel(Dram(self.dram.content.copy(), memory_bytes), BUS, buffers=2, slots=4)
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
        for name in ("s_axi_b", "m_axi_aw", "m_axi_w", "m_axi_ar", "s_axil_b", "s_axil_r"):
            context.set(getattr(self.core, name).ready, 1)
        for i, region in enumerate(REGIONS):
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
        names = ("m_axi_ar", "m_axi_aw", "m_axi_w", "m_axi_r", "m_axi_b", "s_axi_b", "s_axi_r")
        ports = [getattr(core, name) for name in names]
        moves = [context.get(port.valid & port.ready) for port in ports]
        ar, aw, w, _, _, b, r = (context.get(port.payload) for port in ports)
        await context.tick()
        if moves[0]:
            self._read(ar)
        if moves[1]:
            self.writes.append(aw)
        if moves[2]:
            self.data.append(w)
        if moves[3]:
            context.set(port.valid, 0)
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
        lanes = burst.lanes(BUS)
        for i, beat in enumerate(self.beats):
            found = np.frombuffer(beat.data.to_bytes(BUS, "little"), np.uint8)
            assert (found[lanes[i]] == words[i][lanes[i]]).all(), f"{burst}, beat {i}"


def random_burst(rng: random.Random, region: Region) -> Burst:
    """In the first blocks, or around the one that lies in two pages of memory."""
    start = region.base + 64 * rng.choice([0, PAGE // FORMAT.target - 1]) + rng.randrange(3 * 64)
    size = rng.choice([1, 4, 16, 16])
    if rng.random() < 0.2:
        return Burst(start - start % size, rng.choice([2, 4]), size, BurstKind.WRAP)
    return Burst(start, rng.randint(1, 6), size)


@pytest.mark.parametrize("memory_bytes", [16, 4])
def test_parts_of_blocks_are_merged_as_the_model_says(memory_bytes):
    bench = Bench(memory_bytes, seed=memory_bytes)
    rng, values = bench.rng, np.random.default_rng(memory_bytes)

    async def act():
        for _ in range(30):
            burst = random_burst(rng, rng.choice([REGIONS[0], REGIONS[0], REGIONS[1], REGIONS[2]]))
            if rng.random() < 0.4:
                await bench.read(burst)
            else:
                lanes = burst.lanes(BUS)
                words = values.integers(0, 256, lanes.shape, np.uint8)
                strobes = lanes & (values.random(lanes.shape) < rng.choice([1, 1, 0.5]))
                options = {"bufferable": rng.random() < 0.5, "master": rng.randrange(2)}
                await bench.write(burst, words, strobes, **options)
            await bench.settle()
        for i in range(3):
            bench.model.disable(i)
            await bench.put("REGION_CONTROL", 0, i)
        await bench.settle()
        assert (bench.dram.content == bench.model.dram.content).all()
        kinds = await bench.get("ERRORS")
        assert kinds == sum(1 << KINDS.index(kind) for kind in {kind for kind, _ in bench.model.errors})

    bench.run(act)


def part(address: int, value: int = 7) -> tuple[Burst, np.ndarray, np.ndarray]:
    """A word of a block."""
    return Burst(address, 1, BUS), np.full((1, BUS), value, np.uint8), np.ones((1, BUS), bool)


def test_a_merge_waits_for_no_read_that_the_accelerator_does_not_take():
    """Many more beats than there is room for were asked for, of which none is taken."""
    bench = Bench(4, seed=1)

    async def act():
        bench.takes_reads = False
        context, core = bench.context, bench.core
        context.set(core.s_axi_ar.payload, {"addr": REGIONS[2].base, "len": 255, "size": 4, "burst": 1})
        context.set(core.s_axi_ar.valid, 1)
        for _ in range(400):
            await bench.tick()
        burst = part(REGIONS[0].base)
        await bench.write(*burst, bufferable=False)
        for n in range(1, 3):  # there are two buffers
            await bench.write(*part(REGIONS[0].base + 64 * n), bufferable=True)
        assert bench.model.responses[0] == Response.OKAY
        await bench.until(lambda: bench.answered.get(0) == [Response.OKAY] * 3)
        assert not bench.beats

    bench.run(act)


def test_the_longest_burst_in_bypass_has_room():
    bench = Bench(4, seed=3)

    async def act():
        await bench.read(Burst(REGIONS[2].base, 256, BUS))

    bench.run(act)


def test_a_block_that_cannot_be_read_is_dropped_and_its_bursts_get_that_response():
    bench = Bench(16, seed=2)
    stored = REGIONS[0].stored
    for dram in (bench.dram, bench.model.dram):
        dram.content[stored + 21 : stored + 42] = 255  # no encoder produces that
        dram.faults.append((stored + 64, stored + 65, Response.DECERR))
        dram.faults.append((stored + 8 * 21, stored + 8 * 21 + 1, Response.SLVERR))

    async def act():
        for kind, number in ((ErrorKind.INVALID, 1), (ErrorKind.READ, 3), (ErrorKind.READ, 8)):
            await bench.write(*part(REGIONS[0].base + 64 * number + 16), bufferable=False)
            await bench.put("REGION_CONTROL", 0, 0)
            bench.model.disable(0)
            await bench.settle()
            assert await bench.get("ERRORS") == 1 << KINDS.index(kind)
            assert await bench.get("ERROR_ADDRESS_LOW", KINDS.index(kind)) == REGIONS[0].base + 64 * number
            await bench.put("ERRORS", 63)
            await bench.put("REGION_CONTROL", 1 | 1 << 3 | 1 << 8, 0)
            bench.model.enable(0, REGIONS[0])
        assert bench.answered[0] == [Response.SLVERR, Response.DECERR, Response.SLVERR]
        assert list(bench.model.responses.values()) == bench.answered[0]
        assert (bench.dram.content == bench.model.dram.content).all()

    bench.run(act)
