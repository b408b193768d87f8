"""Saved tensors in a memory behind the simulated engine: the backend ``memory``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from golden import Format
from golden.memory import Region

from .memory_engine import DRAM, DramFigures, MemoryEngine, Traffic, library_path
from .regions import RegionBackend, Store, region_of


@dataclass(frozen=True)
class Access:
    """Bytes that the accelerator wrote or read: of which region, from which of its bytes on."""

    writes: bool
    region: int
    offset: int
    count: int


@dataclass(frozen=True)
class Moved:
    """What a step's saved tensors moved, both ways.

    Attributes:
        accelerator_bytes, memory_bytes: on either side of the engine.
        cycles: that it took.
        cycles_without: that the same accesses take in bypass, with the same memory.
    """

    accelerator_bytes: int
    memory_bytes: int
    cycles: int
    cycles_without: int

    def __str__(self) -> str:
        ours, theirs = (f"{count / 1e6:.1f} MB" for count in (self.accelerator_bytes, self.memory_bytes))
        cycles = f"{self.cycles:,} cycles, in bypass {self.cycles_without:,}"
        return f"the accelerator moved {ours}, the memory {theirs}: {cycles}"


class System:
    """An engine with a region for each of its formats.

    Args:
        folder: of its library, and of that of an engine of bypass alone.
        figures: of the memory.

    Attributes:
        engine: itself.
        accesses: since what moved was last asked for.
        last: those before.

    Raises:
        FileNotFoundError, RuntimeError: see ``MemoryEngine``.
    """

    def __init__(self, folder: Path, figures: DramFigures = DRAM) -> None:
        self._folder = folder
        self.engine = MemoryEngine(folder / "libmemory.so", figures)
        self.accesses: list[Access] = []
        self.last: list[Access] = []
        self._stores = [EngineStore(self, i, region_of(fmt, i)) for i, fmt in enumerate(self.engine.formats)]
        self._before = self.engine.traffic
        self._without = 0

    def store(self, fmt: Format) -> EngineStore:
        """The region of a format.

        Raises:
            ValueError: the engine has no such format.
        """
        formats = self.engine.formats
        if fmt not in formats:
            raise ValueError(f"format must be one of the engine's, {', '.join(map(str, formats))}, not {fmt}")
        return self._stores[formats.index(fmt)]

    def moved(self) -> Moved:
        """What moved since it was last asked."""
        now = self.engine.traffic
        moved, self._before = now - self._before, now
        if self.accesses != self.last:
            self._without = self._in_bypass(self.accesses).cycles
        self.last, self.accesses = self.accesses, []
        return Moved(moved.accelerator_bytes, moved.memory_bytes, moved.cycles, self._without)

    def _in_bypass(self, accesses: list[Access]) -> Traffic:
        """The same accesses to regions of the same size that keep bytes as they are."""
        regions = in_bypass([store.region for store in self._stores])
        figures = replace(self.engine.figures, size=sum(region.size for region in regions))
        return replay(MemoryEngine(self._folder / "libbypass.so", figures), regions, accesses)


def in_bypass(regions: list[Region]) -> list[Region]:
    """Regions of the same addresses that keep bytes as they are, one behind the other in memory."""
    return [
        Region(region.base, region.size, sum(before.size for before in regions[:i]))
        for i, region in enumerate(regions)
    ]


def replay(engine: MemoryEngine, regions: list[Region], accesses: list[Access]) -> Traffic:
    """What accesses move, with zeros for values: none of it depends on these."""
    for i, region in enumerate(regions):
        engine.enable(i, region)
    before = engine.traffic
    for access in accesses:
        address = regions[access.region].base + access.offset
        if access.writes:
            engine.write(address, np.zeros(access.count, np.uint8))
        else:
            engine.read(address, access.count)
    return engine.traffic - before


class EngineStore(Store):
    """One of its regions."""

    def __init__(self, system: System, index: int, region: Region) -> None:
        assert region.fmt is not None
        assert region.fmt.target is not None
        stored = system.engine.content[region.stored : region.stored + region.stored_size]
        super().__init__(region, stored.reshape(-1, region.fmt.target))
        self._system, self._index, self._size = system, index, region.fmt.original_bytes
        system.engine.enable(index, region)

    def write(self, number: int, original: np.ndarray) -> None:
        offset = number * self._size
        self._system.accesses.append(Access(True, self._index, offset, len(original)))
        self._system.engine.write(self.region.base + offset, original)

    def read(self, number: int, blocks: int) -> np.ndarray:
        offset, count = number * self._size, blocks * self._size
        self._system.accesses.append(Access(False, self._index, offset, count))
        return self._system.engine.read(self.region.base + offset, count)


def backend(fmt: Format) -> RegionBackend:
    """The backend ``memory``: one engine for all.

    Raises:
        FileNotFoundError, RuntimeError: there is no library, see ``MemoryEngine``.
        ValueError: its engine has no such format.
    """
    return RegionBackend(fmt, system().store(fmt))


def system() -> System:
    """The engine that is trained through; raises as ``backend`` does."""
    return _system(library_path().parent.absolute())


@cache
def _system(folder: Path) -> System:
    return System(folder)
