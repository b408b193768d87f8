"""decompress(compress(x)) is what the format says, for every x."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from amaranth import Cat, Module, Mux, ResetSignal, Signal, Value
from amaranth.hdl import Assert, Assume, Cover
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In

from golden import PlaneFormat
from golden.floats import FloatType
from rtl import Compressor, Decompressor

from .plain import Plain

__all__ = ["RoundTrip", "TinyFormat"]


@dataclass(frozen=True)
class TinyFormat(PlaneFormat):
    """A bit-plane format small enough for a solver: eight bits a value, ``exponent_bits`` are its exponent.

    ``dtype`` names the type; ``block`` is a multiple of 8, so that planes are whole bytes.
    """

    dtype: str = "tiny"
    block: int = 8
    target: int | None = 6
    exponent_bits: int = 3

    def __post_init__(self) -> None:
        pass  # neither type nor block is one of the public ones

    @property
    def float_type(self) -> FloatType:
        byte = np.dtype(np.uint8)
        return FloatType(self.dtype, self.exponent_bits, 7 - self.exponent_bits, byte, byte)


class RoundTrip(wiring.Component):
    """Proves that a block which passes compressor and decompressor comes back as :class:`Plain` says.

    The engines are as they leave reset, the block is a tensor of its own, and nothing stalls.

    Args:
        fmt: a format with a fixed target.
        bus_bytes: bytes of a word.
        plain: the format whose rule is expected, if it is another one.
    """

    def __init__(self, fmt: PlaneFormat, bus_bytes: int, plain: PlaneFormat | None = None):
        self._fmt = fmt
        self._bus_bytes = bus_bytes
        self._plain = plain or fmt
        super().__init__({"x": In(data.ArrayLayout(fmt.float_type.width, fmt.block))})

    def elaborate(self, platform):
        m = Module()
        original_bytes, bus_bytes = self._fmt.original_bytes, self._bus_bytes
        m.submodules.compressor = compressor = Compressor(self._fmt, bus_bytes)
        m.submodules.decompressor = decompressor = Decompressor(self._fmt, bus_bytes)
        m.submodules.plain = plain = Plain(self._plain)
        wiring.connect(m, compressor.o, decompressor.i)
        i, o = compressor.i, decompressor.o
        m.d.comb += Assume(~ResetSignal())

        # The block is whatever is at the port in the first cycle.
        is_first = Signal(init=1)
        kept, x = Signal(8 * original_bytes), Signal(8 * original_bytes)
        m.d.sync += [is_first.eq(0), kept.eq(x)]
        m.d.comb += [x.eq(Mux(is_first, Value.cast(self.x), kept)), Value.cast(plain.x).eq(kept)]

        words = -(-original_bytes // bus_bytes)
        sent, come = Signal(range(words + 1)), Signal(range(words + 1))
        is_last = sent == words - 1
        m.d.comb += [
            i.valid.eq(sent != words),
            i.p.data.eq(x.word_select(sent, 8 * bus_bytes) if words > 1 else x),
            i.p.last.eq(is_last),
            i.p.empty.eq(words * bus_bytes - original_bytes),
            o.ready.eq(1),
        ]
        with m.If(i.valid & i.ready):
            m.d.sync += sent.eq(sent + 1)
        y = Cat(Value.cast(plain.y))
        with m.If(o.valid):
            m.d.sync += come.eq(come + 1)
            expected = y.word_select(come, 8 * bus_bytes) if words > 1 else y
            m.d.comb += [
                Assert(o.p.data == expected, "the values are what the format says"),
                Assert(~o.p.error, "there is no error"),
                Assert(o.p.last == (come == words - 1), "last is on the last word"),
            ]
        m.d.comb += Cover(come == words, "the block came back")
        return m
