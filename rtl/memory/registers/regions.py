"""Which region an address lies in, and where its bytes are stored."""

from amaranth import C, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from ..layouts import format_number_bits, found_layout, origin_layout, region_layout
from ..parameters import PAGE_BITS, MemoryParameters

__all__ = ["Lookup", "Mapper", "RegionMap", "page_of_memory", "stored_pages"]


class RegionMap(wiring.Signature):
    """The regions, between the registers, whose side this is, and a path of bursts.

    Members:
        regions: all of them, see :func:`rtl.memory.layouts.region_layout`.
        takes, number: a burst of this region is taken.
        origin: of the region of the last burst that was taken, from the cycle after on: see
            :func:`rtl.memory.layouts.origin_layout`.
    """

    def __init__(self, parameters: MemoryParameters):
        super().__init__(
            {
                "regions": Out(data.ArrayLayout(region_layout(parameters), parameters.regions)),
                "takes": In(1),
                "number": In(range(parameters.regions)),
                "origin": Out(origin_layout(parameters)),
            }
        )


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
        hits = Signal(count)
        for i, region in enumerate(self.regions):
            inside = (self.page >= region.base) & (self.page < region.end)
            m.d.comb += hits[i].eq(region.enabled & inside)
            with m.If(hits[i]):
                m.d.comb += [self.found.region.eq(i), self.found.format.eq(region.format)]
        alone = (hits & (hits - 1)[:count]) == 0
        usable = Cat(region.usable for region in self.regions)
        m.d.comb += self.found.hit.eq((hits & usable).any() & alone)
        return m


def stored_pages(parameters: MemoryParameters, size: Value, number: Value) -> Value:
    """Pages of memory that so many pages of a format take, the last perhaps in part."""
    pages = size
    for i in range(len(parameters.formats)):
        taken = (size * parameters.page_stored(i) + ((1 << PAGE_BITS) - 1)) >> PAGE_BITS
        pages = Mux(number == i + 1, taken, pages)
    return pages


def page_of_memory(origin, page: Value) -> Value:
    """The page of memory in which a page of a region in bypass is stored."""
    return (origin.stored + (page - origin.base)[: len(page)])[: len(page)]


class Mapper(wiring.Component):
    """Where a block, or in bypass a byte, is stored: a multiplication, in the same cycle.

    Args:
        bypass: there are bytes in bypass too.

    Members:
        format: the number of its region's, 0 for bypass.
        origin: of the region.
        page, low: its page, and its address within that.
        address: of the stored byte.
        number: of the block in its region.
    """

    def __init__(self, parameters: MemoryParameters, *, bypass: bool = True):
        self._parameters, self._bypass = parameters, bypass
        super().__init__(
            {
                "format": In(format_number_bits(parameters)),
                "origin": In(origin_layout(parameters)),
                "page": In(parameters.page_bits),
                "low": In(PAGE_BITS),
                "address": Out(parameters.address_bits),
                "number": Out(32),
            }
        )

    def elaborate(self, platform):
        m = Module()
        parameters = self._parameters
        offset = Signal(parameters.page_bits)  # the page, counted from the region's first
        start = Cat(C(0, PAGE_BITS), self.origin.stored)
        m.d.comb += offset.eq(self.page - self.origin.base)
        if self._bypass:
            page = (self.origin.stored + offset)[: parameters.page_bits]
            m.d.comb += self.address.eq(Cat(self.low, page))
        for i, fmt in enumerate(parameters.formats):
            number = Cat(self.low[parameters.original_bits(i) :], offset)
            with m.If(self.format == i + 1):
                m.d.comb += [self.number.eq(number), self.address.eq(start + number * fmt.target)]
        return m
