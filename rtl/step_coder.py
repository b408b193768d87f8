"""The compressor of the step format, third part: values in steps, and what is stored of each."""

from amaranth import C, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from golden.step import MAX_FINER, MAX_MOVED, POINT_BITS

from .engine import StepEngine
from .fields import Register, count_before, let
from .planes import any_set
from .step_chooser import choice_layout, plan_layout, plan_of
from .step_scanner import SCALED_BITS, step_layout

__all__ = ["BEYOND_BITS", "Coder", "coded_layout"]

# Of the magnitude in an escape's field.
BEYOND_BITS = MAX_FINER - 1

_TAG = data.StructLayout({"valid": 1, "first": 1, "final": 1})


def coded_layout(engine: StepEngine) -> data.StructLayout:
    """A step of values as they are stored, and their block's plan.

    Members:
        tag: whether there is one (``valid``), and which of its block it is (``first``, ``final``).
        lanes: of each value its field in the core, whether it escapes, with which sign and how far beyond the
            core; whether it has a fine bit, and that; whether it is special, and which kind.
        plan: of the block; see :func:`rtl.step_chooser.plan_layout`.
    """
    lane = data.StructLayout(
        {
            "core": engine.fmt.cores(masked=False)[-1],
            "escape": 1,
            "negative": 1,
            "beyond": BEYOND_BITS,
            "moves": 1,
            "fine": 1,
            "special": 1,
            "kind": 2,
        }
    )
    return data.StructLayout(
        {"tag": _TAG, "lanes": data.ArrayLayout(lane, engine.lanes), "plan": plan_layout(engine)}
    )


class Coder(wiring.Component):
    """Takes the steps of a block once its choice is there, and gives them three cycles later.

    Members:
        go: time goes on; what is at ``o`` is taken.
        steps, choices: from the scanner and the chooser.
        o: see :func:`coded_layout`.
    """

    def __init__(self, engine: StepEngine):
        self._engine = engine
        super().__init__(
            {
                "go": In(1),
                "steps": In(stream.Signature(step_layout(engine))),
                "choices": In(stream.Signature(choice_layout(engine))),
                "o": Out(coded_layout(engine)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        engine, go = self._engine, self.go
        step = self.steps.p
        gives = let(m, "gives", self.steps.valid & self.choices.valid)
        m.d.comb += [
            self.steps.ready.eq(go & self.choices.valid),
            self.choices.ready.eq(go & self.steps.valid & step.final),
        ]

        tags = [Signal(_TAG, name="entering_tag")]
        m.d.comb += Cat(tags[0].valid, tags[0].first, tags[0].final).eq(Cat(gives, step.first, step.final))
        for name in ("scaled", "counted", "coded"):
            tag = Signal(_TAG, name=f"{name}_tag")
            with m.If(go):
                m.d.sync += tag.eq(tags[-1])
            tags.append(tag)

        plans = []
        source = plan_of(m, engine, self.choices.p)
        for name, tag in zip(("scaled", "counted", "coded"), tags, strict=False):
            plan = Register(m, plan_layout(engine), go & tag.valid & tag.first, f"{name}_plan")
            m.d.comb += plan.next.eq(source)
            plans.append(plan.now)
            source = plan.now

        scaled = Register(m, _lanes(engine, _scaled_layout(engine)), go, "scaled")
        _scale(m, engine, self.choices.p, step.lanes, scaled.next)
        counted = Register(m, _lanes(engine, _counted_layout(engine)), go, "counted")
        saves = []
        for i, (lane, value) in enumerate(zip(counted.next, scaled.now, strict=True)):
            _count(m, engine, plans[0], value, lane, str(i))
            saves.append(let(m, f"saves{i}", lane.escapes & ~lane.still))
        saved = Register(m, _lanes(engine, range(engine.lanes + 1)), go, "saved")
        before = count_before(m, "saved_before", Cat(saves, C(0, 1)))[1:]
        m.d.comb += [now.eq(number) for now, number in zip(saved.next, before, strict=True)]
        coded = Register(m, self.o.lanes.shape(), go, "coded")
        _code(m, engine, go, tags[2], plans[1], counted.now, saved.now, coded.next)
        m.d.comb += [
            self.o.tag.eq(tags[3]),
            self.o.lanes.eq(coded.now),
            self.o.plan.eq(plans[2]),
        ]
        return m


def _lanes(engine: StepEngine, lane) -> data.ArrayLayout:
    return data.ArrayLayout(lane, engine.lanes)


def _scaled_layout(engine: StepEngine) -> data.StructLayout:
    """A magnitude in fine steps with ``POINT_BITS`` behind the point, 0 of a special; and its random bits."""
    return data.StructLayout(
        {
            "magnitude": SCALED_BITS,
            "negative": 1,
            "special": 1,
            "infinite": 1,
            "noise": engine.noise_bits,
        }
    )


def _scale(m: Module, engine: StepEngine, choice, values, lanes) -> None:
    """Shift each significand to the right from where it would be with the block's largest exponent."""
    base = let(m, "base", choice.top + MAX_FINER - choice.finer)
    for i, (lane, value) in enumerate(zip(lanes, values, strict=True)):
        special = let(m, f"special{i}", value.exponent.all())
        is_there = let(m, f"is_there{i}", value.exponent.any() & ~special)
        amount = let(m, f"amount{i}", (base - value.exponent)[: len(base)])
        significand = Cat(C(0, SCALED_BITS - 1 - len(value.mantissa)), value.mantissa, C(1, 1))
        shifted = let(m, f"shifted{i}", (significand >> amount[:5])[:SCALED_BITS])
        m.d.comb += [
            lane.magnitude.eq(Mux(is_there & ~amount[5:].any(), shifted, 0)),
            lane.negative.eq(value.negative),
            lane.special.eq(special),
            lane.infinite.eq(special & ~value.mantissa.any()),
            lane.noise.eq(value.noise),
        ]


def _counted_layout(engine: StepEngine) -> data.StructLayout:
    """What would be stored of a value without a fine bit, and with one.

    Members:
        coarse: its field in the core without a fine bit.
        both: with one that and the fine bit.
        escapes: it escapes without a fine bit.
        still: and with one.
        beyond: its magnitude in coarse steps beyond the core.
    """
    core = engine.fmt.cores(masked=False)[-1]
    return data.StructLayout(
        {
            "coarse": core,
            "both": core + 1,
            "escapes": 1,
            "still": 1,
            "beyond": BEYOND_BITS,
            "negative": 1,
            "special": 1,
            "infinite": 1,
        }
    )


def _count(m: Module, engine: StepEngine, plan, value, lane, name: str) -> None:
    """Round a value to coarse and to fine steps."""
    point = value.magnitude
    if engine.noise_bits:
        added = Cat(C(1, 1), value.noise)
        fine_up = let(m, f"fine_sum{name}", point[:POINT_BITS] + added)[POINT_BITS]
        coarse_up = let(m, f"coarse_sum{name}", point[1 : POINT_BITS + 1] + added)[POINT_BITS]
    else:
        fine_up, coarse_up = point[POINT_BITS - 1], point[POINT_BITS]
    coarse_up = let(m, f"coarse_up{name}", coarse_up & ~plan.zero)
    fine, coarse = point[POINT_BITS:], point[POINT_BITS + 1 :]
    # An infinity is a coarse step, and escapes from a narrow core.
    infinite = value.infinite
    ways = []
    for core in engine.fmt.cores(masked=False):
        limit = (1 << core - 1) - 1
        inside = let(m, f"coarse{core}_{name}", (coarse[:core] + coarse_up)[: core + 1])
        both = let(m, f"fine{core}_{name}", (fine[: core + 1] + fine_up)[: core + 2])
        coarse_field = Mux(value.negative, limit - inside, limit + inside)
        both_field = Mux(value.negative, 2 * limit + 1 - both, 2 * limit + 1 + both)
        escapes = let(m, f"escapes{core}_{name}", _reaches(coarse, coarse_up, core - 1) | infinite)
        still = let(m, f"still{core}_{name}", _reaches(fine, fine_up, core) | infinite)
        is_it = plan.narrow if core == 1 else ~plan.narrow
        ways.append(
            {
                "coarse": Mux(is_it, coarse_field[:core] | escapes.replicate(core), 0),
                "both": Mux(is_it, both_field[: core + 1] | still.replicate(core + 1), 0),
                "escapes": is_it & escapes,
                "still": is_it & still,
            }
        )
    m.d.comb += [lane[part].eq(any_set(Value.cast(way[part]) for way in ways)) for part in ways[0]]
    least = Mux(plan.narrow, 1, 1 << engine.fmt.cores(masked=False)[-1] - 1)
    beyond = let(m, f"beyond{name}", (coarse + coarse_up - least)[:BEYOND_BITS])
    m.d.comb += [
        lane.beyond.eq(Mux(value.special, 0, beyond)),
        lane.negative.eq(value.negative),
        lane.special.eq(value.special),
        lane.infinite.eq(infinite),
    ]


def _code(m: Module, engine: StepEngine, go: Value, tag, plan, values, saved, lanes) -> None:
    """Give values fine bits as long as there is room.

    Args:
        saved: for each value of the step how many up to it, itself included, would escape no more.
    """
    left = Signal(range(engine.room + 1), reset_less=True)
    closed = Signal(reset_less=True)
    left_now = let(m, "left_now", Mux(tag.first, plan.rest, left))
    closed_now = let(m, "closed_now", Mux(tag.first, plan.alone, closed))
    # Of what is left no more than a step can use counts here.
    most = 1 << engine.lanes.bit_length()
    some_left = let(m, "some_left", Mux(left_now >= most, most, left_now)[: most.bit_length()])
    has_room = [
        let(m, f"has_room{i}", some_left + let(m, f"saved_bits{i}", number * plan.wide) >= i + 1)
        for i, number in enumerate(saved)
    ]
    if engine.block > MAX_MOVED:
        # The last value of all never has one.
        has_room[-1] = has_room[-1] & ~tag.final
    moves = [let(m, f"moves{i}", ~closed_now & Cat(has_room[: i + 1]).all()) for i in range(engine.lanes)]
    with m.If(go):
        m.d.sync += [
            left.eq(left_now - engine.lanes + saved[engine.lanes - 1] * plan.wide),
            closed.eq(closed_now | ~moves[-1]),
        ]

    for i, (lane, value) in enumerate(zip(lanes, values, strict=True)):
        fine = moves[i]
        kind = Cat(~value.infinite | value.negative, value.infinite)
        m.d.comb += [
            lane.core.eq(Mux(fine, value.both[1:], value.coarse)),
            lane.moves.eq(fine),
            lane.fine.eq(fine & value.both[0]),
            lane.escape.eq(~plan.alone & Mux(fine, value.still, value.escapes)),
            lane.beyond.eq(value.beyond),
            lane.negative.eq(value.negative),
            lane.special.eq(value.special),
            lane.kind.eq(Mux(value.special, kind, 0)),
        ]


def _reaches(number: Value, up: Value, power: int) -> Value:
    """Whether a number, one more if ``up``, is at least so great a power of two."""
    if power > len(number):
        return C(0)
    return number[power:].any() | (number[:power].all() & up)
