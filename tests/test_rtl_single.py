"""Codecs of tensors that are single blocks: golden's bytes, each block in words of its own, under stalls."""

import random

import numpy as np
import pytest
from amaranth.sim import Simulator

from golden import HadamardFormat, PlaneFormat
from rtl.ports import COMPRESSORS, DECOMPRESSORS, core_of

from .blocks import adversarial, as_values

COUNT = 12
# Blocks of one word, of two and of several; how often either end pauses.
ENGINES = [
    (PlaneFormat("bf16", 32, 16), 16, 0.4),
    (PlaneFormat("bf16", 32, 21), 16, 0.4),
    (PlaneFormat("bf16", 32, 64), 16, 0.0),
    (HadamardFormat("bf16", 64, 16), 32, 0.4),
    (HadamardFormat("bf16", 64, 18), 16, 0.0),
]
every_engine = pytest.mark.parametrize(
    ("fmt", "bus_bytes", "pause"),
    ENGINES,
    ids=[f"{fmt.scheme}-{fmt.target}-{bus}" for fmt, bus, _ in ENGINES],
)


def numbered_blocks(fmt):
    """Numbers of blocks, their values' bytes, and the stored ones."""
    rng = random.Random(3)
    for values in as_values(fmt, adversarial(fmt, COUNT, seed=4))[:COUNT]:
        number = rng.getrandbits(32) if isinstance(fmt, HadamardFormat) else 0
        yield number, values.tobytes(), fmt.compress(values, number).tobytes()


def exchanged(engine, tensors, pause):
    """The words that come for each tensor.

    Args:
        tensors: numbers and bytes.
        pause: how often either end pauses.
    """
    size, rng = engine.engine.bus_bytes, random.Random(1)
    found = []

    async def source(context):
        for number, octets in tensors:
            for at in range(0, len(octets), size):
                while rng.random() < pause:
                    await context.tick()
                word = octets[at : at + size]
                payload = {"data": int.from_bytes(word, "little"), "empty": size - len(word)}
                payload |= {"last": at + size >= len(octets)}
                if "first" in engine.i.payload.shape().members:
                    payload |= {"first": number if at == 0 else rng.getrandbits(32)}
                context.set(engine.i.payload, payload)
                context.set(engine.i.valid, 1)
                await context.tick().until(engine.i.ready)
                context.set(engine.i.valid, 0)

    async def sink(context):
        words = []
        while len(found) < len(tensors):
            context.set(engine.o.ready, rng.random() >= pause)
            _, _, valid, ready, payload = await context.tick().sample(
                engine.o.valid, engine.o.ready, engine.o.payload
            )
            if valid and ready:
                words.append(payload)
                if payload.last:
                    found.append(words)
                    words = []

    simulator = Simulator(engine)
    simulator.add_clock(1e-6)
    simulator.add_testbench(source)
    simulator.add_testbench(sink)
    simulator.run()
    return found


def content(words, size):
    octets = b"".join(word.data.to_bytes(size, "little") for word in words)
    empty = words[-1].empty
    assert not any(octets[len(octets) - empty :])
    return octets[: len(octets) - empty]


@every_engine
def test_each_block_has_words_of_its_own(fmt, bus_bytes, pause):
    blocks = list(numbered_blocks(fmt))
    compressor = core_of(COMPRESSORS, fmt)(fmt, bus_bytes, single=True)
    found = exchanged(compressor, [(number, values) for number, values, _ in blocks], pause)
    for (_, _, stored), words in zip(blocks, found, strict=True):
        assert content(words, bus_bytes) == stored


@every_engine
def test_blocks_in_words_of_their_own_are_decompressed(fmt, bus_bytes, pause):
    blocks = list(numbered_blocks(fmt))
    decompressor = core_of(DECOMPRESSORS, fmt)(fmt, bus_bytes, single=True)
    found = exchanged(decompressor, [(number, stored) for number, _, stored in blocks], pause)
    for (number, _, stored), words in zip(blocks, found, strict=True):
        values = fmt.decompress(np.frombuffer(stored, np.uint8)[None], fmt.block, number)
        assert content(words, bus_bytes) == values.tobytes()
        assert not any(word.error for word in words)
