"""The promises of the memory engine, one by one: rates, latency, timeouts, regions, errors."""

from __future__ import annotations

import cocotb
import numpy as np

from cocotb_tests.memory.testbench import BUS, FORMATS_HERE, KINDS, OKAY, REGION_PAGES, SLVERR, TASK, TB
from golden.bursts import PAGE, Burst, Response
from golden.memory import ErrorKind, Region
from rtl.memory.registers.map import COUNTERS


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
            size * (region.fmt.target / region.fmt.original_bytes if region.fmt else 1) for region in regions
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


@cocotb.test()
async def single_writes_are_answered_soon(_):
    """Cycles of a write of a block, or of a word in bypass: from its last W to memory's, and from B to B."""
    tb = await TB.started("latency of writes", latency=20)
    figures = {}
    for region in tb.regions:
        burst = Burst(region.base + PAGE, (region.fmt.original_bytes if region.fmt else BUS) // BUS, BUS)
        words = np.ones((burst.beats, BUS), np.uint8)
        ticket = tb.accelerator.write(burst, words, words > 0)
        await tb.until(lambda ticket=ticket: ticket in tb.accelerator.responses)
        there = tb.memory.written_at - tb.accelerator.w.taken_at
        back = tb.accelerator.ended[ticket] - tb.memory.b.taken_at
        assert back == 2, f"{back} cycles from B to B"
        figures[region.fmt.scheme if region.fmt else "bypass"] = {"there": there, "back": back}
    TASK.note(write_latency=figures)


@cocotb.test(skip=not FORMATS_HERE)
async def small_reads_in_a_row_use_the_block_that_is_there(_):
    """Single words, one behind the other; nor is a beat of memory read twice that two blocks share."""
    tb = await TB.started("small reads", latency=6)
    count, figures, beats = 256, {}, [0]
    for region in tb.regions[:-1]:
        asked = [tb.accelerator.read(Burst(region.base + i * BUS % (2 * PAGE), 1, BUS)) for i in range(count)]
        await tb.until(lambda: len(tb.accelerator.reads) == count)
        ends = [tb.accelerator.ended[ticket] for ticket in asked]
        figures[region.fmt.scheme] = (count - 65) * BUS / (ends[-1] - ends[64])
        beats.append(await tb.get("MEMORY_READ_BEATS"))
        stored = count * BUS // region.fmt.original_bytes * region.fmt.target
        taken = (beats[-1] - beats[-2]) * TASK.memory_bytes
        assert taken < 1.01 * stored + 2 * TASK.memory_bytes, f"{taken} bytes, not {stored}"
        tb.accelerator.reads.clear()
    TASK.note(small_reads=figures)


@cocotb.test(skip=not FORMATS_HERE or TASK.merging)
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


@cocotb.test(skip=not FORMATS_HERE or TASK.merging)
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
                invalid = region.stored + (PAGE // region.fmt.original_bytes + 1) * region.fmt.target
                dram.content[invalid : invalid + region.fmt.target] = 5
        for page in range(2):
            burst = Burst(region.base + page * PAGE, min(PAGE // BUS, 256), BUS)
            ticket = tb.accelerator.read(burst)
            await tb.quiet()
            found, answers = tb.accelerator.reads.pop(ticket)
            words, responses = tb.model.read(burst)
            assert answers == responses, f"{region}: {answers}, not {responses}"
            assert (found == words).all()
            await tb.check_errors()
        assert await tb.set("ERRORS", 63) == OKAY
        tb.model.errors.clear()
        beat = region.stored + 3 * TASK.memory_bytes
        size = region.fmt.original_bytes if region.fmt else BUS
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
