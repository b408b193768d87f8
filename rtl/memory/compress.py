"""The compressors in the way of complete blocks."""

from amaranth import C, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from golden import HadamardFormat

from ..ports import COMPRESSORS, core_of
from ..stream import NUMBER_BITS, DelayLine
from .gather import place_layout, probe_layout, probes
from .parameters import MemoryParameters
from .writeout import stored_layout

__all__ = ["BlockCompressor"]

# Blocks that are in a compressor, or wait for their turn behind it.
_INSIDE = 8


class BlockCompressor(wiring.Component):
    """Compresses single blocks of one format, and remembers where each is to be stored.

    To the compressor each block is a tensor of its own: what comes behind it does not hold it up, and
    whatever travels with a block waits in a queue beside. A word waits for its turn behind the compressor.

    Args:
        index: of the format among the parameters'.

    Members:
        i: words of blocks: ``data``, ``first``, ``last``; ``number`` of the block, and where it is stored,
            ``address``; its ``place``; and the slots that are ``waiting`` for it.
        o: words of compressed blocks, see :func:`rtl.memory.writeout.stored_layout`, with ``last``.
        probe, probed: whether one of some blocks is here.
        held: slots that wait for one.
        idle: none is here.
    """

    def __init__(self, parameters: MemoryParameters, index: int):
        self._parameters = parameters
        self._fmt = parameters.formats[index]
        about = {
            "number": NUMBER_BITS,
            "address": parameters.address_bits,
            "place": place_layout(parameters),
            "waiting": parameters.slots,
        }
        word = data.StructLayout({"data": 8 * parameters.bus_bytes, "first": 1, "last": 1} | about)
        stored = data.StructLayout({"word": stored_layout(parameters), "last": 1})
        super().__init__(
            {
                "i": In(stream.Signature(word)),
                "o": Out(stream.Signature(stored)),
                "probe": In(probe_layout(parameters)),
                "probed": Out(1),
                "held": Out(parameters.slots),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        parameters = self._parameters
        m.submodules.core = core = core_of(COMPRESSORS, self._fmt)(self._fmt, parameters.bus_bytes)

        entry = data.StructLayout(
            {
                "address": parameters.address_bits,
                "place": place_layout(parameters),
                "waiting": parameters.slots,
            }
        )
        entries = [Signal(entry, name=f"entry{i}") for i in range(_INSIDE)]
        live = Signal(_INSIDE)
        newest, oldest = Signal(range(_INSIDE)), Signal(range(_INSIDE))
        has_room = ~live.bit_select(newest, 1)
        passes = ~self.i.p.first | has_room
        m.d.comb += [
            core.i.valid.eq(self.i.valid & passes),
            core.i.p.data.eq(self.i.p.data),
            core.i.p.last.eq(self.i.p.last),
            self.i.ready.eq(core.i.ready & passes),
        ]
        if isinstance(self._fmt, HadamardFormat):
            m.d.comb += core.i.p.first.eq(self.i.p.number)

        m.submodules.waiting = waiting = DelayLine(len(Value.cast(core.o.payload)), 1)
        compressed = Signal(core.o.payload.shape())
        m.d.comb += [
            waiting.i.valid.eq(core.o.valid),
            waiting.i.payload.eq(core.o.payload),
            core.o.ready.eq(waiting.i.ready),
            Value.cast(compressed).eq(waiting.o.payload),
        ]

        current = Signal(entry)
        first = Signal(init=1)
        gives = self.o.valid & self.o.ready
        with m.Switch(oldest):
            for i in range(_INSIDE):
                with m.Case(i):
                    m.d.comb += current.eq(entries[i])
        m.d.comb += [
            self.o.valid.eq(waiting.o.valid),
            waiting.o.ready.eq(self.o.ready),
            self.o.p.last.eq(compressed.last),
            self.o.p.word.data.eq(compressed.data),
            self.o.p.word.empty.eq(compressed.empty),
            self.o.p.word.first.eq(first),
            self.o.p.word.address.eq(current.address),
            self.o.p.word.waiting.eq(current.waiting),
        ]
        begins = self.i.valid & self.i.ready & self.i.p.first
        ends = gives & compressed.last
        with m.If(gives):
            m.d.sync += first.eq(compressed.last)
        with m.If(begins):
            m.d.sync += newest.eq(newest + 1)
        with m.If(ends):
            m.d.sync += oldest.eq(oldest + 1)
        held = C(0, parameters.slots)
        for i, one in enumerate(entries):
            with m.If(begins & (newest == i)):
                m.d.sync += [
                    live[i].eq(1),
                    one.address.eq(self.i.p.address),
                    one.place.eq(self.i.p.place),
                    one.waiting.eq(self.i.p.waiting),
                ]
            with m.If(ends & (oldest == i)):
                m.d.sync += live[i].eq(0)
            with m.If(live[i] & probes(self.probe, one.place)):
                m.d.comb += self.probed.eq(1)
            held = held | Mux(live[i], one.waiting, 0)
        m.d.comb += [self.held.eq(held), self.idle.eq(~live.any())]
        return m
