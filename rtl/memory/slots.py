"""Write bursts that wait for their answers."""

from amaranth import Module, Mux, Signal, Value
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from golden.bursts import Response

from .parameters import MemoryParameters

__all__ = ["Slots", "hold"]


def hold(
    m: Module, held: Value, enters: Value, waiting: Value, to: Value, leaves: Value, first: Value
) -> None:
    """Hold slots while what waits for them is in a queue: until the last that they entered with has left.

    Args:
        held: a bit for each slot.
        enters, waiting, to: something enters with these slots, at this place of the queue.
        leaves, first: what is at this place leaves.
    """
    for i in range(len(held)):
        last = Signal(len(to), name=f"last_of_slot{i}", reset_less=True)
        with m.If(enters & waiting[i]):
            m.d.sync += [held[i].eq(1), last.eq(to)]
        with m.Elif(leaves & (last == first)):
            m.d.sync += held[i].eq(0)


class Slots(wiring.Component):
    """Answers write bursts once nothing holds them, those of one ID in their order.

    A burst has a slot from when its first beat may be taken until it is answered. Whoever has bytes of it
    that are not yet in memory names its slot in ``held``; the bits of a slot may change hands only without a
    cycle between. Throughput: an answer a cycle; latency: it is offered in the second cycle after the burst
    was let go.

    Members:
        open: take the slot ``free``, if there is one, for a burst with this ``id``.
        has_free, free: a slot that is not in use.
        taken, taken_slot: the last beat of this slot's burst was taken.
        held: slots that must wait.
        slverr, decerr: slots whose bursts get this answer, the graver one if both; from the cycle on in which
            they are taken.
        idle: no burst can be answered, and none is being answered.
        b: the answers.
    """

    def __init__(self, parameters: MemoryParameters):
        self._parameters = parameters
        count = parameters.slots
        super().__init__(
            {
                "open": In(1),
                "id": In(parameters.id_bits),
                "has_free": Out(1),
                "free": Out(range(count)),
                "taken": In(1),
                "taken_slot": In(range(count)),
                "held": In(count),
                "slverr": In(count),
                "decerr": In(count),
                "idle": Out(1),
                "b": Out(stream.Signature(data.StructLayout({"id": parameters.id_bits, "resp": Response}))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        count = self._parameters.slots
        live, done, behind, leads = (Signal(count, name=name) for name in ("live", "done", "behind", "leads"))
        slverr, decerr = Signal(count), Signal(count)
        has_same, can_go, may_go = Signal(), Signal(), Signal(count)
        same, going = Signal(range(count)), Signal(range(count))
        m.d.comb += [
            self.has_free.eq(~live.all()),
            may_go.eq(live & done & ~self.held & ~behind),
            can_go.eq(may_go.any() & (~self.b.valid | self.b.ready)),
            self.idle.eq(~may_go.any() & ~self.b.valid),
        ]
        for i in reversed(range(count)):
            with m.If(~live[i]):
                m.d.comb += self.free.eq(i)
            with m.If(may_go[i]):
                m.d.comb += going.eq(i)

        # Slots of one ID are a chain. What is known of a slot that is not in use means nothing.
        def table(name: str, shape, depth: int, at: Value, value: Value, writes: Value, *reads: Value):
            m.submodules[name] = content = memory.Memory(shape=shape, depth=depth, init=[])
            write, ports = content.write_port(), [content.read_port(domain="comb") for _ in reads]
            m.d.comb += [write.addr.eq(at), write.data.eq(value), write.en.eq(writes)]
            m.d.comb += (port.addr.eq(read) for port, read in zip(ports, reads, strict=True))
            return [port.data for port in ports]

        id_bits, follows = len(self.id), self.open & has_same
        (newest,) = table("newest", range(count), 1 << id_bits, self.id, self.free, self.open, self.id)
        id_same, id_going = table("ids", id_bits, count, self.free, self.id, self.open, same, going)
        (next_going,) = table("next", range(count), count, same, self.free, follows, going)
        m.d.comb += [same.eq(newest), has_same.eq(live.bit_select(same, 1) & (id_same == self.id))]

        m.d.sync += [slverr.eq(slverr | self.slverr), decerr.eq(decerr | self.decerr)]
        with m.If(self.taken):
            m.d.sync += done.bit_select(self.taken_slot, 1).eq(1)
        with m.If(self.b.ready):
            m.d.sync += self.b.valid.eq(0)
        with m.If(can_go):
            m.d.sync += [self.b.valid.eq(1), self.b.p.id.eq(id_going)]
        for i in range(count):
            with m.If(can_go & (going == i)):
                answer = Mux(decerr[i], Response.DECERR, Mux(slverr[i], Response.SLVERR, Response.OKAY))
                m.d.sync += [live[i].eq(0), self.b.p.resp.eq(answer)]
            with m.If(can_go & leads.bit_select(going, 1) & (next_going == i)):
                m.d.sync += behind[i].eq(0)
            with m.If(follows & (same == i)):
                m.d.sync += leads[i].eq(1)
            with m.If(self.open & (self.free == i)):
                m.d.sync += [
                    live[i].eq(1),
                    done[i].eq(0),
                    leads[i].eq(0),
                    slverr[i].eq(self.slverr[i]),
                    decerr[i].eq(self.decerr[i]),
                    behind[i].eq(has_same & ~(can_go & (going == same))),
                ]
        return m
