"""The compressor's datapath: values to deltas, rounding, and the bits to their places."""

from amaranth import C, Cat, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from .engine import Engine
from .planes import Selects, all_after, all_ones, any_set, lanes_to_planes, select_planes
from .planner import choice_layout, plan_layout
from .stream import word_layout

__all__ = ["Coder", "Placer"]


class Coder(wiring.Component):
    """Replaces each value's exponent by its delta, and what a block flushes by zeros.

    A word a cycle, offered in the cycle after it was taken; the words that a tensor's last block lacks are
    zeros. A choice is taken together with its block's last word.
    """

    def __init__(self, engine: Engine):
        self._engine = engine
        words = stream.Signature(8 * engine.word_bytes)
        choices = stream.Signature(choice_layout(engine))
        super().__init__({"i": In(words), "choices": In(choices), "o": Out(words)})

    def elaborate(self, platform):
        m = Module()
        engine = self._engine
        choice = self.choices.payload
        index = Signal(range(engine.words))
        is_padding = index >= choice.words
        is_final = index == engine.words - 1
        has_room = ~self.o.valid | self.o.ready
        step = Signal()
        m.d.comb += [
            step.eq(self.choices.valid & has_room & (self.i.valid | is_padding)),
            self.i.ready.eq(self.choices.valid & has_room & ~is_padding),
            self.choices.ready.eq(step & is_final),
        ]
        with m.If(has_room):
            m.d.sync += self.o.valid.eq(step)
        with m.If(step):
            width = engine.fmt.float_type.width
            lanes = [self.i.payload.word_select(i, width) for i in range(engine.lanes)]
            coded = Cat(self._code(m, lane, choice) for lane in lanes)
            m.d.sync += self.o.payload.eq(Mux(is_padding, 0, coded))
            m.d.sync += index.eq(Mux(is_final, 0, index + 1))
        return m

    def _code(self, m: Module, lane: Value, choice) -> Value:
        fmt = self._engine.fmt
        ft = fmt.float_type
        mantissa = lane[: ft.mantissa_bits]
        field = lane[ft.mantissa_bits : -1]
        sign = lane[-1]
        below = field < choice.base
        delta = (field - choice.base + 1)[: ft.exponent_bits]
        code = Cat(Mux(below & choice.flush, 0, mantissa), Mux(below, 0, delta), sign)
        if not fmt.has_specials_blocks:
            return code
        is_nan = field.all() & mantissa.any()
        is_infinity = field.all() & ~mantissa.any()
        marks = Cat(is_infinity, C(0, ft.exponent_bits - 1), is_nan | (is_infinity & sign))
        return Mux(choice.special, Cat(C(0, ft.mantissa_bits), marks), code)


class Placer(wiring.Component):
    """Drops and rounds what does not fit of a block's coded values, and gathers the planes.

    One word a cycle; the block is offered in the cycle after its last word.
    """

    def __init__(self, engine: Engine):
        self._engine = engine
        super().__init__(
            {
                "plans": In(stream.Signature(plan_layout(engine))),
                "words": In(stream.Signature(8 * engine.word_bytes)),
                "o": Out(stream.Signature(word_layout(engine.fmt.target))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        engine = self._engine
        fmt = engine.fmt
        plan = self.plans.payload

        index = Signal(range(engine.words))
        is_final = index == engine.words - 1
        has_room = ~self.o.valid | self.o.ready
        step = self.plans.valid & has_room & self.words.valid
        m.d.comb += [
            self.words.ready.eq(self.plans.valid & has_room),
            self.plans.ready.eq(step & is_final),
        ]
        width = fmt.float_type.width
        planes = lanes_to_planes([self.words.payload.word_select(i, width) for i in range(engine.lanes)])
        slots = self._round(m, index, planes, plan.flags, list(plan.ranks))

        # Each step fills one column: the bits of one word's values, of every slot.
        columns = [
            Signal(len(slots) * engine.lanes, name=f"column{i}", reset_less=True) for i in range(engine.words)
        ]
        base = Signal(8)
        flags = Signal(fmt.planes)
        last = Signal()
        with m.If(has_room):
            m.d.sync += self.o.valid.eq(0)
        with m.If(step):
            with m.Switch(index):
                for i, column in enumerate(columns):
                    with m.Case(i):
                        m.d.sync += column.eq(Cat(slots))
            m.d.sync += index.eq(Mux(is_final, 0, index + 1))
            with m.If(is_final):
                m.d.sync += [self.o.valid.eq(1), base.eq(plan.base), last.eq(plan.last)]
                for plane in range(fmt.planes):
                    fits = plan.ranks[plane] < len(slots)
                    m.d.sync += flags[plane].eq(plan.flags[plane] & fits)

        rows = [
            Cat(column.word_select(slot, engine.lanes) for column in columns) for slot in range(len(slots))
        ]
        m.d.comb += [
            self.o.p.data.eq(Cat(base, flags, rows)),  # the last row is cut at the end of the block
            self.o.p.last.eq(last),
        ]
        return m

    def _round(
        self, m: Module, index: Value, planes: list[Value], flags: Value, ranks: list[Value]
    ) -> list[Value]:
        """The slots' bits of one word, rounded; each a bit per lane.

        The whole slots and the partial one behind them are always the same, so a value's last kept bit
        and the one below it, its guard, lie in fixed slots: the guard behind the whole slots, or one
        further for the early values, which have a bit in the partial slot. Rounding up turns the ones at the
        end of the kept bits into zeros and the zero above them into a one, which must lie in the run of
        neighbouring mantissa planes that ends at the guard: no carry crosses a zero plane.
        """
        fmt = self._engine.fmt
        lanes = self._engine.lanes
        whole, kept = fmt.slots, fmt.slots + (fmt.partial > 0)
        slots, neighbours = self._fill_slots(m, planes, flags, ranks)
        early = _early_lanes(m, index, self._engine)
        cut = [*slots[:whole], slots[whole] & early] if fmt.partial else slots[:whole]
        if fmt.rounding == "truncate":
            return cut

        # The guards that some value has, the deepest first: what lies behind it lies behind the next as well.
        guards = [(whole + 1, "early", early)] if fmt.partial and whole + 1 < len(slots) else []
        guards += [(whole, "late", ~early)] if whole < len(slots) else []
        behind = [p for p in range(1 + fmt.float_type.exponent_bits, fmt.planes) if p >= len(slots)]
        sticky = any_set([C(0, lanes), *(Mux(ranks[p] >= len(slots), planes[p], 0) for p in behind)])
        carries = [
            C(0, lanes)
        ] * kept  # into each slot, if there are only ones between it and the partial slot
        for guard, name, values in guards:
            run = Signal(guard, name=f"{name}_run")  # the slots to which a carry can get
            has_zero = Signal(lanes, name=f"{name}_has_zero")  # in the run, for the carry to end in
            up = Signal(lanes, name=f"{name}_up")
            afters = all_after(neighbours[:guard])
            m.d.comb += [
                run.eq(Cat(here & after for here, after in zip(neighbours, afters, strict=False))),
                has_zero.eq(any_set(Mux(run[slot], ~slots[slot], 0) for slot in range(guard))),
                up.eq(slots[guard] & (sticky | slots[guard - 1]) & has_zero & values),
            ]
            sticky |= slots[guard]
            for slot in range(guard):
                through = up & slots[whole] if slot < whole < guard else up
                carries[slot] |= Mux(run[slot], through, 0)

        rounded = []
        ones_between = [*all_after(slots[:whole]), all_ones(lanes)]
        for slot, (bits, carry, ones) in enumerate(zip(cut, carries, ones_between, strict=False)):
            out = Signal(lanes, name=f"rounded{slot}")
            m.d.comb += out.eq((bits & ~carry) | ((bits ^ ones) & carry))
            rounded.append(out)
        return rounded

    def _fill_slots(
        self, m: Module, planes: list[Value], flags: Value, ranks: list[Value]
    ) -> tuple[list[Value], list[Value]]:
        """The bits that lie in each slot, those of the first guards included, a bit per lane; and whether
        a slot's plane and the next slot's are mantissa planes of neighbouring weights."""
        fmt = self._engine.fmt
        first_mantissa = 1 + fmt.float_type.exponent_bits
        selects = Selects(fmt, ranks)
        slots, neighbours = [], []
        for slot in range(min(fmt.slots + (fmt.partial > 0) + 1, fmt.planes)):
            chosen = {}
            for plane in selects.planes_of(slot):
                chosen[plane] = Signal(name=f"slot{slot}_is_plane{plane}")
                m.d.comb += chosen[plane].eq(selects[slot, plane])
            bits = Signal(self._engine.lanes, name=f"slot{slot}")
            m.d.comb += bits.eq(select_planes(list(chosen.values()), [planes[p] for p in chosen]))
            slots.append(bits)
            pairs = [
                chosen[p] & flags[p] & flags[p + 1] for p in chosen if first_mantissa <= p < fmt.planes - 1
            ]
            neighbour = Signal(name=f"neighbours{slot}")
            m.d.comb += neighbour.eq(Cat(pairs).any())
            neighbours.append(neighbour)
        return slots, neighbours


def _early_lanes(m: Module, index: Value, engine: Engine) -> Value:
    """The lanes of a word whose values still have a bit in the partial slot."""
    early = Signal(engine.lanes)
    counts = [min(max(engine.fmt.partial - i * engine.lanes, 0), engine.lanes) for i in range(engine.words)]
    masks = [Mux(index == i, (1 << count) - 1, 0) for i, count in enumerate(counts) if count]
    m.d.comb += early.eq(any_set([C(0, engine.lanes), *masks]))
    return early
