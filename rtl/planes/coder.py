"""The compressor's datapath, first half: values to deltas, and mantissa planes that stay to the front."""

from itertools import pairwise

from amaranth import C, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..arith.trees import any_set
from ..stream import Switch
from .chooser import choice_layout
from .engine import PlaneEngine, rows_of
from .ranks import compact, lanes_to_planes

__all__ = ["Coder", "coded_layout"]


def coded_layout(engine: PlaneEngine) -> data.StructLayout:
    """A word of coded values, and what is stored of its block.

    Members:
        planes: a bit for each lane: the sign plane, the exponent planes, and of the mantissa planes with a
            flag the first, as many as the slots that matter.
        beyond: whether a value has a one in the mantissa planes behind these.
        shift: how many sign and exponent planes are dropped: all others move to the front by so much.
        run: the planes of ``planes`` that a carry from behind the whole slots gets to, or that it comes from.
        joined: whether the planes of the two guards are neighbours.
        base, flags: of the block's header, ``flags`` with bit j for plane j.
        last: the block ends its tensor.
    """
    ft = engine.float_type
    count = 1 + ft.exponent_bits + min(engine.touched, ft.mantissa_bits)
    return data.StructLayout(
        {
            "planes": data.ArrayLayout(engine.lanes, count),
            "beyond": engine.lanes,
            "shift": range(ft.exponent_bits + 2),
            "run": count,
            "joined": 1,
            "base": ft.exponent_bits,
            "flags": engine.planes,
            "last": 1,
        }
    )


class Coder(wiring.Component):
    """Replaces each value's exponent by its delta and what a block flushes by zeros, and ranks the planes.

    A word a cycle, offered in the cycle after it was taken; the words that a tensor's last block lacks are
    zeros. A choice is taken together with its block's last word.
    """

    def __init__(self, engine: PlaneEngine, switch: Switch):
        self._engine = engine
        self._switch = switch
        super().__init__(
            {
                "i": In(stream.Signature(8 * engine.word_bytes)),
                "choices": In(stream.Signature(choice_layout(engine))),
                "o": Out(stream.Signature(coded_layout(engine))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        engine = self._engine
        choice = self.choices.payload
        index = Signal(range(engine.words))
        is_padding = index >= choice.words
        is_final = index == engine.words - 1
        has_room = ~self.o.valid | self.o.ready
        takes = Signal()
        m.d.comb += [
            takes.eq(self.choices.valid & has_room & (self.i.valid | is_padding)),
            self.i.ready.eq(self.choices.valid & has_room & ~is_padding),
            self.choices.ready.eq(takes & is_final),
        ]
        with m.If(has_room):
            m.d.sync += self.o.valid.eq(takes)
        coded = Signal(coded_layout(engine))
        self._code(m, coded, choice, is_padding)
        with m.If(takes):
            m.d.sync += [self.o.payload.eq(coded), index.eq(Mux(is_final, 0, index + 1))]
        return m

    def _code(self, m: Module, coded, choice, is_padding: Value) -> None:
        engine = self._engine
        ft = engine.float_type
        stored = len(coded.planes) - 1 - ft.exponent_bits  # mantissa planes that may be

        signs, deltas, mantissas, keeps = [], [], [], []
        for i in range(engine.lanes):
            lane = self.i.payload.word_select(i, ft.width)
            sign, delta, keep = self._code_value(lane, choice)
            signs.append(sign)
            deltas.append(delta)
            mantissas.append(lane[: ft.mantissa_bits])
            keeps.append(keep & ~is_padding)
        keep = Signal(engine.lanes)
        m.d.comb += keep.eq(Cat(keeps))
        mantissa_planes = lanes_to_planes(mantissas)

        # A mantissa plane moves together with a mark: its neighbour has a flag as well.
        joins = choice.mantissa & (choice.mantissa >> 1)
        marked = [Cat(plane, join) for plane, join in zip(mantissa_planes, joins, strict=True)]
        gaps = zip(choice.mantissa, choice.dropped, strict=True)
        moved = compact(m, marked, [Mux(flag, dropped, 0) for flag, dropped in gaps])[:stored]
        beyond = [
            Mux(choice.dropped[i] <= i - stored, mantissa_planes[i], 0)
            for i in range(stored, ft.mantissa_bits)
        ]
        upper_planes = [Cat(signs), *lanes_to_planes(deltas)]
        m.d.comb += [
            Cat(coded.planes).eq(
                Cat(Mux(is_padding, 0, Cat(upper_planes)), (keep & plane[: engine.lanes] for plane in moved))
            ),
            coded.beyond.eq(keep & any_set([C(0, engine.lanes), *beyond])),
        ]

        # The exponent flags are ones below the width, so these say whether at least so many exponent planes
        # are dropped; the sign plane may come on top.
        exponents = [C(1), *(~flag for flag in reversed(choice.exponent)), C(0)]
        at_least = [here | (below & ~choice.sign) for below, here in pairwise([C(0), *exponents])]
        exactly = [here & ~above for here, above in pairwise([*at_least, C(0)])]
        shift = Signal.like(coded.shift)
        m.d.comb += shift.eq(any_set(Mux(is_n, n, 0) for n, is_n in enumerate(exactly)))

        def place_of_guard(slots: int) -> Value:
            """Where the plane that gets behind the whole slots lies among the stored mantissa planes."""
            places = [slots - 1 - ft.exponent_bits + n for n in range(len(exactly))]
            return Cat(
                Cat(here for here, place in zip(exactly, places, strict=True) if place == k).any()
                for k in range(stored)
            )

        guard = Signal(stored)
        run = Signal(stored)
        joined = [plane[-1] for plane in moved]
        m.d.comb += guard.eq(self._switch.choose(lambda fmt: fmt.slots, place_of_guard))
        for k in range(stored):
            # From the guard at g, a carry gets to k if all planes from k to g are neighbours.
            ways = [guard[g] & Cat(joined[k:g]).all() for g in range(k, stored)]
            m.d.comb += run[k].eq(Cat(ways).any())

        def is_stored(rows: int) -> Value:
            return Cat(
                shift + dropped > 1 + ft.exponent_bits + i - rows for i, dropped in enumerate(choice.dropped)
            )

        m.d.comb += [
            coded.shift.eq(shift),
            coded.run.eq(Cat(C(0, 1 + ft.exponent_bits), run)),
            coded.joined.eq((guard & Cat(joined)).any()),
            coded.base.eq(choice.base),
            coded.flags.eq(
                Cat(
                    choice.sign,
                    choice.exponent[::-1],
                    choice.mantissa & self._switch.choose(rows_of, is_stored),
                )
            ),
            coded.last.eq(choice.last),
        ]

    def _code_value(self, lane: Value, choice) -> tuple[Value, Value, Value]:
        """Sign and delta of a value, and whether its mantissa is kept."""
        ft = self._engine.float_type
        mantissa = lane[: ft.mantissa_bits]
        field = lane[ft.mantissa_bits : -1]
        sign = lane[-1]
        below = field < choice.base
        delta = Mux(below, 0, (field - choice.base + 1)[: ft.exponent_bits])
        keep = ~(below & choice.flush)
        if not any(fmt.has_specials_blocks for fmt in self._engine.formats):
            return sign, delta, keep
        is_nan = field.all() & mantissa.any()
        is_infinity = field.all() & ~mantissa.any()
        special = choice.special
        return (
            Mux(special, is_nan | (is_infinity & sign), sign),
            Mux(special, is_infinity, delta),
            keep & ~special,
        )
