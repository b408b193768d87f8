"""And-inverter graphs, and binary files of them: Biere, "The AIGER And-Inverter Graph Format" (2007).

A literal is twice the number of a variable, and one more for its inverse; 0 and 1 are the constants. The
variables are inputs, then latches, then gates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

__all__ = ["Builder", "Graph", "read", "write"]


@dataclass
class Graph:
    """A circuit.

    Attributes:
        inputs: how many.
        latches: the literal that each takes over; all begin with 0.
        outputs: the literal of each.
        gates: the literals that each is the conjunction of.
    """

    inputs: int
    latches: list[int]
    outputs: list[int] = field(default_factory=list)
    gates: list[tuple[int, int]] = field(default_factory=list)


def read(path: Path) -> Graph:
    """The graph in a file.

    Raises:
        ValueError: a latch does not begin with 0.
    """
    header, _, rest = path.read_bytes().partition(b"\n")
    _, inputs, latches, outputs, gates = map(int, header.split()[1:])
    *lines, coded = rest.split(b"\n", latches + outputs)
    for line in lines[:latches]:
        if line.split()[1:] not in ([], [b"0"]):
            raise ValueError(f"a latch of {path} must begin with 0, not {line.decode()!r}")
    literals = [int(line.split()[0]) for line in lines]
    graph = Graph(inputs, literals[:latches], literals[latches:])
    place = 0

    def number() -> int:
        nonlocal place
        found = shift = 0
        while coded[place] & 0x80:
            found |= (coded[place] & 0x7F) << shift
            place, shift = place + 1, shift + 7
        place += 1
        return found | coded[place - 1] << shift

    for gate in range(inputs + latches + 1, inputs + latches + 1 + gates):
        first = 2 * gate - number()
        graph.gates.append((first, first - number()))
    return graph


def write(path: Path, graph: Graph) -> None:
    counts = [graph.inputs, len(graph.latches), len(graph.outputs), len(graph.gates)]
    variables = graph.inputs + len(graph.latches) + len(graph.gates)
    lines = [f"aig {variables} {' '.join(map(str, counts))}", *map(str, graph.latches + graph.outputs), ""]
    coded = bytearray("\n".join(lines).encode())
    for gate, pair in enumerate(graph.gates, graph.inputs + len(graph.latches) + 1):
        for before, literal in pairwise([2 * gate, *sorted(pair, reverse=True)]):
            number = before - literal
            while number >= 0x80:
                coded.append(number & 0x7F | 0x80)
                number >>= 7
            coded.append(number)
    path.write_bytes(coded)


class Builder:
    """Makes a graph, in which no two gates are alike and none has a constant.

    Attributes:
        graph: what was made so far.
        inputs, latches: the literals of its inputs and of its latches.
    """

    def __init__(self, inputs: int, latches: int) -> None:
        self.graph = Graph(inputs, [0] * latches)
        self.inputs = [2 * variable for variable in range(1, inputs + 1)]
        self.latches = [2 * variable for variable in range(inputs + 1, inputs + latches + 1)]
        self._known: dict[tuple[int, int], int] = {}

    def both(self, a: int, b: int) -> int:
        """The conjunction of two literals."""
        if a < b:
            a, b = b, a
        if b == 0 or a == b ^ 1:
            return 0
        if b == 1 or a == b:
            return a
        found = self._known.get((a, b))
        if found is None:
            self.graph.gates.append((a, b))
            found = self._known[a, b] = 2 * (self.graph.inputs + len(self.latches) + len(self.graph.gates))
        return found

    def differ(self, a: int, b: int) -> int:
        return self.both(self.both(a, b) ^ 1, self.both(a ^ 1, b ^ 1) ^ 1)

    def any(self, literals: Iterable[int]) -> int:
        """Their disjunction, as a tree."""
        left = list(literals) or [0]
        while len(left) > 1:
            halves = zip(left[::2], [*left[1::2], 0], strict=False)
            left = [self.both(a ^ 1, b ^ 1) ^ 1 for a, b in halves]
        return left[0]

    def copy(self, graph: Graph, leaves: Sequence[int]) -> Callable[[int], int]:
        """Adds the gates of another graph, which has these literals for its inputs and its latches.

        Returns:
            What has become of a literal of that graph.
        """
        now = [0, *leaves]
        for a, b in graph.gates:
            now.append(self.both(now[a >> 1] ^ a & 1, now[b >> 1] ^ b & 1))
        return lambda literal: now[literal >> 1] ^ literal & 1
