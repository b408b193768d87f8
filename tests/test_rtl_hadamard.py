"""The Hadamard compressor in Amaranth's simulator: golden's bytes, under stalls and for tails."""

import numpy as np
import pytest
from amaranth.sim import Simulator

from golden import HadamardFormat
from rtl.hadamard import HadamardCompressor

from .blocks import as_values, hostile
from .hadamard_blocks import blocks_of


def tensors(fmt, first):
    """Values of three tensors: blocks of all kinds, a tail, and specials."""
    blocks = as_values(fmt, blocks_of(fmt, first, 6, seed=1)).reshape(-1)
    rough = as_values(fmt, hostile(fmt, 3, seed=2)).reshape(-1)
    return [blocks, blocks[: fmt.block + 5], rough]


def compress(fmt, bus_bytes, values, first, seed):
    """What the hardware makes of tensors one behind the other: the bytes of each."""
    dut = HadamardCompressor(fmt, bus_bytes)
    rng = np.random.default_rng(seed)
    simulator = Simulator(dut)
    simulator.add_clock(1e-6)

    async def source(ctx):
        for tensor in values:
            octets = np.ascontiguousarray(tensor).view(np.uint8).tobytes()
            for start in range(0, len(octets), bus_bytes):
                word = octets[start : start + bus_bytes]
                while seed and rng.random() < 0.3:
                    await ctx.tick()
                ctx.set(dut.i.p.data, int.from_bytes(word, "little"))
                ctx.set(dut.i.p.last, start + bus_bytes >= len(octets))
                ctx.set(dut.i.p.empty, bus_bytes - len(word))
                ctx.set(dut.i.p.first, first if start == 0 else rng.integers(1 << 32).item())
                ctx.set(dut.i.valid, 1)
                await ctx.tick().until(dut.i.ready)
                ctx.set(dut.i.valid, 0)

    found = []

    async def sink(ctx):
        taken = bytearray()
        while len(found) < len(values):
            while seed and rng.random() < 0.3:
                ctx.set(dut.o.ready, 0)
                await ctx.tick()
            ctx.set(dut.o.ready, 1)
            payload = await ctx.tick().sample(dut.o.p).until(dut.o.valid)
            word = payload[0]
            taken += int(word.data).to_bytes(bus_bytes, "little")[: bus_bytes - int(word.empty)]
            if int(word.last):
                found.append(bytes(taken))
                taken.clear()

    simulator.add_testbench(source, background=True)
    simulator.add_testbench(sink)
    simulator.run()
    return found


@pytest.mark.parametrize(
    ("fmt", "bus_bytes", "first", "seed"),
    [
        (HadamardFormat("fp32", 128, 32), 64, 0, 0),
        (HadamardFormat("bf16", 128, 32), 64, 2**32 - 3, 1),
        (HadamardFormat("fp16", 64, 27), 16, 7, 2),
        (HadamardFormat("fp32", 64, 9), 32, 5, 3),
    ],
    ids=lambda value: (
        "-".join(map(str, (value.dtype, value.block, value.target))) if hasattr(value, "dtype") else None
    ),
)
def test_the_compressor_makes_goldens_bytes(fmt, bus_bytes, first, seed):
    values = tensors(fmt, first)
    found = compress(fmt, bus_bytes, values, first, seed)
    for tensor, stored in zip(values, found, strict=True):
        expected = fmt.compress(tensor, first)
        rows = np.frombuffer(stored, np.uint8).reshape(-1, fmt.target)
        wrong = (
            np.flatnonzero((rows != expected).any(axis=1)) if rows.shape == expected.shape else "their number"
        )
        assert not len(wrong), (fmt, "blocks", wrong)
