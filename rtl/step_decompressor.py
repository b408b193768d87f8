"""The decompressor of the step format: compressed blocks in, bus words of floats out, one word a cycle.

    i --> Unpacker --blocks--> Reader --integers--> Composer --words--> Narrower --> o

The reader finds the fields of a block and adds them up, the composer makes floats of what comes out.
"""

from amaranth import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from golden import StepFormat

from .engine import Engine, StepEngine
from .gearbox import Unpacker
from .lanes import Narrower
from .step_composer import Composer
from .step_reader import Reader
from .stream import word_layout

__all__ = ["StepDecompressor"]


class StepDecompressor(wiring.Component):
    """Decompresses a stream of blocks of ``fmt.target`` bytes, packed end to end.

    Throughput: one bus word of values a cycle while neither end stalls; a block smaller than two
    bus words takes two cycles. Latency: a block's first word is offered :meth:`latency` cycles after the
    last word of its compressed bytes was taken, unless blocks before it are still being sent.
    Back-pressure on either end stalls it without loss. After reset it holds nothing.

    A block with an invalid header (docs/format.md, "Invalid blocks") becomes zeros with ``error`` set; so
    does one that the end of its tensor cuts short. The blocks after it are decoded as usual, and every
    input word with ``last`` leads to exactly one output word with ``last``.

    Args:
        fmt: a step format.
        bus_bytes: bytes of a word on either side: 16, 32, 64 or 128.

    Members:
        i: the compressed blocks, as ``fmt.compress`` gives them, of a tensor after the other.
        o: words of values, whole blocks; see :func:`rtl.stream.word_layout`. ``error`` is set in the words
            of a block that could not be decoded.

    Raises:
        ValueError: see :class:`rtl.engine.Engine`.
    """

    def __init__(self, fmt: StepFormat, bus_bytes: int = 64):
        self.engine = StepEngine(fmt, bus_bytes)
        super().__init__(
            {
                "i": In(stream.Signature(word_layout(bus_bytes))),
                "o": Out(stream.Signature(word_layout(bus_bytes, error=True))),
            }
        )

    @staticmethod
    def latency(engine: Engine) -> int:
        """Cycles: one for the unpacker, two for the reader, two for the composer, and those that join."""
        return 1 + 2 + 2 + engine.joined_cycles

    def elaborate(self, platform):
        m = Module()
        engine = self.engine
        m.submodules.unpacker = unpacker = Unpacker(engine.target, engine.bus_bytes)
        m.submodules.reader = reader = Reader(engine)
        m.submodules.composer = composer = Composer(engine)
        m.submodules.narrower = narrower = Narrower(engine)
        wiring.connect(m, wiring.flipped(self.i), unpacker.i)
        wiring.connect(m, unpacker.o, reader.i)
        wiring.connect(m, reader.o, composer.i)
        wiring.connect(m, composer.o, narrower.i)
        wiring.connect(m, narrower.o, wiring.flipped(self.o))
        return m
