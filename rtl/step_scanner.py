"""The compressor of the step format, first part: at which steps how many of a block's values escape."""

from collections.abc import Sequence
from typing import NamedTuple

from amaranth import C, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from golden.step import HALF, LEADING_BITS, MAX_FINER, NOISE_BITS, POINT_BITS

from .engine import StepEngine
from .fields import leading_zeros, let, total
from .planes import any_set
from .scanner import DelayLine, is_less, largest_of
from .step_noise import Noise
from .stream import word_layout

__all__ = ["Scanner", "scaled_bits", "step_layout", "summary_layout"]

# A value's bits behind the first that a summary's largest magnitude has.
_LEADING = LEADING_BITS - 1


def scaled_bits() -> int:
    """Of a value in the finest steps that there are, with those behind the point that count."""
    return MAX_FINER + POINT_BITS


def exponent_bits(engine: StepEngine) -> int:
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
            "mantissa": min(engine.float_type.mantissa_bits, scaled_bits() - 1),
            "exponent": exponent_bits(engine),
            "negative": 1,
            "noise": engine.noise_bits,
        }
    )
    return data.StructLayout({"lanes": data.ArrayLayout(lane, engine.lanes), "first": 1, "final": 1})


class Threshold(NamedTuple):
    """From when on values escape from a core; see ``golden.step._Values.escaped_at``.

    Attributes:
        core: the core.
        earliest: how often the coarsest step is halved before any may escape, at least: 0 or less if random
            bits can make values escape at steps that are larger than all values.
    """

    core: int
    earliest: int


def thresholds(engine: StepEngine) -> list[Threshold]:
    found = []
    for core in engine.fmt.cores(masked=False):
        least = (1 << POINT_BITS + core - 1) - ((1 << POINT_BITS) - 1 if engine.noise_bits else HALF)
        found.append(Threshold(core, least.bit_length() + 1 - POINT_BITS))
    return found


def summary_layout(engine: StepEngine) -> data.StructLayout:
    """What is known of a block.

    Members:
        top: its largest exponent, as in :func:`step_layout`.
        leading: the bits behind the first of its largest magnitude.
        escapes: for each core that is tried, how many finite values escape at each ``finer`` from 1 on.
        infinities: how many there are.
        masked: it holds specials.
        last: it ends its tensor.
    """
    counts = data.ArrayLayout(data.ArrayLayout(range(engine.block + 1), MAX_FINER), len(thresholds(engine)))
    return data.StructLayout(
        {
            "top": exponent_bits(engine),
            "leading": _LEADING,
            "escapes": counts,
            "infinities": range(engine.block + 1),
            "masked": 1,
            "last": 1,
        }
    )


class Scanner(wiring.Component):
    """Pads tensors to whole blocks, and counts what escapes while their steps wait in a delay line.

    Takes a step a cycle, but three cycles pass before a tensor's first one if rounding is stochastic. A
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
        flow = let(m, "flow", queue.i.ready & (~self.summaries.valid | self.summaries.ready))

        index = Signal(range(engine.words))
        pads = Signal()
        starts = Signal(init=1)
        final = let(m, "final", index == engine.words - 1)
        comes = let(m, "comes", self.i.valid | pads)
        ends = let(m, "ends", pads | self.i.p.last)
        takes = Signal()
        noise: Sequence[Value] = [C(0, 0)] * engine.lanes
        ready = C(1)
        if stochastic:
            found = Noise(
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
            noise, ready = found.bits, found.ready
        m.d.comb += [takes.eq(comes & ready & flow), self.i.ready.eq(ready & flow & ~pads)]
        with m.If(takes):
            m.d.sync += [index.eq(Mux(final, 0, index + 1)), pads.eq(ends & ~final), starts.eq(ends & final)]

        # The step that was taken last, and what it has of its block's largest magnitude.
        entering = Signal(step_layout(engine))
        keys, specials = _entering(m, engine, Mux(pads, 0, self.i.p.data), entering.lanes)
        m.d.comb += [entering.first.eq(index == 0), entering.final.eq(final)]
        held, there, ends_held = _kept(m, flow, "held", entering, takes, ends)
        key = Signal(len(keys[0]), reset_less=True)
        special = Signal(reset_less=True)
        with m.If(flow):
            m.d.sync += [key.eq(_largest(m, "largest", keys)), special.eq(Cat(specials).any())]
        if stochastic:
            with_noise = Signal(step_layout(engine))
            m.d.comb += with_noise.eq(held)
            m.d.comb += [lane.noise.eq(bits) for lane, bits in zip(with_noise.lanes, noise, strict=True)]
            before_key, before_special = key, special
            held, there, ends_held = _kept(m, flow, "held_with_noise", with_noise, there, ends_held)
            key, special = Signal.like(key), Signal.like(special)
            with m.If(flow):
                m.d.sync += [key.eq(before_key), special.eq(before_special)]
        m.d.comb += [queue.i.valid.eq(there & flow), queue.i.payload.eq(held)]

        # The largest magnitude so far, and at which steps each value starts to escape in its light.
        largest = Signal.like(key)
        masked = Signal(reset_less=True)
        before = let(m, "largest_before", Mux(held.first, 0, largest))
        now = let(m, "largest_now", Mux(is_less(before, key), key, before))
        top, top_before = now[_LEADING:], before[_LEADING:]
        rises = let(m, "rises", (top - top_before)[: len(top)])
        with m.If(flow & there):
            m.d.sync += [largest.eq(now), masked.eq(special | (masked & ~held.first))]
        places = [
            [_escapes_at(m, engine, lane, top, threshold, i) for i, lane in enumerate(held.lanes)]
            for threshold in thresholds(engine)
        ]
        infinite = [lane.exponent.all() & ~lane.mantissa.any() for lane in held.lanes]
        placed = Signal(data.StructLayout({"first": 1, "final": 1, "last": 1}), reset_less=True)
        rise = Signal(range(MAX_FINER + 8), reset_less=True)
        infinities = Signal(engine.lanes, reset_less=True)
        is_placed, kept = Signal(), []
        for threshold, column in zip(thresholds(engine), places, strict=True):
            kept.append([Signal(len(at), name=f"at{threshold.core}_{i}") for i, at in enumerate(column)])
        with m.If(flow):
            m.d.sync += [
                is_placed.eq(there),
                placed.first.eq(held.first),
                placed.final.eq(held.final),
                placed.last.eq(ends_held),
                rise.eq(Mux(rises > MAX_FINER + 4, MAX_FINER + 4, rises)),
                infinities.eq(Cat(infinite)),
                *(
                    signal.eq(at)
                    for signals, column in zip(kept, places, strict=True)
                    for signal, at in zip(signals, column, strict=True)
                ),
            ]

        # How many values of the step escape.
        is_counted = Signal()
        counted = Signal(placed.shape(), reset_less=True)
        rise_later = Signal.like(rise)
        here: list[list[Signal]] = []
        for threshold, signals in zip(thresholds(engine), kept, strict=True):
            column = []
            for number, finer in enumerate(range(threshold.earliest, MAX_FINER + 1)):
                reached = [signal <= number for signal in signals]
                name = f"here{threshold.core}_{number}"
                count = Signal(range(engine.lanes + 1), name=name, reset_less=True)
                with m.If(flow):
                    m.d.sync += count.eq(total(m, f"{name}_sum", reached))
                column.append(count)
            here.append(column)
        infinities_here = Signal(range(engine.lanes + 1), reset_less=True)
        with m.If(flow):
            m.d.sync += [
                is_counted.eq(is_placed),
                counted.eq(placed),
                rise_later.eq(rise),
                infinities_here.eq(total(m, "infinities_sum", [*infinities])),
            ]

        # And of the block so far. What escaped at a step escapes as much later as the largest exponent rose.
        done = Signal()
        last = Signal(reset_less=True)
        all_infinities = Signal(range(engine.block + 1), reset_less=True)
        summary = self.summaries.p
        with m.If(flow):
            m.d.sync += done.eq(is_counted & counted.final)
        with m.If(flow & is_counted):
            m.d.sync += [
                last.eq(counted.last),
                all_infinities.eq(Mux(counted.first, 0, all_infinities) + infinities_here),
            ]
        for number, (threshold, column) in enumerate(zip(thresholds(engine), here, strict=True)):
            counts = [
                Signal(range(engine.block + 1), name=f"count{threshold.core}_{place}", reset_less=True)
                for place in range(len(column))
            ]
            shifted = list(counts)
            for stage, up in enumerate(rise_later):
                step = 1 << stage
                shifted = [
                    let(
                        m,
                        f"count{threshold.core}_{place}_by_{step}",
                        Mux(up, shifted[place - step] if place >= step else 0, count),
                    )
                    for place, count in enumerate(shifted)
                ]
            with m.If(flow & is_counted):
                m.d.sync += [
                    count.eq(Mux(counted.first, 0, before) + more)
                    for count, before, more in zip(counts, shifted, column, strict=True)
                ]
            for finer in range(1, MAX_FINER + 1):
                place = finer - threshold.earliest
                m.d.comb += summary.escapes[number][finer - 1].eq(counts[place] if place >= 0 else 0)
        # The registers of the largest magnitude may hold the next block's by then.
        of_block = data.StructLayout({"largest": len(key), "masked": 1})
        final_of_block = Signal(of_block, reset_less=True)
        final_later = Signal(of_block, reset_less=True)
        final_done = Signal(of_block, reset_less=True)
        with m.If(flow):
            m.d.sync += [
                final_of_block.largest.eq(now),
                final_of_block.masked.eq(special | (masked & ~held.first)),
                final_later.eq(final_of_block),
                final_done.eq(final_later),
            ]
        m.d.comb += [
            self.summaries.valid.eq(done),
            summary.top.eq(final_done.largest[_LEADING:]),
            summary.leading.eq(final_done.largest[:_LEADING]),
            summary.masked.eq(final_done.masked),
            summary.infinities.eq(all_infinities),
            summary.last.eq(last),
        ]
        return m


def _kept(m: Module, flow: Value, name: str, step, there: Value, ends: Value):
    """A step a cycle later, whether there is one, and whether it ends its tensor."""
    kept = Signal(step.shape(), name=name, reset_less=True)
    is_there = Signal(name=f"{name}_there")
    ends_kept = Signal(name=f"{name}_ends", reset_less=True)
    with m.If(flow):
        m.d.sync += [kept.eq(step), is_there.eq(there), ends_kept.eq(ends)]
    return kept, is_there, ends_kept


def _entering(m: Module, engine: StepEngine, word: Value, lanes) -> tuple[list[Value], list[Value]]:
    """Take a step's floats apart. Returns keys in the order of magnitudes, 0 for specials; and which are special."""
    ft = engine.float_type
    keys, specials = [], []
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
            above = Mux(special, (1 << exponent_bits(engine)) - 1, field + ft.mantissa_bits)
            exponent = let(m, f"exponent{i}", Mux(subnormal, lowest, above)[: exponent_bits(engine)])
        kept = mantissa[ft.mantissa_bits - len(lane.mantissa) :]
        # A NaN has some bit set.
        lost = mantissa[: ft.mantissa_bits - len(lane.mantissa)].any() & special
        m.d.comb += [lane.mantissa.eq(kept | lost), lane.exponent.eq(exponent), lane.negative.eq(sign)]
        key = Mux(special, 0, Cat(mantissa[-_LEADING:], exponent))
        keys.append(let(m, f"key{i}", key))
        specials.append(special)
    return keys, specials


def _largest(m: Module, name: str, values: list[Value]) -> Value:
    """The largest number, four at a time."""
    while len(values) > 1:
        values = [
            let(m, f"{name}_of_{len(values)}_{i}", largest_of(values[i : i + 4])) for i in range(0, len(values), 4)
        ]
    return values[0]


def _escapes_at(m: Module, engine: StepEngine, lane, top: Value, threshold: Threshold, i: int) -> Value:
    """At which ``finer`` a value starts to escape, less the earliest; as large as can be if it never does.

    See ``golden.step._Values.escaped_at``: what the value must reach, normalised to be from 1 to 2 as its
    significand, is compared with that; the rest is exponents.
    """
    core, name = threshold.core, f"{threshold.core}_{i}"
    bits = POINT_BITS + core - 1
    zeros = C(0, 1)
    if engine.noise_bits:
        least = let(m, f"least{name}", (C((1 << bits) - 1, bits) - Cat(C(0, 1), lane.noise))[:bits])
        if core == 1:
            zeros = let(m, f"zeros{name}", leading_zeros(Cat(C(0, 8 - bits), least)))
            least = let(m, f"least{name}_normal", (least << zeros)[:bits])
    else:
        least = C((1 << bits) - HALF, bits)
    mantissa = Cat(C(0, bits - 1), lane.mantissa)[-(bits - 1) :]
    below = let(m, f"below{name}", is_less(mantissa, least[:-1]))
    distance = let(m, f"distance{name}", (top - lane.exponent)[: len(top)])
    at = let(m, f"at{name}_unlimited", distance + (core - threshold.earliest) + below - zeros)
    never = ~lane.exponent.any() | lane.exponent.all()
    most = MAX_FINER + 1 - threshold.earliest
    return let(m, f"at{name}_now", Mux(never | (at.as_unsigned() > most), most, at)[: most.bit_length()])
