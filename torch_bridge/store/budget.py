"""Which saved tensors are recomputed by matrix products: as many as fit a time.

In the first step all are recomputed that can be; what each costs and saves is noted. Then those are picked
that save most bytes for their floating-point operations, and later steps recompute these alone. A step's
operations are those of its products and of its attention, forward and backward, as torch counts them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..backends.dtypes import AnyFormat
from ..facts.facts import Facts
from ..report.curve import Curve, Point

# Module, what made the tensor, what saves it and as which of its tensors.
Place = tuple[str, str, str, str]


def place_of(facts: Facts) -> Place:
    """Where in a model a tensor is saved, whatever its sizes."""
    return facts.module, facts.made_by, facts.saved_by, facts.slot


def bytes_in_format(facts: Facts, fmt: AnyFormat | None) -> int:
    """That a tensor takes in a format, without padding of rows; None is for exact."""
    if fmt is None or fmt.target is None:
        return facts.elements * facts.dtype.itemsize
    return -(-facts.elements * fmt.target // fmt.block)


def check_time(time: object) -> None:
    """Raise ValueError if it is no time of a step, in steps without recomputation, nor None."""
    if time is not None and not (isinstance(time, (int, float)) and time >= 1):
        raise ValueError(f"time must be a number from 1, of a step without recomputation, not {time!r}")


@dataclass
class _Candidate:
    """Tensors of one place: what they take if they are stored, and what it costs to recompute them."""

    nbytes: int = 0
    flops: int = 0
    width: int = 0


class Budget:
    """What may be recomputed by matrix products.

    Args:
        time: of a step, where 1 is a step without recomputation; infinite if None.

    Attributes:
        is_open: whether all is recomputed, to find out what it costs.
        curve: bytes against time, once that is known.
    """

    def __init__(self, time: float | None) -> None:
        self._time = float("inf") if time is None else float(time)
        self._candidates: dict[Place, _Candidate] = {}
        self._picked: set[Place] = set()
        self.is_open = True
        self.curve: Curve | None = None

    def allows(self, facts: Facts, flops: int, nbytes: int) -> bool:
        """Whether a tensor may be recomputed.

        Args:
            facts: of the tensor.
            flops: that it takes.
            nbytes: that it would be stored in.
        """
        place = place_of(facts)
        if not self.is_open:
            return place in self._picked
        one = self._candidates.setdefault(place, _Candidate())
        one.nbytes, one.flops = one.nbytes + nbytes, one.flops + flops
        one.width = max(one.width, facts.elements)
        return True

    def close(self, flops: int, stored_bytes: int) -> None:
        """Pick: of a step with so many floating-point operations, which kept so many bytes.

        Of those that save as much for as many operations the larger ones come first: their error is that of
        fewer values.
        """
        if not self._candidates or not flops:
            return
        self.is_open = False
        order = sorted(
            self._candidates.items(), key=lambda one: (-one[1].nbytes / max(1, one[1].flops), -one[1].width)
        )
        left, time = (self._time - 1) * flops, 1.0
        stored_bytes += sum(one.nbytes for one in self._candidates.values())
        none, points, spent = stored_bytes, [], 1.0
        for place, one in order:
            is_picked = one.flops <= left
            if is_picked:
                left -= one.flops
                spent += one.flops / flops
                self._picked.add(place)
            time, stored_bytes = time + one.flops / flops, stored_bytes - one.nbytes
            points.append(Point(*place[:3], time, stored_bytes, is_picked))
        self.curve = Curve(self._time, none, tuple(points), spent)
