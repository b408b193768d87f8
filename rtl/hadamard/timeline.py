"""What happens when in a pipeline in which all moves on together."""

from amaranth import Module, Signal, Value

__all__ = ["Timeline"]


class Timeline:
    """Positions of a block in a pipeline: cycles since its first word was at the beginning.

    Cycles in which nothing moves on do not count. From one block's first word to that of the next there are
    at least as many as a block has words.

    Args:
        go: all moves on.
        first: a block's first word is at position 0.
        words: of a block.
    """

    def __init__(self, m: Module, go: Value, first: Value, words: int):
        self._m = m
        self._go = go
        self._first = [first]
        self._words = words

    def at(self, position: int) -> Value:
        """Whether a block's first word is there, or would be."""
        while len(self._first) <= position:
            later = Signal(name=f"first_at{len(self._first)}")
            with self._m.If(self._go):
                self._m.d.sync += later.eq(self._first[-1])
            self._first.append(later)
        return self._first[position]

    def keep(self, name: str, value, since: int, until: int):
        """What is known of a block when its first word is at a later position.

        Args:
            value: holds from position ``since`` on, for as many cycles as a block has words.
            until: that position; what is returned may not hold any longer.
        """
        while since + self._words <= until:
            since += self._words
            kept = Signal(value.shape(), name=f"{name}_at{since}", reset_less=True)
            with self._m.If(self._go & self.at(since - 1)):
                self._m.d.sync += kept.eq(value)
            value = kept
        return value
