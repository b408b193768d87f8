"""Stored bytes on their way to memory.

    compressed blocks --> Packer --,
                                    >-- WriteOut --> bursts of AXI
    words in bypass --> Cutter ----'

What lies side by side in memory goes there side by side: blocks share beats, beats share bursts.
"""

from amaranth import C, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from golden.bursts import BurstKind, Response

from .channels import axi4_channels
from .parameters import PAGE_BITS, MemoryParameters
from .queue import Queue
from .slots import hold

__all__ = ["Cutter", "Packer", "WriteOut", "beat_layout", "range_layout", "stored_layout"]

# Cycles without more to do after which what waits for more goes out.
_PATIENCE = 15

# Beats of a burst, and of those that wait to be sent.
_BURST, _WAITING_BEATS = 16, 32


def beat_layout(parameters: MemoryParameters) -> data.StructLayout:
    """A beat to memory: its address in beats, its bytes and strobes, and the slots that wait for it."""
    size = parameters.memory_bytes
    return data.StructLayout(
        {
            "beat": parameters.address_bits - parameters.beat_bits,
            "data": 8 * size,
            "strb": size,
            "waiting": parameters.slots,
        }
    )


def stored_layout(parameters: MemoryParameters) -> data.StructLayout:
    """A word of a compressed block: ``empty`` of its bytes do not belong to it; where the block is stored."""
    return data.StructLayout(
        {
            "data": 8 * parameters.bus_bytes,
            "empty": range(parameters.bus_bytes),
            "first": 1,
            "address": parameters.address_bits,
            "waiting": parameters.slots,
        }
    )


def range_layout(parameters: MemoryParameters) -> data.StructLayout:
    """Some beats of a page of memory: its number, and those of the first and the last within it."""
    beat = PAGE_BITS - parameters.beat_bits
    return data.StructLayout({"page": parameters.page_bits, "first": beat, "last": beat})


class Packer(wiring.Component):
    """Packs blocks that follow each other in memory into beats.

    A beat's bytes are kept until it is complete, another block goes elsewhere, nothing more comes for a
    while, or ``hurry`` says that nothing will. A beat a cycle, or a word.

    Members:
        i: words of compressed blocks, see :func:`stored_layout`.
        o: beats.
        hurry: nothing more is on its way.
        probe: beats that someone asks for.
        probed: bytes of one of them are kept.
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
                "probed": Out(1),
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
        level, lowest = Signal(range(bus_grains + grains)), Signal(range(max(grains, 2)))  # in grains
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
        total, left = Signal.like(level), Signal.like(level)
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
            self.probed.eq(has_rest & self._probes(beat, ((level - 1) >> exact_log2(grains))[:2])),
        ]
        return m

    def _probes(self, beat: Value, more: Value) -> Value:
        """Whether one of some beats is probed; those behind the first may be of another page."""
        page_bits = PAGE_BITS - self._parameters.beat_bits
        low, page = beat[:page_bits], beat[page_bits:]
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
        turned = self.i.p.data
        for i in range(exact_log2(columns)):
            turned = Mux(column[i], turned.rotate_left(bits << i), turned)
        joined = []
        for i in range(columns):
            comes = turned[bits * i :][:bits]
            if columns == size and i == size - 1:  # what has it is whole
                joined.append(comes)
                continue
            rest, stays = Signal(bits, name=f"rest{i}"), Signal(name=f"stays{i}")
            m.d.comb += stays.eq((piece == i // size) & (here > i % size))
            with m.If(inserts & self.i.ready & (emits | ~stays)):
                m.d.sync += rest.eq(comes)
            joined.append(Mux(inserts & ~stays, comes, rest))
        return Cat(joined).word_select(piece, bits * size)

    def _bytes_from(self, start: Value) -> Value:
        """Strobes of a beat's bytes from a grain on."""
        size, grain = self._parameters.memory_bytes, self._parameters.grain
        last = size // grain - 1
        return Cat(*((start <= i).replicate(grain) for i in range(last)), C(-1, grain))


class Cutter(wiring.Component):
    """Cuts words into beats of memory; a beat without strobes is left out.

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
        passes = self.o.ready | ~strb.any()
        m.d.comb += [
            self.o.valid.eq(self.i.valid & strb.any()),
            self.o.p.beat.eq(Cat(index[: exact_log2(pieces)], self.i.p.address[parameters.word_bits :])),
            self.o.p.data.eq(self.i.p.data.word_select(index, 8 * size)),
            self.o.p.strb.eq(strb),
            self.o.p.waiting.eq(self.i.p.waiting),
            self.i.ready.eq(passes & (index == pieces - 1)),
        ]
        with m.If(self.i.valid & passes):
            m.d.sync += index.eq(Mux(index == pieces - 1, 0, index + 1))
        return m


class WriteOut(wiring.Component):
    """Makes bursts of beats, sends them and waits for memory's answers.

    A burst has at most 16 beats and does not cross 4 KiB. It goes out when all of it is there: no word on W
    waits for one that has not come. Beats that do not continue a burst end it; so does ``hurry``, and a
    while without beats. A beat a cycle; a burst's address is offered in the cycle after it ended.

    Members:
        i: beats.
        ends: the beat that is taken is the last that its burst can have.
        hurry: nothing more is on its way.
        aw, w, b: of AXI.
        probe: beats that someone asks for.
        probed: one of them is here, or unanswered.
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

        # How many bursts were begun, of how many addresses and data went, and how many were answered.
        begun, sent_aw, sent_w, answered = (
            Signal(range(2 * count), name=name) for name in ("begun", "sent_aw", "sent_w", "answered")
        )
        ended, forming = Signal.like(begun), Signal()  # all but the last, if that can go on
        m.d.comb += ended.eq(begun - forming)

        # What is known of each; of the last one also here.
        burst = data.StructLayout(
            {"first": len(self.i.p.beat), "more": range(_BURST), "waiting": parameters.slots}
        )
        m.submodules.bursts = bursts = memory.Memory(shape=burst, depth=count, init=[])
        write, of_aw, of_w, of_b = bursts.write_port(), *(bursts.read_port(domain="comb") for _ in range(3))
        newest, following, last = Signal(burst), Signal(burst), Signal(page_bits)
        continues, to = Signal(), Signal(index_bits)
        m.d.comb += [
            to.eq(begun - continues),
            write.addr.eq(to),
            of_aw.addr.eq(sent_aw),
            of_w.addr.eq(sent_w),
            of_b.addr.eq(answered),
        ]

        # Where a beat goes.
        starts, takes, fills = Signal(), Signal(), Signal()
        m.submodules.beats = beats = Queue(
            data.StructLayout({"data": 8 * parameters.memory_bytes, "strb": parameters.memory_bytes}),
            _WAITING_BEATS,
        )
        m.d.comb += [
            continues.eq(forming & (page == newest.first[page_bits:]) & (low == last + 1)),
            starts.eq(~continues & (begun != (answered ^ count))),
            self.i.ready.eq(beats.i.ready & (continues | starts)),
            takes.eq(self.i.valid & self.i.ready),
            fills.eq(low.all() | (following.more == _BURST - 1)),
            self.ends.eq(fills),
            following.first.eq(Mux(continues, newest.first, self.i.p.beat)),
            following.more.eq(Mux(continues, newest.more + 1, 0)),
            following.waiting.eq(Mux(continues, newest.waiting, 0) | self.i.p.waiting),
            write.data.eq(following),
            write.en.eq(takes),
            beats.i.valid.eq(takes),
            beats.i.p.data.eq(self.i.p.data),
            beats.i.p.strb.eq(self.i.p.strb),
        ]
        patience = Signal(range(_PATIENCE + 1))
        m.d.sync += patience.eq(Mux(self.i.valid, 0, patience + (patience < _PATIENCE)))
        with m.If(takes):
            m.d.sync += [forming.eq(~fills), begun.eq(begun + starts), newest.eq(following), last.eq(low)]
        with m.Elif(forming & ~self.i.valid & (self.hurry | (patience == _PATIENCE))):
            m.d.sync += forming.eq(0)
        self._send(m, of_aw.data, of_w.data, ended, sent_aw, sent_w, beats)

        # Memory answers in order, for all have one ID.
        m.d.comb += [
            self.b.ready.eq(1),
            self.failed.eq(self.b.valid & self.b.p.resp[1]),
            self.failed_beat.eq(of_b.data.first),
            self.idle.eq(begun == answered),
        ]
        for name, response in (("slverr", Response.SLVERR), ("decerr", Response.DECERR)):
            is_it = self.b.valid & (self.b.p.resp == response)
            m.d.comb += getattr(self, name).eq(Mux(is_it, of_b.data.waiting, 0))
        m.d.sync += answered.eq(answered + self.b.valid)
        oldest = answered[:index_bits]
        hold(m, self.held, takes, self.i.p.waiting, to, self.b.valid, oldest)
        self._probe(m, takes, continues, to, self.b.valid, oldest)
        return m

    def _probe(self, m: Module, takes, continues, to, answers, oldest) -> None:
        """Whether a burst has a beat that is asked for: none leaves its page."""
        layout = range_layout(self._parameters)
        page_bits = len(self.probe.first)
        low, page = self.i.p.beat[:page_bits], self.i.p.beat[page_bits:]
        for i in range(self._parameters.bursts):
            live, beats = Signal(name=f"live{i}"), Signal(layout, name=f"beats{i}", reset_less=True)
            with m.If(takes & (to == i)):
                m.d.sync += [live.eq(1), beats.last.eq(low)]
                with m.If(~continues):
                    m.d.sync += [beats.page.eq(page), beats.first.eq(low)]
            with m.Elif(answers & (oldest == i)):
                m.d.sync += live.eq(0)
            meets = (beats.first <= self.probe.last) & (beats.last >= self.probe.first)
            with m.If(live & (beats.page == self.probe.page) & meets):
                m.d.comb += self.probed.eq(1)

    def _send(self, m: Module, of_aw, of_w, ended, sent_aw, sent_w, beats) -> None:
        """Offer addresses and data of the bursts that have ended; neither waits for the other."""
        index = Signal(range(_BURST))
        w_last = index == of_w.more
        m.d.comb += [
            self.aw.valid.eq(ended != sent_aw),
            self.aw.p.addr.eq(of_aw.first << self._parameters.beat_bits),
            self.aw.p.len.eq(of_aw.more),
            self.aw.p.size.eq(self._parameters.beat_bits),
            self.aw.p.burst.eq(BurstKind.INCR),
            self.aw.p.cache.eq(0b0010),  # answered by memory itself
            self.w.valid.eq(ended != sent_w),
            self.w.p.data.eq(beats.o.p.data),
            self.w.p.strb.eq(beats.o.p.strb),
            self.w.p.last.eq(w_last),
            beats.o.ready.eq(self.w.valid & self.w.ready),
        ]
        with m.If(self.aw.valid & self.aw.ready):
            m.d.sync += sent_aw.eq(sent_aw + 1)
        with m.If(self.w.valid & self.w.ready):
            m.d.sync += [index.eq(Mux(w_last, 0, index + 1)), sent_w.eq(sent_w + w_last)]
