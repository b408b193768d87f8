"""The answers to reads."""

from amaranth import Array, C, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from golden.bursts import Response

from ...stream import DelayMemory
from ..interface.channels import axi4_channels
from ..interface.walker import Walker, span_mask
from ..layouts import burst_layout, error_layout, read_layout
from ..parameters import MemoryParameters

__all__ = ["Reply"]

_WORDS = 2  # in bypass, of which one comes while the one before goes


class Reply(wiring.Component):
    """Answers read bursts in their order, from blocks or from words in bypass.

    A memory has room for two blocks: one that the beats are read from, and that stays until another one is
    needed, and one that is being decompressed; and behind them for two words in bypass. A beat a cycle,
    offered in the second cycle after its word came, for R is what the memory gave.

    Members:
        bursts: what is to be answered, see :func:`rtl.memory.layouts.read_layout`.
        values: words of blocks, see :class:`rtl.memory.codecs.unpack.Decompressors`.
        words: in bypass, see :class:`rtl.memory.codecs.unpack.Joiner`.
        r: of the accelerator.
        invalid, failed: a block was invalid; or memory answered an error for it, or for a word of bypass;
            once for each.
        moves, bytes: a beat is taken, with so many bytes.
        idle: there is nothing to answer.
    """

    def __init__(self, parameters: MemoryParameters):
        self._parameters = parameters
        port = axi4_channels(parameters.address_bits, parameters.bus_bytes, parameters.id_bits)
        values = {"data": 8 * parameters.bus_bytes, "last": 1, "resp": 2, "invalid": 1}
        word = {"data": 8 * parameters.bus_bytes, "resp": 2}
        super().__init__(
            {
                "bursts": In(stream.Signature(burst_layout(read_layout(parameters)))),
                "values": In(stream.Signature(data.StructLayout(values))),
                "words": In(stream.Signature(data.StructLayout(word))),
                "r": Out(stream.Signature(port["r"])),
                "invalid": Out(error_layout(parameters)),
                "failed": Out(error_layout(parameters)),
                "moves": Out(1),
                "bytes": Out(7),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        parameters = self._parameters
        words, in_row = parameters.most_words, _WORDS
        m.submodules.walker = walker = Walker(parameters, read_layout(parameters))
        wiring.connect(m, wiring.flipped(self.bursts), walker.i)
        beat = walker.o.p
        about = beat.burst.about

        # Two blocks, filled in turn, and words in bypass, in a row.
        m.submodules.content = content = DelayMemory(8 * parameters.bus_bytes, 2 * words + in_row)
        filled = [Signal(range(words + 1), name=f"filled{i}") for i in range(2)]
        failing, broken, not_valid = Signal(2), Signal(2), Signal(2)  # SLVERR, or DECERR
        # All words are there: what is being read is never filled, after a reset neither.
        whole = Signal(2, init=0b10)
        filling, reading = Signal(), Signal(init=1)
        fill, fills = Signal(range(words + 1)), Signal()
        m.d.comb += [
            fill.eq(Mux(filling, filled[1], filled[0])),
            self.values.ready.eq(~whole.bit_select(filling, 1)),
            fills.eq(self.values.valid & self.values.ready),
        ]
        for i in range(2):
            with m.If(fills & (filling == i)):
                m.d.sync += [
                    filled[i].eq(filled[i] + 1),
                    whole[i].eq(self.values.p.last),
                    not_valid[i].eq(self.values.p.invalid & (self.values.p.resp == Response.OKAY)),
                    failing[i].eq(self.values.p.invalid | (self.values.p.resp == Response.SLVERR)),
                    broken[i].eq(self.values.p.resp == Response.DECERR),
                ]
        with m.If(fills & self.values.p.last):
            m.d.sync += filling.eq(~filling)

        waiting, come, next_word = Signal(range(in_row + 1)), Signal(range(in_row)), Signal(range(in_row))
        responses = Array(Signal(2, name=f"response{i}") for i in range(in_row))
        comes = Signal()
        m.d.comb += [
            self.words.ready.eq((waiting != in_row) & ~fills),
            comes.eq(self.words.valid & self.words.ready),
            content.write.eq(fills | comes),
            content.write_address.eq(Mux(fills, Cat(fill[: exact_log2(words)], filling), 2 * words + come)),
            content.write_data.eq(Mux(fills, self.values.p.data, self.words.p.data)),
        ]
        with m.If(comes):
            m.d.sync += [come.eq(come + 1), responses[come].eq(self.words.p.resp)]

        # A beat's block: the one that is being read, or the other one from this beat on.
        in_block, block = self._place(m, about.format, beat.at)
        block_before = Signal.like(block)
        is_new = Mux(beat.first, ~about.kept, block != block_before)
        chosen = reading ^ is_new
        is_block = about.hit & (about.format != 0)
        is_word = about.hit & (about.format == 0)
        has_word = Mux(chosen, filled[1], filled[0]) > in_block
        advances = ~self.r.valid | self.r.ready
        goes, leaves = Signal(), Signal()
        is_there = Mux(is_block, has_word, ~is_word | (waiting != 0))
        m.d.comb += [
            goes.eq(walker.o.valid & advances & is_there),
            walker.o.ready.eq(advances & is_there),
            leaves.eq(goes & is_word & beat.leaves),
            content.read.eq(goes),
            content.read_address.eq(Mux(is_word, 2 * words + next_word, Cat(in_block, chosen))),
        ]
        m.d.sync += [waiting.eq(waiting + comes - leaves), next_word.eq(next_word + leaves)]
        with m.If(goes & is_block):
            m.d.sync += [reading.eq(chosen), block_before.eq(block)]
            for i in range(2):
                with m.If(is_new & (reading == i)):
                    m.d.sync += [filled[i].eq(0), whole[i].eq(0)]

        response = Signal(2)
        m.d.comb += response.eq(Response.DECERR)
        with m.If(is_block):
            m.d.comb += response.eq(
                Mux(
                    broken.bit_select(chosen, 1),
                    Response.DECERR,
                    Mux(failing.bit_select(chosen, 1), Response.SLVERR, Response.OKAY),
                )
            )
        with m.Elif(is_word):
            failed = responses[next_word]
            m.d.comb += response.eq(Mux(failed[1], failed, Response.OKAY))
        is_error = response != Response.OKAY
        with m.If(advances):
            m.d.sync += [
                self.r.valid.eq(goes),
                self.r.p.id.eq(about.id),
                self.r.p.resp.eq(response),
                self.r.p.last.eq(beat.last),
            ]
        m.d.comb += self.r.p.data.eq(Mux(self.r.p.resp == Response.OKAY, content.read_data, 0))
        span = span_mask(beat.burst.size)
        with m.If(advances):
            m.d.sync += self.bytes.eq((span & ~beat.at[:7]) + 1)
        m.d.comb += self.moves.eq(self.r.valid & self.r.ready)
        fails = goes & is_error & about.hit
        once = Mux(is_block, is_new, beat.leaves)
        is_invalid = is_block & not_valid.bit_select(chosen, 1)
        m.d.comb += [
            self.invalid.valid.eq(fails & once & is_invalid),
            self.failed.valid.eq(fails & once & ~is_invalid),
            *(error.address.eq(Cat(block, about.page)) for error in (self.invalid, self.failed)),
            self.idle.eq(~walker.o.valid & ~self.bursts.valid & ~self.r.valid),
        ]
        return m

    def _place(self, m: Module, number: Value, at: Value) -> tuple[Value, Value]:
        """Which word of its block an address lies in, and where in the page that block, or word, begins."""
        parameters = self._parameters
        word_bits = parameters.word_bits
        word, start = Signal(range(parameters.most_words)), Signal(len(at))
        m.d.comb += start.eq(Cat(C(0, word_bits), at[word_bits:]))
        for i in range(len(parameters.formats)):
            bits = parameters.original_bits(i)
            with m.If(number == i + 1):
                m.d.comb += [word.eq(at[word_bits:bits]), start.eq(Cat(C(0, bits), at[bits:]))]
        return word, start
