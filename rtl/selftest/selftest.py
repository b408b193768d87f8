"""The self-test: engines between memories, a generator and a checker, at the command of a host."""

from collections.abc import Sequence

from amaranth import C, Cat, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.crc.catalog import CRC32_ISO_HDLC
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from golden import Format

from ..stream import word_layout
from .commands import Commands
from .engines import Engines
from .generator import Generator
from .requests import Place, request_layout, verdict_layout

__all__ = ["SelfTest"]


class SelfTest(wiring.Component):
    """Engines of several formats between two memories, commanded over a UART.

    A run goes at full rate: a word of the generator, or of the raw memory, into a compressor in each cycle;
    what it gives into the stored memory, which is a FIFO then; from there into the decompressor; and what
    that gives into the raw memory. CRCs are taken of both.

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
        job, verdict = Signal(request_layout()), Signal(verdict_layout())
        m.d.comb += [commands.rx.eq(self.rx), self.tx.eq(commands.tx), self.busy.eq(verdict.busy)]
        m.d.comb += [engines.clear.eq(commands.starts), engines.format.eq(job.format)]
        with m.If(commands.starts):
            m.d.sync += [job.eq(commands.request), verdict.eq(0), verdict.busy.eq(1)]
        m.d.sync += verdict.lost.eq(commands.lost)

        raw, stored = self._memories(m)
        self._feed(m, raw, job, verdict)
        self._queue(m, stored, job, verdict)
        self._collect(m, raw, verdict)
        self._answer(m, raw, stored, verdict)
        return m

    def _memories(self, m):
        """Write and read port of either; while no run goes on the host has them."""
        ports, request = [], self._commands.request
        for place, shape in ((Place.RAW, 8 * self._bus_bytes), (Place.STORED, word_layout(self._bus_bytes))):
            m.submodules[place.name.lower()] = memory = Memory(shape=shape, depth=self._depth, init=[])
            write, read = memory.write_port(), memory.read_port()
            m.d.comb += [
                *(write.addr.eq(request.address), read.addr.eq(request.address), read.en.eq(1)),
                Value.cast(write.data).eq(self._commands.word),
                write.en.eq(self._commands.writes & (request.place == place)),
            ]
            ports.append((write, read))
        return ports

    def _feed(self, m, memory, job, verdict):
        """Words to be compressed, of the generator or the raw memory."""
        _, read = memory
        words, starts = self._engines.raw, self._commands.starts
        m.submodules.generator = generator = Generator(self._bus_bytes)
        is_generated, is_raw = job.place == Place.GENERATED, job.place == Place.RAW
        fetched = Signal(32)
        is_there = self._fetch(m, read, fetched, Mux(is_raw, job.count, 0), words.ready)
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
        written, fetched = Signal(32), Signal(32)
        is_stored = job.place == Place.STORED
        m.d.comb += compressed.ready.eq(written - fetched != self._depth)
        with m.If(self.busy):
            m.d.comb += [
                *(write.addr.eq(written), write.data.eq(compressed.payload)),
                write.en.eq(compressed.valid & compressed.ready),
            ]
            with m.If(compressed.valid & compressed.ready):
                m.d.sync += written.eq(written + 1)
        with m.If(self._commands.starts):
            m.d.sync += written.eq(0)
        is_there = self._fetch(m, read, fetched, Mux(is_stored, job.count, written), words.ready)
        is_end = fetched == job.count
        m.d.comb += [
            *(words.valid.eq(is_there), words.p.data.eq(read.data.data), words.p.first.eq(job.first)),
            words.p.last.eq(Mux(is_stored, is_end, read.data.last)),
            words.p.empty.eq(Mux(is_stored, Mux(is_end, job.empty, 0), read.data.empty)),
        ]
        self._check(m, words, verdict.stored, verdict.stored_crc)

    def _collect(self, m, memory, verdict):
        """What comes out, into the raw memory; its last word ends the run."""
        write, _ = memory
        words = self._engines.given
        m.d.comb += words.ready.eq(1)
        with m.If(self.busy):
            m.d.comb += [write.addr.eq(verdict.given), write.data.eq(words.p.data), write.en.eq(words.valid)]
            m.d.sync += verdict.cycles.eq(verdict.cycles + 1)
            with m.If(words.valid):
                m.d.sync += verdict.errors.eq(verdict.errors + words.p.error)
                with m.If(words.p.last):
                    m.d.sync += verdict.busy.eq(0)
        self._check(m, words, verdict.given, verdict.given_crc)

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

    def _check(self, m, words: stream.Interface, count, result):
        """Count the words that pass on a stream and take their CRC, two cycles later."""
        m.submodules += (crc := CRC32_ISO_HDLC(data_width=8 * self._bus_bytes).create())
        passes, register, is_held = Signal(), Signal(8 * self._bus_bytes, reset_less=True), Signal()
        m.d.comb += passes.eq(words.valid & words.ready & self.busy)
        m.d.comb += [crc.data.eq(register), crc.valid.eq(is_held), crc.start.eq(self._commands.starts)]
        m.d.sync += [register.eq(words.p.data), is_held.eq(passes), result.eq(crc.crc)]
        with m.If(passes):
            m.d.sync += count.eq(count + 1)

    def _answer(self, m, raw, stored, verdict):
        """The word that the host asks for."""
        request, width = self._commands.request, 8 * self._bus_bytes
        text = len(self._about).to_bytes(2, "little") + self._about
        m.submodules.about = about = Memory(
            shape=width,
            depth=-(-len(text) // self._bus_bytes),
            init=[
                int.from_bytes(text[at : at + self._bus_bytes], "little")
                for at in range(0, len(text), self._bus_bytes)
            ],
        )
        page = about.read_port()
        bits = Cat(verdict, C(0, -len(Value.cast(verdict)) % width))
        m.d.comb += [page.addr.eq(request.address), self._commands.found.eq(raw[1].data)]
        with m.Switch(request.place):
            with m.Case(Place.STORED):
                m.d.comb += self._commands.found.eq(stored[1].data.data)
            with m.Case(Place.ABOUT):
                m.d.comb += self._commands.found.eq(page.data)
            with m.Case(Place.VERDICT):
                m.d.comb += self._commands.found.eq(bits.word_select(request.address[:4], width))
