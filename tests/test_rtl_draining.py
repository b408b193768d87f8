"""Regions that are disabled while bursts are under way, and errors of reads and writes at once."""

from dataclasses import replace

import numpy as np
import pytest

from golden.bursts import PAGE, Burst, Response
from rtl.memory.registers.map import address_of

from .memory_core import BUS, REGIONS, Bench, part


async def take(bench, name: str, value: int, index: int = 0) -> None:
    """Write a register; its answer is not waited for."""
    context, core = bench.context, bench.core
    context.set(core.s_axil_b.ready, 0)
    context.set(core.s_axil_w.payload, {"data": value, "strb": 15})
    context.set(core.s_axil_w.valid, 1)
    await bench.offer("s_axil_aw", {"addr": address_of(name, index)})
    context.set(core.s_axil_w.valid, 0)


def is_answered(bench) -> bool:
    return bench.context.get(bench.core.s_axil_b.valid)


async def answer(bench) -> Response:
    """Of the register that was written."""
    context, port = bench.context, bench.core.s_axil_b
    await bench.until(lambda: is_answered(bench))
    found = context.get(port.p.resp)
    context.set(port.ready, 1)
    await bench.tick()
    return found


def address(at: int, identity: int = 0, bufferable: bool = False) -> dict:
    return {"addr": at, "len": 0, "size": 4, "burst": 1, "id": identity, "cache": 2 + bufferable}


def word(value: int) -> dict:
    octets = np.full(BUS, value, np.uint8).tobytes()
    return {"data": int.from_bytes(octets, "little"), "strb": (1 << BUS) - 1, "last": 1}


@pytest.mark.parametrize("merging", [False, True])
def test_bursts_whose_addresses_were_taken_are_served_in_the_region_as_it_was(merging):
    """Their data come after the write that disables it; an address that comes later finds the new map."""
    bench, region = Bench(16, seed=5, merging=merging), REGIONS[2]

    async def act():
        for i in range(4):
            await bench.offer("s_axi_aw", address(region.base + BUS * i))
        await take(bench, "REGION_CONTROL", 0, 2)
        context, port = bench.context, bench.core.s_axi_aw
        context.set(port.payload, address(region.base))
        context.set(port.valid, 1)
        for i in range(4):
            for _ in range(50):
                await bench.tick()
            assert not is_answered(bench)
            assert not context.get(port.ready)
            await bench.offer("s_axi_w", word(i + 1))
        assert await answer(bench) == Response.OKAY
        stored = bench.dram.content[region.stored :][: 4 * BUS].reshape(4, BUS)
        assert (stored == np.arange(1, 5)[:, None]).all()
        await bench.until(lambda: context.get(port.ready))
        await bench.tick()
        context.set(port.valid, 0)
        await bench.offer("s_axi_w", word(9))
        await bench.until(lambda: len(bench.answered.get(0, [])) == 5)
        assert bench.answered[0] == [Response.OKAY] * 4 + [Response.DECERR]
        assert await bench.get("ERRORS") == 1
        assert (stored[0] == 1).all()

    bench.run(act)


def test_a_block_is_completed_by_bursts_whose_addresses_were_taken_before_its_region_is_disabled():
    bench, region = Bench(16, seed=6, merging=False), REGIONS[1]

    async def act():
        for i in range(4):
            await bench.offer("s_axi_aw", address(region.base + BUS * i, i))
        await bench.offer("s_axi_w", word(1))
        await take(bench, "REGION_CONTROL", 0, 1)
        for _ in range(50):
            await bench.tick()
        for _ in range(3):
            await bench.offer("s_axi_w", word(1))
        assert await answer(bench) == Response.OKAY
        await bench.until(lambda: len(bench.answered) == 4)
        assert bench.answered == {i: [Response.OKAY] for i in range(4)}
        assert await bench.get("ERRORS") == 0

    bench.run(act)


def test_a_region_is_disabled_though_its_answers_are_not_taken():
    bench, region = Bench(16, seed=7), REGIONS[2]

    async def act():
        context, core = bench.context, bench.core
        context.set(core.s_axi_b.ready, 0)
        await bench.offer("s_axi_aw", address(region.base))
        await bench.offer("s_axi_w", word(3))
        await take(bench, "REGION_CONTROL", 0, 2)
        assert await answer(bench) == Response.OKAY
        assert (bench.dram.content[region.stored :][:BUS] == 3).all()
        assert not bench.answered
        context.set(core.s_axi_b.ready, 1)
        await bench.until(lambda: bench.answered == {0: [Response.OKAY]})

    bench.run(act)


@pytest.mark.parametrize(
    "moved", [{"stored": 12 * PAGE}, {"base": 12 * PAGE}, {"size": PAGE}, {"stored": 253 * PAGE}]
)
def test_a_region_that_was_changed_is_found_as_it_is(moved):
    """Reads and writes come right before it is disabled and right after it is enabled again."""
    bench, regions = Bench(16, seed=12), (REGIONS[2], replace(REGIONS[2], **moved))

    async def act():
        value = 0
        for region in (*regions, *regions):
            bench.model.disable(2)
            await bench.put("REGION_CONTROL", 0, 2)
            for name in ("base", "size", "stored"):
                await bench.put(f"REGION_{name.upper()}", getattr(region, name) // PAGE, 2)
            await bench.put("REGION_CONTROL", 1, 2)
            bench.model.enable(2, region)
            for page in (8, 9, 12, 13):
                value += 1
                await bench.write(*part(page * PAGE, value), bufferable=False)
                await bench.settle()
                await bench.read(part(page * PAGE)[0])
            await bench.write(*part(region.base, value), bufferable=False)
            await bench.settle()
            await bench.read(part(region.base)[0])
        assert (bench.dram.content == bench.model.dram.content).all()

    bench.run(act)


def test_a_burst_that_waits_for_a_slot_holds_up_no_region_for_ever():
    """All slots are those of open blocks of another region."""
    bench, other = Bench(16, seed=8, merging=False, buffers=4), REGIONS[0]

    async def act():
        for i in range(4):
            await bench.offer("s_axi_aw", address(other.base + 64 * i, i))
            await bench.offer("s_axi_w", word(1))
        await bench.offer("s_axi_aw", address(REGIONS[2].base))
        await take(bench, "REGION_CONTROL", 0, 2)
        await bench.offer("s_axi_w", word(5))
        assert await answer(bench) == Response.OKAY
        assert (bench.dram.content[REGIONS[2].stored :][:BUS] == 5).all()
        await bench.until(lambda: bench.answered == {0: [Response.SLVERR, Response.OKAY]})

    bench.run(act)


def test_errors_of_a_read_and_a_write_in_one_cycle_are_two():
    bench, nowhere = Bench(16, seed=9), 15 * PAGE
    counts = []

    async def act():
        context, core = bench.context, bench.core
        for late in range(-3, 4):
            for cycle in range(30):  # both search all regions
                for name, when in (("s_axi_ar", 4), ("s_axi_aw", 4 + late)):
                    port = getattr(core, name)
                    context.set(port.payload, {"addr": nowhere, "size": 4, "burst": 1})
                    context.set(port.valid, cycle == when)
                    assert cycle != when or context.get(port.ready)
                both.append(
                    context.get(core._parts["read"].undecoded.valid & core._parts["write"].undecoded.valid)
                )
                await bench.tick()
            await bench.offer("s_axi_w", word(1))
            counts.append(await bench.get("ERRORS_SEEN"))

    both = []
    bench.run(act)
    assert any(both)
    assert counts == [2 * n for n in range(1, 8)]


@pytest.mark.parametrize(("merging", "memory_bytes"), [(False, 16), (True, 4)])
def test_the_smallest_engine_that_there_is_serves_all_that_it_promises(merging, memory_bytes):
    least = {"regions": 3, "buffers": 1, "least_slots": 1, "reads": 1, "bursts": 2, "id_bits": 1}
    bench = Bench(memory_bytes, seed=10, merging=merging, **least)
    values = np.random.default_rng(11)

    async def act():
        for _ in range(30):
            region = REGIONS[bench.rng.randrange(3)]
            burst = Burst(region.base + BUS * bench.rng.randrange(8), bench.rng.randint(1, 8), BUS)
            words = values.integers(0, 256, (burst.beats, BUS), np.uint8)
            await bench.write(burst, words, np.ones(words.shape, bool), bufferable=bench.rng.random() < 0.5)
            await bench.settle()
            if not bench.rng.randrange(3):
                for _ in range(60):  # what waits for an answer behind another burst has gone to memory
                    await bench.tick()
                await bench.read(burst)
        for i in range(3):
            bench.model.disable(i)
            await bench.put("REGION_CONTROL", 0, i)
        await bench.settle()
        assert (bench.dram.content == bench.model.dram.content).all()

    bench.run(act)
