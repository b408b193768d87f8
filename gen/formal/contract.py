"""The stream contract, stated once: what every source promises and every sink may rely on."""

from __future__ import annotations

from amaranth import Cat, Module, Mux, ResetSignal, Signal, Value
from amaranth.hdl import Assert, Cover
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["NO_PATH_FROM_READY", "Contract", "Patience", "drive", "kept", "streams"]

# Yosys commands that end with an error if a `ready` that goes in reaches a `valid` or a payload that comes
# out in the same cycle: they look for a path, bit by bit, that leads through no register.
NO_PATH_FROM_READY = (
    "design -push-copy",
    "dffunmap",
    "simplemap",
    "splitnets -ports",
    "select -assert-none i:*ready %coe*:-$_DFF_P_ o:*valid* o:*payload* %u %i",
    "design -pop",
)


def streams(component: wiring.Component, flow: wiring.Flow) -> dict:
    """The streams of a component that go one way, by name."""
    members = component.signature.members
    return {name: getattr(component, name) for name, port in members.items() if port.flow == flow}


def kept(m: Module, port) -> Value:
    """Whether a stream keeps the contract in this cycle:

    - an offer that was not taken stands, with the same payload, until it is taken or there is a reset;
    - nothing is offered from the cycle after reset asserts until it ends.

    That ``valid`` does not wait for ``ready`` cannot be seen in one trace: see :data:`NO_PATH_FROM_READY`
    and :class:`Patience`.
    """
    stands, was_reset, payload = _past(m, port)
    holds = port.valid & (Value.cast(port.payload) == payload)
    return Mux(ResetSignal(), ~(was_reset & port.valid), ~stands | holds)


def drive(m: Module, port, free) -> None:
    """Let ``port`` carry what the solver chooses on ``free``, where the contract leaves a choice.

    Every behaviour that keeps the contract can occur and no other, so that nothing needs to be assumed.
    """
    stands, was_reset, payload = _past(m, port)
    m.d.comb += [
        port.valid.eq(Mux(ResetSignal(), free.valid & ~was_reset, free.valid | stands)),
        Value.cast(port.payload).eq(Mux(stands & ~ResetSignal(), payload, Value.cast(free.payload))),
        free.ready.eq(port.ready),
    ]


def _past(m: Module, port) -> tuple[Value, Value, Value]:
    """Whether an offer stands from the cycle before, whether that was a reset, and what was offered."""
    stands, was_reset = Signal(reset_less=True), Signal(reset_less=True)
    payload = Signal(len(Value.cast(port.payload)), reset_less=True)
    m.d.sync += [
        stands.eq(port.valid & ~port.ready & ~ResetSignal()),
        was_reset.eq(ResetSignal()),
        payload.eq(port.payload),
    ]
    return stands, was_reset, payload


class Contract(wiring.Component):
    """Proves that every stream that a component sends keeps the contract if those it takes do.

    Args:
        component: all its members are streams.
    """

    def __init__(self, component: wiring.Component):
        self._component = component
        super().__init__(component.signature)

    def elaborate(self, platform):
        m = Module()
        m.submodules.component = component = self._component
        for name, port in streams(component, In).items():
            drive(m, port, getattr(self, name))
        for name, port in streams(component, Out).items():
            wiring.connect(m, port, wiring.flipped(getattr(self, name)))
            m.d.comb += Assert(kept(m, port), f"{name} keeps the contract")
            m.d.comb += Cover(port.valid & ~port.ready, f"{name} waits")
        return m


class Patience(wiring.Component):
    """Proves that each stream makes an offer although its own ``ready`` stays low, if all other streams flow.

    Args:
        component: all its members are streams.
        cycles: in which this happens at the latest.
    """

    def __init__(self, component: wiring.Component, cycles: int):
        self._component = component
        self._cycles = cycles
        super().__init__(component.signature)

    def elaborate(self, platform):
        m = Module()
        m.submodules.component = component = self._component
        inputs, outputs = streams(component, In), streams(component, Out)
        for name, port in inputs.items():
            drive(m, port, getattr(self, name))
        for name, port in outputs.items():
            wiring.connect(m, port, wiring.flipped(getattr(self, name)))
        for name, port in outputs.items():
            others = [p.valid for p in inputs.values()] + [p.ready for n, p in outputs.items() if n != name]
            waits = Cat(others).all() & ~port.ready & ~port.valid
            waited = Signal(range(self._cycles + 1), name=f"{name}_waited")
            m.d.sync += waited.eq(Mux(waits, waited + 1, 0))
            m.d.comb += Assert(~waits | (waited < self._cycles), f"{name} does not wait for ready")
        return m
