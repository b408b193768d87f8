"""Writes of parts of blocks through the memory engine, merged, in Amaranth's simulator, against the model."""

import random

import numpy as np
import pytest

from golden.bursts import PAGE, Burst, BurstKind, Response
from golden.memory import ErrorKind, Region

from .memory_core import BUS, FORMAT, REGIONS, Bench, part

KINDS = list(ErrorKind)


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
