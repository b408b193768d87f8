"""Blocks of which only some bytes were written, merged with what memory has.

    Gather --> evicted block --> Fetch --> memory
       ^------- its values <--- Decompressors <--- Unpacker <---'

A block is read once everything that was written before it is in memory, and no beats are taken meanwhile.
Nothing here waits for the accelerator's reads: beats come under an ID of their own, to decompressors of their
own, and memory is asked for no more of the others than there is room for.
"""

from amaranth import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from golden.bursts import BurstKind, Response

from ..codecs.unpack import Decompressors, Unpacker
from ..interface.channels import axi4_channels
from ..layouts import format_number_bits, merged_layout, origin_layout
from ..parameters import PAGE_BITS, MemoryParameters
from ..registers.regions import Mapper

__all__ = ["MERGE_ID", "Merger"]

# Of its bursts at the memory; all others have 0.
MERGE_ID = 1


class Merger(wiring.Component):
    """Reads a block from memory and decompresses it.

    Members:
        valid: there is a block to be merged.
        format, origin, page, low: of it, see :class:`rtl.memory.registers.regions.Mapper`; the origin need
            not be there before the cycle after ``settled``.
        settled: all that was written is in memory.
        ar, r: of the memory's AXI4.
        o: words of the block, with the answer of its bursts if it cannot be read, and whether it is invalid.
    """

    def __init__(self, parameters: MemoryParameters):
        self._parameters = parameters
        below = axi4_channels(parameters.address_bits, parameters.memory_bytes, 1)
        super().__init__(
            {
                "valid": In(1),
                "format": In(format_number_bits(parameters)),
                "origin": In(origin_layout(parameters)),
                "page": In(parameters.page_bits),
                "low": In(PAGE_BITS),
                "settled": In(1),
                "ar": Out(stream.Signature(below["ar"])),
                "r": In(stream.Signature(below["r"])),
                "o": Out(stream.Signature(merged_layout(parameters))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        parameters = self._parameters
        beat_bits, page_bits = parameters.beat_bits, PAGE_BITS - parameters.beat_bits
        m.submodules.mapper = mapper = Mapper(parameters, bypass=False)
        m.submodules.unpacker = unpacker = Unpacker(parameters)
        m.submodules.decompressors = decompressors = Decompressors(parameters)
        wiring.connect(m, unpacker.o, decompressors.i)
        for name in ("format", "origin", "page", "low"):
            m.d.comb += getattr(mapper, name).eq(getattr(self, name))

        # A block lies in one page of memory, or in two.
        size, stop = Signal(PAGE_BITS), Signal(parameters.address_bits)
        for i, fmt in enumerate(parameters.formats):
            with m.If(self.format == i + 1):
                m.d.comb += size.eq(fmt.target)
        m.d.comb += stop.eq(mapper.address + size - 1)
        first, last = mapper.address[beat_bits:], stop[beat_bits:]
        is_begun, is_second, is_asked, is_run = Signal(), Signal(), Signal(), Signal()
        is_split = first[page_bits] != last[page_bits]
        m.d.comb += [
            self.ar.valid.eq(is_begun & ~is_asked),
            self.ar.p.addr.eq(Mux(is_second, last[page_bits:] << PAGE_BITS, first << beat_bits)),
            self.ar.p.len.eq(
                Mux(is_split & ~is_second, (1 << page_bits) - 1, last[:page_bits])
                - Mux(is_second, 0, first[:page_bits])
            ),
            self.ar.p.size.eq(beat_bits),
            self.ar.p.burst.eq(BurstKind.INCR),
            self.ar.p.cache.eq(0b0010),
            self.ar.p.id.eq(MERGE_ID),
        ]
        with m.If(self.valid & self.settled):
            m.d.sync += is_begun.eq(1)
        with m.If(self.ar.valid & self.ar.ready):
            m.d.sync += [is_second.eq(1), is_asked.eq(is_second | ~is_split)]

        run = unpacker.run
        m.d.comb += [
            run.valid.eq(is_begun & ~is_run),
            run.p.format.eq(self.format),
            run.p.skip.eq(mapper.address[:beat_bits]),
            run.p.number.eq(mapper.number),
            run.p.beats.eq(last - first + 1),
            unpacker.i.p.data.eq(self.r.p.data),
            unpacker.i.p.resp.eq(self.r.p.resp),
            unpacker.i.valid.eq(self.r.valid),
            # Whatever comes while nothing is awaited is not for here, and must not be kept waiting.
            self.r.ready.eq(unpacker.i.ready | ~(unpacker.expects | (is_begun & ~is_run))),
        ]
        with m.If(run.valid & run.ready):
            m.d.sync += is_run.eq(1)

        values = decompressors.o
        failed = values.p.resp[1]
        m.d.comb += [
            self.o.p.data.eq(values.p.data),
            self.o.p.last.eq(values.p.last),
            self.o.p.resp.eq(
                Mux(failed, values.p.resp, Mux(values.p.invalid, Response.SLVERR, Response.OKAY))
            ),
            self.o.p.invalid.eq(values.p.invalid & ~failed),
            self.o.valid.eq(values.valid),
            values.ready.eq(self.o.ready),
        ]
        with m.If(values.valid & values.ready & values.p.last):
            m.d.sync += [signal.eq(0) for signal in (is_begun, is_second, is_asked, is_run)]
        return m
