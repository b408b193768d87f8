"""Reads through the memory engine behind memories, and beside writes, that AXI4 allows and few have."""

import numpy as np
import pytest

from golden.bursts import PAGE, Burst, BurstKind, Response

from .memory_core import BUS, FORMAT, REGIONS, Bench

TARGET = FORMAT.target


@pytest.mark.parametrize("merging", [False, True])
@pytest.mark.parametrize("memory_bytes", [16, 4])
def test_memory_may_take_no_address_before_it_answered_the_one_before(memory_bytes, merging):
    bench = Bench(memory_bytes, seed=1, most_reads=1, merging=merging)
    values = np.random.default_rng(1)
    across = 64 * (PAGE // TARGET)  # a block that lies in two pages of memory

    async def act():
        plain, blocks = REGIONS[2].base, REGIONS[1].base
        for burst in (Burst(plain, 256, BUS), Burst(blocks + across - 2 * 64, 64, BUS)):
            words = values.integers(0, 255, (burst.beats, BUS), np.uint8) & 0x3F
            await bench.write(burst, words, burst.lanes(BUS), bufferable=False)
            await bench.settle()
        for burst in (
            Burst(plain, 256, BUS),
            Burst(plain + 0x30, 4, BUS, BurstKind.WRAP),
            Burst(blocks + across - 2 * 64, 64, BUS),
            Burst(blocks + across, 16, BUS, BurstKind.WRAP),
            Burst(blocks + across - 64, 16, BUS, BurstKind.WRAP),
        ):
            await bench.read(burst)

    bench.run(act)


@pytest.mark.parametrize("region", REGIONS[1:])
def test_a_burst_of_no_kind_hangs_nothing(region):
    bench = Bench(16, seed=2)

    async def act():
        await bench.offer("s_axi_ar", {"addr": region.base, "len": 7, "size": 4, "burst": 3})
        await bench.until(lambda: len(bench.beats) == 8)
        await bench.read(Burst(region.base, 8, BUS))

    bench.run(act)


@pytest.mark.parametrize("merging", [False, True])
def test_a_read_evicts_nothing_of_a_burst_whose_beats_still_come(merging):
    bench = Bench(16, seed=3, merging=merging)
    region = REGIONS[1]
    words = np.full((4, BUS), 0x3F, np.uint8)

    async def act():
        burst = Burst(region.base, 4, BUS)
        bench.model.write(burst, words, burst.lanes(BUS), bufferable=True)
        await bench.offer("s_axi_aw", {"addr": region.base, "len": 3, "size": 4, "burst": 1, "cache": 3})
        beat = {"data": int.from_bytes(words[0].tobytes(), "little"), "strb": (1 << BUS) - 1}
        for i in range(4):
            if i:
                await bench.offer("s_axi_ar", {"addr": region.base, "len": 0, "size": 4, "burst": 1})
            await bench.offer("s_axi_w", beat | {"last": i == 3})
        await bench.settle()
        assert bench.answered == {0: [Response.OKAY]}
        await bench.until(lambda: len(bench.beats) == 3)
        await bench.read(burst)
        assert await bench.get("ERRORS") == 0

    bench.run(act)


def test_a_read_evicts_what_bufferable_bursts_left_of_a_block():
    bench, region = Bench(16, seed=4, merging=False), REGIONS[1]

    async def act():
        burst = Burst(region.base, 2, BUS)
        await bench.write(burst, np.full((2, BUS), 7, np.uint8), burst.lanes(BUS), bufferable=True)
        await bench.settle()
        await bench.read(Burst(region.base, 4, BUS))
        assert await bench.get("ERRORS") == 1 << 2
        assert (bench.dram.content == bench.model.dram.content).all()

    bench.run(act)
