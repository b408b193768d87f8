"""The compressor of the step format, second part: how fine a grid each block is likely to fit at."""

from amaranth import C, Cat, Module, Mux, Shape, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from golden.step import ALIGNED_BITS, FIELDS, MASKED, MAX_CORE, MAX_FINER

from .engine import StepEngine
from .fields import Register, leading_zeros, let, total
from .planes import any_set
from .step_aligner import VALUE_BITS, Passage, aligned_layout, signed_value, steps_of
from .step_noise import noise_layout, noise_of

__all__ = ["Estimator", "estimate_layout", "splits_of"]

# Bits of a distance's magnitude, from 0 or the mean.
_DISTANCE_BITS = VALUE_BITS + 1


def splits_of(engine: StepEngine, masked: bool) -> list[tuple[int, bool]]:
    """Each split's core, 0 if there is none, and whether codes are counted from the mean."""
    widest = min((engine.room - masked * engine.block) // engine.block, MAX_CORE)
    return [(min(widest, 1), False), (max(widest - 1, 0), True), (widest, True)]


def estimate_layout(engine: StepEngine) -> data.StructLayout:
    """What is known of a block.

    Members:
        above, masked, last, key: see :class:`rtl.step_aligner.Aligner`.
        sum: of all values, and half a block.
        least, most: of the finite values, if there are any.
        finer: how often the coarsest grid can be halved by the estimate.
        finest: how often it may be.
    """
    return data.StructLayout(
        {
            "above": 8,
            "masked": 1,
            "last": 1,
            "key": engine.key_bits,
            "sum": _sum_shape(engine),
            "least": signed(VALUE_BITS + 1),
            "most": signed(VALUE_BITS + 1),
            "finite": 1,
            "finer": range(MAX_FINER + 1),
            "finest": range(MAX_FINER + 1),
        }
    )


def _sum_shape(engine: StepEngine) -> Shape:
    """Of the sum of a block's values."""
    return signed(VALUE_BITS + 1 + exact_log2(engine.block))


class Estimator(wiring.Component):
    """Finds each block's mean, and with it the grid that its histograms of lengths suggest.

    Members:
        above, masked, last, key: see :class:`rtl.step_aligner.Aligner`.
        o: the steps, once the estimate is made.
        block: what is known of their block.
        noise: the random bits of their values.
    """

    def __init__(self, engine: StepEngine):
        self._engine = engine
        steps = steps_of(engine, aligned_layout())
        super().__init__(
            {
                "go": In(1),
                "i": In(steps),
                "above": In(8),
                "masked": In(1),
                "last": In(1),
                "key": In(engine.key_bits),
                "o": Out(steps),
                "block": Out(estimate_layout(engine)),
                "noise": Out(noise_layout(engine)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        engine, go = self._engine, self.go
        summed = Passage(m, go, self.i, engine.words + 2, "summed")
        known = Register(
            m,
            data.StructLayout({"above": 8, "masked": 1, "last": 1, "key": engine.key_bits}),
            go & summed.ends(0),
            "known",
        )
        given = ("above", "masked", "last", "key")
        m.d.comb += [known.next[name].eq(getattr(self, name)) for name in given]
        known_later = Register(m, known.now.shape(), go & summed.ends(1), "known_later")
        m.d.comb += known_later.next.eq(known.now)
        mean = Register(m, estimate_layout(engine), go & summed.ends(2), "mean")
        _sum(m, engine, go, summed, mean.next)
        m.d.comb += [mean.next[name].eq(known_later.now[name]) for name in given]

        steps = Signal(self.i.shape(), name="steps")
        m.d.comb += [steps.tag.eq(summed.tags[-1]), steps.lanes.eq(summed.lanes[-1])]
        counted = Passage(m, go, steps, engine.words + 2, "counted")
        held = Register(m, estimate_layout(engine), go & counted.ends(0), "held")
        held_later = Register(m, estimate_layout(engine), go & counted.ends(1), "held_later")
        found = Register(m, estimate_layout(engine), go & counted.ends(2), "found")
        m.d.comb += [held.next.eq(mean.now), held_later.next.eq(held.now), found.next.eq(held_later.now)]
        whole, distances = _histograms(m, engine, go, counted, mean.now)
        finest = Mux(held_later.now.above > MAX_FINER, MAX_FINER, held_later.now.above)
        finer = _likely(m, engine, whole, distances, held_later.now)
        m.d.comb += [
            found.next.finest.eq(finest),
            found.next.finer.eq(Mux(finer < finest, finer, finest)),
            self.o.tag.eq(counted.tags[-1]),
            self.o.lanes.eq(counted.lanes[-1]),
            self.block.eq(found.now),
        ]
        if engine.noise_bits:
            m.d.comb += Value.cast(self.noise).eq(
                Cat(noise_of(m, engine, go, counted.tags[-3], held.now.key))
            )
        return m


def _sum(m: Module, engine: StepEngine, go: Value, steps: Passage, block) -> None:
    """The sum of a block's values, and the extremes of those that are finite."""
    group = min(4, engine.lanes)
    groups = range(0, engine.lanes, group)
    lanes = steps.lanes[1]
    values = [let(m, f"value{i}", signed_value(lane)) for i, lane in enumerate(lanes)]
    sums = [Signal(signed(VALUE_BITS + 3), name=f"sum{i}", reset_less=True) for i in groups]
    # Extremes as unsigned numbers: the lowest stands for no value at all.
    keys = [let(m, f"key{i}", Cat(v[:VALUE_BITS], ~v[VALUE_BITS])) for i, v in enumerate(values)]
    mosts = [Signal(VALUE_BITS + 1, name=f"most{i}", reset_less=True) for i in groups]
    leasts = [Signal(VALUE_BITS + 1, name=f"least{i}", reset_less=True) for i in groups]
    for i, start in enumerate(groups):
        here = range(start, min(start + group, engine.lanes))
        most = [let(m, f"high{k}", Mux(lanes[k].special, 0, keys[k])) for k in here]
        least = [let(m, f"low{k}", Mux(lanes[k].special, 0, ~keys[k])) for k in here]
        with m.If(go):
            m.d.sync += [
                sums[i].eq(sum(values[k] for k in here)),
                mosts[i].eq(_largest(m, f"most_of_{start}", most)),
                leasts[i].eq(_largest(m, f"least_of_{start}", least)),
            ]
    first = steps.tags[2].first
    so_far = Signal(_sum_shape(engine), reset_less=True)
    most, least = Signal(VALUE_BITS + 1, reset_less=True), Signal(VALUE_BITS + 1, reset_less=True)
    sum_now = let(m, "sum_now", sum(sums, Mux(first, C(engine.block // 2), so_far)))
    most_now = _largest(m, "most_now", [*mosts, let(m, "most_before", Mux(first, 0, most))])
    least_now = _largest(m, "least_now", [*leasts, let(m, "least_before", Mux(first, 0, least))])
    with m.If(go):
        m.d.sync += [so_far.eq(sum_now), most.eq(most_now), least.eq(least_now)]
    m.d.comb += [
        block.sum.eq(sum_now),
        block.finite.eq(most_now.any()),
        block.most.eq(Cat(most_now[:VALUE_BITS], ~most_now[VALUE_BITS])),
        block.least.eq(Cat(~least_now[:VALUE_BITS], least_now[VALUE_BITS])),
    ]


def _largest(m: Module, name: str, values: list[Value]) -> Value:
    """The largest number, by a tree of comparisons."""
    while len(values) > 1:
        pairs = [values[i : i + 2] for i in range(0, len(values), 2)]
        values = [
            let(m, f"{name}_{len(pairs)}_{i}", Mux(pair[0] < pair[-1], pair[-1], pair[0]))
            for i, pair in enumerate(pairs)
        ]
    return values[0]


def _histograms(m: Module, engine: StepEngine, go: Value, steps: Passage, block) -> tuple[list, list]:
    """How many distances of a block, from 0 and from the mean, are at least each power of two."""
    mean = block.sum >> exact_log2(engine.block)
    padded = 1 << (_DISTANCE_BITS - 1).bit_length()
    zeros = []
    for i, lane in enumerate(steps.lanes[0]):
        distance = let(m, f"distance{i}", signed_value(lane) - mean)
        size = Mux(distance[-1], -distance, distance)[:_DISTANCE_BITS]
        magnitude = let(m, f"distance_size{i}", size)
        found = leading_zeros(Cat(C(0, padded - _DISTANCE_BITS - 1), C(1, 1), magnitude))
        kept = Signal(len(found), name=f"zeros{i}", reset_less=True)
        with m.If(go):
            m.d.sync += kept.eq(found)
        zeros.append(kept)
    first = steps.tags[1].first

    def counts(name: str, reaches) -> list[Signal]:
        kept = []
        for power in range(_DISTANCE_BITS):
            count = Signal(range(engine.block + 1), name=f"{name}{power}", reset_less=True)
            here = total(m, f"{name}{power}_here", [reaches(i, power) for i in range(engine.lanes)])
            with m.If(go):
                m.d.sync += count.eq(Mux(first, 0, count) + here)
            kept.append(count)
        return kept

    def whole(i: int, power: int) -> Value:
        lane = steps.lanes[1][i]
        return (
            (lane.magnitude[power:] & (~lane.special).replicate(VALUE_BITS - power)).any()
            if power < VALUE_BITS
            else C(0)
        )

    return counts("from_zero", whole), counts("from_mean", lambda i, power: zeros[i] < _DISTANCE_BITS - power)


def _likely(m: Module, engine: StepEngine, whole: list, distances: list, block) -> Value:
    """The finest grid that seems to fit: all coarser ones do as well."""
    n = engine.block
    mean = block.sum >> exact_log2(n)
    mean_size = let(m, "mean_size", Mux(mean[-1], -mean, mean))
    longest = []
    for name, counts in (("whole", whole), ("distance", distances)):
        some = Cat(count.any() for count in counts)
        longest.append(let(m, f"longest_{name}", Cat(~some, C(1, 1)) & Cat(C(1, 1), some)))
    seems = []
    for finer in range(1, MAX_FINER + 1):
        step = ALIGNED_BITS + 2 - finer
        small_mean = ~mean_size[step + FIELDS["offset"] - 1 :].any()
        ways = []
        for masked in (False, True):
            room = engine.room - masked * n
            for core, from_mean in splits_of(engine, masked):
                if core == 0:
                    continue
                counts, longest_here = (distances, longest[1]) if from_mean else (whole, longest[0])
                inside = step + (-1 if core == 1 else core - 1)
                rest, limits, narrow = room - n * core, [], []
                for length in range(_DISTANCE_BITS + 1):
                    wide = length - step + 1
                    if wide < MASKED:
                        most = rest // (MASKED if masked else max(wide, 1))
                        limits.append(Mux(longest_here[length], min(most, n), 0))
                        narrow.append(longest_here[length])
                limit = any_set(Value.cast(limit) for limit in limits)
                few = counts[inside] <= limit if inside < len(counts) else C(1)
                way = Cat(narrow).any() & few
                ways.append(way & (block.masked == masked) & (small_mean if from_mean else 1))
        seems.append(let(m, f"seems{finer}", Cat(ways).any()) if ways else C(0))
    # Marks of those that seem to fit, of which the coarser are all set.
    return any_set(
        Mux(seem & ~finer_seems, finer, 0)
        for finer, (seem, finer_seems) in enumerate(zip(seems, [*seems[1:], C(0)], strict=True), start=1)
    )
