"""From the summary of a block to what is kept of it: docs/format.md, "Fixed mode"."""

from amaranth import C, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..stream import Switch
from .engine import PlaneEngine
from .ranks import counts_from_groups
from .scanner import summary_layout

__all__ = ["Chooser", "choice_layout"]


def choice_layout(engine: PlaneEngine) -> data.StructLayout:
    """What is kept of a block's exponents, and how its words are to be coded."""
    ft = engine.float_type
    return data.StructLayout(
        {
            "base": ft.exponent_bits,
            "sign": 1,
            "exponent": ft.exponent_bits,  # flags of the exponent planes, the last plane's in bit 0
            "mantissa": ft.mantissa_bits,  # flags of the mantissa planes, the first plane's in bit 0
            "dropped": _counts(ft),  # mantissa planes without a flag before each
            "flush": 1,  # values whose exponent field is below the base become zero
            "special": 1,
            "words": range(engine.words + 1),
            "last": 1,
        }
    )


def _counts(ft) -> data.ArrayLayout:
    return data.ArrayLayout(range(ft.mantissa_bits), ft.mantissa_bits)


class Chooser(wiring.Component):
    """Turns a block's summary into its base and flags, in a cycle; takes one a cycle."""

    def __init__(self, engine: PlaneEngine, switch: Switch):
        self._engine = engine
        self._switch = switch
        super().__init__(
            {
                "i": In(stream.Signature(summary_layout(engine))),
                "o": Out(stream.Signature(choice_layout(engine))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.i.ready.eq(~self.o.valid | self.o.ready)
        with m.If(self.i.ready):
            m.d.sync += self.o.valid.eq(self.i.valid)
            with m.If(self.i.valid):
                m.d.sync += self.o.payload.eq(self._choose(m, self.i.payload))
        return m

    def _choose(self, m: Module, summary) -> Value:
        engine = self._engine
        ft = engine.float_type
        offset = self._switch.choose(lambda fmt: engine.exponent_offset(fmt.float_type))
        is_zero = summary.highest == 0
        largest_delta = Signal(ft.exponent_bits)
        m.d.comb += largest_delta.eq(Mux(is_zero, 0, summary.highest - summary.lowest + 1))
        used = Cat(largest_delta[k:].any() for k in range(ft.exponent_bits))  # ones up to the width

        base = Mux(is_zero, 1 + offset, summary.lowest)
        exponent, mantissa = used, summary.mantissa
        flush = special = C(0)
        for taken in range(3):
            # `taken` planes besides the exponents: signs, and the quiet bits of NaNs.
            for room in sorted({fmt.slots - taken for fmt in engine.formats} & set(range(ft.exponent_bits))):
                flush_here = Signal(name=f"flush_{taken}_to_{room}_planes")
                m.d.comb += flush_here.eq(
                    (summary.sign + summary.nan == taken)
                    & used[room]
                    & self._switch.when(lambda fmt, slots=room + taken: fmt.slots == slots)
                )
                flush |= flush_here
                exponent = Mux(flush_here, (1 << room) - 1, exponent)
                if room > 0:
                    base = Mux(flush_here, summary.highest - ((1 << room) - 2), base)
                else:
                    special |= flush_here
                    base = Mux(flush_here, offset, base)
                    exponent |= flush_here
                    mantissa = Mux(flush_here, 0, mantissa)
        dropped = Signal(_counts(ft))
        m.d.comb += [
            d.eq(n)
            for d, n in zip(dropped, counts_from_groups(m, ~summary.mantissa, summary.dropped), strict=True)
        ]
        fields = {
            "base": base[: ft.exponent_bits],
            "sign": summary.sign,
            "exponent": exponent[: ft.exponent_bits],
            "mantissa": mantissa,
            "dropped": dropped,
            "flush": flush,
            "special": special,
            "words": summary.words,
            "last": summary.last,
        }
        return Cat(fields[name] for name, _ in choice_layout(engine))
