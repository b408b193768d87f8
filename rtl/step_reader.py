"""The decompressor of the step format, first part: blocks to the integers that they count.

A block is four sections one behind the other: the core, the forms and the wide fields of escapes, and the
fine bits. Where the core lies the header says; each of the others begins behind as many bits as there are
escapes of either kind before. So the reader marks the escapes of a block while it takes it, and counts them
while the first values are on their way: a section is reached just when it is known where it starts. Behind
that, a value's place in its section is a count of escapes before it, in the steps before and in its own.
"""

from amaranth import C, Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from golden.step import FIELDS, MASKED

from .engine import StepEngine
from .fields import Register, count_before, cut, group_counts, let, ones, pick, total, window
from .planes import any_set
from .step_composer import INFINITY, MAGNITUDE_BITS, NAN, integers_layout
from .stream import word_layout

__all__ = ["Reader"]


class Reader(wiring.Component):
    """Turns a block into its values as integers, a step a cycle.

    The steps go through five places. A block is held in the first until its last step has left; what later
    places need of it moves on with its first step, at least two cycles later, so that the next block is
    never in the way.

    ======== ================================================ ===================================
    place    what is found of a step on its way to it         and of its block
    ======== ================================================ ===================================
    opened                                                    core fields and escapes
    ranked   how many escapes lie before each value           how many escapes there are
    formed   the forms of escapes: which have wide fields     where these fields start
    widened  these fields                                     how many of them there are
    placed   what each value is the sum of                    where the fine bits start
    ======== ================================================ ===================================
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

        busy = Signal()
        turn = Signal(engine.words, init=1)  # which step is next: one bit is set
        # Whether there is a step in each of the places behind the first, the output among them. One moves
        # if there is room anywhere before it.
        full = Signal(5)
        comes = [busy, *full[:-1]]
        has_room = [~full[place:].all() | self.o.ready for place in range(5)]
        enters = [step & room for step, room in zip(comes, has_room, strict=True)]
        m.d.comb += [self.o.valid.eq(full[-1]), self.i.ready.eq(~busy | (has_room[0] & turn[-1]))]
        for place, room in enumerate(has_room):
            with m.If(room):
                m.d.sync += full[place].eq(comes[place])
        with m.If(self.i.ready):
            m.d.sync += busy.eq(self.i.valid)
        with m.If(enters[0]):
            m.d.sync += turn.eq(turn.rotate_left(1))

        opened = Register(m, _opened_layout(engine), self.i.ready & self.i.valid, "opened")
        ranked = Register(m, _ranked_layout(engine), enters[0], "ranked")
        formed = Register(m, _formed_layout(engine), enters[1], "formed")
        formed_block = Register(
            m, _formed_block_layout(engine), enters[1] & ranked.now.tag.first, "formed_block"
        )
        widened = Register(m, _widened_layout(engine), enters[2], "widened")
        placed = Register(m, _placed_layout(engine), enters[3], "placed")
        placed_block = Register(
            m, _placed_block_layout(engine), enters[3] & widened.now.tag.first, "placed_block"
        )
        added = Register(m, integers_layout(engine), enters[4], "added")
        m.d.comb += self.o.payload.eq(added.now)

        _open(m, engine, self.i.payload, opened)
        _rank(m, engine, opened, turn, ranked)
        _find_forms(m, engine, opened, ranked, formed, formed_block)
        _find_wide(m, engine, formed, formed_block, widened)
        _place(m, engine, formed_block, widened, placed, placed_block)
        _add(m, engine, placed, placed_block, added)
        return m


# What goes with every step: which of its block it is, and whether the block has a short form of escapes.
_TAG = data.StructLayout({"first": 1, "final": 1, "short": 1})

_GROUP = 8  # values of a block, or escapes, that are counted together at first


def _groups_layout(engine: StepEngine) -> data.ArrayLayout:
    return data.ArrayLayout(range(_GROUP + 1), engine.block // _GROUP)


def _header_layout(engine: StepEngine) -> data.StructLayout:
    """What is known of a block besides its sections.

    Members:
        grid, offset, wide: fields of its header.
        core: bit ``c - 1`` is set if ``c`` is the width of the core's fields.
        length: bits that the forms and the wide fields may have.
        wrong: no encoder produces it.
        last: it ends its tensor.
    """
    return data.StructLayout(
        {
            "grid": FIELDS["grid"],
            "offset": signed(FIELDS["offset"]),
            "core": engine.max_core,
            "wide": FIELDS["wide"],
            "length": range(engine.rest + 1),
            "wrong": 1,
            "last": 1,
        }
    )


def _opened_layout(engine: StepEngine) -> data.StructLayout:
    """A block, its core cut into fields.

    Members:
        groups: escapes in each eight values.
        rest: what lies behind the core.
    """
    return data.StructLayout(
        {
            "fields": data.ArrayLayout(engine.max_core, engine.block),
            "escapes": engine.block,
            "groups": _groups_layout(engine),
            "specials": engine.block,
            "rest": engine.rest,
            "short": 1,
            "header": _header_layout(engine),
        }
    )


def _open(m: Module, engine: StepEngine, stored, opened: Register) -> None:
    """Reads the header of a block and cuts its mask and core into fields."""
    n, block = engine.block, opened.next
    header, start = {}, 0
    for name, width in FIELDS.items():
        header[name] = stored.data[start : start + width]
        start += width
    body = stored.data[start : 8 * engine.target]
    core = header["core"]
    masked = let(m, "masked", header["wide"] == MASKED)
    alone = let(m, "alone", core == 0)
    widths = {width: let(m, f"core{width}", core == width) for width in range(1, engine.max_core + 1)}

    # How many bits each value has in mask and core together, if they fit.
    sizes = {}
    for size in range(1, engine.sections + 1):
        is_it = (widths.get(size, 0) & ~masked) | (widths.get(size - 1, 0) & masked)
        sizes[size] = let(m, f"size{size}", is_it)
    others = header["grid"].any() | header["offset"].any() | header["short"] | ~masked
    wrong = Mux(alone, others, ~Cat(sizes.values()).any()) | stored.error

    section = let(m, "core_section", Mux(masked, body[n:], body)[: n * engine.max_core])
    fields = [let(m, f"field{i}", field) for i, field in enumerate(cut(section, widths, n))]
    unused = let(m, "unused", Cat(~_is_above(widths, bit) for bit in range(engine.max_core)))
    escapes = let(m, "escapes", Cat(~alone & (field | unused).all() for field in fields))

    # A block that only says which values are special is read as one with the codes of these.
    specials = Mux(masked, body[:n], 0)
    if engine.bits_alone == 2:
        kinds = [body[2 * i : 2 * i + 2] for i in range(n)]
        specials = Mux(alone, Cat(kind.any() for kind in kinds), specials)
        codes = [Cat(~kind[1], kind[1] & ~kind[0]) for kind in kinds]
        fields = [field | Mux(alone, code, 0) for field, code in zip(fields, codes, strict=True)]
    widths[engine.bits_alone] |= alone

    groups = group_counts(m, "escapes", escapes, _GROUP)
    lengths = [Mux(is_it, engine.room - n * size, 0) for size, is_it in sizes.items()]
    m.d.comb += [
        Cat(block.fields).eq(Cat(fields)),
        block.escapes.eq(escapes),
        *(kept.eq(count) for kept, count in zip(block.groups, groups, strict=True)),
        block.specials.eq(specials),
        block.rest.eq(any_set(Mux(is_it, body[n * size :], 0) for size, is_it in sizes.items())),
        block.short.eq(header["short"]),
        block.header.grid.eq(header["grid"]),
        block.header.offset.eq(header["offset"]),
        block.header.core.eq(Cat(widths.values())),
        block.header.wide.eq(header["wide"]),
        block.header.length.eq(any_set(lengths)),
        block.header.wrong.eq(wrong),
        block.header.last.eq(stored.last),
    ]


def _is_above(widths: dict[int, Value], least: int) -> Value:
    return Cat(is_it for width, is_it in widths.items() if width > least).any()


def _ranked_layout(engine: StepEngine) -> data.StructLayout:
    """A step of core fields.

    Members:
        lanes: of each value its field, whether it is an escape, and how many of the step lie before it;
            whether it is special, and whether its code is 0 or, unless it is an escape, below 0.
        forms: of the step's escapes, if they have any.
        count: escapes of the step.
        before: escapes in the block's steps up to this one.
        escapes: of the whole block.
    """
    lane = {"field": engine.max_core, "escape": 1, "rank": range(engine.lanes)}
    lane |= {"special": 1, "zero": 1, "negative": 1}
    return data.StructLayout(
        {
            "tag": _TAG,
            "lanes": data.ArrayLayout(data.StructLayout(lane), engine.lanes),
            "forms": data.ArrayLayout(2, engine.lanes),
            "count": range(engine.lanes + 1),
            "before": range(engine.block + 1),
            "escapes": range(engine.block + 1),
        }
    )


def _rank(m: Module, engine: StepEngine, opened: Register, turn: Value, ranked: Register) -> None:
    """The values of a step, and the forms that belong to them."""
    lanes, block, step = engine.lanes, opened.now, ranked.next
    core = block.header.core

    def of_step(values: Value) -> Value:
        size = len(values) // engine.words
        return any_set(Mux(is_it, values.word_select(i, size), 0) for i, is_it in enumerate(turn))

    fields = let(m, "fields", of_step(Cat(block.fields)))
    escapes = let(m, "escapes_here", of_step(block.escapes))
    specials = let(m, "specials_here", of_step(block.specials))
    ranks = count_before(m, "rank", escapes)
    # The field of the code 0 is L: ones below its top bit, which is set in those of codes above.
    limit = let(m, "limit", Cat(core[bit + 1 :].any() for bit in range(engine.max_core)))
    for i, lane in enumerate(step.lanes):
        field = fields.word_select(i, engine.max_core)
        m.d.comb += [
            lane.field.eq(field),
            lane.escape.eq(escapes[i]),
            lane.rank.eq(ranks[i]),
            lane.special.eq(specials[i]),
            lane.zero.eq(field == limit),
            lane.negative.eq(~(field & core).any()),
        ]
    before = let(m, "escapes_before", Mux(turn[0], 0, ranked.now.before))
    if lanes < _GROUP:
        counts = [*escapes]
    else:
        groups = let(m, "groups_here", of_step(Cat(block.groups)))
        counts = [groups.word_select(i, len(block.groups[0])) for i in range(lanes // _GROUP)]
    count = total(m, "escapes_in_step", counts)
    forms = window(m, "forms_here", block.rest[: 2 * engine.block], Cat(C(0, 1), before), 2 * lanes)
    m.d.comb += [
        step.count.eq(count),
        step.before.eq(before + count),
        Cat(step.forms).eq(forms),
        step.escapes.eq(total(m, "escapes_in_block", [*block.groups])),
        step.tag.first.eq(turn[0]),
        step.tag.final.eq(turn[-1]),
        step.tag.short.eq(block.short),
    ]


def _formed_layout(engine: StepEngine) -> data.StructLayout:
    """A step whose escapes are of known forms.

    Members:
        lanes: as in :func:`_ranked_layout`, and whether each value has a wide field; ``negative`` is not
            known of an escape that has its sign in that.
        wide_fields: of the step.
        wide_at: where they start in the rest of the block.
    """
    return data.StructLayout(
        {
            "tag": _TAG,
            "lanes": _formed_lanes(engine),
            "wide_fields": range(engine.lanes + 1),
            "wide_at": range(engine.rest + 1),
        }
    )


def _formed_lanes(engine: StepEngine) -> data.ArrayLayout:
    lane = {"field": engine.max_core, "escape": 1, "wide": 1, "special": 1, "zero": 1, "negative": 1}
    return data.ArrayLayout(data.StructLayout(lane), engine.lanes)


def _formed_block_layout(engine: StepEngine) -> data.StructLayout:
    """The block of such steps.

    Members:
        wide_at: where its wide section starts in the rest.
        groups: wide fields of each eight escapes.
    """
    return data.StructLayout(
        {
            "rest": engine.rest,
            "header": _header_layout(engine),
            "wide_at": range(2 * engine.block + 1),
            "groups": _groups_layout(engine),
        }
    )


def _find_forms(
    m: Module,
    engine: StepEngine,
    opened: Register,
    ranked: Register,
    formed: Register,
    formed_block: Register,
) -> None:
    """Which escapes have a wide field, and where it lies."""
    before, step, block = ranked.now, formed.next, formed_block.next
    short = before.tag.short
    for i, (lane, value) in enumerate(zip(step.lanes, before.lanes, strict=True)):
        form = let(m, f"form{i}", pick([*before.forms][: i + 1], value.rank))
        m.d.comb += [
            lane.field.eq(value.field),
            lane.escape.eq(value.escape),
            lane.wide.eq(value.escape & (~short | form[1])),
            lane.special.eq(value.special),
            lane.zero.eq(value.zero),
            lane.negative.eq(Mux(value.escape, form[0], value.negative)),
        ]
    # As many fields as the forms say, which is known sooner than whose they are.
    are_forms = ones(m, "are_forms", before.count, engine.lanes)
    wide = [it & (~short | form[1]) for it, form in zip(are_forms, before.forms, strict=True)]
    wide_behind = formed.now.wide_at + formed_block.now.header.wide * formed.now.wide_fields
    m.d.comb += [
        step.tag.eq(before.tag),
        step.wide_fields.eq(total(m, "wide_in_step", wide)),
        step.wide_at.eq(Mux(before.tag.first, block.wide_at, wide_behind)),
    ]
    rest = opened.now.rest
    has_wide = Cat(~short | rest[2 * i + 1 : 2 * i + 2].any() for i in range(engine.block))
    all_wide = let(m, "all_wide", has_wide & ones(m, "all_are_forms", before.escapes, engine.block))
    groups = group_counts(m, "all_wide", all_wide, _GROUP)
    m.d.comb += [
        block.rest.eq(rest),
        block.header.eq(opened.now.header),
        block.wide_at.eq(Mux(short, before.escapes << 1, 0)),
        *(kept.eq(count) for kept, count in zip(block.groups, groups, strict=True)),
    ]


def _widened_layout(engine: StepEngine) -> data.StructLayout:
    """A step and its wide fields.

    Members:
        lanes: as in :func:`_formed_layout`.
        ranks: of each value, how many wide fields of the step lie before its own.
        fields: the wide ones.
        wide_fields: of the whole block.
    """
    return data.StructLayout(
        {
            "tag": _TAG,
            "lanes": _formed_lanes(engine),
            "ranks": data.ArrayLayout(range(engine.lanes), engine.lanes),
            "fields": data.ArrayLayout(MASKED, engine.lanes),
            "wide_fields": range(engine.block + 1),
        }
    )


def _find_wide(
    m: Module, engine: StepEngine, formed: Register, formed_block: Register, widened: Register
) -> None:
    """The wide fields of a step."""
    before, block, step = formed.now, formed_block.now, widened.next
    widths = {w: let(m, f"wide{w}", block.header.wide == w) for w in range(1, MASKED + 1)}
    most = min(MASKED * engine.lanes, engine.rest)
    section = window(m, "wide_section", block.rest, before.wide_at, most)
    ranks = count_before(m, "wide_rank", Cat(lane.wide for lane in before.lanes))
    m.d.comb += [
        step.tag.eq(before.tag),
        step.lanes.eq(before.lanes),
        *(kept.eq(rank) for kept, rank in zip(step.ranks, ranks, strict=True)),
        Cat(step.fields).eq(Cat(cut(section, widths, engine.lanes))),
        step.wide_fields.eq(total(m, "wide_in_block", [*block.groups])),
    ]


def _placed_layout(engine: StepEngine) -> data.StructLayout:
    """A step ready to be added up.

    Members:
        lanes: of each value a number, which of the block's two is added to it, and whether one more is; and
            what kind of special it is, with its sign.
        fine_at: where the step's fine bits start in the rest of the block.
    """
    lane = {"number": signed(MASKED + 1), "is_low": 1, "carry": 1, "kind": 2, "negative": 1}
    return data.StructLayout(
        {
            "tag": _TAG,
            "lanes": data.ArrayLayout(data.StructLayout(lane), engine.lanes),
            "fine_at": range(engine.room + 1),
        }
    )


def _placed_block_layout(engine: StepEngine) -> data.StructLayout:
    """The block of such steps.

    Members:
        wide_length: of its wide section.
        room: bits that this may have, if there are any.
        low, high: the two numbers.
        minus_low, minus_high: the same, negative.
    """
    most = (1 << engine.max_core - 1) + (1 << FIELDS["offset"] - 1)
    return data.StructLayout(
        {
            "rest": engine.rest,
            "header": _header_layout(engine),
            "wide_length": range(MASKED * engine.block + 1),
            "room": range(-2 * engine.block, engine.rest + 1),
            **dict.fromkeys(("low", "high", "minus_low", "minus_high"), range(-most, most + 1)),
        }
    )


def _place(
    m: Module,
    engine: StepEngine,
    formed_block: Register,
    widened: Register,
    placed: Register,
    placed_block: Register,
) -> None:
    """What each value is made of.

    Of an escape, let ``beyond`` be by how much it is beyond the least. With the offset its code is then

        2**(core - 1) + beyond + offset        = beyond + high
        -2**(core - 1) - beyond + offset       = ~beyond + low + 1
        field - 2**(core - 1) + 1 + offset     = field + low + 1     for all others.

    A wide field beside a short form holds one less than ``beyond``.
    """
    before, step, block = widened.now, placed.next, placed_block.next
    short = before.tag.short
    for i, (lane, value) in enumerate(zip(step.lanes, before.lanes, strict=True)):
        field = pick([*before.fields][: i + 1], before.ranks[i])
        wide = let(m, f"wide_field{i}", Mux(value.wide, field, 0))
        negative = let(m, f"negative{i}", Mux(value.escape & ~short, wide[0], value.negative))
        number = Mux(value.escape, Mux(short, wide, wide >> 1), value.field)
        flips = value.escape & negative
        m.d.comb += [
            lane.number.eq(Cat(number ^ flips.replicate(len(number)), flips)),
            lane.is_low.eq(~value.escape | negative),
            lane.carry.eq(~value.escape | (negative ^ (value.wide & short))),
            lane.kind.eq(Mux(value.special, Mux(value.zero, NAN, INFINITY), 0)),
            lane.negative.eq(negative),
        ]
    rest, header, wide_at = (formed_block.now[name] for name in ("rest", "header", "wide_at"))
    wide_length = let(m, "wide_length", header.wide * before.wide_fields)
    m.d.comb += [
        step.tag.eq(before.tag),
        step.fine_at.eq(Mux(before.tag.first, wide_at + wide_length, placed.now.fine_at + engine.lanes)),
        block.rest.eq(rest),
        block.header.eq(header),
        block.wide_length.eq(wide_length),
        block.room.eq(header.length - wide_at),
        block.low.eq(header.offset - header.core),
        block.high.eq(header.offset + header.core),
        block.minus_low.eq(header.core - header.offset),
        block.minus_high.eq(-header.core - header.offset),
    ]


def _with_carry(a: Value, b: Value, carry: Value) -> Value:
    """The sum as a single addition, with one bit below."""
    return (Cat(C(1), a).as_signed() + Cat(carry, b).as_signed())[1 : 1 + MAGNITUDE_BITS]


def _add(m: Module, engine: StepEngine, placed: Register, placed_block: Register, added: Register) -> None:
    """Adds up a step's values, and says whether their block can be right."""
    before, block, step = placed.now, placed_block.now, added.next
    fine = window(m, "fine", block.rest, before.fine_at, engine.lanes)
    for i, (lane, value) in enumerate(zip(before.lanes, step.lanes, strict=True)):
        plus = Mux(lane.is_low, block.low, block.high)
        minus = Mux(lane.is_low, block.minus_low, block.minus_high)
        code = let(m, f"code{i}", _with_carry(lane.number, plus, lane.carry))
        opposite = let(m, f"opposite{i}", _with_carry(~lane.number, minus, ~lane.carry))
        negative = code[-1]
        # Twice the code and the fine bit; if it is negative, less that bit.
        half = Mux(negative, Mux(fine[i], ~code, opposite), code)[: len(code) - 1]
        m.d.comb += [
            value.magnitude.eq(Cat(fine[i], half)),
            value.negative.eq(Mux(lane.kind.any(), lane.negative, negative)),
            value.kind.eq(lane.kind),
        ]
    is_wrong = block.header.wrong | (block.wide_length > block.room)
    m.d.comb += [
        step.grid.eq(block.header.grid),
        step.error.eq(Mux(before.tag.first, is_wrong, added.now.error)),
        step.last.eq(block.header.last & before.tag.final),
    ]
