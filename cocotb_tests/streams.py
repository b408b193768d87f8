"""Driver and monitor of the engines' word streams, and the patterns in which either end stalls."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cocotb.clock import Clock
from cocotb.triggers import RisingEdge

# A pattern yields, for every cycle, whether its end of the stream pauses.
Pattern = Callable[[random.Random], Iterator[bool]]


def never(rng: random.Random) -> Iterator[bool]:
    while True:
        yield False


def often(rng: random.Random) -> Iterator[bool]:
    while True:
        yield rng.random() < 0.5


def bursts(rng: random.Random) -> Iterator[bool]:
    while True:
        pause = rng.random() < 0.5
        for _ in range(rng.randint(1, 25)):
            yield pause


PATTERNS: dict[str, Pattern] = {"never": never, "often": often, "bursts": bursts}


@dataclass(frozen=True)
class Word:
    """One word of a stream, as :func:`rtl.stream.word_layout` has it; ``data`` without the empty bytes.

    ``cycle`` is when it was taken, ``offered`` when valid rose for it.
    """

    data: bytes
    last: bool
    error: bool = False
    cycle: int = -1
    offered: int = -1


class Bench:
    """Clock, reset, source and sink of one engine.

    Args:
        dut: the simulated engine.
        bus_bytes: bytes of a word on either side.
        seed: of the stall patterns.
    """

    def __init__(self, dut, bus_bytes: int, seed: int):
        self.dut = dut
        self.bus_bytes = bus_bytes
        self.rng = random.Random(seed)
        self.cycle = 0
        self.sent: list[Word] = []
        self.received: list[Word] = []
        self._queue: list[Word] = []
        self._idle = never(self.rng)
        self._stall = never(self.rng)
        self._is_offered = False

    async def start(self) -> None:
        """Start the clock, reset, and let source and sink run from then on."""
        import cocotb

        self.dut.i__valid.value = 0
        self.dut.i__payload.value = 0
        self.dut.o__ready.value = 0
        self.dut.rst.value = 1
        Clock(self.dut.clk, 2, unit="step").start()
        for _ in range(3):
            await RisingEdge(self.dut.clk)
        self.dut.rst.value = 0
        cocotb.start_soon(self._run())

    def pause(self, idle: Pattern, stall: Pattern) -> None:
        """Choose how often the source idles and the sink stalls."""
        self._idle = idle(self.rng)
        self._stall = stall(self.rng)

    def until_offered(self, rng: random.Random) -> Iterator[bool]:
        """The pattern of a sink that is ready only after it has seen a word."""
        while True:
            yield not self._is_offered

    def send(self, tensor: bytes) -> int:
        """Queue a tensor; return its number of words."""
        words = [tensor[i : i + self.bus_bytes] for i in range(0, len(tensor), self.bus_bytes)]
        self._queue += [Word(word, last=i == len(words) - 1) for i, word in enumerate(words)]
        return len(words)

    async def receive(self, count: int) -> list[Word]:
        """Wait for ``count`` words and take them off the list of received ones."""
        idle_since, progress = self.cycle, None
        while len(self.received) < count:
            await RisingEdge(self.dut.clk)
            now = (len(self.received), len(self._queue))
            if now != progress:
                idle_since, progress = self.cycle, now
            assert self.cycle - idle_since < 2000, (
                f"hangs: {len(self.received)} of {count} words received, {len(self._queue)} not yet sent"
            )
        words, self.received = self.received[:count], self.received[count:]
        return words

    async def reset(self) -> None:
        """Reset for a cycle; what was queued and received is gone."""
        self.dut.rst.value = 1
        await RisingEdge(self.dut.clk)
        self._queue.clear()
        self.dut.i__valid.value = 0
        self.dut.rst.value = 0
        await RisingEdge(self.dut.clk)
        assert not int(self.dut.o__valid.value), "offers a word in the cycle after reset"
        self.sent.clear()
        self.received.clear()

    async def _run(self) -> None:
        """One pass a cycle: see what was exchanged at the clock edge, then drive the next cycle.

        An offered word stays until it is taken; ``ready`` may fall at any time.
        """
        dut, bits = self.dut, 8 * self.bus_bytes
        empty_at, error_at = 1, self.bus_bytes.bit_length()  # of the bits behind the data
        offering: Word | None = None
        ready = False
        offered_at = held = None
        while True:
            await RisingEdge(dut.clk)
            self.cycle += 1
            if dut.rst.value:
                offering = held = offered_at = None
                continue
            if offering and dut.i__ready.value:
                self.sent.append(Word(offering.data, offering.last, cycle=self.cycle))
                if self._queue:  # empty after a reset
                    self._queue.pop(0)
                offering = None
            if dut.o__valid.value:
                payload = dut.o__payload.value.to_unsigned()
                assert held in (None, payload), "the payload changed before it was taken"
                held = payload
                offered_at = offered_at or self.cycle
                if ready:
                    data = (payload & ((1 << bits) - 1)).to_bytes(self.bus_bytes, "little")
                    flags = payload >> bits
                    size = self.bus_bytes - (flags >> empty_at) % self.bus_bytes
                    assert not any(data[size:]), "empty bytes are not zero"
                    error = bool(flags >> error_at)
                    self.received.append(Word(data[:size], bool(flags & 1), error, self.cycle, offered_at))
                    held = offered_at = None
            else:
                assert held is None, "valid fell before the word was taken"

            self._is_offered = held is not None
            if offering is None and self._queue and not next(self._idle):
                offering = self._queue[0]
                flags = offering.last | (self.bus_bytes - len(offering.data)) << empty_at
                dut.i__payload.value = int.from_bytes(offering.data, "little") | flags << bits
            dut.i__valid.value = offering is not None
            ready = not next(self._stall)
            dut.o__ready.value = ready
