"""What memory answers, cut into blocks, and these decompressed."""

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, memory, stream, wiring
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


def cut_layout(parameters: MemoryParameters) -> data.StructLayout:
    """A word of a block that was cut from beats: see :class:`Unpacker`."""
    word = word_layout(parameters.bus_bytes, first=True)
    return data.StructLayout({"word": word, "format": format_number_bits(parameters), "resp": 2})


class Unpacker(wiring.Component):
    """Cuts the beats of runs of blocks into words of single blocks.

    A word is offered in the cycle after the beat with its last byte was taken. A beat a cycle, or a word.
    What a run leaves of its last beat is kept: the next run may continue with it.

    Members:
        run: what the beats hold; taken with the last of them, or when nothing is left to wait for.
        i: beats, with memory's response.
        o: words of blocks, each a tensor of its own, see :func:`rtl.stream.word_layout`; ``format`` of the
            block; ``resp``, in its last word, is the gravest of the responses of its beats.
    """

    def __init__(self, parameters: MemoryParameters):
        self._parameters = parameters
        beat = data.StructLayout({"data": 8 * parameters.memory_bytes, "resp": 2})
        super().__init__(
            {
                "run": In(stream.Signature(run_layout(parameters))),
                "i": In(stream.Signature(beat)),
                "o": Out(stream.Signature(cut_layout(parameters))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        parameters = self._parameters
        grain_bits = exact_log2(parameters.grain)
        bus_grains, beat_grains = parameters.bus_bytes >> grain_bits, parameters.memory_bytes >> grain_bits

        # The run that is being cut, and in grains: what is in the buffer, and what of the block was given.
        begun, whole = Signal(), Signal()  # there is one; all of its beats were taken
        now = Signal(run_layout(parameters))  # `count`, `number`, `beats`: of what is left of it
        level = Signal(range(bus_grains + beat_grains))
        target = self._target(m, now.format, "target")
        left, need = Signal.like(target), Signal(range(bus_grains + 1))
        given = Signal.like(target)
        response, rest_response = Signal(2), Signal(2)  # of the block's beats so far, and of the last one
        ends_block, ends_run, gives, gravest = Signal(), Signal(), Signal(), Signal(2)
        # Where in the memory of beats the first grain is that was not given, and where the next beat goes.
        place, come = Signal(range(2 * bus_grains)), Signal(range(2 * bus_grains))
        wants, takes, starts = Signal(), Signal(), Signal()
        m.d.comb += [
            left.eq(target - given),
            ends_block.eq(left <= bus_grains),
            need.eq(Mux(ends_block, left, bus_grains)),
            ends_run.eq(ends_block & (now.count == 0)),
            self.o.valid.eq(begun & (level >= need)),
            self.o.p.format.eq(now.format),
            self.o.p.word.data.eq(self._beats(m, takes, come, place) & self._bytes_below(need)),
            self.o.p.word.last.eq(ends_block),
            self.o.p.word.empty.eq((bus_grains - need) << grain_bits),
            self.o.p.word.first.eq(now.number),
            gravest.eq(Mux(response > rest_response, response, rest_response)),
            self.o.p.resp.eq(gravest),
            gives.eq(self.o.valid & self.o.ready),
        ]
        with m.If(gives):
            m.d.sync += given.eq(Mux(ends_block, 0, given + bus_grains))
            with m.If(ends_block):
                m.d.sync += [response.eq(0), now.count.eq(now.count - 1), now.number.eq(now.number + 1)]

        # After a word is given: what is left, and what the next one needs.
        free = Signal()
        level_left, need_left, after = Signal.like(level), Signal.like(need), Signal.like(left)
        m.d.comb += [free.eq(~begun | (gives & ends_run)), level_left.eq(level), after.eq(left)]
        with m.If(gives):
            m.d.comb += [
                after.eq(Mux(ends_block, target, left - bus_grains)),
                level_left.eq(level - need),
            ]
            m.d.sync += place.eq(place + need)
        with m.If(free):
            m.d.comb += after.eq(self._target(m, self.run.p.format, "next_target"))
            with m.If(self.run.valid & ~self.run.p.continues):
                m.d.comb += level_left.eq(0)
                m.d.sync += place.eq(come + (self.run.p.skip >> grain_bits))
        m.d.comb += need_left.eq(Mux(after <= bus_grains, after, bus_grains))

        # A beat is taken if it is needed, so that no more than one has bytes of another block.
        m.d.comb += [
            wants.eq((level_left < need_left) & Mux(free, self.run.valid, ~whole)),
            self.i.ready.eq(wants),
            takes.eq(self.i.valid & wants),
            starts.eq(free & self.run.valid & (takes | ~wants)),
            self.run.ready.eq(Mux(free, starts & (self.run.p.beats == takes), takes & (now.beats == 1))),
        ]
        with m.If(free):
            m.d.sync += begun.eq(starts)
            with m.If(starts):
                m.d.sync += [now.eq(self.run.payload), now.beats.eq(self.run.p.beats - takes)]
                m.d.sync += whole.eq(self.run.ready)
        with m.Elif(takes):
            m.d.sync += [now.beats.eq(now.beats - 1), whole.eq(self.run.ready)]
        m.d.sync += level.eq(level_left)
        with m.If(takes):
            skip = Mux(free & ~self.run.p.continues, self.run.p.skip >> grain_bits, 0)
            # The beat before belongs to the block that goes on or begins only if it left something.
            goes_on = begun & ~(gives & ends_block)
            m.d.sync += [
                level.eq(level_left + beat_grains - skip),
                come.eq(come + beat_grains),
                rest_response.eq(self.i.p.resp),
                response.eq(Mux(goes_on, gravest, Mux(level_left != 0, rest_response, 0))),
            ]
        with m.Elif(
            (gives & ends_block & (level_left == 0)) | (free & self.run.valid & ~self.run.p.continues)
        ):
            m.d.sync += rest_response.eq(0)
        return m

    def _target(self, m: Module, number, name: str) -> Signal:
        """Grains of a format's block."""
        parameters = self._parameters
        targets = [fmt.target // parameters.grain for fmt in parameters.formats]
        target = Signal(range(max(targets) + 1), name=name)
        for i, size in enumerate(targets):
            with m.If(number == i + 1):
                m.d.comb += target.eq(size)
        return target

    def _beats(self, m: Module, takes: Value, come: Value, place: Value) -> Value:
        """The word that begins at a grain of the last beats, which are in a memory of two words.

        Each grain of a word has a bank, so that a word begins in one row and ends in the other.
        """
        parameters = self._parameters
        bits, size = 8 * parameters.grain, parameters.bus_bytes // parameters.grain
        of_beat, column_bits = parameters.memory_bytes // parameters.grain, exact_log2(size)
        column, row = place[:column_bits], place[column_bits:]
        grains = []
        for i in range(size):
            m.submodules[f"bank{i}"] = bank = memory.Memory(shape=bits, depth=2, init=[])
            write, read = bank.write_port(), bank.read_port(domain="comb")
            m.d.comb += [
                write.addr.eq(come[column_bits:]),
                write.data.eq(self.i.p.data.word_select(i % of_beat, bits)),
                write.en.eq(takes & (come[:column_bits] == i - i % of_beat)),
                read.addr.eq(row ^ (column > i) if i < size - 1 else row),
            ]
            grains.append(read.data)
        word = Cat(grains)
        for i in range(column_bits):
            word = Mux(column[i], word.rotate_right(bits << i), word)
        return word

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
        i: words of blocks, as of :class:`Unpacker`.
        o: words of values: ``data``, ``last`` of its block, ``resp``, memory's response, and ``invalid``.
    """

    def __init__(self, parameters: MemoryParameters):
        self._parameters = parameters
        values = {"data": 8 * parameters.bus_bytes, "last": 1, "resp": 2, "invalid": 1}
        super().__init__(
            {
                "i": In(stream.Signature(cut_layout(parameters))),
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
            order.i.p.format.eq(self.i.p.format),
            order.i.p.resp.eq(self.i.p.resp),
            self.o.p.resp.eq(order.o.p.resp),
            order.o.ready.eq(self.o.valid & self.o.ready & self.o.p.last),
        ]
        for i, fmt in enumerate(parameters.formats):
            kind = core_of(DECOMPRESSORS, fmt)
            m.submodules[f"decompressor{i}"] = core = kind(fmt, parameters.bus_bytes)
            is_its = self.i.p.format == i + 1
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
