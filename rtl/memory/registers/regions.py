"""Which region an address lies in, and where its bytes are stored."""

from amaranth import Array, C, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from ..layouts import found_layout, region_layout
from ..parameters import PAGE_BITS, MemoryParameters

__all__ = ["Lookup", "Mapper", "stored_pages"]


class Lookup(wiring.Component):
    """Finds the region of a page, in the same cycle.

    Members:
        regions: all of them.
        page: its number.
        found: see :func:`found_layout`.
    """

    def __init__(self, parameters: MemoryParameters):
        self._parameters = parameters
        super().__init__(
            {
                "regions": In(data.ArrayLayout(region_layout(parameters), parameters.regions)),
                "page": In(parameters.page_bits),
                "found": Out(found_layout(parameters)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        count = self._parameters.regions
        offsets = [Signal(self._parameters.page_bits, name=f"offset{i}") for i in range(count)]
        hits = Signal(count)
        for i, region in enumerate(self.regions):
            inside = (self.page >= region.base) & (self.page - region.base < region.size)
            m.d.comb += [offsets[i].eq(self.page - region.base), hits[i].eq(region.enabled & inside)]
        chosen = Signal(range(count))
        for i in range(count):
            with m.If(hits[i]):
                m.d.comb += chosen.eq(i)
        region = self.regions[chosen]
        alone = (hits & (hits - 1)[:count]) == 0
        m.d.comb += [
            self.found.hit.eq(hits.any() & alone & region.usable),
            self.found.region.eq(chosen),
            self.found.format.eq(region.format),
            self.found.stored.eq(region.stored),
            self.found.offset.eq(Array(offsets)[chosen]),
        ]
        return m


def stored_pages(parameters: MemoryParameters, size: Value, number: Value) -> Value:
    """Pages of memory that so many pages of a format take, the last perhaps in part."""
    pages = size
    for i in range(len(parameters.formats)):
        taken = (size * parameters.page_stored(i) + ((1 << PAGE_BITS) - 1)) >> PAGE_BITS
        pages = Mux(number == i + 1, taken, pages)
    return pages


class Mapper(wiring.Component):
    """Where a block, or in bypass a byte, is stored: a multiplication, in the same cycle.

    Members:
        found: its page.
        low: its address within the page.
        address: of the stored byte.
        number: of the block in its region.
    """

    def __init__(self, parameters: MemoryParameters):
        self._parameters = parameters
        super().__init__(
            {
                "found": In(found_layout(parameters)),
                "low": In(PAGE_BITS),
                "address": Out(parameters.address_bits),
                "number": Out(32),
            }
        )

    def elaborate(self, platform):
        m = Module()
        parameters = self._parameters
        start = Cat(C(0, PAGE_BITS), self.found.stored)
        m.d.comb += self.address.eq(start + Cat(self.low, self.found.offset))
        for i, fmt in enumerate(parameters.formats):
            bits = parameters.original_bits(i)
            number = Cat(self.low[bits:], self.found.offset)
            with m.If(self.found.format == i + 1):
                m.d.comb += [self.number.eq(number), self.address.eq(start + number * fmt.target)]
        return m
