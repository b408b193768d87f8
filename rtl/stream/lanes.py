"""Between bus words of any type and the words of the datapath, whose values are all of one type."""

from amaranth import C, Cat, Module, Mux, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from golden.floats import FloatType

from ..arith.trees import any_set
from .engine import Engine
from .switch import Switch
from .word import Joiner, Splitter, word_layout

__all__ = ["Narrower", "Widener"]


class Widener(wiring.Component):
    """Turns bus words into words of values of ``engine.float_type``.

    Takes a bus word, or gives a word, a cycle: a bus word that holds several words is cut, several that make
    up one are gathered, which takes a cycle more. ``last`` goes with the word that holds the tensor's last
    byte; the values that it lacks are zeros.
    """

    def __init__(self, engine: Engine, switch: Switch):
        self._engine = engine
        self._switch = switch
        super().__init__(
            {
                "i": In(stream.Signature(word_layout(engine.bus_bytes))),
                "o": Out(stream.Signature(word_layout(engine.word_bytes))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        engine = self._engine
        valid, ready, data, last = [], [], [], []
        for ft in engine.types:
            is_type = self._switch.when(lambda fmt, ft=ft: fmt.float_type == ft)
            size = engine.bytes_as(ft)
            source = self.i
            if size != engine.bus_bytes:
                change = Splitter if size < engine.bus_bytes else Joiner
                m.submodules[f"{ft.name}_words"] = words = change(engine.bus_bytes, size)
                m.d.comb += [
                    words.i.valid.eq(self.i.valid & is_type),
                    words.i.p.data.eq(self.i.p.data),
                    words.i.p.last.eq(self.i.p.last),
                    words.i.p.empty.eq(self.i.p.empty),
                    words.o.ready.eq(self.o.ready),
                ]
                source = words.o
                ready.append(is_type & words.i.ready)
            else:
                ready.append(is_type & self.o.ready)
            values = [source.p.data.word_select(i, ft.width) for i in range(engine.lanes)]
            valid.append(is_type & source.valid)
            data.append(Mux(is_type, Cat(_widen(ft, value, engine.float_type) for value in values), 0))
            last.append(is_type & source.p.last)
        m.d.comb += [
            self.o.valid.eq(any_set(valid)),
            self.o.p.data.eq(any_set(data)),
            self.o.p.last.eq(any_set(last)),
            self.i.ready.eq(any_set(ready)),
        ]
        return m


class Narrower(wiring.Component):
    """The inverse of :class:`Widener`, with each word's ``error``."""

    def __init__(self, engine: Engine, switch: Switch):
        self._engine = engine
        self._switch = switch
        super().__init__(
            {
                "i": In(stream.Signature(word_layout(engine.word_bytes, error=True))),
                "o": Out(stream.Signature(word_layout(engine.bus_bytes, error=True))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        engine = self._engine
        valid, ready, payload = [], [], []
        for ft in engine.types:
            is_type = self._switch.when(lambda fmt, ft=ft: fmt.float_type == ft)
            size = engine.bytes_as(ft)
            values = [self.i.p.data.word_select(i, engine.float_type.width) for i in range(engine.lanes)]
            data = Cat(_narrow(ft, value, engine.float_type) for value in values)
            if size == engine.bus_bytes:
                word = Cat(data, self.i.p.last, C(0, len(self.o.p.empty)), self.i.p.error)
                valid.append(is_type & self.i.valid)
                ready.append(is_type & self.o.ready)
            else:
                change = Splitter if size > engine.bus_bytes else Joiner
                m.submodules[f"{ft.name}_words"] = words = change(size, engine.bus_bytes)
                m.d.comb += [
                    words.i.valid.eq(self.i.valid & is_type),
                    words.i.p.data.eq(data),
                    words.i.p.last.eq(self.i.p.last),
                    words.o.ready.eq(self.o.ready),
                ]
                if change is Joiner:
                    m.d.comb += words.i.p.error.eq(self.i.p.error)
                error = words.o.p.error if change is Joiner else self.i.p.error
                word = Cat(words.o.p.data, words.o.p.last, words.o.p.empty, error)
                valid.append(is_type & words.o.valid)
                ready.append(is_type & words.i.ready)
            payload.append(Mux(is_type, word, 0))
        m.d.comb += [
            self.o.valid.eq(any_set(valid)),
            self.o.payload.eq(any_set(payload)),
            self.i.ready.eq(any_set(ready)),
        ]
        return m


def _widen(ft: FloatType, value: Value, wide: FloatType) -> Value:
    """A value with zeros behind its mantissa, and ones above an exponent field that is not 0."""
    mantissa, field, sign = value[: ft.mantissa_bits], value[ft.mantissa_bits : -1], value[-1]
    ones = field.any().replicate(wide.exponent_bits - ft.exponent_bits)
    return Cat(C(0, wide.mantissa_bits - ft.mantissa_bits), mantissa, field, ones, sign)


def _narrow(ft: FloatType, value: Value, wide: FloatType) -> Value:
    start = wide.mantissa_bits - ft.mantissa_bits
    return Cat(value[start : wide.mantissa_bits + ft.exponent_bits], value[-1])
