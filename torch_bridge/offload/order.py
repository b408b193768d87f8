"""Which step's backward pass comes next, where several are in flight.

A pipeline runs several forward passes before the backward pass of the first, and those in the order of the
forward passes (GPipe, 1F1B). A loss that is the sum of several runs the last first. What was seen is expected
again: the first tensors of the next backward pass are read before it begins, and it does not wait for them.
"""

from __future__ import annotations

import weakref
from typing import Protocol


class Pending(Protocol):
    """A step, as far as its order among others goes."""

    @property
    def is_needed(self) -> bool:
        """Whether anything that was sent may still be asked for."""

    def read_ahead(self) -> None:
        """Begin to read what is needed first."""


class Order:
    """The steps whose backward pass has not begun; it keeps none of them alive."""

    def __init__(self) -> None:
        self._waiting: list[weakref.ref[Pending]] = []
        self._is_oldest_first = False
        self._depth = 1  # steps that waited when a backward pass last followed a forward pass
        self._is_forward = False

    def wait(self, step: Pending) -> None:
        """A forward pass has ended; a backward pass that is expected after the next one begins to be read."""
        self._waiting.append(weakref.ref(step))
        self._is_forward = True
        if self._depth > 1 and len(self._steps()) >= self._depth - 1:
            self.read_ahead()

    def turn(self, step: Pending) -> None:
        """A step's backward pass begins."""
        steps = self._steps()
        if step not in steps:
            return
        if self._is_forward:
            self._depth, self._is_forward = len(steps), False
        if len(steps) > 1 and step in (steps[0], steps[-1]):
            self._is_oldest_first = step is steps[0]
        self._waiting = [ref for ref in self._waiting if ref() is not step]

    def read_ahead(self) -> None:
        """Read what the step needs first whose backward pass is expected next."""
        steps = self._steps()
        if steps:
            steps[0 if self._is_oldest_first else -1].read_ahead()

    def _steps(self) -> list[Pending]:
        """Those that still wait: what nobody needs any more has been dropped with its graph."""
        self._waiting = [ref for ref in self._waiting if (step := ref()) is not None and step.is_needed]
        return [step for ref in self._waiting if (step := ref()) is not None]
