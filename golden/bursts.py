"""Bursts of AXI4 (AMBA IHI 0022): which bytes each of their beats moves."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from .blocks import as_integer

__all__ = ["PAGE", "Burst", "BurstKind", "Response"]

# No burst crosses a multiple of so many bytes.
PAGE = 4096


class BurstKind(IntEnum):
    """AxBURST."""

    FIXED = 0
    INCR = 1
    WRAP = 2


class Response(IntEnum):
    """RRESP and BRESP; the larger is the graver."""

    OKAY = 0
    EXOKAY = 1
    SLVERR = 2
    DECERR = 3


@dataclass(frozen=True)
class Burst:
    """The address channel of a burst that AXI4 allows.

    Args:
        address: of the first byte.
        beats: 1 to 256; 2, 4, 8 or 16 of WRAP, at most 16 of FIXED.
        size: bytes of a beat, a power of two from 1 to 128.
        kind: how the address goes on.

    Raises:
        ValueError: AXI4 allows no such burst; the message names the value.
    """

    address: int
    beats: int
    size: int
    kind: BurstKind = BurstKind.INCR

    def __post_init__(self) -> None:
        for name in ("address", "beats", "size"):
            number = as_integer(getattr(self, name))
            if number is None:
                raise ValueError(f"{name} must be a whole number, not {getattr(self, name)!r}")
            object.__setattr__(self, name, number)
        if self.kind not in list(BurstKind):
            raise ValueError(f"kind must be one of {', '.join(BurstKind.__members__)}, not {self.kind!r}")
        object.__setattr__(self, "kind", BurstKind(self.kind))
        if self.address < 0:
            raise ValueError(f"address must be from 0 up, not {self.address}")
        if self.size not in (1 << n for n in range(8)):
            raise ValueError(f"size must be a power of two from 1 to 128 bytes, not {self.size!r}")
        if self.kind == BurstKind.WRAP:
            if self.beats not in (2, 4, 8, 16):
                raise ValueError(f"beats must be 2, 4, 8 or 16 of a WRAP burst, not {self.beats!r}")
            if self.address % self.size:
                raise ValueError(
                    f"address must be a multiple of the size of a WRAP burst, not {self.address:#x}"
                )
        most = 16 if self.kind == BurstKind.FIXED else 256
        if not 1 <= self.beats <= most:
            raise ValueError(f"beats must be from 1 to {most}, not {self.beats!r}")
        if self.kind == BurstKind.INCR and self._first // PAGE != (self._first + self.span - 1) // PAGE:
            raise ValueError(
                f"a burst must not cross 4 KiB: {self.beats} beats of {self.size} from {self.address:#x} do"
            )

    @property
    def span(self) -> int:
        """Bytes of all beats, were each at its own address."""
        return self.beats * self.size

    @property
    def _first(self) -> int:
        return self.address - self.address % self.size

    def addresses(self) -> list[int]:
        """Of each beat; the first may lie within a multiple of the size, where the beat has fewer bytes."""
        if self.kind == BurstKind.FIXED:
            return [self.address] * self.beats
        following = [self._first + self.size * n for n in range(1, self.beats)]
        if self.kind == BurstKind.WRAP:
            start = self.address - self.address % self.span
            following = [start + (address - start) % self.span for address in following]
        return [self.address, *following]

    def lanes(self, bus_bytes: int) -> np.ndarray:
        """The lanes of a bus that each beat has: bool[beats, bus_bytes].

        Raises:
            ValueError: a beat is wider than the bus.
        """
        if self.size > bus_bytes:
            raise ValueError(f"size must be at most the bus's {bus_bytes} bytes, not {self.size}")
        lanes = np.zeros((self.beats, bus_bytes), bool)
        for row, address in zip(lanes, self.addresses(), strict=True):
            start = address % bus_bytes
            row[start : start - start % self.size + self.size] = True
        return lanes
