"""The write path: bursts of the accelerator in, bursts to memory out, and the answers back.

    aw --> Lookup --> Walker --,             ,--> Gather --> Compressors --> Packer --,
                               >-- by region-|                                        >-- WriteOut
    w  ------------------------'             '--> Cutter -----------------------------'
    b  <-- Slots

The path of a block is one way: nothing in it waits for a read, for a word that has not come, or for a block
that is not complete. Full buffers, compressors and bursts therefore always drain, and a burst that gets no
slot or a beat that gets no buffer waits for them, or has the oldest open block evicted.
"""

from amaranth import C, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from golden.bursts import BurstKind

from ..codecs.compress import Compressors
from ..hazards import Hazards
from ..interface.channels import axi4_channels
from ..interface.walker import Walker
from ..layouts import address_of_place, error_layout, found_layout
from ..parameters import PAGE_BITS, MemoryParameters
from ..queue import Queue
from ..registers.regions import Lookup, Mapper, RegionMap, page_of_memory
from .gather import Gather
from .merge import Merger
from .slots import Slots
from .writeout import MOST_BEATS, Cutter, Packer, WriteOut

__all__ = ["WritePath"]

# Bursts whose addresses came before their data.
_AHEAD = 4

_ERRORS = ("undecoded", "refused", "evicted", "failed", "unread", "invalid")


class WritePath(wiring.Component):
    """Takes writes; see the module.

    Members:
        map: the regions.
        timeout: cycles that a block may be the one that has been open for longest.
        aw, w, b: of the accelerator's AXI4.
        maw, mw, mb: of the memory's.
        drain, region: take no more addresses; once all bursts have their beats, evict the open blocks of a
            region.
        drained: none of the region is open, and of what was taken nothing is under way to memory but open
            blocks of others. Answers may still be offered on ``b``.
        idle: nothing is under way but open blocks.
        hazards: see :class:`rtl.memory.hazards.Hazards`.
        undecoded, refused: a burst is answered with an error.
        evicted: a block is dropped.
        failed: memory answered a burst with an error; where its first beat is.
        merge_ar, merge_r: of the memory's AXI4, with ``merging``: see :class:`rtl.memory.write.merge.Merger`.
        unread, invalid: a block could not be merged, for memory answered with an error, or it is invalid.
        block_written: a block's last word went to the packer.
        block_merged: one was decompressed to be merged.
    """

    def __init__(self, parameters: MemoryParameters):
        self._parameters = parameters
        port = axi4_channels(parameters.address_bits, parameters.bus_bytes, parameters.id_bits)
        below = axi4_channels(parameters.address_bits, parameters.memory_bytes, 1)
        error = error_layout(parameters)
        super().__init__(
            {
                "map": In(RegionMap(parameters)),
                "timeout": In(32),
                "aw": In(stream.Signature(port["aw"])),
                "w": In(stream.Signature(port["w"])),
                "b": Out(stream.Signature(port["b"])),
                "maw": Out(stream.Signature(below["aw"])),
                "mw": Out(stream.Signature(below["w"])),
                "mb": In(stream.Signature(below["b"])),
                "drain": In(1),
                "region": In(range(parameters.regions)),
                "drained": Out(1),
                "idle": Out(1),
                "hazards": In(Hazards(parameters)),
                **{name: Out(error) for name in _ERRORS},
                "merge_ar": Out(stream.Signature(below["ar"])),
                "merge_r": In(stream.Signature(below["r"])),
                "block_written": Out(1),
                "block_merged": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        parameters = self._parameters
        m.submodules.ahead = ahead = Queue(self.aw.p.shape(), _AHEAD)
        m.submodules.lookup = lookup = Lookup(parameters)
        m.submodules.slots = slots = Slots(parameters)
        about = data.StructLayout(
            {
                "found": found_layout(parameters),
                "page": parameters.page_bits,
                "slot": range(parameters.slots),
                "bufferable": 1,
                "refused": 1,
            }
        )
        m.submodules.walker = walker = Walker(parameters, about)
        m.submodules.cutter = cutter = Cutter(parameters)
        m.submodules.packer = packer = Packer(parameters)
        m.submodules.writeout = out = WriteOut(parameters)
        wiring.connect(m, out.aw, wiring.flipped(self.maw))
        wiring.connect(m, out.w, wiring.flipped(self.mw))
        wiring.connect(m, wiring.flipped(self.mb), out.b)
        m.d.comb += [
            Value.cast(self.b.payload).eq(slots.b.payload),
            self.b.valid.eq(slots.b.valid),
            slots.b.ready.eq(self.b.ready),
        ]

        m.d.comb += [
            ahead.i.payload.eq(self.aw.payload),
            ahead.i.valid.eq(self.aw.valid & ~self.drain),
            self.aw.ready.eq(ahead.i.ready & ~self.drain),
        ]

        # A burst begins: it gets its region and a slot.
        burst = ahead.o.p
        found = lookup.found
        begins = walker.i.valid & walker.i.ready
        is_refused = found.hit & (found.format != 0) & (burst.burst == BurstKind.FIXED)
        m.d.comb += [
            lookup.regions.eq(self.map.regions),
            self.map.takes.eq(begins & found.hit),
            self.map.number.eq(found.region),
            lookup.page.eq(burst.addr[PAGE_BITS:]),
            walker.i.valid.eq(ahead.o.valid & slots.has_free),
            ahead.o.ready.eq(walker.i.ready & slots.has_free),
            walker.i.p.low.eq(burst.addr[:PAGE_BITS]),
            walker.i.p.len.eq(burst.len),
            walker.i.p.size.eq(burst.size),
            walker.i.p.kind.eq(burst.burst),
            walker.i.p.about.found.eq(found),
            walker.i.p.about.page.eq(lookup.page),
            walker.i.p.about.slot.eq(slots.free),
            walker.i.p.about.bufferable.eq(burst.cache[0]),
            walker.i.p.about.refused.eq(~found.hit | is_refused),
            slots.open.eq(begins),
            slots.id.eq(burst.id),
            self.undecoded.valid.eq(begins & ~found.hit),
            self.undecoded.address.eq(burst.addr),
            self.refused.valid.eq(begins & is_refused),
            self.refused.address.eq(burst.addr),
        ]

        # A beat goes where its burst belongs.
        beat = walker.o.p
        about = beat.burst.about
        bypass = about.found.format == 0
        has_both, merging = self.w.valid & walker.o.valid, C(0, 1)
        waits_for_beats = walker.o.valid | ~ahead.empty
        if parameters.formats:
            m.submodules.gather = gather = Gather(parameters)
            merging = gather.merged.valid
        to_cutter = has_both & ~about.refused & bypass
        to_gather = has_both & ~about.refused & ~bypass
        passes = Signal()
        m.d.comb += [
            cutter.i.valid.eq(to_cutter & ~merging),
            cutter.i.p.address.eq(Cat(beat.at, page_of_memory(self.map.origin, about.page))),
            cutter.i.p.data.eq(self.w.p.data),
            cutter.i.p.strb.eq(self.w.p.strb),
            cutter.i.p.waiting.eq(1 << about.slot),
            walker.o.ready.eq(self.w.valid & passes),
            self.w.ready.eq(walker.o.valid & passes),
            slots.taken.eq(has_both & passes & beat.last),
            slots.taken_slot.eq(about.slot),
        ]
        fails = begins & (is_refused | ~found.hit)
        slverr = Mux(fails & is_refused, 1 << slots.free, 0) | out.slverr
        decerr = Mux(fails & ~is_refused, 1 << slots.free, 0) | out.decerr
        held = packer.held | out.held
        probed, idle = C(0, 1), packer.idle & out.idle
        if parameters.formats:
            m.d.comb += [
                gather.i.valid.eq(to_gather),
                gather.i.p.page.eq(about.page),
                gather.i.p.at.eq(beat.at),
                gather.i.p.region.eq(about.found.region),
                gather.i.p.origin.eq(self.map.origin),
                gather.i.p.format.eq(about.found.format),
                gather.i.p.slot.eq(about.slot),
                gather.i.p.bufferable.eq(about.bufferable),
                gather.i.p.last.eq(beat.last),
                gather.i.p.data.eq(self.w.p.data),
                gather.i.p.strb.eq(self.w.p.strb),
                passes.eq(Mux(about.refused, 1, Mux(bypass, cutter.i.ready, gather.i.ready)) & ~merging),
                gather.probe.eq(self.hazards.blocks),
                gather.probe_anew.eq(self.hazards.blocks_anew),
                gather.probe_evicts.eq(self.hazards.evicts),
                gather.timeout.eq(self.timeout),
                gather.evict_region.eq(self.drain & ~waits_for_beats),
                gather.region.eq(self.region),
                self.evicted.valid.eq(gather.evicted.valid),
                self.evicted.address.eq(address_of_place(gather.evicted.place)),
                self.hazards.completed.eq(gather.completed),
            ]
            compressors = self._compress(m, gather, packer)
            slverr |= gather.evicted.waiting
            held |= gather.held | compressors.held
            probed = gather.probed | compressors.probed
            if parameters.merging:
                spoiled = self._merge_blocks(m, gather, gather.settled & compressors.idle & idle)
                slverr |= Mux(gather.values.p.resp[0], 0, spoiled)
                decerr |= Mux(gather.values.p.resp[0], spoiled, 0)
            idle &= gather.idle & compressors.idle
            # No slot will become free by itself.
            m.d.comb += gather.evict_oldest.eq(
                ahead.o.valid & ~slots.has_free & ~walker.o.valid & idle & slots.idle
            )
            region_open = gather.region_open
            hurry = gather.settled & compressors.idle
        else:
            m.d.comb += passes.eq(about.refused | cutter.i.ready)
            region_open, hurry = C(0, 1), C(1, 1)
        m.d.comb += [
            slots.slverr.eq(slverr),
            slots.decerr.eq(decerr),
            slots.held.eq(held),
            self.hazards.has_block.eq(probed),
            packer.hurry.eq(hurry),
            out.hurry.eq(hurry & packer.idle & (merging | ~waits_for_beats)),
            packer.probe.eq(self.hazards.beats),
            packer.probe_anew.eq(self.hazards.beats_anew),
            out.probe.eq(self.hazards.beats),
            out.probe_anew.eq(self.hazards.beats_anew),
            out.is_late.eq(packer.is_late),
            self.hazards.has_beat.eq(packer.probed | out.probed),
            self.hazards.packed.valid.eq(packer.o.valid & packer.o.ready),
            self.hazards.packed.beat.eq(packer.o.p.beat),
            self.failed.valid.eq(out.failed),
            self.failed.address.eq(out.failed_beat << parameters.beat_bits),
            self.idle.eq(~waits_for_beats & idle & slots.idle),
            self.drained.eq(self.drain & ~waits_for_beats & idle & ~region_open),
        ]
        self._merge(m, packer, cutter, out)
        return m

    def _compress(self, m, gather, packer) -> Compressors:
        """Complete blocks to their compressors, and what these give to the packer."""
        parameters = self._parameters
        m.submodules.mapper = mapper = Mapper(parameters, bypass=False)
        m.submodules.compressors = compressors = Compressors(parameters)
        block, word = gather.o.p.block, gather.o.p
        m.d.comb += [
            mapper.format.eq(block.format),
            mapper.origin.eq(word.origin),
            mapper.page.eq(block.place.page),
            mapper.low.eq(address_of_place(block.place)[:PAGE_BITS]),
            compressors.i.valid.eq(gather.o.valid),
            gather.o.ready.eq(compressors.i.ready),
            *(compressors.i.p[name].eq(word[name]) for name in ("data", "first", "last")),
            *(compressors.i.p[name].eq(block[name]) for name in ("format", "place", "waiting")),
            compressors.i.p.number.eq(mapper.number),
            compressors.i.p.address.eq(mapper.address),
            compressors.probe.eq(self.hazards.blocks),
            compressors.probe_anew.eq(self.hazards.blocks_anew),
            compressors.to_come.eq(gather.probed),
            packer.i.valid.eq(compressors.o.valid),
            packer.i.payload.eq(compressors.o.p.word),
            compressors.o.ready.eq(packer.i.ready),
            self.block_written.eq(compressors.o.valid & compressors.o.ready & compressors.o.p.last),
        ]
        return compressors

    def _merge_blocks(self, m, gather, settled) -> Value:
        """Read what memory has of a block that is to be merged; slots of bursts for which that failed."""
        m.submodules.merger = merger = Merger(self._parameters)
        wiring.connect(m, merger.ar, wiring.flipped(self.merge_ar))
        wiring.connect(m, wiring.flipped(self.merge_r), merger.r)
        wiring.connect(m, merger.o, gather.values)
        block = gather.merged.block
        m.d.comb += [
            gather.merges.eq(Cat(region.merge for region in self.map.regions)),
            merger.valid.eq(gather.merged.valid),
            merger.settled.eq(settled),
            self.block_merged.eq(merger.o.valid & merger.o.ready & merger.o.p.last),
            merger.low.eq(address_of_place(block.place)[:PAGE_BITS]),
            merger.format.eq(block.format),
            merger.origin.eq(gather.o.p.origin),
            merger.page.eq(block.place.page),
            self.unread.valid.eq(gather.spoiled & ~gather.values.p.invalid),
            self.invalid.valid.eq(gather.spoiled & gather.values.p.invalid),
            *(error.address.eq(address_of_place(block.place)) for error in (self.unread, self.invalid)),
        ]
        return Mux(gather.spoiled, block.waiting, 0)

    def _merge(self, m, packer, cutter, out) -> None:
        """Beats of blocks and those in bypass to memory: as long as one has more, up to a burst's number.

        Whose turn it is does not depend on whether W has a word in this cycle: so it has no path to WREADY.
        """
        is_turn, taken, ends = Signal(), Signal(), Signal()  # of words in bypass
        count = Signal(range(MOST_BEATS))  # of this turn's beats
        in_bypass = is_turn | ~packer.o.valid
        m.d.comb += [
            out.i.valid.eq(Mux(in_bypass, cutter.o.valid, packer.o.valid)),
            out.i.payload.eq(Mux(in_bypass, cutter.o.payload, packer.o.payload)),
            packer.o.ready.eq(out.i.ready & ~in_bypass),
            cutter.o.ready.eq(out.i.ready & in_bypass),
            taken.eq(out.i.ready & Mux(in_bypass, cutter.i.valid, packer.o.valid)),
            ends.eq(out.ends | (count == MOST_BEATS - 1)),
        ]
        with m.If(taken):
            m.d.sync += count.eq(Mux(ends, 0, count + 1))
        with m.If(in_bypass & ~cutter.i.valid):
            m.d.sync += [is_turn.eq(0), count.eq(0)]
        with m.Elif(taken & in_bypass):
            m.d.sync += is_turn.eq(~ends)
        with m.Elif(taken & ends):
            m.d.sync += is_turn.eq(cutter.i.valid)
