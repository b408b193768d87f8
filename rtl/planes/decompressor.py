"""The decompressor: compressed blocks in, bus words of floats out, one word a cycle.

    i --> Unpacker --blocks--> Expander --words--> Narrower --> o

A block's header says where each of its planes lies, by a prefix count of its flags; there is nothing to
parse. Once the block is whole, the expander reads its header and then sends one word a cycle through
the plane network.
"""

from collections.abc import Sequence

from amaranth import C, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from golden import PlaneFormat
from golden.floats import FloatType

from ..stream import BlockJoiner, Engine, Narrower, Switch, Unpacker, word_layout
from .engine import PlaneEngine, rows_of
from .ranks import Selects, count_in_groups, counts_from_groups, planes_to_lanes, select_planes

__all__ = ["Decompressor", "Expander"]


class Decompressor(wiring.Component):
    """Decompresses a stream of blocks of ``fmt.target`` bytes, packed end to end.

    Throughput: one bus word of values a cycle while neither end stalls; a block smaller than two
    bus words takes two cycles. Latency: a block's first word is offered :meth:`latency` cycles after the
    last word of its compressed bytes was taken, unless blocks before it are still being sent; sooner if it
    ends its tensor before that word is full. Back-pressure on either end stalls it without loss. After reset
    it holds nothing.

    A block whose header is invalid becomes zeros with ``error`` set; so does one that the end of its tensor
    cuts short. The blocks after it are decoded as usual, and every input word with ``last`` leads to
    exactly one output word with ``last``.

    Args:
        fmt: a format with a fixed target; or several for :class:`rtl.RuntimeDecompressor` to switch between.
        bus_bytes: bytes of a word on either side: 16, 32, 64 or 128.
        single: each tensor is one whole block, and there is one format: that takes less logic.

    Members:
        i: the compressed blocks, as :class:`rtl.Compressor` sends them.
        o: words of values, whole blocks; see :func:`rtl.stream.word_layout`. ``error`` is set in the words
            of a block that could not be decoded.

    Raises:
        ValueError: see :class:`rtl.stream.Engine`.
    """

    def __init__(
        self, fmt: PlaneFormat | Sequence[PlaneFormat], bus_bytes: int = 64, *, single: bool = False
    ):
        self._single = single
        self.engine = PlaneEngine(fmt, bus_bytes)
        self.switch = Switch(self.engine.formats)
        super().__init__(
            {
                "i": In(stream.Signature(word_layout(bus_bytes))),
                "o": Out(stream.Signature(word_layout(bus_bytes, error=True))),
            }
        )

    geometry = PlaneEngine

    @staticmethod
    def latency(engine: Engine) -> int:
        """Cycles: one for the unpacker, three for the expander, and those that join a bus word."""
        return 4 + engine.joined_cycles

    def elaborate(self, platform):
        m = Module()
        engine, switch = self.engine, self.switch
        if self._single:
            unpacker = BlockJoiner(engine.target, engine.bus_bytes)
        else:
            targets = {fmt.target for fmt in engine.formats}
            sizes = {size: switch.when(lambda fmt, size=size: fmt.target == size) for size in sorted(targets)}
            unpacker = Unpacker(engine.target, engine.bus_bytes, sizes)
        m.submodules.unpacker = unpacker
        m.submodules.expander = expander = Expander(engine, switch)
        m.submodules.narrower = narrower = Narrower(engine, switch)
        wiring.connect(m, wiring.flipped(self.i), unpacker.i)
        wiring.connect(m, unpacker.o, expander.i)
        wiring.connect(m, expander.o, narrower.i)
        wiring.connect(m, narrower.o, wiring.flipped(self.o))
        return m


def _block_layout(engine: PlaneEngine) -> data.StructLayout:
    """A block with its header apart; the base may lie beyond the type's range if no encoder made it."""
    highest = 255 + max(engine.exponent_offset(fmt.float_type) for fmt in engine.formats)
    rows = engine.kept * engine.block
    parts = {"base": range(highest + 1), "flags": engine.planes, "rows": rows, "last": 1, "error": 1}
    return data.StructLayout(parts)


class Expander(wiring.Component):
    """Turns a block into words, one a cycle.

    In the first cycle a block's first column is picked while its planes' ranks are found, in the second
    the column's bits go to their planes. The first word is offered three cycles after the block was taken;
    the next block is taken together with the last column.
    """

    def __init__(self, engine: PlaneEngine, switch: Switch):
        self._engine = engine
        self._switch = switch
        super().__init__(
            {
                "i": In(stream.Signature(word_layout(engine.target, error=True))),
                "o": Out(stream.Signature(word_layout(engine.word_bytes, error=True))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        engine = self._engine
        kept = engine.kept

        # A block, and the counts in groups of its flags.
        busy = Signal()
        index = Signal(range(engine.words))
        block = Signal(_block_layout(engine), reset_less=True)
        counts = Signal(3 * engine.planes, reset_less=True)
        # A column of a block: the bits that belong to one word, of every slot.
        has_column = Signal()
        column = Signal(kept * engine.lanes, reset_less=True)
        ends_block = Signal()
        # The header of the column's block.
        base = Signal.like(block.base, reset_less=True)
        flags = Signal(engine.planes, reset_less=True)
        ranks = [Signal(range(engine.planes), name=f"rank{j}", reset_less=True) for j in range(engine.planes)]
        last = Signal()
        error = Signal()

        word_room = ~self.o.valid | self.o.ready
        column_room = ~has_column | word_room
        is_final = index == engine.words - 1
        advances = busy & column_room
        m.d.comb += self.i.ready.eq(~busy | (column_room & is_final))
        with m.If(self.i.ready):
            m.d.sync += busy.eq(self.i.valid)
            with m.If(self.i.valid):
                block_in = Signal.like(block)
                m.d.comb += block_in.eq(self._read(self.i.payload))
                m.d.sync += [block.eq(block_in), counts.eq(count_in_groups(block_in.flags))]

        with m.If(column_room):
            m.d.sync += has_column.eq(busy)
        with m.If(advances):
            rows = [block.rows.word_select(slot, engine.block) for slot in range(kept)]
            m.d.sync += [
                index.eq(Mux(is_final, 0, index + 1)),
                ends_block.eq(is_final),
                column.eq(Cat(row.word_select(index, engine.lanes) for row in rows)),
            ]
            with m.If(index == 0):
                ranks_here = counts_from_groups(m, block.flags, counts)
                invalid = self._is_invalid(m, block.base, block.flags, ranks_here)
                m.d.sync += [base.eq(block.base), flags.eq(block.flags), last.eq(block.last)]
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

    def _read(self, block) -> Value:
        """The fields of a block that came in, as those of the engine's type."""
        engine = self._engine

        layout = _block_layout(engine)

        def fields(kind: tuple[FloatType, int]) -> Value:
            ft, target = kind
            stored = block.data[: 8 * target]
            places = engine.places_of(ft)
            flags = [stored[8 + places.index(p)] if p in places else C(0) for p in range(engine.planes)]
            rows = stored[8 + ft.width :]
            base = stored[:8] + engine.exponent_offset(ft)
            padding = C(0, layout["rows"].width - len(rows))
            return Cat(base[: layout["base"].width], flags, rows, padding, block.last, block.error)

        return self._switch.choose(lambda fmt: (fmt.float_type, fmt.target), fields)

    def _is_invalid(self, m: Module, base: Value, flags: Value, ranks: list[Value]) -> Value:
        """Whether a header is invalid: docs/format.md, "Invalid headers"."""
        engine = self._engine
        formats = engine.formats
        ft = engine.float_type
        zero_base = self._switch.choose(lambda fmt: engine.exponent_offset(fmt.float_type))
        exponent = Signal(ft.exponent_bits)
        m.d.comb += exponent.eq(flags[1 : 1 + ft.exponent_bits][::-1])

        contiguous = (exponent & (exponent + 1)[: ft.exponent_bits]) == 0
        highest_bit = exponent ^ (exponent >> 1)  # the weight of the largest delta's top bit
        reaches = base + highest_bit - exponent.any()
        in_range = (base != zero_base) & (reaches <= ft.exponent_max)
        in_range &= exponent.any() | (base == zero_base + 1)
        valid = contiguous & in_range
        total = Signal(range(engine.planes + 1))
        m.d.comb += total.eq(ranks[-1] + flags[-1])
        if any(fmt.slots < 1 + ft.exponent_bits for fmt in formats):
            first_mantissa_rank = ranks[1 + ft.exponent_bits]
            valid &= first_mantissa_rank <= self._switch.choose(lambda fmt: fmt.slots)
        # Beyond the whole slots, mantissa planes may reach into the partial one.
        if any(rows_of(fmt) < fmt.planes for fmt in formats):
            has_mantissa = flags[1 + ft.exponent_bits :].any()
            valid &= ~has_mantissa | (total <= self._switch.choose(rows_of))
        other = ~flags.any()  # of cleared memory
        if any(fmt.has_specials_blocks for fmt in formats):
            only_last_exponent_and_sign = C(1 | 1 << ft.exponent_bits, engine.planes)
            may_be_special = self._switch.when(lambda fmt: fmt.has_specials_blocks)
            other |= may_be_special & (flags == only_last_exponent_and_sign)
        valid |= (base == zero_base) & other
        return ~valid

    def _values(
        self, m: Module, slots: list[Value], base: Value, flags: Value, ranks: list[Value]
    ) -> list[Value]:
        """The values of one word from its bits in every slot."""
        engine = self._engine
        ft = engine.float_type
        kept = len(slots)
        selects = Selects(engine.slots, 1 + ft.exponent_bits, ranks, flags)
        planes = []
        for plane in range(engine.planes):
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
            if any(fmt.has_specials_blocks for fmt in engine.formats):
                is_infinity = delta[0]
                is_nan = sign & ~is_infinity
                marked = Cat(
                    C(0, ft.mantissa_bits - 1),
                    is_nan,
                    (is_infinity | is_nan).replicate(ft.exponent_bits),
                    sign & is_infinity,
                )
                with m.If(base == self._switch.choose(lambda fmt: engine.exponent_offset(fmt.float_type))):
                    m.d.comb += value.eq(marked)
            values.append(value)
        return values
