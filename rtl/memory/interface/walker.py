"""Bursts taken apart into beats."""

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from golden.bursts import BurstKind

from ..layouts import burst_layout
from ..parameters import PAGE_BITS, MemoryParameters

__all__ = ["Walker", "container_mask", "span_mask"]


def span_mask(size: Value) -> Value:
    """The bits of an address within a beat of so many bytes, as a power of two."""
    return Cat(size > i for i in range(7))


def container_mask(length: Value, size: Value) -> Value:
    """The bits of an address within what a WRAP burst goes round in."""
    mask = (length[:4] << size) | span_mask(size)
    return mask[:PAGE_BITS]


class Walker(wiring.Component):
    """Gives each beat of a burst its address.

    A burst's first beat is offered in the cycle after the burst was taken, another one in each cycle; the
    next burst is taken along with the last beat.

    Args:
        about: layout of what goes along with a burst.

    Members:
        i: bursts, see :func:`burst_layout`.
        o: beats: their ``burst``; ``at``, the beat's address within the page; ``first``, ``last``; and
            ``leaves``: the next beat lies in another word of the bus, or in none.
    """

    def __init__(self, parameters: MemoryParameters, about: data.Layout | int):
        self._word_bits = parameters.word_bits
        beat = {"burst": burst_layout(about), "at": PAGE_BITS, "first": 1, "last": 1, "leaves": 1}
        super().__init__(
            {
                "i": In(stream.Signature(burst_layout(about))),
                "o": Out(stream.Signature(data.StructLayout(beat))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        busy, first = Signal(), Signal()
        burst = Signal.like(self.i.payload, reset_less=True)
        at, left = Signal(PAGE_BITS, reset_less=True), Signal(8, reset_less=True)
        following = Signal(PAGE_BITS)
        span, container = Signal(7), Signal(PAGE_BITS)
        last = left == 0
        m.d.comb += [
            span.eq(span_mask(burst.size)),
            container.eq(container_mask(burst.len, burst.size)),
            following.eq((at | span) + 1),
            self.o.valid.eq(busy),
            self.o.p.burst.eq(burst),
            self.o.p.at.eq(at),
            self.o.p.first.eq(first),
            self.o.p.last.eq(last),
            self.o.p.leaves.eq(
                last | (self._next(burst, at, following, container) ^ at)[self._word_bits :].any()
            ),
            self.i.ready.eq(~busy | (self.o.ready & last)),
        ]
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += [
                at.eq(self._next(burst, at, following, container)),
                left.eq(left - 1),
                first.eq(0),
            ]
        with m.If(self.i.ready):
            m.d.sync += [busy.eq(self.i.valid), first.eq(1)]
            with m.If(self.i.valid):
                m.d.sync += [burst.eq(self.i.payload), at.eq(self.i.p.low), left.eq(self.i.p.len)]
        return m

    @staticmethod
    def _next(burst, at: Value, following: Value, container: Value) -> Value:
        wrapped = at & ~container | following & container
        moves = Mux(burst.kind == BurstKind.WRAP, wrapped, following)
        return Mux(burst.kind == BurstKind.FIXED, at, moves)
