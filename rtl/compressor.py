"""The compressor: bus words of floats in, compressed blocks out, one word a cycle.

    i --> [Splitter] --> Scanner --> Chooser --> Ranker --> Placer --> Packer --> o
                            |           `------> Coder ------^
                            `--- delay line -------^

What a block keeps is known only when all of it has been seen. The scanner therefore reduces each block to
a summary while its words wait in a delay line. The chooser turns the summary into base and flags, the
ranker these into places; meanwhile the coder starts to send the words on, their exponents as deltas, and
the placer moves their bits through the plane network, rounding on the way. The stages work on successive
blocks at the same time.
"""

from amaranth import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from golden import PlaneFormat

from .engine import Engine
from .gearbox import Packer
from .placer import Coder, Placer
from .planner import Chooser, Ranker
from .scanner import Scanner
from .stream import Splitter, word_layout

__all__ = ["Compressor"]


class Compressor(wiring.Component):
    """Compresses a stream of floats into blocks of exactly ``fmt.target`` bytes.

    Throughput: one bus word a cycle while neither end stalls; a block smaller than two bus words
    takes two cycles. Latency: the word that holds the first byte of a block's output is offered
    :meth:`latency` cycles after the last word of the block was taken, unless blocks before it are still
    being sent, or the word waits for the next block to fill it.
    Back-pressure on either end stalls it without loss. After reset it holds nothing.

    Args:
        fmt: a format with a fixed target.
        bus_bytes: bytes of a word on either side: 16, 32, 64 or 128.

    Members:
        i: words of values, the first in the lowest bits. ``last`` ends a tensor, in any word; what
            that word does not fill must be zero and counts as values, the rest of the block is padded here.
        o: the compressed blocks end to end. A tensor's last word carries ``last`` and is filled with
            zeros; the next tensor starts on a new word.

    Raises:
        ValueError: see :class:`rtl.engine.Engine`.
    """

    def __init__(self, fmt: PlaneFormat, bus_bytes: int = 64):
        self.engine = Engine(fmt, bus_bytes)
        word = word_layout(bus_bytes)
        super().__init__({"i": In(stream.Signature(word)), "o": Out(stream.Signature(word))})

    @staticmethod
    def latency(engine: Engine) -> int:
        """Cycles: two for the scanner, one each for chooser and ranker, one a word for the placer."""
        return 2 + 1 + 1 + engine.words

    def elaborate(self, platform):
        m = Module()
        engine = self.engine
        m.submodules.scanner = scanner = Scanner(engine)
        m.submodules.chooser = chooser = Chooser(engine)
        m.submodules.ranker = ranker = Ranker(engine)
        m.submodules.coder = coder = Coder(engine)
        m.submodules.placer = placer = Placer(engine)
        m.submodules.packer = packer = Packer(engine.fmt.target, engine.bus_bytes)

        if engine.is_narrow:
            m.submodules.splitter = splitter = Splitter(engine.bus_bytes, engine.word_bytes)
            wiring.connect(m, wiring.flipped(self.i), splitter.i)
            wiring.connect(m, splitter.o, scanner.i)
        else:
            wiring.connect(m, wiring.flipped(self.i), scanner.i)
        wiring.connect(m, scanner.summaries, chooser.i)
        wiring.connect(m, chooser.to_ranker, ranker.i)
        wiring.connect(m, chooser.to_coder, coder.choices)
        wiring.connect(m, scanner.words, coder.i)
        wiring.connect(m, ranker.o, placer.plans)
        wiring.connect(m, coder.o, placer.words)
        wiring.connect(m, placer.o, packer.i)
        wiring.connect(m, packer.o, wiring.flipped(self.o))
        return m
