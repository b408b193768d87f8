"""Driver and monitor of the engines' word streams, and the patterns in which either end stalls."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import NamedTuple
from zlib import crc32

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import Event, RisingEdge

from rtl.stream import word_layout

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


def singly(rng: random.Random) -> Iterator[bool]:
    """Pauses of one cycle, so far apart that all that is inside moves on between them."""
    while True:
        for _ in range(rng.randint(1, 60)):
            yield False
        yield True


def changing(rng: random.Random) -> Iterator[bool]:
    """Each of the others in turn, for some dozen cycles: what long runs meet of all of them."""
    others = [pattern(rng) for pattern in (never, often, bursts, singly)]
    while True:
        yield from islice(rng.choice(others), rng.randint(1, 200))


PATTERNS: dict[str, Pattern] = {"never": never, "often": often, "bursts": bursts}
AT_LENGTH: dict[str, Pattern] = {"changing": changing}  # of runs that are long enough for it


class Word(NamedTuple):
    """One word of a stream, as :func:`rtl.stream.word_layout` has it; ``data`` without the empty bytes.

    ``offered`` is the clock edge that first saw it valid, ``cycle`` the one that took it; ``first`` is
    driven where the engine takes block numbers.
    """

    data: bytes
    last: bool
    error: bool = False
    cycle: int = -1
    offered: int = -1
    first: int = 0


class Tensor(bytes):
    """The bytes of a tensor, or as many as have come of it, and the number of its first block."""

    first: int

    def __new__(cls, data: bytes, first: int) -> Tensor:
        tensor = super().__new__(cls, data)
        tensor.first = first
        return tensor

    def __getitem__(self, key):
        found = super().__getitem__(key)
        return Tensor(found, self.first) if isinstance(key, slice) else found


def after_pauses(words: Sequence[Word]) -> list[bool]:
    """Which words of a port came after a cycle in which it had none; the first one did."""
    before = chain([-1], (word.cycle for word in words))
    return [word.offered > cycle + 1 for word, cycle in zip(words, before, strict=False)]


def held_up(words: Sequence[Word]) -> list[bool]:
    """Which words of a port were not taken in their first cycle."""
    return [word.cycle > word.offered for word in words]


class Field(NamedTuple):
    """Where a payload has a field."""

    name: str
    offset: int
    mask: int


def fields_of(layout) -> list[Field]:
    """The fields of a layout: asked once, for it takes long to tell."""
    return [Field(name, field.offset, (1 << field.width) - 1) for name, field in layout]


def pack(fields: Sequence[Field], values: Mapping[str, int]) -> int:
    """A payload with the values of its fields."""
    return sum(values[field.name] << field.offset for field in fields)


def unpack(fields: Sequence[Field], payload: int) -> dict[str, int]:
    return {field.name: payload >> field.offset & field.mask for field in fields}


def fields_of_words(port, bus_bytes: int) -> list[Field]:
    """Those that a port's payload has, of all that words may have."""
    flags = [dict.fromkeys(names, True) for names in ([], ["error"], ["first"], ["error", "first"])]
    (found,) = (one for one in (word_layout(bus_bytes, **has) for has in flags) if one.size == len(port))
    return fields_of(found)


class Source:
    """Drives the stream ``i`` and records what is taken. An offered word stays until then.

    Attributes:
        idle: whether no word is offered, cycle for cycle.
        queue: words to send.
        taken: those that were, since the last reset.
    """

    def __init__(self, dut, bus_bytes: int, idle: Iterator[bool]):
        self._valid, self._ready, self._payload = dut.i_valid, dut.i_ready, dut.i_payload
        self._bus_bytes = bus_bytes
        self.idle = idle
        self.queue: deque[Word] = deque()
        self.taken: list[Word] = []
        self._fields = fields_of_words(dut.i_payload, bus_bytes)
        self._word: Word | None = None
        self._is_driven = False
        self._offered = 0

    @property
    def waiting(self) -> int:
        """Words that are still to be taken."""
        return len(self.queue) + (self._word is not None)

    def edge(self, cycle: int) -> None:
        """See what was taken at a clock edge, then drive the next cycle."""
        if self._word and self._ready.value:
            self.taken.append(self._word._replace(cycle=cycle, offered=self._offered))
            self._word = None
        if self._word is None and self.queue and not next(self.idle):
            self._word = word = self.queue.popleft()
            self._offered = cycle + 1
            values = {"data": int.from_bytes(word.data, "little"), "last": word.last, "first": word.first}
            values["empty"] = self._bus_bytes - len(word.data)
            self._payload.value = pack(self._fields, values)
        if self._is_driven != (self._word is not None):  # a write takes long
            self._is_driven = not self._is_driven
            self._valid.value = self._is_driven

    def reset(self) -> None:
        self._word = None
        self._is_driven = False
        self._valid.value = False


class Sink:
    """Drives ``ready`` of the stream ``o``, which may fall at any time, and records what comes.

    Attributes:
        stall: whether it takes no word, cycle for cycle.
        given: words that came, since the last reset.
        received: those of them that nobody asked for yet.
        is_offered: whether a word waits.
    """

    def __init__(self, dut, bus_bytes: int, stall: Iterator[bool]):
        self._valid, self._ready, self._payload = dut.o_valid, dut.o_ready, dut.o_payload
        self._bus_bytes = bus_bytes
        self._fields = fields_of_words(dut.o_payload, bus_bytes)
        self.stall = stall
        self.given: list[Word] = []
        self.received: list[Word] = []
        self._is_ready = False
        self._held: int | None = None
        self._offered = 0

    @property
    def is_offered(self) -> bool:
        return self._held is not None

    def edge(self, cycle: int) -> None:
        """See what came at a clock edge, then drive the next cycle."""
        if self._valid.value:
            payload = self._payload.value.to_unsigned()
            if self._held is None:
                self._held, self._offered = payload, cycle
            assert self._held == payload, "the payload changed before it was taken"
            if self._is_ready:
                word = self._word(payload, cycle)
                self.given.append(word)
                self.received.append(word)
                self._held = None
        else:
            assert self._held is None, "valid fell before the word was taken"
        if self._is_ready == next(self.stall):  # a write takes long
            self._is_ready = not self._is_ready
            self._ready.value = self._is_ready

    def _word(self, payload: int, cycle: int) -> Word:
        values = unpack(self._fields, payload)
        data = values["data"].to_bytes(self._bus_bytes, "little")
        end = self._bus_bytes - values["empty"]
        assert not any(data[end:]), "empty bytes are not zero"
        error = bool(values.get("error", 0))
        return Word(data[:end], bool(values["last"]), error, cycle, self._offered)

    def reset(self) -> None:
        self._held = None


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
        self.source = Source(dut, bus_bytes, never(self.rng))
        self.sink = Sink(dut, bus_bytes, never(self.rng))
        self._wanted = 0
        self._came = Event()

    @property
    def sent(self) -> list[Word]:
        return self.source.taken

    @property
    def received(self) -> list[Word]:
        return self.sink.received

    async def start(self) -> None:
        """Start the clock, reset, and let source and sink run from then on."""
        self.dut.i_valid.value = 0
        self.dut.i_payload.value = 0
        self.dut.o_ready.value = 0
        self.dut.rst.value = 1
        Clock(self.dut.clk, 2, unit="step").start()
        for _ in range(3):
            await RisingEdge(self.dut.clk)
        self.dut.rst.value = 0
        cocotb.start_soon(self._run())

    def pause(self, idle: Pattern, stall: Pattern) -> None:
        """Choose how often the source idles and the sink stalls."""
        self.source.idle = idle(self.rng)
        self.sink.stall = stall(self.rng)

    def until_offered(self, rng: random.Random) -> Iterator[bool]:
        """The pattern of a sink that is ready only after it has seen a word."""
        while True:
            yield not self.sink.is_offered

    def send(self, tensor: bytes) -> int:
        """Queue a tensor; return its number of words."""
        words = cut_into_words(tensor, self.bus_bytes)
        self.source.queue.extend(words)
        return len(words)

    async def receive(self, count: int) -> list[Word]:
        """Wait for ``count`` words and take them off the list of received ones."""
        received = self.sink.received
        if len(received) < count:
            self._wanted = count
            self._came.clear()
            await self._came.wait()
        words = received[:count]
        del received[:count]
        return words

    async def reset(self) -> None:
        """Reset for a cycle; what was queued and received is gone."""
        self.dut.rst.value = 1
        await RisingEdge(self.dut.clk)
        self.source.queue.clear()
        self.dut.i_valid.value = 0
        self.dut.rst.value = 0
        await RisingEdge(self.dut.clk)
        assert not int(self.dut.o_valid.value), "offers a word in the cycle after reset"
        self.sent.clear()
        self.sink.given.clear()
        self.received.clear()

    async def _run(self) -> None:
        edge, rst, moved = RisingEdge(self.dut.clk), self.dut.rst, None
        while True:
            await edge
            self.cycle += 1
            if rst.value:
                self.source.reset()
                self.sink.reset()
                continue
            self.source.edge(self.cycle)
            self.sink.edge(self.cycle)
            received = len(self.sink.received)
            if not self._wanted:
                moved = None
            elif received >= self._wanted:
                self._wanted = 0
                self._came.set()
            elif self.cycle % 1000 == 0:
                before, moved = moved, (len(self.sink.given), len(self.sent))
                assert moved != before, (
                    f"hangs: {received} of {self._wanted} words received, {self.source.waiting} not yet sent"
                )


def cut_into_words(tensor: bytes, size: int) -> list[Word]:
    """A tensor as words of so many bytes; numbers of blocks that are not its first word's mean nothing."""
    starts, first = range(0, len(tensor), size), getattr(tensor, "first", 0)
    return [
        Word(bytes(tensor[i : i + size]), i + size >= len(tensor), first=crc32(b"%d" % i) if i else first)
        for i in starts
    ]
