"""One forward pass and its backward pass: what goes in it, what comes back when, and what is measured."""

from __future__ import annotations

import weakref
from collections import deque
from time import perf_counter

import torch

from .order import Order
from .pace import Measured
from .transfers import Offloaded, Transfers


class Step:
    """One step's tensors, in the order in which they are saved; made by ``Offload.begin``.

    They are read ahead in the reverse order, and when none is left, those of the step whose backward pass
    comes next. Those that are back and not needed yet take no more memory than may be on its way, and than
    the backward pass has freed of what stayed.

    Attributes:
        bytes: that were sent.
    """

    def __init__(self, transfers: Transfers, limit: int | None, order: Order) -> None:
        self._transfers, self._limit, self._order = transfers, limit, order
        self.bytes = self._kept = self._freed = 0
        self._was_limited = False
        self._freeing: deque[int] = deque()  # by finalizers
        self._items: list[weakref.ref[Offloaded]] = []
        self._starts: list[int] = []  # bytes that were sent before each
        self._next = -1  # the number of what is read next
        self._reached = 0  # bytes sent before what was needed
        self._began = perf_counter()
        self._turned: float | None = None
        self._ended = self._forward = self._waited = 0.0

    def put(self, tensor: torch.Tensor, name: str, counts: torch.Tensor | None = None) -> Handle | None:
        """Send a contiguous tensor away; None if it stays: the step has sent enough, or there is no room.

        It must not be written to before it is away; if it was, that is an error when it is needed.

        Args:
            tensor: what to send.
            name: what errors call it.
            counts: what counts the versions of its memory, if it does not itself.

        Raises:
            OffloadError: the Offload is closed.
        """
        self._was_limited |= self._limit is not None and self.bytes + tensor.nbytes > self._limit
        if self._was_limited:
            self._transfers.poll()
            return None
        item = self._transfers.send(tensor, name, tensor if counts is None else counts)
        if item is None:
            return None
        self._next = len(self._items)
        self._items.append(weakref.ref(item))
        self._starts.append(self.bytes)
        self.bytes += tensor.nbytes
        self._reached = self.bytes
        return Handle(self, self._next, item)

    def keep(self, owner: object, nbytes: int) -> None:
        """So many bytes stay, for as long as their owner lives."""
        self._kept += nbytes
        weakref.finalize(owner, self._freeing.append, nbytes).atexit = False

    def end_forward(self) -> None:
        self._forward = (self._turned or perf_counter()) - self._began
        self._transfers.poll()
        if self._turned is None:
            self._order.wait(self)

    def advance(self) -> None:
        """The backward pass needs a tensor, sent or kept: read what it will need next."""
        self._ended = perf_counter()
        if self._turned is None:
            self._turned = self._ended
            self._order.turn(self)
        self._transfers.poll()
        self.read_ahead()
        if self._next < 0:
            self._order.read_ahead()

    @property
    def is_needed(self) -> bool:
        """Whether anything that was sent may still be asked for."""
        return any(item() is not None for item in self._items)

    def read_ahead(self) -> None:
        """Begin to read what is needed next, as far as there is room."""
        while self._freeing:
            self._freed += self._freeing.popleft()
        room = self._transfers.most_in_flight + self._freed
        while self._next >= 0 and self._reached - self._starts[self._next] <= room:
            item = self._items[self._next]()
            if self._turned is None and item is not None and item.is_leaving:
                return  # it will have to be read before it is needed
            if item is not None and not self._transfers.fetch(item):
                return
            self._next -= 1

    def get(self, number: int, item: Offloaded) -> torch.Tensor:
        """The tensor with that number; errors are those of ``Transfers.take``."""
        self._transfers.fetch(item, at_once=True)
        self._reached = min(self._reached, self._starts[number])
        self._next = min(self._next, number - 1)
        self.advance()
        tensor, waited = self._transfers.take(item)
        self._waited += waited
        self._ended = perf_counter()
        return tensor

    @property
    def measured(self) -> Measured | None:
        """What the step tells: nothing, until its backward pass needs none of it any more."""
        if self._turned is None or self.is_needed:
            return None
        backward = self._ended - self._turned - self._waited
        return Measured(self.bytes, self._kept, self._was_limited, self._forward, backward, self._waited)


class Handle:
    """A tensor that was sent away.

    Attributes:
        nbytes: of the tensor.
    """

    def __init__(self, step: Step, number: int, item: Offloaded) -> None:
        self._step, self._number, self._item = step, number, item
        self.nbytes = item.nbytes

    def get(self) -> torch.Tensor:
        """The tensor, as often as it is needed.

        Raises:
            CorruptionError: the file does not hold what was written.
            OffloadError: it cannot be read, or is in a file that was closed.
            RuntimeError: the tensor was modified before it was away.
        """
        return self._step.get(self._number, self._item)
