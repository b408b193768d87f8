"""Wires before there is a layout: how long they are, by a rule, and as a wire load of a cell library."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import sqrt

RENT = 0.67  # exponent of logic without memories, see Donath, section IV
UTILISATION = 0.7  # share of a row that is cells
_NAME = "wires"


@dataclass(frozen=True)
class Wire:
    """A signal wire of a process whose cell library is in kΩ and fF.

    Attributes:
        resistance: kΩ/µm.
        capacitance: fF/µm.
    """

    resistance: float
    capacitance: float


def donath(cells: int) -> float:
    """Mean distance of two connected cells in a square of them, in pitches of a cell.

    Source: W. Donath, "Placement and average interconnection lengths of computer logic", IEEE Transactions on
    Circuits and Systems 26(4), 1979, for a placement that follows a partitioning into quarters.

    Raises:
        ValueError: fewer than 4 cells.
    """
    if cells < 4:
        raise ValueError(f"cells must be at least 4, not {cells!r}")
    within = 7 * (cells ** (RENT - 0.5) - 1) / (4 ** (RENT - 0.5) - 1)
    across = (1 - cells ** (RENT - 1.5)) / (1 - 4 ** (RENT - 1.5))
    return 2 / 9 * (within - across) * (1 - 4 ** (RENT - 1)) / (1 - cells ** (RENT - 1))


def length_per_sink(area: float, cells: int) -> float:
    """Wire for each pin that a net drives, µm: Donath's distance in a square of so many cells.

    Args:
        area: of all cells, µm².
    """
    return donath(cells) * sqrt(area / UTILISATION / cells)


def with_wires(library: str, wire: Wire, length: float) -> str:
    """A library's text with a wire load of so many µm for each sink, for abc and OpenSTA."""
    load = (
        f'\n  wire_load ("{_NAME}") {{ resistance : {wire.resistance}; capacitance : {wire.capacitance};'
        f" area : 0; slope : {length:.3f}; fanout_length (1, {length:.3f}); }}"
        f'\n  default_wire_load : "{_NAME}";\n'
    )
    # Behind the library's units, which hold for what follows them.
    return re.sub(r"^\s*cell\s*\(", lambda head: load + head[0], library, count=1, flags=re.MULTILINE)
