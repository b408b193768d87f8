"""What memory answers, cut into blocks, and these decompressed."""

from amaranth import C, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ...arith.sums import rotate
from ...ports import DECOMPRESSORS, core_of
from ..layouts import by_format, cut_layout, format_number_bits, run_layout
from ..parameters import MemoryParameters
from ..queue import Queue

__all__ = ["Decompressors", "Joiner", "Unpacker"]

# Blocks in all decompressors together.
_INSIDE = 8


class Unpacker(wiring.Component):
    """Cuts the beats of runs of blocks into words of single blocks.

    A word is offered in the cycle in which the beat with its last byte is, and that beat is taken with it. A
    beat a cycle, or a word. What a word leaves of a beat is kept, also at the end of a run: the next one may
    continue with it.

    Members:
        run: what the beats hold; taken when the run before was given.
        expects: beats of the run that was taken are still to come.
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
                "expects": Out(1),
                "i": In(stream.Signature(beat)),
                "o": Out(stream.Signature(cut_layout(parameters))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        parameters = self._parameters
        grain_bits = exact_log2(parameters.grain)
        bus_grains, beat_grains = parameters.bus_bytes >> grain_bits, parameters.memory_bytes >> grain_bits

        # The run that is being cut: `count`, `number`, `beats` and `skip` of what is left of it.
        begun, now = Signal(), Signal(run_layout(parameters))
        # In grains: what was kept of beats, what a beat adds, what was given of the block, what a word needs.
        level, comes = Signal(range(bus_grains)), Signal(range(beat_grains + 1))
        target = self._target(m, now.format)
        left, given, need = Signal.like(target), Signal.like(target), Signal(range(bus_grains + 1))
        total = Signal(range(bus_grains + beat_grains))
        ends_block, ends_run, wants, takes, gives = (Signal() for _ in range(5))
        response = Signal(2)  # the gravest of what was kept of the block, and of what was given
        gravest = Signal(2)
        m.d.comb += [
            left.eq(target - given),
            ends_block.eq(left <= bus_grains),
            need.eq(Mux(ends_block, left, bus_grains)),
            ends_run.eq(ends_block & (now.count == 0)),
            comes.eq(beat_grains - (now.skip >> grain_bits)),
            wants.eq(begun & (level < need) & (now.beats != 0)),
            total.eq(level + Mux(wants, comes, 0)),
            self.o.valid.eq(begun & (total >= need) & (~wants | self.i.valid)),
            self.i.ready.eq(wants & ((total < need) | self.o.ready)),
            takes.eq(self.i.valid & self.i.ready),
            gives.eq(self.o.valid & self.o.ready),
            gravest.eq(Mux(wants & (self.i.p.resp > response), self.i.p.resp, response)),
            self.o.p.format.eq(now.format),
            self.o.p.word.last.eq(ends_block),
            self.o.p.word.empty.eq((bus_grains - need) << grain_bits),
            self.o.p.resp.eq(gravest),
        ]

        if len(now.number):
            m.d.comb += self.o.p.word.first.eq(now.number)

        # Where in a word the first grain lies that was not given, and where the next beat begins.
        place, come = Signal(range(bus_grains)), Signal(range(bus_grains))
        word = self._kept(m, takes, come, level, place)
        m.d.comb += self.o.p.word.data.eq(self._turned(m, word, place, need))

        free, loads = Signal(), Signal()
        level_left, come_left, last_response = Signal.like(level), Signal.like(come), Signal(2)
        m.d.comb += [
            free.eq(~begun | (gives & ends_run)),
            loads.eq(free & self.run.valid),
            self.run.ready.eq(free),
            self.expects.eq(now.beats != 0),
            level_left.eq(total - Mux(gives, need, 0)),
            come_left.eq(come + beat_grains),
        ]
        with m.If(takes):
            m.d.sync += [
                now.beats.eq(now.beats - 1),
                now.skip.eq(0),
                come.eq(come_left),
                last_response.eq(self.i.p.resp),
                response.eq(gravest),
            ]
        with m.If(takes | gives):
            m.d.sync += level.eq(level_left)
        with m.If(gives):
            m.d.sync += [place.eq(place + need), given.eq(Mux(ends_block, 0, given + bus_grains))]
        with m.If(gives & ends_block):
            # No more than one beat has bytes of two blocks, for a beat is taken once it is needed.
            kept_response = Mux(takes, self.i.p.resp, last_response)
            m.d.sync += [
                now.count.eq(now.count - 1),
                now.number.eq(now.number + 1),
                response.eq(Mux(level_left != 0, kept_response, 0)),
            ]
        with m.If(free):
            m.d.sync += begun.eq(self.run.valid)
        with m.If(loads):
            m.d.sync += now.eq(self.run.payload)
            with m.If(self.run.p.continues):
                m.d.sync += now.skip.eq(0)
            with m.Else():
                skip = self.run.p.skip >> grain_bits
                m.d.sync += [level.eq(0), response.eq(0), place.eq(Mux(takes, come_left, come) + skip)]
        return m

    def _target(self, m: Module, number) -> Signal:
        """Grains of a format's block."""
        parameters = self._parameters
        targets = [fmt.target // parameters.grain for fmt in parameters.formats]
        target = Signal(range(max(targets) + 1))
        for i, size in enumerate(targets):
            with m.If(number == i + 1):
                m.d.comb += target.eq(size)
        return target

    def _kept(self, m: Module, takes: Value, come: Value, level: Value, place: Value) -> Value:
        """What was kept of beats, and the beat that comes: each grain where it lies in a word for good."""
        parameters = self._parameters
        bits, size = 8 * parameters.grain, parameters.bus_bytes // parameters.grain
        of_beat = parameters.memory_bytes // parameters.grain
        grains = []
        for i in range(size):
            begin = i - i % of_beat  # of the beat that has this grain
            beat = self.i.p.data.word_select(i % of_beat, bits)
            if of_beat == size and i == 0:  # what begins a word is never kept
                grains.append(beat)
                continue
            # What was kept reaches this grain if it begins in the same part of a word, and not behind it.
            starts_there = place >= begin if begin else C(1)
            if i < size - 1:
                starts_there &= place <= i
            kept, is_beat, is_kept = Signal(bits, name=f"kept{i}"), Signal(), Signal()
            m.d.comb += [
                is_beat.eq(come == begin),
                is_kept.eq((level != 0) & starts_there),
            ]
            with m.If(takes & is_beat):
                m.d.sync += kept.eq(beat)
            grains.append(Mux(is_beat & ~is_kept, beat, kept))
        return Cat(grains)

    def _turned(self, m: Module, word: Value, place: Value, need: Value) -> Value:
        """The grains of a word from a place on, as many as are needed and zeros behind.

        The last stage of the turn has the mask in what selects, where it costs nothing.
        """
        bits = 8 * self._parameters.grain
        stages = max(len(place) - 1, 0)
        part = rotate(m, "turned", word, place[:stages], bits)
        turns = place[stages:].any()
        half = part.rotate_right(bits << stages) if len(place) else part
        count = len(word) // bits
        return Cat(
            (part.word_select(i, bits) & ((need > i) & ~turns).replicate(bits))
            | (half.word_select(i, bits) & ((need > i) & turns).replicate(bits))
            for i in range(count)
        )


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
        cores = [
            core_of(DECOMPRESSORS, fmt)(fmt, parameters.bus_bytes, single=True) for fmt in parameters.formats
        ]
        word = Signal(cores[0].o.p.shape())
        m.d.comb += [
            self.i.ready.eq(by_format(parameters, self.i.p.format, lambda i: cores[i].i.ready) & has_room),
            self.o.valid.eq(
                by_format(parameters, order.o.p.format, lambda i: cores[i].o.valid) & order.o.valid
            ),
            Value.cast(word).eq(
                by_format(parameters, order.o.p.format, lambda i: Value.cast(cores[i].o.payload))
            ),
            self.o.p.data.eq(word.data),
            self.o.p.last.eq(word.last),
            self.o.p.invalid.eq(word.error),
        ]
        for i, core in enumerate(cores):
            m.submodules[f"decompressor{i}"] = core
            is_turn = order.o.valid & (order.o.p.format == i + 1)
            m.d.comb += [
                core.i.valid.eq(self.i.valid & (self.i.p.format == i + 1) & has_room),
                *(core.i.p[name].eq(self.i.p.word[name]) for name, _ in core.i.p.shape()),
                core.o.ready.eq(self.o.ready & is_turn),
            ]
        return m
