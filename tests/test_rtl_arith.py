"""The gates of :mod:`rtl.arith` that have no bench of their own, against Python on integers."""

import random

from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator

from rtl.arith.trees import leading_zeros


class Counter(wiring.Component):
    """How many zeros lie above the highest one of 16 bits."""

    bits: In(16)
    count: Out(4)

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.count.eq(leading_zeros(self.bits))
        return m


def test_zeros_above_the_highest_one_are_counted():
    rng = random.Random(0)
    given = [0, 1, *(rng.getrandbits(16) >> rng.randrange(16) for _ in range(200))]
    counter, found = Counter(), []

    async def process(context):
        for bits in given:
            context.set(counter.bits, bits)
            found.append(context.get(counter.count))

    simulator = Simulator(counter)
    simulator.add_testbench(process)
    simulator.run()
    assert found == [min(16 - bits.bit_length(), 15) for bits in given]
