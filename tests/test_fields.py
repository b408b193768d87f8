"""The gates that count bits and read fields, against Python on integers."""

import random

import pytest
from amaranth import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator

from rtl import fields


class Bench(wiring.Component):
    """One function of :mod:`rtl.fields`, from an input to an output."""

    def __init__(self, width, number_width, result_width, function):
        self._function = function
        super().__init__({"bits": In(width), "number": In(number_width), "result": Out(result_width)})

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.result.eq(self._function(m, self.bits, self.number))
        return m


def results(bench, given):
    """What comes out for each pair of bits and number."""
    found = []

    async def process(context):
        for bits, number in given:
            context.set(bench.bits, bits)
            context.set(bench.number, number)
            found.append(context.get(bench.result))

    simulator = Simulator(bench)
    simulator.add_testbench(process)
    simulator.run()
    return found


def random_pairs(width, numbers, count=200):
    rng = random.Random(width)
    return [
        (rng.getrandbits(width) & rng.choice([-1, rng.getrandbits(width)]), n)
        for n in rng.choices(numbers, k=count)
    ]


@pytest.mark.parametrize(("length", "width"), [(100, 30), (70, 7), (5, 9)])
def test_a_window_has_zeros_behind_the_end(length, width):
    bench = Bench(length, 8, width, lambda m, bits, start: fields.window(m, "window", bits, start, width))
    given = random_pairs(length, range(256))
    expected = [bits >> start & (1 << width) - 1 for bits, start in given]
    assert results(bench, given) == expected


def test_fields_of_any_width_are_cut():
    widths, count, longest = (1, 2, 5, 7), 6, 7

    def cut(m, bits, width):
        return Cat(fields.cut(bits, {n: width == n for n in widths}, count))

    given = random_pairs(count * longest - 3, widths)  # the last field lies behind the end in part
    expected = [
        sum((bits >> i * width & (1 << width) - 1) << i * longest for i in range(count))
        for bits, width in given
    ]
    assert results(Bench(count * longest - 3, 3, count * longest, cut), given) == expected


def test_ones_are_counted():
    given = random_pairs(21, [0])
    in_all = Bench(
        21, 1, 5, lambda m, bits, _: fields.total(m, "total", fields.group_counts(m, "group", bits, 4))
    )
    assert results(in_all, given) == [bits.bit_count() for bits, _ in given]
    before = Bench(21, 1, 5 * 21, lambda m, bits, _: _side_by_side(fields.count_before(m, "before", bits), 5))
    expected = [sum((bits & (1 << i) - 1).bit_count() << 5 * i for i in range(21)) for bits, _ in given]
    assert results(before, given) == expected


def _side_by_side(values, width):
    padded = [Signal(width) for _ in values]
    return Cat(Cat(value, padding)[:width] for value, padding in zip(values, padded, strict=True))


@pytest.mark.parametrize("width", [4, 16, 21])
def test_a_number_becomes_as_many_ones(width):
    bench = Bench(1, 5, width, lambda m, _, count: fields.ones(m, "ones", count, width))
    assert results(bench, [(0, n) for n in range(width + 1)]) == [(1 << n) - 1 for n in range(width + 1)]


def test_zeros_above_the_highest_one_are_counted():
    bench = Bench(16, 1, 4, lambda m, bits, _: fields.leading_zeros(bits))
    given = [*random_pairs(16, [0]), (0, 0), (1, 0)]
    assert results(bench, given) == [min(16 - bits.bit_length(), 15) for bits, _ in given]
