"""The random bits of stochastic rounding, a function of a tensor's seed, the block and the place in it."""

from amaranth import C, Module, Mux, Signal, Value

from golden.step import BLOCK_STRIDE, NOISE_BITS, NOISE_SHARED, WORD_STRIDE

from .engine import StepEngine
from .fields import let
from .planes import any_set
from .stream import SEED_BITS

__all__ = ["Noise"]

# Cycles from a tensor's first step to its being taken: a register for its seed, those of a key, and those of
# the first words.
WAIT = 6


class Noise:
    """The random bits of each step's values.

    Keys are made blocks ahead, and words a step ahead, a third of either in a cycle; so only a tensor has to
    wait, before its first step, for ``WAIT`` cycles.

    Args:
        starts: the next step is a tensor's first.
        comes: it is there.
        seed: of its tensor, if it is the first.
        takes: it is taken.
        final: it is its block's last.
        place: its number in its block.
        flow: the step taken before moves on.

    Attributes:
        ready: the next step may be taken.
        bits: for each value of the step that was taken last ``NOISE_BITS``.
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
        names = ("block_number", "key_a", "key_b", "next_key", "key")
        number, a, b, next_key, key = (Signal(SEED_BITS, name=name, reset_less=True) for name in names)
        waited = Signal(range(WAIT + 1))
        waits = let(m, "waits", starts & comes & (waited != WAIT))
        self.ready = ~starts | (waited == WAIT)
        with m.If(waits):
            m.d.sync += waited.eq(waited + 1)
        with m.If(takes):
            m.d.sync += waited.eq(0)
        with m.If(waits & (waited == 0)):
            m.d.sync += number.eq(seed)
        # One block further: while a tensor waits until its first key is there, then with each block.
        with m.If((waits & (waited != 0) & (waited != WAIT - 1)) | (takes & final)):
            m.d.sync += [
                number.eq(number + BLOCK_STRIDE),
                a.eq(_first_third(m, "key_a", number)),
                b.eq(_second_third(m, "key_b", a)),
                next_key.eq(_last_third(m, "key_c", b)),
                key.eq(next_key),
            ]

        # The words of the step that comes next: after a block's last or while a tensor waits a block's first.
        next_place = let(m, "next_place", Mux(final | ~self.ready, 0, place + 1)[: len(place)])
        its_key = let(m, "its_key", Mux(final, next_key, key))
        shared = []
        for word in range(-(-engine.lanes // NOISE_SHARED)):
            strides = [
                (step * engine.lanes // NOISE_SHARED + word) * WORD_STRIDE for step in range(engine.words)
            ]
            stride = any_set(Mux(next_place == i, C(value, SEED_BITS), 0) for i, value in enumerate(strides))
            ahead = Signal(SEED_BITS, name=f"word{word}_ahead", reset_less=True)
            kept = Signal(SEED_BITS, name=f"word{word}", reset_less=True)
            with m.If(takes | ~self.ready):
                m.d.sync += ahead.eq(_first_third(m, f"word{word}_a", its_key ^ stride))
            with m.If(flow):
                m.d.sync += kept.eq(_second_third(m, f"word{word}_b", ahead))
            shared.append(_last_third(m, f"word{word}_c", kept))

        odd = Signal(reset_less=True)  # of steps with half as many values as share a word
        with m.If(flow):
            m.d.sync += odd.eq(place[0])
        self.bits = []
        for i in range(engine.lanes):
            word, part = shared[i // NOISE_SHARED], i % NOISE_SHARED
            bits = word.word_select(part, NOISE_BITS)
            if engine.lanes < NOISE_SHARED:
                bits = Mux(odd, word.word_select(part + engine.lanes, NOISE_BITS), bits)
            self.bits.append(bits)


# What ``golden.step._mixed`` does, an addition each.


def _first_third(m: Module, name: str, x: Value) -> Value:
    x = let(m, f"{name}_sum", (x + (x << 12))[:SEED_BITS])
    return x ^ (x >> 19)


def _second_third(m: Module, name: str, x: Value) -> Value:
    x = let(m, f"{name}_sum", (x + (x << 5))[:SEED_BITS])
    return x ^ (x >> 9)


def _last_third(m: Module, name: str, x: Value) -> Value:
    x = let(m, f"{name}_sum", (x + (x << 3))[:SEED_BITS])
    return x ^ (x >> 16)
