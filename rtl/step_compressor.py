"""The compressor of the step format: bus words of floats in, compressed blocks out, one word a cycle.

    i --> Widener --> Aligner --> Estimator --> Chooser --> Refiner --> Layer --> Packer --> o

Each part needs to know something of a whole block before it can go on, so each holds a block until it does.
"""

from amaranth import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from golden import StepFormat

from .engine import Engine, StepEngine
from .gearbox import Packer
from .lanes import Widener
from .step_aligner import Aligner
from .step_chooser import Chooser
from .step_estimator import Estimator
from .step_layer import Layer
from .step_refiner import Refiner
from .stream import word_layout

__all__ = ["StepCompressor"]


class StepCompressor(wiring.Component):
    """Compresses a stream of floats into blocks of exactly ``fmt.target`` bytes.

    Throughput: one bus word a cycle while neither end stalls; a block smaller than two bus words
    takes two cycles. Latency: the word that holds the first byte of a block's output is offered
    :meth:`latency` cycles after the last word of the block was taken, unless blocks before it are still
    being sent, or the word waits for the next block to fill it. A tensor's last block takes as long as a
    whole one, counted from its first word, however few it has.
    Back-pressure on either end stalls it without loss. After reset it holds nothing.

    Args:
        fmt: a step format.
        bus_bytes: bytes of a word on either side: 16, 32, 64 or 128.

    Members:
        i: words of values, the first in the lowest bits; see :func:`rtl.stream.word_layout`. A tensor may
            end after any byte; its last block is padded with zeros here. If the format rounds stochastically,
            the first word of each tensor holds its seed.
        o: the compressed blocks end to end. The next tensor starts on a new word.

    Raises:
        ValueError: see :class:`rtl.engine.Engine`.
    """

    def __init__(self, fmt: StepFormat, bus_bytes: int = 64):
        self.engine = StepEngine(fmt, bus_bytes)
        super().__init__(
            {
                "i": In(stream.Signature(word_layout(bus_bytes, seed=self.engine.key_bits > 0))),
                "o": Out(stream.Signature(word_layout(bus_bytes))),
            }
        )

    @staticmethod
    def latency(engine: Engine) -> int:
        """Cycles: as many as a block has steps in each of the five parts, and 14 to find what these need."""
        return 5 * engine.words + 14

    def elaborate(self, platform):
        m = Module()
        engine = self.engine
        m.submodules.widener = widener = Widener(engine)
        m.submodules.aligner = aligner = Aligner(engine)
        m.submodules.estimator = estimator = Estimator(engine)
        m.submodules.chooser = chooser = Chooser(engine)
        m.submodules.refiner = refiner = Refiner(engine)
        m.submodules.layer = layer = Layer(engine)
        m.submodules.packer = packer = Packer(engine.target, engine.bus_bytes)
        wiring.connect(m, widener.o, aligner.i)
        if engine.key_bits:
            m.d.comb += aligner.seed.eq(self.i.p.seed)
        m.d.comb += [
            widener.i.valid.eq(self.i.valid),
            *(widener.i.p[name].eq(self.i.p[name]) for name in ("data", "last", "empty")),
            self.i.ready.eq(widener.i.ready),
            *(part.go.eq(layer.go) for part in (aligner, estimator, chooser, refiner)),
            estimator.i.eq(aligner.o),
            estimator.above.eq(aligner.above),
            estimator.masked.eq(aligner.masked),
            estimator.last.eq(aligner.last),
            estimator.key.eq(aligner.key),
            chooser.i.eq(estimator.o),
            chooser.noise.eq(estimator.noise),
            chooser.estimate.eq(estimator.block),
            refiner.i.eq(chooser.o),
            refiner.noise.eq(chooser.noise_later),
            refiner.choice.eq(chooser.block),
            layer.i.eq(refiner.o),
            layer.block.eq(refiner.block),
        ]
        wiring.connect(m, layer.o, packer.i)
        wiring.connect(m, packer.o, wiring.flipped(self.o))
        return m
