"""Just the blocks that docs/format.md, "Invalid headers", calls invalid are errors, whatever their bytes."""

from __future__ import annotations

from amaranth import Cat, Module, Mux, ResetSignal, Signal, Value
from amaranth.hdl import Assert, Assume, Cover
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from golden import PlaneFormat

__all__ = ["Headers", "is_valid"]


def is_valid(fmt: PlaneFormat, header: Value) -> Value:
    """Whether a header is valid, rule by rule; nothing here is as rtl/ has it."""
    ft = fmt.float_type
    base, flags = header[:8], header[8:]
    sign, exponents = flags[0], flags[1 : 1 + ft.exponent_bits]
    k = _count(exponents)
    total = _count(flags)
    last_k = Cat(flag == (k > ft.exponent_bits - 1 - i) for i, flag in enumerate(exponents)).all()
    highest = (1 << ft.exponent_bits) - (1 << k >> 1)
    has_base = Mux(k == 0, base == 1, (base >= 1) & (base <= highest))
    fits = (sign + k <= fmt.slots) & (total <= fmt.slots + (fmt.partial > 0))
    specials = (fmt.slots == 2) & (base == 0) & (total == 2) & sign & exponents[-1]
    cleared = (base == 0) & (total == 0)
    return (last_k & has_base & fits) | specials | cleared


def _count(bits: Value) -> Value:
    count = Value.cast(0)
    for bit in bits:
        count = count + bit
    return count


class Headers(wiring.Component):
    """Proves that a block is an error if its header is invalid, and only then; and that errors, and blocks
    whose header is all zeros, are +0.

    The engine is as it leaves reset, the block is a tensor of its own of any bytes, and nothing stalls.

    Args:
        decompressor: has the streams ``i`` and ``o``.
        fmt: its format.
        bus_bytes: bytes of a word.
        plain: the format whose rule is expected, if it is another one.
    """

    def __init__(
        self,
        decompressor: wiring.Component,
        fmt: PlaneFormat,
        bus_bytes: int,
        plain: PlaneFormat | None = None,
    ):
        assert fmt.target is not None
        self._decompressor = decompressor
        self._fmt = fmt
        self._bus_bytes = bus_bytes
        self._plain = plain or fmt
        super().__init__({"stored": In(8 * fmt.target)})

    def elaborate(self, platform):
        m = Module()
        fmt, bus_bytes = self._fmt, self._bus_bytes
        assert fmt.target is not None
        m.submodules.decompressor = decompressor = self._decompressor
        i, o = decompressor.i, decompressor.o
        m.d.comb += Assume(~ResetSignal())

        # The block is whatever is at the port in the first cycle.
        is_first = Signal(init=1)
        kept, block = Signal(8 * fmt.target), Signal(8 * fmt.target)
        m.d.sync += [is_first.eq(0), kept.eq(block)]
        m.d.comb += block.eq(Mux(is_first, self.stored, kept))
        header = block[: 8 * fmt.header_bytes]
        valid = Signal()
        m.d.comb += valid.eq(is_valid(self._plain, header))

        words = -(-fmt.target // bus_bytes)
        sent = Signal(range(words + 1))
        m.d.comb += [
            i.valid.eq(sent != words),
            i.p.data.eq(block.word_select(sent, 8 * bus_bytes) if words > 1 else block),
            i.p.last.eq(sent == words - 1),
            i.p.empty.eq(Mux(i.p.last, words * bus_bytes - fmt.target, 0)),
            o.ready.eq(1),
        ]
        with m.If(i.valid & i.ready):
            m.d.sync += sent.eq(sent + 1)
        with m.If(o.valid):
            m.d.comb += [
                Assert(o.p.error == ~valid, "an invalid header is an error, a valid one is none"),
                Assert(~o.p.error & header.any() | ~o.p.data.any(), "errors and cleared memory are zeros"),
                Cover(~o.p.error & ~header.any() & o.p.last, "cleared memory comes out"),
            ]
        return m
