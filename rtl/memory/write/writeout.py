"""Stored bytes on their way to memory.

    compressed blocks --> Packer --,
                                    >-- WriteOut --> bursts of AXI
    words in bypass --> Cutter ----'

What lies side by side in memory goes there side by side: blocks share beats, beats share bursts.
"""

from amaranth import C, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from golden.bursts import BurstKind, Response

from ...arith.sums import rotate
from ..interface.channels import axi4_channels
from ..layouts import TAG_BITS, beat_layout, page_tag, range_layout, stored_layout
from ..parameters import PAGE_BITS, MemoryParameters
from ..queue import Queue
from .slots import hold

__all__ = ["MOST_BEATS", "Cutter", "Packer", "WriteOut"]

# Cycles without more to do after which what waits for more goes out.
_PATIENCE = 15
MOST_BEATS = 16  # of a burst
_WAITING_BEATS = 32  # to be sent


class Packer(wiring.Component):
    """Packs blocks that follow each other in memory into beats.

    A beat's bytes are kept until it is complete, another block goes elsewhere, nothing more comes for a
    while, or ``hurry`` says that nothing will. A beat a cycle, or a word.

    Members:
        i: words of compressed blocks, see :func:`stored_layout`.
        o: beats.
        hurry: nothing more is on its way.
        probe: beats that someone asks for.
        probe_anew: from the next cycle on others; what comes later does not count.
        probed: bytes of one of them are kept.
        is_late: what is given does not count, nor what will be.
        held: slots that wait for bytes that are kept.
        idle: nothing is kept.
    """

    def __init__(self, parameters: MemoryParameters):
        self._parameters = parameters
        super().__init__(
            {
                "i": In(stream.Signature(stored_layout(parameters))),
                "o": Out(stream.Signature(beat_layout(parameters))),
                "hurry": In(1),
                "probe": In(range_layout(parameters)),
                "probe_anew": In(1),
                "probed": Out(1),
                "is_late": Out(1),
                "held": Out(parameters.slots),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        parameters = self._parameters
        size, grain = parameters.memory_bytes, parameters.grain
        grains, grain_bits = size // grain, exact_log2(grain)

        bus_grains = parameters.bus_bytes // grain
        # In grains. Of a word that is no wider than a beat, less than a beat is left.
        is_wide = bus_grains > grains
        level, lowest = (
            Signal(range(bus_grains + grains if is_wide else grains)),
            Signal(range(max(grains, 2))),
        )
        beat = Signal(parameters.address_bits - parameters.beat_bits)  # the first that has some of it
        waiting = Signal(parameters.slots)
        has_rest, flushes = Signal(), Signal()

        # Where the next word goes.
        address = self.i.p.address
        offset = (address >> grain_bits)[: exact_log2(grains)] if grains > 1 else C(0, 1)
        elsewhere = has_rest & ((beat != address[parameters.beat_bits :]) | (level != offset))
        here, here_lowest, here_beat = Signal.like(level), Signal.like(lowest), Signal.like(beat)
        m.d.comb += [here.eq(level), here_lowest.eq(lowest), here_beat.eq(beat)]
        with m.If(self.i.valid & self.i.p.first & ~has_rest):
            m.d.comb += [
                here.eq(offset),
                here_lowest.eq(offset),
                here_beat.eq(address[parameters.beat_bits :]),
            ]

        # A beat that is whole goes first; then what cannot go on; then a word comes.
        drains, makes_way, inserts, emits = Signal(), Signal(), Signal(), Signal()
        total, left = Signal(range(bus_grains + grains)), Signal.like(level)
        m.d.comb += [
            drains.eq(level >= grains),
            makes_way.eq(~drains & (flushes | (self.i.valid & self.i.p.first & elsewhere))),
            inserts.eq(self.i.valid & ~drains & ~makes_way),
            total.eq(here + Mux(inserts, bus_grains - (self.i.p.empty >> grain_bits), 0)),
            emits.eq(drains | (inserts & (total >= grains))),
            left.eq(total - Mux(emits, grains, 0)),
            self.o.valid.eq(makes_way | emits),
            self.i.ready.eq(inserts & (~emits | self.o.ready)),
            self.o.p.beat.eq(here_beat),
            self.o.p.data.eq(self._joined(m, inserts, emits, here, here_beat)),
            self.o.p.strb.eq(
                self._bytes_from(Mux(makes_way, lowest, here_lowest))
                & Mux(makes_way, ~self._bytes_from(level), ~C(0, size))
            ),
            self.o.p.waiting.eq(waiting | Mux(inserts, self.i.p.waiting, 0)),
        ]
        patience = Signal(range(_PATIENCE + 1))
        m.d.sync += patience.eq(Mux(self.i.valid, 0, patience + (patience < _PATIENCE)))
        with m.If(makes_way), m.If(self.o.ready):
            m.d.sync += [
                level.eq(0),
                lowest.eq(0),
                waiting.eq(0),
                has_rest.eq(0),
                flushes.eq(0),
            ]
        with m.Elif((emits & self.o.ready) | (inserts & ~emits)):
            m.d.sync += [
                level.eq(left),
                lowest.eq(Mux(emits, 0, here_lowest)),
                beat.eq(here_beat + emits),
                has_rest.eq(left != 0),
                # What was there before a word came is gone with the first beat.
                waiting.eq(
                    Mux(drains | ~emits, waiting, 0) & (left != 0).replicate(parameters.slots)
                    | Mux(inserts & (left != 0), self.i.p.waiting, 0)
                ),
            ]
        with m.Elif(~self.i.valid & has_rest & ~drains & (self.hurry | (patience == _PATIENCE))):
            m.d.sync += flushes.eq(1)
        m.d.comb += [
            self.held.eq(waiting),
            self.idle.eq(~has_rest),
            self.probed.eq(
                has_rest
                & ~self.is_late
                & self._probes(beat, ((level - 1) >> exact_log2(grains))[:2], is_wide)
            ),
        ]
        with m.If(self.probe_anew):
            m.d.sync += self.is_late.eq(0)
        with m.Elif(~has_rest | (self.o.valid & self.o.ready & ~drains)):  # what was kept is gone
            m.d.sync += self.is_late.eq(1)
        return m

    def _probes(self, beat: Value, more: Value, has_more: bool) -> Value:
        """Whether one of some beats is probed; those behind the first, if any, may be of another page."""
        page_bits = PAGE_BITS - self._parameters.beat_bits
        low, page = beat[:page_bits], beat[page_bits:]
        if not has_more:
            return (page == self.probe.page) & (low <= self.probe.last) & (low >= self.probe.first)
        last = low + more
        is_in = (page == self.probe.page) & (low <= self.probe.last) & (last >= self.probe.first)
        goes_on = last[page_bits:].any() & ((page + 1)[: len(page)] == self.probe.page)
        return is_in | (goes_on & (last[:page_bits] >= self.probe.first))

    def _joined(self, m: Module, inserts: Value, emits: Value, here: Value, beat: Value) -> Value:
        """The bytes of a beat: what is kept of it, and from a grain on the word that comes.

        A word is turned once, so that each of its grains is where it will be in a beat, and stays there.
        """
        parameters = self._parameters
        bits, size = 8 * parameters.grain, parameters.memory_bytes // parameters.grain
        columns, pieces = (
            parameters.bus_bytes // parameters.grain,
            parameters.bus_bytes // parameters.memory_bytes,
        )
        piece = beat[: exact_log2(pieces)]
        column = Cat(here[: exact_log2(size)], piece)
        turned = rotate(m, "turned", self.i.p.data, column[: exact_log2(columns)], bits, left=True)
        joined, takes = [], Signal()
        m.d.comb += takes.eq(inserts & self.i.ready)
        for i in range(columns):
            comes = turned[bits * i :][:bits]
            if columns == size and i == size - 1:  # what has it is whole
                joined.append(comes)
                continue
            rest, stays, is_new = (
                Signal(n, name=f"{name}{i}") for name, n in (("rest", bits), ("stays", 1), ("is_new", 1))
            )
            m.d.comb += [stays.eq((piece == i // size) & (here > i % size)), is_new.eq(inserts & ~stays)]
            with m.If(takes & (emits | ~stays)):
                m.d.sync += rest.eq(comes)
            joined.append(Mux(is_new, comes, rest))
        return Cat(joined).word_select(piece, bits * size)

    def _bytes_from(self, start: Value) -> Value:
        """Strobes of a beat's bytes from a grain on."""
        size, grain = self._parameters.memory_bytes, self._parameters.grain
        last = size // grain - 1
        return Cat(*((start <= i).replicate(grain) for i in range(last)), C(-1, grain))


class Cutter(wiring.Component):
    """Cuts words into beats of memory; a beat without strobes is left out when it could be taken.

    Members:
        i: words, each at a multiple of its size.
        o: beats.
    """

    def __init__(self, parameters: MemoryParameters):
        self._parameters = parameters
        word = data.StructLayout(
            {
                "address": parameters.address_bits,
                "data": 8 * parameters.bus_bytes,
                "strb": parameters.bus_bytes,
                "waiting": parameters.slots,
            }
        )
        super().__init__(
            {"i": In(stream.Signature(word)), "o": Out(stream.Signature(beat_layout(parameters)))}
        )

    def elaborate(self, platform):
        m = Module()
        parameters = self._parameters
        size = parameters.memory_bytes
        pieces = parameters.bus_bytes // size
        index = Signal(range(max(pieces, 2)))
        strb = self.i.p.strb.word_select(index, size)
        m.d.comb += [
            self.o.valid.eq(self.i.valid & strb.any()),
            self.o.p.beat.eq(Cat(index[: exact_log2(pieces)], self.i.p.address[parameters.word_bits :])),
            self.o.p.data.eq(self.i.p.data.word_select(index, 8 * size)),
            self.o.p.strb.eq(strb),
            self.o.p.waiting.eq(self.i.p.waiting),
            self.i.ready.eq(self.o.ready & (index == pieces - 1)),
        ]
        with m.If(self.i.valid & self.o.ready):
            m.d.sync += index.eq(Mux(index == pieces - 1, 0, index + 1))
        return m


class WriteOut(wiring.Component):
    """Makes bursts of beats, sends them and waits for memory's answers.

    A burst has at most 16 beats and does not cross 4 KiB. It goes out when all of it is there: no word on W
    waits for one that has not come. Beats that do not continue a burst end it; so does ``hurry``, and a
    while without beats. A beat a cycle; a burst's address is offered in the third cycle after it ended.

    Members:
        i: beats.
        ends: the beat that is taken is the last that its burst can have.
        hurry: nothing more is on its way.
        aw, w, b: of AXI.
        probe: beats that someone asks for.
        probe_anew: from the next cycle on others.
        is_late: what comes does not count, but for what continues a burst.
        probed: one of them is here, or unanswered; or one of another page with the same tag.
        held: slots that wait for a burst that is here or unanswered.
        slverr, decerr: slots of which a burst has had this answer.
        failed, failed_beat: a burst has had one of them; its first beat.
        idle: nothing is here, and nothing unanswered.
    """

    def __init__(self, parameters: MemoryParameters):
        self._parameters = parameters
        channels = axi4_channels(parameters.address_bits, parameters.memory_bytes, 1)
        super().__init__(
            {
                "i": In(stream.Signature(beat_layout(parameters))),
                "ends": Out(1),
                "hurry": In(1),
                "aw": Out(stream.Signature(channels["aw"])),
                "w": Out(stream.Signature(channels["w"])),
                "b": In(stream.Signature(channels["b"])),
                "probe": In(range_layout(parameters)),
                "probe_anew": In(1),
                "is_late": In(1),
                "probed": Out(1),
                "held": Out(parameters.slots),
                "slverr": Out(parameters.slots),
                "decerr": Out(parameters.slots),
                "failed": Out(1),
                "failed_beat": Out(parameters.address_bits - parameters.beat_bits),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        parameters = self._parameters
        count, page_bits = parameters.bursts, PAGE_BITS - parameters.beat_bits
        index_bits = exact_log2(count)
        low, page = self.i.p.beat[:page_bits], self.i.p.beat[page_bits:]

        # Bursts since reset, modulo twice as many as there can be: begun, and answered.
        begun, answered = (Signal(range(2 * count), name=name) for name in ("begun", "answered"))
        # The burst that is being formed, and whether it has all the beats that it can have.
        burst = data.StructLayout(
            {"first": len(self.i.p.beat), "more": range(MOST_BEATS), "waiting": parameters.slots}
        )
        forms, is_full, forming, following = Signal(), Signal(), Signal(burst), Signal(burst)
        last = Signal(page_bits)

        # Where a beat goes.
        continues, takes, fills, closes = Signal(), Signal(), Signal(), Signal()
        to = Signal(index_bits)
        patience = Signal(range(_PATIENCE + 1))
        m.submodules.beats = beats = Queue(
            data.StructLayout({"data": 8 * parameters.memory_bytes, "strb": parameters.memory_bytes}),
            _WAITING_BEATS,
        )
        is_next = (page == forming.first[page_bits:]) & (low == last + 1)
        m.d.comb += [
            continues.eq(forms & ~is_full & is_next),
            to.eq(begun - continues),
            self.i.ready.eq(beats.i.ready & (continues | (begun != (answered ^ count)))),
            takes.eq(self.i.valid & self.i.ready),
            fills.eq(low.all() | (following.more == MOST_BEATS - 1)),
            self.ends.eq(fills),
            closes.eq(forms & (is_full | Mux(self.i.valid, ~is_next, self.hurry | (patience == _PATIENCE)))),
            following.first.eq(Mux(continues, forming.first, self.i.p.beat)),
            following.more.eq(Mux(continues, forming.more + 1, 0)),
            following.waiting.eq(Mux(continues, forming.waiting, 0) | self.i.p.waiting),
            beats.i.valid.eq(takes),
            beats.i.p.data.eq(self.i.p.data),
            beats.i.p.strb.eq(self.i.p.strb),
        ]
        m.d.sync += patience.eq(Mux(self.i.valid, 0, patience + (patience < _PATIENCE)))
        with m.If(takes):
            m.d.sync += [
                forms.eq(1),
                is_full.eq(fills),
                begun.eq(begun + ~continues),
                forming.eq(following),
                last.eq(low),
            ]
        with m.Elif(closes):
            m.d.sync += forms.eq(0)
        unanswered = self._send(m, closes, forming, beats)

        # Memory answers in order, for all have one ID.
        fails, answers = Signal(), Signal()
        m.d.comb += [
            self.b.ready.eq(unanswered.o.valid),
            answers.eq(self.b.valid & self.b.ready),
            unanswered.o.ready.eq(answers),
            fails.eq(answers & self.b.p.resp[1]),
            self.failed.eq(fails),
            self.failed_beat.eq(unanswered.o.p.first),
            self.idle.eq(begun == answered),
        ]
        for name, response in (("slverr", Response.SLVERR), ("decerr", Response.DECERR)):
            is_it = answers & (self.b.p.resp == response)
            m.d.comb += getattr(self, name).eq(Mux(is_it, unanswered.o.p.waiting, 0))
        m.d.sync += answered.eq(answered + answers)
        oldest = answered[:index_bits]
        hold(m, self.held, takes, self.i.p.waiting, to, answers, oldest)
        self._probe(m, takes, continues, to, answers, oldest)
        return m

    def _probe(self, m: Module, takes, continues, to, answers, oldest) -> None:
        """Whether a burst may have a beat that is asked for: none leaves its page."""
        page_bits = len(self.probe.first)
        low, page = self.i.p.beat[:page_bits], self.i.p.beat[page_bits:]
        layout = data.StructLayout({"tag": TAG_BITS, "first": page_bits, "last": page_bits})
        tag = Signal(TAG_BITS)
        m.d.comb += tag.eq(page_tag(self.probe.page))
        for i in range(self._parameters.bursts):
            live, beats = Signal(name=f"live{i}"), Signal(layout, name=f"beats{i}", reset_less=True)
            is_late = Signal(name=f"is_late{i}")
            with m.If(self.probe_anew):
                m.d.sync += is_late.eq(0)
            with m.Elif(takes & ~continues & (to == i)):
                m.d.sync += is_late.eq(self.is_late)
            with m.If(takes & (to == i)):
                m.d.sync += [live.eq(1), beats.last.eq(low)]
                with m.If(~continues):
                    m.d.sync += [beats.tag.eq(page_tag(page)), beats.first.eq(low)]
            with m.Elif(answers & (oldest == i)):
                m.d.sync += live.eq(0)
            meets = (beats.first <= self.probe.last) & (beats.last >= self.probe.first)
            with m.If(live & ~is_late & (beats.tag == tag) & meets):
                m.d.comb += self.probed.eq(1)

    def _send(self, m: Module, closes, burst, beats) -> Queue:
        """Offer addresses and data of the bursts that have ended; neither waits for the other.

        Returns:
            What memory has yet to answer: the first beat, and who waits.
        """
        parameters, count = self._parameters, self._parameters.bursts
        first, more = len(burst.first), range(MOST_BEATS)
        of_aw = data.StructLayout({"first": first, "more": more})
        of_b = data.StructLayout({"first": first, "waiting": parameters.slots})
        m.submodules.addresses = addresses = Queue(of_aw, count)
        m.submodules.lengths = lengths = Queue(data.StructLayout({"more": more}), count)
        m.submodules.unanswered = unanswered = Queue(of_b, count)
        for queue in (addresses, lengths, unanswered):
            m.d.comb += queue.i.valid.eq(closes)
            m.d.comb += (queue.i.p[name].eq(burst[name]) for name, _ in queue.i.p.shape())
        index = Signal(range(MOST_BEATS))
        w_last = index == lengths.o.p.more
        sends, ends = Signal(), Signal()
        m.d.comb += [
            self.aw.valid.eq(addresses.o.valid),
            self.aw.p.addr.eq(addresses.o.p.first << parameters.beat_bits),
            self.aw.p.len.eq(addresses.o.p.more),
            self.aw.p.size.eq(parameters.beat_bits),
            self.aw.p.burst.eq(BurstKind.INCR),
            self.aw.p.cache.eq(0b0010),  # answered by memory itself
            addresses.o.ready.eq(self.aw.ready),
            self.w.valid.eq(lengths.o.valid & beats.o.valid),
            self.w.p.data.eq(beats.o.p.data),
            self.w.p.strb.eq(beats.o.p.strb),
            self.w.p.last.eq(w_last),
            sends.eq(self.w.valid & self.w.ready),
            ends.eq(sends & w_last),
            beats.o.ready.eq(lengths.o.valid & self.w.ready),
            lengths.o.ready.eq(ends),
        ]
        with m.If(sends):
            m.d.sync += index.eq(Mux(w_last, 0, index + 1))
        return unanswered
