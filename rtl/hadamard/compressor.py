"""The compressor of the Hadamard format: bus words of floats in, compressed blocks out, one word a cycle.

    i --> Widener --> Aligner --> Transform --> Quantiser ------------> Collector --> Packer --> o
                           |                     ^    `--> Product --> Scaler ---^
                           `--> Energy --> Thresholds                    ^
                                   `-------------------------------------'

A block waits in the aligner until its largest exponent is known. From then on its words pass the transform
and the quantiser once, all stages moving on together. The squares of the aligned values tell how large
coefficients are to be expected, and so where the thresholds between levels are, before the first coefficient
is there.
"""

from collections.abc import Sequence

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from golden import HadamardFormat

from ..stream import NUMBER_BITS, BlockSplitter, Engine, Packer, Switch, Widener, word_layout
from .aligner import Aligner
from .collector import Collector, fills_words
from .energy import Energy, Thresholds
from .engine import HadamardEngine
from .quantiser import Product, Quantiser
from .scaler import Scaler
from .timeline import Timeline
from .transform import Transform

__all__ = ["HadamardCompressor"]


class HadamardCompressor(wiring.Component):
    """Compresses a stream of floats into blocks of exactly ``fmt.target`` bytes.

    Throughput: one bus word a cycle while neither end stalls; a block smaller than four bus words takes four
    cycles. Latency: the word that holds the first byte of a block's output is offered :meth:`latency` cycles
    after the last word of the block was taken, unless blocks before it are still being sent, or the word
    waits for the next block to fill it. A tensor's last block takes as long as a whole one, counted from its
    first word, however few it has. Back-pressure on either end stalls it without loss. After reset it holds
    nothing.

    Args:
        fmt: a Hadamard format.
        bus_bytes: bytes of a word on either side: 16, 32, 64 or 128.
        single: each tensor is one whole block, and there is one format: that takes less logic.

    Members:
        i: words of values, the first in the lowest bits; see :func:`rtl.stream.word_layout`. A tensor may
            end after any byte; its last block is padded with zeros here. ``first`` is the number of the
            tensor's first block.
        o: the compressed blocks end to end. The next tensor starts on a new word.

    Raises:
        ValueError: see :class:`rtl.stream.Engine`.
    """

    def __init__(
        self, fmt: HadamardFormat | Sequence[HadamardFormat], bus_bytes: int = 64, *, single: bool = False
    ):
        self._single = single
        self.engine = HadamardEngine(fmt, bus_bytes)
        self.switch = Switch(self.engine.formats)
        super().__init__(
            {
                "i": In(stream.Signature(word_layout(bus_bytes, first=True))),
                "o": Out(stream.Signature(word_layout(bus_bytes))),
            }
        )

    geometry = HadamardEngine

    @staticmethod
    def latency(engine: Engine) -> int:
        """Cycles from a block's last word to the first of its bytes."""
        return engine.gathered_cycles + Aligner.LATENCY + _Schedule(engine).ends + 1

    def elaborate(self, platform):
        m = Module()
        engine, switch = self.engine, self.switch
        m.submodules.widener = widener = Widener(engine, switch)
        m.submodules.aligner = aligner = Aligner(engine, switch)
        m.submodules.energy = energy = Energy(engine)
        m.submodules.thresholds = thresholds = Thresholds(engine)
        m.submodules.transform = transform = Transform(engine)
        m.submodules.quantiser = quantiser = Quantiser(engine, switch)
        m.submodules.product = product = Product(engine, switch)
        m.submodules.scaler = scaler = Scaler(engine, switch)
        fills = fills_words(engine) and not self._single
        size = engine.bus_bytes if fills else engine.target
        m.submodules.collector = collector = Collector(engine, switch, size)
        if self._single:
            packer = BlockSplitter(size, engine.bus_bytes)
        else:
            packer = Packer(size, engine.bus_bytes, size if fills else engine.grain)
        m.submodules.packer = packer

        go = collector.go
        m.d.comb += [
            part.go.eq(go) for part in (aligner, energy, thresholds, transform, quantiser, product, scaler)
        ]
        schedule = _Schedule(engine)
        time = Timeline(m, go, aligner.o.first, engine.words)

        m.d.comb += [
            widener.i.valid.eq(self.i.valid),
            *(widener.i.p[name].eq(self.i.p[name]) for name in ("data", "last", "empty")),
            self.i.ready.eq(widener.i.ready),
            aligner.first.eq(self._first(m)),
            Cat(energy.magnitudes).eq(Cat(lane.magnitude for lane in aligner.o.lanes)),
            energy.first.eq(aligner.o.first),
            energy.summed.eq(time.at(schedule.energy - Energy.TO_ENERGY)),
            thresholds.energy.eq(time.keep("to_thresholds", energy.o, schedule.energy, schedule.thresholds)),
            thresholds.next.eq(time.at(schedule.thresholds)),
            transform.i.eq(_delayed(m, go, "aligned", aligner.o, schedule.transform)),
            transform.i.first.eq(time.at(schedule.transform)),
            quantiser.i.eq(transform.o),
            quantiser.thresholds.eq(thresholds.o),
            product.i.eq(quantiser.o),
            product.summed.eq(time.at(schedule.product - Product.TO_PRODUCT)),
            scaler.first.eq(time.at(schedule.product)),
            scaler.product.eq(product.o),
            scaler.energy.eq(time.keep("energy", energy.o, schedule.energy, schedule.product)),
            scaler.top.eq(time.keep("top", aligner.block.top, 0, schedule.product)),
            scaler.special.eq(time.keep("special", aligner.block.special, 0, schedule.ends)),
            collector.first.eq(time.at(schedule.ends - engine.words + 1)),
            collector.fields.eq(
                _delayed(
                    m, go, "fields", quantiser.fields, schedule.ends - engine.words + 1 - schedule.fields
                )
            ),
            collector.ends.eq(time.at(schedule.ends)),
            collector.header.eq(scaler.header),
            collector.zeros.eq(scaler.zeros),
            collector.last.eq(time.keep("last", aligner.block.last, 0, schedule.ends)),
        ]
        wiring.connect(m, widener.o, aligner.i)
        wiring.connect(m, collector.o, packer.i)
        wiring.connect(m, packer.o, wiring.flipped(self.o))
        return m

    def _first(self, m: Module) -> Value:
        """The number of the first block of the tensor whose first word comes to the aligner."""
        engine = self.engine
        if not engine.gathered_cycles:
            return self.i.p.first
        # While a word is gathered from bus words, others than the first are at the input.
        starts = Signal(init=1)
        kept = Signal(NUMBER_BITS, reset_less=True)
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += starts.eq(self.i.p.last)
            with m.If(starts):
                m.d.sync += kept.eq(self.i.p.first)
        gathers = self.switch.when(lambda fmt: engine.bytes_as(fmt.float_type) > engine.bus_bytes)
        return Mux(gathers, kept, self.i.p.first)


def _delayed(m: Module, go: Value, name: str, value, cycles: int):
    for i in range(cycles):
        later = Signal(value.shape(), name=f"{name}_after{i + 1}", reset_less=True)
        with m.If(go):
            m.d.sync += later.eq(value)
        value = later
    return value


class _Schedule:
    """When what is there, in cycles since a block's first word left the aligner.

    Attributes:
        energy: the block's energy.
        thresholds: the energy is taken for them.
        transform: the first word is at the transform.
        fields: its fields are there.
        product: the block's product is there.
        ends: the fields of its last word are at the collector, and its header.
    """

    def __init__(self, engine: HadamardEngine):
        self.energy = engine.words - 1 + Energy.TO_SUM + Energy.TO_ENERGY
        ready = self.energy + Thresholds.latency(engine)
        self.transform = max(ready - Transform.latency(engine), 0)
        coefficients = self.transform + Transform.latency(engine)
        self.thresholds = coefficients - Thresholds.latency(engine)
        self.fields = coefficients + 1
        self.product = self.fields + engine.words - 1 + Product.TO_SUM + Product.TO_PRODUCT
        self.ends = self.product + Scaler.LATENCY
