"""The compressors in the way of complete blocks."""

from amaranth import Module, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from golden import Format, HadamardFormat

from ...ports import COMPRESSORS, core_of
from ..layouts import (
    TAG_BITS,
    block_number_bits,
    by_format,
    format_number_bits,
    page_tag,
    place_layout,
    probe_layout,
    probes,
    stored_layout,
)
from ..parameters import MemoryParameters
from ..queue import Queue
from ..write.slots import hold

__all__ = ["Compressors"]

# Blocks that are in the compressor, or in all of several, or wait for their turn behind them.
_INSIDE, _INSIDE_SEVERAL = 8, 16


class Compressors(wiring.Component):
    """Compresses blocks of several formats, and gives them in the order in which they came.

    To a compressor each block is a tensor of its own: what comes behind it does not hold it up, and whatever
    travels with a block waits in a table beside. What a quicker compressor gives while a slower one still
    works waits behind it, so that formats in turn flow.

    Members:
        i: words of blocks: ``data``, ``first``, ``last``; a block's ``format``, its ``number``, and where it
            is stored, ``address``; its ``place``; and the slots that are ``waiting`` for it.
        o: words of compressed blocks, see :func:`rtl.memory.layouts.stored_layout`, with ``last``.
        probe, probed: whether one of some blocks is here, or one of another page with the same tag.
        probe_anew: from the next cycle on of others.
        to_come: one of them has yet to come; what comes meanwhile counts, and nothing else that comes.
        held: slots that wait for one.
        idle: none is here.
    """

    def __init__(self, parameters: MemoryParameters):
        self._parameters = parameters
        about = {
            "format": format_number_bits(parameters),
            "address": parameters.address_bits,
            "waiting": parameters.slots,
        }
        word = {"data": 8 * parameters.bus_bytes, "first": 1, "last": 1}
        word |= {"number": block_number_bits(parameters), "place": place_layout(parameters)}
        stored = data.StructLayout({"word": stored_layout(parameters), "last": 1})
        self._entry = data.StructLayout(about)
        super().__init__(
            {
                "i": In(stream.Signature(data.StructLayout(word | about))),
                "o": Out(stream.Signature(stored)),
                "probe": In(probe_layout(parameters)),
                "probe_anew": In(1),
                "to_come": In(1),
                "probed": Out(1),
                "held": Out(parameters.slots),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        parameters = self._parameters
        count = _INSIDE if len(parameters.formats) == 1 else _INSIDE_SEVERAL
        m.submodules.entries = entries = Queue(self._entry, count)
        current = entries.o.p
        unit = len(self.probe.first)
        places = [
            Signal(data.StructLayout({"page": TAG_BITS, "unit": unit}), name=f"place{i}")
            for i in range(count)
        ]
        probe = Signal(data.StructLayout({"page": TAG_BITS, "first": unit, "last": unit}))
        live, is_late = Signal(count), Signal(count)
        newest, oldest = Signal(range(count)), Signal(range(count))

        passes, first = Signal(), Signal(init=1)
        m.d.comb += [
            passes.eq(~self.i.p.first | entries.i.ready),
            self.o.p.word.first.eq(first),
            self.o.p.word.address.eq(current.address),
            self.o.p.word.waiting.eq(current.waiting),
        ]
        cores = [self._add_core(m, i, fmt, passes) for i, fmt in enumerate(parameters.formats)]
        inputs, outputs = zip(*cores, strict=True)
        given = by_format(parameters, current.format, lambda i: Value.cast(outputs[i].payload))
        word = Signal(outputs[0].p.shape())
        m.d.comb += [
            Value.cast(word).eq(given),
            self.i.ready.eq(by_format(parameters, self.i.p.format, lambda i: inputs[i].ready) & passes),
            self.o.valid.eq(
                by_format(parameters, current.format, lambda i: outputs[i].valid) & entries.o.valid
            ),
            self.o.p.last.eq(word.last),
            self.o.p.word.data.eq(word.data),
            self.o.p.word.empty.eq(word.empty),
        ]
        for i, output in enumerate(outputs):
            is_turn = entries.o.valid & (current.format == i + 1)
            m.d.comb += output.ready.eq(self.o.ready & is_turn)

        gives = self.o.valid & self.o.ready
        begins = self.i.valid & self.i.ready & self.i.p.first
        ends = gives & self.o.p.last
        m.d.comb += [
            entries.i.valid.eq(begins),
            *(entries.i.p[name].eq(self.i.p[name]) for name, _ in self._entry),
            entries.o.ready.eq(ends),
            self.idle.eq(entries.empty),
        ]
        with m.If(gives):
            m.d.sync += first.eq(self.o.p.last)
        m.d.sync += [newest.eq(newest + begins), oldest.eq(oldest + ends)]
        hold(m, self.held, begins, self.i.p.waiting, newest, ends, oldest)
        m.d.comb += [
            probe.page.eq(page_tag(self.probe.page)),
            probe.first.eq(self.probe.first),
            probe.last.eq(self.probe.last),
        ]
        for i, place in enumerate(places):
            with m.If(begins & (newest == i)):
                m.d.sync += [
                    live[i].eq(1),
                    place.page.eq(page_tag(self.i.p.place.page)),
                    place.unit.eq(self.i.p.place.unit),
                ]
            with m.Elif(ends & (oldest == i)):
                m.d.sync += live[i].eq(0)
            with m.If(self.probe_anew):
                m.d.sync += is_late[i].eq(0)
            with m.Elif(begins & (newest == i)):
                m.d.sync += is_late[i].eq(~self.to_come)
            with m.If(live[i] & ~is_late[i] & probes(probe, place)):
                m.d.comb += self.probed.eq(1)
        return m

    def _add_core(self, m: Module, i: int, fmt: Format, passes: Value):
        """A format's compressor, and behind it room for as many words as it gives before it is its turn.

        Returns:
            The stream that it takes, and the one that leaves the room.
        """
        parameters = self._parameters
        kind = core_of(COMPRESSORS, fmt)
        m.submodules[f"compressor{i}"] = core = kind(fmt, parameters.bus_bytes, single=True)
        m.d.comb += [
            core.i.valid.eq(self.i.valid & (self.i.p.format == i + 1) & passes),
            core.i.p.data.eq(self.i.p.data),
            core.i.p.last.eq(self.i.p.last),
        ]
        if isinstance(fmt, HadamardFormat):
            m.d.comb += core.i.p.first.eq(self.i.p.number)
        depth = self._words_ahead(i)
        if not depth:
            return core.i, core.o
        m.submodules[f"waits{i}"] = waits = Queue(core.o.p.shape(), depth)
        wiring.connect(m, core.o, waits.i)
        return core.i, waits.o

    def _words_ahead(self, i: int) -> int:
        """Words of compressed blocks that a compressor gives while the slowest works."""
        parameters = self._parameters
        cycles = []
        for fmt in parameters.formats:
            kind = core_of(COMPRESSORS, fmt)
            cycles.append(kind.latency(kind.geometry(fmt, parameters.bus_bytes)))
        blocks = -(-(max(cycles) - cycles[i]) // parameters.words[i])
        return blocks * -(-parameters.formats[i].target // parameters.bus_bytes)
