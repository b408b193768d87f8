"""The adaptive amount: as much as comes back without the backward pass waiting for it.

After SSDTrain's adaptive offloading (arXiv 2408.10013), which hides all transfers behind what computes. What
a step waited is measured in every step, and says by itself how much was too much: a backward pass that
computes for a time c and waits for a time s, while the disk reads, would have hidden c / (c + s) of it.
"""

from __future__ import annotations

from dataclasses import dataclass

# Of the time that a step computes, what it may wait.
TOLERATED = 0.05

# Of what a step saves, where to begin again after nothing went.
_LEAST = 1 / 16


@dataclass(frozen=True)
class Measured:
    """One step.

    Attributes:
        sent, kept: bytes.
        was_limited: whether the amount, and nothing else, kept any.
        forward, backward: seconds that it computed.
        waited: seconds that it waited for tensors besides.
    """

    sent: int
    kept: int
    was_limited: bool
    forward: float
    backward: float
    waited: float


class Pace:
    """What goes in a step, by what was measured in those before.

    More is tried now and then, for disks and models change. A try that made a step wait is made again
    only after so much computing that the wait is the tolerated part of it: trying costs no more than that.

    Attributes:
        limit: bytes; None for everything, until a step has waited.
        plan: the same in words.
    """

    def __init__(self) -> None:
        self.limit: int | None = None
        self.plan = "everything, until measured"
        self._rest = 0.0

    def learn(self, step: Measured) -> None:
        total, computed = step.sent + step.kept, step.forward + step.backward
        if step.waited > TOLERATED * computed:
            # What everything costs says nothing of what a little more than the amount would.
            self._rest = step.waited / TOLERATED if self.limit is not None else 0.0
            self.limit = int(step.sent * step.backward / (step.backward + step.waited))
        elif self.limit is not None and step.was_limited:
            self._rest -= computed
            if self._rest <= 0:  # if the disk read all the time, more costs what is tolerated
                more = _LEAST * total
                if step.sent and step.backward > 0:
                    more = TOLERATED * computed * step.sent / step.backward
                self.limit += int(min(more, total))
        amount = total if self.limit is None else min(self.limit, total)
        self.plan = (
            f"{amount / 1e6:.1f} of {total / 1e6:.1f} MB a step; the last sent {step.sent / 1e6:.1f}, waited "
            f"{1e3 * step.waited:.0f} of {1e3 * (computed + step.waited):.0f} ms"
        )
