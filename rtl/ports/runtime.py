"""Engines whose format is chosen while they run."""

from collections.abc import Sequence

from amaranth import Cat, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from golden import Format

from .cores import COMPRESSORS, DECOMPRESSORS, Cores, core_of

__all__ = ["RuntimeCompressor", "RuntimeDecompressor", "config_layout"]

_MOST_INSIDE = 63  # tensors, each at least a word: more than an engine has room for


def config_layout(formats: Sequence[Format]) -> data.StructLayout:
    """Payload of a stream of configurations.

    Members:
        format: index in the engine's list of formats; one beyond its end counts as 0.
        bypass: words pass unchanged, in the same cycle, whatever the format.
    """
    return data.StructLayout({"format": range(max(len(formats), 2)), "bypass": 1})


class _RuntimeEngine(wiring.Component):
    _cores: Cores

    def __init__(self, formats: Sequence[Format], bus_bytes: int = 64):
        self._inner = core_of(self._cores, formats)(formats, bus_bytes)
        self.engine = self._inner.engine
        super().__init__(
            {
                "config": In(stream.Signature(config_layout(formats))),
                "i": In(stream.Signature(self._inner.i.p.shape())),
                "o": Out(stream.Signature(self._inner.o.p.shape())),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles in the format that takes longest, as without a choice; none in bypass."""
        return self._inner.latency(self.engine)

    def elaborate(self, platform):
        m = Module()
        m.submodules.inner = inner = self._inner

        config = Signal(self.config.p.shape())
        others = [config.format == i for i in range(1, len(self.engine.formats))]
        m.d.comb += inner.switch.is_format.eq(Cat(~Cat(others).any(), others))

        # A configuration waits until every tensor that began has left; no other begins meanwhile. A word that
        # was shown to the engine stays shown.
        is_open = Signal()  # a tensor has begun and not ended, or its first word is shown
        inside = Signal(range(_MOST_INSIDE + 1))  # tensors that have ended at the input and not at the output
        shown = Signal()
        m.d.comb += [
            shown.eq(self.i.valid & (is_open | ~self.config.valid)),
            # The last term is never low alone; by it the contract at `o` holds from any state at all, and is
            # proven by induction.
            self.config.ready.eq(~is_open & (inside == 0) & ~inner.o.valid),
        ]
        taken = shown & self.i.ready
        ends = taken & self.i.p.last
        leaves = self.o.valid & self.o.ready & self.o.p.last
        with m.If(shown):
            m.d.sync += is_open.eq(~ends)
        m.d.sync += inside.eq(inside + ends - leaves)
        with m.If(self.config.valid & self.config.ready):
            m.d.sync += config.eq(self.config.payload)

        m.d.comb += inner.i.payload.eq(self.i.payload)
        with m.If(config.bypass):
            m.d.comb += [
                self.o.valid.eq(shown),
                self.o.p.data.eq(self.i.p.data),
                self.o.p.last.eq(self.i.p.last),
                self.o.p.empty.eq(self.i.p.empty),
                self.i.ready.eq(shown & self.o.ready),
            ]
        with m.Else():
            m.d.comb += [
                inner.i.valid.eq(shown),
                self.o.valid.eq(inner.o.valid),
                self.o.payload.eq(inner.o.payload),
                inner.o.ready.eq(self.o.ready),
                self.i.ready.eq(shown & inner.i.ready),
            ]
        return m


class RuntimeCompressor(_RuntimeEngine):
    """A format's compressor that a stream of configurations switches between rates and types, or bypasses.

    Throughput: one bus word a cycle while neither end stalls, in every format whose uncompressed block is at
    least two bus words, of the Hadamard format four. Latency: as of a compressor that moves as many values a
    cycle as the bus holds of the shortest type, :attr:`latency` cycles in the format that takes longest; none
    in bypass.
    A configuration is taken at the block boundary between two tensors: when the last one has left the engine,
    before the next one begins, which waits for it; at once while the engine is empty. It holds until the
    next configuration.
    After reset the engine holds nothing and has its first format.

    Args:
        formats: with a fixed target, all of one scheme and of the same block.
        bus_bytes: bytes of a word on either side: 16, 32, 64 or 128.

    Members:
        config: see :func:`config_layout`.
        i, o: as the compressor's. ``i.ready`` is low while there is no word.

    Raises:
        ValueError: see :class:`rtl.stream.Engine`, or the formats are of several schemes.
    """

    _cores = COMPRESSORS


class RuntimeDecompressor(_RuntimeEngine):
    """A format's decompressor that is switched as a :class:`RuntimeCompressor` is.

    Args, Members, Raises: as there.
    """

    _cores = DECOMPRESSORS
