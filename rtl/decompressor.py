"""The decompressor: compressed blocks in, bus words of floats out, one word a cycle.

    i --> Unpacker --blocks--> Expander --words--> [Joiner] --> o

A block's header says where each of its planes lies, by a prefix count of its flags; there is nothing to
parse. Once the block is whole, the expander reads its header and then sends one word a cycle through
the plane network.
"""

from amaranth import C, Cat, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from golden import PlaneFormat

from .engine import Engine
from .gearbox import Unpacker
from .planes import Selects, count_in_groups, planes_to_lanes, ranks_from_groups, reverse_bits, select_planes
from .stream import Joiner, word_layout

__all__ = ["Decompressor"]


class Decompressor(wiring.Component):
    """Decompresses a stream of blocks of ``fmt.target`` bytes, packed end to end.

    Throughput: one bus word of values a cycle while neither end stalls; a block smaller than two
    bus words takes two cycles. Latency: a block's first word is offered :meth:`latency` cycles after the
    last word of its compressed bytes was taken, unless blocks before it are still being sent.
    Back-pressure on either end stalls it without loss. After reset it holds nothing.

    A block whose header no encoder produces becomes zeros with ``error`` set; so does one that is cut
    short by ``last``. The blocks after it are decoded as usual, and every input word with ``last`` leads
    to exactly one output word with ``last``.

    Args:
        fmt: a format with a fixed target.
        bus_bytes: bytes of a word on either side: 16, 32, 64 or 128.

    Members:
        i: the compressed blocks, as :class:`rtl.Compressor` sends them.
        o: words of values, whole blocks. A tensor's last word carries ``last``; ``error`` is set in the
            words of a block that could not be decoded.

    Raises:
        ValueError: see :class:`rtl.engine.Engine`.
    """

    def __init__(self, fmt: PlaneFormat, bus_bytes: int = 64):
        self.engine = Engine(fmt, bus_bytes)
        super().__init__(
            {
                "i": In(stream.Signature(word_layout(bus_bytes))),
                "o": Out(stream.Signature(word_layout(bus_bytes, error=True))),
            }
        )

    @staticmethod
    def latency(engine: Engine) -> int:
        """Cycles: one for the unpacker, three for the expander, and those that join a bus word."""
        return 4 + (engine.bus_bytes // engine.word_bytes if engine.is_narrow else 0)

    def elaborate(self, platform):
        m = Module()
        engine = self.engine
        fmt = engine.fmt
        m.submodules.unpacker = unpacker = Unpacker(fmt.target, fmt.header_bytes, engine.bus_bytes)
        m.submodules.expander = expander = _Expander(engine)
        wiring.connect(m, wiring.flipped(self.i), unpacker.i)
        wiring.connect(m, unpacker.o, expander.i)
        if engine.is_narrow:
            m.submodules.joiner = joiner = Joiner(engine.word_bytes, engine.bus_bytes)
            wiring.connect(m, expander.o, joiner.i)
            wiring.connect(m, joiner.o, wiring.flipped(self.o))
        else:
            wiring.connect(m, expander.o, wiring.flipped(self.o))
        return m


class _Expander(wiring.Component):
    """Turns a block into words, one a cycle.

    In the first cycle a block's first column is picked while its planes' ranks are found, in the second
    the column's bits go to their planes. The first word is offered three cycles after the block was taken;
    the next block is taken together with the last column.
    """

    def __init__(self, engine: Engine):
        self._engine = engine
        super().__init__(
            {
                "i": In(stream.Signature(word_layout(engine.fmt.target, error=True))),
                "o": Out(stream.Signature(word_layout(engine.word_bytes, error=True))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        engine = self._engine
        fmt = engine.fmt
        kept = fmt.slots + (fmt.partial > 0)

        # A block, as it came, and the counts in groups of its flags.
        busy = Signal()
        index = Signal(range(engine.words))
        block = Signal(word_layout(fmt.target, error=True), reset_less=True)
        counts = Signal(3 * fmt.planes, reset_less=True)
        # A column of a block: the bits that belong to one word, of every slot.
        has_column = Signal()
        column = Signal(kept * engine.lanes, reset_less=True)
        ends_block = Signal()
        # The header of the column's block.
        base = Signal(8, reset_less=True)
        flags = Signal(fmt.planes, reset_less=True)
        ranks = [Signal(range(fmt.planes), name=f"rank{j}", reset_less=True) for j in range(fmt.planes)]
        last = Signal()
        error = Signal()

        word_room = ~self.o.valid | self.o.ready
        column_room = ~has_column | word_room
        is_final = index == engine.words - 1
        step = busy & column_room
        m.d.comb += self.i.ready.eq(~busy | (column_room & is_final))
        with m.If(self.i.ready):
            m.d.sync += busy.eq(self.i.valid)
            with m.If(self.i.valid):
                flags_in = self.i.p.data[8 : 8 * fmt.header_bytes]
                m.d.sync += [block.eq(self.i.payload), counts.eq(count_in_groups(flags_in))]

        with m.If(column_room):
            m.d.sync += has_column.eq(busy)
        with m.If(step):
            rows = [
                block.data[8 * fmt.header_bytes :][slot * fmt.block : (slot + 1) * fmt.block]
                for slot in range(kept)
            ]
            rows[-1] = Cat(rows[-1], C(0, fmt.block - len(rows[-1])))
            m.d.sync += [
                index.eq(Mux(is_final, 0, index + 1)),
                ends_block.eq(is_final),
                column.eq(Cat(row.word_select(index, engine.lanes) for row in rows)),
            ]
            with m.If(index == 0):
                base_here, flags_here = block.data[:8], block.data[8 : 8 * fmt.header_bytes]
                ranks_here = ranks_from_groups(m, flags_here, counts, C(0))
                invalid = self._is_invalid(m, base_here, flags_here, ranks_here)
                m.d.sync += [base.eq(base_here), flags.eq(flags_here), last.eq(block.last)]
                m.d.sync += [rank.eq(count) for rank, count in zip(ranks, ranks_here, strict=True)]
                m.d.sync += error.eq(block.error | invalid)

        with m.If(word_room):
            m.d.sync += self.o.valid.eq(has_column)
            with m.If(has_column):
                slots = [column.word_select(slot, engine.lanes) for slot in range(kept)]
                word = Cat(self._values(m, slots, base, flags, ranks))
                m.d.sync += [
                    self.o.p.data.eq(Mux(error, 0, word)),
                    self.o.p.last.eq(last & ends_block),
                    self.o.p.error.eq(error),
                ]
        return m

    def _is_invalid(self, m: Module, base: Value, flags: Value, ranks: list[Value]) -> Value:
        """Whether no encoder produces a header: docs/format.md, "Invalid headers"."""
        fmt = self._engine.fmt
        ft = fmt.float_type
        exponent = Signal(ft.exponent_bits)
        m.d.comb += exponent.eq(flags[1 : 1 + ft.exponent_bits][::-1])

        contiguous = (exponent & (exponent + 1)[: ft.exponent_bits]) == 0
        highest_bit = exponent ^ (exponent >> 1)  # the weight of the largest delta's top bit
        reaches = base + highest_bit - exponent.any()
        in_range = (base != 0) & (reaches <= ft.exponent_max) & (exponent.any() | (base == 1))
        valid = contiguous & in_range
        total = Signal(range(fmt.planes + 1))
        m.d.comb += total.eq(ranks[-1] + flags[-1])
        if fmt.slots < 1 + ft.exponent_bits:
            first_mantissa_rank = ranks[1 + ft.exponent_bits]
            valid &= first_mantissa_rank <= fmt.slots
        # Beyond the whole slots, mantissa planes may reach into the partial one.
        kept = fmt.slots + (fmt.partial > 0)
        if kept < fmt.planes:
            has_mantissa = flags[1 + ft.exponent_bits :].any()
            valid &= ~has_mantissa | (total <= kept)
        if fmt.has_specials_blocks:
            valid |= (base == 0) & (flags == reverse_bits(fmt.specials_flags, fmt.planes))
        return ~valid

    def _values(
        self, m: Module, slots: list[Value], base: Value, flags: Value, ranks: list[Value]
    ) -> list[Value]:
        """The values of one word from its bits in every slot."""
        engine = self._engine
        fmt = engine.fmt
        ft = fmt.float_type
        kept = len(slots)
        selects = Selects(fmt, ranks, flags)
        planes = []
        for plane in range(fmt.planes):
            sources = selects.slots_of(plane, kept)
            bits = Signal(engine.lanes, name=f"plane{plane}")
            if sources:
                chosen = [selects[slot, plane] for slot in sources]
                m.d.comb += bits.eq(select_planes(chosen, [slots[slot] for slot in sources]))
            planes.append(bits)

        values = []
        for i, code in enumerate(planes_to_lanes(planes)):
            mantissa = code[: ft.mantissa_bits]
            delta = code[ft.mantissa_bits : -1]
            sign = code[-1]
            field = Signal(ft.exponent_bits, name=f"field{i}")
            m.d.comb += field.eq(Mux(delta.any(), delta + base - 1, 0))
            value = Signal(ft.width, name=f"value{i}")
            m.d.comb += value.eq(Cat(mantissa, field, sign))
            if fmt.has_specials_blocks:
                is_infinity = delta[0]
                is_nan = sign & ~is_infinity
                marked = Cat(
                    C(0, ft.mantissa_bits - 1),
                    is_nan,
                    (is_infinity | is_nan).replicate(ft.exponent_bits),
                    sign & is_infinity,
                )
                with m.If(base == 0):
                    m.d.comb += value.eq(marked)
            values.append(value)
        return values
