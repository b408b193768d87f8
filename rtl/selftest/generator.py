"""Values that a chip makes itself, and the host after it."""

from amaranth import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Generator"]

# Added to the seed from one lane to the next: 2**32 over the golden ratio, which no small multiple repeats.
LANE_STEP = 0x9E3779B9
# Of Marsaglia's 32-bit xorshift generator (Journal of Statistical Software 8 (14), 2003): linear feedback
# shift registers that move by 13, 17 and 5 bits at once.
SHIFTS = (13, -17, 5)


class Generator(wiring.Component):
    """Random words, one a cycle: a 32-bit linear feedback shift register in each lane of four bytes.

    What is shown is ``state & mask | ones`` of each lane, so that a run can have what random bits hardly ever
    make: values of about one size, zeros, infinities.

    Args:
        bus_bytes: bytes of a word.

    Members:
        seed: of the first lane; those of the others follow by a constant.
        start: the next word is the first one of ``seed``.
        next: the word of the next cycle is the next one.
        mask, ones: see above.
        word: the word of the moment.
    """

    def __init__(self, bus_bytes: int):
        self._lanes = bus_bytes // 4
        members = {"start": In(1), "next": In(1), "word": Out(8 * bus_bytes)}
        super().__init__({**dict.fromkeys(("seed", "mask", "ones"), In(32)), **members})

    def elaborate(self, platform):
        m = Module()
        states = [Signal(32, name=f"state{lane}") for lane in range(self._lanes)]
        m.d.comb += self.word.eq(Cat(state & self.mask | self.ones for state in states))
        for lane, state in enumerate(states):
            mixed = state
            for shift in SHIFTS:
                mixed = (mixed ^ (mixed << shift if shift > 0 else mixed >> -shift))[:32]
            with m.If(self.start):
                m.d.sync += state.eq(self.seed + (lane * LANE_STEP & 0xFFFFFFFF))
            with m.Elif(self.next):
                m.d.sync += state.eq(mixed)
        return m
