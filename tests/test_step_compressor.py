"""The compressor of the step format in Amaranth's own simulator: golden's bytes under stalls, and latency."""

import random
from zlib import crc32

import numpy as np
import pytest
from amaranth.sim import Simulator

from cocotb_tests import stimulus
from golden import StepFormat
from rtl.step_compressor import StepCompressor

ENGINES = [
    (StepFormat(dtype, block, target, rounding), bus_bytes)
    for dtype, block, target, bus_bytes in (("bf16", 16, 8, 16), ("fp32", 16, 5, 64), ("fp16", 32, 19, 32))
    for rounding in ("nearest", "stochastic")
]


def exchanged(engine, tensors, *, idle=0.0, stall=0.0, seed_of=crc32):
    """The bytes that come out for each tensor, and the cycles between its last word in and its first out."""
    size, rng = engine.engine.bus_bytes, random.Random(1)
    words = [
        (
            int.from_bytes(tensor[at : at + size], "little"),
            at + size >= len(tensor),
            -(len(tensor) - at) % size,
            0 if at else seed_of(tensor),
        )
        for tensor in tensors
        for at in range(0, len(tensor), size)
    ]
    ended, offered, outputs = [], [], [b""]
    cycle = 0

    async def source(context):
        for data, last, empty, seed in words:
            while rng.random() < idle:
                await context.tick()
            context.set(engine.i.valid, 1)
            payload = {"data": data, "last": last, "empty": empty if last else 0}
            takes_seed = engine.engine.fmt.rounding == "stochastic"
            context.set(engine.i.payload, payload | ({"seed": seed} if takes_seed else {}))
            await context.tick().until(engine.i.ready)
            context.set(engine.i.valid, 0)
            if last:
                ended.append(cycle)

    async def sink(context):
        while len(outputs) <= len(tensors):
            context.set(engine.o.ready, rng.random() >= stall)
            *_, valid, ready, payload = await context.tick().sample(
                engine.o.valid, engine.o.ready, engine.o.payload
            )
            if valid and not outputs[-1] and len(offered) < len(outputs):
                offered.append(cycle)
            if valid and ready:
                outputs[-1] += int(payload.data).to_bytes(size, "little")[: size - int(payload.empty)]
                if payload.last:
                    outputs.append(b"")

    async def clock(context):
        nonlocal cycle
        async for _ in context.tick():
            cycle += 1
            assert cycle < 100 * len(words) + 1000, "hangs"

    simulator = Simulator(engine)
    simulator.add_clock(1e-6)
    simulator.add_testbench(source)
    simulator.add_testbench(sink)
    simulator.add_testbench(clock, background=True)
    simulator.run()
    return outputs[:-1], [out - end for end, out in zip(ended, offered, strict=True)]


@pytest.mark.parametrize(("fmt", "bus_bytes"), ENGINES, ids=str)
@pytest.mark.parametrize(("idle", "stall"), [(0.0, 0.0), (0.5, 0.5)])
def test_bytes_are_golden_s(fmt, bus_bytes, idle, stall):
    rng = np.random.default_rng(bus_bytes)
    lengths = [1, 7, 20, 3, 29]
    values = stimulus.blocks(fmt, "mixed", sum(lengths), rng)
    tensors = np.split(values, np.cumsum(lengths)[:-1])
    cut = [tensor.tobytes()[: -int(rng.integers(0, fmt.raw_bytes)) or None] for tensor in tensors]
    expected = [
        fmt.compress(
            np.frombuffer(tensor.ljust(length * fmt.raw_bytes, b"\0"), fmt.float_type.bits).view(
                fmt.float_type.array
            ),
            crc32(tensor),
        ).tobytes()
        for tensor, length in zip(cut, lengths, strict=True)
    ]
    found, _ = exchanged(StepCompressor(fmt, bus_bytes), cut, idle=idle, stall=stall)
    assert found == expected


@pytest.mark.parametrize(("fmt", "bus_bytes"), ENGINES, ids=str)
def test_a_block_takes_the_stated_latency(fmt, bus_bytes):
    engine = StepCompressor(fmt, bus_bytes)
    block = stimulus.blocks(fmt, "mixed", 1, np.random.default_rng(1)).tobytes()
    _, (latency,) = exchanged(engine, [block])
    assert latency == engine.latency(engine.engine)
