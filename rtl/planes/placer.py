"""The compressor's datapath, second half: the planes to their slots, and what does not fit rounded away."""

from amaranth import C, Cat, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from golden.floats import FloatType

from ..arith.trees import all_ones, any_set
from ..stream import Switch, word_layout
from .coder import coded_layout
from .engine import PlaneEngine

__all__ = ["Placer"]


class Placer(wiring.Component):
    """Drops and rounds what does not fit of a block's coded values, and gathers the planes.

    One word a cycle; the block is offered in the cycle after its last word.
    """

    def __init__(self, engine: PlaneEngine, switch: Switch):
        self._engine = engine
        self._switch = switch
        super().__init__(
            {
                "i": In(stream.Signature(coded_layout(engine))),
                "o": Out(stream.Signature(word_layout(engine.target))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        engine = self._engine

        index = Signal(range(engine.words))
        is_final = index == engine.words - 1
        has_room = ~self.o.valid | self.o.ready
        takes = self.i.valid & has_room
        m.d.comb += self.i.ready.eq(has_room)
        slots = self._round(m, index)

        # Each word fills one column: the bits of its values, of every slot.
        columns = [
            Signal(len(slots) * engine.lanes, name=f"column{i}", reset_less=True) for i in range(engine.words)
        ]
        base = Signal(engine.float_type.exponent_bits)
        flags = Signal(engine.planes)
        last = Signal()
        with m.If(has_room):
            m.d.sync += self.o.valid.eq(0)
        with m.If(takes):
            with m.Switch(index):
                for i, column in enumerate(columns):
                    with m.Case(i):
                        m.d.sync += column.eq(Cat(slots))
            m.d.sync += index.eq(Mux(is_final, 0, index + 1))
            with m.If(is_final):
                m.d.sync += [
                    self.o.valid.eq(1),
                    base.eq(self.i.p.base),
                    flags.eq(self.i.p.flags),
                    last.eq(self.i.p.last),
                ]

        rows = [
            Cat(column.word_select(slot, engine.lanes) for column in columns) for slot in range(len(slots))
        ]

        def block(kind: tuple[FloatType, int]) -> Value:
            ft, target = kind
            flags_here = [flags[p] for p in engine.places_of(ft)]
            stored_base = Cat(base[: ft.exponent_bits], C(0, 8 - ft.exponent_bits))
            return Cat(stored_base, flags_here, rows)[
                : 8 * target
            ]  # the last row is cut at the end of the block

        m.d.comb += [
            self.o.p.data.eq(self._switch.choose(lambda fmt: (fmt.float_type, fmt.target), block)),
            self.o.p.last.eq(last),
            self.o.p.empty.eq(self._switch.choose(lambda fmt: engine.target - fmt.target)),
        ]
        return m

    def _round(self, m: Module, index: Value) -> list[Value]:
        """The slots' bits of one word, rounded; each a bit per lane.

        The whole slots and the partial one behind them are the same in every block, so a value's last kept
        bit and the one below it, its guard, lie in fixed slots: the guard behind the whole slots, or one
        further for the early values, which have a bit in the partial slot. Rounding up turns the ones at the
        end of the kept bits into zeros and the zero above them into a one, which must lie in the run of
        neighbouring mantissa planes that ends at the guard: no carry crosses a zero plane.
        """
        engine, switch = self._engine, self._switch
        lanes = engine.lanes
        coded = self.i.payload
        count = engine.touched
        planes = list(coded.planes)

        moved = _to_front(m, [Cat(*marked) for marked in zip(planes, coded.run, strict=True)], coded.shift)
        moved += [C(0, lanes + 1)] * (count - len(moved))
        slots = [slot[:lanes] for slot in moved[:count]]
        # Sign planes that stay lie at the front already, and what gets there as well is dropped.
        slots[0] |= planes[0]

        def behind_whole(distance: int) -> Value:
            places = [C(0, lanes), *slots, C(0, lanes)]
            return switch.choose(lambda fmt: fmt.slots + distance, lambda slot: places[min(slot, count) + 1])

        guard, second = behind_whole(0), behind_whole(1)
        further = [Mux(switch.when(lambda fmt, i=i: i > fmt.slots + 1), slots[i], 0) for i in range(count)]
        further += [Mux(coded.shift <= p - count, planes[p], 0) for p in range(count, len(planes))]
        sticky = any_set([coded.beyond, *further])
        # Where the guard is set, so that a carry may come, this looks before the guard.
        has_zero = Signal(lanes)
        m.d.comb += has_zero.eq(
            any_set(Mux(run, ~plane, 0) for run, plane in zip(coded.run, planes, strict=True))
        )

        early = self._early_lanes(m, index)
        can_carry = has_zero & switch.when(lambda fmt: fmt.rounding == "nearest").replicate(lanes)
        early_up = early & second & (sticky | guard) & can_carry & coded.joined.replicate(lanes)
        up = ~early & guard & (sticky | second | behind_whole(-1)) & can_carry
        up |= early_up & guard

        # A carry gets to the slots with only ones between them and the guard.
        rounded = [Signal(lanes, name=f"rounded{slot}") for slot in range(engine.kept)]
        ones = all_ones(lanes)
        for slot in reversed(range(engine.kept)):
            is_whole = switch.when(lambda fmt, i=slot: i < fmt.slots).replicate(lanes)
            is_guard = switch.when(lambda fmt, i=slot: i == fmt.slots).replicate(lanes)
            flip = Mux(moved[slot][lanes], up & ones, 0)
            m.d.comb += rounded[slot].eq(
                (is_whole & (slots[slot] ^ flip)) | (is_guard & ((slots[slot] & early) ^ early_up))
            )
            ones_here = Signal(lanes, name=f"ones_from{slot}")
            m.d.comb += ones_here.eq(ones & (slots[slot] | ~is_whole))
            ones = ones_here
        return rounded

    def _early_lanes(self, m: Module, index: Value) -> Value:
        """The lanes of a word whose values still have a bit in the partial slot."""
        engine = self._engine

        def lanes_of(partial: int) -> Value:
            counts = [min(max(partial - i * engine.lanes, 0), engine.lanes) for i in range(engine.words)]
            masks = [Mux(index == i, (1 << count) - 1, 0) for i, count in enumerate(counts) if count]
            return any_set([C(0, engine.lanes), *masks])

        early = Signal(engine.lanes)
        m.d.comb += early.eq(self._switch.choose(lambda fmt: fmt.partial, lanes_of))
        return early


def _to_front(m: Module, planes: list[Value], shift: Value) -> list[Value]:
    """All planes moved to the front by the same number of places."""
    for stage in reversed(range(len(shift))):
        distance = 1 << stage
        moved = []
        for i, plane in enumerate(planes):
            out = Signal(len(plane), name=f"moved_by_{distance}_{i}")
            far = planes[i + distance] if i + distance < len(planes) else 0
            m.d.comb += out.eq(Mux(shift[stage], far, plane))
            moved.append(out)
        planes = moved
    return planes
