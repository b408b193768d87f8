"""The compressor: bus words of floats in, compressed blocks out, one word a cycle.

    i --> Widener --> Scanner ------------> Coder --> Placer --> Packer --> o
                         `----> Chooser ------^

What a block keeps is known only when all of it has been seen. The scanner therefore reduces each block to
a summary while its words wait in a delay line. The chooser turns the summary into base and flags. The coder
sends the words on, their exponents as deltas, and moves the mantissa planes that stay to the front. The
placer moves all planes behind the exponent planes that stay, and rounds what does not fit. The stages work
on successive blocks at the same time.
"""

from collections.abc import Sequence

from amaranth import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from golden import PlaneFormat

from ..stream import BlockSplitter, Engine, Packer, Switch, Widener, word_layout
from .chooser import Chooser
from .coder import Coder
from .engine import PlaneEngine
from .placer import Placer
from .scanner import Scanner

__all__ = ["Compressor"]


class Compressor(wiring.Component):
    """Compresses a stream of floats into blocks of exactly ``fmt.target`` bytes.

    Throughput: one bus word a cycle while neither end stalls; a block smaller than two bus words
    takes two cycles. Latency: the word that holds the first byte of a block's output is offered
    :meth:`latency` cycles after the last word of the block was taken, unless blocks before it are still
    being sent, or the word waits for the next block to fill it. A tensor's last block takes as long as a
    whole one, counted from its first word, however few it has, or less with delay lines in memories.
    Back-pressure on either end stalls it without loss. After reset it holds nothing.

    Args:
        fmt: a format with a fixed target; or several for :class:`rtl.RuntimeCompressor` to switch between.
        bus_bytes: bytes of a word on either side: 16, 32, 64 or 128.
        single: each tensor is one whole block, and there is one format: that takes less logic.

    Members:
        i: words of values, the first in the lowest bits; see :func:`rtl.stream.word_layout`. A tensor may
            end after any byte; its last block is padded with zeros here.
        o: the compressed blocks end to end. The next tensor starts on a new word.

    Raises:
        ValueError: see :class:`rtl.stream.Engine`.
    """

    def __init__(
        self, fmt: PlaneFormat | Sequence[PlaneFormat], bus_bytes: int = 64, *, single: bool = False
    ):
        self._single = single
        self.engine = PlaneEngine(fmt, bus_bytes)
        self.switch = Switch(self.engine.formats)
        word = word_layout(bus_bytes)
        super().__init__({"i": In(stream.Signature(word)), "o": Out(stream.Signature(word))})

    geometry = PlaneEngine

    @staticmethod
    def latency(engine: Engine) -> int:
        """Cycles: two for the scanner, one each for chooser and coder, one a word for the placer, and one if
        words are gathered from bus words."""
        return 2 + 1 + 1 + engine.words + engine.gathered_cycles

    def elaborate(self, platform):
        m = Module()
        engine, switch = self.engine, self.switch
        m.submodules.widener = widener = Widener(engine, switch)
        m.submodules.scanner = scanner = Scanner(engine)
        m.submodules.chooser = chooser = Chooser(engine, switch)
        m.submodules.coder = coder = Coder(engine, switch)
        m.submodules.placer = placer = Placer(engine, switch)
        if self._single:
            packer = BlockSplitter(engine.target, engine.bus_bytes)
        else:
            packer = Packer(engine.target, engine.bus_bytes, engine.grain)
        m.submodules.packer = packer

        wiring.connect(m, wiring.flipped(self.i), widener.i)
        wiring.connect(m, widener.o, scanner.i)
        wiring.connect(m, scanner.summaries, chooser.i)
        wiring.connect(m, chooser.o, coder.choices)
        wiring.connect(m, scanner.words, coder.i)
        wiring.connect(m, coder.o, placer.i)
        wiring.connect(m, placer.o, packer.i)
        wiring.connect(m, packer.o, wiring.flipped(self.o))
        return m
