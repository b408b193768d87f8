"""A FIFO between two clocks, seen from one that ticks at every edge of either.

In each of its cycles the solver chooses which of the two clocks has an edge, so that every ratio and phase
occurs; and of each bit that changed since the cycle before and is caught at an edge, whether it is caught as
it was or as it is, as by flip-flops that become metastable.
"""

from __future__ import annotations

from amaranth import Cat, DomainRenamer, EnableInserter, Fragment, Module, Mux, ResetSignal, Signal, Value
from amaranth.hdl import Assert, Assume
from amaranth.lib import cdc, data, stream, wiring
from amaranth.lib.wiring import In
from amaranth.utils import exact_log2

from .contract import drive

__all__ = ["Crossing", "InTime"]

# Of the solver's bits in each cycle, those for the two pointers.
_POINTERS = 2


class Crossing(wiring.Component):
    """A FIFO as a component of one clock domain, which is never reset.

    Args:
        fifo: has the streams ``i`` in the domain "write" and ``o`` in "read", and ``depth``.
        ahead: a fault: the pointer that crosses to the sink is one ahead.

    Members:
        i, o: the FIFO's. A word is taken or given only where its clock has an edge.
        edges: what the solver chooses: which clocks have an edge, and which bits are caught late.
    """

    def __init__(self, fifo: wiring.Component, ahead: bool = False):
        self._fifo = fifo
        self._ahead = ahead
        bits = exact_log2(fifo.depth) + 1
        layout = data.StructLayout({"write": 1, "read": 1, "late": _POINTERS * bits})
        super().__init__({**fifo.signature.members, "edges": In(stream.Signature(layout))})

    def elaborate(self, platform):
        m = Module()
        fifo, edges = self._fifo, self.edges
        m.d.comb += Assume(~ResetSignal())
        write, read, late = Signal(), Signal(), Signal(len(edges.p.late))
        m.d.comb += [
            edges.ready.eq(1),
            write.eq(edges.valid & edges.p.write),
            # What a sink takes it takes at an edge.
            read.eq((edges.valid & edges.p.read) | self.o.ready),
            late.eq(edges.p.late),
        ]
        clocked = EnableInserter({"write": write, "read": read})(fifo)
        in_one = DomainRenamer({"write": "sync", "read": "sync"})(clocked)
        m.submodules.fifo = Fragment.get(in_one, _Metastable(late, self._ahead))
        m.d.comb += [
            fifo.i.valid.eq(self.i.valid),
            Value.cast(fifo.i.payload).eq(self.i.payload),
            self.i.ready.eq(fifo.i.ready & write),
            self.o.valid.eq(fifo.o.valid),
            Value.cast(self.o.payload).eq(fifo.o.payload),
            fifo.o.ready.eq(self.o.ready),
        ]
        return m


class _Metastable:
    """A platform of Amaranth whose synchronizers catch bits that change as the solver likes."""

    def __init__(self, late: Signal, ahead: bool):
        self._late = late
        self._taken = 0
        self._ahead = ahead

    def get_ff_sync(self, sync: cdc.FFSynchronizer) -> Module:
        m = Module()
        width = len(sync.i)
        late = self._late[self._taken : self._taken + width]
        self._taken += width
        before, first, second = Signal(width), Signal(width), Signal(width)
        m.d.sync += before.eq(sync.i)
        m.d[sync._o_domain] += [
            first.eq((before & late) | (sync.i & ~late)),
            second.eq(first),
        ]
        is_ahead = self._ahead and sync._o_domain == "read"
        m.d.comb += sync.o.eq(_one_ahead(second) if is_ahead else second)
        return m

    def get_async_ff_sync(self, sync: cdc.AsyncFFSynchronizer) -> Module:
        m = Module()
        m.d.comb += sync.o.eq(sync.i)
        return m


def _one_ahead(gray: Value) -> Value:
    number = (Cat(gray[i:].xor() for i in range(len(gray))) + 1)[: len(gray)]
    return number ^ (number >> 1)


class InTime(wiring.Component):
    """Proves that a word is offered, and its place free again, behind so many edges of the other clock.

    Args:
        crossing: a :class:`Crossing`.
        depth: words that its FIFO holds, and no more.
        edges: how many.
    """

    def __init__(self, crossing: Crossing, depth: int, edges: int):
        self._crossing = crossing
        self._depth = depth
        self._edges = edges
        super().__init__(crossing.signature)

    def elaborate(self, platform):
        m = Module()
        m.submodules.crossing = crossing = self._crossing
        i, o, edges = crossing.i, crossing.o, crossing.edges
        drive(m, i, self.i)
        drive(m, edges, self.edges)
        wiring.connect(m, o, wiring.flipped(self.o))
        inside = Signal(range(self._depth + 2))
        m.d.sync += inside.eq(inside + (i.valid & i.ready) - (o.valid & o.ready))
        m.d.comb += Assert(inside <= self._depth, "it holds no more words than its depth")

        write = edges.valid & edges.p.write
        read = (edges.valid & edges.p.read) | o.ready
        self._limit(m, "offer", (inside != 0) & ~o.valid, read)
        self._limit(m, "room", (inside != self._depth) & ~i.ready & write, write)
        return m

    def _limit(self, m: Module, name: str, waits: Value, edge: Value) -> None:
        edges = Signal(range(self._edges + 1), name=f"{name}_edges")
        with m.If(edge):
            m.d.sync += edges.eq(Mux(waits, edges + 1, 0))
        m.d.comb += Assert(~waits | (edges < self._edges), f"{name} in time")
