"""The Hadamard format's engines do what docs/format.md says, for every block of a tiny format.

Nothing here is as rtl/ has it: sums are written out term by term, and floats are found by trying every shift.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from amaranth import C, Cat, Module, Mux, ResetSignal, Signal, Value, signed
from amaranth.hdl import Assert, Assume, Cover
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from golden import HadamardFormat
from golden.hadamard import (
    ALIGNED_BITS,
    FRACTION_BITS,
    HEADER_BITS,
    LEVELS,
    MINUS_INFINITY,
    NAN,
    PLUS_INFINITY,
    SCALE_BIAS,
    SIGN_START,
    SPECIALS,
    ZEROS,
)
from rtl import HadamardCompressor, HadamardDecompressor
from rtl.hadamard.aligner import Aligner
from rtl.hadamard.engine import HadamardEngine
from rtl.hadamard.transform import KIND, Transform
from rtl.stream import Switch

__all__ = ["Aligned", "EveryBlock", "NoInvalidHeader", "PlainBlock", "TinyHadamard", "Transformed"]


@dataclass(frozen=True)
class TinyHadamard(HadamardFormat):
    """A Hadamard format small enough for a solver: eight values in a block."""

    dtype: str = "bf16"
    block: int = 8
    target: int = 3

    def __post_init__(self) -> None:
        self._check_parameters((8,), "the header", "4 bits a value")

    @property
    def min_target(self) -> int:
        return self.header_bytes

    def signs(self, numbers: np.ndarray) -> np.ndarray:
        return HadamardFormat(self.dtype, 64, 8).signs(numbers)[:, : self.block]


def _flips(m: Module, number: Value) -> Value:
    """Which values of a block with this number are flipped, 32 of them."""
    state = number ^ SIGN_START
    for i, moved in enumerate((lambda u: u << 13, lambda u: u >> 17, lambda u: u << 5)):
        later = Signal(32, name=f"pattern{i}")
        m.d.comb += later.eq(state ^ moved(state))
        state = later
    return state


def _transformed(values: list[Value], k: int) -> Value:
    """Coefficient ``k``: the sum of all values, negated where ``i`` and ``k`` share an odd number of ones."""
    terms = [-value if (i & k).bit_count() % 2 else value for i, value in enumerate(values)]
    return sum(terms[1:], start=terms[0])


class PlainBlock(wiring.Component):
    """The values that decompressing a block must give, combinationally: docs/format.md, "Decoding a block".

    Args:
        fmt: a format with blocks of at most 32 values.
        scale_bias: that of the scale, if it is another one.

    Members:
        stored: the block's bytes.
        number: of the block.
        y: its values.
        error: its header is invalid.
    """

    def __init__(self, fmt: HadamardFormat, scale_bias: int = SCALE_BIAS):
        self._fmt = fmt
        self._scale_bias = scale_bias
        block = data.ArrayLayout(fmt.float_type.width, fmt.block)
        super().__init__({"stored": In(8 * fmt.target), "number": In(32), "y": Out(block), "error": Out(1)})

    def elaborate(self, platform):
        m = Module()
        fmt = self._fmt
        ft = fmt.float_type
        header = self.stored[:HEADER_BITS]
        fraction, exponent = header[:FRACTION_BITS], header[FRACTION_BITS:]
        starts = HEADER_BITS + fmt.widths.cumsum() - fmt.widths
        fields = [
            self.stored[int(start) :][: int(width)] for start, width in zip(starts, fmt.widths, strict=True)
        ]
        flips = _flips(m, self.number)
        levels = [self._level(m, f"level{k}", field) for k, field in enumerate(fields)]
        infinity = ft.exponent_max << ft.mantissa_bits
        minus = 1 << ft.width - 1
        specials = {
            NAN: infinity | ft.quiet_bit,
            PLUS_INFINITY: infinity,
            MINUS_INFINITY: infinity | minus,
        }
        m.d.comb += self.error.eq((header > SPECIALS) & (header < 1 << FRACTION_BITS))
        for i, field in enumerate(fields):
            total = Signal(signed(12), name=f"sum{i}")
            m.d.comb += total.eq(_transformed(levels, i))
            negative = (total < 0) ^ (flips[i] & (total != 0))
            product = Signal(16, name=f"product{i}")
            m.d.comb += product.eq(Mux(total < 0, -total, total) * ((1 << FRACTION_BITS) + fraction))
            value = self._float(m, f"float{i}", product, exponent)
            kind = Cat(field, C(0, 2))[:2] if fmt.names_specials else C(NAN, 2)
            with m.If(header == SPECIALS):
                for name, bits in specials.items():
                    with m.If(kind == name):
                        m.d.comb += self.y[i].eq(bits)
            with m.Elif((header != ZEROS) & ~self.error):
                m.d.comb += self.y[i].eq(value | Mux(negative, minus, 0))
        return m

    def _level(self, m: Module, name: str, field: Value) -> Value:
        level = Signal(signed(8), name=name)
        if len(field):
            with m.Switch(field[:-1]):
                for number, magnitude in enumerate(LEVELS[len(field)]):
                    with m.Case(number):
                        m.d.comb += level.eq(Mux(field[-1], -magnitude, magnitude))
        return level

    def _float(self, m: Module, name: str, product: Value, exponent: Value) -> Value:
        """The magnitude of the float nearest to product * 2**(exponent - scale_bias); ties to even."""
        ft = self._fmt.float_type
        least = 1 - ft.bias - ft.mantissa_bits  # the exponent of the last place of a subnormal
        unit = Signal(signed(12), name=f"{name}_unit")
        shift = Signal(signed(12), name=f"{name}_shift")
        nearest = Signal(ft.width + 1, name=f"{name}_nearest")
        m.d.comb += [unit.eq(exponent - self._scale_bias), shift.eq(least - unit)]
        for top in range(len(product)):
            with m.If(product[top] & (top - ft.mantissa_bits > least - unit)):
                m.d.comb += shift.eq(top - ft.mantissa_bits)  # the last one that is met holds
        for by in range(-ft.mantissa_bits, len(product) + 1):
            down = max(by, 0)
            kept, half = product >> down << down - by, 1 << down >> 1
            rest = product & (1 << down) - 1
            up = (rest > half) | ((rest == half) & (product >> down)[0]) if down else C(0)
            with m.If(shift == by):
                m.d.comb += nearest.eq(kept + up)
        place = Signal(signed(12), name=f"{name}_place")  # of the last place, above a subnormal's
        m.d.comb += place.eq(Mux(product == 0, 0, shift + unit - least))
        bits = Signal(ft.width + 12, name=f"{name}_bits")
        m.d.comb += bits.eq((place.as_unsigned() << ft.mantissa_bits) + nearest)
        largest = (ft.exponent_max << ft.mantissa_bits) - 1
        return Mux(bits > largest, largest, bits)[: ft.width - 1]


class EveryBlock(wiring.Component):
    """Proves that every two blocks, whatever their bytes and their numbers, come back as :class:`PlainBlock`
    says.

    The decompressor is as it leaves reset, the blocks are a tensor, and nothing stalls.

    Args:
        fmt: a format of which two blocks fit into a bus word, and the values of each make one or several.
        bus_bytes: bytes of a word.
        scale_bias: see :class:`PlainBlock`.
    """

    BLOCKS = 2

    def __init__(self, fmt: HadamardFormat, bus_bytes: int, scale_bias: int = SCALE_BIAS):
        self._fmt = fmt
        self._bus_bytes = bus_bytes
        self._scale_bias = scale_bias
        super().__init__({"stored": In(8 * fmt.target * self.BLOCKS), "first": In(32)})

    def elaborate(self, platform):
        m = Module()
        fmt, bus_bytes = self._fmt, self._bus_bytes
        m.submodules.decompressor = decompressor = HadamardDecompressor(fmt, bus_bytes)
        m.submodules.plain = plain = PlainBlock(fmt, self._scale_bias)
        i, o = decompressor.i, decompressor.o
        m.d.comb += Assume(~ResetSignal())
        is_first = Signal(init=1)
        blocks, first = Signal.like(self.stored), Signal.like(self.first)
        m.d.sync += is_first.eq(0)
        with m.If(is_first):
            m.d.sync += [blocks.eq(self.stored), first.eq(self.first)]
        sent = Signal()
        m.d.sync += sent.eq(sent | (i.valid & i.ready))
        m.d.comb += [
            i.valid.eq(~is_first & ~sent),
            i.p.data.eq(blocks),
            i.p.last.eq(1),
            i.p.empty.eq(bus_bytes - self.BLOCKS * fmt.target),
            i.p.first.eq(first),
            o.ready.eq(1),
        ]
        words = fmt.original_bytes // bus_bytes
        come = Signal(range(self.BLOCKS * words + 1))
        block = come // words
        m.d.comb += [
            plain.stored.eq(blocks.word_select(block, 8 * fmt.target)),
            plain.number.eq(first + block),
        ]
        with m.If(o.valid):
            m.d.sync += come.eq(come + 1)
            values = Value.cast(plain.y).word_select(come % words, 8 * bus_bytes)
            m.d.comb += [
                Assert(o.p.data == values, "the values are what the format says"),
                Assert(o.p.error == plain.error, "an invalid header is an error, and nothing else"),
                Assert(blocks.word_select(block, 8 * fmt.target).any() | ~o.p.data.any(), "zeros are zeros"),
                Assert(o.p.last == (come == self.BLOCKS * words - 1), "last is on the last word"),
            ]
        m.d.comb += Cover(
            (come == self.BLOCKS * words) & (blocks[:HEADER_BITS] >= 16), "the blocks came back"
        )
        return m


class Transformed(wiring.Component):
    """Proves that the transform gives the coefficients, each in its place and in time, of every block of
    which all values but one are 0, whichever the solver picks; and of specials the kind.

    Nothing stalls: all of its registers only move on together.

    Args:
        fmt: a format.
        bus_bytes: bytes of a word.
        wrong: a fault: two coefficients are expected in each other's place.
    """

    def __init__(self, fmt: HadamardFormat, bus_bytes: int, wrong: bool = False):
        self._engine = HadamardEngine(fmt, bus_bytes)
        self._wrong = wrong
        lane = data.StructLayout({"magnitude": ALIGNED_BITS, "negative": 1})
        pick = Signal(range(fmt.block)).shape()
        super().__init__({"x": In(data.ArrayLayout(lane, fmt.block)), "special": In(1), "pick": In(pick)})

    def elaborate(self, platform):
        m = Module()
        engine = self._engine
        m.submodules.transform = transform = Transform(engine)
        m.d.comb += [Assume(~ResetSignal()), transform.go.eq(1)]
        is_first = Signal(init=1)
        x, special, pick = Signal.like(self.x), Signal(), Signal.like(self.pick)
        m.d.sync += is_first.eq(0)
        with m.If(is_first):
            m.d.sync += [x.eq(self.x), special.eq(self.special), pick.eq(self.pick)]

        sent = Signal(range(64))
        with m.If(~is_first):
            m.d.sync += sent.eq(Mux(sent == 63, sent, sent + 1))
        m.d.comb += [Assume(~special | ~lane.negative) for lane in x]
        m.d.comb += [Assume((i == pick) | ~Value.cast(lane).any()) for i, lane in enumerate(x)]
        lanes = Value.cast(x)
        m.d.comb += [
            Cat(transform.i.lanes).eq(lanes.word_select(sent, len(lanes) // engine.words)),
            transform.i.first.eq(~is_first & (sent == 0)),
            transform.i.special.eq(special),
        ]
        values = [Mux(lane.negative, -lane.magnitude, lane.magnitude) for lane in x]
        offset = 1 << engine.coefficient_bits
        latency = Transform.latency(engine)
        m.d.comb += Assert(is_first | (transform.o.first == (sent == latency)), "the first word is in time")
        for word, places in enumerate(engine.places):
            places = places[::-1] if self._wrong else places
            for k, found in zip(places, transform.o.lanes, strict=True):
                found = Value.cast(found)
                with m.If(sent == latency + word):
                    with m.If(special):
                        m.d.comb += Assert(found[KIND] == x[k].magnitude[KIND], "a kind is in its place")
                    with m.Else():
                        m.d.comb += Assert(
                            found == _transformed(values, k) + offset, "the coefficient is in its place"
                        )
        m.d.comb += Cover(sent == latency + engine.words, "all of them came")
        return m


class Aligned(wiring.Component):
    """Proves that values are aligned and flipped as docs/format.md says, in every block of which all but two
    are +0, whichever the solver picks.

    The block is a tensor of its own, of which nothing is missing, and nothing stalls.

    Args:
        fmt: a format of which a block's values are one of the engine's words or several.
        bus_bytes: bytes of a word.
        rounds: whether half of the last place is rounded up, which is what the format says.
    """

    def __init__(self, fmt: HadamardFormat, bus_bytes: int, rounds: bool = True):
        self._fmt = fmt
        self._engine = HadamardEngine(fmt, bus_bytes)
        self._rounds = rounds
        block = data.ArrayLayout(fmt.float_type.width, fmt.block)
        pick = Signal(range(fmt.block)).shape()
        super().__init__({"x": In(block), "number": In(32), "picks": In(data.ArrayLayout(pick, 2))})

    def elaborate(self, platform):
        m = Module()
        engine, ft = self._engine, self._fmt.float_type
        m.submodules.aligner = aligner = Aligner(engine, Switch(engine.formats))
        m.d.comb += [Assume(~ResetSignal()), aligner.go.eq(1)]
        is_first = Signal(init=1)
        x, number = Signal.like(self.x), Signal(32)
        m.d.sync += is_first.eq(0)
        with m.If(is_first):
            m.d.sync += number.eq(self.number)
            for i, (value, free) in enumerate(zip(x, self.x, strict=True)):
                is_picked = Cat(pick == i for pick in self.picks).any()
                m.d.sync += value.eq(Mux(is_picked, free, 0))
        sent = Signal(range(engine.words + 1))
        m.d.comb += [
            aligner.i.valid.eq(~is_first & (sent != engine.words)),
            aligner.i.p.data.eq(Value.cast(x).word_select(sent, 8 * engine.word_bytes)),
            aligner.i.p.last.eq(sent == engine.words - 1),
            aligner.first.eq(number),
        ]
        with m.If(aligner.i.valid & aligner.i.ready):
            m.d.sync += sent.eq(sent + 1)

        top, special, aligned = self._plain(m, x)
        flips = _flips(m, number)
        come = Signal(range(engine.words + 1))
        is_here = aligner.o.first | (come != 0) & (come != engine.words)
        with m.If(is_here):
            m.d.sync += come.eq(come + 1)
        for i, (magnitude, kind) in enumerate(aligned):
            word, lane = divmod(i, engine.lanes)
            found = aligner.o.lanes[lane]
            value = x[i]
            with m.If(is_here & (come == word)):
                m.d.comb += Assert(aligner.o.special == special, "a block with specials is known")
                with m.If(special):
                    m.d.comb += [
                        Assert(found.magnitude[KIND] == kind, "a special is known by its kind"),
                        Assert(~found.negative, "and has no sign"),
                    ]
                with m.Else():
                    m.d.comb += [
                        Assert(found.magnitude == magnitude, "a value is rounded to the block's unit"),
                        Assert(found.negative == value[ft.width - 1] ^ flips[i], "it is flipped"),
                        Assert(aligner.block.top == top | (top == 0), "the unit is that of the largest"),
                    ]
        m.d.comb += Cover(come == engine.words, "the block came")
        return m

    def _plain(self, m: Module, x) -> tuple[Value, Value, list[tuple[Value, Value]]]:
        """The block's largest field, whether it has specials, and of each value magnitude and kind."""
        ft = self._fmt.float_type
        fields = [value[ft.mantissa_bits : -1] for value in x]
        top = C(1, ft.exponent_bits)
        for i, field in enumerate(fields):
            larger = Signal(ft.exponent_bits, name=f"top{i}")
            m.d.comb += larger.eq(Mux(field > top, field, top))
            top = larger
        special = top == ft.exponent_max
        found = []
        for i, (value, field) in enumerate(zip(x, fields, strict=True)):
            mantissa = Cat(value[: ft.mantissa_bits], field != 0)
            doubled = (mantissa << ALIGNED_BITS) >> ft.mantissa_bits
            moved = Signal(ALIGNED_BITS + 1, name=f"moved{i}")
            m.d.comb += moved.eq(doubled >> (top - Mux(field == 0, 1, field))[: ft.exponent_bits])
            rounded = Signal(ALIGNED_BITS + 1, name=f"rounded{i}")
            m.d.comb += rounded.eq((moved + self._rounds) >> 1)
            largest = (1 << ALIGNED_BITS) - 1
            fraction = value[: ft.mantissa_bits]
            infinity = Mux(value[ft.width - 1], MINUS_INFINITY, PLUS_INFINITY)
            kind = Mux(field == ft.exponent_max, Mux(fraction == 0, infinity, NAN), 0)
            found.append((Mux(rounded > largest, largest, rounded), kind))
        return top, special, found


class NoInvalidHeader(wiring.Component):
    """Proves that no block that a compressor gives has an invalid header, whatever goes in, and that all of
    its bytes are 0 if its header is.

    Args:
        fmt: a format of which a block is at least a bus word.
        bus_bytes: bytes of a word.
    """

    def __init__(self, fmt: HadamardFormat, bus_bytes: int):
        self._compressor = HadamardCompressor(fmt, bus_bytes)
        self._words = fmt.target // bus_bytes
        super().__init__({"i": self._compressor.signature.members["i"], "ready": In(1)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.compressor = compressor = self._compressor
        wiring.connect(m, wiring.flipped(self.i), compressor.i)
        o = compressor.o
        m.d.comb += o.ready.eq(self.ready)
        word = Signal(range(self._words))
        with m.If(o.valid & o.ready):
            m.d.sync += word.eq(Mux(word == self._words - 1, 0, word + 1))
        header = o.p.data[:HEADER_BITS]
        with m.If(o.valid & (word == 0) & ~ResetSignal()):
            m.d.comb += [
                Assert((header <= SPECIALS) | (header >= 1 << FRACTION_BITS), "the header is valid"),
                Assert((header != ZEROS) | ~o.p.data.any(), "a block of zeros is zeros"),
            ]
        return m
