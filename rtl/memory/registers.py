"""The registers behind AXI4-Lite."""

from amaranth import C, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from golden.bursts import Response

from .channels import axi4_lite_channels
from .hazards import error_layout
from .map import COUNTERS, ERRORS, IDENTITY, MAP_BITS, TIMEOUT_CYCLES, address_of
from .parameters import MemoryParameters
from .regions import region_layout, stored_pages

__all__ = ["Registers"]


class Registers(wiring.Component):
    """The map of :mod:`rtl.memory.map`.

    A read is answered in the second cycle after it was taken, a write in the second after both address and
    data were; the one that disables a region when the region is drained. Whatever cannot be done is answered
    SLVERR: a register that is not there, one that cannot be written, or not now, a part of one.

    Members:
        aw, w, b, ar, r: of AXI4-Lite.
        regions: all of them.
        timeout: see :class:`rtl.memory.gather.Gather`.
        drain, region: a region is to be drained; drained: it is.
        errors: of each kind.
        counts: what is added to each counter.
        irq: the interrupt: there was an error of a kind that raises it.
    """

    def __init__(self, parameters: MemoryParameters):
        self._parameters = parameters
        lite = axi4_lite_channels(MAP_BITS)
        super().__init__(
            {
                "aw": In(stream.Signature(lite["aw"])),
                "w": In(stream.Signature(lite["w"])),
                "b": Out(stream.Signature(lite["b"])),
                "ar": In(stream.Signature(lite["ar"])),
                "r": Out(stream.Signature(lite["r"])),
                "regions": Out(data.ArrayLayout(region_layout(parameters), parameters.regions)),
                "timeout": Out(32, init=TIMEOUT_CYCLES),
                "drain": Out(1),
                "region": Out(range(parameters.regions)),
                "drained": In(1),
                "errors": In(data.ArrayLayout(error_layout(parameters), len(ERRORS))),
                "counts": In(data.ArrayLayout(7, len(COUNTERS))),
                "irq": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        parameters = self._parameters
        seen, enabled = Signal(len(ERRORS)), Signal(len(ERRORS))
        places = [Signal(parameters.address_bits, name=f"place{i}") for i in range(len(ERRORS))]
        counters = [Signal(32, name=f"counter{i}") for i in range(len(COUNTERS))]
        locked = Signal(parameters.regions)
        m.d.comb += self.irq.eq((seen & enabled).any())
        for counter, more in zip(counters, self.counts, strict=True):
            m.d.sync += counter.eq(counter + more)

        # A write: address and data are taken together once the one before is answered.
        taken, is_done = Signal(), Signal()
        address, word, is_whole = Signal(MAP_BITS), Signal(32), Signal()
        both = self.aw.valid & self.w.valid & ~taken & ~self.b.valid
        m.d.comb += [self.aw.ready.eq(both), self.w.ready.eq(both), is_done.eq(taken)]
        with m.If(both):
            m.d.sync += [
                taken.eq(1),
                address.eq(self.aw.p.addr),
                word.eq(self.w.p.data),
                is_whole.eq(self.w.p.strb.all()),
            ]
        accepted = Signal()
        with m.If(taken & is_done):
            m.d.sync += [
                taken.eq(0),
                self.b.valid.eq(1),
                self.b.p.resp.eq(Mux(accepted, Response.OKAY, Response.SLVERR)),
            ]
        with m.If(self.b.valid & self.b.ready):
            m.d.sync += self.b.valid.eq(0)

        clears = Signal(len(ERRORS))
        with m.If(taken & is_whole), m.Switch(address):
            with m.Case(address_of("TIMEOUT")):
                m.d.comb += accepted.eq(1)
                m.d.sync += self.timeout.eq(word)
            with m.Case(address_of("ERRORS")):
                m.d.comb += [accepted.eq(1), clears.eq(word)]
            with m.Case(address_of("INTERRUPTS")):
                m.d.comb += accepted.eq(1)
                m.d.sync += enabled.eq(word)
            for i in range(parameters.regions):
                self._write_region(m, i, word, locked, accepted, is_done)
        for i, error in enumerate(self.errors):
            with m.If(error.valid):
                m.d.sync += seen[i].eq(1)
                with m.If(~seen[i] | clears[i]):
                    m.d.sync += places[i].eq(error.address)
            with m.Elif(clears[i]):
                m.d.sync += seen[i].eq(0)
        self._find_overlaps(m)

        # A read.
        values = {
            address_of("IDENTITY"): C(IDENTITY, 32),
            address_of("PARAMETERS"): self._described(),
            address_of("TIMEOUT"): self.timeout,
            address_of("ERRORS"): seen,
            address_of("INTERRUPTS"): enabled,
        }
        for i, place in enumerate(places):
            values[address_of("ERROR_ADDRESS_LOW", i)] = place[:32]
            values[address_of("ERROR_ADDRESS_HIGH", i)] = place[32:]
        for (name, _), counter in zip(COUNTERS, counters, strict=True):
            values[address_of(name)] = counter
        for i, region in enumerate(self.regions):
            values[address_of("REGION_BASE", i)] = region.base
            values[address_of("REGION_SIZE", i)] = region.size
            values[address_of("REGION_STORED", i)] = region.stored
            values[address_of("REGION_CONTROL", i)] = Cat(
                region.enabled, locked[i], region.usable, C(0, 5), region.format
            )
        m.d.comb += self.ar.ready.eq(~self.r.valid | self.r.ready)
        with m.If(self.ar.ready):
            m.d.sync += [
                self.r.valid.eq(self.ar.valid),
                self.r.p.resp.eq(Response.SLVERR),
                self.r.p.data.eq(0),
            ]
            with m.Switch(self.ar.p.addr):
                for at, value in values.items():
                    with m.Case(at):
                        m.d.sync += [self.r.p.data.eq(value), self.r.p.resp.eq(Response.OKAY)]
        return m

    def _write_region(self, m: Module, i: int, word: Value, locked: Value, accepted, is_done) -> None:
        """A write to one of a region's registers; to disable it takes until it is drained."""
        region = self.regions[i]
        may_change = ~region.enabled & ~locked[i]
        for name, field in (
            ("REGION_BASE", region.base),
            ("REGION_SIZE", region.size),
            ("REGION_STORED", region.stored),
        ):
            with m.Case(address_of(name, i)), m.If(may_change):
                m.d.comb += accepted.eq(1)
                m.d.sync += field.eq(word)
        with m.Case(address_of("REGION_CONTROL", i)), m.If(~locked[i]):
            m.d.comb += accepted.eq(1)
            with m.If(region.enabled & ~word[0]):
                m.d.comb += [self.drain.eq(1), self.region.eq(i), is_done.eq(self.drained)]
            with m.If(is_done):
                m.d.sync += [region.enabled.eq(word[0]), locked[i].eq(word[1])]
                with m.If(~region.enabled):
                    m.d.sync += region.format.eq(word[8:12])

    def _find_overlaps(self, m: Module) -> None:
        """Which regions share stored bytes with no other."""
        parameters = self._parameters
        bits = parameters.page_bits + 1
        ends = [Signal(bits, name=f"end{i}") for i in range(parameters.regions)]
        overlaps = [Signal(parameters.regions, name=f"overlaps{i}") for i in range(parameters.regions)]
        for i, region in enumerate(self.regions):
            taken = stored_pages(parameters, region.size, region.format)
            m.d.sync += ends[i].eq(region.stored + taken)
            for j, other in enumerate(self.regions):
                if j > i:
                    both = region.enabled & other.enabled
                    meets = (region.stored < ends[j]) & (other.stored < ends[i]) & both
                    m.d.comb += [overlaps[i][j].eq(meets), overlaps[j][i].eq(meets)]
        for region, end, overlap in zip(self.regions, ends, overlaps, strict=True):
            fits = ~end[-1] | ~end[:-1].any()
            known = fits
            if len(parameters.formats) + 1 < 1 << len(region.format):
                known &= region.format <= len(parameters.formats)
            m.d.sync += region.usable.eq(region.enabled & known & ~overlap.any())

    def _described(self) -> Value:
        parameters = self._parameters
        return Cat(
            C(len(parameters.formats), 8),
            C(parameters.regions, 8),
            C(parameters.buffers, 8),
            C(parameters.word_bits, 4),
            C(parameters.beat_bits, 4),
        )
