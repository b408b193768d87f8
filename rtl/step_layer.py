"""The compressor of the step format, last part: the sections of each block, each in its place."""

from amaranth import C, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from golden.step import FIELDS

from .engine import StepEngine
from .fields import Register, count_before, let, total
from .planes import any_set, compact
from .step_coder import BEYOND_BITS, coded_layout
from .stream import word_layout

__all__ = ["Layer"]


class Layer(wiring.Component):
    """Lays out each block's sections, a step a cycle; all sections grow at the same time.

    Members:
        go: the step at ``i`` is taken. It is 0 while a block waits to be taken.
        o: whole blocks, each in the second cycle after its final step.
    """

    def __init__(self, engine: StepEngine):
        self._engine = engine
        super().__init__(
            {
                "go": Out(1),
                "i": In(coded_layout(engine)),
                "o": Out(stream.Signature(word_layout(engine.target))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        engine, go = self._engine, self.go
        m.d.comb += go.eq(~self.o.valid | self.o.ready)

        valid = Signal()
        packed = Register(m, _packed_layout(engine), go, "packed")
        _pack(m, engine, self.i, packed.next)
        turn = Signal(range(engine.words), reset_less=True)
        bits = Signal(8 * engine.target, reset_less=True)
        last = Signal(reset_less=True)
        sections = _place(m, engine, go, turn, packed.now)
        with m.If(go):
            m.d.sync += [
                valid.eq(self.i.tag.valid),
                turn.eq(Mux(self.i.tag.first, 0, turn + 1)),
                bits.eq(Mux(packed.now.first, 0, bits) | sections),
                last.eq(packed.now.plan.last),
                self.o.valid.eq(valid & packed.now.final),
            ]
        m.d.comb += [self.o.p.data.eq(bits), self.o.p.last.eq(last)]
        return m


def _packed_layout(engine: StepEngine) -> data.StructLayout:
    """What a step adds to its block.

    Members:
        core, fine, specials, kinds: of each value.
        wide: the fields of its escapes, moved to the front.
        escapes, moved: how many values escape, and how many have a fine bit.
        plan, first, final: see :func:`rtl.step_coder.coded_layout`.
    """
    plan = coded_layout(engine)["plan"].shape
    return data.StructLayout(
        {
            "core": data.ArrayLayout(engine.fmt.cores(masked=False)[-1], engine.lanes),
            "fine": engine.lanes,
            "specials": engine.lanes,
            "kinds": 2 * engine.lanes,
            "wide": data.ArrayLayout(BEYOND_BITS + 1, engine.lanes),
            "escapes": range(engine.lanes + 1),
            "plan": plan,
            "moved": range(engine.lanes + 1),
            "first": 1,
            "final": 1,
        }
    )


def _pack(m: Module, engine: StepEngine, step, packed) -> None:
    escapes = let(m, "escapes", Cat(lane.escape for lane in step.lanes))
    gaps = count_before(m, "gaps", ~escapes)
    fields = [Mux(lane.escape, Cat(lane.negative, lane.beyond), 0) for lane in step.lanes]
    shifts = [
        Mux(escape, Cat(gap, C(0, 8))[: i.bit_length()], 0)
        for i, (escape, gap) in enumerate(zip(escapes, gaps, strict=True))
    ]
    m.d.comb += [
        *(lane.eq(field) for lane, field in zip(packed.wide, compact(m, fields, shifts), strict=True)),
        packed.escapes.eq(total(m, "escapes_here", [*escapes])),
        Cat(packed.core).eq(Cat(lane.core for lane in step.lanes)),
        packed.fine.eq(Cat(lane.fine for lane in step.lanes)),
        packed.specials.eq(Cat(lane.special for lane in step.lanes)),
        packed.kinds.eq(Cat(lane.kind for lane in step.lanes)),
        packed.plan.eq(step.plan),
        packed.moved.eq(total(m, "moved_here", [lane.moves for lane in step.lanes])),
        packed.first.eq(step.tag.first),
        packed.final.eq(step.tag.final),
    ]


def _place(m: Module, engine: StepEngine, go: Value, turn: Value, step) -> Value:
    """A step's share of each section, in its place; the header comes with the final one."""
    n, plan, room = engine.block, step.plan, engine.room
    cores = engine.fmt.cores(masked=False)
    turns = [let(m, f"turn{k}", turn == k) for k in range(engine.words)]

    # In each way a block may be stored: what lies where, and where the escapes begin.
    one_bit, masked = engine.bits_alone == 1, plan.masked & ~plan.alone
    sections = [(let(m, "has_mask", plan.masked & (~plan.alone | one_bit)), step.specials, 0)]
    if not one_bit:
        sections.append((plan.alone, step.kinds, 0))
    starts = []
    for core, is_masked in [*((core, 0) for core in cores), (1, 1)]:
        is_it = (plan.core == core) & (masked == is_masked)
        is_it = let(m, f"core{core}_{is_masked}", is_it)
        sections.append((is_it, Cat(lane[:core] for lane in step.core), n * is_masked))
        starts.append((is_it, n * (is_masked + core)))
    parts = []
    for is_it, section, start in sections:
        for k, turn_here in enumerate(turns):
            place = start + k * len(section)
            if place + len(section) <= room:
                parts.append(Mux(is_it & turn_here, Cat(C(0, place), section), 0))

    pointer = Signal(range(room + 1), reset_less=True)
    moved = Signal(range(engine.block + 1), reset_less=True)
    at = let(m, "escapes_from", Mux(step.first, 0, pointer))
    moved_now = let(m, "moved_now", (Mux(step.first, 0, moved) + step.moved)[: len(moved)])
    with m.If(go):
        m.d.sync += [pointer.eq(at + step.escapes * plan.wide), moved.eq(moved_now)]
    widths = range(1, BEYOND_BITS + 2)
    ways = [Mux(plan.wide == width, Cat(lane[:width] for lane in step.wide), 0) for width in widths]
    content = let(m, "escapes_packed", any_set(ways)[: room - n])
    for stage, up in enumerate(at):
        content = let(m, f"escapes_by_{1 << stage}", Mux(up, content << (1 << stage), content)[: room - n])
    parts += [Mux(is_it, Cat(C(0, start), content), 0) for is_it, start in starts if start < room]

    fine = step.fine[::-1]
    for k, turn_here in enumerate(turns):
        parts.append(Mux(turn_here, Cat(C(0, room - (k + 1) * engine.lanes), fine), 0))

    header = Cat(
        Cat(moved_now if name == "moved" else plan[name], C(0, width))[:width]
        for name, width in FIELDS.items()
    )
    body = any_set(Value.cast(part)[:room] for part in parts)
    return Cat(Mux(step.final, header, 0), body)
