"""The Verilated memory engine with a DRAM behind it: bytes at plain addresses, through AXI4.

``python -m gen library --preset gpt2-fp32-memory-16`` builds the library; this module says where it lies, and
loads it.
"""

from __future__ import annotations

import ctypes
import json
import os
from dataclasses import astuple, dataclass
from pathlib import Path
from threading import Lock

import numpy as np

from golden import FORMATS, Format
from golden.memory import Region

ENGINE = "gpt2-fp32-memory-16"  # of gen's presets the one that is trained through

# What gen/system/library.cpp calls its functions as they are now.
_INTERFACE = 1


class MemoryEngineError(RuntimeError):
    """The engine answered with an error, or hangs; the message says where, and what its registers say."""


@dataclass(frozen=True)
class DramFigures:
    """What the memory behind the engine is like; cycles are the engine's.

    The defaults are those of DDR4 behind an engine of 500 MHz.

    Attributes:
        size: in bytes; it takes what of it is written.
        latency: cycles from an address, or the end of a write, to the answer.
        interval: cycles from one beat to the next, in either direction.
        refresh_period, refresh_cycles: of the first, the second are those in which no beat moves.
    """

    size: int = 1 << 32
    latency: int = 40
    interval: int = 1
    refresh_period: int = 3900
    refresh_cycles: int = 175


DRAM = DramFigures()


@dataclass(frozen=True)
class Traffic:
    """What moved so far, and in how many cycles."""

    accelerator_bytes: int = 0
    memory_bytes: int = 0
    cycles: int = 0

    def __sub__(self, before: Traffic) -> Traffic:
        return Traffic(*(now - then for now, then in zip(astuple(self), astuple(before), strict=True)))


def library_path(name: str = ENGINE) -> Path:
    """Where the library of an engine lies, below ``$BITSTASH_LIBRARIES`` or ``build/verilated``."""
    return Path(os.environ.get("BITSTASH_LIBRARIES") or Path("build", "verilated")) / name / "libmemory.so"


class MemoryEngine:
    """An engine after a reset, and a cleared memory.

    Args:
        path: of the library.
        figures: of the memory.

    Attributes:
        figures: as given.
        formats: that its regions can have.
        bus_bytes, memory_bytes: of its port, and of the memory's.
        content: uint8[size], the memory; for as long as the engine lives.

    Raises:
        FileNotFoundError: the library is not built; the message names the command.
        RuntimeError: it was built by a version with another interface; likewise.
        MemoryError: there is not so much memory.
    """

    def __init__(self, path: Path, figures: DramFigures = DRAM) -> None:
        build = f"build it with: python -m gen library --preset {ENGINE}"
        if not path.exists():
            raise FileNotFoundError(f"{path} is not built; {build}")
        library = ctypes.CDLL(str(path.resolve()))
        interface = getattr(library, "bitstash_memory_interface", lambda: 0)()
        if interface != _INTERFACE:
            raise RuntimeError(f"{path} was built by another version of bitstash; {build}")
        self._library = _typed(library)
        about = json.loads(library.bitstash_memory_description())
        self.bus_bytes, self.memory_bytes = about["bus_bytes"], about["memory_bytes"]
        self.formats: tuple[Format, ...] = tuple(
            FORMATS[fmt.pop("scheme")](**fmt) for fmt in about["formats"]
        )
        self.figures = figures
        self._handle = library.bitstash_memory_new(*astuple(figures))
        if not self._handle:
            raise MemoryError(f"there is no memory of {figures.size} bytes")
        memory = (ctypes.c_uint8 * figures.size).from_address(library.bitstash_memory_content(self._handle))
        self.content = np.ctypeslib.as_array(memory)
        self._moved = 0
        self._lock = Lock()  # calls from Python go on in several threads, the hardware is one

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.bitstash_memory_delete(self._handle)

    @property
    def bytes_per_cycle(self) -> float:
        """That the memory moves in either direction."""
        return self.memory_bytes / self.figures.interval

    @property
    def traffic(self) -> Traffic:
        """All so far."""
        counts = (ctypes.c_uint64 * 4)()
        self._library.bitstash_memory_statistics(self._handle, counts)
        cycles, read, written, _ = counts
        return Traffic(self._moved, (read + written) * self.memory_bytes, cycles)

    def enable(self, index: int, region: Region) -> None:
        """Let a region answer for its addresses.

        Raises:
            ValueError: the engine has no such format.
            MemoryEngineError: the region is enabled already, or shares memory with another.
        """
        number = 0
        if region.fmt is not None:
            if region.fmt not in self.formats:
                raise ValueError(f"fmt must be one of {', '.join(map(str, self.formats))}, not {region.fmt}")
            number = self.formats.index(region.fmt) + 1
        place = region.base, region.size, region.stored
        self._check(self._library.bitstash_memory_enable(self._handle, index, *place, number))

    def disable(self, index: int) -> None:
        """Wait for what is under way in a region; from then on nothing answers for its addresses."""
        self._check(self._library.bitstash_memory_disable(self._handle, index))

    def write(self, address: int, values: np.ndarray) -> None:
        """Write uint8[bytes] at an address, and wait for the answers.

        Raises:
            MemoryEngineError: one of them is an error.
        """
        values = np.ascontiguousarray(values)
        with self._lock:
            self._moved += values.nbytes
            self._check(
                self._library.bitstash_memory_write(self._handle, address, values.ctypes.data, values.nbytes)
            )

    def read(self, address: int, count: int) -> np.ndarray:
        """Read uint8[count] from an address.

        Raises:
            MemoryEngineError: a beat is answered with an error.
        """
        values = np.empty(count, np.uint8)
        with self._lock:
            self._moved += count
            self._check(self._library.bitstash_memory_read(self._handle, address, values.ctypes.data, count))
        return values

    def fail(self, low: int, high: int, response: int) -> None:
        """Let the beats of memory that have these bytes answer SLVERR (2) or DECERR (3) from now on."""
        self._library.bitstash_memory_fault(self._handle, low, high, response)

    def _check(self, status: int) -> None:
        if status:
            raise MemoryEngineError(self._library.bitstash_memory_message(self._handle).decode())


def _typed(library: ctypes.CDLL) -> ctypes.CDLL:
    """The library, whose functions know what they take and give."""
    pointer, size, number, place = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint, ctypes.c_uint64
    signatures = {
        "description": (ctypes.c_char_p, []),
        "new": (pointer, [place, *[number] * 4]),
        "delete": (None, [pointer]),
        "content": (pointer, [pointer]),
        "message": (ctypes.c_char_p, [pointer]),
        "enable": (ctypes.c_int, [pointer, number, place, place, place, number]),
        "disable": (ctypes.c_int, [pointer, number]),
        "write": (ctypes.c_int, [pointer, place, pointer, size]),
        "read": (ctypes.c_int, [pointer, place, pointer, size]),
        "fault": (None, [pointer, place, place, ctypes.c_int]),
        "statistics": (None, [pointer, pointer]),
    }
    for name, (gives, takes) in signatures.items():
        function = getattr(library, f"bitstash_memory_{name}")
        function.restype, function.argtypes = gives, takes
    return library
