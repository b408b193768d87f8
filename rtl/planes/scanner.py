"""The compressor's first stage: what a block holds at all, found while its words are kept for later."""

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..arith.trees import any_set, is_less, largest_of, smallest_of
from ..stream import DelayLine, word_layout
from .engine import PlaneEngine
from .ranks import count_in_groups

__all__ = ["Scanner", "summary_layout"]


def summary_layout(engine: PlaneEngine) -> data.StructLayout:
    """What a block's plan depends on: its extreme exponents and which bits it uses at all."""
    ft = engine.float_type
    return data.StructLayout(
        {
            "lowest": ft.exponent_bits,  # smallest exponent field that is not 0; all ones if there is none
            "highest": ft.exponent_bits,
            "sign": 1,
            "nan": 1,
            "mantissa": ft.mantissa_bits,  # the first plane in bit 0
            "dropped": 3 * ft.mantissa_bits,  # see count_in_groups, of the planes that are not used
            "words": range(engine.words + 1),  # words of the block that came in
            "last": 1,
        }
    )


class Scanner(wiring.Component):
    """Quiets NaNs, keeps the words for later and reduces each block to a summary.

    Takes a word a cycle. The summary is offered two cycles after a block's last word was taken: the
    first reduces each word to a few candidates, the second reduces these and joins the block's words.
    """

    CANDIDATES = 4

    def __init__(self, engine: PlaneEngine):
        self._engine = engine
        super().__init__(
            {
                "i": In(stream.Signature(word_layout(engine.word_bytes))),
                "summaries": Out(stream.Signature(summary_layout(engine))),
                "words": Out(stream.Signature(8 * engine.word_bytes)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        engine = self._engine
        ft = engine.float_type

        fields, nans, lanes = [], [], []
        for i in range(engine.lanes):
            lane = self.i.p.data.word_select(i, ft.width)
            mantissa = lane[: ft.mantissa_bits]
            field = lane[ft.mantissa_bits : -1]
            nan = Signal(name=f"nan{i}")
            m.d.comb += nan.eq(field.all() & mantissa.any())
            nans.append(nan)
            fields.append(field)
            lanes.append(Cat(lane[: ft.mantissa_bits - 1], mantissa[-1] | nan, lane[ft.mantissa_bits :]))
        used = any_set(lanes)

        # As many words as come in while a block is summed up and planned, and those of the next block.
        m.submodules.queue = queue = DelayLine(8 * engine.word_bytes, engine.words + 2)
        wiring.connect(m, queue.o, wiring.flipped(self.words))

        # The word of the cycle before.
        has_word = Signal()
        is_first = Signal(init=1)
        is_final = Signal()
        count = min(self.CANDIDATES, engine.lanes // 2)
        low = [Signal(ft.exponent_bits, name=f"low{i}") for i in range(count)]
        high = [Signal(ft.exponent_bits, name=f"high{i}") for i in range(count)]
        word = Signal(summary_layout(engine))
        summary = Signal(summary_layout(engine))
        done = Signal()
        index = Signal(range(engine.words))

        can_sum = ~done | self.summaries.ready
        can_take = ~has_word | can_sum
        takes = self.i.valid & self.i.ready
        m.d.comb += [
            queue.i.valid.eq(self.i.valid & can_take),
            queue.i.payload.eq(Cat(lanes)),
            self.i.ready.eq(queue.i.ready & can_take),
        ]
        with m.If(can_take):
            m.d.sync += has_word.eq(takes)
        pairs = [_extremes(m, *fields[i : i + 2], name=f"pair{i}") for i in range(0, len(fields), 2)]
        lowest, highest = (list(column) for column in zip(*pairs, strict=True))
        with m.If(takes):
            ends = self.i.p.last | (index == engine.words - 1)
            m.d.sync += [
                index.eq(Mux(ends, 0, index + 1)),
                is_first.eq(index == 0),
                is_final.eq(ends),
                Cat(low).eq(Cat(_reduce(m, lowest, count, "lowest", smallest_of))),
                Cat(high).eq(Cat(_reduce(m, highest, count, "highest", largest_of))),
                word.sign.eq(used[-1]),
                word.nan.eq(Cat(nans).any()),
                word.mantissa.eq(used[: ft.mantissa_bits][::-1]),
                word.words.eq(index + 1),
                word.last.eq(self.i.p.last),
            ]

        # The block so far.
        m.d.comb += [self.summaries.valid.eq(done), self.summaries.payload.eq(summary)]
        with m.If(self.summaries.ready):
            m.d.sync += done.eq(0)
        with m.If(has_word & can_sum):
            lowest_here = _reduce(m, low, 2, "lowest", smallest_of)
            highest_here = _reduce(m, high, 2, "highest", largest_of)
            lowest_before = summary.lowest | is_first.replicate(ft.exponent_bits)
            highest_before = Mux(is_first, 0, summary.highest)
            mantissa = word.mantissa | Mux(is_first, 0, summary.mantissa)
            m.d.sync += [
                done.eq(is_final),
                summary.lowest.eq(smallest_of([*lowest_here, lowest_before])),
                summary.highest.eq(largest_of([*highest_here, highest_before])),
                summary.sign.eq(word.sign | (summary.sign & ~is_first)),
                summary.nan.eq(word.nan | (summary.nan & ~is_first)),
                summary.mantissa.eq(mantissa),
                summary.dropped.eq(count_in_groups(~mantissa)),
                summary.words.eq(word.words),
                summary.last.eq(word.last),
            ]
        return m


def _extremes(m: Module, a: Value, b: Value, name: str) -> tuple[Value, Value]:
    """The smaller of two exponent fields that is not 0, or all ones, and the larger, by one comparison."""
    low, high = Signal(len(a), name=f"{name}_low"), Signal(len(a), name=f"{name}_high")
    less = Signal(name=f"{name}_is_less")
    m.d.comb += [
        less.eq(is_less(a, b)),
        high.eq(Mux(less, b, a)),
        low.eq(Mux(Mux(less, a.any(), ~b.any()), a, b) | (~a.any() & ~b.any()).replicate(len(a))),
    ]
    return low, high


def _reduce(m: Module, fields: list[Value], count: int, name: str, best_of) -> list[Value]:
    """The best of some exponent fields, by a balanced tree that stops at ``count`` candidates."""
    while len(fields) > count:
        winners = []
        for i in range(0, len(fields), 2):
            winner = Signal(len(fields[0]), name=f"{name}_of_{len(fields)}_{i}")
            m.d.comb += winner.eq(best_of(fields[i : i + 2]))
            winners.append(winner)
        fields = winners
    return fields
