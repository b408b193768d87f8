"""The compressor of the step format, fourth part: codes, and how many values move to the fine grid."""

from amaranth import C, Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from golden.step import MASKED

from .engine import StepEngine
from .fields import Register, let
from .step_aligner import VALUE_BITS, Passage, aligned_layout, steps_of, with_carry
from .step_chooser import choice_layout, in_fine_steps, rounds_up
from .step_estimator import splits_of
from .step_noise import noise_layout

__all__ = ["CODE_BITS", "Refiner", "coded_layout", "refined_layout"]

# The longest wide field beyond the widest core, and a sign.
CODE_BITS = MASKED + 2


def coded_layout() -> data.StructLayout:
    """A value of which it is not yet known whether it moves.

    Members:
        code: on the fine grid; of a special that in its block.
        higher: on the coarse grid it is one more.
        fine: its fine bit on the fine grid.
    """
    return data.StructLayout({"code": signed(CODE_BITS), "higher": 1, "fine": 1, "special": 1})


def refined_layout(engine: StepEngine) -> data.StructLayout:
    """How a block is stored, and how far it is refined.

    Members:
        moved: how many values move.
        escapes: of all values as they are stored.
        length: bits behind the header, those that refine included.
    """
    return data.StructLayout(
        {
            "choice": choice_layout(engine),
            "moved": range(engine.block + 1),
            "escapes": range(engine.block + 1),
            "length": range(engine.room + 1),
        }
    )


class Refiner(wiring.Component):
    """Codes values at the chosen grid and the fine one, and finds out how many have room on the fine one."""

    def __init__(self, engine: StepEngine):
        self._engine = engine
        super().__init__(
            {
                "go": In(1),
                "i": In(steps_of(engine, aligned_layout())),
                "noise": In(noise_layout(engine)),
                "choice": In(choice_layout(engine)),
                "o": Out(steps_of(engine, coded_layout())),
                "block": Out(refined_layout(engine)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        engine, go = self._engine, self.go
        choice = choice_layout(engine)
        rounded = Passage(m, go, _rounded(m, engine, self.i, self.noise, self.choice), 1, "rounded")
        of_rounded = Register(m, choice, go & rounded.starts(0), "of_rounded")
        coded, changes = _code(m, engine, go, rounded, of_rounded.now)
        steps = Passage(m, go, coded, engine.words + 2, "coded")
        of_coded = Register(m, choice, go & steps.starts(0), "of_coded")
        of_summed = Register(m, choice, go & steps.starts(1), "of_summed")
        refined = Register(m, refined_layout(engine), go & steps.ends(2), "refined")
        m.d.comb += [
            of_rounded.next.eq(self.choice),
            of_coded.next.eq(of_rounded.now),
            of_summed.next.eq(of_coded.now),
        ]
        sums = _sum(m, go, changes, of_coded.now)
        _refine(m, engine, go, steps.tags[2], sums, of_summed.now, refined.next)
        m.d.comb += [
            self.o.tag.eq(steps.tags[-1]),
            self.o.lanes.eq(steps.lanes[-1]),
            self.block.eq(refined.now),
        ]
        return m


def _rounded_layout() -> data.StructLayout:
    """A magnitude in steps of the chosen grid, cut off, and how it is rounded; or a special.

    Members:
        half: whether half a step more is left; of a special, whether it is an infinity.
        fine_up: whether it is a fine step more, rounded to those.
        coarse_up: the same of coarse steps.
    """
    members = {"whole": VALUE_BITS - 3, "half": 1, "fine_up": 1, "coarse_up": 1, "negative": 1, "special": 1}
    return data.StructLayout(members)


def _rounded(m: Module, engine: StepEngine, steps, noise, choice):
    rounded = Signal(steps_of(engine, _rounded_layout()), name="rounded")
    m.d.comb += rounded.tag.eq(steps.tag)
    for i, (lane, value) in enumerate(zip(rounded.lanes, steps.lanes, strict=True)):
        scaled = let(m, f"scaled{i}", in_fine_steps(value.magnitude, choice.finer))
        half = scaled[VALUE_BITS]
        fine_up = rounds_up(m, engine, f"fine_up{i}", scaled, 0, noise[i])
        coarse_up = rounds_up(m, engine, f"coarse_up{i}", scaled, 1, noise[i]) & (choice.finer != 0)
        m.d.comb += [
            lane.whole.eq(scaled[VALUE_BITS + 1 :]),
            lane.half.eq(Mux(value.special, value.magnitude[0], half)),
            lane.fine_up.eq(fine_up),
            lane.coarse_up.eq(coarse_up),
            lane.negative.eq(value.negative),
            lane.special.eq(value.special),
        ]
    return rounded


def _code(m: Module, engine: StepEngine, go: Value, rounded: Passage, choice):
    """Codes, and a cycle later by how many escapes and wide fields there are more if a value moves."""
    coded = Signal(steps_of(engine, coded_layout()), name="coded")
    m.d.comb += coded.tag.eq(rounded.tags[1])
    cores = {core for masked in (False, True) for core, _ in splits_of(engine, masked) if core > 0}
    is_core = {core: let(m, f"core{core}", choice.core == core) for core in sorted(cores)}
    # From here on a code needs more bits than a wide field has.
    too_wide = choice.least + choice.short + ((C(1) << choice.wide + choice.short) >> 1)
    too_wide = let(m, "too_wide", too_wide)
    minus_offset = let(m, "minus_offset", -choice.offset)
    changes = []
    for i, (lane, value) in enumerate(zip(coded.lanes, rounded.lanes[1], strict=True)):
        negative = value.negative
        # Of the fine steps, twice the whole ones and as many more as there are of half and fine_up, the code
        # is half, rounded down. Below 0 that is a complement.
        both, some = value.half & value.fine_up, value.half | value.fine_up
        whole = Cat(value.whole ^ negative.replicate(len(value.whole)), negative)
        down = let(m, f"down{i}", with_carry(whole, minus_offset, Mux(negative, ~some, both)))
        is_higher = let(m, f"is_higher{i}", Mux(negative, some & ~value.coarse_up, value.coarse_up & ~both))
        code = let(m, f"code{i}", (down + is_higher)[:CODE_BITS].as_signed())
        size = let(m, f"code_size{i}", Mux(code < 0, -code, code))
        down_size = let(m, f"down_size{i}", Mux(down < 0, -down, down))
        moves = let(m, f"moves{i}", ~value.special & (down_size < too_wide))
        of_special = Mux(value.half, Mux(negative, -1, 1), 0)
        m.d.comb += [
            lane.code.eq(Mux(value.special, of_special, Mux(moves, down, code))),
            lane.higher.eq(moves & is_higher),
            lane.fine.eq(moves & (value.half ^ value.fine_up)),
            lane.special.eq(value.special),
        ]
        now, was = (_escapes(of, is_core, choice.short) for of in (down_size, size))
        more = []
        for name, is_now, was_so in zip(("escapes", "wide"), now, was, strict=True):
            kept = Signal(signed(2), name=f"more_{name}{i}", reset_less=True)
            with m.If(go):
                m.d.sync += kept.eq(Mux(moves, is_now.as_unsigned() - was_so, 0))
            more.append(kept)
        changes.append(more)
    return coded, changes


def _escapes(size: Value, is_core: dict[int, Value], short: Value) -> tuple[Value, Value]:
    """Whether a code of this magnitude is an escape, and whether it has a wide field."""
    reaches = Cat(is_it & size[core - 1 :].any() for core, is_it in is_core.items()).any()
    is_least = Cat(is_it & (size == 1 << core - 1) for core, is_it in is_core.items()).any()
    return reaches, reaches & ~(short & is_least)


def _sum(m: Module, go: Value, changes, choice) -> list[tuple[Value, Value]]:
    """Up to each value, how many bits and escapes moving adds, a cycle later."""
    bits, escapes = [], []
    for more_escapes, more_wide in changes:
        in_forms = Mux(choice.short, more_escapes << 1, 0)
        in_wide = Mux(more_wide == 0, 0, Mux(more_wide < 0, -choice.wide, choice.wide))
        bits.append(1 + in_forms + in_wide)
        escapes.append(more_escapes)
    sums = []
    for name, values in (("bits", bits), ("escapes", escapes)):
        column = []
        for i, value in enumerate(_sums_up_to(m, f"more_{name}", values)):
            kept = Signal(value.shape(), name=f"{name}_up_to{i}", reset_less=True)
            with m.If(go):
                m.d.sync += kept.eq(value)
            column.append(kept)
        sums.append(column)
    return list(zip(*sums, strict=True))


def _sums_up_to(m: Module, name: str, values: list[Value]) -> list[Value]:
    """Each value and those before it, by a tree of adders."""
    if len(values) == 1:
        return values
    middle = len(values) // 2
    low, high = _sums_up_to(m, f"{name}_l", values[:middle]), _sums_up_to(m, f"{name}_h", values[middle:])
    return [*low, *(let(m, f"{name}_{i}", low[-1] + value) for i, value in enumerate(high))]


def _refine(m: Module, engine: StepEngine, go: Value, tag, sums, choice, refined) -> None:
    """The last value up to which moving leaves the block short enough."""
    most = (MASKED + 3) * engine.block
    place = Signal(range(engine.words), reset_less=True)
    used_before = Signal(range(-most, engine.room + most + 1), reset_less=True)
    escapes_before = Signal(range(engine.block + 1), reset_less=True)
    before = Signal(refined_layout(engine), name="before", reset_less=True)
    used_first = Mux(tag.first, choice.length, used_before)
    escapes_first = Mux(tag.first, choice.escapes, escapes_before)
    place_now = let(m, "place_now", Mux(tag.first, 0, place))
    none = [C(0), choice.escapes, choice.length]
    best = [
        Mux(tag.first, a, b) for a, b in zip(none, (before.moved, before.escapes, before.length), strict=True)
    ]
    for i, (bits, escapes) in enumerate(sums):
        used = let(m, f"used{i}", used_first + bits)
        total = let(m, f"escapes_up_to_here{i}", (escapes_first + escapes)[: len(escapes_before)])
        fits = let(m, f"fits{i}", used <= engine.room)
        new = (place_now * engine.lanes + (i + 1), total, used[: engine.room.bit_length()])
        best = [
            let(m, f"best{i}_{k}", Mux(fits, a, b)) for k, (a, b) in enumerate(zip(new, best, strict=True))
        ]
    m.d.comb += [
        refined.choice.eq(choice),
        refined.moved.eq(Mux(choice.alone, 0, best[0])),
        refined.escapes.eq(best[1]),
        refined.length.eq(best[2]),
    ]
    with m.If(go):
        m.d.sync += [
            place.eq(place_now + 1),
            used_before.eq(used),
            escapes_before.eq(total),
            before.moved.eq(best[0]),
            before.escapes.eq(best[1]),
            before.length.eq(best[2]),
        ]
