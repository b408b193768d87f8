"""Writes of parts of blocks through the memory engine, merged, in Amaranth's simulator, against the model."""

import random

import numpy as np
import pytest
from amaranth.sim import Simulator

from golden import PlaneFormat
from golden.bursts import PAGE, Burst, BurstKind, Response
from golden.memory import ErrorKind, Region
from rtl.memory import MemoryParameters
from rtl.memory.write.merge import Merger

from .memory_core import BUS, FORMAT, REGIONS, Bench, part

KINDS = list(ErrorKind)


def random_burst(rng: random.Random, region: Region, word: int) -> Burst:
    """In the first blocks, or around the one that lies in two pages of memory."""
    start = region.base + 64 * rng.choice([0, PAGE // FORMAT.target - 1]) + rng.randrange(3 * 64)
    size = rng.choice([1, 4, word, word])
    if rng.random() < 0.2:
        return Burst(start - start % size, rng.choice([2, 4]), size, BurstKind.WRAP)
    return Burst(start, rng.randint(1, 6), size)


@pytest.mark.parametrize(("bus", "memory_bytes", "most_reads"), [(16, 16, 9), (16, 4, 1), (32, 32, 1)])
def test_parts_of_blocks_are_merged_as_the_model_says(bus, memory_bytes, most_reads):
    bench = Bench(memory_bytes, seed=memory_bytes, bus=bus, most_reads=most_reads)
    rng, values = bench.rng, np.random.default_rng(memory_bytes)

    async def act():
        for _ in range(30):
            burst = random_burst(rng, rng.choice([REGIONS[0], REGIONS[0], REGIONS[1], REGIONS[2]]), bus)
            if rng.random() < 0.4:
                await bench.read(burst)
            else:
                lanes = burst.lanes(bus)
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


@pytest.mark.parametrize("memory_bytes", [4, 16, 32, 64])
def test_a_merge_asks_for_the_beats_of_its_block_within_pages_of_memory(memory_bytes):
    fmt, bus = PlaneFormat("fp32", 64, 80), max(16, memory_bytes)
    merger = Merger(MemoryParameters(formats=(fmt,), bus_bytes=bus, memory_bytes=memory_bytes, merging=True))

    async def bench(context):
        for number in (0, 50, 51, 102):  # the second ends at the end of a page, the third lies in two
            page, low = divmod(number * fmt.original_bytes, PAGE)
            values = {"format": 1, "origin": {"base": 0, "stored": 3}, "page": page, "low": low, "valid": 1}
            for name, value in values.items():
                context.set(getattr(merger, name), value)
            context.set(merger.settled, 1)
            context.set(merger.ar.ready, 1)
            asked = []
            for _ in range(6):
                if context.get(merger.ar.valid):
                    burst = context.get(merger.ar.payload)
                    end = burst.addr + (burst.len + 1) * memory_bytes
                    assert burst.addr // PAGE == (end - 1) // PAGE
                    asked += range(burst.addr, end)
                await context.tick()
            start = 3 * PAGE + number * fmt.target
            assert asked[0] == start - start % memory_bytes
            assert asked == list(range(asked[0], asked[-1] + 1))
            assert asked[-1] - memory_bytes < start + fmt.target - 1 <= asked[-1]
            context.set(merger.valid, 0)
            await give(context, merger, len(asked) // memory_bytes)

    async def give(context, merger, beats):
        """Zeros, until the block is there."""
        context.set(merger.o.ready, 1)
        context.set(merger.r.valid, 1)
        for _ in range(100):
            beats -= context.get(merger.r.valid & merger.r.ready)
            last = context.get(merger.o.valid & merger.o.p.last)
            await context.tick()
            context.set(merger.r.valid, beats > 0)
            if last:
                assert beats == 0
                return
        raise AssertionError("no block")

    simulator = Simulator(merger)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()


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
