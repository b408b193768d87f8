"""What is taken in comes out in the same order, with the same content."""

from __future__ import annotations

from collections.abc import Callable

from amaranth import Module, ResetSignal, Signal, Value
from amaranth.hdl import Assert, Cover
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from .contract import drive, streams

__all__ = ["Chain", "InOrder"]


class InOrder(wiring.Component):
    """Proves that as many words come out as went in, in their order, for any stalls.

    The solver picks one word; it must come out after as many others as went in before it, with its tag.

    Args:
        component: has the streams ``i`` and ``o``; every word that goes in becomes one that comes out. If it
            takes others, the solver chooses what comes.
        width: bits of a tag.
        payload: the payload of a word that goes in, from its tag and from a bit that the solver chooses.
        tag: the tag of a word that comes out.
    """

    def __init__(self, component, width: int, payload: Callable[[Value, Value], Value], tag: Callable):
        self._component = component
        self._payload, self._tag = payload, tag
        super().__init__(
            {
                **{name: component.signature.members[name] for name in streams(component, In)},
                "tag": In(width),
                "bit": In(1),
                "ready": In(1),
                "pick": In(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.component = component = self._component
        i, o = component.i, component.o
        choice = self.i.signature.create()
        m.d.comb += [
            choice.valid.eq(self.i.valid),
            Value.cast(choice.payload).eq(self._payload(self.tag, self.bit)),
            self.i.ready.eq(choice.ready),
        ]
        drive(m, i, choice)
        for name, port in streams(component, In).items():
            if name != "i":
                drive(m, port, getattr(self, name))
        m.d.comb += o.ready.eq(self.ready)
        takes, gives = i.valid & i.ready, o.valid & o.ready
        inside = Signal(6)  # words
        m.d.sync += inside.eq(inside + takes - gives)
        m.d.comb += Assert(~o.valid | (inside != 0) | ResetSignal(), "no word comes out that did not go in")

        picked = Signal()
        tag, before = Signal.like(self.tag), Signal.like(inside)
        with m.If(picked):
            m.d.sync += before.eq(before - gives)
            with m.If(gives & (before == 0)):
                m.d.comb += Assert(self._tag(o.payload) == tag, "the word that went in comes out in its turn")
                m.d.sync += picked.eq(0)
                m.d.comb += Cover(1, "it comes out")
        with m.Elif(takes & self.pick):
            m.d.sync += [picked.eq(1), tag.eq(self._tag(i.payload)), before.eq(inside - gives)]
        return m


class Chain(wiring.Component):
    """Two components, one behind the other."""

    def __init__(self, first: wiring.Component, second: wiring.Component):
        self._first, self._second = first, second
        members = {"i": first.signature.members["i"], "o": second.signature.members["o"]}
        super().__init__(members)

    def elaborate(self, platform):
        m = Module()
        m.submodules.first, m.submodules.second = self._first, self._second
        wiring.connect(m, wiring.flipped(self.i), self._first.i)
        wiring.connect(m, self._first.o, self._second.i)
        wiring.connect(m, self._second.o, wiring.flipped(self.o))
        return m
