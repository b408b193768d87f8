"""Frames of bytes, each with a CRC: those of RFC 1662 (HDLC-like framing) without its address fields.

A flag, 0x7E, stands before and behind each frame. Where a byte of a frame is a flag or an escape, an escape
is sent, 0x7D, and the byte with its bit 5 flipped. The last four bytes are the CRC-32 of those before
(ISO-HDLC's, as zlib has it), the lowest first. Whatever is lost, the next flag starts anew.
"""

from amaranth import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.crc.catalog import CRC32_ISO_HDLC
from amaranth.lib.wiring import In, Out

__all__ = ["FrameReceiver", "FrameSender"]

FLAG, ESCAPE, FLIP = 0x7E, 0x7D, 0x20
CRC_BYTES = 4


class FrameReceiver(wiring.Component):
    """Takes frames from a stream of bytes that does not wait.

    Members:
        i, i_valid: a byte, for one cycle, at most every other cycle.
        o, o_valid: a byte of a frame, its CRC included, one cycle later.
        ends: the frame is over; in the same cycle:
        good: its CRC fits. A frame without bytes is none.
    """

    i: In(8)
    i_valid: In(1)
    o: Out(8)
    o_valid: Out(1)
    ends: Out(1)
    good: Out(1)

    def elaborate(self, platform):
        m = Module()
        m.submodules.crc = crc = CRC32_ISO_HDLC().create()
        escaped, begun = Signal(), Signal()
        m.d.sync += [self.o_valid.eq(0), self.ends.eq(0)]
        m.d.comb += [crc.data.eq(self.o), crc.valid.eq(self.o_valid), crc.start.eq(self.ends)]
        m.d.comb += self.good.eq(self.ends & crc.match_detected)
        with m.If(self.i_valid):
            m.d.sync += escaped.eq(self.i == ESCAPE)
            with m.If(self.i == FLAG):
                m.d.sync += [self.ends.eq(begun), begun.eq(0)]
            with m.Elif(self.i != ESCAPE):
                m.d.sync += [self.o.eq(self.i ^ Mux(escaped, FLIP, 0)), self.o_valid.eq(1), begun.eq(1)]
        return m


class FrameSender(wiring.Component):
    """Sends frames as a stream of bytes.

    Members:
        i: stream of a frame's bytes, the last one with ``last``.
        o: stream of the bytes that it becomes.
    """

    def __init__(self):
        layout = data.StructLayout({"data": 8, "last": 1})
        super().__init__({"i": In(stream.Signature(layout)), "o": Out(stream.Signature(8))})

    def elaborate(self, platform):
        m = Module()
        m.submodules.crc = crc = CRC32_ISO_HDLC().create()
        byte, offered, taken = Signal(8), Signal(), Signal()
        escaped = Signal()  # the escape before this byte was sent
        is_special = (byte == FLAG) | (byte == ESCAPE)
        m.d.comb += crc.data.eq(self.i.p.data)
        index = Signal(range(CRC_BYTES))

        with m.FSM():
            with m.State("BEFORE"):
                m.d.comb += [self.o.payload.eq(FLAG), self.o.valid.eq(self.i.valid), crc.start.eq(1)]
                with m.If(self.o.valid & self.o.ready):
                    m.next = "BYTES"
            with m.State("BYTES"):
                m.d.comb += [
                    *(byte.eq(self.i.p.data), offered.eq(self.i.valid)),
                    *(self.i.ready.eq(taken), crc.valid.eq(taken)),
                ]
                with m.If(taken & self.i.p.last):
                    m.next = "CRC"
            with m.State("CRC"):
                m.d.comb += [byte.eq(crc.crc.word_select(index, 8)), offered.eq(1)]
                with m.If(taken):
                    m.d.sync += index.eq(index + 1)
                    with m.If(index == CRC_BYTES - 1):
                        m.next = "BEHIND"
            with m.State("BEHIND"):
                m.d.comb += [self.o.payload.eq(FLAG), self.o.valid.eq(1)]
                with m.If(self.o.ready):
                    m.next = "BEFORE"

        with m.If(offered):
            m.d.comb += [
                self.o.valid.eq(1),
                self.o.payload.eq(Mux(is_special, Mux(escaped, byte ^ FLIP, ESCAPE), byte)),
                taken.eq(self.o.ready & (~is_special | escaped)),
            ]
            with m.If(self.o.ready):
                m.d.sync += escaped.eq(is_special & ~escaped)
        return m
