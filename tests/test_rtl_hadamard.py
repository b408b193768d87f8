"""The engines of the Hadamard format in Amaranth's simulator: golden's bytes, under stalls and for tails."""

import random

import pytest
from amaranth.sim import Simulator

from golden import HadamardFormat
from rtl.hadamard import HadamardCompressor, HadamardDecompressor
from rtl.ports import RuntimeCompressor

from .blocks import adversarial, as_values
from .hadamard_blocks import blocks_of

ENGINES = [
    (HadamardFormat("bf16", 64, 16), 32, 2**32 - 3, 0.0),
    (HadamardFormat("fp16", 64, 27), 16, 7, 0.3),
    (HadamardFormat("fp32", 64, 9), 32, 5, 0.3),
    (HadamardFormat("bf16", 64, 8), 16, 5, 0.3),
]
every_engine = pytest.mark.parametrize(
    ("fmt", "bus_bytes", "first", "pause"), ENGINES, ids=[f"{e[0].dtype}-{e[0].target}" for e in ENGINES]
)


def tensors(fmt, first):
    """Values of three tensors: blocks of all kinds, a tail, and specials."""
    blocks = as_values(fmt, blocks_of(fmt, first, 5, seed=1)).reshape(-1)
    rough = as_values(fmt, adversarial(fmt, 2, seed=2)).reshape(-1)
    return [blocks, blocks[: fmt.block + 5], rough]


def exchanged(engine, packets, first, pause):
    """The bytes that come out for each packet, and in which of their words ``error`` is set.

    Args:
        packets: the bytes of tensors, of which the first block has the number ``first``.
        pause: how often either end pauses.
    """
    size, rng = engine.engine.bus_bytes, random.Random(1)
    words = [
        (packet[at : at + size], at + size >= len(packet), first if at == 0 else rng.getrandbits(32))
        for packet in packets
        for at in range(0, len(packet), size)
    ]
    found, errors = [b""], [[]]
    cycle = 0

    async def source(context):
        for octets, last, number in words:
            while rng.random() < pause:
                await context.tick()
            payload = {"data": int.from_bytes(octets, "little"), "last": last, "empty": size - len(octets)}
            context.set(engine.i.payload, payload | {"first": number})
            context.set(engine.i.valid, 1)
            await context.tick().until(engine.i.ready)
            context.set(engine.i.valid, 0)

    async def sink(context):
        while len(found) <= len(packets):
            context.set(engine.o.ready, rng.random() >= pause)
            *_, valid, ready, word = await context.tick().sample(
                engine.o.valid, engine.o.ready, engine.o.payload
            )
            if valid and ready:
                assert word.last or not word.empty
                found[-1] += int(word.data).to_bytes(size, "little")[: size - int(word.empty)]
                errors[-1].append(hasattr(word, "error") and bool(word.error))
                if word.last:
                    found.append(b"")
                    errors.append([])

    async def clock(context):
        nonlocal cycle
        async for _ in context.tick():
            cycle += 1
            assert cycle < 200 * len(words) + 1000, "hangs"

    simulator = Simulator(engine)
    simulator.add_clock(1e-6)
    simulator.add_testbench(source)
    simulator.add_testbench(sink)
    simulator.add_testbench(clock, background=True)
    simulator.run()
    return found[:-1], errors[:-1]


@every_engine
def test_the_compressor_makes_goldens_bytes(fmt, bus_bytes, first, pause):
    values = tensors(fmt, first)
    found, _ = exchanged(
        HadamardCompressor(fmt, bus_bytes), [tensor.tobytes() for tensor in values], first, pause
    )
    assert found == [fmt.compress(tensor, first).tobytes() for tensor in values]


@pytest.mark.parametrize("chosen", [0, 1])
def test_blocks_are_packed_though_those_of_another_format_fill_a_word(chosen):
    formats = HadamardFormat("fp16", 64, 8), HadamardFormat("fp16", 64, 16)
    fmt, values = formats[chosen], tensors(formats[chosen], 3)
    engine = RuntimeCompressor((fmt, formats[1 - chosen]), 16)
    found, _ = exchanged(engine, [tensor.tobytes() for tensor in values], 3, 0.3)
    assert found == [fmt.compress(tensor, 3).tobytes() for tensor in values]


@every_engine
def test_the_decompressor_makes_goldens_values(fmt, bus_bytes, first, pause):
    stored = [fmt.compress(tensor, first) for tensor in tensors(fmt, first)]
    found, errors = exchanged(
        HadamardDecompressor(fmt, bus_bytes), [rows.tobytes() for rows in stored], first, pause
    )
    assert found == [fmt.decompress(rows, len(rows) * fmt.block, first).tobytes() for rows in stored]
    assert not any(map(any, errors))


def test_invalid_and_broken_blocks_are_zeros_with_an_error():
    fmt, bus_bytes = HadamardFormat("fp16", 64, 16), 16
    (values, *_) = tensors(fmt, 0)
    stored = fmt.compress(values)
    expected = fmt.decompress(stored, values.size).reshape(-1, fmt.block)
    stored[1, :2] = 2, stored[1, 1] & 0xF0
    stored[3, :2] = 15, stored[3, 1] & 0xF0
    expected[[1, 3, 4]] = 0
    found, errors = exchanged(HadamardDecompressor(fmt, bus_bytes), [stored.tobytes()[:-5]], 0, 0.2)
    assert found == [expected.tobytes()]
    words = fmt.original_bytes // bus_bytes
    assert [any(errors[0][i * words :][:words]) for i in range(5)] == [False, True, False, True, True]
