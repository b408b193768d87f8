"""Functional coverage: how often each corner was met at an engine's ports, and how words flowed there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

# How a block goes through the ports: the words it comes in without a pause and those it becomes taken at
# once, or else.
FLOWS = ("flowing", "the source pauses", "the sink stalls")


class Corner(NamedTuple):
    """A bin, and where it was met.

    Attributes:
        group, name: of the bin.
        met: one truth value for each block, or whatever else came through the ports.
        can_occur: whether this format has such a bin at all; the rule stands where the corner is made.
    """

    group: str
    name: str
    met: np.ndarray
    can_occur: bool = True


class Coverage:
    """Counts how often each corner was met, for each way in which words flow.

    Attributes:
        hits: count of each group and name; the latter ends with the way.
    """

    def __init__(self) -> None:
        self.hits: Counter[tuple[str, str]] = Counter()

    def count(self, corners: Iterable[Corner], flows: Mapping[str, np.ndarray]) -> None:
        """Count what was met.

        Args:
            flows: which of it flowed in each way, by name, such as :data:`FLOWS`.
        """
        for group, name, met, can_occur in corners:
            assert can_occur or not np.any(met), f"{group}, {name}: by its rule it cannot occur, but it did"
            if can_occur:
                for flow, here in flows.items():
                    self.hits[group, f"{name}; {flow}"] += int(np.count_nonzero(met & here))

    def as_rows(self) -> list[tuple[str, str, int]]:
        """Group, name and count of every bin."""
        return [(*place, count) for place, count in self.hits.items()]


def flows_of(paused: np.ndarray, stalled: np.ndarray) -> dict[str, np.ndarray]:
    """From what followed a pause of the source and what the sink held up."""
    return dict(zip(FLOWS, (~paused & ~stalled, paused, stalled), strict=True))
