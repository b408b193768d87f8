"""The compressor of the step format, second part: each block's step, and how its values are stored."""

from itertools import pairwise

import numpy as np
from amaranth import C, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from golden.step import FIELDS, HALF, LEADING_BITS, MAX_FINER, MOST, wide_bits

from .engine import StepEngine
from .fields import let
from .planes import any_set
from .step_scanner import summary_layout

__all__ = ["Chooser", "choice_layout", "plan_layout", "plan_of"]


def choice_layout(engine: StepEngine) -> data.StructLayout:
    """The step of a block, and what it comes to with each core.

    Members:
        top: as in the block's summary.
        finer: how often the coarsest step is halved.
        cores: for each core that is tried whether the block fits with it, how many values escape, and the
            width of their fields.
        masked, last: as in the block's summary.
    """
    core = data.StructLayout({"fits": 1, "escapes": range(engine.block + 1), "wide": FIELDS["wide"]})
    return data.StructLayout(
        {
            "top": summary_layout(engine)["top"].shape,
            "finer": range(MAX_FINER + 1),
            "cores": data.ArrayLayout(core, len(engine.fmt.cores(masked=False))),
            "masked": 1,
            "last": 1,
        }
    )


def plan_layout(engine: StepEngine) -> data.StructLayout:
    """How a block is stored.

    Members:
        grid, masked, core, wide: of its header.
        narrow: the core is a single bit.
        zero: in coarse steps all finite values are 0.
        rest: bits that are left for fine bits.
        alone: it only says which values are special.
        last: it ends its tensor.
    """
    return data.StructLayout(
        {
            "grid": FIELDS["grid"],
            "masked": 1,
            "core": FIELDS["core"],
            "wide": FIELDS["wide"],
            "narrow": 1,
            "zero": 1,
            "rest": range(engine.room + 1),
            "alone": 1,
            "last": 1,
        }
    )


class Chooser(wiring.Component):
    """Finds the finest step at which a block fits, in a cycle; takes one a cycle."""

    def __init__(self, engine: StepEngine):
        self._engine = engine
        super().__init__(
            {
                "i": In(stream.Signature(summary_layout(engine))),
                "o": Out(stream.Signature(choice_layout(engine))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.i.ready.eq(~self.o.valid | self.o.ready)
        choice = Signal(choice_layout(self._engine), name="choice")
        self._choose(m, self.i.p, choice)
        with m.If(self.i.ready):
            m.d.sync += self.o.valid.eq(self.i.valid)
            with m.If(self.i.valid):
                m.d.sync += self.o.payload.eq(choice)
        return m

    def _choose(self, m: Module, summary, choice) -> None:
        engine = self._engine
        cores = engine.fmt.cores(masked=False)
        at_least = [C(1), *summary.leading, C(0)]
        is_leading = [let(m, f"leading{i}", at & ~more) for i, (at, more) in enumerate(pairwise(at_least))]
        largest = (1 << LEADING_BITS - 1) + 1 + np.arange(len(is_leading))
        most_added = MOST if engine.noise_bits else HALF
        ways: dict[int, list[dict[str, Value]]] = {}
        for finer in range(MAX_FINER + 1):
            ways[finer] = []
            for core, escapes in zip(cores, summary.escapes, strict=True):
                count = escapes[finer - 1] if finer else C(0)
                if core == 1:
                    count = let(m, f"count{finer}", count + Mux(summary.masked, summary.infinities, 0))
                widths = wide_bits(largest, finer, core, most_added).tolist()
                is_width = {
                    width: Cat(is_it for is_it, its in zip(is_leading, widths, strict=True) if its == width)
                    for width in sorted(set(widths))
                }
                fits = []
                for width, is_it in is_width.items():
                    for masked in (False, True) if core == 1 else (False,):
                        left = engine.room - engine.block * (core + masked)
                        if left >= 0:
                            few = count <= min(left // width, engine.block)
                            fits.append(is_it.any() & few & (summary.masked == masked))
                is_step = summary.top >= finer if finer else C(1)
                here = let(m, f"fits{core}_{finer}", Cat(fits).any() & is_step)
                wide = any_set(Mux(is_it.any(), width, 0) for width, is_it in is_width.items())
                ways[finer].append({"fits": here, "escapes": count, "wide": wide})
        # What fits at a step fits at every coarser one.
        some = [Cat(way["fits"] for way in at).any() for at in ways.values()]
        finest = [
            let(m, f"finest{finer}", here & ~further)
            for finer, (here, further) in enumerate(zip(some, [*some[1:], C(0)], strict=True))
        ]
        m.d.comb += [
            choice.top.eq(summary.top),
            choice.finer.eq(any_set(Mux(is_it, finer, 0) for finer, is_it in enumerate(finest))),
            choice.masked.eq(summary.masked),
            choice.last.eq(summary.last),
        ]
        for number, chosen in enumerate(choice.cores):
            for name, _ in chosen.shape():
                m.d.comb += chosen[name].eq(
                    any_set(Mux(is_it, ways[finer][number][name], 0) for finer, is_it in enumerate(finest))
                )


def plan_of(m: Module, engine: StepEngine, choice) -> Signal:
    """How a block is stored: with the core that leaves more room, the narrow one if both leave the same."""
    plan = Signal(plan_layout(engine), name="plan")
    rests = []
    for core, way in zip(engine.fmt.cores(masked=False), choice.cores, strict=True):
        space = Mux(choice.masked, engine.room - engine.block * (1 + core), engine.room - engine.block * core)
        rests.append(let(m, f"rest{core}", (space - way.escapes * way.wide)[: len(plan.rest)]))
    narrow, wide = choice.cores[0], choice.cores[len(rests) - 1]
    takes_wide = let(m, "takes_wide", wide.fits & (~narrow.fits | (rests[-1] > rests[0])))
    if len(rests) == 1:
        takes_wide = C(0)
    m.d.comb += [
        plan.masked.eq(choice.masked),
        plan.narrow.eq(~takes_wide),
        plan.zero.eq(choice.finer == 0),
        plan.rest.eq(Mux(takes_wide, rests[-1], rests[0])),
        plan.alone.eq(~narrow.fits & ~takes_wide),
        plan.last.eq(choice.last),
    ]
    with m.If(~plan.alone):
        m.d.comb += [
            plan.grid.eq(choice.top - choice.finer),
            plan.core.eq(Mux(takes_wide, engine.fmt.cores(masked=False)[-1], 1)),
            plan.wide.eq(Mux(takes_wide, wide.wide, narrow.wide)),
        ]
    return plan
