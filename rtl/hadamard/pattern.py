"""The signs that a block's values are flipped by, a function of the block's number."""

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from golden.hadamard import SIGN_START

from ..arith.sums import let
from ..stream import NUMBER_BITS

__all__ = ["Pattern"]


class Pattern(wiring.Component):
    """Gives a block's signs, a word of values at a time.

    Args:
        lanes: values in a word.

    Members:
        start: a block's pattern begins in the next cycle.
        number: of that block.
        next: the word that follows comes in the next cycle; not together with ``start``.
        signs: of a word, 1 where a value is flipped.
    """

    def __init__(self, lanes: int):
        self._lanes = lanes
        super().__init__({"start": In(1), "number": In(NUMBER_BITS), "next": In(1), "signs": Out(lanes)})

    def elaborate(self, platform):
        m = Module()
        state = Signal(NUMBER_BITS, reset_less=True)
        before = let(m, "before", Mux(self.start, self.number ^ SIGN_START, state))
        states = [state]
        for i in range(1, self._lanes // NUMBER_BITS):
            states.append(_next(m, f"state{i}", states[-1]))
        pieces = max(NUMBER_BITS // self._lanes, 1)
        index = Signal(range(max(pieces, 2)))
        m.d.comb += self.signs.eq(Cat(states).word_select(index, self._lanes))
        # The state before the last one of a word leads to the next word's first.
        last = Mux(self.start, before, states[-1]) if len(states) > 1 else before
        following = _next(m, "following", last)
        with m.If(self.start | (self.next & (index == pieces - 1))):
            m.d.sync += state.eq(following)
        with m.If(self.start):
            m.d.sync += index.eq(0)
        with m.Elif(self.next):
            m.d.sync += index.eq(Mux(index == pieces - 1, 0, index + 1))
        return m


def _next(m: Module, name: str, state: Value) -> Value:
    """The next 32 signs: Marsaglia's xorshift, as in ``golden.hadamard``."""
    for i, moved in enumerate((lambda x: x << 13, lambda x: x >> 17, lambda x: x << 5)):
        state = let(m, f"{name}_{i}", (state ^ moved(state))[:NUMBER_BITS])
    return state
