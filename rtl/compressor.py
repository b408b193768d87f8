"""The compressor: bus words of floats in, compressed blocks out, one word a cycle.

    i --> [Splitter] --> Scanner --> Chooser --> Ranker --> Placer --> Packer --> o
                            |           `------> Coder ------^
                            `--- delay line -------^

What a block keeps is known only when all of it has been seen. The scanner therefore reduces each block to
a summary while its words wait in a delay line. The chooser turns the summary into base and flags, the
ranker these into places; meanwhile the coder starts to send the words on, their exponents as deltas, and
the placer moves their bits through the plane network, rounding on the way. The stages work on successive
blocks at the same time.
"""

from amaranth import C, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from golden import PlaneFormat

from .engine import Engine
from .gearbox import Packer
from .planes import (
    Selects,
    all_after,
    all_ones,
    any_set,
    count_in_groups,
    lanes_to_planes,
    ranks_from_groups,
    select_planes,
)
from .stream import Splitter, word_layout

__all__ = ["Compressor"]


class Compressor(wiring.Component):
    """Compresses a stream of floats into blocks of exactly ``fmt.target`` bytes.

    Throughput: one bus word a cycle while neither end stalls; a block smaller than two bus words
    takes two cycles. Latency: the first word of a block's output is offered :meth:`latency` cycles
    after the last word of the block was taken, unless blocks before it are still being sent.
    Back-pressure on either end stalls it without loss. After reset it holds nothing.

    Args:
        fmt: a format with a fixed target.
        bus_bytes: bytes of a word on either side: 16, 32, 64 or 128.

    Members:
        i: words of values, the first in the lowest bits. ``last`` ends a tensor, in any word; what
            that word does not fill must be zero and counts as values, the rest of the block is padded here.
        o: the compressed blocks end to end. A tensor's last word carries ``last`` and is filled with
            zeros; the next tensor starts on a new word.

    Raises:
        ValueError: see :class:`rtl.engine.Engine`.
    """

    def __init__(self, fmt: PlaneFormat, bus_bytes: int = 64):
        self.engine = Engine(fmt, bus_bytes)
        word = word_layout(bus_bytes)
        super().__init__({"i": In(stream.Signature(word)), "o": Out(stream.Signature(word))})

    @staticmethod
    def latency(engine: Engine) -> int:
        """Cycles: two for the scanner, one each for chooser and ranker, one a word for the placer."""
        return 2 + 1 + 1 + engine.words

    def elaborate(self, platform):
        m = Module()
        engine = self.engine
        m.submodules.scanner = scanner = _Scanner(engine)
        m.submodules.chooser = chooser = _Chooser(engine)
        m.submodules.ranker = ranker = _Ranker(engine)
        m.submodules.coder = coder = _Coder(engine)
        m.submodules.placer = placer = _Placer(engine)
        m.submodules.packer = packer = Packer(engine.fmt.target, engine.bus_bytes)

        if engine.is_narrow:
            m.submodules.splitter = splitter = Splitter(engine.bus_bytes, engine.word_bytes)
            wiring.connect(m, wiring.flipped(self.i), splitter.i)
            wiring.connect(m, splitter.o, scanner.i)
        else:
            wiring.connect(m, wiring.flipped(self.i), scanner.i)
        wiring.connect(m, scanner.summaries, chooser.i)
        wiring.connect(m, chooser.to_ranker, ranker.i)
        wiring.connect(m, chooser.to_coder, coder.choices)
        wiring.connect(m, scanner.words, coder.i)
        wiring.connect(m, ranker.o, placer.plans)
        wiring.connect(m, coder.o, placer.words)
        wiring.connect(m, placer.o, packer.i)
        wiring.connect(m, packer.o, wiring.flipped(self.o))
        return m


def _summary_layout(engine: Engine) -> data.StructLayout:
    """What a block's plan depends on: its extreme exponents and which bits it uses at all."""
    ft = engine.fmt.float_type
    return data.StructLayout(
        {
            "lowest": ft.exponent_bits,  # smallest exponent field that is not 0; all ones if there is none
            "highest": ft.exponent_bits,
            "sign": 1,
            "nan": 1,
            "mantissa": ft.mantissa_bits,
            "words": range(engine.words + 1),  # words of the block that came in
            "last": 1,
        }
    )


class _Scanner(wiring.Component):
    """Quiets NaNs, keeps the words for later and reduces each block to a summary.

    Takes a word a cycle. The summary is offered two cycles after a block's last word was taken: the
    first reduces each word to a few candidates, the second reduces these and joins the block's words.
    """

    CANDIDATES = 4

    def __init__(self, engine: Engine):
        self._engine = engine
        super().__init__(
            {
                "i": In(stream.Signature(word_layout(engine.word_bytes))),
                "summaries": Out(stream.Signature(_summary_layout(engine))),
                "words": Out(stream.Signature(8 * engine.word_bytes)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        engine = self._engine
        ft = engine.fmt.float_type

        lowest, highest, nans, lanes = [], [], [], []
        for i in range(engine.lanes):
            lane = self.i.p.data.word_select(i, ft.width)
            mantissa = lane[: ft.mantissa_bits]
            field = lane[ft.mantissa_bits : -1]
            nan = Signal(name=f"nan{i}")
            m.d.comb += nan.eq(field.all() & mantissa.any())
            nans.append(nan)
            highest.append(field)
            lowest.append(field | (~field.any()).replicate(ft.exponent_bits))
            lanes.append(Cat(lane[: ft.mantissa_bits - 1], mantissa[-1] | nan, lane[ft.mantissa_bits :]))
        used = any_set(lanes)

        # As many words as come in while a block is summed up and planned, and those of the next block.
        m.submodules.queue = queue = _DelayLine(8 * engine.word_bytes, engine.words + 2)
        wiring.connect(m, queue.o, wiring.flipped(self.words))

        # The word of the cycle before.
        has_word = Signal()
        is_first = Signal(init=1)
        is_final = Signal()
        low = [Signal(ft.exponent_bits, name=f"low{i}") for i in range(min(self.CANDIDATES, engine.lanes))]
        high = [Signal(ft.exponent_bits, name=f"high{i}") for i in range(len(low))]
        word = Signal(_summary_layout(engine))
        summary = Signal(_summary_layout(engine))
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
        with m.If(takes):
            ends = self.i.p.last | (index == engine.words - 1)
            m.d.sync += [
                index.eq(Mux(ends, 0, index + 1)),
                is_first.eq(index == 0),
                is_final.eq(ends),
                Cat(low).eq(Cat(_reduce(m, lowest, len(low), "lowest", min_of))),
                Cat(high).eq(Cat(_reduce(m, highest, len(high), "highest", max_of))),
                word.sign.eq(used[-1]),
                word.nan.eq(Cat(nans).any()),
                word.mantissa.eq(used[: ft.mantissa_bits]),
                word.words.eq(index + 1),
                word.last.eq(self.i.p.last),
            ]

        # The block so far.
        m.d.comb += [self.summaries.valid.eq(done), self.summaries.payload.eq(summary)]
        with m.If(self.summaries.ready):
            m.d.sync += done.eq(0)
        with m.If(has_word & can_sum):
            (lowest_here,) = _reduce(m, low, 1, "lowest", min_of)
            (highest_here,) = _reduce(m, high, 1, "highest", max_of)
            m.d.sync += [
                done.eq(is_final),
                summary.lowest.eq(min_of(lowest_here, summary.lowest | is_first.replicate(ft.exponent_bits))),
                summary.highest.eq(max_of(highest_here, Mux(is_first, 0, summary.highest))),
                summary.sign.eq(word.sign | (summary.sign & ~is_first)),
                summary.nan.eq(word.nan | (summary.nan & ~is_first)),
                summary.mantissa.eq(word.mantissa | Mux(is_first, 0, summary.mantissa)),
                summary.words.eq(word.words),
                summary.last.eq(word.last),
            ]
        return m


def min_of(a: Value, b: Value) -> Value:
    return Mux(_is_less(a, b), a, b)


def max_of(a: Value, b: Value) -> Value:
    return Mux(_is_less(a, b), b, a)


def _is_less(a: Value, b: Value) -> Value:
    """``a < b``, as a tree: less in the upper half, or equal there and less in the lower."""

    def compare(low: int, high: int) -> tuple[Value, Value]:
        if high - low == 1:
            return ~a[low] & b[low], ~a[low] | b[low]
        middle = (low + high) // 2
        (less, not_more), (less_below, not_more_below) = compare(middle, high), compare(low, middle)
        return less | (not_more & less_below), not_more & (less | not_more_below)

    return compare(0, len(a))[0]


def _reduce(m: Module, fields: list[Value], count: int, name: str, better) -> list[Value]:
    """The best of some exponent fields, by a balanced tree that stops at ``count`` candidates."""
    while len(fields) > count:
        winners = []
        for i in range(0, len(fields), 2):
            winner = Signal(len(fields[0]), name=f"{name}_of_{len(fields)}_{i}")
            m.d.comb += winner.eq(better(fields[i], fields[i + 1]))
            winners.append(winner)
        fields = winners
    return fields


class _DelayLine(wiring.Component):
    """A queue of words as a row of registers, each word moving up as soon as there is room.

    An empty line offers a word ``depth`` cycles after it was taken. Without read multiplexers it is a
    quarter smaller than a memory of flip-flops; it holds and passes a word a cycle also when it is full.
    """

    def __init__(self, width: int, depth: int):
        self._width = width
        self._depth = depth
        super().__init__({"i": In(stream.Signature(width)), "o": Out(stream.Signature(width))})

    def elaborate(self, platform):
        m = Module()
        words = [Signal(self._width, name=f"word{i}", reset_less=True) for i in range(self._depth)]
        full = Signal(self._depth)
        for i, word in enumerate(words):
            # A word moves up if there is room anywhere above it.
            moves = Signal(name=f"moves{i}")
            m.d.comb += moves.eq(~full[i:].all() | self.o.ready)
            before, comes = (words[i - 1], full[i - 1]) if i else (self.i.payload, self.i.valid)
            with m.If(moves):
                m.d.sync += full[i].eq(comes)
                with m.If(comes):
                    m.d.sync += word.eq(before)
            if i == 0:
                m.d.comb += self.i.ready.eq(moves)
        m.d.comb += [self.o.valid.eq(full[-1]), self.o.payload.eq(words[-1])]
        return m


def _choice_layout(engine: Engine) -> data.StructLayout:
    """What is kept of a block's exponents, and how its words are to be coded."""
    ft = engine.fmt.float_type
    return data.StructLayout(
        {
            "base": ft.exponent_bits,
            "sign": 1,
            "exponent": ft.exponent_bits,  # flags of the exponent planes, the last plane's in bit 0
            "mantissa": ft.mantissa_bits,  # flags of the mantissa planes, the first plane's in bit 0
            "counts": 3 * ft.mantissa_bits,  # see count_in_groups
            "flush": 1,  # values whose exponent field is below the base become zero
            "special": 1,
            "words": range(engine.words + 1),
            "last": 1,
        }
    )


def _plan_layout(engine: Engine) -> data.StructLayout:
    """Where the planes of a block go."""
    fmt = engine.fmt
    return data.StructLayout(
        {
            "base": fmt.float_type.exponent_bits,
            "flags": fmt.planes,  # before the planes that do not fit are dropped; bit j for plane j
            "ranks": data.ArrayLayout(range(fmt.planes), fmt.planes),
            "last": 1,
        }
    )


class _Chooser(wiring.Component):
    """Turns a block's summary into its base and flags, in a cycle; takes one a cycle.

    Coder and ranker each take their copy of a choice when they are ready for it.
    """

    def __init__(self, engine: Engine):
        self._engine = engine
        choices = Out(stream.Signature(_choice_layout(engine)))
        summaries = In(stream.Signature(_summary_layout(engine)))
        super().__init__({"i": summaries, "to_coder": choices, "to_ranker": choices})

    def elaborate(self, platform):
        m = Module()
        choice = Signal(_choice_layout(self._engine))
        outputs = (self.to_coder, self.to_ranker)
        m.d.comb += self.i.ready.eq(Cat(~o.valid | o.ready for o in outputs).all())
        for o in outputs:
            m.d.comb += o.payload.eq(choice)
            with m.If(o.ready):
                m.d.sync += o.valid.eq(0)
            with m.If(self.i.valid & self.i.ready):
                m.d.sync += o.valid.eq(1)
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += choice.eq(self._choose(m, self.i.payload))
        return m

    def _choose(self, m: Module, summary) -> Value:
        fmt = self._engine.fmt
        ft = fmt.float_type
        is_zero = summary.highest == 0
        largest_delta = Signal(ft.exponent_bits)
        m.d.comb += largest_delta.eq(Mux(is_zero, 0, summary.highest - summary.lowest + 1))
        used = Cat(largest_delta[k:].any() for k in range(ft.exponent_bits))  # ones up to the width

        base = Mux(is_zero, 1, summary.lowest)
        exponent, mantissa = used, summary.mantissa[::-1]
        flush = special = C(0)
        for taken in range(3):
            # `taken` planes besides the exponents: signs, and the quiet bits of NaNs.
            room = fmt.slots - taken
            if room < ft.exponent_bits:
                flush_here = Signal(name=f"flush_to_{room}_planes")
                m.d.comb += flush_here.eq((summary.sign + summary.nan == taken) & used[room])
                flush |= flush_here
                exponent = Mux(flush_here, (1 << room) - 1, exponent)
                if room > 0:
                    base = Mux(flush_here, summary.highest - ((1 << room) - 2), base)
                else:
                    special = flush_here
                    base = Mux(special, 0, base)
                    exponent |= special
                    mantissa = Mux(special, 0, mantissa)
        fields = {
            "base": base[: ft.exponent_bits],
            "sign": summary.sign,
            "exponent": exponent[: ft.exponent_bits],
            "mantissa": mantissa,
            "counts": count_in_groups(summary.mantissa[::-1]),
            "flush": flush,
            "special": special,
            "words": summary.words,
            "last": summary.last,
        }
        return Cat(fields[name] for name, _ in _choice_layout(self._engine))


class _Ranker(wiring.Component):
    """Finds the places of a block's planes, in a cycle; takes one a cycle."""

    def __init__(self, engine: Engine):
        self._engine = engine
        super().__init__(
            {
                "i": In(stream.Signature(_choice_layout(engine))),
                "o": Out(stream.Signature(_plan_layout(engine))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        ft = self._engine.fmt.float_type
        choice = self.i.payload
        flags = Cat(choice.sign, choice.exponent[::-1], choice.mantissa)
        # The exponent flags are ones below the width: their ranks follow from it.
        is_top = choice.exponent & ~(choice.exponent >> 1)
        width = any_set(Mux(is_top[k], k + 1, 0) for k in range(ft.exponent_bits))
        before_mantissa = Signal(range(ft.exponent_bits + 2))
        m.d.comb += before_mantissa.eq(choice.sign + width)
        exponent_ranks = [before_mantissa - 1 - k for k in reversed(range(ft.exponent_bits))]
        mantissa_ranks = ranks_from_groups(m, choice.mantissa, choice.counts, before_mantissa)

        m.d.comb += self.i.ready.eq(~self.o.valid | self.o.ready)
        with m.If(self.i.ready):
            m.d.sync += self.o.valid.eq(self.i.valid)
            with m.If(self.i.valid):
                m.d.sync += [self.o.p.base.eq(choice.base), self.o.p.flags.eq(flags)]
                m.d.sync += self.o.p.last.eq(choice.last)
                ranks = [C(0), *exponent_ranks, *mantissa_ranks]
                m.d.sync += [r.eq(rank) for r, rank in zip(self.o.p.ranks, ranks, strict=True)]
        return m


class _Coder(wiring.Component):
    """Replaces each value's exponent by its delta, and what a block flushes by zeros.

    A word a cycle, offered in the cycle after it was taken; the words that a tensor's last block lacks are
    zeros. A choice is taken together with its block's last word.
    """

    def __init__(self, engine: Engine):
        self._engine = engine
        words = stream.Signature(8 * engine.word_bytes)
        choices = stream.Signature(_choice_layout(engine))
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


class _Placer(wiring.Component):
    """Drops and rounds what does not fit of a block's coded values, and gathers the planes.

    One word a cycle; the block is offered in the cycle after its last word.
    """

    def __init__(self, engine: Engine):
        self._engine = engine
        super().__init__(
            {
                "plans": In(stream.Signature(_plan_layout(engine))),
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
    with m.Switch(index):
        for i in range(engine.words):
            with m.Case(i):
                count = min(max(engine.fmt.partial - i * engine.lanes, 0), engine.lanes)
                m.d.comb += early.eq((1 << count) - 1)
    return early
