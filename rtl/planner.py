"""From the summary of a block to the places of its planes: docs/format.md, "Fixed mode", steps 2 to 6."""

from amaranth import C, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .engine import Engine
from .planes import any_set, count_in_groups, ranks_from_groups
from .scanner import summary_layout

__all__ = ["Chooser", "Ranker", "choice_layout", "plan_layout"]


def choice_layout(engine: Engine) -> data.StructLayout:
    """What is kept of a block's exponents, and how its words are to be coded."""
    ft = engine.fmt.float_type
    return data.StructLayout(
        {
            "base": ft.exponent_bits,
            "sign": 1,
            "exponent": ft.exponent_bits,  # flags of the exponent planes, the last plane's in bit 0
            "mantissa": ft.mantissa_bits,  # flags of the mantissa planes, the first plane's in bit 0
            "counts": 3 * ft.mantissa_bits,  # see count_in_groups
            "flush": 1,  # values whose exponent field is below the base become zero
            "special": 1,
            "words": range(engine.words + 1),
            "last": 1,
        }
    )


def plan_layout(engine: Engine) -> data.StructLayout:
    """Where the planes of a block go."""
    fmt = engine.fmt
    return data.StructLayout(
        {
            "base": fmt.float_type.exponent_bits,
            "flags": fmt.planes,  # before the planes that do not fit are dropped; bit j for plane j
            "ranks": data.ArrayLayout(range(fmt.planes), fmt.planes),
            "last": 1,
        }
    )


class Chooser(wiring.Component):
    """Turns a block's summary into its base and flags, in a cycle; takes one a cycle.

    Coder and ranker each take their copy of a choice when they are ready for it.
    """

    def __init__(self, engine: Engine):
        self._engine = engine
        choices = Out(stream.Signature(choice_layout(engine)))
        summaries = In(stream.Signature(summary_layout(engine)))
        super().__init__({"i": summaries, "to_coder": choices, "to_ranker": choices})

    def elaborate(self, platform):
        m = Module()
        choice = Signal(choice_layout(self._engine))
        outputs = (self.to_coder, self.to_ranker)
        m.d.comb += self.i.ready.eq(Cat(~o.valid | o.ready for o in outputs).all())
        for o in outputs:
            m.d.comb += o.payload.eq(choice)
            with m.If(o.ready):
                m.d.sync += o.valid.eq(0)
            with m.If(self.i.valid & self.i.ready):
                m.d.sync += o.valid.eq(1)
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += choice.eq(self._choose(m, self.i.payload))
        return m

    def _choose(self, m: Module, summary) -> Value:
        fmt = self._engine.fmt
        ft = fmt.float_type
        is_zero = summary.highest == 0
        largest_delta = Signal(ft.exponent_bits)
        m.d.comb += largest_delta.eq(Mux(is_zero, 0, summary.highest - summary.lowest + 1))
        used = Cat(largest_delta[k:].any() for k in range(ft.exponent_bits))  # ones up to the width

        base = Mux(is_zero, 1, summary.lowest)
        exponent, mantissa = used, summary.mantissa[::-1]
        flush = special = C(0)
        for taken in range(3):
            # `taken` planes besides the exponents: signs, and the quiet bits of NaNs.
            room = fmt.slots - taken
            if room < ft.exponent_bits:
                flush_here = Signal(name=f"flush_to_{room}_planes")
                m.d.comb += flush_here.eq((summary.sign + summary.nan == taken) & used[room])
                flush |= flush_here
                exponent = Mux(flush_here, (1 << room) - 1, exponent)
                if room > 0:
                    base = Mux(flush_here, summary.highest - ((1 << room) - 2), base)
                else:
                    special = flush_here
                    base = Mux(special, 0, base)
                    exponent |= special
                    mantissa = Mux(special, 0, mantissa)
        fields = {
            "base": base[: ft.exponent_bits],
            "sign": summary.sign,
            "exponent": exponent[: ft.exponent_bits],
            "mantissa": mantissa,
            "counts": count_in_groups(summary.mantissa[::-1]),
            "flush": flush,
            "special": special,
            "words": summary.words,
            "last": summary.last,
        }
        return Cat(fields[name] for name, _ in choice_layout(self._engine))


class Ranker(wiring.Component):
    """Finds the places of a block's planes, in a cycle; takes one a cycle."""

    def __init__(self, engine: Engine):
        self._engine = engine
        super().__init__(
            {
                "i": In(stream.Signature(choice_layout(engine))),
                "o": Out(stream.Signature(plan_layout(engine))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        ft = self._engine.fmt.float_type
        choice = self.i.payload
        flags = Cat(choice.sign, choice.exponent[::-1], choice.mantissa)
        # The exponent flags are ones below the width: their ranks follow from it.
        is_top = choice.exponent & ~(choice.exponent >> 1)
        width = any_set(Mux(is_top[k], k + 1, 0) for k in range(ft.exponent_bits))
        before_mantissa = Signal(range(ft.exponent_bits + 2))
        m.d.comb += before_mantissa.eq(choice.sign + width)
        exponent_ranks = [before_mantissa - 1 - k for k in reversed(range(ft.exponent_bits))]
        mantissa_ranks = ranks_from_groups(m, choice.mantissa, choice.counts, before_mantissa)

        m.d.comb += self.i.ready.eq(~self.o.valid | self.o.ready)
        with m.If(self.i.ready):
            m.d.sync += self.o.valid.eq(self.i.valid)
            with m.If(self.i.valid):
                m.d.sync += [self.o.p.base.eq(choice.base), self.o.p.flags.eq(flags)]
                m.d.sync += self.o.p.last.eq(choice.last)
                ranks = [C(0), *exponent_ranks, *mantissa_ranks]
                m.d.sync += [r.eq(rank) for r, rank in zip(self.o.p.ranks, ranks, strict=True)]
        return m
