"""Traces of memory requests in the formats of DRAM simulators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from .layout import Span


class Request(NamedTuple):
    """What a memory controller is asked for: as many bytes as a burst has, at a multiple of them."""

    address: int
    writes: bool


def requests(moved: Iterable[tuple[bool, Span]], size: int) -> Iterator[Request]:
    """The requests that move spans of bytes.

    Spans that follow each other in memory and in time share the request of the burst in which they meet.

    Args:
        moved: whether it is a write, and which bytes.
        size: of a burst, bytes.

    Raises:
        ValueError: the size is no power of two.
    """
    if size < 1 or size & (size - 1):
        raise ValueError(f"a burst's bytes must be a power of two, not {size!r}")
    last: Request | None = None
    for writes, span in moved:
        for address in range(span.address // size * size, span.address + span.size, size):
            request = Request(address, writes)
            if request != last:
                yield request
            last = request


def write_dramsim3(found: Iterable[Request], path: Path) -> int:
    """A trace for DRAMsim3: hexadecimal address, READ or WRITE, and the cycle from which on it may start.

    All may start at once: the memory alone sets the pace.

    Returns:
        How many requests it has.
    """
    return _write((f"0x{at:x} {'WRITE' if writes else 'READ'} 0\n" for at, writes in found), path)


def write_ramulator2(found: Iterable[Request], path: Path) -> int:
    """A trace for Ramulator 2's ``LoadStoreTrace``: ST or LD, and the address; returns how many it has."""
    return _write((f"{'ST' if writes else 'LD'} 0x{at:x}\n" for at, writes in found), path)


WRITERS = {"dramsim3": write_dramsim3, "ramulator2": write_ramulator2}


def _write(lines: Iterable[str], path: Path) -> int:
    count = 0
    with path.open("w") as file:
        for line in lines:
            file.write(line)
            count += 1
    return count
