"""Registers in a row."""

from amaranth import Module, Signal, Value

from ..arith.sums import let

__all__ = ["Stages"]


class Stages:
    """Registers in a row, each of which takes what comes as soon as there is room in it or behind it.

    Args:
        comes: there is something for the first of them.
        leaves: what the last one holds is taken, if it holds something.
        count: of registers.

    Attributes:
        takes: of each, whether it takes something.
        full: of each, whether it holds something.
        room: the first one has room.
    """

    def __init__(self, m: Module, name: str, comes: Value, leaves: Value, count: int):
        self.full = [Signal(name=f"{name}_full{i}") for i in range(count)]
        self.takes = []
        self.room = leaves
        for i in reversed(range(count)):
            before = self.full[i - 1] if i else comes
            self.room = let(m, f"{name}_room{i}", ~self.full[i] | self.room)
            self.takes.insert(0, let(m, f"{name}_takes{i}", before & self.room))
            with m.If(self.room):
                m.d.sync += self.full[i].eq(before)
