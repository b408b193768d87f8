"""The compressor of the step format: bus words of floats in, compressed blocks out, one word a cycle.

    i --> Widener --> Scanner ------------> Coder --> Layer --> Packer --> o
                         `----> Chooser ------^

The scanner counts how many of a block's values escape at each step while they wait in a delay line, and the
chooser finds the finest step at which they fit. From then on each step of values passes the coder and the
layer once.
"""

from amaranth import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from golden import StepFormat

from .engine import Engine, StepEngine
from .gearbox import Packer
from .lanes import Widener
from .step_chooser import Chooser
from .step_coder import Coder
from .step_layer import Layer
from .step_scanner import Scanner
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
            the first word of each tensor holds its seed, and
            a tensor's first word is not taken for six cycles.
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
        """Cycles: four for the scanner or, to round stochastically, five; one for the chooser, three for the
        coder, and for the layer one and one a step."""
        return 9 + engine.words + (engine.fmt.rounding == "stochastic")

    def elaborate(self, platform):
        m = Module()
        engine = self.engine
        m.submodules.widener = widener = Widener(engine)
        m.submodules.scanner = scanner = Scanner(engine)
        m.submodules.chooser = chooser = Chooser(engine)
        m.submodules.coder = coder = Coder(engine)
        m.submodules.layer = layer = Layer(engine)
        m.submodules.packer = packer = Packer(engine.target, engine.bus_bytes)
        m.d.comb += [
            widener.i.valid.eq(self.i.valid),
            *(widener.i.p[name].eq(self.i.p[name]) for name in ("data", "last", "empty")),
            self.i.ready.eq(widener.i.ready),
            coder.go.eq(layer.go),
            layer.i.eq(coder.o),
        ]
        if engine.key_bits:
            m.d.comb += scanner.seed.eq(self.i.p.seed)
        wiring.connect(m, widener.o, scanner.i)
        wiring.connect(m, scanner.summaries, chooser.i)
        wiring.connect(m, scanner.steps, coder.steps)
        wiring.connect(m, chooser.o, coder.choices)
        wiring.connect(m, layer.o, packer.i)
        wiring.connect(m, packer.o, wiring.flipped(self.o))
        return m
