"""Components with one fault each: a proof that does not find them proves nothing."""

from __future__ import annotations

from amaranth import Module, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from rtl.stream import word_layout

__all__ = ["FAULTS", "Stage"]

FAULTS = {
    "withdraws": "an offer falls if it is not taken at once",
    "changes": "the payload changes under an offer",
    "survives": "an offer survives a reset",
    "looks": "valid looks at ready",
    "waits": "valid rises when ready was seen",
    "loses": "a word that comes while one stands is lost",
    "swallows": "the last word of a tensor does not say so if its bytes are 0",
    "hangs": "a word whose bytes are 0 is never taken",
    "dawdles": "a word is offered a cycle late",
}


class Stage(wiring.Component):
    """A register for one word, with a fault or without.

    Args:
        size: bytes of a word.
        fault: one of :data:`FAULTS`, or None.
    """

    def __init__(self, size: int, fault: str | None = None):
        self._fault = fault
        word = stream.Signature(word_layout(size))
        super().__init__({"i": In(word), "o": Out(word)})

    def elaborate(self, platform):
        m = Module()
        fault = self._fault
        full = Signal(reset_less=fault == "survives")
        was_full, was_ready = Signal(), Signal()
        i_payload, o_payload = Value.cast(self.i.payload), Value.cast(self.o.payload)
        m.d.comb += [self.o.valid.eq(full), self.i.ready.eq(~full | self.o.ready)]
        if fault == "looks":
            m.d.comb += self.o.valid.eq(full & self.o.ready)
        elif fault == "waits":
            m.d.comb += self.o.valid.eq(full & was_ready)
        elif fault == "loses":
            m.d.comb += self.i.ready.eq(1)
        elif fault == "hangs":
            m.d.comb += self.i.ready.eq((~full | self.o.ready) & self.i.p.data.any())
        elif fault == "dawdles":
            m.d.comb += [self.o.valid.eq(full & was_full), self.i.ready.eq(~full)]

        m.d.sync += [was_full.eq(full), was_ready.eq(was_ready | self.o.ready)]
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += [full.eq(0), was_full.eq(0), was_ready.eq(0)]
        with m.If(self.i.valid & self.i.ready & (~full | self.o.ready)):
            m.d.sync += [full.eq(1), o_payload.eq(i_payload)]
            if fault == "swallows":
                m.d.sync += self.o.p.last.eq(self.i.p.last & self.i.p.data.any())
        if fault == "withdraws":
            with m.If(self.o.valid & ~self.o.ready):
                m.d.sync += full.eq(0)
        elif fault == "changes":
            with m.If(self.o.valid & ~self.o.ready):
                m.d.sync += o_payload.eq(i_payload)
        return m
