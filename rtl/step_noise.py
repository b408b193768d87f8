"""The random bits of stochastic rounding, a function of a tensor's seed, the block and the place in it."""

from amaranth import C, Module, Mux, Signal, Value

from golden.step import BLOCK_STRIDE, NOISE_BITS, NOISE_SHARED, WORD_STRIDE

from .engine import StepEngine
from .fields import let
from .planes import any_set
from .stream import SEED_BITS

__all__ = ["Noise"]


class Noise:
    """The random bits of each step's values.

    A block's key is made while the one before comes in, so that only a tensor has to wait: for as many cycles
    as its first key takes, its first step may not be taken.

    Args:
        starts: the next step is a tensor's first; it is there in the cycles with ``comes``.
        comes: a step is there.
        seed: of its tensor, if it is the first.
        takes: it is taken.
        final: it is its block's last.
        place: its number in its block.
        flow: the step taken before moves on, to where ``bits`` are those of its values.

    Attributes:
        ready: the next step may be taken.
        bits: for each value ``NOISE_BITS``, of the step that was taken last; if ``flow``, to be kept.
    """

    def __init__(
        self,
        m: Module,
        engine: StepEngine,
        *,
        starts: Value,
        comes: Value,
        seed: Value,
        takes: Value,
        final: Value,
        place: Value,
        flow: Value,
    ):
        number, half, key = (
            Signal(SEED_BITS, name=name, reset_less=True) for name in ("block_number", "half_key", "key")
        )
        waited = Signal(2)
        self.ready = ~starts | (waited == 3)
        m.d.sync += half.eq(_half_mixed(m, "number", number))
        next_key = _mixed(m, "next_key", half)
        with m.If(starts & comes & ~takes):
            with m.If(waited != 3):
                m.d.sync += waited.eq(waited + 1)
            with m.If(waited == 0):
                m.d.sync += number.eq(seed)
        with m.Elif(takes):
            m.d.sync += waited.eq(0)
        with m.If((waited == 2) | (takes & final)):
            m.d.sync += [key.eq(next_key), number.eq(number + BLOCK_STRIDE)]

        words = -(-engine.lanes // NOISE_SHARED)
        self.bits = []
        shared = []
        for word in range(words):
            strides = [
                (step * engine.lanes // NOISE_SHARED + word) * WORD_STRIDE for step in range(engine.words)
            ]
            stride = any_set(Mux(place == i, C(value, SEED_BITS), 0) for i, value in enumerate(strides))
            kept = Signal(SEED_BITS, name=f"half_word{word}", reset_less=True)
            half_mixed = _half_mixed(m, f"noise{word}", key ^ stride)
            with m.If(flow):
                m.d.sync += kept.eq(half_mixed)
            shared.append(_mixed(m, f"noise{word}_rest", kept))
        odd = Signal(reset_less=True)  # of steps with half as many values as share a word
        with m.If(flow):
            m.d.sync += odd.eq(place[0])
        for i in range(engine.lanes):
            word, part = shared[i // NOISE_SHARED], i % NOISE_SHARED
            bits = word.word_select(part, NOISE_BITS)
            if engine.lanes < NOISE_SHARED:
                bits = Mux(odd, word.word_select(part + engine.lanes, NOISE_BITS), bits)
            self.bits.append(bits)


def _half_mixed(m: Module, name: str, x: Value) -> Value:
    """The first half of ``golden.step._mixed``."""
    x = let(m, f"{name}_a", (x + (x << 12))[:SEED_BITS])
    x = let(m, f"{name}_b", x ^ (x >> 19))
    return let(m, f"{name}_c", (x + (x << 5))[:SEED_BITS])


def _mixed(m: Module, name: str, x: Value) -> Value:
    """The other half."""
    x = let(m, f"{name}_a", x ^ (x >> 9))
    x = let(m, f"{name}_b", (x + (x << 3))[:SEED_BITS])
    return let(m, f"{name}_c", x ^ (x >> 16))
