"""Both ends of a memory engine's AXI4: an accelerator, and a memory that is slow and fails where told to."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from golden.bursts import PAGE, Burst, BurstKind, Response
from golden.memory import Dram

from ..streams import never

Beat = dict[str, int]


class ChannelSource:
    """Drives a channel: an offered beat stays until it is taken.

    Attributes:
        queue: what is to be sent, each with the first cycle in which it may be offered.
        pause: whether nothing new is offered, cycle for cycle.
        taken_at: the cycle in which a beat was taken, the last one.
    """

    def __init__(self, dut, name: str, fields: tuple[str, ...]):
        self._fields = {field: getattr(dut, f"{name}{field}") for field in fields}
        self._valid, self._ready = getattr(dut, f"{name}valid"), getattr(dut, f"{name}ready")
        self.queue: deque[tuple[int, Beat]] = deque()
        self.pause: Iterator[bool] = never(random.Random())
        self.taken_at = -1
        self._offered = False
        self._valid.value = 0

    def send(self, beat: Beat, cycle: int = 0) -> None:
        self.queue.append((cycle, beat))

    def edge(self, cycle: int) -> None:
        before = self._offered
        if self._offered:
            if not self._ready.value:
                return
            self.taken_at = cycle
            self._offered = False
        if self.queue and self.queue[0][0] <= cycle and not next(self.pause):
            for field, value in self.queue.popleft()[1].items():
                self._fields[field].value = value
            self._offered = True
        if self._offered != before:  # to write a signal costs time
            self._valid.value = self._offered

    def reset(self) -> None:
        self.queue.clear()
        self._offered = False
        self._valid.value = 0

    @property
    def is_idle(self) -> bool:
        return not self.queue and not self._offered


class ChannelSink:
    """Takes beats of a channel; what is offered must stay.

    Attributes:
        pause: whether none is taken, cycle for cycle.
        received: beats, each with the cycle in which it was taken, that nobody asked for yet.
        taken: how many beats in all.
    """

    def __init__(self, dut, name: str, fields: tuple[str, ...]):
        self._name = name
        self._fields = {field: getattr(dut, f"{name}{field}") for field in fields}
        self._valid, self._ready = getattr(dut, f"{name}valid"), getattr(dut, f"{name}ready")
        self.pause: Iterator[bool] = never(random.Random())
        self.received: deque[tuple[int, Beat]] = deque()
        self.taken = 0
        self._is_ready = False
        self._held: Beat | None = None
        self._ready.value = 0

    def edge(self, cycle: int) -> None:
        if self._valid.value:
            beat = {name: int(field.value) for name, field in self._fields.items()}
            assert self._held in (None, beat), f"{self._name} changed before it was taken"
            self._held = None if self._is_ready else beat
            if self._is_ready:
                self.received.append((cycle, beat))
                self.taken += 1
        else:
            assert self._held is None, f"{self._name}valid fell before it was taken"
        before, self._is_ready = self._is_ready, not next(self.pause)
        if self._is_ready != before:
            self._ready.value = self._is_ready

    def reset(self) -> None:
        self.received.clear()
        self._held = None


ADDRESS = ("addr", "len", "size", "burst", "id", "cache")


class Accelerator:
    """Sends bursts and gathers what comes back, in the order of each ID.

    Attributes:
        responses: of write bursts, by their tickets.
        reads: of read bursts, by their tickets: their words and responses, once all are there.
        ended: when a ticket's last answer came.
    """

    def __init__(self, dut, bus_bytes: int):
        self.bus_bytes = bus_bytes
        self.aw = ChannelSource(dut, "s_axi_aw", ADDRESS)
        self.w = ChannelSource(dut, "s_axi_w", ("data", "strb", "last"))
        self.ar = ChannelSource(dut, "s_axi_ar", ADDRESS)
        self.b = ChannelSink(dut, "s_axi_b", ("id", "resp"))
        self.r = ChannelSink(dut, "s_axi_r", ("id", "data", "resp", "last"))
        self.channels = (self.aw, self.w, self.ar, self.b, self.r)
        self.responses: dict[int, Response] = {}
        self.reads: dict[int, tuple[np.ndarray, list[Response]]] = {}
        self.ended: dict[int, int] = {}
        self._unanswered: dict[int, deque[int]] = {}
        self._reading: dict[int, deque[tuple[int, Burst, list[Beat]]]] = {}
        self._tickets = 0

    @staticmethod
    def _address(burst: Burst, master: int, cache: int) -> Beat:
        return {
            "addr": burst.address,
            "len": burst.beats - 1,
            "size": burst.size.bit_length() - 1,
            "burst": int(burst.kind),
            "id": master,
            "cache": cache,
        }

    def _ticket(self) -> int:
        self._tickets += 1
        return self._tickets

    def write(
        self,
        burst: Burst,
        words: np.ndarray,
        strobes: np.ndarray,
        *,
        bufferable: bool = False,
        master: int = 0,
    ) -> int:
        """Send a write burst, see :meth:`golden.memory.MemoryModel.write`; return its ticket."""
        self.aw.send(self._address(burst, master, 2 + bufferable))
        packed = np.packbits(strobes, axis=1, bitorder="little")
        for i, (word, strobe) in enumerate(zip(words, packed, strict=True)):
            data = int.from_bytes(word.tobytes(), "little")
            strb = int.from_bytes(strobe.tobytes(), "little")
            self.w.send({"data": data, "strb": strb, "last": i == burst.beats - 1})
        ticket = self._ticket()
        self._unanswered.setdefault(master, deque()).append(ticket)
        return ticket

    def read(self, burst: Burst, *, master: int = 0) -> int:
        self.ar.send(self._address(burst, master, 2))
        ticket = self._ticket()
        self._reading.setdefault(master, deque()).append((ticket, burst, []))
        return ticket

    def reset(self) -> None:
        """Forget all that is under way."""
        for channel in self.channels:
            channel.reset()
        for held in (self.responses, self.reads, self.ended, self._unanswered, self._reading):
            held.clear()

    @property
    def is_idle(self) -> bool:
        """All was sent, and all reads were answered."""
        return all(s.is_idle for s in (self.aw, self.w, self.ar)) and not any(self._reading.values())

    def edge(self, cycle: int) -> None:
        for channel in self.channels:
            channel.edge(cycle)
        while self.b.received:
            at, beat = self.b.received.popleft()
            ticket = self._unanswered[beat["id"]].popleft()
            self.responses[ticket] = Response(beat["resp"])
            self.ended[ticket] = at
        while self.r.received:
            at, beat = self.r.received.popleft()
            ticket, burst, beats = self._reading[beat["id"]][0]
            beats.append(beat)
            assert beat["last"] == (len(beats) == burst.beats), f"RLAST in beat {len(beats)} of {burst}"
            if beat["last"]:
                self._reading[beat["id"]].popleft()
                self.ended[ticket] = at
                self.reads[ticket] = self._as_words(burst, beats)

    def _as_words(self, burst: Burst, beats: list[Beat]) -> tuple[np.ndarray, list[Response]]:
        size = self.bus_bytes
        rows = [np.frombuffer(beat["data"].to_bytes(size, "little"), np.uint8) for beat in beats]
        responses = [Response(beat["resp"]) for beat in beats]
        return np.where(burst.lanes(size), np.stack(rows), 0).astype(np.uint8), responses


class SlowMemory:
    """A memory that answers in order, a beat a cycle in either direction after some latency.

    Args:
        dram: its content, and where it fails.
        latency: cycles from an address, or the last beat of a write, to the answer.

    Attributes:
        jitter: how many more cycles that takes, at random, at most.
        beats_written: so far.
        times: when each read was asked for, and its last beat could be taken.
        written_at: when the last beat was written.
    """

    def __init__(self, dut, dram: Dram, latency: int = 8):
        self.dram = dram
        self.latency = latency
        self.jitter = 0
        self._random = random.Random(1)
        size = dram.beat
        self.ar = ChannelSink(dut, "m_axi_ar", ADDRESS)
        self.aw = ChannelSink(dut, "m_axi_aw", ADDRESS)
        self.w = ChannelSink(dut, "m_axi_w", ("data", "strb", "last"))
        self.r = ChannelSource(dut, "m_axi_r", ("data", "resp", "last", "id"))
        self.b = ChannelSource(dut, "m_axi_b", ("resp", "id"))
        self.channels = (self.ar, self.aw, self.w, self.r, self.b)
        self.beats_written = 0
        self.written_at = -1
        self.times: list[tuple[int, int]] = []
        self._size = size
        self._writes: deque[Beat] = deque()
        self._data: list[Beat] = []

    def edge(self, cycle: int) -> None:
        for channel in self.channels:
            channel.edge(cycle)
        while self.ar.received:
            _, address = self.ar.received.popleft()
            ready = cycle + self._delay()
            for place, last in self._places(address):
                response = self.dram.response(place, self._size)
                data = self._content(place) if response == Response.OKAY else 0xDEAD
                self.r.send({"data": data, "resp": response, "last": last, "id": address["id"]}, ready)
            self.times.append((cycle, cycle + self.latency + address["len"] + 1))
        while self.aw.received:
            self._writes.append(self.aw.received.popleft()[1])
        while self.w.received:
            self.written_at, beat = self.w.received.popleft()
            self._data.append(beat)
            self.beats_written += 1
        while self._writes and len(self._data) > self._writes[0]["len"]:
            address = self._writes.popleft()
            self._write(address, cycle)

    @property
    def is_idle(self) -> bool:
        """Of all writes that have come it has the address and the data."""
        return not self._writes and not self._data

    def _places(self, address: Beat) -> list[tuple[int, bool]]:
        start, count = address["addr"], address["len"] + 1
        assert address["burst"] == BurstKind.INCR
        assert 1 << address["size"] == self._size, address
        assert start % self._size == 0, f"{start:#x} is no multiple of a beat"
        assert start // PAGE == (start + count * self._size - 1) // PAGE, f"{address} crosses 4 KiB"
        return [(start + i * self._size, i == count - 1) for i in range(count)]

    def _content(self, place: int) -> int:
        return int.from_bytes(self.dram.content[place : place + self._size].tobytes(), "little")

    def _write(self, address: Beat, cycle: int) -> None:
        worst = Response.OKAY
        for place, last in self._places(address):
            beat = self._data.pop(0)
            assert beat["last"] == last, f"WLAST of {address}"
            response = self.dram.response(place, self._size)
            worst = max(worst, response)
            if response == Response.OKAY:
                data = np.frombuffer(beat["data"].to_bytes(self._size, "little"), np.uint8)
                strobes = np.frombuffer(beat["strb"].to_bytes(max(self._size // 8, 1), "little"), np.uint8)
                strobed = np.unpackbits(strobes, bitorder="little")[: self._size].astype(bool)
                self.dram.content[place : place + self._size][strobed] = data[strobed]
        self.b.send({"resp": worst, "id": 0}, cycle + self._delay())

    def _delay(self) -> int:
        return self.latency + (self._random.randint(0, self.jitter) if self.jitter else 0)

    def reset(self) -> None:
        """Forget all that is under way."""
        for channel in self.channels:
            channel.reset()
        self._writes.clear()
        self._data.clear()


class Lite:
    """Writes and reads registers."""

    def __init__(self, dut):
        self.aw = ChannelSource(dut, "s_axil_aw", ("addr",))
        self.w = ChannelSource(dut, "s_axil_w", ("data", "strb"))
        self.ar = ChannelSource(dut, "s_axil_ar", ("addr",))
        self.b = ChannelSink(dut, "s_axil_b", ("resp",))
        self.r = ChannelSink(dut, "s_axil_r", ("data", "resp"))

    def edge(self, cycle: int) -> None:
        for channel in (self.aw, self.w, self.ar, self.b, self.r):
            channel.edge(cycle)

    def reset(self) -> None:
        for channel in (self.aw, self.w, self.ar, self.b, self.r):
            channel.reset()

    def write(self, address: int, data: int, strb: int = 15) -> None:
        self.aw.send({"addr": address})
        self.w.send({"data": data, "strb": strb})

    def read(self, address: int) -> None:
        self.ar.send({"addr": address})

    def written(self) -> Any:
        return self.b.received.popleft()[1]["resp"] if self.b.received else None

    def found(self) -> Any:
        return self.r.received.popleft()[1] if self.r.received else None
