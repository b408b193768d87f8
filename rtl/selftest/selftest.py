"""The self-test: engines between memories, a generator and a checker, at the command of a host."""

from collections.abc import Sequence

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from golden import Format

from .commands import Commands
from .engines import Engines
from .generator import Generator
from .requests import Place, request_layout, verdict_layout
from .signature import with_word

__all__ = ["SelfTest"]


class SelfTest(wiring.Component):
    """Engines of several formats between two memories, commanded over a UART.

    A run goes at full rate: a word of the generator, or of the memory of values, into a compressor in each
    cycle; what it gives into the stored memory, which is a FIFO then; from there into the decompressor; and
    what that gives into the memory of values. Signatures are taken of both.

    Args:
        formats: with a fixed target; each has its own engines.
        bus_bytes: bytes of a word: 16, 32, 64 or 128.
        divisor: cycles of a bit of the UART.
        about: what the design says of itself.
        memory_bytes: of each of the two memories, a power of two.

    Members:
        rx, tx: the UART, with the frames of :mod:`rtl.selftest.frames`; what stands in them is told by
            :mod:`rtl.selftest.requests`.
        busy: a run goes on.

    Raises:
        ValueError: see :class:`rtl.stream.Engine` and :class:`rtl.selftest.UartReceiver`.
    """

    def __init__(
        self, formats: Sequence[Format], bus_bytes: int, divisor: int, about: bytes, memory_bytes: int = 32768
    ):
        self._bus_bytes = bus_bytes
        self._about = about
        self._depth = memory_bytes // bus_bytes
        self._commands = Commands(bus_bytes, divisor)
        self._engines = Engines(formats, bus_bytes)
        super().__init__({"rx": In(1, init=1), "tx": Out(1, init=1), "busy": Out(1)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.commands = commands = self._commands
        m.submodules.engines = engines = self._engines
        job, verdict = Signal(request_layout()), Signal(verdict_layout(self._bus_bytes))
        m.d.comb += [commands.rx.eq(self.rx), self.tx.eq(commands.tx), self.busy.eq(verdict.busy)]
        m.d.comb += [engines.clear.eq(commands.starts), engines.format.eq(job.format)]
        with m.If(commands.starts):
            m.d.sync += [job.eq(commands.request), verdict.eq(0), verdict.busy.eq(1)]
        m.d.sync += verdict.lost.eq(commands.lost)

        uncompressed, stored = self._memories(m)
        self._feed(m, uncompressed, job, verdict)
        self._queue(m, stored, job, verdict)
        self._collect(m, uncompressed, verdict)
        self._answer(m, uncompressed, stored, verdict)
        return m

    def _memories(self, m):
        """Write and read port of either; while no run goes on the host has them, a byte at a time."""
        ports, commands = [], self._commands
        for place in (Place.UNCOMPRESSED, Place.STORED):
            m.submodules[place.name.lower()] = memory = Memory(
                shape=8 * self._bus_bytes, depth=self._depth, init=[]
            )
            write, read = memory.write_port(granularity=8), memory.read_port()
            m.d.comb += [
                *(port.addr.eq(commands.request.address) for port in (write, read)),
                read.en.eq(1),
                write.data.eq(commands.byte.replicate(self._bus_bytes)),
                write.en.bit_select(commands.offset, 1).eq(
                    commands.writes & (commands.request.place == place)
                ),
            ]
            ports.append((write, read))
        return ports

    def _feed(self, m, memory, job, verdict):
        """Words to be compressed, of the generator or the memory of values."""
        _, read = memory
        words, starts = self._engines.uncompressed, self._commands.starts
        m.submodules.generator = generator = Generator(self._bus_bytes)
        is_generated, is_uncompressed = job.place == Place.GENERATED, job.place == Place.UNCOMPRESSED
        fetched = Signal(32)
        is_there = self._fetch(m, read, fetched, Mux(is_uncompressed, job.count, 0), words.ready)
        m.d.comb += [
            *(generator.seed.eq(self._commands.request.seed), generator.start.eq(starts)),
            *(generator.mask.eq(job.mask), generator.ones.eq(job.ones), generator.next.eq(words.ready)),
            words.valid.eq(is_there | (self.busy & is_generated & (verdict.taken != job.count))),
            words.p.data.eq(Mux(is_generated, generator.word, read.data)),
            words.p.last.eq(verdict.taken == job.count - 1),
            words.p.first.eq(job.first),
        ]
        with m.If(words.valid & words.ready):
            m.d.sync += verdict.taken.eq(verdict.taken + 1)

    def _queue(self, m, memory, job, verdict):
        """Compressed words, through the stored memory as a FIFO; or what the host has put there."""
        write, read = memory
        compressed, words = self._engines.compressed, self._engines.stored
        # What goes with the compressed words; those of the host end with its request.
        shape = data.StructLayout({"last": 1, "empty": range(self._bus_bytes)})
        m.submodules.ends = ends = Memory(shape=shape, depth=self._depth, init=[])
        write_end, read_end = ends.write_port(), ends.read_port()
        written, fetched = Signal(32), Signal(32)
        is_stored = job.place == Place.STORED
        m.d.comb += [
            compressed.ready.eq(written - fetched != self._depth),
            *(write_end.addr.eq(write.addr), read_end.addr.eq(read.addr), read_end.en.eq(read.en)),
            *(write_end.data[name].eq(compressed.p[name]) for name in shape.members),
        ]
        with m.If(self.busy):
            m.d.comb += [write.addr.eq(written), write.data.eq(compressed.p.data)]
            with m.If(compressed.valid & compressed.ready):
                m.d.comb += [write.en.eq(~0), write_end.en.eq(1)]
                m.d.sync += written.eq(written + 1)
        with m.If(self._commands.starts):
            m.d.sync += written.eq(0)
        is_there = self._fetch(m, read, fetched, Mux(is_stored, job.count, written), words.ready)
        is_end = fetched == job.count
        m.d.comb += [
            *(words.valid.eq(is_there), words.p.data.eq(read.data), words.p.first.eq(job.first)),
            words.p.last.eq(Mux(is_stored, is_end, read_end.data.last)),
            words.p.empty.eq(Mux(is_stored, Mux(is_end, job.empty, 0), read_end.data.empty)),
        ]
        self._check(m, words, verdict.stored, verdict.stored_signature)

    def _collect(self, m, memory, verdict):
        """What comes out, into the memory of values; its last word ends the run."""
        write, _ = memory
        words = self._engines.given
        m.d.comb += words.ready.eq(1)
        with m.If(self.busy):
            m.d.comb += [write.addr.eq(verdict.given), write.data.eq(words.p.data)]
            m.d.comb += write.en.eq(words.valid.replicate(self._bus_bytes))
            m.d.sync += verdict.cycles.eq(verdict.cycles + 1)
            with m.If(words.valid):
                m.d.sync += verdict.errors.eq(verdict.errors + words.p.error)
                with m.If(words.p.last):
                    m.d.sync += verdict.busy.eq(0)
        self._check(m, words, verdict.given, verdict.given_signature)

    def _fetch(self, m, port, number, end, ready):
        """Read a memory's words in order during a run; whether one is at its port.

        Args:
            port: of the memory.
            number: counts those that were read.
            end: the number of the first word that is not to be read, or not yet.
            ready: a word that is there is taken.
        """
        is_there = Signal()
        with m.If(self.busy):
            m.d.comb += [port.addr.eq(number), port.en.eq(~is_there | ready)]
            with m.If(port.en):
                m.d.sync += [is_there.eq(number != end), number.eq(number + (number != end))]
        with m.If(self._commands.starts):
            m.d.sync += [is_there.eq(0), number.eq(0)]
        return is_there

    def _check(self, m, words: stream.Interface, count, signature):
        """Count the words that pass on a stream and take their signature, a cycle later."""
        passes, is_held = Signal(), Signal()
        word = Signal(8 * self._bus_bytes, reset_less=True)
        m.d.comb += passes.eq(words.valid & words.ready & self.busy)
        m.d.sync += [word.eq(words.p.data), is_held.eq(passes)]
        with m.If(passes):
            m.d.sync += count.eq(count + 1)
        with m.If(is_held):
            m.d.sync += Value.cast(signature).eq(with_word(signature, word))

    def _answer(self, m, uncompressed, stored, verdict):
        """The byte that the host asks for, two cycles after its address and offset."""
        commands = self._commands
        text = len(self._about).to_bytes(2, "little") + self._about
        m.submodules.about = about = Memory(shape=8, depth=len(text), init=text)
        page = about.read_port()
        index = Cat(commands.offset, commands.request.address)
        m.d.comb += page.addr.eq(index)
        with m.Switch(commands.request.place):
            with m.Case(Place.UNCOMPRESSED):
                m.d.sync += commands.found.eq(uncompressed[1].data.word_select(commands.offset, 8))
            with m.Case(Place.STORED):
                m.d.sync += commands.found.eq(stored[1].data.word_select(commands.offset, 8))
            with m.Case(Place.ABOUT):
                m.d.sync += commands.found.eq(page.data)
            with m.Case(Place.VERDICT):
                m.d.sync += commands.found.eq(Value.cast(verdict).word_select(index, 8))
