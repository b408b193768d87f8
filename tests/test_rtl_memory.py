"""The parts of the memory engine, each by itself in Amaranth's simulator."""

import random

import numpy as np
import pytest
from amaranth import ResetInserter, Signal
from amaranth.sim import Simulator

from golden import HadamardFormat, PlaneFormat
from golden.bursts import PAGE, Burst, BurstKind, Response
from golden.memory import Dram, MemoryModel, Region
from rtl.memory import MemoryParameters
from rtl.memory.codecs.compress import Compressors
from rtl.memory.codecs.unpack import Unpacker
from rtl.memory.interface.walker import Walker
from rtl.memory.read.reply import Reply
from rtl.memory.registers.map import COUNTERS, address_of
from rtl.memory.registers.regions import Lookup, Mapper
from rtl.memory.registers.registers import Registers
from rtl.memory.write.slots import Slots
from rtl.memory.write.writeout import Packer, WriteOut

FORMATS = (PlaneFormat("bf16", 32, 21), HadamardFormat("bf16", 64, 18))


def parameters(memory_bytes=16, **options):
    return MemoryParameters(
        formats=FORMATS, bus_bytes=16, memory_bytes=memory_bytes, address_bits=20, **options
    )


def simulate(part, *testbenches):
    simulator = Simulator(part)
    simulator.add_clock(1e-6)
    for testbench in testbenches:
        simulator.add_testbench(testbench)
    simulator.run()


async def send(context, stream, payloads, rng, pause=0.3):
    for payload in payloads:
        while rng.random() < pause:
            await context.tick()
        context.set(stream.payload, payload)
        context.set(stream.valid, 1)
        await context.tick().until(stream.ready)
        context.set(stream.valid, 0)


async def receive(context, stream, into, rng, pause=0.3):
    """What is taken in this cycle goes to ``into``; the cycle ends here."""
    context.set(stream.ready, rng.random() >= pause)
    _, _, valid, ready, payload = await context.tick().sample(stream.valid, stream.ready, stream.payload)
    if valid and ready:
        into.append(payload)


async def put(context, registers, name, value, index=0):
    """Write a register; whether that was accepted."""
    context.set(registers.aw.p.addr, address_of(name, index))
    context.set(registers.w.payload, {"data": value, "strb": 15})
    context.set(registers.aw.valid, 1)
    context.set(registers.w.valid, 1)
    await context.tick().until(registers.aw.ready)
    context.set(registers.aw.valid, 0)
    context.set(registers.w.valid, 0)
    while not context.get(registers.b.valid):
        await context.tick()
    return context.get(registers.b.p.resp) == Response.OKAY


async def get(context, registers, name, index=0):
    context.set(registers.ar.p.addr, address_of(name, index))
    context.set(registers.ar.valid, 1)
    await context.tick().until(registers.ar.ready)
    context.set(registers.ar.valid, 0)
    while not context.get(registers.r.valid):
        await context.tick()
    assert context.get(registers.r.p.resp) == Response.OKAY
    return context.get(registers.r.p.data)


def test_regions_that_share_stored_bytes_are_unusable_before_the_write_is_answered():
    """And never usable at once."""
    rng, model, enabled = random.Random(10), {}, {}
    registers = Registers(parameters())
    usable = []

    def clashes(i):
        region = enabled[i]
        inside = region.stored + region.stored_size <= 1 << 20
        return not inside or any(region.shares_memory(other) for j, other in enabled.items() if j != i)

    async def act(context):
        context.set(registers.b.ready, 1)
        context.set(registers.r.ready, 1)
        context.set(registers.drained, 1)
        for _ in range(200):
            i = rng.randrange(8)
            if i in enabled:
                assert not await put(context, registers, "REGION_STORED", 1, i)
                assert await put(context, registers, "REGION_CONTROL", 0, i)
                del enabled[i]
            else:
                fmt = rng.choice([*FORMATS, None])
                size, stored = rng.randint(1, 40), rng.randrange(256)
                model[i] = Region(0, size * PAGE, stored * PAGE, fmt)
                for name, value in (("SIZE", size), ("STORED", stored)):
                    assert await put(context, registers, f"REGION_{name}", value, i)
                control = 1 | (FORMATS.index(fmt) + 1 if fmt else 0) << 8
                assert await put(context, registers, "REGION_CONTROL", control, i)
                enabled[i] = model[i]
            expected = [j in enabled and not clashes(j) for j in range(8)]
            assert [bool(region.usable) for region in context.get(registers.reads.regions)] == expected
            assert (await get(context, registers, "REGION_CONTROL", i) >> 2 & 1) == expected[i]
            if i in model:
                assert await get(context, registers, "REGION_STORED", i) == model[i].stored // PAGE
            usable.append(sum(expected))

    async def watch(context):
        async for *_, regions in context.tick().sample(registers.reads.regions):
            some = [model[i] for i, region in enumerate(regions) if region.usable]
            assert not any(one.shares_memory(other) for one in some for other in some if one is not other)

    simulator = Simulator(registers)
    simulator.add_clock(1e-6)
    simulator.add_testbench(act)
    simulator.add_testbench(watch, background=True)
    simulator.run()
    assert min(usable) < 2 < max(usable)


def test_what_this_engine_cannot_do_is_refused_and_changes_nothing():
    registers, engine = Registers(parameters()), parameters()
    beyond, most = 1 << engine.page_bits, len(FORMATS)

    async def act(context):
        async def refuses(name, value):
            before = await get(context, registers, name)
            assert not await put(context, registers, name, value), f"{name} = {value:#x}"
            assert await get(context, registers, name) == before, f"{name} = {value:#x}"

        async def takes(name, value, becomes):
            assert await put(context, registers, name, value), f"{name} = {value:#x}"
            assert await get(context, registers, name) == becomes, f"{name} = {value:#x}"

        context.set(registers.b.ready, 1)
        context.set(registers.r.ready, 1)
        context.set(registers.drained, 1)
        for name in ("BASE", "SIZE", "STORED"):
            await takes(f"REGION_{name}", beyond - 1, beyond - 1)
            for value in (beyond, beyond | 1, 1 << 31):
                await refuses(f"REGION_{name}", value)
            await takes(f"REGION_{name}", 0, 0)
        for enables in (0, 1):  # it has no pages yet
            await refuses("REGION_CONTROL", (most + 1) << 8 | enables)
        await refuses("REGION_CONTROL", 1 << 8 | 1)
        await takes("REGION_SIZE", 1, 1)
        for number in range(most + 1, 16):
            await refuses("REGION_CONTROL", number << 8 | 1)
        await refuses("REGION_CONTROL", 1 << 8 | 1 << 3 | 1)  # there is no merging
        await takes("REGION_CONTROL", 1 << 8 | 1, 1 << 8 | 1 << 2 | 1)
        for control in (1, 2 << 8 | 1, 1 << 8 | 1 << 3 | 1, 15 << 8, 8):
            await refuses("REGION_CONTROL", control)
        await takes("REGION_CONTROL", 1 << 8 | 1, 1 << 8 | 1 << 2 | 1)
        await takes("REGION_CONTROL", 2 << 8, 2 << 8)
        await takes("REGION_CONTROL", 2 << 8 | 1, 2 << 8 | 1 << 2 | 1)

    simulate(registers, act)


def test_a_region_that_is_enabled_merges_or_not_as_before():
    registers = Registers(parameters(merging=True))

    async def act(context):
        context.set(registers.b.ready, 1)
        context.set(registers.r.ready, 1)
        context.set(registers.drained, 1)
        assert await put(context, registers, "REGION_SIZE", 1)
        for merge in (0, 1 << 3):
            control = 1 << 8 | 1
            assert await put(context, registers, "REGION_CONTROL", control | merge)
            assert not await put(context, registers, "REGION_CONTROL", control | merge ^ 1 << 3)
            assert await get(context, registers, "REGION_CONTROL") == control | 1 << 2 | merge
            assert await put(context, registers, "REGION_CONTROL", 0)

    simulate(registers, act)


def test_counters_miss_nothing_however_often_they_are_read_and_are_cleared_by_a_reset():
    rng, registers = random.Random(11), Registers(parameters())
    counted = dict.fromkeys((name for name, _ in COUNTERS), 0)
    reset = Signal()

    async def count(context):
        for _ in range(2):
            for cycle in range(600):
                more = {name: rng.choice([0, 1, 16 if "BYTES" in name else 1]) for name in counted}
                context.set(registers.counts, more if cycle < 500 else dict.fromkeys(counted, 0))
                for name in counted:
                    counted[name] += more[name] if cycle < 500 else 0
                await context.tick()
            for name, total in counted.items():
                assert await get(context, registers, name) == total, name
            context.set(reset, 1)
            await context.tick()
            context.set(reset, 0)
            counted.update(dict.fromkeys(counted, 0))
            assert await get(context, registers, "WRITE_BYTES") == 0

    async def read(context):
        context.set(registers.r.ready, 1)
        context.set(registers.ar.p.addr, address_of("BUSY"))
        context.set(registers.ar.valid, 1)
        await context.tick().repeat(500)
        context.set(registers.ar.valid, 0)

    simulate(ResetInserter(reset)(registers), count, read)


def test_beats_are_where_axi_says():
    rng, bursts = random.Random(1), []
    for _ in range(120):
        kind, size, address = rng.choice(list(BurstKind)), 1 << rng.randrange(5), rng.randrange(PAGE)
        most = {
            BurstKind.FIXED: 16,
            BurstKind.WRAP: 16,
            BurstKind.INCR: min(40, (PAGE - address + address % size) // size),
        }[kind]
        beats = rng.choice([2, 4, 8, 16]) if kind == BurstKind.WRAP else rng.randint(1, most)
        bursts.append(Burst(address - address % size * (kind == BurstKind.WRAP), beats, size, kind))
    walker, beats = Walker(parameters(), 3), []
    expected = [
        (at, i == 0, i == burst.beats - 1, i == burst.beats - 1 or at // 16 != burst.addresses()[i + 1] // 16)
        for burst in bursts
        for i, at in enumerate(burst.addresses())
    ]

    async def source(context):
        sizes = [burst.size.bit_length() - 1 for burst in bursts]
        payloads = [
            {"low": b.address, "len": b.beats - 1, "size": size, "kind": int(b.kind), "about": 5}
            for b, size in zip(bursts, sizes, strict=True)
        ]
        await send(context, walker.i, payloads, rng)

    async def sink(context):
        while len(beats) < len(expected):
            await receive(context, walker.o, beats, rng, pause=0.1)

    simulate(walker, source, sink)
    assert [(beat.at, beat.first, beat.last, beat.leaves) for beat in beats] == expected


def test_regions_are_found_and_blocks_are_where_the_model_says():
    p, rng = parameters(), random.Random(2)
    model = MemoryModel(Dram(np.zeros(0, np.uint8)), 16)
    for i in range(6):
        base = PAGE * rng.choice([0, 8, 16, 24, 40, 41])
        size = PAGE * rng.randint(1, 8)
        model.enable(i, Region(base, size, PAGE * (100 + 10 * i), rng.choice([*FORMATS, None])))
    lookup, mapper, places = Lookup(p), Mapper(p), []

    async def look(context):
        for i, region in enumerate(model.regions):
            if region:
                number = FORMATS.index(region.fmt) + 1 if region.fmt else 0
                fields = {"base": region.base // PAGE, "end": (region.base + region.size) // PAGE}
                fields |= {"format": number, "enabled": 1, "usable": 1}
                context.set(lookup.regions[i], fields)
        for _ in range(200):
            address = rng.randrange(64 * PAGE)
            context.set(lookup.page, address // PAGE)
            await context.delay(1e-9)
            found, region = context.get(lookup.found), model._region_of(address)
            assert found.hit == (region is not None), hex(address)
            if region:
                assert model.regions[found.region] is region
                places.append((found.format, address, region))

    async def map_them(context):
        for number, address, region in places:
            context.set(mapper.format, number)
            context.set(mapper.origin, {"base": region.base // PAGE, "stored": region.stored // PAGE})
            context.set(mapper.page, address // PAGE)
            context.set(mapper.low, address % PAGE)
            await context.delay(1e-9)
            if region.fmt is None:
                assert context.get(mapper.address) == region.stored + address - region.base
            else:
                number = region.number(address)
                assert context.get(mapper.number) == number
                assert context.get(mapper.address) == region.stored + number * region.fmt.target

    for part, testbench in ((lookup, look), (mapper, map_them)):
        simulator = Simulator(part)
        simulator.add_testbench(testbench)
        simulator.run()
    assert len(places) > 20


@pytest.mark.parametrize("memory_bytes", [16, 8, 4])
def test_blocks_side_by_side_share_beats_and_bursts(memory_bytes):
    p, rng = parameters(memory_bytes), random.Random(3)
    packer, out = Packer(p), WriteOut(p)
    size = FORMATS[0].target
    blocks = [(0x1F80 + size * i, rng.randbytes(size)) for i in range(20)]
    blocks += [(0x3000 + size * rng.randrange(50), rng.randbytes(size)) for _ in range(10)]
    words = []
    for address, content in blocks:
        for at in range(0, size, 16):
            part = content[at : at + 16]
            word = {"data": int.from_bytes(part, "little"), "empty": 16 - len(part), "first": at == 0}
            words.append(word | {"address": address, "waiting": 1})
    beats, bursts, data, found = [], [], [], bytearray(1 << 14)

    async def source(context):
        await send(context, packer.i, words[: 2 * 20], rng, pause=0)
        await send(context, packer.i, words[2 * 20 :], rng)
        context.set(packer.hurry, 1)

    async def sink(context):
        idle = 0
        while idle < 20:
            count = len(beats)
            await receive(context, packer.o, beats, rng)
            idle = idle + 1 if len(beats) == count else 0

    simulate(packer, source, sink)
    straight = (0x1F80 % memory_bytes + 20 * size + memory_bytes - 1) // memory_bytes
    assert [beat.beat for beat in beats[:straight]] == [0x1F80 // memory_bytes + i for i in range(straight)]

    async def give(context):
        payloads = [{name: beat[name] for name in ("beat", "data", "strb", "waiting")} for beat in beats]
        await send(context, out.i, payloads, rng, pause=0.1)

    async def take(context):
        idle = 0
        while idle < 60:
            count = len(bursts) + len(data)
            for stream in (out.aw, out.w):
                context.set(stream.ready, rng.random() < 0.7)
            ended = min(len(bursts), sum(word.last for word in data))
            context.set(out.b.valid, ended > answered[0])
            context.set(out.b.p.resp, Response.OKAY)
            answered[0] += ended > answered[0]
            *_, aw_takes, burst, w_takes, word = await context.tick().sample(
                out.aw.valid & out.aw.ready, out.aw.payload, out.w.valid & out.w.ready, out.w.payload
            )
            bursts.extend([burst] if aw_takes else [])
            data.extend([word] if w_takes else [])
            idle = idle + 1 if len(bursts) + len(data) == count else 0
        assert context.get(out.idle)

    answered = [0]
    simulate(out, give, take)
    rest = iter(data)
    for burst in bursts:
        assert burst.addr // PAGE == (burst.addr + (burst.len + 1) * memory_bytes - 1) // PAGE
        for i in range(burst.len + 1):
            word = next(rest)
            assert word.last == (i == burst.len)
            octets = word.data.to_bytes(memory_bytes, "little")
            for j in range(memory_bytes):
                if word.strb >> j & 1:
                    found[burst.addr + i * memory_bytes + j] = octets[j]
    assert next(rest, None) is None
    expected = bytearray(1 << 14)
    for address, content in blocks:
        expected[address : address + size] = content
    assert found == expected


def test_blocks_of_two_formats_in_turn_flow_and_leave_in_order():
    p, rng = parameters(), np.random.default_rng(9)
    compressors, sent, expected, stalls, found, octets = Compressors(p), [], [], [], [], b""
    for i in range(18):
        index = i // 3 % 2
        fmt, number = FORMATS[index], int(rng.integers(2**32))
        values = rng.normal(size=fmt.block).astype(fmt.float_type.array)
        expected.append((0x100 * i, fmt.compress(values, number)[0].tobytes()))
        original, about = values.tobytes(), {"format": index + 1, "number": number, "address": 0x100 * i}
        for at in range(0, len(original), 16):
            word = {"data": int.from_bytes(original[at : at + 16], "little"), "first": at == 0}
            sent.append(word | {"last": at + 16 == len(original)} | about)

    async def source(context):
        for word in sent:
            context.set(compressors.i.payload, word)
            context.set(compressors.i.valid, 1)
            stalls.append(-1)
            ready = False
            while not ready:
                *_, ready = await context.tick().sample(compressors.i.ready)
                stalls[-1] += 1
        context.set(compressors.i.valid, 0)

    async def sink(context):
        nonlocal octets
        context.set(compressors.o.ready, 1)
        words = []
        while len(found) < len(expected):
            await receive(context, compressors.o, words, random.Random(1), pause=0)
            for word in words:
                octets += word.word.data.to_bytes(16, "little")[: 16 - word.word.empty]
                if word.last:
                    found.append((word.word.address, octets))
                    octets = b""
            words.clear()

    simulate(compressors, source, sink)
    assert found == expected
    assert sum(stalls) == 0


@pytest.mark.parametrize("memory_bytes", [16, 8, 4])
def test_runs_of_blocks_are_cut_and_errors_stay_with_their_blocks(memory_bytes):
    p, rng = parameters(memory_bytes), random.Random(4)
    unpacker = Unpacker(p)
    runs, beats, expected = [], [], []
    index, content, responses, end = 0, b"", [], 0  # of the run before
    for _ in range(60):
        continues = end % memory_bytes and rng.random() < 0.5
        index = index if continues else rng.randrange(2)
        size, count = FORMATS[index].target, rng.randint(1, 5)
        skip = end % memory_bytes if continues else rng.randrange(memory_bytes)
        number, end = rng.getrandbits(32), skip + size * count
        whole, kept = -(-end // memory_bytes), 1 if continues else 0
        content = content[-memory_bytes * kept :] * kept + rng.randbytes((whole - kept) * memory_bytes)
        more = [rng.choices([0, 2, 3], [6, 1, 1])[0] for _ in range(whole - kept)]
        responses = responses[-1:] * kept + more
        run = {"format": index + 1, "count": count - 1, "skip": skip, "number": number}
        runs.append(run | {"beats": whole - kept, "continues": kept})
        for i in range(kept, whole):
            octets = content[i * memory_bytes :][:memory_bytes]
            beats.append({"data": int.from_bytes(octets, "little"), "resp": responses[i]})
        for b in range(count):
            start = skip + b * size
            worst = max(responses[start // memory_bytes : (start + size - 1) // memory_bytes + 1])
            expected.append((content[start : start + size], worst, (number + b) % 2**32))
    words, found, octets = [], [], b""

    async def describe(context):
        await send(context, unpacker.run, runs, random.Random(5), pause=0)

    async def source(context):
        await send(context, unpacker.i, beats, rng, pause=0.2)

    async def sink(context):
        while sum(word.word.last for word in words) < len(expected):
            await receive(context, unpacker.o, words, rng, pause=0.2)

    simulate(unpacker, describe, source, sink)
    for word in words:
        octets += word.word.data.to_bytes(16, "little")[: 16 - word.word.empty]
        if word.word.last:
            found.append((octets, word.resp, word.word.first))
            octets = b""
    assert found == expected


def test_runs_of_one_block_are_cut_without_a_pause_between():
    p, rng = parameters(), random.Random(8)
    unpacker, cycles = Unpacker(p), []

    async def describe(context):
        run = {"format": 1, "count": 0, "skip": 0, "beats": 2}
        await send(context, unpacker.run, [run] * 20, rng, pause=0)

    async def source(context):
        await send(context, unpacker.i, [{"data": 0, "resp": 0}] * 40, rng, pause=0)

    async def sink(context):
        context.set(unpacker.o.ready, 1)
        cycle = 0
        while len(cycles) < 40:
            *_, valid = await context.tick().sample(unpacker.o.valid)
            cycle += 1
            cycles.extend([cycle] if valid else [])

    simulate(unpacker, describe, source, sink)
    assert cycles == list(range(cycles[0], cycles[0] + 40))


def test_the_first_blocks_after_a_reset_all_reach_their_reads():
    chosen = parameters()
    reply, original = Reply(chosen), chosen.formats[0].original_bytes
    values = [{"data": n, "last": n % 4 == 3} for n in range(3 * original // chosen.bus_bytes)]
    assert original == 4 * chosen.bus_bytes
    found, taken = [], []

    async def give(context):
        for word in values:
            context.set(reply.values.payload, {"resp": 0, "invalid": 0, **word})
            context.set(reply.values.valid, 1)
            await context.tick().until(reply.values.ready)
            taken.append(word)
        context.set(reply.values.valid, 0)

    async def ask(context):
        for _ in range(20):
            await context.tick()
        assert len(taken) == 4  # one block: the other buffer is that of what was read last
        about = {"id": 0, "page": 0, "hit": 1, "format": 1, "kept": 0}
        burst = {"low": 0, "len": len(values) - 1, "size": 4, "kind": BurstKind.INCR, "about": about}
        context.set(reply.bursts.payload, burst)
        context.set(reply.bursts.valid, 1)
        await context.tick().until(reply.bursts.ready)
        context.set(reply.bursts.valid, 0)

    async def read(context):
        context.set(reply.r.ready, 1)
        while len(found) < len(values):
            (word,) = await context.tick().sample(reply.r.payload).until(reply.r.valid)
            found.append(word.data)

    simulate(reply, give, ask, read)
    assert found == [word["data"] for word in values]


def test_bursts_of_one_id_are_answered_in_order_and_others_pass():
    p, rng = parameters(least_slots=8), random.Random(6)
    slots = Slots(p)
    opened, given, held, wrong = [], [], {}, set()

    async def act(context):
        context.set(slots.b.ready, 1)
        while len(given) < 300:
            context.set(slots.open, 0)
            context.set(slots.taken, 0)
            context.set(slots.slverr, 0)
            has_free, free = context.get(slots.has_free), context.get(slots.free)
            if has_free and rng.random() < 0.6:
                identity = rng.randrange(3)
                context.set(slots.open, 1)
                context.set(slots.id, identity)
                opened.append((identity, free))
                held[free] = len(opened) - 1
                done.discard(free)
            elif open_ones := [slot for slot in held if slot not in done]:
                slot = rng.choice(open_ones)
                context.set(slots.taken, 1)
                context.set(slots.taken_slot, slot)
                done.add(slot)
                if rng.random() < 0.3:
                    context.set(slots.slverr, 1 << slot)
                    wrong.add(held[slot])
            *_, valid, answer = await context.tick().sample(slots.b.valid, slots.b.payload)
            if valid:
                given.append((answer.id, answer.resp))
                first = next(i for i, (one, _) in enumerate(opened) if one == answer.id and i not in gone)
                gone.add(first)
                assert answer.resp == (Response.SLVERR if first in wrong else Response.OKAY)
                slot = opened[first][1]
                if held.get(slot) == first:
                    del held[slot]
                    done.discard(slot)

    done, gone = set(), set()
    simulate(slots, act)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bus_bytes": 24}, r"bus_bytes must be one of \(16, 32, 64\), not 24"),
        ({"bus_bytes": 64, "memory_bytes": 8}, r"memory_bytes must be one of \(64, 32, 16\), not 8"),
        ({"address_bits": 50}, "address_bits must be from 16 to 44, not 50"),
        ({"regions": 0}, "regions must be from 1 to 8, not 0"),
        ({"regions": 9}, "regions must be from 1 to 8, not 9"),
        ({"buffers": 0}, "buffers must be from 1 to 255, not 0"),
        ({"buffers": 256}, "buffers must be from 1 to 255, not 256"),
        ({"id_bits": 0}, "id_bits must be from 1 to 16, not 0"),
        ({"id_bits": 17}, "id_bits must be from 1 to 16, not 17"),
        ({"least_slots": 0}, "least_slots must be at least 1, not 0"),
        ({"reads": 0}, "reads must be at least 1, not 0"),
        ({"bursts": 1}, "bursts must be a power of two from 2 on, not 1"),
        ({"bursts": 12}, "bursts must be a power of two from 2 on, not 12"),
        ({"formats": (PlaneFormat("fp32", 64, 80),) * 16}, "formats must be at most 15, not 16"),
        ({"formats": (PlaneFormat("fp32", 16, 20),)}, "blocks of at least 128 bytes, not 64"),
        ({"formats": (PlaneFormat("fp32", 64, None),)}, "fixed targets, not None"),
    ],
)
def test_parameters_that_are_none_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        MemoryParameters(**options)
