"""The engines that are tested, side by side behind the same streams."""

from collections.abc import Sequence

from amaranth import Module, ResetInserter, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from golden import Format

from ..ports import COMPRESSORS, DECOMPRESSORS, core_of
from ..stream import FullSlice, word_layout

__all__ = ["Engines"]


class Engines(wiring.Component):
    """Compressors and decompressors of several formats, of which one pair works, behind register slices.

    Args:
        formats: with a fixed target.
        bus_bytes: bytes of a word.

    Members:
        format: which one works; it changes only together with ``clear``.
        clear: they are emptied.
        uncompressed, compressed: streams into and out of the compressor.
        stored, given: the same of the decompressor.
    """

    def __init__(self, formats: Sequence[Format], bus_bytes: int):
        self._pairs = [
            (core_of(COMPRESSORS, fmt)(fmt, bus_bytes), core_of(DECOMPRESSORS, fmt)(fmt, bus_bytes))
            for fmt in formats
        ]
        self._layouts = {
            "uncompressed": word_layout(bus_bytes, first=True),
            "compressed": word_layout(bus_bytes),
            "stored": word_layout(bus_bytes, first=True),
            "given": word_layout(bus_bytes, error=True),
        }
        flows = {"uncompressed": In, "compressed": Out, "stored": In, "given": Out}
        streams = {name: flow(stream.Signature(self._layouts[name])) for name, flow in flows.items()}
        super().__init__({"format": In(8), "clear": In(1), **streams})

    def elaborate(self, platform):
        m = Module()
        slices = {name: FullSlice(layout) for name, layout in self._layouts.items()}
        for name, part in slices.items():
            m.submodules[name] = ResetInserter(self.clear)(part)
        wiring.connect(m, wiring.flipped(self.uncompressed), slices["uncompressed"].i)
        wiring.connect(m, slices["compressed"].o, wiring.flipped(self.compressed))
        wiring.connect(m, wiring.flipped(self.stored), slices["stored"].i)
        wiring.connect(m, slices["given"].o, wiring.flipped(self.given))
        for index, (compressor, decompressor) in enumerate(self._pairs):
            m.submodules[f"compressor{index}"] = ResetInserter(self.clear)(compressor)
            m.submodules[f"decompressor{index}"] = ResetInserter(self.clear)(decompressor)
            # A cycle late, so that it is no part of long paths: the slices are empty until then.
            works = Signal(name=f"works{index}")
            m.d.sync += works.eq(self.format == index)
            with m.If(works):
                for source, sink in (
                    *((slices["uncompressed"].o, compressor.i), (slices["stored"].o, decompressor.i)),
                    *((compressor.o, slices["compressed"].i), (decompressor.o, slices["given"].i)),
                ):
                    _offer(m, source, sink)
                m.d.comb += slices["uncompressed"].o.ready.eq(compressor.i.ready)
                m.d.comb += slices["stored"].o.ready.eq(decompressor.i.ready)
            # Those that do not work are empty, and offer nothing.
            m.d.comb += compressor.o.ready.eq(slices["compressed"].i.ready)
            m.d.comb += decompressor.o.ready.eq(slices["given"].i.ready)
        return m


def _offer(m, source, sink):
    """Show one stream's words to another; a field that one of them lacks is left out."""
    shared = source.p.shape().members.keys() & sink.p.shape().members.keys()
    m.d.comb += [
        sink.valid.eq(source.valid),
        *(sink.p[name].eq(source.p[name]) for name in sorted(shared)),
    ]
