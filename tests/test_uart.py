"""The self-test's UART at the rates of boards, and at bits longer or shorter than its own; replies."""

import pytest
from amaranth import Module
from amaranth.sim import Simulator

from gen.board.link import Request, decode, encode
from rtl.selftest import Command, Place, UartReceiver, UartTransmitter
from rtl.selftest.commands import Commands

BYTES = [0x00, 0xFF, 0x55, 0xAA, 0x7E, 0x01, 0x80]


def bits(content):
    """What stands on the wire for bytes, a bit after the other."""
    for byte in content:
        yield from [0, *(byte >> place & 1 for place in range(8)), 1]


def received_of(design, receiver, send):
    """The bytes that a receiver has taken in a simulation until ``send`` ends."""
    received = []

    async def watch(ctx):
        async for _, _, valid, byte in ctx.tick().sample(receiver.valid, receiver.data):
            if valid:
                received.append(byte)

    simulator = Simulator(design)
    simulator.add_clock(1)
    simulator.add_testbench(send)
    simulator.add_testbench(watch, background=True)
    simulator.run()
    return received


@pytest.mark.parametrize("divisor", [25, 48, 50])
@pytest.mark.parametrize("error", [-0.03, 0, 0.03])
def test_the_receiver_takes_bytes_of_another_clock(divisor, error):
    receiver = UartReceiver(divisor)

    async def send(ctx):
        await ctx.delay(0.3)
        for bit in bits(BYTES):
            ctx.set(receiver.rx, bit)
            await ctx.delay(divisor * (1 + error))
        await ctx.delay(2 * divisor)

    assert received_of(receiver, receiver, send) == BYTES


@pytest.mark.parametrize("divisor", [4, 25, 48, 50])
def test_the_transmitter_sends_bits_of_the_divisors_length(divisor):
    transmitter, wire = UartTransmitter(divisor), []

    async def send(ctx):
        for byte in BYTES:
            ctx.set(transmitter.i.payload, byte)
            ctx.set(transmitter.i.valid, 1)
            await ctx.tick().until(transmitter.i.ready)
        ctx.set(transmitter.i.valid, 0)
        await ctx.tick().repeat(11 * divisor)

    async def watch(ctx):
        async for _, _, level in ctx.tick().sample(transmitter.tx):
            wire.append(level)

    simulator = Simulator(transmitter)
    simulator.add_clock(1)
    simulator.add_testbench(send)
    simulator.add_testbench(watch, background=True)
    simulator.run()
    seen, at = [], 0
    while 0 in wire[at:]:
        at = wire.index(0, at)
        taken = wire[at : at + 10 * divisor]
        levels = [taken[bit * divisor : (bit + 1) * divisor] for bit in range(10)]
        assert all(len(set(level)) == 1 for level in levels)
        assert (levels[0][0], levels[9][0]) == (0, 1)
        seen.append(sum(level[0] << place for place, level in enumerate(levels[1:9])))
        at += 10 * divisor
    assert seen == BYTES


def test_a_reply_is_whole_though_what_is_read_changes():
    """As counters do while a run is under way, also between an escape and the byte behind it."""
    m, words, frames = Module(), 4, 12
    m.submodules.commands = commands = Commands(16, 4)
    m.submodules.receiver = receiver = UartReceiver(4)
    m.d.comb += receiver.rx.eq(commands.tx)
    m.d.sync += commands.found.eq(commands.found + 1)

    async def send(ctx):
        for sequence in range(frames):
            request = Request(Command.READ, Place.VERDICT, count=words)
            for bit in bits(encode(request.content(sequence))):
                ctx.set(commands.rx, bit)
                await ctx.tick().repeat(4)
            await ctx.tick().repeat(12 * 4 * (16 * words + 20))

    received = bytes(received_of(m, receiver, send))
    replies = [decode(frame) for frame in received.split(b"\x7e") if frame]
    assert [reply and (reply[0], len(reply)) for reply in replies] == [
        (sequence, 2 + 16 * words) for sequence in range(frames)
    ]
    assert received.count(b"\x7d") > 3  # there were bytes that are escaped
