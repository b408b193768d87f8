"""Blocks come out in the order and the number in which they went in, and in time."""

from __future__ import annotations

from dataclasses import dataclass

from amaranth import Module, Mux, ResetSignal, Signal, signed
from amaranth.hdl import Assert, Assume
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from .contract import drive

__all__ = ["NeverHangs", "Rate", "Tally"]


@dataclass(frozen=True)
class Rate:
    """What becomes of a tensor's bytes: each piece of ``taken`` bytes becomes one of ``given`` bytes.

    Args:
        word: bytes of a word that goes in.
        taken: bytes of a piece; what the last one of a tensor lacks is made up for.
        given: bytes of what a piece becomes. A component with as many changes none of them.
        sent: bytes of a word that comes out.
        ragged: whether any word may have empty bytes, not only a tensor's last.
    """

    word: int
    taken: int
    given: int
    sent: int
    ragged: bool = False


class Tally(wiring.Component):
    """Proves the number, the order and the latency of what comes out, for any input and any stalls.

    The solver picks one tensor, after any number of others. While words of that tensor come out, there must
    be bytes for them, and ``last`` and ``empty`` must be where these end. If the component only moves bytes,
    the solver picks one of them as well, which must come out in its place, unchanged.

    Args:
        component: has the word streams ``i`` and ``o``.
        rate: what it makes of a tensor.
        latency: once all bytes of a word were taken, at most ``latency`` - 1 cycles in a row offer nothing.
        whole_blocks: tensors are assumed to end with a whole piece.
    """

    def __init__(self, component: wiring.Component, rate: Rate, latency: int, whole_blocks: bool = False):
        self._component = component
        self._rate = rate
        self._latency = latency
        self._whole_blocks = whole_blocks
        pick = {"pick": In(1), "pick_byte": In(1), "lane": In(range(rate.word))}
        super().__init__({"i": component.signature.members["i"], "ready": In(1), **pick})

    def elaborate(self, platform):
        m = Module()
        rate = self._rate
        m.submodules.component = component = self._component
        i, o = component.i, component.o
        drive(m, i, self.i)
        m.d.comb += [o.ready.eq(self.ready), Assume(i.p.empty < Mux(i.p.last | rate.ragged, rate.word, 1))]
        takes, gives = i.valid & i.ready, o.valid & o.ready

        # Registers count what was taken and given in the cycles before. What is `_here` counts the word that
        # is offered as well: a component may answer it before it takes it.
        ahead = Signal(4)  # tensors of which all was taken but not all given, up to the picked one
        starts = Signal(init=1)  # the next word starts a tensor
        waits = Signal()  # the word that is offered was offered before
        picked, closed, done = Signal(), Signal(), Signal()  # the picked tensor came, was taken, was given
        rest = Signal(range(rate.taken))  # bytes of the tensor that goes in that are no piece yet
        most = 4 * (rate.word // rate.taken + 1) * rate.given + 16 * rate.sent
        due = Signal(signed(most.bit_length() + 1))  # bytes of pieces that are still to come out

        picked_here, closed_here = Signal(), Signal()
        belongs = Signal()
        filled = Signal(range(rate.taken + rate.word))
        whole = Signal(range((rate.word + 2 * rate.taken) // rate.taken + 1))
        due_here = Signal.like(due)
        m.d.comb += [
            picked_here.eq(picked | (i.valid & starts & ~waits & self.pick)),
            belongs.eq(i.valid & picked_here & ~closed),
            closed_here.eq(closed | (belongs & i.p.last)),
            filled.eq(rest + rate.word - i.p.empty),
            whole.eq((filled + Mux(i.p.last, rate.taken - 1, 0)) // rate.taken),
            due_here.eq(due + Mux(belongs, whole * rate.given, 0)),
        ]
        is_turn = picked_here & ~done & (ahead == 0)  # what comes out is the picked tensor's
        m.d.sync += [
            waits.eq(i.valid & ~i.ready),
            picked.eq(picked_here),
            due.eq(Mux(takes, due_here, due) - Mux(gives & is_turn, rate.sent, 0)),
        ]
        with m.If(takes):
            m.d.sync += [starts.eq(i.p.last), closed.eq(closed_here)]
            m.d.sync += rest.eq(Mux(i.p.last, 0, filled % rate.taken))
        with m.If(gives & is_turn & o.p.last):
            m.d.sync += done.eq(1)
        others_in = takes & i.p.last & ~picked_here
        others_out = gives & o.p.last & ~is_turn & ~done
        m.d.sync += ahead.eq(ahead + others_in - others_out)
        m.d.comb += Assume(ahead < 15)

        if self._whole_blocks:
            m.d.comb += Assume(~i.p.last | (filled % rate.taken == 0))

        # Number and order. What is offered in a reset is never taken.
        valid = o.valid & ~ResetSignal()
        silent = starts & ~i.valid & (ahead == 0) & ~picked
        m.d.comb += [
            Assert(~(valid & silent), "an empty component offers nothing"),
            Assert(~(valid & others_out & (ahead == 0) & ~others_in), "a tensor ends once"),
        ]
        with m.If(valid & is_turn):
            ends = closed_here & (due_here <= rate.sent)
            m.d.comb += [
                Assert((due_here >= rate.sent) | (closed_here & (due_here > 0)), "a word has its bytes"),
                Assert(o.p.last == ends, "last is on the last word"),
                Assert(o.p.empty == Mux(ends, rate.sent - due_here, 0), "empty is what the word lacks"),
            ]
        if rate.taken == rate.given:
            self._track(m, i, o, belongs & ~waits, due + rest, valid & o.ready & is_turn)

        # Latency.
        is_due = (ahead > 0) | (picked & ~done & ((due >= rate.sent) | (closed & (due > 0))))
        late = Signal(range(self._latency + 1))
        m.d.sync += late.eq(Mux(is_due & ~o.valid, late + 1, 0))
        m.d.comb += Assert(
            ~(is_due & ~o.valid) | ResetSignal() | (late < self._latency - 1), "a word is offered in time"
        )
        return m

    def _track(self, m: Module, i, o, comes, before, gives) -> None:
        """A byte of the picked tensor comes out in its place, behind all those ``before`` its word."""
        rate = self._rate
        marked = Signal()
        byte = Signal(8)
        distance = Signal(before.shape())  # bytes that come out before it
        marked_here, byte_here, distance_here = Signal(), Signal(8), Signal.like(distance)
        m.d.comb += [marked_here.eq(marked), byte_here.eq(byte), distance_here.eq(distance)]
        m.d.comb += Assume((i.p.data >> (8 * (rate.word - i.p.empty))[: len(self.lane) + 4]) == 0)
        is_byte = self.lane < rate.word - i.p.empty
        with m.If(comes & is_byte & self.pick_byte & ~marked):
            m.d.comb += [
                marked_here.eq(1),
                byte_here.eq(i.p.data.word_select(self.lane, 8)),
                distance_here.eq(before + self.lane),
            ]
        m.d.sync += [marked.eq(marked_here), byte.eq(byte_here), distance.eq(distance_here)]
        leaves = marked_here & gives & (distance_here >= 0)
        with m.If(leaves):
            m.d.sync += distance.eq(distance_here - rate.sent)
            with m.If(distance_here < rate.sent):
                m.d.comb += Assert(
                    o.p.data.word_select(distance_here.as_unsigned(), 8) == byte_here,
                    "a byte is moved unchanged",
                )


class NeverHangs(wiring.Component):
    """Proves that any input at all, also such as no compressor sends, passes while the sink is ready.

    Each word that goes in with ``last`` leads to one word that comes out with ``last``.

    Args:
        component: has the word streams ``i`` and ``o``.
        wait: cycles that a word waits at most until it is taken.
        drain: cycles after which all has come out, if nothing more went in.
    """

    def __init__(self, component: wiring.Component, wait: int, drain: int):
        self._component = component
        self._wait = wait
        self._drain = drain
        super().__init__({"i": component.signature.members["i"], "ready": In(1)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.component = component = self._component
        i, o = component.i, component.o
        drive(m, i, self.i)
        m.d.comb += o.ready.eq(self.ready)
        takes, gives = i.valid & i.ready, o.valid & o.ready

        lasts = Signal(6)  # words with last that went in and did not come out
        comes = takes & i.p.last
        m.d.sync += lasts.eq(lasts + comes - (gives & o.p.last))
        m.d.comb += Assert(
            (lasts != 0) | comes | ~(gives & o.p.last) | ResetSignal(), "a last comes out once"
        )

        waited = Signal(range(self._wait + 1))
        m.d.sync += waited.eq(Mux(o.ready & i.valid & ~i.ready, waited + 1, 0))
        m.d.comb += Assert((waited < self._wait) | ~o.ready | ~i.valid | i.ready, "a word is taken in time")

        quiet = Signal(range(self._drain + 1))
        is_quiet = quiet == self._drain
        m.d.sync += quiet.eq(Mux(o.ready & ~takes, Mux(is_quiet, quiet, quiet + 1), 0))
        m.d.comb += Assert(~is_quiet | (~o.valid & (lasts == 0)) | ResetSignal(), "what went in comes out")
        return m
