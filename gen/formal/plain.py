"""What comes back of a block, as plainly as it can be said: docs/format.md, "Fixed mode", step by step.

Independent of rtl/: there are no bytes, stages or trees here, only every value's own arithmetic. It is far
too slow and big for an engine, and made to be read next to that page.
"""

from __future__ import annotations

from amaranth import Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from golden import PlaneFormat

__all__ = ["Plain"]


class Plain(wiring.Component):
    """The values that decompressing a compressed block must give, combinationally.

    Args:
        fmt: a format with a fixed target.

    Members:
        x: the values of a block, as bits.
        y: what comes back.
    """

    def __init__(self, fmt: PlaneFormat):
        self._fmt = fmt
        block = data.ArrayLayout(fmt.float_type.width, fmt.block)
        super().__init__({"x": In(block), "y": Out(block)})

    def elaborate(self, platform):
        m = Module()
        fmt = self._fmt
        ft = fmt.float_type

        def let(name: str, value: Value) -> Value:
            signal = Signal(value.shape(), name=name)
            m.d.comb += signal.eq(value)
            return signal

        signs = [value[-1] for value in self.x]
        fields = [value[ft.mantissa_bits : -1] for value in self.x]
        mantissas = [value[: ft.mantissa_bits] for value in self.x]
        nans = [(f == ft.exponent_max) & (m != 0) for f, m in zip(fields, mantissas, strict=True)]

        # Step 1, quieting.
        mantissas = [Mux(nan, m | ft.quiet_bit, m) for m, nan in zip(mantissas, nans, strict=True)]

        # Step 2, room for exponents.
        any_sign = any_nan = top = Value.cast(0)
        base = Value.cast(ft.exponent_max + 1)
        for i, (sign, nan, field) in enumerate(zip(signs, nans, fields, strict=True)):
            any_sign = any_sign | sign
            any_nan = any_nan | nan
            top = let(f"top{i}", Mux(field > top, field, top))
            base = let(f"base{i}", Mux((field != 0) & (field < base), field, base))
        base = let("base", Mux(top == 0, 1, base))
        largest_delta = let("largest_delta", Mux(top == 0, 0, top - base + 1)[: ft.exponent_bits])
        k = let("k", _bit_length(largest_delta))
        room = let("room", (fmt.slots - any_sign - any_nan)[: k.shape().width + 4])
        flushed = let("flushed", k > room)
        special = let("special", flushed & (room == 0))

        # Steps 3 to 5, flags and flushing.
        k = let("k_kept", Mux(flushed, room, k))
        base = let("base_kept", Mux(flushed, top + 2 - (1 << room[:4]), base))
        exponent_flags = [k > bit for bit in reversed(range(ft.exponent_bits))]
        used = Value.cast(0)
        for mantissa in mantissas:
            used = used | mantissa
        used = let("used", used)
        flags = [any_sign, *exponent_flags, *reversed(used)]

        # Step 6, choosing planes: how many flagged planes lie before each.
        ranks = [Value.cast(0)]
        for j, flag in enumerate(flags[:-1]):
            ranks.append(let(f"rank{j + 1}", ranks[-1] + flag))

        for i, (sign, field, mantissa, nan) in enumerate(zip(signs, fields, mantissas, nans, strict=True)):
            # Step 7, rounding. The most significant plane that the value loses has the weight w.
            stored = fmt.slots + (i < fmt.partial)
            w = Value.cast(0)
            for bit in range(ft.mantissa_bits):
                j = fmt.planes - 1 - bit
                w = Mux(flags[j] & (ranks[j] >= stored), 1 << bit, w)
            w = let(f"w{i}", w)
            rest = let(f"rest{i}", Mux(w == 0, 0, mantissa & ((w << 1) - 1)))
            down = let(f"down{i}", mantissa - rest)
            up = let(f"up{i}", down + (w << 1))
            rounded = down
            if fmt.rounding == "nearest":
                is_nearer = (rest > w) | ((rest == w) & ((down & (w << 1)) != 0))
                saturates = (up == 1 << ft.mantissa_bits) | ((up & ~used) != 0)
                rounded = Mux((w != 0) & is_nearer & ~saturates, up, down)

            infinity = (field == ft.exponent_max) & ~nan
            with m.If(special):  # only what is not finite
                m.d.comb += self.y[i].eq(
                    _join(
                        ft,
                        sign & infinity,
                        Mux(infinity | nan, ft.exponent_max, 0),
                        Mux(nan, ft.quiet_bit, 0),
                    )
                )
            with m.Elif(flushed & (field < base)):
                m.d.comb += self.y[i].eq(_join(ft, sign, 0, 0))
            with m.Else():
                m.d.comb += self.y[i].eq(_join(ft, sign, field, rounded))
        return m


def _join(ft, sign, field, mantissa) -> Value:
    return (sign << (ft.width - 1)) | (field << ft.mantissa_bits) | mantissa


def _bit_length(value: Value) -> Value:
    length = Value.cast(0)
    for bit in range(len(value)):
        length = Mux(value[bit], bit + 1, length)
    return length
