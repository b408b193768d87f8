"""The random bits of stochastic rounding, a function of a tensor's seed, the block and the place in it."""

from amaranth import C, Module, Mux, Signal, Value
from amaranth.lib import data

from golden.step import BLOCK_STRIDE, PLACE_STRIDE

from .engine import StepEngine
from .fields import let
from .planes import any_set
from .stream import SEED_BITS

__all__ = ["BlockKey", "noise_layout", "noise_of"]


class BlockKey:
    """The key of each block, a function of its tensor's seed and its number there.

    Args:
        go: a step is taken.
        first: it is the first one of its block.
        starts: its block is a tensor's first.
        seed: of that tensor.

    Attributes:
        value: the key of a block, in the cycle in which its final step is taken.
    """

    def __init__(self, m: Module, go: Value, first: Value, starts: Value, seed: Value):
        number, half = Signal(SEED_BITS, reset_less=True), Signal(SEED_BITS, reset_less=True)
        number_now = let(m, "block_number", Mux(starts, seed, number))
        mixed = _half_mixed(m, "number", number_now)
        with m.If(go & first):
            m.d.sync += [number.eq(number_now + BLOCK_STRIDE), half.eq(mixed)]
        self.value = _mixed(m, "key", half)


def noise_layout(engine: StepEngine) -> data.ArrayLayout:
    """Random bits of each value of a step."""
    return data.ArrayLayout(engine.noise_bits, engine.lanes)


def noise_of(m: Module, engine: StepEngine, go: Value, tag, key: Value) -> list[Value]:
    """For each value of a step the highest of its 32 random bits, as many as matter, two cycles later.

    Args:
        go: time goes on.
        tag: of the step.
        key: of its block.
    """
    place = Signal(range(engine.words), reset_less=True)
    place_now = let(m, "noise_place", Mux(tag.first, 0, place))
    with m.If(go):
        m.d.sync += place.eq(place_now + 1)
    found = []
    for i in range(engine.lanes):
        strides = [(k * engine.lanes + i) * PLACE_STRIDE for k in range(engine.words)]
        stride = any_set(Mux(place_now == k, C(value, SEED_BITS), 0) for k, value in enumerate(strides))
        half = Signal(SEED_BITS, name=f"noise_half{i}", reset_less=True)
        noise = Signal(engine.noise_bits, name=f"noise{i}", reset_less=True)
        half_mixed = _half_mixed(m, f"noise_of_place{i}", key ^ stride)
        mixed = _mixed(m, f"noise_of_half{i}", half)
        with m.If(go):
            m.d.sync += [half.eq(half_mixed), noise.eq(mixed[SEED_BITS - engine.noise_bits :])]
        found.append(noise)
    return found


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
