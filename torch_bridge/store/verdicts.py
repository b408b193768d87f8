"""Questions about the values of tensors, whose answers a device would have to be waited for.

The first time that a question is asked of a place in the model the device is waited for. From then on the
last answer stands; whether it still holds is computed on the device and read when it is there (``Flag``), and
until then nothing is let go of that would be needed if it did not.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch


class Number:
    """One number on its way from a device.

    Args:
        number: a tensor with that value.
    """

    def __init__(self, number: torch.Tensor) -> None:
        self._event: torch.Event | None = None
        self._host = number
        if number.device.type != "cpu":
            self._host = torch.empty((), dtype=number.dtype, pin_memory=True)
            self._host.copy_(number.reshape(()), non_blocking=True)
            self._event = torch.Event(number.device)
            self._event.record()

    @property
    def value(self) -> float | None:
        """The value, None if it is not there yet; never waits."""
        if self._event is not None and not self._event.query():
            return None
        return float(self._host.numpy())

    def wait(self) -> float:
        """The value, once it is there."""
        if self._event is not None:
            self._event.synchronize()
        return float(self._host.numpy())


class Flag(Number):
    """One truth value on its way from a device."""

    @property
    def value(self) -> bool | None:
        found = super().value
        return None if found is None else bool(found)


# Answers that are remembered: of some tens for each of some hundred layers. With shapes of their own in every
# step there would be more and more.
MOST_ANSWERS = 1 << 14


class Verdicts:
    """Answers, by questions and places in the model; of too many the first are asked again."""

    def __init__(self) -> None:
        self._known: dict[Hashable, bool] = {}
        self._pending: dict[Hashable, Flag] = {}

    def known(self, key: Hashable) -> bool | None:
        """The answer, None if it was not asked."""
        return self._known.get(key)

    def note(self, key: Hashable, answer: bool) -> bool:
        if len(self._known) >= MOST_ANSWERS and key not in self._known:
            first = next(iter(self._known))
            del self._known[first]
            self._pending.pop(first, None)
        self._known[key] = answer
        return answer

    def holds(self, key: Hashable, compute: Callable[[], torch.Tensor]) -> tuple[bool, Flag | None]:
        """Whether something is true of values, and a flag that says it later where that is not known yet.

        What was not true the last time is taken as not true until the device says otherwise: a first pass may
        run on memory that was never written, as pipelines run one to learn their shapes.

        Args:
            key: the question, and of which place in the model.
            compute: a tensor that has the answer.
        """
        late, asked = self._pending.pop(key, None), compute()
        if late is not None and (value := late.value) is not None:
            self.note(key, value)
        if (known := self._known.get(key)) is None:
            return self.note(key, bool(asked)), None
        flag = Flag(asked)
        if (value := flag.value) is not None:
            return self.note(key, value), None
        self._pending[key] = flag
        return known, flag if known else None

    def ask(self, key: Hashable, compute: Callable[[], torch.Tensor | bool]) -> bool:
        """The answer to a question of quality: the present one where it is there, else the last one.

        Args:
            key: the question, and of which place in the model.
            compute: the answer, or a tensor that has it.
        """
        answer = compute()
        if key not in self._known or not isinstance(answer, torch.Tensor):
            return self.note(key, bool(answer))
        before, flag = self._pending.get(key), Flag(answer)
        self._pending[key] = flag
        for one in (before, flag):
            if one is not None and (value := one.value) is not None:
                self._known[key] = value
        return self._known[key]
