"""Write bursts that wait for their answers."""

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from golden.bursts import Response

from ...arith.trees import any_set
from ...stream import DelayMemory
from ..parameters import MemoryParameters

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
    was let go, behind those of as many others as there are slots at most.

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
        parameters, count = self._parameters, self._parameters.slots
        live, done, behind = (Signal(count, name=name) for name in ("live", "done", "behind"))
        is_newest, slverr, decerr = Signal(count), Signal(count), Signal(count)
        ids = [Signal(parameters.id_bits, name=f"id{i}", reset_less=True) for i in range(count)]
        can_go, may_go, going, same = Signal(), Signal(count), Signal(range(count)), Signal(count)
        # Of each slot: the one whose burst is the next of its ID, and waits for this one's to be let go.
        m.submodules.following = following = DelayMemory(len(going), count)
        m.submodules.given = given = DelayMemory(parameters.id_bits, count)
        has_following, released = Signal(), Signal(count)
        m.d.comb += [
            self.has_free.eq(~live.all()),
            released.eq(Mux(has_following, 1 << following.read_data, 0)),
            may_go.eq(live & done & ~self.held & (~behind | released)),
            can_go.eq(may_go.any() & (~self.b.valid | self.b.ready)),
            self.idle.eq(~may_go.any() & ~self.b.valid),
            same.eq(Cat(live[i] & is_newest[i] & (ids[i] == self.id) for i in range(count))),
        ]
        # The first that may, or in turn each one, so that none waits for ever.
        turn = Signal(range(count))
        for i in reversed(range(count)):
            with m.If(~live[i]):
                m.d.comb += self.free.eq(i)
            with m.If(may_go[i]):
                m.d.comb += going.eq(i)
        with m.If(may_go.bit_select(turn, 1)):
            m.d.comb += going.eq(turn)
        with m.If(can_go):
            m.d.sync += turn.eq(Mux(turn == count - 1, 0, turn + 1))
        goes = Signal(count)
        m.d.comb += goes.eq(can_go << going)

        m.d.sync += [slverr.eq(slverr | self.slverr), decerr.eq(decerr | self.decerr)]
        with m.If(self.taken):
            m.d.sync += done.bit_select(self.taken_slot, 1).eq(1)
        with m.If(self.b.ready):
            m.d.sync += self.b.valid.eq(0)
        with m.If(can_go):
            answer = Mux((goes & slverr).any(), Response.SLVERR, Response.OKAY)
            m.d.sync += [
                self.b.valid.eq(1),
                self.b.p.resp.eq(Mux((goes & decerr).any(), Response.DECERR, answer)),
            ]
        follows = Signal()
        m.d.comb += [
            follows.eq((same & ~goes).any()),
            following.write.eq(self.open & follows),
            following.write_address.eq(any_set(Mux(same[i], i, 0) for i in range(count))),
            following.write_data.eq(self.free),
            following.read.eq(can_go),
            following.read_address.eq(going),
            *(given.write.eq(self.open), given.write_address.eq(self.free), given.write_data.eq(self.id)),
            *(given.read.eq(can_go), given.read_address.eq(going), self.b.p.id.eq(given.read_data)),
        ]
        m.d.sync += has_following.eq((goes & ~is_newest).any())
        for i in range(count):
            with m.If(goes[i]):
                m.d.sync += live[i].eq(0)
            with m.If(released[i]):
                m.d.sync += behind[i].eq(0)
            with m.If(self.open & same[i]):
                m.d.sync += is_newest[i].eq(0)
            with m.If(self.open & (self.free == i)):
                m.d.sync += [
                    live[i].eq(1),
                    done[i].eq(0),
                    is_newest[i].eq(1),
                    ids[i].eq(self.id),
                    slverr[i].eq(self.slverr[i]),
                    decerr[i].eq(self.decerr[i]),
                    behind[i].eq(follows),
                ]
        return m
