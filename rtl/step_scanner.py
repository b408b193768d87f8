"""The compressor of the step format, first part: at which steps how many of a block's values escape."""

from amaranth import C, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from golden.step import HALF, LEADING_BITS, MAX_FINER, POINT_BITS

from .engine import StepEngine
from .fields import Register, leading_zeros, let, ones, total
from .planes import any_set
from .scanner import DelayLine, is_less, largest_of
from .step_noise import Noise
from .stream import word_layout

__all__ = ["SCALED_BITS", "Scanner", "step_layout", "summary_layout"]

# Bits of a value in the finest steps that there are, with those behind the point that count.
SCALED_BITS = MAX_FINER + POINT_BITS

# How many numbers the bits behind the first of a block's largest magnitude may be, but for 0.
_LEADINGS = (1 << LEADING_BITS - 1) - 1


def _exponent_bits(engine: StepEngine) -> int:
    """Of an exponent above the lowest; 0 is that of a zero, all ones that of a special."""
    return 8 if engine.float_type.exponent_bits == 8 else 6


def step_layout(engine: StepEngine) -> data.StructLayout:
    """A step of values on its way.

    Members:
        lanes: of each value the bits behind its significand's first, as many as count; of a special whether
            it is a NaN. The exponent above the lowest. Random bits.
        first, final: which step of its block it is.
    """
    lane = data.StructLayout(
        {
            "mantissa": min(engine.float_type.mantissa_bits, SCALED_BITS - 1),
            "exponent": _exponent_bits(engine),
            "negative": 1,
            "noise": engine.noise_bits,
        }
    )
    return data.StructLayout({"lanes": data.ArrayLayout(lane, engine.lanes), "first": 1, "final": 1})


def _earliest(engine: StepEngine, core: int) -> int:
    """How often the coarsest step is halved, at least, before a value may escape.

    Random bits can make values escape from a single bit at steps larger than all values.
    """
    return 2 - POINT_BITS if core == 1 and engine.noise_bits else core


def summary_layout(engine: StepEngine) -> data.StructLayout:
    """What is known of a block.

    Members:
        top: its largest exponent, as in :func:`step_layout`.
        leading: for 1, 2, ... whether the bits behind the first of its largest magnitude are at least that.
        escapes: for each core that is tried, how many finite values escape at each ``finer`` from 1 on.
        infinities: how many there are.
        masked: it holds specials.
        last: it ends its tensor.
    """
    cores = engine.fmt.cores(masked=False)
    counts = data.ArrayLayout(data.ArrayLayout(range(engine.block + 1), MAX_FINER), len(cores))
    return data.StructLayout(
        {
            "top": _exponent_bits(engine),
            "leading": _LEADINGS,
            "escapes": counts,
            "infinities": range(engine.block + 1),
            "masked": 1,
            "last": 1,
        }
    )


class Scanner(wiring.Component):
    """Pads tensors to whole blocks, and counts what escapes while their steps wait in a delay line.

    Takes a step a cycle, but six cycles pass before a tensor's first one if rounding is stochastic. A
    summary is offered four cycles after its block's last step was taken, or five if rounding is stochastic.

    Members:
        seed: of the tensor of which the first word is at ``i``.
    """

    def __init__(self, engine: StepEngine):
        self._engine = engine
        super().__init__(
            {
                "i": In(stream.Signature(word_layout(engine.word_bytes))),
                "seed": In(engine.key_bits),
                "steps": Out(stream.Signature(step_layout(engine))),
                "summaries": Out(stream.Signature(summary_layout(engine))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        engine = self._engine
        stochastic = engine.noise_bits > 0
        # As many steps as come in until a block's summary is there, those of the block included, less those
        # in the registers before.
        m.submodules.queue = queue = DelayLine(step_layout(engine).size, engine.words + 3)
        m.d.comb += [
            self.steps.valid.eq(queue.o.valid),
            self.steps.payload.eq(queue.o.payload),
            queue.o.ready.eq(self.steps.ready),
        ]
        # Whatever is before the line moves on.
        flow = let(m, "flow", queue.i.ready & (~self.summaries.valid | self.summaries.ready))

        index = Signal(range(engine.words))
        pads = Signal()
        starts = Signal(init=1)
        final = let(m, "final", index == engine.words - 1)
        comes = let(m, "comes", self.i.valid | pads)
        ends = let(m, "ends", pads | self.i.p.last)
        takes = Signal()
        ready = C(1)
        if stochastic:
            noise = Noise(
                m,
                engine,
                starts=starts,
                comes=comes,
                seed=self.seed,
                takes=takes,
                final=final,
                place=index,
                flow=flow,
            )
            ready = noise.ready
        m.d.comb += [takes.eq(comes & ready & flow), self.i.ready.eq(ready & flow & ~pads)]
        with m.If(takes):
            m.d.sync += [index.eq(Mux(final, 0, index + 1)), pads.eq(ends & ~final), starts.eq(ends & final)]

        # The step that was taken last, and the largest of every four exponents.
        entering = Signal(step_layout(engine))
        exponents, specials = _entering(m, engine, Mux(pads, 0, self.i.p.data), entering.lanes)
        m.d.comb += [entering.first.eq(index == 0), entering.final.eq(final)]
        highest = _largest(m, "highest", exponents, 4)
        held = _Held(m, flow, "held", entering, takes, ends, [*highest, Cat(specials).any()])
        if stochastic:
            with_noise = Signal(step_layout(engine))
            m.d.comb += with_noise.eq(held.step)
            m.d.comb += [lane.noise.eq(bits) for lane, bits in zip(with_noise.lanes, noise.bits, strict=True)]
            held = _Held(m, flow, "held_with_noise", with_noise, held.there, held.ends, held.others)
        *highest, special = held.others
        m.d.comb += [queue.i.valid.eq(held.there & flow), queue.i.payload.eq(held.step)]

        # The largest exponent so far, and what of when a value escapes does not depend on it.
        top = Signal(_exponent_bits(engine), reset_less=True)
        top_before = Signal(_exponent_bits(engine), reset_less=True)
        masked = Signal(reset_less=True)
        before = let(m, "top_so_far", Mux(held.step.first, 0, top))
        with m.If(flow & held.there):
            m.d.sync += [
                top.eq(_largest(m, "top_now", [*highest, before], 1)[0]),
                top_before.eq(before),
                masked.eq(special | (masked & ~held.step.first)),
            ]
        compared = Register(m, _compared_layout(engine), flow, "compared")
        is_compared = Signal()
        _compare(m, engine, held.step, compared.next)
        m.d.comb += compared.next.last.eq(held.ends)

        # How many values of the step escape.
        counted = Register(m, _counted_layout(engine), flow, "counted")
        is_counted = Signal()
        _count(m, engine, compared.now, top, top_before, counted.next)
        m.d.comb += [counted.next.top.eq(top), counted.next.masked.eq(masked)]

        # And of the block so far.
        summary = Register(m, summary_layout(engine), flow & is_counted, "summary")
        _sum(m, engine, counted.now, summary)
        done = Signal()
        with m.If(flow):
            m.d.sync += [
                is_compared.eq(held.there),
                is_counted.eq(is_compared),
                done.eq(is_counted & counted.now.final),
            ]
        m.d.comb += [self.summaries.valid.eq(done), self.summaries.payload.eq(summary.now)]
        return m


class _Held:
    """A step a cycle later, whether there is one, whether it ends its tensor, and what else belongs to it."""

    def __init__(
        self, m: Module, flow: Value, name: str, step, there: Value, ends: Value, others: list[Value]
    ):
        self.step = Signal(step.shape(), name=name, reset_less=True)
        self.there = Signal(name=f"{name}_there")
        self.ends = Signal(name=f"{name}_ends", reset_less=True)
        self.others = [
            Signal.like(other, name=f"{name}_{i}", reset_less=True) for i, other in enumerate(others)
        ]
        with m.If(flow):
            m.d.sync += [self.step.eq(step), self.there.eq(there), self.ends.eq(ends)]
            m.d.sync += [kept.eq(other) for kept, other in zip(self.others, others, strict=True)]


def _entering(m: Module, engine: StepEngine, word: Value, lanes) -> tuple[list[Value], list[Value]]:
    """Take a step's floats apart. Returns their exponents, 0 for specials; and which are special."""
    ft = engine.float_type
    exponents, specials = [], []
    for i, lane in enumerate(lanes):
        value = word.word_select(i, ft.width)
        mantissa, field, sign = value[: ft.mantissa_bits], value[ft.mantissa_bits : -1], value[-1]
        special = let(m, f"special{i}", field.all())
        exponent = field
        if ft.exponent_bits < 8:
            # Subnormals are shifted up, behind their first bit.
            padded = Cat(C(0, 15 - ft.mantissa_bits), mantissa, C(0, 1))
            zeros = let(m, f"zeros{i}", leading_zeros(padded))
            subnormal = let(m, f"subnormal{i}", ~field.any())
            mantissa = Mux(subnormal, (mantissa << zeros)[: ft.mantissa_bits], mantissa)
            lowest = Mux(padded.any(), ft.mantissa_bits + 1 - zeros, 0)
            above = Mux(special, (1 << _exponent_bits(engine)) - 1, field + ft.mantissa_bits)
            exponent = let(m, f"exponent{i}", Mux(subnormal, lowest, above)[: _exponent_bits(engine)])
        kept = mantissa[ft.mantissa_bits - len(lane.mantissa) :]
        # A NaN has some bit set.
        lost = mantissa[: ft.mantissa_bits - len(lane.mantissa)].any() & special
        m.d.comb += [lane.mantissa.eq(kept | lost), lane.exponent.eq(exponent), lane.negative.eq(sign)]
        exponents.append(let(m, f"finite_exponent{i}", Mux(special, 0, exponent)))
        specials.append(special)
    return exponents, specials


def _largest(m: Module, name: str, values: list[Value], count: int) -> list[Value]:
    """The largest numbers of some groups, at most ``count``; up to five are compared at once."""
    while len(values) > count:
        size = 4 if len(values) > 5 else 5
        values = [
            let(m, f"{name}_of_{len(values)}_{i}", largest_of(values[i : i + size]))
            for i in range(0, len(values), size)
        ]
    return values


def _compared_layout(engine: StepEngine) -> data.StructLayout:
    """A step of values, compared with what they must reach to escape; see ``golden.step._Values.escaped_at``.

    Members:
        lanes: of each its exponent, and whether it is one that counts; the bits behind its significand's
            first, as many as decide how wide escapes may be; and for each core whether the significand is
            below what it must reach, normalised as it is, and how far that was shifted up.
        infinities: which values are infinite.
        first, final, last: which step of its block it is, and whether that ends its tensor.
    """
    shifts = range(POINT_BITS) if engine.noise_bits else 0
    core = data.StructLayout({"below": 1, "zeros": shifts})
    lane = data.StructLayout(
        {
            "exponent": _exponent_bits(engine),
            "counts": 1,
            "leading": LEADING_BITS - 1,
            "cores": data.ArrayLayout(core, len(engine.fmt.cores(masked=False))),
        }
    )
    return data.StructLayout(
        {
            "lanes": data.ArrayLayout(lane, engine.lanes),
            "infinities": engine.lanes,
            "first": 1,
            "final": 1,
            "last": 1,
        }
    )


def _compare(m: Module, engine: StepEngine, step, compared) -> None:
    for i, (lane, value) in enumerate(zip(compared.lanes, step.lanes, strict=True)):
        m.d.comb += [
            lane.exponent.eq(value.exponent),
            lane.counts.eq(value.exponent.any() & ~value.exponent.all()),
            lane.leading.eq(value.mantissa[-(LEADING_BITS - 1) :]),
        ]
        for core, of_core in zip(engine.fmt.cores(masked=False), lane.cores, strict=True):
            name, bits = f"{core}_{i}", POINT_BITS + core - 1
            if engine.noise_bits:
                least = let(m, f"least{name}", (C((1 << bits) - 1, bits) - Cat(C(0, 1), value.noise))[:bits])
                if core == 1:
                    zeros = let(m, f"zeros{name}", leading_zeros(Cat(C(0, 8 - bits), least)))
                    least = let(m, f"least{name}_normal", (least << zeros)[:bits])
                    m.d.comb += of_core.zeros.eq(zeros)
            else:
                least = C((1 << bits) - HALF, bits)
            mantissa = Cat(C(0, bits - 1), value.mantissa)[-(bits - 1) :]
            m.d.comb += of_core.below.eq(is_less(mantissa, least[:-1]))
    m.d.comb += [
        compared.infinities.eq(Cat(lane.exponent.all() & ~lane.mantissa.any() for lane in step.lanes)),
        compared.first.eq(step.first),
        compared.final.eq(step.final),
    ]


def _counted_layout(engine: StepEngine) -> data.StructLayout:
    """What a step adds to its block's summary, and by how much it raised the largest exponent.

    Members:
        escapes: for each core how many values escape at each ``finer`` from the earliest on.
        others: as in :func:`summary_layout`, of the block so far, but infinities of the step.
    """
    counts = {
        f"escapes{core}": data.ArrayLayout(range(engine.lanes + 1), _places(engine, core))
        for core in engine.fmt.cores(masked=False)
    }
    return data.StructLayout(
        counts
        | {
            "rise": range(MAX_FINER + 8),
            "leading": _LEADINGS,
            "infinities": range(engine.lanes + 1),
            "top": _exponent_bits(engine),
            "masked": 1,
            "first": 1,
            "final": 1,
            "last": 1,
        }
    )


def _places(engine: StepEngine, core: int) -> int:
    """At how many ``finer`` values may escape."""
    return max(MAX_FINER + 1 - _earliest(engine, core), 0)


def _count(m: Module, engine: StepEngine, compared, top: Value, top_before: Value, counted) -> None:
    reached: dict[int, list[Value]] = {}
    leading = []
    for i, lane in enumerate(compared.lanes):
        distance = let(m, f"distance{i}", (top - lane.exponent)[: len(top)])
        is_top = let(m, f"is_top{i}", lane.counts & (distance == 0))
        leading.append(Cat(is_top & (lane.leading >= number) for number in range(1, _LEADINGS + 1)))
        further = ones(m, f"further{i}", distance[:5], MAX_FINER)
        near = let(m, f"near{i}", lane.counts & ~distance[5:].any())
        for core, of_core in zip(engine.fmt.cores(masked=False), lane.cores, strict=True):
            places = _places(engine, core)
            if engine.noise_bits and core == 1:
                at = distance[:5] + (core - _earliest(engine, core)) + of_core.below - of_core.zeros
                at = let(m, f"at{core}_{i}", at.as_unsigned()[:6])
                later = ones(m, f"later{core}_{i}", at, places)
            else:
                later = Mux(of_core.below, Cat(C(1), further), further)[:places]
            reached.setdefault(core, []).append(let(m, f"reached{core}_{i}", ~later & near.replicate(places)))
    for core, columns in reached.items():
        for place, count in enumerate(counted[f"escapes{core}"]):
            m.d.comb += count.eq(total(m, f"escapes{core}_{place}", [column[place] for column in columns]))
    rise = let(m, "rise", (top - top_before)[: len(top)])
    most = MAX_FINER + 4
    m.d.comb += [
        counted.rise.eq(Mux(rise > most, most, rise)),
        counted.leading.eq(any_set(leading)),
        counted.infinities.eq(total(m, "infinities", [*compared.infinities])),
        *(counted[name].eq(compared[name]) for name in ("first", "final", "last")),
    ]


def _sum(m: Module, engine: StepEngine, counted, summary: Register) -> None:
    """Add to a block's counts. What escaped at a step escapes as much later as the largest exponent rose."""
    for core, now, then in zip(
        engine.fmt.cores(masked=False), summary.now.escapes, summary.next.escapes, strict=True
    ):
        earliest = _earliest(engine, core)
        # Those that escape at coarser steps than any that is tried.
        early = [
            Signal(range(engine.block + 1), name=f"early{core}_{place}", reset_less=True)
            for place in range(1 - earliest)
        ]
        counts = [*early, *list(now)[max(earliest - 1, 0) :]]
        shifted = list(counts)
        for stage, up in enumerate(counted.rise):
            hop = 1 << stage
            shifted = [
                let(
                    m,
                    f"sum{core}_{place}_by_{hop}",
                    Mux(up, shifted[place - hop] if place >= hop else 0, count),
                )
                for place, count in enumerate(shifted)
            ]
        sums = [
            let(m, f"sum{core}_{place}", (Mux(counted.first, 0, count) + here)[: len(count)])
            for place, (count, here) in enumerate(zip(shifted, counted[f"escapes{core}"], strict=True))
        ]
        with m.If(summary.takes):
            m.d.sync += [count.eq(new) for count, new in zip(early, sums, strict=False)]
        later = list(then)[max(earliest - 1, 0) :]
        m.d.comb += [count.eq(new) for count, new in zip(later, sums[len(early) :], strict=True)]
    fresh = counted.first | counted.rise.any()
    m.d.comb += [
        summary.next.leading.eq(counted.leading | Mux(fresh, 0, summary.now.leading)),
        summary.next.infinities.eq(Mux(counted.first, 0, summary.now.infinities) + counted.infinities),
        *(summary.next[name].eq(counted[name]) for name in ("top", "masked", "last")),
    ]
