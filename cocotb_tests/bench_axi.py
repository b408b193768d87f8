"""The AXI4-Stream engines, driven by cocotbext-axi's own sources and sinks, against golden/.

Run as :mod:`cocotb_tests.bench_engines` is.
"""

from __future__ import annotations

import random
from functools import cache
from itertools import chain, count, repeat
from math import gcd

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, ReadOnly, RisingEdge, with_timeout
from cocotbext.axi import AxiStreamBus, AxiStreamFrame, AxiStreamMonitor, AxiStreamSink, AxiStreamSource

from cocotb_tests import hadamard_stimulus, oracle, stimulus
from cocotb_tests.beats import Port, beat_coverage
from cocotb_tests.bench_engines import TASK, number_of
from cocotb_tests.streams import AT_LENGTH, PATTERNS, Tensor
from golden import HadamardFormat

PERIOD = 2  # simulation steps


class TB:
    """Clock, reset, source and sink; what the engine offers is checked against AXI4-Stream's rules."""

    def __init__(self, dut, seed: int):
        self.dut = dut
        self.rng = random.Random(seed)
        # A mutant's beats are not counted, and watching them takes long.
        self.ports = [] if TASK.mutants else [Port(dut, "s_axis"), Port(dut, "m_axis")]
        self.source = self.on_port(AxiStreamSource, "s_axis")
        self.sink = self.on_port(AxiStreamSink, "m_axis")

    def on_port(self, kind, prefix: str):
        dut = self.dut
        return kind(AxiStreamBus.from_prefix(dut, prefix), dut.aclk, dut.aresetn, reset_active_level=False)

    @classmethod
    async def started(cls, salt: int) -> TB:
        dut = cocotb.top
        dut.aresetn.value = 0
        Clock(dut.aclk, PERIOD, unit="step").start()
        await ClockCycles(dut.aclk, 3)
        tb = cls(dut, TASK.seed + salt)
        await ClockCycles(dut.aclk, 3)
        dut.aresetn.value = 1
        cocotb.start_soon(tb._keeps_the_rules())
        return tb

    def pause(self, idle: str, stall: str) -> None:
        patterns = PATTERNS | AT_LENGTH
        self.source.set_pause_generator(patterns[idle](self.rng))
        self.sink.set_pause_generator(patterns[stall](self.rng))

    def note_coverage(self) -> None:
        """Count the corners that both ports of an engine without faults have shown."""
        if TASK.mutants:
            return
        beats = [port.beats for port in self.ports]
        TASK.note(coverage=beat_coverage(TASK.fmt, TASK.part, TASK.bus_bytes, *beats).as_rows())

    def send(self, tensor: bytes, data: bytes | None = None, keep: list[int] | None = None) -> None:
        """Queue a packet.

        Args:
            tensor: what it is taken for; TUSER says in the first beat which number its first block has, and
                anything in others.
            data, keep: its bytes and their TKEEP, if these are not the tensor's.
        """
        data = tensor if data is None else data
        beat, user = TASK.bus_bytes, None
        if hasattr(self.dut, "s_axis_tuser"):
            user = [number_of(tensor)] * beat
            for _ in range(beat, len(data), beat):
                user += [self.rng.getrandbits(32)] * beat
        self.source.send_nowait(AxiStreamFrame(data, tkeep=keep, tuser=user))

    async def receive(self, port: AxiStreamMonitor | AxiStreamSink | None = None) -> AxiStreamFrame:
        """The next packet of the sink, or of a monitor."""
        port = self.sink if port is None else port
        return await with_timeout(port.recv(compact=False), 20_000 * PERIOD, "step")

    async def _keeps_the_rules(self) -> None:
        """What is offered stays until it is taken; nothing is offered or taken while ARESETn is low."""
        dut = self.dut
        payload = [getattr(dut, f"m_axis_{name}") for name in ("tdata", "tkeep", "tlast")]
        payload += [dut.m_axis_tuser] if TASK.part == "decompressor" else []
        held = None
        for cycle in count():
            await RisingEdge(dut.aclk)
            for port in self.ports:
                port.edge(cycle)
            offered, taken = bool(dut.m_axis_tvalid.value), bool(dut.m_axis_tready.value)
            now = [signal.value for signal in payload]
            if held and dut.aresetn.value:
                assert offered, "TVALID fell before the beat was taken"
                assert now == held, "the beat changed before it was taken"
            held = now if offered and not taken else None
            await ReadOnly()
            if not dut.aresetn.value:
                assert not dut.m_axis_tvalid.value, "TVALID is high while ARESETn is low"
                assert not dut.s_axis_tready.value, "TREADY is high while ARESETn is low"


@cache  # mutants are given the same, one after the other, and two monitors see it
def answer(tensor: bytes) -> tuple[bytes, set[int]]:
    """What golden/ makes of a tensor's bytes, and which blocks of it are errors."""
    fmt = TASK.fmt
    size = fmt.original_bytes if TASK.part == "compressor" else fmt.target
    blocks = -(-len(tensor) // size)
    rows = np.frombuffer(tensor.ljust(blocks * size, b"\0"), np.uint8).reshape(blocks, size).copy()
    first = number_of(tensor)
    if TASK.part == "compressor":
        values = rows.view(fmt.float_type.bits).view(fmt.float_type.array)
        return fmt.compress(values, first).tobytes(), set()
    if len(tensor) % size:
        rows[-1] = oracle.invalid_block(fmt)  # as one is that breaks off
    return oracle.decoded(fmt, rows, first)


def tensors(count: int, rng: np.random.Generator) -> list[bytes]:
    """Tensors of ``count`` blocks in all: of any number of bytes for the compressor, else compressed.

    Half of these have some blocks that are invalid; of the Hadamard format some are of chosen sums.
    """
    fmt = TASK.fmt
    values = stimulus.blocks(fmt, "mixed", count, rng, TASK.activations).tobytes()
    made, start = [], 0
    for size in stimulus.tensor_lengths(count, fmt.original_bytes, rng):
        stop = start + fmt.original_bytes * -(-size // fmt.original_bytes)
        if TASK.part == "compressor":
            made.append(values[start : start + size])
        else:
            stored = fmt.compress(np.frombuffer(values[start:stop], fmt.float_type.array))
            if isinstance(fmt, HadamardFormat) and rng.random() < 0.2:
                stored = hadamard_stimulus.with_chosen_sums(fmt, len(stored), rng)
            is_broken = rng.random() < 0.5
            made.append((stimulus.with_broken_headers(fmt, stored, rng) if is_broken else stored).tobytes())
        start = stop
    return made


@cache
def tensors_of(count: int, salt: int) -> list[bytes]:
    return tensors(count, TASK.rng(10, salt))


def is_answer(packet: AxiStreamFrame, tensor: bytes) -> bool:
    """Whether a packet is the right one in every byte, TKEEP and TUSER."""
    fmt, beat = TASK.fmt, TASK.bus_bytes
    expected, errors = answer(tensor)
    size = -(-len(expected) // beat) * beat
    keep = [1] * len(expected) + [0] * (size - len(expected))
    user = []
    if TASK.part == "decompressor":
        for error in oracle.error_flags(errors, fmt.original_bytes, len(expected), beat):
            user += [int(error)] * beat
    return (bytes(packet)[: len(expected)], packet.tkeep, packet.tuser) == (expected, keep, user)


@cocotb.test()
@cocotb.parametrize(idle=list(PATTERNS), stall=list(PATTERNS))
async def matches_golden(dut, idle, stall):
    """Every packet is golden/'s answer, back to back, however the ends pause."""
    number = list(PATTERNS).index(idle) * len(PATTERNS) + list(PATTERNS).index(stall)
    count = TASK.blocks * (number + 1) // len(PATTERNS) ** 2 - TASK.blocks * number // len(PATTERNS) ** 2
    await compare_with_golden(dut, idle, stall, count, salt=number)


async def compare_with_golden(dut, idle: str, stall: str, count: int, salt: int) -> None:
    """Both ports are also watched by cocotbext-axi's monitors, which drive nothing."""
    tb = await TB.started(10 + salt)
    taken, given = tb.on_port(AxiStreamMonitor, "s_axis"), tb.on_port(AxiStreamMonitor, "m_axis")
    tb.pause(idle, stall)
    size = TASK.fmt.original_bytes if TASK.part == "compressor" else TASK.fmt.target
    sent = tensors_of(count, salt)
    for tensor in sent:
        tb.send(tensor)
    wrong = 0
    for tensor in sent:
        if not is_answer(await tb.receive(), tensor):
            wrong += -(-len(tensor) // size)
    TASK.note(blocks=count, mismatches=wrong)
    assert wrong == 0, f"{wrong} of {count} blocks are in packets that differ from golden/ (seed {TASK.seed})"
    assert tb.sink.empty(), "a packet without a tensor"
    for tensor in sent:
        seen = bytes(taken.recv_nowait(compact=False))[: len(tensor)]
        assert seen == tensor, "the monitor saw another packet go in"
        assert is_answer(given.recv_nowait(compact=False), tensor), "the monitor saw another packet come out"
    assert taken.empty(), "the monitor saw a packet go in that nobody sent"
    assert given.empty(), "the monitor saw a packet come out that nobody received"
    tb.note_coverage()


@cocotb.test()
@cocotb.parametrize(ends=list(PATTERNS))
async def takes_packets_of_every_length(dut, ends):
    """A packet may end after any byte or block; what the decompressor cannot decode comes with TUSER."""
    fmt = TASK.fmt
    tb = await TB.started(2)
    tb.pause(ends, ends)
    # So many blocks fill their last beat.
    full = max(2, TASK.bus_bytes // gcd(fmt.target, fmt.original_bytes, TASK.bus_bytes))
    data = stimulus.blocks(fmt, "mixed", full, TASK.rng(11), None)
    data = data.tobytes() if TASK.part == "compressor" else fmt.compress(data).tobytes()
    longest = min(len(data), fmt.original_bytes + TASK.bus_bytes)
    sizes = [
        *range(1, longest + 1),
        *range(len(data) // full, len(data), len(data) // full),
        *[len(data)] * 5,
    ]
    for size in sizes:
        tb.send(data[:size])
    for size in sizes:
        assert is_answer(await tb.receive(), data[:size]), f"wrong answer to {size} bytes"
    tb.note_coverage()


@cocotb.test()
@cocotb.parametrize(idle=list(PATTERNS), stall=list(PATTERNS))
async def takes_bytes_without_keep_as_zeros(dut, idle, stall):
    """Any TKEEP: bytes without it count as 0; a packet ends behind the highest bit of its last beat."""
    rng, beat = TASK.rng(12), TASK.bus_bytes
    tb = await TB.started(3)
    tb.pause(idle, stall)
    packets = []
    for tensor in chain.from_iterable(tensors(int(rng.integers(1, 4)), rng) for _ in range(100)):
        whole_beats = rng.random() < 0.2
        behind = -len(tensor) % beat + beat if whole_beats else int(rng.integers(0, beat))
        behind *= int(rng.random() < 0.8)
        data = tensor + rng.bytes(behind)
        keep = rng.random(len(data)) < rng.choice([0.5, 0.98, 1])
        keep[len(tensor) :] = 0
        for null in np.flatnonzero(rng.random(len(data) // beat) < 0.1):
            keep[null * beat + rng.choice([0, rng.integers(1, beat)]) : (null + 1) * beat] = 0
        last_beat = (len(data) - 1) // beat * beat
        size = 1 + max([*np.flatnonzero(keep[last_beat:]), 0]) + last_beat
        packets.append((np.frombuffer(data, np.uint8) * keep)[:size].tobytes())
        tb.send(packets[-1], data, keep.astype(int).tolist())
    for i, tensor in enumerate(packets):
        assert is_answer(await tb.receive(), tensor), f"wrong answer to packet {i} (seed {TASK.seed})"
    tb.note_coverage()


@cocotb.test()
@cocotb.parametrize(ends=list(PATTERNS))
async def matches_golden_in_rare_blocks(dut, ends):
    """So are blocks that random ones hardly ever are, such as those whose header is just invalid."""
    fmt, rng = TASK.fmt, TASK.rng(16)
    tb = await TB.started(7)
    tb.pause(ends, ends)
    first = number_of(rng.bytes(4))
    if TASK.part == "compressor":
        packets = [Tensor(values.tobytes(), first) for values in stimulus.rare_values(fmt, first, rng)]
    else:
        rows = stimulus.rare_stored(fmt, TASK.bus_bytes, rng)
        packets = [part.tobytes() for part in np.array_split(rows, -(-len(rows) // 20))]
    for packet in packets:
        tb.send(packet)
    for i, packet in enumerate(packets):
        assert is_answer(await tb.receive(), packet), f"wrong answer to packet {i} (seed {TASK.seed})"
    tb.note_coverage()


@cocotb.test()
async def sustains_its_throughput_and_latency(dut):
    """Without pauses the uncompressed side moves a beat in every cycle, or in as many as a small block takes;
    a block on its own takes the stated latency, no cycle more or less."""
    fmt = TASK.fmt
    tb = await TB.started(4)
    monitors = tb.on_port(AxiStreamMonitor, "s_axis"), tb.on_port(AxiStreamMonitor, "m_axis")
    values = stimulus.blocks(fmt, "mixed", 100, TASK.rng(13), TASK.activations)
    stored = fmt.compress(values)
    sent = [block.tobytes() for block in (values if TASK.part == "compressor" else stored)]
    latencies = []
    for block in sent:
        tb.send(block)
        assert is_answer(await tb.receive(), block)
        taken, given = [await tb.receive(monitor) for monitor in monitors]
        latencies.append((given.sim_time_start - taken.sim_time_end) // PERIOD)
    TASK.note(latency_min=min(latencies), latency_mean=float(np.mean(latencies)), latency_max=max(latencies))
    promised = TASK.promise().latency
    assert set(latencies) == {promised}, f"{min(latencies)} to {max(latencies)} cycles, not {promised}"

    for name, pause in (("bytes_per_cycle", "never"), ("bytes_per_cycle_stalled", "often")):
        tb.pause(pause, pause)
        tb.send(b"".join(sent))
        assert is_answer(await tb.receive(), b"".join(sent))
        taken, given = [await tb.receive(monitor) for monitor in monitors]
        original = taken if TASK.part == "compressor" else given
        cycles = (original.sim_time_end - original.sim_time_start) // PERIOD + 1
        TASK.note(**{name: values.nbytes / cycles})
        beats = values.nbytes // TASK.bus_bytes
        promised = TASK.promise().cycles(beats)
        assert pause != "never" or cycles == promised, f"{cycles} cycles for {beats} beats, not {promised}"


@cocotb.test(skip=TASK.part != "decompressor")
async def a_stall_leaves_no_gap(dut):
    """What arrives while the sink stalls follows beat for beat, even if the source had paused before."""
    fmt, stall = TASK.fmt, TASK.stall(TASK.fmt)
    tb = await TB.started(8)
    tb.ports = taken, given = Port(dut, "s_axis"), Port(dut, "m_axis")
    values = stimulus.blocks(fmt, "mixed", stall.blocks, TASK.rng(17), TASK.activations)
    tensor = fmt.compress(values).tobytes()
    for place in range(stall.places):
        taken.beats.clear()
        given.beats.clear()
        pauses = (len(taken.beats) >= stall.first for _ in range(len(tensor) + stall.patience))
        tb.source.set_pause_generator(chain(pauses, repeat(False)))
        tb.sink.set_pause_generator(len(given.beats) >= place for _ in repeat(None))
        tb.send(tensor)
        await ClockCycles(dut.aclk, 2 * len(tensor) + 2 * stall.patience)
        before = len(given.beats)  # the sink may take one more
        tb.pause("never", "never")
        assert is_answer(await tb.receive(), tensor)
        stall.assert_no_gap([beat.cycle for beat in given.beats[before:]])


@cocotb.test()
async def waits_for_no_ready(dut):
    """A sink that raises TREADY only once it sees TVALID gets every beat."""
    tb = await TB.started(6)
    tb.sink.set_pause_generator(not dut.m_axis_tvalid.value for _ in repeat(None))
    for tensor in tensors(20, TASK.rng(15)):
        tb.send(tensor)
        assert is_answer(await tb.receive(), tensor)


@cocotb.test()
@cocotb.parametrize(ends=["never", "often"])
async def reset_leaves_no_trace(dut, ends):
    """A reset in any cycle of a packet, of one or some: what comes after is as if nothing had been before."""
    tb = await TB.started(5)
    tb.pause(ends, ends)
    rng = TASK.rng(14)
    for phase in range(TASK.phases()):
        before, after = tensors(3, rng), tensors(2, rng)
        for tensor in before:
            tb.send(tensor)
        await ClockCycles(dut.aclk, phase + 1)
        dut.aresetn.value = 0
        tb.source.clear()
        await ClockCycles(dut.aclk, 1 if ends == "never" else 1 + phase % 3)
        dut.aresetn.value = 1
        await RisingEdge(dut.aclk)
        tb.sink.clear()
        for tensor in after:
            tb.send(tensor)
        for tensor in after:
            assert is_answer(await tb.receive(), tensor), f"wrong after a reset (seed {TASK.seed})"
