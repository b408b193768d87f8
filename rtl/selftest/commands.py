"""The commands of a host: frames in, words to and from memories, frames out."""

from amaranth import Cat, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from .frames import CRC_BYTES, FrameReceiver, FrameSender
from .requests import FRAME_BYTES, Command, request_layout
from .uart import UartReceiver, UartTransmitter

__all__ = ["Commands", "Inbox"]

_HEAD_BYTES = request_layout().size // 8


class Inbox(wiring.Component):
    """Keeps a frame until it has ended well: what stands before its data as a register, the data as bytes.

    Members:
        i, i_valid, ends, good: a :class:`rtl.selftest.FrameReceiver`'s.
        head: what stands before the data, while ``arrives``.
        arrives: a frame has ended well.
        size: bytes of its data, while ``arrives``.
        address, data: a byte of the data, in the cycle after its address.
    """

    i: In(8)
    i_valid: In(1)
    ends: In(1)
    good: In(1)
    head: Out(request_layout())
    arrives: Out(1)
    size: Out(range(FRAME_BYTES + 1))
    address: In(range(FRAME_BYTES))
    data: Out(8)

    def elaborate(self, platform):
        m = Module()
        most = _HEAD_BYTES + FRAME_BYTES + CRC_BYTES
        index = Signal(range(most + 2))  # of the next byte; the last value is of frames that are too long
        m.submodules.memory = memory = Memory(shape=8, depth=FRAME_BYTES + CRC_BYTES, init=[])
        write, read = memory.write_port(), memory.read_port()
        m.d.comb += [
            *(write.addr.eq(index - _HEAD_BYTES), write.data.eq(self.i)),
            *(read.addr.eq(self.address), self.data.eq(read.data)),
            self.size.eq(index - _HEAD_BYTES - CRC_BYTES),
            self.arrives.eq(self.good & (index >= _HEAD_BYTES + CRC_BYTES) & (index <= most)),
        ]
        with m.If(self.ends):
            m.d.sync += index.eq(0)
        with m.Elif(self.i_valid & (index <= most)):
            m.d.sync += index.eq(index + 1)
            with m.If(index < _HEAD_BYTES):
                m.d.sync += Value.cast(self.head).word_select(index, 8).eq(self.i)
            with m.Else():
                m.d.comb += write.en.eq(index < most)
        return m


class Commands(wiring.Component):
    """Does what frames ask for, and answers each with one.

    A reply is the request's sequence number and command, and the words that were asked for. A frame that
    comes before the reply to the one before has ended is dropped.

    Words pass a byte at a time, so that wide ones cost no wide registers here.

    Args:
        bus_bytes: bytes of a word.
        divisor: cycles of a bit of the UART.

    Members:
        rx, tx: the UART.
        request: what is asked for, its address and count those of the word of the moment.
        offset: the byte of the moment in that word.
        found: that byte, two cycles after its address and offset.
        byte, writes: a byte to be put there.
        starts: it is a run, which begins.
        lost: frames that were dropped.
    """

    def __init__(self, bus_bytes: int, divisor: int):
        self._divisor = divisor
        members = {"rx": In(1, init=1), "tx": Out(1, init=1), "request": Out(request_layout())}
        members |= {"offset": Out(range(bus_bytes)), "found": In(8), "byte": Out(8)}
        members |= {"writes": Out(1), "starts": Out(1), "lost": Out(32)}
        super().__init__(members)

    def elaborate(self, platform):
        m = Module()
        m.submodules.uart_in = uart_in = UartReceiver(self._divisor)
        m.submodules.frames_in = frames_in = FrameReceiver()
        m.submodules.inbox = inbox = Inbox()
        m.submodules.frames_out = frames_out = FrameSender()
        m.submodules.uart_out = uart_out = UartTransmitter(self._divisor)
        wiring.connect(m, frames_out.o, uart_out.i)
        m.d.comb += [
            *(uart_in.rx.eq(self.rx), self.tx.eq(uart_out.tx)),
            *(frames_in.i.eq(uart_in.data), frames_in.i_valid.eq(uart_in.valid)),
            *(inbox.i.eq(frames_in.o), inbox.i_valid.eq(frames_in.o_valid)),
            *(inbox.ends.eq(frames_in.ends), inbox.good.eq(frames_in.good)),
        ]
        awaits = Signal()
        with m.If(frames_in.ends & ~(inbox.arrives & awaits)):
            m.d.sync += self.lost.eq(self.lost + 1)

        request, is_repetition = self.request, Signal()
        done, size = Signal.like(inbox.size), Signal.like(inbox.size)  # bytes of data, and how many there are
        m.d.comb += [inbox.address.eq(done), self.byte.eq(inbox.data)]
        with m.FSM():
            with m.State("WAIT"):
                m.d.comb += awaits.eq(1)
                with m.If(inbox.arrives):
                    m.d.sync += [
                        *(request.eq(inbox.head), is_repetition.eq(request.sequence == inbox.head.sequence)),
                        *(done.eq(0), size.eq(inbox.size), self.offset.eq(0)),
                    ]
                    m.next = "BEGIN"
            with m.State("BEGIN"):
                m.next = "SEQUENCE"
                with m.If(request.command == Command.WRITE):
                    m.next = "BYTE"
                with m.If((request.command == Command.RUN) & ~is_repetition):
                    m.d.comb += self.starts.eq(1)
            self._states_of_writing(m, inbox, done, size)
            self._states_of_reply(m, frames_out.i)
        return m

    def _states_of_writing(self, m, inbox, done, size):
        """The frame's bytes: each in two cycles, one in which the inbox reads it."""
        with m.State("BYTE"):
            m.d.sync += done.eq(done + 1)
            m.next = "WRITE"
            with m.If(done == size):
                m.next = "SEQUENCE"
        with m.State("WRITE"):
            m.d.comb += self.writes.eq(1)
            m.d.sync += Cat(self.offset, self.request.address).eq(Cat(self.offset, self.request.address) + 1)
            m.next = "BYTE"

    def _states_of_reply(self, m, reply):
        request = self.request
        with m.State("SEQUENCE"):
            m.d.comb += [reply.p.data.eq(request.sequence), reply.valid.eq(1)]
            with m.If(reply.ready):
                m.next = "COMMAND"
        with m.State("COMMAND"):
            is_last = (request.command != Command.READ) | (request.count == 0)
            m.d.comb += [reply.p.data.eq(request.command), reply.p.last.eq(is_last), reply.valid.eq(1)]
            with m.If(reply.ready):
                m.next = "READ"
                with m.If(is_last):
                    m.next = "WAIT"
        with m.State("READ"):
            m.next = "FIND"
        with m.State("FIND"):
            m.next = "HOLD"
        byte = Signal(8)  # a counter goes on while a run does, also behind the escape that is sent for it
        with m.State("HOLD"):
            m.d.sync += byte.eq(self.found)
            m.next = "SEND"
        with m.State("SEND"):
            ends_word = self.offset.all()
            is_last = ends_word & (request.count == 1)
            m.d.comb += [reply.p.data.eq(byte), reply.p.last.eq(is_last), reply.valid.eq(1)]
            with m.If(reply.ready):
                m.d.sync += [
                    Cat(self.offset, request.address).eq(Cat(self.offset, request.address) + 1),
                    request.count.eq(request.count - ends_word),
                ]
                m.next = "READ"
                with m.If(is_last):
                    m.next = "WAIT"
