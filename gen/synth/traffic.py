"""AXI4 traffic that keeps a memory engine busy, a beat a cycle each way, for the energy of its cells."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from golden.bursts import PAGE
from rtl.memory import MemoryParameters
from rtl.memory.registers.map import address_of

from .energy import Energy, Netlist, normal_blocks

__all__ = ["Traffic", "energy_of_beats"]

FLOW = Path(__file__).read_text()
_PAGES = 4  # that are written, and as many that are read
_BURST = 16  # beats
_LATENCY = 30  # of memory, cycles
_WARM_UP, _MEASURED = 500, 400  # cycles


class Traffic:
    """Both ends of a memory engine with one region: an accelerator that writes its first half and reads the
    second, again and again, and a memory that always takes what comes and answers in its turn.

    An instance drives a netlist, see :meth:`gen.synth.energy.Netlist.run`.

    Args:
        parameters: of the engine.
        number: of the region's format, as the register has it.

    Attributes:
        content: the bytes of the region, as the accelerator sees them.
        memory: those of memory, where the second half is compressed already.
        read: beats that came, each with the cycle.
        written: cycles in which a beat was taken.
    """

    def __init__(self, parameters: MemoryParameters, number: int):
        fmt = parameters.formats[number - 1]
        assert fmt.target
        half, rng = _PAGES * PAGE, np.random.default_rng(0)
        blocks = 2 * half // fmt.original_bytes
        values = normal_blocks(blocks, fmt.block, rng).astype(fmt.float_type.array)
        stored = np.asarray(fmt.compress(values)).tobytes()
        self.content = fmt.decompress(
            np.frombuffer(stored, np.uint8).reshape(blocks, -1), values.size
        ).tobytes()
        self._sent = values.tobytes()
        second = half // fmt.original_bytes * fmt.target
        self.memory = bytearray(2 * half) + bytes(second) + stored[second:] + bytes(PAGE)
        self.read: list[tuple[int, int]] = []
        self.written: list[int] = []
        self._size, self._beat = parameters.bus_bytes, parameters.memory_bytes
        region = {"BASE": 0, "SIZE": 2 * _PAGES, "STORED": 2 * _PAGES, "CONTROL": 1 | number << 8}
        self._offers = {
            "s_axil_aw": ({"addr": address_of(f"REGION_{name}", 0)} for name in region),
            "s_axil_w": ({"data": value, "strb": 15} for value in region.values()),
            "s_axi_aw": self._bursts(0),
            "s_axi_w": self._beats(),
            "s_axi_ar": self._bursts(half),
        }
        self._starts = dict.fromkeys(("s_axi_aw", "s_axi_w", "s_axi_ar"), 100)  # once the region is there
        self._offered: dict[str, dict[str, int] | None] = {}
        self._reads: deque[tuple[int, dict[str, int]]] = deque()  # from which cycle on
        self._answers: deque[tuple[int, dict[str, int]]] = deque()
        self._writes: deque[dict[str, int]] = deque()
        self._data: deque[dict[str, int]] = deque()

    def _bursts(self, start: int) -> Iterator[dict[str, int]]:
        size, length = self._size.bit_length() - 1, _BURST * self._size
        while True:
            for address in range(start, start + _PAGES * PAGE, length):
                yield {"addr": address, "len": _BURST - 1, "size": size, "burst": 1, "cache": 3, "id": 0}

    def _beats(self) -> Iterator[dict[str, int]]:
        while True:
            for start in range(0, _PAGES * PAGE, self._size):
                data = int.from_bytes(self._sent[start : start + self._size], "little")
                is_last = start // self._size % _BURST == _BURST - 1
                yield {"data": data, "strb": (1 << self._size) - 1, "last": int(is_last)}

    def __call__(self, cycle: int, output: Callable[[str], list[int]]) -> dict[str, list[int]]:
        def value(port: str) -> int:
            return sum(bit << place for place, bit in enumerate(output(port)))

        if cycle > 0:
            self._see(cycle - 1, value)
        driven = {"aresetn": int(cycle >= 0)}
        for channel, offers in self._offers.items():
            if cycle >= self._starts.get(channel, 0) and self._offered.get(channel) is None:
                self._offered[channel] = next(offers, None)
        for channel, queue in (("m_axi_r", self._reads), ("m_axi_b", self._answers)):
            if queue and queue[0][0] <= cycle and self._offered.get(channel) is None:
                self._offered[channel] = queue.popleft()[1]
        for channel, fields in self._offered.items():
            driven[f"{channel}valid"] = int(fields is not None)
            driven |= {f"{channel}{name}": number for name, number in (fields or {}).items()}
        ready = ("s_axil_b", "s_axil_r", "s_axi_b", "s_axi_r", "m_axi_aw", "m_axi_w", "m_axi_ar")
        driven |= {f"{channel}ready": 1 for channel in ready}
        return {
            port: [number >> place & 1 for place in range(len(output(port)))]
            for port, number in driven.items()
        }

    def _see(self, cycle: int, value: Callable[[str], int]) -> None:
        """What happened in a cycle."""
        for channel, fields in self._offered.items():
            if fields is not None and value(f"{channel}ready"):
                self._offered[channel] = None
                if channel == "s_axi_w":
                    self.written.append(cycle)
        if value("s_axi_rvalid"):
            self.read.append((cycle, value("s_axi_rdata")))
        if value("m_axi_arvalid"):
            burst = {name: value(f"m_axi_ar{name}") for name in ("addr", "len", "id")}
            for beat in range(burst["len"] + 1):
                start = burst["addr"] + beat * self._beat
                data = int.from_bytes(self.memory[start : start + self._beat], "little")
                fields = {"data": data, "id": burst["id"], "resp": 0, "last": int(beat == burst["len"])}
                self._reads.append((cycle + _LATENCY, fields))
        if value("m_axi_awvalid"):
            self._writes.append({name: value(f"m_axi_aw{name}") for name in ("addr", "len", "id")})
        if value("m_axi_wvalid"):
            self._data.append({name: value(f"m_axi_w{name}") for name in ("data", "strb")})
        while self._writes and len(self._data) > self._writes[0]["len"]:
            self._store(cycle, self._writes.popleft())

    def _store(self, cycle: int, burst: dict[str, int]) -> None:
        for number in range(burst["len"] + 1):
            beat, start = self._data.popleft(), burst["addr"] + number * self._beat
            for place, byte in enumerate(beat["data"].to_bytes(self._beat, "little")):
                if beat["strb"] >> place & 1:
                    self.memory[start + place] = byte
        self._answers.append((cycle + _LATENCY, {"id": burst["id"], "resp": 0}))


def energy_of_beats(netlist: Netlist, parameters: MemoryParameters, number: int) -> tuple[Energy, float]:
    """Energy of a cycle of a memory engine whose port is busy both ways, and the bytes that it moves in one.

    The memory of the engine itself takes nothing: it is no cell of the library.

    Args:
        netlist: of the engine, its memories kept.
        number: of the region's format, as the register has it.
    """
    traffic = Traffic(parameters, number)
    found = netlist.run(traffic, streams=1, warm_up=_WARM_UP, measured=_MEASURED)
    beats = sum(cycle >= _WARM_UP - 1 for cycle in [*traffic.written, *(cycle for cycle, _ in traffic.read)])
    return found, beats * parameters.bus_bytes / _MEASURED
