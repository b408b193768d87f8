"""An engine behind AXI4-Stream as a component whose members are streams, so that the same proofs hold it."""

from __future__ import annotations

from amaranth import ClockSignal, Module, ResetSignal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["AxiStreams"]


class AxiStreams(wiring.Component):
    """``i`` and ``o`` are the ``s_axis`` and the ``m_axis`` of ``engine``."""

    def __init__(self, engine: wiring.Component):
        self._engine = engine
        bus_bytes = engine.engine.bus_bytes
        beat = {"data": 8 * bus_bytes, "keep": bus_bytes, "last": 1}
        user = {"user": 1} if "m_axis_tuser" in engine.signature.members else {}
        i, o = (stream.Signature(data.StructLayout(fields)) for fields in (beat, beat | user))
        super().__init__({"i": In(i), "o": Out(o)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.engine = engine = self._engine
        i, o = self.i, self.o
        m.d.comb += [
            engine.aclk.eq(ClockSignal()),
            engine.aresetn.eq(~ResetSignal()),
            engine.s_axis_tvalid.eq(i.valid),
            i.ready.eq(engine.s_axis_tready),
            o.valid.eq(engine.m_axis_tvalid),
            engine.m_axis_tready.eq(o.ready),
        ]
        for name in i.payload.shape().members:
            m.d.comb += getattr(engine, f"s_axis_t{name}").eq(i.payload[name])
        for name in o.payload.shape().members:
            m.d.comb += o.payload[name].eq(getattr(engine, f"m_axis_t{name}"))
        return m
