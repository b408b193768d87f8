"""Writes gathered into whole blocks.

    i --> match or open a buffer --> data, and in the next cycle which bytes were written
                                                        |
    o <-- words of the block <-- complete buffers <-----'

A buffer is free, open (some bytes were written), or full (its words wait to go out, or do).
"""

from dataclasses import dataclass

from amaranth import Array, C, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from golden.bursts import Response

from ...arith.trees import any_set
from ...stream import DelayMemory
from ..layouts import (
    block_layout,
    by_format,
    format_number_bits,
    merged_layout,
    origin_layout,
    place_layout,
    probe_layout,
    probes,
)
from ..parameters import PAGE_BITS, MemoryParameters
from ..queue import Queue

__all__ = ["Gather"]


@dataclass(frozen=True)
class _Buffers:
    """What is known of the buffers.

    Attributes:
        is_open, is_full: each one's state; free if neither.
        answered: it has bytes of a bufferable burst that was answered.
        is_late: it was opened after what is probed.
        blocks: that they hold.
    """

    is_open: Signal
    is_full: Signal
    answered: Signal
    is_late: Signal
    blocks: list[Signal]

    @classmethod
    def of(cls, parameters: MemoryParameters) -> "_Buffers":
        count = parameters.buffers
        bits = [Signal(count, name=name) for name in ("is_open", "is_full", "answered", "is_late")]
        return cls(*bits, [Signal(block_layout(parameters), name=f"block{i}") for i in range(count)])


class Gather(wiring.Component):
    """Gathers beats of writes into blocks, and gives complete blocks' words.

    A beat a cycle, in any order, and a word of a complete block a cycle. A beat has to wait only while a
    block is evicted, while the beat before it may complete the same block, and while buffers are full.
    Blocks come out in the order in which they were completed.

    Members:
        i: beats in regions with a format: see the code for the fields.
        o: words of blocks: ``data``, ``first``, ``last``, about the block :func:`block_layout`, and the
            ``origin`` of its region; that of the block that is merged once nothing else was read for a cycle.
        probe: blocks that someone asks for.
        probe_anew: from the next cycle on others; none counts that is opened later.
        probe_evicts: evict those of them that are open and have bytes that were answered.
        probed: one of them is full, or has yet to be evicted.
        timeout: cycles that a block may be the one that has been open for longest.
        evict_oldest: evict it now.
        evict_region, region: evict all of a region's.
        region_open: one of the region's is open.
        evicted: a block is, with its place and the slots that wait for it.
        completed: a block is complete.
        held: slots that wait for a block that is here.
        settled: no block is complete, and no beats are on their way into one.
        idle: nor is one merged.
        merges: regions that merge.
        merged: with ``merging``, a block that is evicted is to be merged, and no beats are taken; which.
        values: of the block in memory, for what was not written of it, see :func:`merged_layout`.
        spoiled: these were an error: the block is dropped.
    """

    def __init__(self, parameters: MemoryParameters):
        self._parameters = parameters
        beat = data.StructLayout(
            {
                "page": parameters.page_bits,
                "at": PAGE_BITS,
                "region": range(parameters.regions),
                "format": format_number_bits(parameters),
                "origin": origin_layout(parameters),
                "slot": range(parameters.slots),
                "bufferable": 1,
                "last": 1,
                "data": 8 * parameters.bus_bytes,
                "strb": parameters.bus_bytes,
            }
        )
        word = data.StructLayout(
            {
                "data": 8 * parameters.bus_bytes,
                "first": 1,
                "last": 1,
                "block": block_layout(parameters),
                "origin": origin_layout(parameters),
            }
        )
        evicted = data.StructLayout(
            {"valid": 1, "place": place_layout(parameters), "waiting": parameters.slots}
        )
        completed = data.StructLayout({"valid": 1, "place": place_layout(parameters)})
        merged = data.StructLayout({"valid": 1, "block": block_layout(parameters)})
        super().__init__(
            {
                "i": In(stream.Signature(beat)),
                "o": Out(stream.Signature(word)),
                "probe": In(probe_layout(parameters)),
                "probe_anew": In(1),
                "probe_evicts": In(1),
                "probed": Out(1),
                "timeout": In(32),
                "evict_oldest": In(1),
                "evict_region": In(1),
                "region": In(range(parameters.regions)),
                "region_open": Out(1),
                "evicted": Out(evicted),
                "completed": Out(completed),
                "held": Out(parameters.slots),
                "settled": Out(1),
                "idle": Out(1),
                "merges": In(parameters.regions),
                "merged": Out(merged),
                "values": In(stream.Signature(merged_layout(parameters))),
                "spoiled": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        parameters = self._parameters
        count, words, size = parameters.buffers, parameters.most_words, parameters.bus_bytes
        index_shape = range(count)

        buffers = _Buffers.of(parameters)
        is_open, is_full, answered, blocks = (
            buffers.is_open,
            buffers.is_full,
            buffers.answered,
            buffers.blocks,
        )
        frees, in_burst = (
            Signal(count),
            Signal(count),
        )  # whether it has bytes of a bufferable burst that has not ended
        touched, whole = ([Signal(words, name=f"{n}{i}") for i in range(count)] for n in ("touched", "whole"))
        opened_before = {(i, j): Signal(name=f"opened{i}_before{j}") for j in range(count) for i in range(j)}

        # The first cycle of a beat: find its block's buffer, or open one, and put the data there.
        beat = self.i.payload
        place = Signal(place_layout(parameters))
        m.d.comb += [place.page.eq(beat.page), place.unit.eq(self._unit(beat.at, beat.format))]
        word = Signal(range(words))
        m.d.comb += word.eq(self._word(beat.at, beat.format))
        hits, has_free = Signal(count), Signal()
        free, index = Signal(index_shape), Signal(index_shape)
        for i in reversed(range(count)):
            m.d.comb += hits[i].eq(is_open[i] & (blocks[i].place == place))
            with m.If(~is_open[i] & ~is_full[i]):
                m.d.comb += [free.eq(i), has_free.eq(1)]
        m.d.comb += index.eq(free)
        for i in range(count):
            with m.If(hits[i]):
                m.d.comb += index.eq(i)

        marks, marked, marked_word = Signal(), Signal(index_shape), Signal(range(words))
        marked_strb, of_marked = Signal(size), Signal(block_layout(parameters))  # but for `waiting`
        may_complete = Signal()
        evicts = Signal()
        has_bytes = beat.strb.any()
        room = Mux(hits.any(), ~(marks & may_complete & (index == marked)), has_free)
        takes = Signal()
        # Whether the beat stood here in the cycle before, with bytes or without: so W has no path to WREADY.
        stands, stands_empty = Signal(), Signal()
        m.d.comb += [
            self.i.ready.eq(~evicts & ~self.merged.valid & (stands_empty | room)),
            takes.eq(self.i.valid & self.i.ready & has_bytes),
        ]
        waits = self.i.valid & ~self.i.ready
        m.d.sync += [stands.eq(waits & has_bytes), stands_empty.eq(waits & ~has_bytes)]

        m.submodules.content = content = memory.Memory(shape=8 * size, depth=count * words, init=[])
        content_write = content.write_port(granularity=8)
        content_read = content.read_port()
        m.d.comb += [
            content_write.addr.eq(Cat(word, index)),
            content_write.data.eq(beat.data),
            content_write.en.eq(Mux(takes, beat.strb, 0)),
        ]
        opens, waits = takes & ~hits.any(), Signal(parameters.slots)
        m.d.comb += waits.eq(Mux(beat.bufferable, 0, 1 << beat.slot))
        m.submodules.origins = origins = DelayMemory(Value.cast(beat.origin).shape().width, count)
        m.d.comb += [
            origins.write.eq(opens),
            origins.write_address.eq(index),
            origins.write_data.eq(beat.origin),
        ]
        for i in range(count):
            with m.If(takes & (index == i)):
                with m.If(opens):
                    m.d.sync += [
                        is_open[i].eq(1),
                        buffers.is_late[i].eq(1),
                        blocks[i].place.eq(place),
                        blocks[i].region.eq(beat.region),
                        blocks[i].format.eq(beat.format),
                        touched[i].eq(0),
                        whole[i].eq(0),
                        *(before.eq(i in pair[1:]) for pair, before in opened_before.items() if i in pair),
                    ]
                m.d.sync += blocks[i].waiting.eq(blocks[i].waiting | waits)

        # A bufferable burst is answered once all of its beats are taken, and not before.
        ends = self.i.valid & self.i.ready & beat.last
        for i in range(count):
            is_here = takes & (index == i)
            has_bytes_of_it = (in_burst[i] & ~(is_here & opens)) | (is_here & beat.bufferable)
            m.d.sync += [
                in_burst[i].eq(has_bytes_of_it & ~ends),
                answered[i].eq((answered[i] & ~(is_here & opens)) | (has_bytes_of_it & ends)),
            ]

        # The second: which of the word's bytes were written, and whether the block is complete.
        m.submodules.strobes = strobes = DelayMemory(size, count * words)
        m.d.sync += [
            marks.eq(takes),
            marked.eq(index),
            marked_word.eq(word),
            marked_strb.eq(beat.strb),
            of_marked.place.eq(place),
            of_marked.region.eq(beat.region),
            of_marked.format.eq(beat.format),
        ]
        marked_whole, marked_touched = Signal(words), Signal(words)
        others = Signal(words)
        written, is_whole, completes = Signal(size), Signal(), Signal()
        were, written_before, is_again = Signal(size), Signal(size, reset_less=True), Signal()
        m.d.comb += [
            marked_whole.eq(Array(whole)[marked]),
            marked_touched.eq(Array(touched)[marked]),
            others.eq(marked_whole | self._beyond(of_marked.format) | (1 << marked_word)),
            may_complete.eq(others.all()),
            strobes.read_address.eq(Cat(word, index)),
            strobes.read.eq(1),
            were.eq(Mux(is_again, written_before, strobes.read_data)),
            written.eq(marked_strb | Mux(marked_touched.bit_select(marked_word, 1), were, 0)),
            is_whole.eq(written.all()),
            completes.eq(marks & may_complete & is_whole),
            strobes.write_address.eq(Cat(marked_word, marked)),
            strobes.write_data.eq(written),
            strobes.write.eq(marks),
        ]
        # What is written in the cycle in which it is read is kept here.
        m.d.sync += [
            is_again.eq(marks & (word == marked_word) & (index == marked)),
            written_before.eq(written),
        ]
        for i in range(count):
            with m.If(marks & (marked == i)):
                m.d.sync += touched[i].eq(touched[i] | (1 << marked_word))
                with m.If(is_whole):
                    m.d.sync += whole[i].eq(whole[i] | (1 << marked_word))
        one = Signal(block_layout(parameters))  # the marked one, the one that is merged, or that is evicted
        # Room for all complete blocks: buffers to be read; what they are, until the last word is taken.
        to_read = data.StructLayout({"index": index_shape, "format": format_number_bits(parameters)})
        m.submodules.reading = reading = Queue(to_read, count)
        m.submodules.complete = complete = Queue(block_layout(parameters), 2 * count)
        m.d.comb += [
            reading.i.p.index.eq(marked),
            reading.i.p.format.eq(complete.i.p.format),
            reading.i.valid.eq(complete.i.valid),
            complete.i.payload.eq(of_marked),
            complete.i.p.waiting.eq(one.waiting),
            complete.i.valid.eq(completes),
        ]
        m.d.comb += [self.completed.valid.eq(completes), self.completed.place.eq(of_marked.place)]
        with m.If(completes):
            m.d.sync += [is_open.bit_select(marked, 1).eq(0), is_full.bit_select(marked, 1).eq(1)]

        oldest = Signal(count)
        for i in range(count):
            before = [
                is_open[sum(pair) - i] & (of_pair if i == pair[1] else ~of_pair)
                for pair, of_pair in opened_before.items()
                if i in pair
            ]
            m.d.comb += oldest[i].eq(is_open[i] & ~Cat(before).any())
        victim = self._evict(m, buffers, frees, oldest, one, evicts, marks, marked, completes)
        m.d.comb += one.eq(Array(blocks)[Mux(marks, marked, victim)])
        if parameters.merging:
            self._merge(m, victim, one, frees, Array(touched), reading, complete, content_write, strobes)
        stuck = stands & ~hits.any() & is_open.all() & ~marks
        m.d.comb += self._for_space.eq(stuck)
        self._feed(m, reading, complete, content_read, frees, words)
        # Of a block that is read, else of the one that is merged; what is offered stays.
        m.d.comb += [
            origins.read.eq((reading.o.valid | self.merged.valid) & (~self.o.valid | self.o.ready)),
            origins.read_address.eq(Mux(reading.o.valid, reading.o.p.index, victim)),
            Value.cast(self.o.p.origin).eq(origins.read_data),
        ]

        for i, block in enumerate(blocks):
            with m.If(frees[i]):
                m.d.sync += [is_full[i].eq(0), block.waiting.eq(0)]
        m.d.comb += [
            self.held.eq(any_set(block.waiting for block in blocks)),
            self.settled.eq(complete.empty & ~marks & ~self.o.valid),
            self.idle.eq(self.settled & ~self.merged.valid),
        ]
        return m

    def _evict(self, m, buffers, frees, oldest, one, evicts, marks, marked, completes) -> Value:
        """Choose a block to evict, and do so unless the beat before may still complete one."""
        parameters = self._parameters
        count, is_open, is_full = parameters.buffers, buffers.is_open, buffers.is_full
        asked, of_region = Signal(count), Signal(count)
        with m.If(self.probe_anew):
            m.d.sync += buffers.is_late.eq(0)
        for i, block in enumerate(buffers.blocks):
            probed = Signal(name=f"probed{i}")
            m.d.comb += [
                probed.eq(probes(self.probe, block.place) & ~buffers.is_late[i]),
                asked[i].eq(probed & is_open[i] & buffers.answered[i]),
                of_region[i].eq(is_open[i] & (block.region == self.region)),
            ]
            with m.If(probed & (is_full[i] | (is_open[i] & buffers.answered[i]))):
                m.d.comb += self.probed.eq(1)
        m.d.comb += self.region_open.eq(of_region.any())

        # How long the oldest one has been so.
        age = Signal(32)
        expired = Signal()
        ends_oldest = Signal()
        m.d.comb += expired.eq(is_open.any() & (age >= self.timeout))
        with m.If(ends_oldest | ~is_open.any()):
            m.d.sync += age.eq(0)
        with m.Elif(~expired):
            m.d.sync += age.eq(age + 1)

        self._for_space = Signal()
        candidates = Signal(count)
        with m.If(self.probe_evicts & asked.any()):
            m.d.comb += candidates.eq(asked)
        with m.Elif(self.evict_region & of_region.any()):
            m.d.comb += candidates.eq(of_region)
        with m.Elif(expired | self.evict_oldest | self._for_space):
            m.d.comb += candidates.eq(oldest)
        victim = Signal(range(count))
        for i in reversed(range(count)):
            with m.If(candidates[i]):
                m.d.comb += victim.eq(i)
        closes = evicts & ~marks & ~self.merged.valid
        merges = self.merges.bit_select(one.region, 1) if parameters.merging else C(0)
        m.d.comb += [
            evicts.eq(candidates.any()),
            self.evicted.valid.eq(closes & ~merges),
            self.evicted.place.eq(one.place),
            self.evicted.waiting.eq(Mux(self.evicted.valid, one.waiting, 0)),
        ]
        m.d.comb += frees.bit_select(victim, 1).eq(self.evicted.valid)
        with m.If(closes):
            m.d.sync += is_open.bit_select(victim, 1).eq(0)
        m.d.comb += ends_oldest.eq(
            (closes & oldest.bit_select(victim, 1)) | (completes & oldest.bit_select(marked, 1))
        )
        if parameters.merging:
            merged = Signal(range(count))
            with m.If(self.merged.valid):
                m.d.comb += victim.eq(merged)
            with m.If(closes & merges):
                m.d.sync += [self.merged.valid.eq(1), merged.eq(victim), is_full.bit_select(victim, 1).eq(1)]
        return victim

    def _merge(self, m, merged, one, frees, touched, reading, complete, content_write, strobes) -> None:
        """Put what memory has of a block where nothing was written; then it is complete."""
        values, merging = self.values, self.merged.valid
        word, following = (
            Signal(range(self._parameters.most_words), name=name) for name in ("merged_word", "merged_next")
        )
        takes, ends = merging & values.valid, Signal()
        written = Mux(touched[merged].bit_select(word, 1), strobes.read_data, 0)
        failed = values.p.resp != Response.OKAY
        m.d.comb += [
            values.ready.eq(merging),
            following.eq(word + takes),
            ends.eq(takes & values.p.last),
            self.merged.block.eq(one),
            self.spoiled.eq(ends & failed),
        ]
        with m.If(merging):
            m.d.comb += [
                strobes.read_address.eq(Cat(following, merged)),
                content_write.addr.eq(Cat(word, merged)),
                content_write.data.eq(values.p.data),
                content_write.en.eq(Mux(takes, ~written, 0)),
                reading.i.p.index.eq(merged),
                complete.i.payload.eq(one),
                complete.i.valid.eq(ends & ~failed),
                self.completed.valid.eq(ends & ~failed),
                self.completed.place.eq(one.place),
            ]
            m.d.sync += word.eq(Mux(ends, 0, following))
        with m.If(ends):
            m.d.sync += merging.eq(0)
            with m.If(failed):
                m.d.comb += frees.bit_select(merged, 1).eq(1)

    def _feed(self, m, reading, complete, content_read, frees, words):
        """Read the words of complete blocks, one after the other."""
        word, last, index = Signal(range(words)), Signal(), reading.o.p.index
        advances = ~self.o.valid | self.o.ready
        m.d.comb += [
            last.eq(self._last_word(reading.o.p.format) == word),
            content_read.addr.eq(Cat(word, index)),
            content_read.en.eq(advances),
            reading.o.ready.eq(advances & last),
            complete.o.ready.eq(self.o.valid & self.o.ready & self.o.p.last),
            self.o.p.data.eq(content_read.data),
            self.o.p.block.eq(complete.o.payload),
        ]
        with m.If(advances):
            m.d.sync += [
                self.o.valid.eq(reading.o.valid),
                self.o.p.first.eq(word == 0),
                self.o.p.last.eq(last),
            ]
            with m.If(reading.o.valid):
                m.d.sync += word.eq(Mux(last, 0, word + 1))
                with m.If(last):
                    m.d.comb += frees.bit_select(index, 1).eq(1)

    def _unit(self, at: Value, number: Value) -> Value:
        """In which unit of its page the block begins that an address lies in."""

        def of(i: int) -> Value:
            bits = self._parameters.original_bits(i)
            return Cat(C(0, bits - self._parameters.unit_bits), at[bits:])

        return by_format(self._parameters, number, of)

    def _word(self, at: Value, number: Value) -> Value:
        """Which of its block's words an address lies in."""
        parameters = self._parameters
        return by_format(parameters, number, lambda i: at[parameters.word_bits : parameters.original_bits(i)])

    def _last_word(self, number: Value) -> Value:
        return by_format(self._parameters, number, lambda i: C(self._parameters.words[i] - 1, 8))

    def _beyond(self, number: Value) -> Value:
        """Words of a buffer that a format's block does not have."""
        parameters, most = self._parameters, self._parameters.most_words
        return by_format(parameters, number, lambda i: C((1 << most) - (1 << parameters.words[i]), most))
