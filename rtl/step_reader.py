"""The decompressor of the step format, first part: blocks to the integers that they count.

A value's core field, with its fine bit or else a 1 below, is a number of ``core + 1`` bits. Less
``2**core - 1`` it is the value in fine steps; but if all its bits are set the value is an escape. Where core
and fine bits lie the header says. Before a value's wide field there are as many others as there are escapes
before the value, which are counted step by step: nothing has to be known of a block ahead.
"""

from amaranth import C, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from golden.step import FIELDS

from .engine import StepEngine
from .fields import Register, count_before, cut, group_counts, let, ones, total, window
from .planes import any_set
from .step_composer import INFINITY, NAN, integers_layout
from .stream import word_layout

__all__ = ["Reader"]

_GROUP = 4  # values of a step whose escapes are counted together
_MAX_WIDE = (1 << FIELDS["wide"]) - 1


class Reader(wiring.Component):
    """Turns a block into its values as integers: two cycles, a step a cycle.

    On its way to the first of two places a step gets its core fields, on its way to the second its wide
    fields. The first step of a block comes straight from the input, so that a block is kept only once, for as
    long as any of its steps is in the first place.
    """

    def __init__(self, engine: StepEngine):
        self._engine = engine
        super().__init__(
            {
                "i": In(stream.Signature(word_layout(engine.target, error=True))),
                "o": Out(stream.Signature(integers_layout(engine))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        engine = self._engine

        turn = Signal(engine.words, init=1)  # which step is next: one bit is set
        starts = turn[0]
        full = Signal(2)  # whether there is a step in each place
        has_room = [~full.all() | self.o.ready, ~full[1] | self.o.ready]
        comes = ~starts | self.i.valid
        m.d.comb += [self.o.valid.eq(full[1]), self.i.ready.eq(starts & has_room[0])]
        with m.If(has_room[0]):
            m.d.sync += full[0].eq(comes)
        with m.If(has_room[1]):
            m.d.sync += full[1].eq(full[0])
        with m.If(comes & has_room[0]):
            m.d.sync += turn.eq(turn.rotate_left(1))

        block = Register(m, _block_layout(engine), self.i.valid & self.i.ready, "block")
        opened = Register(m, _opened_layout(engine), comes & has_room[0], "opened")
        widened = Register(m, _widened_layout(engine), full[0] & has_room[1], "widened")
        _begin(m, engine, self.i.payload, block.next)
        header = Mux(starts, block.next.header.as_value(), block.now.header.as_value())
        header = data.View(_header_layout(), let(m, "header", header))
        _locate(m, engine, block.now.header.wide, header, starts, opened)
        _open(m, engine, header, _cut_out(m, engine, block, header, turn, opened), opened.next)
        m.d.comb += opened.next.last.eq(header.last & turn[-1])
        _widen(m, engine, block.now, opened.now, widened.next)

        step = widened.now
        m.d.comb += [
            self.o.p.grid.eq(step.grid),
            self.o.p.error.eq(step.error),
            self.o.p.last.eq(step.last),
        ]
        for integer, lane in zip(self.o.p.lanes, step.lanes, strict=True):
            m.d.comb += [
                integer.magnitude.eq(lane.near + Mux(lane.escape, Cat(C(0, 1), lane.wide[1:]), 0)),
                integer.negative.eq(Mux(lane.escape, lane.wide[0], lane.negative)),
                integer.kind.eq(lane.kind),
            ]
        return m


def _header_layout() -> data.StructLayout:
    """What is known of a block besides its bits.

    Members:
        grid, moved, masked, core, wide: fields of its header. A block that only says which values are special
            counts as one with a core of one bit and a mask, or with a core of two.
        alone: it is such a block.
        wrong: no encoder produces it.
        last: it ends its tensor.
    """
    return data.StructLayout({**FIELDS, "alone": 1, "wrong": 1, "last": 1})


def _block_layout(engine: StepEngine) -> data.StructLayout:
    """A block: what its header says, and the bits behind that."""
    return data.StructLayout({"header": _header_layout(), "body": engine.room})


def _begin(m: Module, engine: StepEngine, stored, block) -> None:
    """Reads a block's header."""
    n = engine.block
    header = data.View(data.StructLayout(FIELDS), stored.data[: sum(FIELDS.values())])
    alone = let(m, "alone", header.core == 0)
    size = let(m, "size", header.core + header.masked)
    fits = [
        (size == bits) & (header.moved <= min(n, engine.room - n * bits))
        for bits in range(1, engine.sections + 1)
    ]
    others = header.grid.any() | header.moved.any() | ~header.masked | header.wide.any()
    m.d.comb += [
        block.body.eq(stored.data[sum(FIELDS.values()) :]),
        block.header.grid.eq(header.grid),
        block.header.moved.eq(header.moved),
        block.header.core.eq(Mux(alone, engine.bits_alone, header.core)),
        block.header.wide.eq(header.wide),
        block.header.masked.eq(header.masked & ~(alone & (engine.bits_alone > 1))),
        block.header.alone.eq(alone),
        block.header.wrong.eq(Mux(alone, others, ~Cat(fits).any()) | stored.error),
        block.header.last.eq(stored.last),
    ]


def _opened_layout(engine: StepEngine) -> data.StructLayout:
    """A step of values but for their wide fields.

    Members:
        lanes: of each value whether it is an escape, its magnitude (of an escape the least that there is),
            its sign unless it is an escape, and its kind.
        groups: how many of each so many values are escapes, if any: one of the bits is set.
        moved: values from the step on that have a fine bit.
        core_at: where the core of the next step lies in the body, in bits of each of a step's values.
        wide_at: where the step's wide fields lie behind the shortest core.
        is_behind: they lie behind the block.
        last: it ends its tensor.
    """
    lane = data.StructLayout({"escape": 1, "near": engine.max_core + 1, "negative": 1, "kind": 2})
    return data.StructLayout(
        {
            "lanes": data.ArrayLayout(lane, engine.lanes),
            "groups": data.ArrayLayout(_GROUP, engine.lanes // _GROUP),
            "moved": FIELDS["moved"],
            "core_at": range(engine.words * engine.sections),
            "wide_at": range(engine.rest + 1),
            "is_behind": 1,
            "last": 1,
        }
    )


def _locate(m: Module, engine: StepEngine, wide: Value, header, starts: Value, opened: Register) -> None:
    """Where the bits of a step lie, from where they did in the one before.

    Args:
        wide: bits of a wide field in that step's block.
    """
    before, step = opened.now, opened.next
    moved = Mux(before.moved >= engine.lanes, before.moved - engine.lanes, 0)
    first_core = Mux(header.masked, engine.words, 0)
    first_wide = (header.core + header.masked - 1)[: FIELDS["core"]] << exact_log2(engine.block)
    multiples = [let(m, f"length_of_{i}", wide * i) for i in range(1, _GROUP + 1)]
    lengths = [
        any_set(Mux(is_it, length, 0) for is_it, length in zip(group, multiples, strict=True))
        for group in before.groups
    ]
    wide_at = total(m, "wide_at", [*lengths, before.wide_at])
    is_behind = before.is_behind | wide_at[len(step.wide_at) :].any()
    m.d.comb += [
        step.moved.eq(Mux(starts, header.moved, moved)),
        step.core_at.eq(Mux(starts, first_core, before.core_at) + header.core),
        step.wide_at.eq(Mux(starts, first_wide, wide_at)),
        step.is_behind.eq(~starts & is_behind),
    ]


def _cut_out(
    m: Module, engine: StepEngine, block: Register, header, turn: Value, opened: Register
) -> tuple[Value, list[Value], Value]:
    """A step's bits of the mask, core fields, and fine bits, with a 1 for each that is not there.

    Those of a block's first step are cut out of the block that comes, always at the same places.
    """
    n, lanes = engine.block, engine.lanes
    first, later = block.next.body, block.now.body

    def of_step(first: Value, later: Value) -> Value:
        steps = [first[:lanes], *(later.word_select(i, lanes) for i in range(1, engine.words))]
        return any_set(Mux(is_it, bits, 0) for is_it, bits in zip(turn, steps, strict=True))

    length = lanes * engine.max_core
    core_at = Cat(C(0, exact_log2(lanes)), opened.now.core_at)
    first_core = Mux(header.masked, first[n:], first)[:length]
    later_core = window(m, "later_core", later[: n * engine.sections], core_at, length)
    core = let(m, "core", Mux(turn[0], first_core, later_core))
    widths = {width: header.core == width for width in range(1, engine.max_core + 1)}
    fine = of_step(first[::-1], later[::-1][:n]) | ~ones(m, "has_fine", opened.next.moved, lanes)
    return of_step(first, later[:n]), cut(core, widths, lanes), let(m, "fine", fine)


def _open(m: Module, engine: StepEngine, header, bits: tuple[Value, list[Value], Value], step) -> None:
    """Makes magnitudes and signs of core fields and fine bits, and counts escapes."""
    top = let(m, "top", Cat(header.core == bit + 1 for bit in range(engine.max_core)))
    unused = let(m, "unused", Cat(header.core <= bit for bit in range(engine.max_core)))
    for i, (lane, mask, field, fine) in enumerate(zip(step.lanes, *bits, strict=True)):
        special = header.masked & mask
        if engine.bits_alone == 2:
            special = Mux(header.alone, field.any(), special)
        field = let(m, f"field{i}", Mux(header.alone, _of_kind(engine, field), field))
        # Below a top bit that is set the magnitude less 1, below one that is not the magnitude's complement.
        is_high = let(m, f"is_high{i}", (field & top).any())
        low = let(m, f"low{i}", Cat(fine, field)[:-1] | unused)
        all_low = let(m, f"all_low{i}", low.all())
        m.d.comb += [
            lane.escape.eq(all_low & is_high),
            lane.near.eq(((low ^ ~is_high.replicate(len(low))) & ~unused) + is_high),
            lane.negative.eq(~all_low & ~is_high),
            lane.kind.eq(Mux(special, Mux(all_low & ~is_high, NAN, INFINITY), 0)),
        ]
    counts = group_counts(m, "escapes", Cat(lane.escape for lane in step.lanes), _GROUP)
    for group, count in zip(step.groups, counts, strict=True):
        m.d.comb += Cat(group).eq(Cat(count == i for i in range(1, _GROUP + 1)))


def _of_kind(engine: StepEngine, field: Value) -> Value:
    """What a core beside a mask would hold of a value of which only the kind is stored."""
    if engine.bits_alone == 1:
        return C(0, len(field))
    return Cat(~field[1], field[1] & ~field[0])


def _widened_layout(engine: StepEngine) -> data.StructLayout:
    """A step of core fields and wide ones.

    Members:
        lanes: as in :func:`_opened_layout`, and each value's wide field, if it is an escape.
        grid, error, last: as of :func:`rtl.step_composer.integers_layout`.
    """
    opened = _opened_layout(engine)["lanes"].shape.elem_shape.members
    lanes = data.ArrayLayout(data.StructLayout(opened | {"wide": _MAX_WIDE}), engine.lanes)
    return data.StructLayout({"lanes": lanes, "grid": FIELDS["grid"], "error": 1, "last": 1})


def _widen(m: Module, engine: StepEngine, block, opened, widened) -> None:
    """Gives escapes their wide fields."""
    widths = {
        width: let(m, f"wide{width}", (block.header.wide == width) & ~opened.is_behind)
        for width in range(1, _MAX_WIDE + 1)
    }
    length = min(_MAX_WIDE * engine.lanes, engine.rest)
    section = window(m, "wide_section", block.body[engine.block :], opened.wide_at, length)
    fields = cut(section, widths, engine.lanes)
    gaps = count_before(m, "gaps", ~Cat(lane.escape for lane in opened.lanes))
    for wide, lane, field in zip(widened.lanes, opened.lanes, _spread(m, fields, gaps), strict=True):
        m.d.comb += wide.eq(Cat(lane, field))
    m.d.comb += [
        widened.grid.eq(block.header.grid),
        widened.error.eq(block.header.wrong),
        widened.last.eq(opened.last),
    ]


def _spread(m: Module, values: list[Value], gaps: list[Value]) -> list[Value]:
    """Moves values that lie side by side up to their lanes, in hops of powers of two, the largest first.

    A value must hop as far in all as there are gaps before its lane. The lane that a hop leads to says
    whether it is made: from there it is less than a hop to the value's own lane, so that the gaps before the
    two are as many but for lower bits.

    Args:
        gaps: how many lanes before each get no value.
    """
    for stage in reversed(range(exact_log2(len(values)))):
        size = 1 << stage
        pairs = zip(gaps[size:], values[:-size], values[size:], strict=True)
        hops = (Mux(count[stage], below, value) for count, below, value in pairs)
        values = [*values[:size], *(let(m, f"hop{size}_{i}", value) for i, value in enumerate(hops))]
    return values
