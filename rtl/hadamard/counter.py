"""The numbers of blocks."""

from amaranth import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..stream import NUMBER_BITS

__all__ = ["BlockCounter"]


class BlockCounter(wiring.Component):
    """Counts blocks from a number on, in two cycles each for the sake of speed.

    Members:
        load: the next block has the number ``first``.
        count: the next block has the next number; not in two cycles that follow each other.
        number: of the block that comes next.
    """

    def __init__(self):
        super().__init__(
            {"load": In(1), "first": In(NUMBER_BITS), "count": In(1), "number": Out(NUMBER_BITS)}
        )

    def elaborate(self, platform):
        m = Module()
        low, high = (Signal(NUMBER_BITS // 2, name=name, reset_less=True) for name in ("low", "high"))
        carry = Signal()
        with m.If(self.count):
            m.d.sync += low.eq(low + 1)
        m.d.sync += [carry.eq(self.count & low.all()), high.eq(high + carry)]
        with m.If(self.load):
            m.d.sync += [Cat(low, high).eq(self.first), carry.eq(0)]
        m.d.comb += self.number.eq(Cat(low, high))
        return m
