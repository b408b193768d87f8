"""What is added to the proofs of an engine by choosing its format at run time."""

from __future__ import annotations

from amaranth import Module, ResetSignal, Signal
from amaranth.hdl import Assert, Cover
from amaranth.lib import wiring

from .contract import drive

__all__ = ["AtBoundary", "Configured"]


class Configured(wiring.Component):
    """A runtime engine after one configuration, as a component with ``i`` and ``o``."""

    def __init__(self, engine: wiring.Component, number: int, bypass: bool):
        self._engine = engine
        self._number, self._bypass = number, bypass
        members = engine.signature.members
        super().__init__({"i": members["i"], "o": members["o"]})

    def elaborate(self, platform):
        m = Module()
        m.submodules.engine = engine = self._engine
        wiring.connect(m, wiring.flipped(self.i), engine.i)
        wiring.connect(m, engine.o, wiring.flipped(self.o))
        is_pending = Signal(init=1)
        m.d.comb += [
            engine.config.valid.eq(is_pending & ~ResetSignal()),
            engine.config.p.format.eq(self._number),
            engine.config.p.bypass.eq(self._bypass),
        ]
        with m.If(engine.config.ready):
            m.d.sync += is_pending.eq(0)
        return m


class AtBoundary(wiring.Component):
    """Proves that a configuration is taken only between two tensors, when nothing is inside.

    Args:
        engine: has the streams ``config``, ``i`` and ``o``.
    """

    def __init__(self, engine: wiring.Component):
        self._engine = engine
        super().__init__(engine.signature)

    def elaborate(self, platform):
        m = Module()
        m.submodules.engine = engine = self._engine
        drive(m, engine.config, self.config)
        drive(m, engine.i, self.i)
        wiring.connect(m, engine.o, wiring.flipped(self.o))

        is_open = Signal()  # a tensor has gone in in part
        inside = Signal(6)  # tensors that have gone in and not come out
        takes, gives = engine.i.valid & engine.i.ready, engine.o.valid & engine.o.ready
        with m.If(takes):
            m.d.sync += is_open.eq(~engine.i.p.last)
        came = Signal()  # a tensor has come out
        m.d.sync += came.eq(came | (gives & engine.o.p.last))
        m.d.sync += inside.eq(inside + (takes & engine.i.p.last) - (gives & engine.o.p.last))
        with m.If(engine.config.valid & engine.config.ready & ~ResetSignal()):
            m.d.comb += [
                Assert(~is_open & (inside == 0), "a configuration is taken when no tensor is inside"),
                Assert(~takes & ~engine.o.valid, "and when none goes in or comes out"),
                Cover(came, "a configuration is taken behind a tensor"),
            ]
        return m
