"""The compressor: bus words of floats in, compressed blocks out, one word a cycle.

    i --> [Splitter] --> Scanner --summaries--> Planner --plans--> Placer --blocks--> Packer --> o
                            `------------- words (queue) ------------^

What a block keeps is known only when all of it has been seen. The scanner therefore reduces each block
to a summary while its words wait in a queue; the planner turns the summary into base, flags and places;
the placer then sends the words through the plane network, one a cycle, rounding the values on the
way. The stages work on successive blocks at the same time.
"""

from amaranth import C, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from golden import PlaneFormat

from .engine import Engine
from .gearbox import Packer
from .planes import PlaneRanks, Selects, any_set, lanes_to_planes, reverse_bits, select_planes
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
        """Cycles: one each for scanner and packer, two for the planner, one a word for the placer."""
        return 1 + 2 + engine.words + 1

    def elaborate(self, platform):
        m = Module()
        engine = self.engine
        m.submodules.scanner = scanner = _Scanner(engine)
        m.submodules.planner = planner = _Planner(engine)
        m.submodules.placer = placer = _Placer(engine)
        m.submodules.packer = packer = Packer(engine.fmt.target, engine.bus_bytes)

        if engine.is_narrow:
            m.submodules.splitter = splitter = Splitter(engine.bus_bytes, engine.word_bytes)
            wiring.connect(m, wiring.flipped(self.i), splitter.i)
            wiring.connect(m, splitter.o, scanner.i)
        else:
            wiring.connect(m, wiring.flipped(self.i), scanner.i)
        wiring.connect(m, scanner.summaries, planner.i)
        wiring.connect(m, planner.o, placer.plans)
        wiring.connect(m, scanner.words, placer.words)
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

    Takes a word a cycle. The summary is offered in the cycle after a block's last word was taken.
    """

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
            lowest.append(Mux(field.any(), field, ft.exponent_max))
            lanes.append(Cat(lane[: ft.mantissa_bits - 1], mantissa[-1] | nan, lane[ft.mantissa_bits :]))

        word = Signal(_summary_layout(engine))
        used = any_set(lanes)
        m.d.comb += [
            word.lowest.eq(_extreme(m, lowest, "lowest", lambda a, b: a < b)),
            word.highest.eq(_extreme(m, highest, "highest", lambda a, b: a > b)),
            word.sign.eq(used[-1]),
            word.nan.eq(Cat(nans).any()),
            word.mantissa.eq(used[: ft.mantissa_bits]),
        ]

        # The words that came in while a block is summed up, planned and placed, and the one that leaves.
        m.submodules.queue = queue = _WordQueue(8 * engine.word_bytes, engine.words + 2)
        wiring.connect(m, queue.o, wiring.flipped(self.words))

        summary = Signal(_summary_layout(engine))
        done = Signal()
        index = Signal(range(engine.words))
        can_sum = ~done | self.summaries.ready
        m.d.comb += [
            self.summaries.valid.eq(done),
            self.summaries.payload.eq(summary),
            queue.i.valid.eq(self.i.valid & can_sum),
            queue.i.payload.eq(Cat(lanes)),
            self.i.ready.eq(queue.i.ready & can_sum),
        ]
        with m.If(self.summaries.ready):
            m.d.sync += done.eq(0)
        with m.If(self.i.valid & self.i.ready):
            is_final = self.i.p.last | (index == engine.words - 1)
            m.d.sync += [
                done.eq(is_final),
                index.eq(Mux(is_final, 0, index + 1)),
                summary.words.eq(index + 1),
                summary.last.eq(self.i.p.last),
            ]
            with m.If(index == 0):
                m.d.sync += [
                    summary.lowest.eq(word.lowest),
                    summary.highest.eq(word.highest),
                    summary.sign.eq(word.sign),
                    summary.nan.eq(word.nan),
                    summary.mantissa.eq(word.mantissa),
                ]
            with m.Else():
                m.d.sync += [
                    summary.sign.eq(word.sign | summary.sign),
                    summary.nan.eq(word.nan | summary.nan),
                    summary.mantissa.eq(word.mantissa | summary.mantissa),
                ]
                with m.If(word.lowest < summary.lowest):
                    m.d.sync += summary.lowest.eq(word.lowest)
                with m.If(word.highest > summary.highest):
                    m.d.sync += summary.highest.eq(word.highest)
        return m


def _extreme(m: Module, fields: list[Value], name: str, is_better) -> Value:
    """The extreme of some exponent fields, as a balanced tree of comparisons."""
    while len(fields) > 1:
        winners = []
        for i in range(0, len(fields), 2):
            winner = Signal(len(fields[0]), name=f"{name}_of_{len(fields)}_{i}")
            a, b = fields[i], fields[i + 1]
            m.d.comb += winner.eq(Mux(is_better(a, b), a, b))
            winners.append(winner)
        fields = winners
    return fields[0]


class _WordQueue(wiring.Component):
    """A queue of words; a full one still takes a word in a cycle in which one leaves."""

    def __init__(self, width: int, depth: int):
        self._width = width
        self._depth = depth
        super().__init__({"i": In(stream.Signature(width)), "o": Out(stream.Signature(width))})

    def elaborate(self, platform):
        m = Module()
        m.submodules.memory = memory = Memory(shape=self._width, depth=self._depth, init=[])
        write = memory.write_port()
        read = memory.read_port(domain="comb")
        level = Signal(range(self._depth + 1))
        put = self.i.valid & self.i.ready
        take = self.o.valid & self.o.ready
        m.d.comb += [
            self.o.valid.eq(level != 0),
            self.o.payload.eq(read.data),
            self.i.ready.eq((level != self._depth) | self.o.ready),
            write.data.eq(self.i.payload),
            write.en.eq(put),
        ]
        m.d.sync += level.eq(level + put - take)
        for port, moves in ((write, put), (read, take)):
            place = Signal(range(self._depth), name=f"{'write' if port is write else 'read'}_place")
            m.d.comb += port.addr.eq(place)
            with m.If(moves):
                m.d.sync += place.eq(Mux(place == self._depth - 1, 0, place + 1))
        return m


def _choice_layout(engine: Engine) -> data.StructLayout:
    """What is kept of a block."""
    fmt = engine.fmt
    return data.StructLayout(
        {
            "base": fmt.float_type.exponent_bits,
            "flags": fmt.planes,  # before the planes that do not fit are dropped; bit j for plane j
            "flush": 1,  # values whose exponent field is below the base become zero
            "special": 1,
            "words": range(engine.words + 1),
            "last": 1,
        }
    )


def _plan_layout(engine: Engine) -> data.StructLayout:
    """What is kept of a block, and where it goes."""
    ranks = data.ArrayLayout(range(engine.fmt.planes), engine.fmt.planes)
    return data.StructLayout({"choice": _choice_layout(engine), "ranks": ranks})


class _Planner(wiring.Component):
    """Turns a block's summary into its base, flags and ranks. Two cycles; takes one a cycle."""

    def __init__(self, engine: Engine):
        self._engine = engine
        super().__init__(
            {
                "i": In(stream.Signature(_summary_layout(engine))),
                "o": Out(stream.Signature(_plan_layout(engine))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        fmt = self._engine.fmt
        choice = Signal(_choice_layout(self._engine))
        has_choice = Signal()

        # First cycle: the exponents.
        m.d.comb += self.i.ready.eq(~has_choice | ~self.o.valid | self.o.ready)
        with m.If(self.i.ready):
            m.d.sync += has_choice.eq(self.i.valid)
            with m.If(self.i.valid):
                m.d.sync += choice.eq(self._choose(m, self.i.payload))

        # Second cycle: the places.
        m.submodules.counter = counter = PlaneRanks(fmt.planes)
        m.d.comb += counter.flags.eq(choice.flags)
        with m.If(~self.o.valid | self.o.ready):
            m.d.sync += self.o.valid.eq(has_choice)
            with m.If(has_choice):
                m.d.sync += self.o.p.choice.eq(choice)
                for rank, count in zip(self.o.p.ranks, counter.ranks, strict=True):
                    m.d.sync += rank.eq(count)
        return m

    def _choose(self, m: Module, summary) -> Value:
        fmt = self._engine.fmt
        ft = fmt.float_type
        is_zero = summary.highest == 0
        largest_delta = Signal(ft.exponent_bits)
        m.d.comb += largest_delta.eq(Mux(is_zero, 0, summary.highest - summary.lowest + 1))
        used = Cat(largest_delta[k:].any() for k in range(ft.exponent_bits))  # ones up to the width

        base = Mux(is_zero, 1, summary.lowest)
        exponent_flags = used
        flush = special = C(0)
        for taken in range(3):
            # `taken` planes besides the exponents: signs, and the quiet bits of NaNs.
            room = fmt.slots - taken
            if room < ft.exponent_bits:
                flush_here = Signal(name=f"flush_to_{room}_planes")
                m.d.comb += flush_here.eq((summary.sign + summary.nan == taken) & used[room])
                flush |= flush_here
                exponent_flags = Mux(flush_here, (1 << room) - 1, exponent_flags)
                if room == 0:
                    special = flush_here
                    base = Mux(flush_here, 0, base)
                else:
                    base = Mux(flush_here, summary.highest - ((1 << room) - 2), base)
        flags = Cat(summary.sign, exponent_flags[: ft.exponent_bits][::-1], summary.mantissa[::-1])
        if fmt.has_specials_blocks:
            flags = Mux(special, reverse_bits(fmt.specials_flags, fmt.planes), flags)
        return Cat(base[: ft.exponent_bits], flags, flush, special, summary.words, summary.last)


class _Placer(wiring.Component):
    """Codes the values of a block, drops and rounds what does not fit, and gathers the planes.

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
        plan = self.plans.p.choice
        ranks = self.plans.p.ranks

        index = Signal(range(engine.words))
        is_padding = index >= plan.words
        is_final = index == engine.words - 1
        has_room = ~self.o.valid | self.o.ready
        step = self.plans.valid & has_room & (self.words.valid | is_padding)
        m.d.comb += [
            self.words.ready.eq(self.plans.valid & has_room & ~is_padding),
            self.plans.ready.eq(step & is_final),
        ]

        word = Mux(is_padding, 0, self.words.payload)
        planes = lanes_to_planes(self._code(m, word, plan))
        slots = self._round(m, index, planes, plan.flags, list(ranks))

        # Each step fills one column: the bits of one word's values, of every slot.
        columns = [Signal(len(slots) * engine.lanes, name=f"column{i}") for i in range(engine.words)]
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
                    fits = ranks[plane] < len(slots)
                    m.d.sync += flags[plane].eq(plan.flags[plane] & fits)

        rows = [
            Cat(column.word_select(slot, engine.lanes) for column in columns) for slot in range(len(slots))
        ]
        m.d.comb += [
            self.o.p.data.eq(Cat(base, flags, rows)),  # the last row is cut at the end of the block
            self.o.p.last.eq(last),
        ]
        return m

    def _code(self, m: Module, word: Value, plan) -> list[Value]:
        """Each value as sign, delta and mantissa, where the sign, exponent and mantissa were."""
        fmt = self._engine.fmt
        ft = fmt.float_type
        coded = []
        for i in range(self._engine.lanes):
            lane = word.word_select(i, ft.width)
            mantissa = lane[: ft.mantissa_bits]
            field = lane[ft.mantissa_bits : -1]
            sign = lane[-1]
            below = Signal(name=f"below{i}")
            code = Signal(ft.width, name=f"code{i}")
            m.d.comb += below.eq(field < plan.base)
            delta = Mux(below, 0, field - plan.base + 1)[: ft.exponent_bits]
            normal = Cat(Mux(below & plan.flush, 0, mantissa), delta, sign)
            m.d.comb += code.eq(normal)
            if fmt.has_specials_blocks:
                is_infinity = field.all() & ~mantissa.any()
                is_nan = field.all() & mantissa.any()
                with m.If(plan.special):
                    marks = Cat(is_infinity, C(0, ft.exponent_bits - 1), is_nan | (is_infinity & sign))
                    m.d.comb += code.eq(Cat(C(0, ft.mantissa_bits), marks))
            coded.append(code)
        return coded

    def _round(
        self, m: Module, index: Value, planes: list[Value], flags: Value, ranks: list[Value]
    ) -> list[Value]:
        """The slots' bits of one word, rounded; each a bit per lane.

        The whole slots and the partial one behind them are always the same, so a value's last kept bit
        and the one below it, its guard, lie in fixed slots. Rounding up turns the ones at the end of the
        kept bits into zeros and the zero above them into a one, which must lie in the run of
        neighbouring mantissa planes that ends at the guard: no carry crosses a zero plane.
        """
        engine = self._engine
        fmt = engine.fmt
        lanes = engine.lanes
        kept = fmt.slots + (fmt.partial > 0)
        first_mantissa = 1 + fmt.float_type.exponent_bits

        selects = Selects(fmt, flags, ranks)
        slots = []
        neighbours = []  # whether a slot's plane and the next slot's are adjacent mantissa planes
        for slot in range(min(kept + 1, fmt.planes)):
            chosen = {}
            for plane in selects.planes_of(slot):
                chosen[plane] = Signal(name=f"slot{slot}_is_plane{plane}")
                m.d.comb += chosen[plane].eq(selects[slot, plane])
            bits = Signal(lanes, name=f"slot{slot}")
            m.d.comb += bits.eq(select_planes(list(chosen.values()), [planes[p] for p in chosen]))
            slots.append(bits)
            pairs = [chosen[p] & flags[p + 1] for p in chosen if first_mantissa <= p < fmt.planes - 1]
            neighbour = Signal(name=f"neighbours{slot}")
            m.d.comb += neighbour.eq(Cat(pairs).any())
            neighbours.append(neighbour)
        if fmt.rounding == "truncate":
            is_early = _early_lanes(m, index, engine)
            return self._cut(slots, is_early)

        def round_up(guard_slot: int, name: str) -> tuple[Value, list[Value]]:
            """What rounding flips in each slot, for values whose guard lies in a slot."""
            if guard_slot >= len(slots):
                return [C(0, lanes)] * kept
            below = [p for p in range(first_mantissa, fmt.planes) if p > guard_slot]
            rest = any_set(
                [C(0, lanes), *(Mux(flags[p] & (ranks[p] > guard_slot), planes[p], 0) for p in below)]
            )
            sticky = Signal(lanes, name=f"{name}_sticky")
            rising = Signal(lanes, name=f"{name}_rising")
            m.d.comb += sticky.eq(rest)
            m.d.comb += rising.eq(slots[guard_slot] & (sticky | slots[guard_slot - 1]))
            # From the last kept slot up: a slot flips if all below it in the run are ones.
            flips, run, ones = [], C(1), rising
            for slot in reversed(range(guard_slot)):
                run_here = Signal(name=f"{name}_run{slot}")
                m.d.comb += run_here.eq(run & neighbours[slot])
                run = run_here
                flips.append(Mux(run, ones, 0))
                ones = ones & slots[slot]
            flips.reverse()
            # Only if there is a zero in the run for the carry to end in.
            zero = any_set(flip & ~slot for flip, slot in zip(flips, slots, strict=False))
            return [flip & zero for flip in flips] + [C(0, lanes)] * (kept - guard_slot)

        late = round_up(fmt.slots, "late")
        is_early = _early_lanes(m, index, engine)
        if fmt.partial:
            early = round_up(fmt.slots + 1, "early")
            pairs = zip(early, late, strict=True)
            flips = [(before & is_early) | (behind & ~is_early) for before, behind in pairs]
        else:
            flips = late
        cut = self._cut(slots, is_early)
        rounded = []
        for slot, (bits, flip) in enumerate(zip(cut, flips, strict=True)):
            out = Signal(lanes, name=f"rounded{slot}")
            m.d.comb += out.eq(bits ^ flip)
            rounded.append(out)
        return rounded

    def _cut(self, slots: list[Value], is_early: Value) -> list[Value]:
        fmt = self._engine.fmt
        if fmt.partial:
            return [*slots[: fmt.slots], slots[fmt.slots] & is_early]
        return slots[: fmt.slots]


def _early_lanes(m: Module, index: Value, engine: Engine) -> Value:
    """The lanes of a word whose values still have a bit in the partial slot."""
    early = Signal(engine.lanes)
    with m.Switch(index):
        for i in range(engine.words):
            with m.Case(i):
                count = min(max(engine.fmt.partial - i * engine.lanes, 0), engine.lanes)
                m.d.comb += early.eq((1 << count) - 1)
    return early
