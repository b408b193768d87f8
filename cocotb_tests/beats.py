"""What the AXI4-Stream ports of an engine showed, and which corners of the protocol that was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from golden import Format

from .coverage import Corner, Coverage
from .streams import after_pauses, held_up


@dataclass(frozen=True)
class Beat:
    """A beat; ``offered`` is the clock edge that first saw it valid, ``cycle`` the one that took it.

    ``user`` is None at a port without TUSER.
    """

    keep: int
    last: bool
    user: int | None
    offered: int
    cycle: int


class Port:
    """Monitor of one port.

    Attributes:
        beats: that were taken.
    """

    def __init__(self, dut, prefix: str):
        names = ["tvalid", "tready", "tkeep", "tlast"]
        names += ["tuser"] if hasattr(dut, f"{prefix}_tuser") else []
        self._signals = [getattr(dut, f"{prefix}_{name}") for name in names]
        self._offered: int | None = None
        self.beats: list[Beat] = []

    def edge(self, cycle: int) -> None:
        """See what was offered and taken at a clock edge."""
        valid, ready, keep, *flags = (int(signal.value) for signal in self._signals)
        if not valid:
            self._offered = None
            return
        self._offered = cycle if self._offered is None else self._offered
        if ready:
            last, user = bool(flags[0]), flags[1] if len(flags) > 1 else None
            self.beats.append(Beat(keep, last, user, self._offered, cycle))
            self._offered = None


def beat_coverage(
    fmt: Format, part: str, bus_bytes: int, taken: Sequence[Beat], given: Sequence[Beat]
) -> Coverage:
    """How often each corner was met at the subordinate's and the manager's port.

    Args:
        part: "compressor" or "decompressor".
    """
    coverage = Coverage()
    paused = np.array(after_pauses(taken), bool)
    flows = {"after another beat": ~paused, "after a pause": paused}
    coverage.count(_taken_corners(bus_bytes, taken), flows)
    stalled = np.array(held_up(given), bool)
    flows = {"taken at once": ~stalled, "held up by the sink": stalled}
    coverage.count(_given_corners(fmt, part, bus_bytes, given), flows)
    return coverage


def _taken_corners(bus_bytes: int, beats: Sequence[Beat]) -> Iterator[Corner]:
    last, keep, full, contiguous = _fields(bus_bytes, beats)
    for where, here in (("last beat", last), ("other beat", ~last)):
        yield Corner("s_axis", f"{where}, every byte", here & full)
        yield Corner("s_axis", f"{where}, bytes missing at the end", here & contiguous & ~full & keep)
        yield Corner("s_axis", f"{where}, bytes missing below others", here & ~contiguous)
        yield Corner("s_axis", f"{where}, no byte", here & ~keep)
    yield Corner("s_axis", "held up by the engine", np.array(held_up(beats), bool))
    starts = np.array([True, *(beat.last for beat in beats)], bool)[: len(beats)]
    numbered = any(beat.user is not None for beat in beats)
    numbers = np.array([-1 if beat.user is None else beat.user for beat in beats], np.int64)
    yield Corner("s_axis", "first beat, TUSER is 0", starts & (numbers == 0), numbered)
    yield Corner("s_axis", "first beat, TUSER near its end", starts & (numbers >= (1 << 32) - 7), numbered)
    yield Corner("s_axis", "other beat, TUSER", ~starts & (numbers > 0), numbered)


def _given_corners(fmt: Format, part: str, bus_bytes: int, beats: Sequence[Beat]) -> Iterator[Corner]:
    assert fmt.target is not None
    last, _, full, _ = _fields(bus_bytes, beats)
    block = fmt.target if part == "compressor" else fmt.original_bytes
    yield Corner("m_axis", "last beat, every byte", last & full)
    yield Corner("m_axis", "last beat, bytes missing at the end", last & ~full, block % bus_bytes > 0)
    yield Corner("m_axis", "other beat", ~last)
    user = np.array([beat.user for beat in beats], bool)
    yield Corner("m_axis", "TUSER", user, part == "decompressor")


def _fields(bus_bytes: int, beats: Sequence[Beat]) -> tuple[np.ndarray, ...]:
    """TLAST; whether TKEEP has any byte, every byte, and none that is missing below others."""
    every = (1 << bus_bytes) - 1
    fields = [
        (beat.last, beat.keep > 0, beat.keep == every, beat.keep & (beat.keep + 1) == 0) for beat in beats
    ]
    return tuple(np.array(fields, bool).reshape(-1, 4).T)
