"""What a read needs from memory, and when it may ask for it."""

from amaranth import C, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from golden.bursts import BurstKind

from ..hazards import Hazards
from ..interface.channels import axi4_channels
from ..interface.walker import container_mask, span_mask
from ..layouts import (
    burst_layout,
    error_layout,
    found_layout,
    place_layout,
    read_layout,
    run_layout,
)
from ..parameters import PAGE_BITS, MemoryParameters
from ..registers.regions import Lookup, Mapper, RegionMap

__all__ = ["Plan"]

_COMPARED = 6  # bits of a page


class Plan(wiring.Component):
    """Asks memory for the blocks and words of read bursts, in the order of the bursts.

    A burst is a run of blocks; a WRAP burst that goes round in more than one block or word is two. Its reply
    is planned with the first, so that nothing is asked for later before what was asked for can be taken:
    memory may take one address at a time. A burst
    whose first block is the last one planned does not ask for it again, nor one that begins where the run
    before ended for the beat that they share. In bypass memory is asked in the cycle after the burst was
    taken, else in the second.

    Blocks that are on their way to memory are waited for, first as blocks and then as beats of memory: a
    block moves one way only, so that none is missed in between.

    Members:
        map: the regions.
        ar: of the accelerator.
        mar: of the memory.
        bursts: the bursts, for their replies.
        runs: what memory was asked for.
        hazards: see :class:`rtl.memory.hazards.Hazards`.
        forget: what was planned last may be something else by now.
        drain: take no bursts.
        idle: none is here.
        undecoded: no region answers for a burst.
    """

    def __init__(self, parameters: MemoryParameters):
        self._parameters = parameters
        # Of the number of a beat within the longest burst.
        self._burst_bits = min(PAGE_BITS - parameters.beat_bits, 8)
        port = axi4_channels(parameters.address_bits, parameters.bus_bytes, parameters.id_bits)
        below = axi4_channels(parameters.address_bits, parameters.memory_bytes, 1)
        super().__init__(
            {
                "map": In(RegionMap(parameters)),
                "ar": In(stream.Signature(port["ar"])),
                "mar": Out(stream.Signature(below["ar"])),
                "bursts": Out(stream.Signature(burst_layout(read_layout(parameters)))),
                "runs": Out(stream.Signature(run_layout(parameters))),
                "hazards": Out(Hazards(parameters)),
                "forget": In(1),
                "drain": In(1),
                "idle": Out(1),
                "undecoded": Out(error_layout(parameters)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        parameters = self._parameters
        following, has_following, takes = self._following(m)
        m.submodules.lookup = lookup = Lookup(parameters)
        m.d.comb += [
            lookup.regions.eq(self.map.regions),
            lookup.page.eq(following.addr[PAGE_BITS:]),
            self.map.takes.eq(has_following & takes & lookup.found.hit),
            self.map.number.eq(lookup.found.region),
        ]

        # A burst, and whether its first range was dealt with.
        valid, second = Signal(), Signal()
        burst = Signal(following.shape(), reset_less=True)
        found = Signal(found_layout(parameters), reset_less=True)
        finishes = Signal()
        m.d.comb += takes.eq(~valid | finishes)
        with m.If(takes):
            m.d.sync += [valid.eq(has_following), burst.eq(following), found.eq(lookup.found)]

        low, page = burst.addr[:PAGE_BITS], burst.addr[PAGE_BITS:]
        blocks = found.hit & (found.format != 0)
        unit_mask = self._unit_mask(found.format)
        first, last, is_final = self._range(m, burst, low, blocks, unit_mask, second)

        # As blocks: which of them, and whether the first is at hand.
        goes, start, end = Signal(), Signal(PAGE_BITS), Signal(PAGE_BITS)
        first_place, last_place = (Signal(place_layout(parameters), name=name) for name in ("begins", "ends"))
        last_planned, has_planned = Signal(place_layout(parameters)), Signal()
        is_kept = has_planned & (last_planned == first_place) & ~second
        m.d.comb += [
            start.eq(first & ~unit_mask),
            end.eq(last & ~unit_mask),
            first_place.page.eq(page),
            first_place.unit.eq(start[parameters.unit_bits :]),
            last_place.page.eq(page),
            last_place.unit.eq(end[parameters.unit_bits :]),
            self.hazards.blocks.page.eq(page),
            self.hazards.blocks.first.eq(first_place.unit),
            self.hazards.blocks.last.eq(last_place.unit),
            self.hazards.evicts.eq(valid & blocks),
            self.hazards.blocks_anew.eq(takes | goes),
        ]
        asks = ~is_kept | (start != end)  # for anything at all

        # A range is done with once memory was asked, or will be.
        in_bypass = valid & found.hit & (found.format == 0)
        fetch, has_fetch = self._fetch(m, is_kept, found, page, start, end)
        can_begin = self.bursts.ready | second
        fetch_free = ~has_fetch | self._fetch_ends
        self._bypass_begins, self._bypass_goes, self._bypass_ends = Signal(), Signal(), Signal()
        m.d.comb += [
            goes.eq(
                valid
                & Mux(
                    in_bypass,
                    self._bypass_goes,
                    can_begin & (~blocks | (~self.hazards.has_block & (fetch_free | ~asks))),
                )
            ),
            finishes.eq(goes & is_final),
            self.bursts.valid.eq(~second & Mux(in_bypass, self._bypass_begins, goes)),
            self.bursts.p.low.eq(low),
            self.bursts.p.len.eq(burst.len),
            self.bursts.p.size.eq(burst.size),
            self.bursts.p.kind.eq(burst.burst),
            self.bursts.p.about.id.eq(burst.id),
            self.bursts.p.about.page.eq(page),
            self.bursts.p.about.hit.eq(found.hit),
            self.bursts.p.about.format.eq(found.format),
            self.bursts.p.about.kept.eq(is_kept),
            self.undecoded.valid.eq(finishes & ~found.hit),
            self.undecoded.address.eq(burst.addr),
            self.idle.eq(~valid & ~has_following & ~has_fetch),
        ]
        # What is planned may be written while it waits, or as it is planned, and memory is asked later.
        completed, is_written, was_written = self.hazards.completed, Signal(), Signal()
        m.d.comb += is_written.eq(completed.valid & _may_be(completed.place, last_place))
        m.d.sync += was_written.eq((was_written | is_written) & ~self.hazards.blocks_anew)
        with m.If(goes):
            m.d.sync += second.eq(~is_final)
        with m.If(goes & blocks):
            m.d.sync += [last_planned.eq(last_place), has_planned.eq(~was_written & ~is_written)]
        with m.Elif(completed.valid & (completed.place == last_planned)):
            m.d.sync += has_planned.eq(0)
        with m.If(self.forget):
            m.d.sync += has_planned.eq(0)
        with m.If(self._fetch_ends):
            m.d.sync += has_fetch.eq(0)
        self._ask(m, fetch, has_fetch, in_bypass, can_begin, first, last)
        with m.If(goes & blocks & asks):
            m.d.sync += [has_fetch.eq(1), fetch.eq(self._fetch_next)]
        return m

    def _following(self, m):
        """The burst that comes next, whether there is one, and a signal that says that it is taken.

        No path leads from there to the accelerator: a burst that is not taken at once is kept.
        """
        layout = {name: field.shape for name, field in self.ar.p.shape() if name != "cache"}
        kept = Signal(data.StructLayout(layout), reset_less=True)
        burst, has_kept, takes = Signal(kept.shape()), Signal(), Signal()
        m.d.comb += [
            self.ar.ready.eq(~has_kept & ~self.drain),
            *(burst[name].eq(Mux(has_kept, kept[name], self.ar.p[name])) for name in layout),
        ]
        has_one = has_kept | (self.ar.valid & ~self.drain)
        m.d.sync += has_kept.eq(has_one & ~takes)
        with m.If(~has_kept):
            m.d.sync += kept.eq(burst)
        return burst, has_one, takes

    def _range(self, m, burst, low, blocks, unit_mask, second):
        """First and last address of what is needed, and whether the burst needs nothing more."""
        parameters = self._parameters
        container, span, whole = Signal(PAGE_BITS), Signal(7), Signal(PAGE_BITS)
        first, last = Signal(PAGE_BITS), Signal(PAGE_BITS)
        m.d.comb += [
            container.eq(container_mask(burst.len, burst.size)),
            span.eq(span_mask(burst.size)),
            whole.eq(unit_mask),
            first.eq(low),
            last.eq((low | span) + (burst.len << burst.size)),
        ]
        with m.If(~blocks):
            m.d.comb += whole.eq((1 << parameters.word_bits) - 1)
        goes_round = (burst.burst == BurstKind.WRAP) & (container & ~whole).any()
        has_second = goes_round & (low & container).any()
        with m.If((burst.burst == BurstKind.FIXED) | (burst.burst == BurstKind.WRAP)):
            m.d.comb += last.eq(Mux(goes_round, low | container, low))
        with m.If(second):
            m.d.comb += [first.eq(low & ~container), last.eq(low - 1)]
        return first, last, second | ~has_second

    def _fetch(self, m, is_kept, found, page, start, end):
        """What memory is to be asked for, in the cycle after it was known."""
        parameters = self._parameters
        m.submodules.mapper = mapper = Mapper(parameters)
        layout = data.StructLayout(
            {
                "first": parameters.address_bits - parameters.beat_bits,  # that was not asked for
                "last": parameters.address_bits - parameters.beat_bits,
                "after": parameters.beat_bits,  # bytes of the last beat up to the end of the last block
                "run": run_layout(parameters),
                "asked": 1,
                "checked": 1,  # the first page
                "cleared": 1,
                "continues": 1,
                "is_old": 1,  # the last beat was written since
            }
        )
        fetch, has_fetch = Signal(layout), Signal()
        following = self._fetch_next = Signal(layout)
        self._fetch_ends = Signal()
        begin, count = Signal(PAGE_BITS), Signal(8)
        size, stop = Signal(PAGE_BITS + 1), Signal(parameters.address_bits)
        m.d.comb += begin.eq(start)
        for i, fmt in enumerate(parameters.formats):
            with m.If(found.format == i + 1):
                m.d.comb += [
                    begin.eq(start + Mux(is_kept, fmt.original_bytes, 0)),
                    count.eq((end - begin)[parameters.original_bits(i) : PAGE_BITS]),
                    size.eq((count + 1) * fmt.target),
                ]
        m.d.comb += [
            mapper.format.eq(found.format),
            mapper.origin.eq(self.map.origin),
            mapper.page.eq(page),
            mapper.low.eq(begin),
            stop.eq(mapper.address + size - 1),
            following.first.eq(mapper.address[parameters.beat_bits :]),
            following.last.eq(stop[parameters.beat_bits :]),
            following.after.eq(stop + 1),
            following.run.format.eq(found.format),
            following.run.count.eq(count),
            following.run.skip.eq(mapper.address[: parameters.beat_bits]),
            following.run.number.eq(mapper.number),
        ]
        self._page_of_memory = mapper.address[PAGE_BITS:]  # in bypass
        return fetch, has_fetch

    def _ask(self, m, fetch, has_fetch, in_bypass, can_begin, first, last) -> None:
        """Bursts of memory, of so many beats that none crosses 4 KiB; runs go along with their first."""
        parameters = self._parameters
        address, length = Signal(parameters.address_bits), Signal(8)
        m.d.comb += [
            self.mar.p.addr.eq(address),
            self.mar.p.len.eq(length),
            self.mar.p.size.eq(parameters.beat_bits),
            self.mar.p.burst.eq(BurstKind.INCR),
            self.mar.p.cache.eq(0b0010),
        ]
        asks = self.mar.valid & self.mar.ready
        span = PAGE_BITS - parameters.beat_bits + 1  # of two pages
        clear = self._check(m, fetch, has_fetch)
        begins, beats, ends, following = self._blocks_of_memory(m, fetch, has_fetch, clear, asks)
        needs_none = self._continues & (fetch.first[:span] == fetch.last[:span])
        goes = has_fetch & clear & (fetch.asked | self.runs.ready)
        with m.If(has_fetch):
            m.d.comb += [
                self.mar.valid.eq(goes & ~needs_none),
                address.eq(begins << parameters.beat_bits),
                length.eq(beats),
                self.runs.valid.eq(goes & (asks | needs_none) & ~fetch.asked),
                self.runs.payload.eq(fetch.run),
                self.runs.p.beats.eq(fetch.last - fetch.first + 1 - self._continues),
                self.runs.p.continues.eq(self._continues),
                self._fetch_ends.eq(goes & (needs_none | (asks & ends))),
            ]
            with m.If(clear):
                m.d.sync += [fetch.cleared.eq(1), fetch.continues.eq(self._continues)]
            with m.If(asks):
                m.d.sync += [fetch.asked.eq(1), fetch.first.eq(following)]
        with m.Else():
            self._ask_bypass(m, in_bypass, can_begin, asks, first, last, address, length)

    def _check(self, m, fetch, has_fetch) -> Value:
        """Whether none of the beats are on their way to memory any more; of two pages each has a cycle."""
        probe, page = self.hazards.beats, PAGE_BITS - self._parameters.beat_bits
        is_last = fetch.checked | (fetch.first[page] == fetch.last[page])
        m.d.comb += [
            probe.page.eq(Mux(fetch.checked, fetch.last[page:], fetch.first[page:])),
            probe.first.eq(Mux(fetch.checked, 0, fetch.first[:page])),
            probe.last.eq(Mux(is_last, fetch.last[:page], -1)),
        ]
        with m.If(has_fetch & ~self.hazards.has_beat):
            m.d.sync += fetch.checked.eq(1)
        is_another = ~fetch.checked & ~self.hazards.has_beat
        m.d.comb += self.hazards.beats_anew.eq(~has_fetch | self._fetch_ends | is_another)
        clear = Signal()
        m.d.comb += clear.eq(fetch.cleared | (is_last & ~self.hazards.has_beat))
        return clear

    def _blocks_of_memory(self, m, fetch, has_fetch, clear, asks):
        """The first beat to ask for and how many more of its burst, whether no burst follows, and with which
        beat it would begin.

        A beat that two runs share is asked for once, if nothing was written to it in between.
        """
        rest_beat, rest_after, has_rest = Signal.like(fetch.first), Signal.like(fetch.after), Signal()
        same = has_rest & (rest_beat == fetch.first) & (rest_after == fetch.run.skip)
        self._continues = continues = Signal()
        begins, beats, ends = Signal.like(fetch.first), Signal(8), Signal()
        following = Signal.like(begins)
        # A run has beats of one page, or of two: what follows the end of a page is in the last beat's.
        span, page = self._burst_bits, PAGE_BITS - self._parameters.beat_bits

        def or_next_page(number: Value, before: Value) -> Value:
            """The beat of this number in the page of another one, or if it is too large in the last page."""
            return Cat(number[:page], Mux(number[page], fetch.last[page:], before[page:]))

        m.d.comb += [
            continues.eq(~fetch.asked & Mux(fetch.cleared, fetch.continues, same)),
            begins.eq(or_next_page(fetch.first[:page] + continues, fetch.first)),
            ends.eq(begins[span : page + 1] == fetch.last[span : page + 1]),
            beats.eq(Mux(ends, fetch.last[:span] - begins[:span], ~begins[:span])),
            following.eq(or_next_page((begins[:page] | ((1 << span) - 1)) + 1, begins)),
        ]
        packed = self.hazards.packed
        writes_last = packed.valid & (packed.beat == fetch.last)
        with m.If(has_fetch & writes_last):
            m.d.sync += fetch.is_old.eq(1)
        with m.If(packed.valid & (packed.beat == rest_beat)):
            m.d.sync += has_rest.eq(0)
        with m.If(self._fetch_ends):
            m.d.sync += [
                rest_beat.eq(fetch.last),
                rest_after.eq(fetch.after),
                has_rest.eq((fetch.after != 0) & ~fetch.is_old & ~writes_last),
            ]
        with m.If(self.forget):
            m.d.sync += has_rest.eq(0)
        return begins, beats, ends, following

    def _ask_bypass(self, m, in_bypass, can_begin, asks, first, last, address, length) -> None:
        """Words in bypass, in the cycle in which their range is known."""
        parameters = self._parameters
        word, more = parameters.word_bits, _piece_bits(parameters)
        window_bits = self._burst_bits + parameters.beat_bits
        begins, words = Signal(PAGE_BITS), Signal(PAGE_BITS - word)
        stop, is_first = Signal(PAGE_BITS), C(1, 1)
        m.d.comb += [begins.eq(first), stop.eq(last), self._bypass_ends.eq(1)]
        if window_bits < PAGE_BITS:  # a page is several bursts
            window, begun = Signal(PAGE_BITS - window_bits), Signal()
            is_first = ~begun
            with m.If(begun):
                m.d.comb += begins.eq(window << window_bits)
            with m.If(begins[window_bits:] != last[window_bits:]):
                m.d.comb += [stop.eq(begins | ((1 << window_bits) - 1)), self._bypass_ends.eq(0)]
            with m.If(asks):
                m.d.sync += [window.eq(begins[window_bits:] + 1), begun.eq(~self._bypass_ends)]
        m.d.comb += [
            words.eq(stop[word:] - begins[word:]),
            self.mar.valid.eq(in_bypass & ((self.runs.ready & can_begin) | ~is_first)),
            address.eq(Cat(C(0, word), begins[word:], self._page_of_memory)),
            length.eq(Cat(C((1 << more) - 1, more), words)),
            self.runs.valid.eq(asks & is_first),
            self.runs.p.format.eq(0),
            self.runs.p.count.eq(last[word:] - first[word:]),
            self._bypass_begins.eq(asks & is_first),
            self._bypass_goes.eq(asks & self._bypass_ends),
        ]

    def _unit_mask(self, number: Value) -> Value:
        """The bits of an address within an uncompressed block of a format, by the format's number."""
        mask = C((1 << PAGE_BITS - 1) - 1, PAGE_BITS)
        for i in range(len(self._parameters.formats)):
            mask = Mux(number == i + 1, C((1 << self._parameters.original_bits(i)) - 1, PAGE_BITS), mask)
        return mask


def _may_be(place: Value, other: Value) -> Value:
    """Whether they may be the same place: they are not if low bits differ."""
    return Cat(place.unit, place.page[:_COMPARED]) == Cat(other.unit, other.page[:_COMPARED])


def _piece_bits(parameters: MemoryParameters) -> int:
    """Of the number of a beat within a word of the bus."""
    return parameters.word_bits - parameters.beat_bits
