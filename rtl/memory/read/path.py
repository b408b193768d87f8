"""The read path: bursts of the accelerator in, bursts to memory out, and the answers back, all in one order.

    ar --> Plan -----------------------------------------------------> mar
             |  `--> runs ---,
             |               v
             |              mr --> Unpacker --> Decompressors --,
             |               `---> Joiner ----------------------+--> Reply --> r
             `--> bursts ----------------------------------------'

Memory is asked with one ID, so that it answers in the order in which it was asked. A read waits for writes,
never a write for a read.
"""

from amaranth import Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from golden.bursts import PAGE

from ..codecs.unpack import Decompressors, Joiner, Unpacker
from ..hazards import Hazards
from ..interface.channels import axi4_channels
from ..layouts import error_layout
from ..parameters import MemoryParameters
from ..queue import Queue
from ..registers.regions import RegionMap
from ..write.merge import MERGE_ID
from .plan import Plan
from .reply import Reply

__all__ = ["ReadPath"]

# Beats of memory that can be under way at once where merges may overtake them: enough for 100 cycles, and
# for the longest burst in bypass, for it is answered once all of it was asked for.
_LEAST_BEATS = 128


class ReadPath(wiring.Component):
    """Answers reads; see the module.

    Members:
        map: the regions.
        ar, r: of the accelerator's AXI4.
        mar, mr: of the memory's.
        merge_ar, merge_r: with ``merging``, of what is read for writes; it comes before all else.
        hazards: see :class:`rtl.memory.hazards.Hazards`.
        drain: take no bursts, and forget what was read.
        moves, bytes: a beat is taken on ``r``, with so many bytes.
        block_read: a block's last word left the decompressors.
        idle: there are no unanswered bursts.
        undecoded: no region answers for a burst.
        invalid, failed: see :class:`rtl.memory.read.reply.Reply`.
    """

    def __init__(self, parameters: MemoryParameters):
        self._parameters = parameters
        port = axi4_channels(parameters.address_bits, parameters.bus_bytes, parameters.id_bits)
        below = axi4_channels(parameters.address_bits, parameters.memory_bytes, 1)
        super().__init__(
            {
                "map": In(RegionMap(parameters)),
                "ar": In(stream.Signature(port["ar"])),
                "r": Out(stream.Signature(port["r"])),
                "mar": Out(stream.Signature(below["ar"])),
                "mr": In(stream.Signature(below["r"])),
                "merge_ar": In(stream.Signature(below["ar"])),
                "merge_r": Out(stream.Signature(below["r"])),
                "hazards": Out(Hazards(parameters)),
                "drain": In(1),
                "moves": Out(1),
                "bytes": Out(7),
                "block_read": Out(1),
                "idle": Out(1),
                **{name: Out(error_layout(parameters)) for name in ("undecoded", "invalid", "failed")},
            }
        )

    def elaborate(self, platform):
        m = Module()
        parameters = self._parameters
        m.submodules.plan = plan = Plan(parameters)
        m.submodules.bursts = bursts = Queue(plan.bursts.p.shape(), parameters.reads)
        m.submodules.runs = runs = Queue(plan.runs.p.shape(), parameters.bursts)
        m.submodules.joiner = joiner = Joiner(parameters)
        m.submodules.reply = reply = Reply(parameters)
        wiring.connect(m, wiring.flipped(self.ar), plan.ar)
        wiring.connect(m, wiring.flipped(self.map), plan.map)
        wiring.connect(m, plan.hazards, wiring.flipped(self.hazards))
        wiring.connect(m, plan.bursts, bursts.i)
        wiring.connect(m, plan.runs, runs.i)
        wiring.connect(m, bursts.o, reply.bursts)
        wiring.connect(m, joiner.o, reply.words)
        m.d.comb += [
            Value.cast(self.r.payload).eq(reply.r.payload),
            self.r.valid.eq(reply.r.valid),
            reply.r.ready.eq(self.r.ready),
            plan.drain.eq(self.drain),
            plan.forget.eq(self.drain | reply.invalid.valid | reply.failed.valid),
            self.undecoded.eq(plan.undecoded),
            self.moves.eq(reply.moves),
            self.bytes.eq(reply.bytes),
            self.block_read.eq(reply.values.valid & reply.values.ready & reply.values.p.last),
            self.invalid.eq(reply.invalid),
            self.failed.eq(reply.failed),
            self.idle.eq(plan.idle & bursts.empty & reply.idle),
        ]

        if parameters.merging:
            mr = self._share_memory(m, plan.mar)
        else:
            mr = self.mr
            wiring.connect(m, plan.mar, wiring.flipped(self.mar))

        # A beat belongs to the run that is being cut, or else to the oldest one.
        in_bypass = runs.o.valid & (runs.o.p.format == 0)
        m.d.comb += [
            joiner.run.payload.eq(runs.o.payload),
            joiner.i.p.data.eq(mr.p.data),
            joiner.i.p.resp.eq(mr.p.resp),
        ]
        if not parameters.formats:
            m.d.comb += [
                joiner.run.valid.eq(runs.o.valid),
                runs.o.ready.eq(joiner.run.ready),
                joiner.i.valid.eq(mr.valid),
                mr.ready.eq(joiner.i.ready),
            ]
            return m
        m.submodules.unpacker = unpacker = Unpacker(parameters)
        m.submodules.decompressors = decompressors = Decompressors(parameters)
        wiring.connect(m, unpacker.o, decompressors.i)
        wiring.connect(m, decompressors.o, reply.values)
        joins = in_bypass & ~unpacker.expects
        m.d.comb += [
            joiner.run.valid.eq(joins),
            joiner.i.valid.eq(mr.valid & joins),
            unpacker.run.payload.eq(runs.o.payload),
            unpacker.run.valid.eq(runs.o.valid & ~in_bypass),
            unpacker.i.p.data.eq(mr.p.data),
            unpacker.i.p.resp.eq(mr.p.resp),
            unpacker.i.valid.eq(mr.valid & unpacker.expects),
            runs.o.ready.eq(Mux(in_bypass, joiner.run.ready, unpacker.run.ready)),
            mr.ready.eq(joiner.i.ready | unpacker.i.ready),
        ]
        return m

    def _share_memory(self, m: Module, mar):
        """Ask memory for what a merge needs first, and for no more of other beats than there is room for.

        So all beats that come are taken, whether the accelerator takes its own or not. Returns the stream of
        those that are not a merge's; they pass in the same cycle if there are none before them.
        """
        parameters = self._parameters
        most = max(_LEAST_BEATS, PAGE // parameters.memory_bytes)
        m.submodules.beats = beats = Queue(self.mr.p.shape(), most)
        passed = stream.Signature(self.mr.p.shape()).create()

        # Beats that were asked for and not used; an address that is offered stays.
        open_beats, wanted = Signal(range(most + 1)), Signal(range(most + 257))
        merge_first, offered, was_merge = Signal(), Signal(), Signal()
        m.d.comb += [
            wanted.eq(open_beats + mar.p.len + 1),
            merge_first.eq(Mux(offered, was_merge, self.merge_ar.valid)),
            self.mar.valid.eq(Mux(merge_first, self.merge_ar.valid, mar.valid & (wanted <= most))),
            Value.cast(self.mar.payload).eq(Mux(merge_first, self.merge_ar.payload, mar.payload)),
            self.merge_ar.ready.eq(self.mar.ready & merge_first),
            mar.ready.eq(self.mar.ready & ~merge_first & (wanted <= most)),
        ]
        m.d.sync += [offered.eq(self.mar.valid & ~self.mar.ready), was_merge.eq(merge_first)]
        asks, uses = mar.valid & mar.ready, passed.valid & passed.ready
        m.d.sync += open_beats.eq(open_beats + Mux(asks, mar.p.len + 1, 0) - uses)

        is_merge, comes = self.mr.p.id == MERGE_ID, Signal()
        m.d.comb += [
            Value.cast(self.merge_r.payload).eq(self.mr.payload),
            self.merge_r.valid.eq(self.mr.valid & is_merge),
            self.mr.ready.eq(self.merge_r.ready),  # RID has no path to RREADY
            comes.eq(self.mr.valid & self.mr.ready & ~is_merge),
            Value.cast(beats.i.payload).eq(self.mr.payload),
            beats.i.valid.eq(comes & ~(beats.empty & passed.ready)),
            Value.cast(passed.payload).eq(Mux(beats.empty, self.mr.payload, beats.o.payload)),
            passed.valid.eq(Mux(beats.empty, comes, beats.o.valid)),
            beats.o.ready.eq(passed.ready & ~beats.empty),
        ]
        return passed
