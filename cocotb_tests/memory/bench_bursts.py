"""Random bursts at the memory engine, against golden/memory.py."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, product, repeat

import cocotb
import numpy as np
from cocotb.triggers import RisingEdge
from cocotbext.axi import AxiBus, AxiMaster, AxiRam

from cocotb_tests.memory.testbench import BUS, OKAY, REGION_PAGES, SLVERR, TASK, TB
from cocotb_tests.streams import bursts as in_bursts
from cocotb_tests.streams import never, often
from golden.bursts import PAGE, Burst, BurstKind, Response
from golden.memory import Region

NEVER = 1 << 30  # cycles of a timeout that does not come
FAULTY = 2 * PAGE  # where in a region the page lies of which memory refuses some beats
SIZES = [1 << n for n in range(BUS.bit_length())]


def seldom_and_long(rng: random.Random) -> Iterator[bool]:
    while True:
        length = rng.randint(200, 600) if rng.random() < 0.002 else 1
        pause = length > 1
        for _ in range(length):
            yield pause


@dataclass(frozen=True)
class Case:
    """A kind of burst.

    Attributes:
        start: its first byte is a word's, a beat's, or any.
        place: "clear" or "faulty" in the region of this number, or "nowhere".
        way: "read", "write", or "bufferable".
    """

    kind: BurstKind
    size: int
    start: str
    place: str
    region: int
    way: str


def all_cases(regions: int) -> list[Case]:
    starts = ("word", "beat", "any")
    places = [(place, region) for place in ("clear", "faulty") for region in range(regions)]
    cases = product(BurstKind, SIZES, starts, [*places, ("nowhere", 0)], ("read", "write", "bufferable"))
    found = [Case(kind, size, start, *place, way) for kind, size, start, place, way in cases]
    return [case for case in found if case.start != "any" or (case.kind != BurstKind.WRAP and case.size > 1)]


def burst_of(case: Case, regions: list[Region], rng: random.Random) -> Burst:
    """A burst of a kind, close to others so that they meet."""
    region = regions[case.region]
    base = region.base + (FAULTY if case.place == "faulty" else rng.choice([0, PAGE]))
    if case.place == "nowhere":
        base = region.base + REGION_PAGES * PAGE
    address = base + rng.randrange(0x200 if rng.random() < 0.8 else PAGE)
    address -= address % {"word": BUS, "beat": case.size, "any": 1}[case.start]
    if case.kind == BurstKind.WRAP:
        return Burst(address, rng.choice([2, 4, 8, 16]), case.size, case.kind)
    if case.kind == BurstKind.FIXED:
        return Burst(address, rng.randint(1, 16), case.size, case.kind)
    if rng.random() < 0.4 and case.start == "word":  # whole blocks, perhaps
        address -= address % 512
    most = (PAGE - address % PAGE + address % case.size) // case.size
    beats = rng.choice([1, 2, 3, 8, 16, 512 // case.size, 256])
    return Burst(address, max(1, min(most, beats, 256)), case.size, case.kind)


def content_of(burst: Burst, tb: TB) -> tuple[np.ndarray, np.ndarray]:
    lanes = burst.lanes(BUS)
    words = tb.random.integers(0, 256, lanes.shape, np.uint8)
    share = tb.rng.choice([1, 1, 1, 0.5, 0])
    return words, lanes & (tb.random.random(lanes.shape) < share)


def stored_at(region: Region, offset: int) -> int:
    """Where the block, or in bypass the byte, is stored that lies so far into a region."""
    return region.stored + (offset // region.fmt.original_bytes * region.fmt.target if region.fmt else offset)


def make_faulty(tb: TB) -> None:
    """A beat that answers SLVERR, another DECERR, and an invalid block, in a page of each region."""
    beat = TASK.memory_bytes
    for region in tb.regions:
        start = stored_at(region, FAULTY)
        for dram in (tb.memory.dram, tb.model.dram):
            for after, response in ((0x40, SLVERR), (0x90, Response.DECERR)):
                place = (start + after) // beat * beat
                dram.faults.append((place, place + beat, response))
            if region.fmt:
                invalid = stored_at(region, FAULTY + PAGE - region.fmt.original_bytes)
                dram.content[invalid : invalid + region.fmt.target] = 5


class OneByOne:
    """Sends bursts one after the other and compares what comes back."""

    def __init__(self, tb: TB):
        self._tb = tb
        self._tickets: dict[int, int] = {}  # the accelerator's -> the model's
        self._may_fail: set[int] = set()  # which share beats with another one that fails
        self.responses: Counter[tuple[str, str, int]] = Counter()

    async def send(self, case: Case) -> None:
        tb = self._tb
        burst = burst_of(case, tb.regions, tb.rng)
        if case.way == "read":
            await self._read(case, burst)
        else:
            await self._write(case, burst)

    async def _read(self, case: Case, burst: Burst) -> None:
        tb = self._tb
        ticket = tb.accelerator.read(burst, master=tb.rng.randrange(4))
        words, responses = tb.model.read(burst)
        await tb.until(lambda: ticket in tb.accelerator.reads)
        found, answers = tb.accelerator.reads.pop(ticket)
        assert answers == responses, f"{burst}: {answers}, not {responses}"
        assert (found == words).all(), f"{burst}: beats {np.flatnonzero((found != words).any(axis=1))}"
        for response in responses:
            self.responses[case.way, case.place, response] += 1
        await self._answers(burst)

    async def _write(self, case: Case, burst: Burst) -> None:
        tb = self._tb
        words, strobes = content_of(burst, tb)
        options = {"bufferable": case.way == "bufferable", "master": tb.rng.randrange(4)}
        if case.place == "faulty":
            await tb.quiet()
        ticket = tb.accelerator.write(burst, words, strobes, **options)
        self._tickets[ticket] = answered = tb.model.write(burst, words, strobes, **options)
        if case.place == "faulty":
            await tb.quiet()
            self._may_fail |= {answered} - set(tb.model.responses)
        await tb.until(lambda: tb.accelerator.w.is_idle and tb.accelerator.aw.is_idle)
        await tb.cycles(4)
        await self._answers(burst)
        if answered in tb.model.responses:
            self.responses[case.way, case.place, tb.model.responses[answered]] += 1
        elif tb.regions[case.region].fmt is None:
            # It waits for an answer of its ID. Reads see it as soon as memory has it.
            await tb.quiet()

    async def _answers(self, burst: Burst) -> None:
        """All writes are answered that must be, and no others."""
        tb = self._tb
        await tb.until(lambda: len(tb.accelerator.responses) >= len(tb.model.responses))
        found = {self._tickets[ticket]: answer for ticket, answer in tb.accelerator.responses.items()}
        differing = {ticket for ticket, answer in found.items() if answer != tb.model.responses.get(ticket)}
        wrong = differing - self._may_fail
        assert not wrong, f"{burst}: { {t: (found[t], tb.model.responses.get(t)) for t in wrong} }"
        assert len(found) == len(tb.model.responses), f"{burst}: {set(tb.model.responses) - set(found)}"


@cocotb.test()
async def every_kind_of_burst_is_as_the_model_says(_):
    """Each begins once the one before was taken: all kinds, sizes, alignments, regions and responses."""
    tb = await TB.started("every kind", latency=3)
    await tb.set("TIMEOUT", NEVER)
    make_faulty(tb)
    cases = all_cases(len(tb.regions))
    tb.rng.shuffle(cases)
    bench = OneByOne(tb)
    for i in range(TASK.bursts):
        await bench.send(cases[i % len(cases)])
        if i % 16 == 15:
            for channel in (*tb.accelerator.channels, *tb.memory.channels):
                channel.pause = tb.rng.choice([never, never, often, in_bursts, seldom_and_long])(tb.rng)
            tb.memory.jitter = tb.rng.choice([0, 0, 20])
    await tb.quiet()
    clear = np.ones(len(tb.model.dram.content), bool)
    for region in tb.regions:  # but where memory refused parts of blocks
        clear[stored_at(region, FAULTY) : stored_at(region, FAULTY + PAGE)] = False
    assert (tb.memory.dram.content == tb.model.dram.content)[clear].all()
    await tb.check_errors()
    met = [[way, place, Response(response).name, n] for (way, place, response), n in bench.responses.items()]
    TASK.note(bursts=TASK.bursts, kinds=min(TASK.bursts, len(cases)), kinds_of=len(cases), responses=met)


@cocotb.test()
async def masters_at_once_each_see_their_own_writes(_):
    """Each in places of its own: blocks written in pieces and read back, with pauses on every channel."""
    tb = await TB.started("masters at once", latency=5)
    tb.memory.jitter = 30
    await tb.set("TIMEOUT", NEVER)
    each = max(TASK.bursts // 16, 4)
    for pattern in (often, in_bursts, seldom_and_long, never):
        for channel in (*tb.accelerator.channels, *tb.memory.channels):
            channel.pause = pattern(tb.rng)
        masters = [Owner(tb, master) for master in range(4)]
        for task in [cocotb.start_soon(master.run(each)) for master in masters]:
            await task
        await tb.quiet()
        assert (tb.memory.dram.content == tb.model.dram.content).all()
        assert await tb.get("ERRORS") == 0
        TASK.note(bursts=sum(master.bursts for master in masters))


class Owner:
    """A master that has a quarter of some pages to itself, so that it knows what is there."""

    def __init__(self, tb: TB, master: int):
        self._tb, self._master = tb, master
        self._rng = random.Random(f"{TASK.seed} {master} {tb.cycle}")
        self.bursts = 0

    async def run(self, count: int) -> None:
        while self.bursts < count:
            region = self._rng.choice(self._tb.regions)
            start = region.base + self._rng.choice([0, PAGE]) + self._master * PAGE // 4
            await self._write(region, start)
            await self._read(start)

    async def _write(self, region: Region, start: int) -> None:
        """Whole blocks, one after the other, each in any pieces."""
        tb = self._tb
        size = region.fmt.original_bytes if region.fmt else 256
        first = self._rng.randrange(1024 // size)
        asked = []
        for n in range(first, min(first + self._rng.randint(1, 4), 1024 // size)):
            for burst, strobes in self._pieces(start + n * size, size):
                words = tb.random.integers(0, 256, (burst.beats, BUS), np.uint8)
                options = {"bufferable": self._rng.random() < 0.5, "master": self._master}
                asked.append(tb.accelerator.write(burst, words, strobes, **options))
                tb.model.write(burst, words, strobes, **options)
        self.bursts += len(asked)
        await tb.until(lambda: all(ticket in tb.accelerator.responses for ticket in asked))
        assert all(tb.accelerator.responses[ticket] == OKAY for ticket in asked)

    def _pieces(self, start: int, size: int) -> list[tuple[Burst, np.ndarray]]:
        """Bursts that fill a block, and their strobes, which strobe each byte once."""
        rng = self._rng
        style = rng.choice(["one", "parts", "wrap", "strobes"])
        whole = Burst(start, size // BUS, BUS)
        if style == "parts":
            cuts = sorted({0, size, *(rng.randrange(1, size) for _ in range(rng.randint(1, 3)))})
            return [self._part(start + low, start + high) for low, high in pairwise(cuts)]
        if style == "wrap" and whole.beats in (2, 4, 8, 16):
            whole = Burst(start + rng.randrange(whole.beats) * BUS, whole.beats, BUS, BurstKind.WRAP)
        lanes = whole.lanes(BUS)
        if style == "strobes":
            share = self._tb.random.random(lanes.shape) < 0.5
            return [(whole, share), (whole, ~share)]
        return [(whole, lanes)]

    def _part(self, low: int, high: int) -> tuple[Burst, np.ndarray]:
        """The bytes between two addresses, in beats of any size of which 256 are enough."""
        beat = self._rng.choice([size for size in SIZES if (high - 1) // size - low // size < 256])
        burst = Burst(low, (high - 1) // beat - low // beat + 1, beat)
        words = np.array([address - address % BUS for address in burst.addresses()])
        places = words[:, None] + np.arange(BUS)
        return burst, burst.lanes(BUS) & (places >= low) & (places < high)

    async def _read(self, start: int) -> None:
        tb, rng = self._tb, self._rng
        asked = {}
        for _ in range(rng.randint(1, 3)):
            size = rng.choice(SIZES)
            at = start + rng.randrange(1024)
            burst = Burst(at, max(1, min(rng.choice([1, 4, 256]), (start + 1024 - at) // size)), size)
            if rng.random() < 0.3:
                burst = Burst(
                    start + rng.randrange(512) // size * size, rng.choice([2, 4]), size, BurstKind.WRAP
                )
            if rng.random() < 0.3:
                burst = Burst(start, 1024 // BUS, BUS)
            asked[tb.accelerator.read(burst, master=self._master)] = burst
        self.bursts += len(asked)
        await tb.until(lambda: all(ticket in tb.accelerator.reads for ticket in asked))
        for ticket, burst in asked.items():
            found, answers = tb.accelerator.reads.pop(ticket)
            expected, responses = tb.model.read(burst)
            assert answers == responses, f"master {self._master}, {burst}"
            assert (found == expected).all(), f"master {self._master}, {burst}"


@cocotb.test()
async def a_reset_in_the_middle_of_bursts_leaves_no_trace(_):
    """Whatever is under way is gone; memory keeps what was written, and all goes on as after the first."""
    tb = await TB.started("reset", latency=10)
    for i in range(max(TASK.bursts // 100, 3)):
        for region in tb.rng.sample(tb.regions, len(tb.regions)):  # any may be in the middle
            for n in range(4):
                burst = Burst(region.base + n * 512, 512 // BUS, BUS)
                words = tb.random.integers(0, 256, (burst.beats, BUS), np.uint8)
                tb.accelerator.write(burst, words, burst.lanes(BUS), bufferable=n % 2 == 0, master=n)
                tb.accelerator.read(burst, master=n)
        await tb.cycles(tb.rng.randint(5, 150))
        await tb.reset(tb.rng.randint(2, 5))
        await tb.set("TIMEOUT", NEVER)
        bench = OneByOne(tb)
        cases = [case for case in all_cases(len(tb.regions)) if case.place == "clear"]
        for case in tb.rng.sample(cases, 12):
            await bench.send(case)
        await tb.quiet()
        assert (tb.memory.dram.content == tb.model.dram.content).all()
        await tb.check_errors()
        TASK.note(bursts=12 + 8 * len(tb.regions), resets=i + 1)


@cocotb.test()
async def writes_that_are_not_bufferable_are_answered_after_memory(_):
    """And those that are, before."""
    tb = await TB.started("late answers", latency=200)
    for region in tb.regions:
        size = region.fmt.original_bytes if region.fmt else BUS
        for bufferable in (False, True) if region.fmt else (False,):
            burst = Burst(region.base, size // BUS, BUS)
            words = np.ones((burst.beats, BUS), np.uint8)
            ticket = tb.accelerator.write(burst, words, words > 0, bufferable=bufferable)
            await tb.until(lambda ticket=ticket: ticket in tb.accelerator.responses)
            took = tb.accelerator.ended[ticket] - tb.accelerator.w.taken_at
            assert took < 10 if bufferable else took >= 200, f"{region}: {took} cycles"
            await tb.quiet()


@cocotb.test()
async def no_channel_waits_for_another(_):
    """AW and W of the memory for each other; reads for data of writes; writes for reads that are stalled."""
    tb = await TB.started("no channel waits", latency=3)
    accelerator, memory = tb.accelerator, tb.memory
    always = repeat(True)
    for region in tb.regions:
        size = region.fmt.original_bytes if region.fmt else 4 * BUS
        whole = Burst(region.base, size // BUS, BUS)
        words = np.full((whole.beats, BUS), 7, np.uint8)
        for first, second in ((memory.w, memory.aw), (memory.aw, memory.w)):
            second.pause = once_taken(first)
            ticket = accelerator.write(whole, words, words > 0)
            await tb.until(lambda ticket=ticket: ticket in accelerator.responses, 500)
            second.pause = never(tb.rng)

        accelerator.w.pause = always
        written = accelerator.write(whole, words, words > 0)
        read = accelerator.read(Burst(region.base + PAGE, 1, BUS))
        await tb.until(lambda read=read: read in accelerator.reads, 500)
        accelerator.w.pause = never(tb.rng)
        await tb.until(lambda written=written: written in accelerator.responses, 500)

        accelerator.r.pause = always
        reads = [accelerator.read(Burst(region.base + PAGE, PAGE // BUS // 4, BUS)) for _ in range(4)]
        await tb.cycles(100)
        written = accelerator.write(whole, words, words > 0)
        await tb.until(lambda written=written: written in accelerator.responses, 500)
        accelerator.r.pause = never(tb.rng)
        await tb.until(lambda reads=reads: all(read in accelerator.reads for read in reads))


def once_taken(channel) -> Iterator[bool]:
    """Pauses until another beat of a channel was taken."""
    before = channel.taken
    while True:
        yield channel.taken == before


@cocotb.test()
async def shared_beats_are_read_anew_once_they_were_written(_):
    """Blocks share beats; a read that goes on where the one before ended sees what was written since."""
    tb = await TB.started("shared beats", latency=5)
    for region in tb.regions[:-1]:
        size = region.fmt.original_bytes
        for n in range(12):
            for at in (n, n + 1):
                burst = Burst(region.base + at * size, size // BUS, BUS)
                if at > n:
                    words = tb.random.integers(0, 256, (burst.beats, BUS), np.uint8)
                    options = {"bufferable": n % 2 == 0}
                    ticket = tb.accelerator.write(burst, words, words >= 0, **options)
                    tb.model.write(burst, words, words >= 0, **options)
                    await tb.until(lambda ticket=ticket: ticket in tb.accelerator.responses)
                ticket = tb.accelerator.read(burst)
                await tb.until(lambda ticket=ticket: ticket in tb.accelerator.reads)
                found, _ = tb.accelerator.reads.pop(ticket)
                assert (found == tb.model.read(burst)[0]).all(), f"{region}: block {at}"


@cocotb.test()
async def a_bus_master_of_others_finds_what_it_wrote(_):
    """cocotbext-axi at both ends: reads and writes of any length and size at once."""
    tb = await TB.started("cocotbext-axi", latency=3)
    await tb.set("TIMEOUT", NEVER)
    tb.ends = [tb.lite]
    rng, dut = tb.rng, tb.dut
    master = AxiMaster(AxiBus.from_prefix(dut, "s_axi"), dut.aclk, dut.aresetn, False)
    ram = AxiRam(AxiBus.from_prefix(dut, "m_axi"), dut.aclk, dut.aresetn, False, size=1 << 18)
    ram.write(0, bytes(1 << 18))
    ends = (master.write_if, ram.write_if), (master.read_if, ram.read_if)
    for writes, reads in zip(*ends, strict=True):
        for channel in (
            writes.aw_channel,
            writes.w_channel,
            writes.b_channel,
            reads.ar_channel,
            reads.r_channel,
        ):
            channel.set_pause_generator(often(rng))

    by_region = [0] * len(tb.regions)

    async def own(part: int, count: int) -> None:
        """Blocks that nobody else touches, written whole and read in pieces."""
        for _ in range(count):
            number = rng.randrange(len(tb.regions))
            region = tb.regions[number]
            by_region[number] += 2
            size = region.fmt.original_bytes if region.fmt else 64
            start = region.base + part * PAGE // 2 + rng.randrange(PAGE // 4 // size) * size
            content = np.frombuffer(rng.randbytes(rng.randint(1, 3) * size), np.uint8)
            burst = Burst(start, len(content) // BUS, BUS)
            words = content.reshape(-1, BUS)
            tb.model.write(burst, words, np.ones(words.shape, bool))
            beat = rng.choice(SIZES[2:])
            answer = await master.write(start, content.tobytes(), size=beat.bit_length() - 1)
            assert answer.resp == OKAY
            at = start + rng.randrange(len(content))
            length = rng.randint(1, len(content) - (at - start))
            found = await master.read(at, length, size=rng.choice(SIZES[2:]).bit_length() - 1)
            expected, _ = tb.model.read(burst)
            assert found.data == expected.tobytes()[at - start :][:length], f"{length} bytes at {at:#x}"
            assert found.resp == OKAY

    each = max(TASK.bursts // 16, 4)
    for task in [cocotb.start_soon(own(part, each)) for part in range(8)]:
        await task
    for _ in range(60):
        await RisingEdge(dut.aclk)
    assert ram.read(0, 1 << 18) == tb.model.dram.content.tobytes()
    TASK.note(bursts=sum(by_region), by_region=by_region)
