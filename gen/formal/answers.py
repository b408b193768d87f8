"""The memory engine's paths answer within a bound, if their neighbours are fair.

Fair is who keeps the other side waiting for at most a cycle: memory and the accelerator take what is
offered, memory answers what it was sent, and the data of a burst follows its address. What is proven is that
something always moves: no more than some cycles pass without a word on any channel while a burst is without
its answer. As a burst takes a bounded number of words, it is answered in a bounded number of cycles.
"""

from __future__ import annotations

from unittest.mock import patch

from amaranth import C, Cat, Module, Signal, Value
from amaranth.hdl import Assert, Cover
from amaranth.lib import wiring

from rtl.memory import MemoryParameters
from rtl.memory.read.path import ReadPath
from rtl.memory.write.path import WritePath

from .contract import drive
from .paths import (
    Rules,
    allowed,
    drive_writes,
    one_region,
    unanswered_beats,
    unanswered_bursts,
    without_codecs,
)

__all__ = ["ReadAnswers", "WriteAnswers"]

# Cycles that a block and a burst to memory wait for their other beats: fewer than in an engine, so that a
# bounded proof sees what comes after. As many more can pass in an engine.
_TIMEOUT, _PATIENCE = 4, 3


def _fair(m: Module, free: Value, name: str) -> Value:
    """The solver's choice, but for that it is never 0 in two cycles in a row."""
    waited = Signal(name=f"waited_{name}")
    chosen = free | waited
    m.d.sync += waited.eq(~chosen)
    return chosen


def _offers(m: Module, free, condition: Value, name: str):
    """The stream ``free``, on which something is offered within a cycle of when there is a condition."""
    port = free.signature.create()
    waited = Signal(name=f"waited_{name}")
    m.d.comb += [
        Value.cast(port.payload).eq(Value.cast(free.payload)),
        port.valid.eq(condition & (free.valid | waited)),
        free.ready.eq(port.ready),
    ]
    m.d.sync += waited.eq(condition & ~port.valid)
    return port


def _moves(path: wiring.Component, names: tuple[str, ...]) -> Value:
    return Cat(getattr(path, name).valid & getattr(path, name).ready for name in names).any()


def _take(m: Module, rules: Rules, path: wiring.Component, **when: Value) -> None:
    """Neighbours that take what these streams offer, each under its condition."""
    for name, condition in when.items():
        m.d.comb += getattr(path, name).ready.eq(_fair(m, getattr(rules, name).ready, name) & condition)


def _claim(m: Module, bound: int, waits: Value, moves: Value) -> None:
    quiet = Signal(range(bound + 2))
    with m.If(~waits | moves):
        m.d.sync += quiet.eq(0)
    with m.Elif(quiet <= bound):
        m.d.sync += quiet.eq(quiet + 1)
    m.d.comb += [Assert(quiet <= bound, "something moves"), Cover(quiet == bound, "as long as it may take")]


class ReadAnswers(Rules):
    """Proves that a read is answered; see the module. A write keeps a read waiting for at most a cycle.

    Args:
        bound: cycles in which nothing moves.
        one_at_a_time: memory takes no address before all beats of the one before were taken.
    """

    def __init__(self, parameters: MemoryParameters, bound: int, one_at_a_time: bool = False):
        super().__init__(ReadPath(parameters), parameters)
        self._bound, self._one_at_a_time = bound, one_at_a_time

    def elaborate(self, platform):
        m = Module()
        parameters, path = self._parameters, self._path
        m.submodules.path = without_codecs(path, platform)
        one_region(m, parameters, path.map, self.stored)
        drive(m, path.ar, allowed(m, self.ar, parameters.word_bits))
        beats = unanswered_beats(m, path)
        _take(m, self, path, mar=beats == 0 if self._one_at_a_time else C(1), r=C(1))
        drive(m, path.mr, _offers(m, self.mr, beats != 0, "mr"))
        m.d.comb += [
            path.hazards.has_block.eq(~_fair(m, ~self.chance, "block")),
            path.hazards.has_beat.eq(~_fair(m, ~self.drain, "beat")),
        ]
        bursts = Signal(8)
        ends = path.r.valid & path.r.ready & path.r.p.last
        m.d.sync += bursts.eq(bursts + (path.ar.valid & path.ar.ready) - ends)
        waits = path.ar.valid | (bursts != 0)
        _claim(m, self._bound, waits, _moves(path, ("ar", "mar", "mr", "r")))
        return m


class WriteAnswers(Rules):
    """Proves that a write is answered; see the module. A block that is never completed is open for 4 cycles,
    the engine's timeout, and a burst to memory that may go on waits for 3.

    Args:
        bound: cycles in which nothing moves.
        first: "maw" or "mw", which memory takes whole before it takes the other: neither waits for the other.
    """

    def __init__(self, parameters: MemoryParameters, bound: int, first: str | None = None):
        super().__init__(WritePath(parameters), parameters)
        self._bound, self._first = bound, first

    def elaborate(self, platform):
        m = Module()
        parameters, path = self._parameters, self._path
        with patch("rtl.memory.write.writeout._PATIENCE", _PATIENCE):
            m.submodules.path = without_codecs(path, platform)
        one_region(m, parameters, path.map, self.stored)
        sent, ahead = unanswered_bursts(m, path)
        addresses = ahead[-1] if self._first == "mw" else C(1)
        words = ~ahead[-1] & (ahead != 0) if self._first == "maw" else C(1)
        _take(m, self, path, b=C(1), maw=addresses, mw=words)
        m.d.comb += [path.timeout.eq(_TIMEOUT), path.hazards.evicts.eq(self.chance)]
        pending = Signal()
        data = _offers(m, self.w, pending, "w")
        behind, done = drive_writes(m, path, self.aw, data, parameters.word_bits)
        m.d.comb += pending.eq(behind != 0)
        drive(m, path.mb, _offers(m, self.mb, sent != 0, "mb"))
        waits = path.aw.valid | pending | (done != 0)
        _claim(m, self._bound, waits, _moves(path, ("aw", "w", "b", "maw", "mw", "mb")))
        return m
