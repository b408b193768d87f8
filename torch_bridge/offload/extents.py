"""Which parts of a file are in use."""

from __future__ import annotations

from bisect import bisect
from collections import deque
from dataclasses import dataclass

ALIGNMENT = 4096


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a file, in bytes."""

    offset: int
    size: int


class Extents:
    """Places in a file that grows as it must: first fit, and free neighbours become one.

    Attributes:
        end: of the last place that is in use, in bytes.
    """

    def __init__(self) -> None:
        self.end = 0
        self._free: list[tuple[int, int]] = []  # start and stop, in order; none touches another, or the end
        self._given_back: deque[Place] = deque()

    def take(self, size: int) -> Place:
        """A place of so many bytes; by one thread at a time."""
        while self._given_back:
            self._merge(self._given_back.popleft())
        for number, (start, stop) in enumerate(self._free):
            if start + _aligned(size) <= stop:
                rest = (start + _aligned(size), stop)
                self._free[number : number + 1] = [rest] if rest[0] < stop else []
                return Place(start, size)
        place = Place(self.end, size)
        self.end += _aligned(size)
        return place

    def give(self, place: Place) -> None:
        """A place is free. Without a lock: finalizers call this in any thread, within ``take`` too."""
        self._given_back.append(place)

    def _merge(self, place: Place) -> None:
        start, stop = place.offset, place.offset + _aligned(place.size)
        number = bisect(self._free, (start, stop))
        if number < len(self._free) and self._free[number][0] == stop:
            stop = self._free.pop(number)[1]
        if number > 0 and self._free[number - 1][1] == start:
            number -= 1
            start = self._free.pop(number)[0]
        if stop == self.end:
            self.end = start
        else:
            self._free.insert(number, (start, stop))


def _aligned(size: int) -> int:
    return max(-(-size // ALIGNMENT), 1) * ALIGNMENT
