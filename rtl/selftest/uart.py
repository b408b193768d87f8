"""Bytes over two wires: eight data bits, the lowest first, no parity, one stop bit."""

from amaranth import Cat, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.cdc import FFSynchronizer
from amaranth.lib.wiring import In, Out

__all__ = ["UartReceiver", "UartTransmitter"]

_DATA_BITS = 8


class UartReceiver(wiring.Component):
    """Takes bytes from a wire.

    Each bit is sampled in its middle, counted from the edge that starts the byte. A byte whose stop bit is
    not 1 is dropped.

    Args:
        divisor: cycles of a bit, at least 4.

    Members:
        rx: the wire, of any clock.
        data, valid: a byte, for one cycle.

    Raises:
        ValueError: ``divisor`` is less.
    """

    def __init__(self, divisor: int):
        self._divisor = _checked(divisor)
        super().__init__({"rx": In(1, init=1), "data": Out(_DATA_BITS), "valid": Out(1)})

    def elaborate(self, platform):
        m = Module()
        rx = Signal(init=1)
        m.submodules.synchroniser = FFSynchronizer(self.rx, rx, init=1)
        bits = Signal(_DATA_BITS + 1)  # and the start bit, below them
        left = Signal(range(_DATA_BITS + 3))  # bits of the byte that are still to come
        timer = Signal(range(self._divisor))
        m.d.sync += self.valid.eq(0)
        m.d.comb += self.data.eq(bits[1:])
        with m.If(left != 0):
            m.d.sync += timer.eq(timer - 1)
            with m.If(timer == 0):
                m.d.sync += [timer.eq(self._divisor - 1), left.eq(left - 1)]
                with m.If(left == 1):
                    m.d.sync += self.valid.eq(rx & ~bits[0])
                with m.Else():
                    m.d.sync += bits.eq(Cat(bits[1:], rx))
        with m.Elif(~rx):
            m.d.sync += [left.eq(_DATA_BITS + 2), timer.eq(self._divisor // 2 - 1)]
        return m


class UartTransmitter(wiring.Component):
    """Sends bytes over a wire.

    Args:
        divisor: as of :class:`UartReceiver`.

    Members:
        i: stream of bytes.
        tx: the wire.
    """

    def __init__(self, divisor: int):
        self._divisor = _checked(divisor)
        super().__init__({"i": In(stream.Signature(_DATA_BITS)), "tx": Out(1, init=1)})

    def elaborate(self, platform):
        m = Module()
        bits = Signal(_DATA_BITS + 1, init=-1)  # what follows the bit on the wire
        left = Signal(range(_DATA_BITS + 3))
        timer = Signal(range(self._divisor))
        wire = Signal(init=1)
        m.d.comb += [self.tx.eq(wire), self.i.ready.eq(left == 0)]
        with m.If(left != 0):
            m.d.sync += timer.eq(timer - 1)
            with m.If(timer == 0):
                m.d.sync += [Cat(wire, bits).eq(Cat(bits, 1)), timer.eq(self._divisor - 1), left.eq(left - 1)]
        with m.Elif(self.i.valid):
            m.d.sync += [
                Cat(wire, bits).eq(Cat(0, self.i.payload, 1)),
                *(timer.eq(self._divisor - 1), left.eq(_DATA_BITS + 2)),
            ]
        return m


def _checked(divisor: int) -> int:
    if divisor < 4:
        raise ValueError(f"divisor must be at least 4 cycles, not {divisor!r}")
    return divisor
