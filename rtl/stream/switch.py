"""Between an engine's formats."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from amaranth import C, Cat, Mux, Signal, Value

from golden import Format

from ..arith.trees import any_set

__all__ = ["Switch"]

Key = TypeVar("Key")


class Switch:
    """Which of an engine's formats is the one of the moment.

    Whatever depends on the format is a constant if there is only one, and otherwise selected by
    ``is_format``.

    Args:
        formats: of the engine.

    Attributes:
        is_format: for each format, whether it is the one of the moment; it changes only while the engine is
            empty. With one format nothing reads it.
    """

    def __init__(self, formats: Sequence[Format]):
        self._formats = formats
        self.is_format = Signal(len(formats))

    def when(self, condition: Callable[[Format], bool]) -> Value:
        """Whether the format of the moment fulfils a condition."""
        holds = [condition(fmt) for fmt in self._formats]
        if all(holds) or not any(holds):
            return C(int(holds[0]), 1)
        return Cat(is_it for is_it, hold in zip(self.is_format, holds, strict=True) if hold).any()

    def choose(self, key: Callable[[Format], Key], value: Callable[[Key], Value | int] = Value.cast) -> Value:
        """What belongs to the format of the moment: the value for a key that the format decides."""
        keys = list(dict.fromkeys(key(fmt) for fmt in self._formats))
        if len(keys) == 1:
            return Value.cast(value(keys[0]))
        return any_set(Mux(self.when(lambda fmt, k=k: key(fmt) == k), value(k), 0) for k in keys)
