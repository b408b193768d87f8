"""What memory answers, cut into blocks, and these decompressed."""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..ports import DECOMPRESSORS, core_of
from ..stream import word_layout
from .parameters import MemoryParameters
from .plan import run_layout
from .queue import Queue
from .regions import format_number_bits

__all__ = ["Decompressors", "Joiner", "Unpacker"]

# Blocks in all decompressors together.
_INSIDE = 8


class Unpacker(wiring.Component):
    """Cuts the beats of a run of blocks into words of single blocks.

    A word is offered in the cycle after the beat with its last byte was taken. A beat a cycle, or a word.

    Members:
        run: what the beats hold; taken with the last word.
        i: beats, with memory's response.
        o: words of blocks, each a tensor of its own, see :func:`rtl.stream.word_layout`; ``resp``, in a
            block's last word, is the gravest of the responses of its beats.
    """

    def __init__(self, parameters: MemoryParameters):
        self._parameters = parameters
        beat = data.StructLayout({"data": 8 * parameters.memory_bytes, "resp": 2})
        word = data.StructLayout({"word": word_layout(parameters.bus_bytes, first=True), "resp": 2})
        super().__init__(
            {
                "run": In(stream.Signature(run_layout(parameters))),
                "i": In(stream.Signature(beat)),
                "o": Out(stream.Signature(word)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        parameters = self._parameters
        grain, bus, beat = parameters.grain, parameters.bus_bytes, parameters.memory_bytes
        grain_bits, bus_grains, beat_grains = exact_log2(grain), bus // grain, beat // grain
        most = max(fmt.target for fmt in parameters.formats) // grain

        target = Signal(range(most + 1))
        for i, fmt in enumerate(parameters.formats):
            with m.If(self.run.p.format == i + 1):
                m.d.comb += target.eq(fmt.target // grain)

        # In grains: what is in the buffer, and what of the block was given.
        buffer = Signal(8 * (bus - grain + beat))  # zero above the level
        level = Signal(range(bus_grains + beat_grains))
        given = Signal(range(most + 1))
        blocks = Signal(8)  # that were given
        begun = Signal()  # the first beat of the run was taken
        response, rest_response = Signal(2), Signal(2)  # of the block's beats so far, and of the last one

        left, need = Signal(range(most + 1)), Signal(range(bus_grains + 1))
        ends_block, ends_run, gives = Signal(), Signal(), Signal()
        gravest = Signal(2)
        m.d.comb += [
            left.eq(target - given),
            ends_block.eq(left <= bus_grains),
            need.eq(Mux(ends_block, left, bus_grains)),
            ends_run.eq(ends_block & (blocks == self.run.p.count)),
            self.o.valid.eq(self.run.valid & begun & (level >= need)),
            self.o.p.word.data.eq(buffer & self._bytes_below(need)),
            self.o.p.word.last.eq(ends_block),
            self.o.p.word.empty.eq((bus_grains - need) << grain_bits),
            self.o.p.word.first.eq(self.run.p.number + blocks),
            gravest.eq(Mux(response > rest_response, response, rest_response)),
            self.o.p.resp.eq(gravest),
            gives.eq(self.o.valid & self.o.ready),
            self.run.ready.eq(gives & ends_run),
        ]

        # After a word is given: what is left, and what the next one needs. A beat is taken if it is needed,
        # so that no more than one has bytes of another block.
        level_left, need_left = Signal.like(level), Signal.like(need)
        buffer_left = Signal.like(buffer)
        after = Signal.like(left)
        m.d.comb += [level_left.eq(level), need_left.eq(need), buffer_left.eq(buffer)]
        with m.If(gives):
            m.d.comb += [
                after.eq(Mux(ends_block, target, left - bus_grains)),
                need_left.eq(Mux(ends_run, 0, Mux(after <= bus_grains, after, bus_grains))),
                level_left.eq(Mux(ends_run, 0, level - need)),
                buffer_left.eq(Mux(ends_run, 0, buffer >> (need << (grain_bits + 3)))),
            ]
            m.d.sync += given.eq(Mux(ends_block, 0, given + bus_grains))
            with m.If(ends_block):
                m.d.sync += [blocks.eq(Mux(ends_run, 0, blocks + 1)), response.eq(0)]
            with m.If(ends_run):
                m.d.sync += begun.eq(0)
        takes = Signal()
        m.d.comb += [
            self.i.ready.eq(self.run.valid & (level_left < need_left)),
            takes.eq(self.i.valid & self.i.ready),
        ]
        m.d.sync += [level.eq(level_left), buffer.eq(buffer_left)]
        with m.If(takes):
            skip = Mux(begun, 0, self.run.p.skip >> grain_bits)
            piece = Signal(8 * beat)
            m.d.comb += piece.eq(self.i.p.data >> (skip << (grain_bits + 3)))
            places = buffer_left
            for at in range(bus_grains):
                places = places | Mux(level_left == at, piece << (8 * grain * at), 0)
            m.d.sync += [
                begun.eq(1),
                buffer.eq(places),
                level.eq(level_left + beat_grains - skip),
                rest_response.eq(self.i.p.resp),
            ]
            # The beat before belongs to the next block only if it left something.
            with m.If(gives & ends_block):
                m.d.sync += response.eq(Mux(level_left != 0, rest_response, 0))
            with m.Elif(begun):
                m.d.sync += response.eq(gravest)
        with m.Elif(gives & ends_block & (level_left == 0)):
            m.d.sync += rest_response.eq(0)
        return m

    def _bytes_below(self, grains):
        """A mask of the data of so many grains."""
        parameters = self._parameters
        count = parameters.bus_bytes // parameters.grain
        return Cat((grains > i).replicate(8 * parameters.grain) for i in range(count))


class Joiner(wiring.Component):
    """Joins the beats of words in bypass; where a beat is a word they pass in the same cycle.

    Members:
        run: how many words; taken with the last one.
        i: beats, with memory's response.
        o: words, each with the gravest response of its beats.
    """

    def __init__(self, parameters: MemoryParameters):
        self._parameters = parameters
        beat = data.StructLayout({"data": 8 * parameters.memory_bytes, "resp": 2})
        word = data.StructLayout({"data": 8 * parameters.bus_bytes, "resp": 2})
        super().__init__(
            {
                "run": In(stream.Signature(run_layout(parameters))),
                "i": In(stream.Signature(beat)),
                "o": Out(stream.Signature(word)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        size = self._parameters.memory_bytes
        pieces = self._parameters.bus_bytes // size
        index, words = Signal(range(max(pieces, 2))), Signal(8)
        response = Signal(2)
        is_final = index == pieces - 1
        gravest = Mux(self.i.p.resp > response, self.i.p.resp, response)
        takes = self.i.valid & self.i.ready
        gives = self.o.valid & self.o.ready
        ends = words == self.run.p.count
        m.d.comb += [
            self.o.valid.eq(self.run.valid & self.i.valid & is_final),
            self.o.p.data.eq(self.i.p.data),
            self.o.p.resp.eq(gravest),
            self.i.ready.eq(self.run.valid & (~is_final | self.o.ready)),
            self.run.ready.eq(gives & ends),
        ]
        with m.If(takes):
            m.d.sync += [
                index.eq(Mux(is_final, 0, index + 1)),
                response.eq(Mux(is_final, 0, gravest)),
            ]
        if pieces > 1:
            kept = Signal(8 * (pieces - 1) * size)
            m.d.comb += self.o.p.data.eq(Cat(kept, self.i.p.data))
            with m.If(takes):
                m.d.sync += kept.eq(Cat(kept, self.i.p.data) >> 8 * size)
        with m.If(gives):
            m.d.sync += words.eq(Mux(ends, 0, words + 1))
        return m


class Decompressors(wiring.Component):
    """Decompresses blocks of several formats, and gives them in the order in which they came.

    Members:
        format: of the block at ``i``.
        i: words of blocks, as of :class:`Unpacker`.
        o: words of values: ``data``, ``last`` of its block, ``resp``, memory's response, and ``invalid``.
        idle: none is here.
    """

    def __init__(self, parameters: MemoryParameters):
        self._parameters = parameters
        word = data.StructLayout({"word": word_layout(parameters.bus_bytes, first=True), "resp": 2})
        values = {"data": 8 * parameters.bus_bytes, "last": 1, "resp": 2, "invalid": 1}
        super().__init__(
            {
                "format": In(format_number_bits(parameters)),
                "i": In(stream.Signature(word)),
                "o": Out(stream.Signature(data.StructLayout(values))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        parameters = self._parameters
        entry = data.StructLayout({"format": format_number_bits(parameters), "resp": 2})
        m.submodules.order = order = Queue(entry, _INSIDE)
        takes = self.i.valid & self.i.ready
        has_room = ~self.i.p.word.last | order.i.ready
        m.d.comb += [
            order.i.valid.eq(takes & self.i.p.word.last),
            order.i.p.format.eq(self.format),
            order.i.p.resp.eq(self.i.p.resp),
            self.o.p.resp.eq(order.o.p.resp),
            order.o.ready.eq(self.o.valid & self.o.ready & self.o.p.last),
        ]
        for i, fmt in enumerate(parameters.formats):
            kind = core_of(DECOMPRESSORS, fmt)
            m.submodules[f"decompressor{i}"] = core = kind(fmt, parameters.bus_bytes)
            is_its = self.format == i + 1
            m.d.comb += core.i.valid.eq(self.i.valid & is_its & has_room)
            for name, _ in core.i.p.shape():
                m.d.comb += core.i.p[name].eq(self.i.p.word[name])
            with m.If(is_its):
                m.d.comb += self.i.ready.eq(core.i.ready & has_room)
            with m.If(order.o.p.format == i + 1):
                m.d.comb += [
                    self.o.valid.eq(core.o.valid & order.o.valid),
                    self.o.p.data.eq(core.o.p.data),
                    self.o.p.last.eq(core.o.p.last),
                    self.o.p.invalid.eq(core.o.p.error),
                    core.o.ready.eq(self.o.ready & order.o.valid),
                ]
        return m
