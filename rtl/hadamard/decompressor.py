"""The decompressor of the Hadamard format: compressed blocks in, bus words of floats out, one word a cycle.

    i --> Unpacker --blocks--> Reader --integers--> Composer --words--> Narrower --> o

Every field lies at a fixed place. The reader transforms the levels that they name, which are small integers,
without any loss; only then the composer multiplies by the block's scale.
"""

from collections.abc import Sequence

from amaranth import Cat, Module, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from golden import HadamardFormat

from ..stream import NUMBER_BITS, BlockJoiner, DelayLine, Engine, Narrower, Switch, Unpacker, word_layout
from .composer import Composer
from .counter import BlockCounter
from .engine import HadamardEngine
from .reader import Reader

__all__ = ["HadamardDecompressor"]


class HadamardDecompressor(wiring.Component):
    """Decompresses a stream of blocks of ``fmt.target`` bytes, packed end to end.

    Throughput: one bus word of values a cycle while neither end stalls; a block smaller than four bus words
    takes four cycles. Latency: a block's first word is offered :meth:`latency` cycles after the last word of
    its compressed bytes was taken, unless blocks before it are still being sent.
    Back-pressure on either end stalls it without loss. After reset it holds nothing.

    A block with an invalid header becomes zeros with ``error`` set; so does one that the end of its tensor
    cuts short. The blocks after it are decoded as usual, and every input word with ``last`` leads to exactly
    one output word with ``last``.

    Args:
        fmt: a Hadamard format.
        bus_bytes: bytes of a word on either side: 16, 32, 64 or 128.
        single: each tensor is one whole block, and there is one format: that takes less logic.

    Members:
        i: the compressed blocks, as :class:`rtl.HadamardCompressor` sends them; ``first`` is the number of
            the tensor's first block.
        o: words of values, whole blocks; see :func:`rtl.stream.word_layout`. ``error`` is set in the words
            of a block that could not be decoded.

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
                "o": Out(stream.Signature(word_layout(bus_bytes, error=True))),
            }
        )

    geometry = HadamardEngine

    @staticmethod
    def latency(engine: Engine) -> int:
        """Cycles from the last word of a block's bytes to the first of its values."""
        stages = 1 + _waits(engine) + Reader.latency(engine) + Composer.latency(engine)
        return stages + engine.joined_cycles

    def elaborate(self, platform):
        m = Module()
        engine, switch = self.engine, self.switch
        if self._single:
            unpacker = BlockJoiner(engine.target, engine.bus_bytes)
        else:
            targets = {fmt.target for fmt in engine.formats}
            sizes = {size: switch.when(lambda fmt, size=size: fmt.target == size) for size in sorted(targets)}
            unpacker = Unpacker(engine.target, engine.bus_bytes, sizes)
        m.submodules.unpacker = unpacker
        m.submodules.counter = counter = BlockCounter()
        m.submodules.reader = reader = Reader(engine, switch)
        m.submodules.composer = composer = Composer(engine, switch)
        m.submodules.narrower = narrower = Narrower(engine, switch)
        starts = Signal(init=1)  # the next word is a tensor's first
        takes = self.i.valid & self.i.ready
        with m.If(takes):
            m.d.sync += starts.eq(self.i.p.last)
        m.d.comb += [
            unpacker.i.valid.eq(self.i.valid),
            *(unpacker.i.p[name].eq(self.i.p[name]) for name in ("data", "last", "empty")),
            self.i.ready.eq(unpacker.i.ready),
            counter.load.eq(takes & starts),
            counter.first.eq(self.i.p.first),
        ]
        if _waits(engine):
            self._wait(m, unpacker, counter, reader)
        else:
            wiring.connect(m, unpacker.o, reader.i)
            m.d.comb += [counter.count.eq(reader.begins), reader.number.eq(counter.number)]
        wiring.connect(m, reader.o, composer.i)
        wiring.connect(m, composer.o, narrower.i)
        wiring.connect(m, narrower.o, wiring.flipped(self.o))
        return m

    def _wait(
        self, m: Module, unpacker: Unpacker | BlockJoiner, counter: BlockCounter, reader: Reader
    ) -> None:
        """A block, with its number, waits outside the unpacker, which gathers the next one meanwhile."""
        block = Value.cast(unpacker.o.payload)
        m.submodules.waiting = waiting = DelayLine(len(block) + NUMBER_BITS, 1)
        m.d.comb += [
            waiting.i.valid.eq(unpacker.o.valid),
            waiting.i.payload.eq(Cat(block, counter.number)),
            unpacker.o.ready.eq(waiting.i.ready),
            counter.count.eq(waiting.i.valid & waiting.i.ready),
            reader.i.valid.eq(waiting.o.valid),
            Cat(Value.cast(reader.i.payload), reader.number).eq(waiting.o.payload),
            waiting.o.ready.eq(reader.i.ready),
        ]


def _waits(engine: Engine) -> bool:
    """Whether blocks come in several bus words, so that one has to wait while the next is gathered."""
    return engine.target > engine.bus_bytes
