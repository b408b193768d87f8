"""The compressor of the step format, last part: the sections of each block, laid one behind the other."""

from amaranth import C, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from golden.step import FIELDS, MASKED

from .engine import StepEngine
from .fields import Register, count_before, let, total
from .planes import any_set, compact
from .step_aligner import Passage, steps_of
from .step_estimator import splits_of
from .step_refiner import coded_layout, refined_layout
from .stream import word_layout

__all__ = ["Layer"]


def _fields_layout(engine: StepEngine) -> data.StructLayout:
    """What is stored of a value, besides the mask."""
    return data.StructLayout(
        {
            "core": engine.max_core,
            "escape": 1,
            "negative": 1,
            "is_wide": 1,
            "wide": MASKED,
            "fine": 1,
            "special": 1,
            "kind": 2,
        }
    )


class Layer(wiring.Component):
    """Lays out each block's sections, a step a cycle; all sections grow at the same time.

    Members:
        go: the step at ``i`` is taken. It is 0 while a block waits to be taken.
        o: whole blocks, each in the third cycle after its final step.
    """

    def __init__(self, engine: StepEngine):
        self._engine = engine
        super().__init__(
            {
                "go": Out(1),
                "i": In(steps_of(engine, coded_layout())),
                "block": In(refined_layout(engine)),
                "o": Out(stream.Signature(word_layout(engine.target))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        engine, go = self._engine, self.go
        layout = refined_layout(engine)
        m.d.comb += go.eq(~self.o.valid | self.o.ready)

        fields = Passage(m, go, _fields(m, engine, go, self.i, self.block), 2, "fields")
        of_fields = Register(m, layout, go & fields.starts(0), "of_fields")
        of_packed = Register(m, layout, go & fields.starts(1), "of_packed")
        m.d.comb += [of_fields.next.eq(self.block), of_packed.next.eq(of_fields.now)]
        packed = _pack(m, engine, fields.lanes[1], of_fields.now)
        kept = Register(m, packed.shape(), go, "packed")
        m.d.comb += kept.next.eq(packed)
        sections = _place(m, engine, go, fields.tags[2], fields.lanes[2], kept.now, of_packed.now)

        first = fields.tags[2].first
        bits = Signal(8 * engine.target, reset_less=True)
        last = Signal(reset_less=True)
        with m.If(go):
            m.d.sync += [
                bits.eq(Mux(first, 0, bits) | sections),
                last.eq(of_packed.now.choice.last),
                self.o.valid.eq(fields.ends(2)),
            ]
        m.d.comb += [self.o.p.data.eq(bits), self.o.p.last.eq(last)]
        return m


def _fields(m: Module, engine: StepEngine, go: Value, steps, block):
    """What is stored of each value, now that it is known which ones move."""
    fields = Signal(steps_of(engine, _fields_layout(engine)), name="fields")
    m.d.comb += fields.tag.eq(steps.tag)
    choice = block.choice
    place = Signal(range(engine.words), reset_less=True)
    place_now = let(m, "place_now", Mux(steps.tag.first, 0, place))
    with m.If(go):
        m.d.sync += place.eq(place_now + 1)
    within = exact_log2(engine.lanes)
    all_move = let(m, "all_move", block.moved[within:] > place_now)
    some_move = let(m, "some_move", block.moved[within:] == place_now)
    for i, (lane, value) in enumerate(zip(fields.lanes, steps.lanes, strict=True)):
        moves = all_move | (some_move & (block.moved[:within] > i) if i + 1 < engine.lanes else C(0))
        code = let(m, f"code{i}", value.code + (value.higher & ~moves))
        negative = let(m, f"negative{i}", code < 0)
        size = let(m, f"size{i}", Mux(negative, -code, code))
        beyond = let(m, f"beyond{i}", size - choice.least)
        escape = let(m, f"escape{i}", ~choice.alone & (beyond >= 0))
        inside = (code + choice.least - 1)[: engine.max_core]
        wide = Mux(choice.short, beyond - 1, Cat(negative, beyond))
        m.d.comb += [
            lane.core.eq(Mux(escape, -1, inside)),
            lane.escape.eq(escape),
            lane.negative.eq(negative),
            lane.is_wide.eq(escape & (~choice.short | (beyond != 0))),
            lane.wide.eq(wide),
            lane.fine.eq(value.fine & moves),
            lane.special.eq(value.special),
            lane.kind.eq(Mux(value.special, Cat(~code[0] | code[1], code[0]), 0)),
        ]
    return fields


def _packed_layout(engine: StepEngine) -> data.StructLayout:
    """A step's forms and wide fields without gaps, and how many there are."""
    return data.StructLayout(
        {
            "forms": 2 * engine.lanes,
            "wide": max(min(MASKED * engine.lanes, engine.rest), 1),
            "escapes": range(engine.lanes + 1),
            "wide_fields": range(engine.lanes + 1),
        }
    )


def _pack(m: Module, engine: StepEngine, lanes, block):
    packed = Signal(_packed_layout(engine), name="packed_fields")
    choice = block.choice
    wide = _compacted(m, engine, "wide", lanes, lambda lane: lane.is_wide, lambda lane: lane.wide)
    forms = _compacted(
        m, engine, "form", lanes, lambda lane: lane.escape, lambda lane: Cat(lane.negative, lane.is_wide)
    )
    ways = []
    for width in range(1, MASKED + 1):
        ways.append(Mux(choice.wide == width, Cat(field[:width] for field in wide), 0))
    m.d.comb += [
        packed.forms.eq(Mux(choice.short, Cat(field[:2] for field in forms), 0)),
        packed.wide.eq(any_set(ways)),
        packed.escapes.eq(total(m, "escapes_in_step", [lane.escape for lane in lanes])),
        packed.wide_fields.eq(total(m, "wide_in_step", [lane.is_wide for lane in lanes])),
    ]
    return packed


def _compacted(m: Module, engine: StepEngine, name: str, lanes, has, field) -> list[Value]:
    """The fields of those values that have one, moved to the front."""
    there = let(m, f"has_{name}", Cat(has(lane) for lane in lanes))
    gaps = count_before(m, f"{name}_gaps", ~there)
    kept = [Mux(is_there, field(lane), 0) for is_there, lane in zip(there, lanes, strict=True)]
    bits = len(field(lanes[0]))
    # compact names its signals by itself: one submodule for each use.
    inner = Module()
    moved = compact(
        inner,
        kept,
        [
            Mux(is_there, Cat(gap, C(0, 8))[: i.bit_length()], 0)
            for i, (is_there, gap) in enumerate(zip(there, gaps, strict=True))
        ],
    )
    out = []
    for i, item in enumerate(moved):
        signal = Signal(bits, name=f"{name}_packed{i}")
        inner.d.comb += signal.eq(item)
        out.append(signal)
    m.submodules[f"{name}_compactor"] = inner
    return out


def _place(m: Module, engine: StepEngine, go: Value, tag, lanes, packed, block) -> Value:
    """A step's share of each section, in its place."""
    n, choice, room = engine.block, block.choice, engine.room
    turn = Signal(range(engine.words), reset_less=True)
    turn_now = let(m, "turn_now", Mux(tag.first, 0, turn))
    turns = [let(m, f"turn{k}", turn_now == k) for k in range(engine.words)]

    parts, forms_from = [], []
    mask = Cat(lane.special for lane in lanes)
    kinds = Cat(lane.kind for lane in lanes)
    has_mask = choice.masked & (~choice.alone | (engine.bits_alone == 1))
    ways = [(let(m, "has_mask", has_mask), mask, 0)]
    if engine.bits_alone == 2:
        ways.append((choice.alone, kinds, 0))
    options = {
        (masked, core) for masked in (False, True) for core, _ in splits_of(engine, masked) if core > 0
    }
    for masked, core in sorted(options):
        is_it = let(
            m,
            f"core{core}_{int(masked)}",
            ~choice.alone & (choice.masked == masked) & (choice.core == core),
        )
        ways.append((is_it, Cat(lane.core[:core] for lane in lanes), n * masked))
        forms_from.append(Mux(is_it, n * (masked + core), 0))
    for is_it, section, start in ways:
        for k, turn_here in enumerate(turns):
            place = start + k * len(section)
            parts.append(Mux(is_it & turn_here, Cat(C(0, place), section), 0))

    forms_start = let(m, "forms_start", any_set(Value.cast(start) for start in forms_from))
    bits = (room + n).bit_length()
    pointers = {name: Signal(bits, name=f"{name}_at", reset_less=True) for name in ("forms", "wide", "fine")}
    starts = {
        "forms": forms_start,
        "wide": forms_start + Mux(choice.short, block.escapes << 1, 0),
        "fine": block.length - block.moved,
    }
    sizes = {
        "forms": Mux(choice.short, packed.escapes << 1, 0),
        "wide": packed.wide_fields * choice.wide,
        "fine": engine.lanes,
    }
    contents = {"forms": packed.forms, "wide": packed.wide, "fine": Cat(lane.fine for lane in lanes)}
    with m.If(go):
        m.d.sync += turn.eq(turn_now + 1)
    for name, pointer in pointers.items():
        at = let(m, f"{name}_from", Mux(tag.first, starts[name], pointer)[:bits])
        with m.If(go):
            m.d.sync += pointer.eq(at + sizes[name])
        content = contents[name]
        for stage, up in enumerate(at):
            content = let(m, f"{name}_by_{1 << stage}", Mux(up, content << (1 << stage), content)[:room])
        parts.append(Mux(choice.alone, 0, content))

    header = []
    for name, width in FIELDS.items():
        value = Value.cast(choice[name])
        if name != "wide":
            value = Mux(choice.alone, 0, value)
        header.append(Cat(value, C(0, width))[:width])
    body = any_set(Value.cast(part)[:room] for part in parts)
    return Cat(Mux(tag.first, Cat(header), 0), body)
