"""The compressor of the step format, third part: each block's grid, and its core and escapes."""

from amaranth import C, Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from golden.step import ALIGNED_BITS, FIELDS, MASKED, MAX_FINER, MAX_OFFSET

from .engine import StepEngine
from .fields import Register, leading_zeros, let, total
from .planes import any_set
from .step_aligner import VALUE_BITS, Passage, aligned_layout, steps_of, with_carry
from .step_estimator import estimate_layout, splits_of

__all__ = ["Chooser", "choice_layout"]

# Tried are the grid of the estimate, the next finer and the next coarser one, and the coarsest of all.
_TRIED = 4


def choice_layout(engine: StepEngine) -> data.StructLayout:
    """How a block is stored.

    Members:
        finer: how often the coarsest grid is halved.
        grid, offset, core, short, wide: of its header.
        least: the least magnitude of a code that is an escape.
        escapes: how many there are.
        length: bits behind the header, but for those that refine.
        alone: it only says which values are special; the other members mean nothing then.
        masked: it holds specials.
        last: it ends its tensor.
    """
    return data.StructLayout(
        {
            "finer": range(MAX_FINER + 1),
            "grid": FIELDS["grid"],
            "offset": signed(FIELDS["offset"]),
            "core": FIELDS["core"],
            "least": range((1 << engine.max_core - 1) + 1),
            "short": 1,
            "wide": FIELDS["wide"],
            "escapes": range(engine.block + 1),
            "length": range(engine.room + 1),
            "alone": 1,
            "masked": 1,
            "last": 1,
        }
    )


class Chooser(wiring.Component):
    """Codes each block at the tried grids, and takes the first at which it fits, with the shortest split."""

    def __init__(self, engine: StepEngine):
        self._engine = engine
        steps = steps_of(engine, aligned_layout())
        super().__init__(
            {
                "go": In(1),
                "i": In(steps),
                "estimate": In(estimate_layout(engine)),
                "o": Out(steps),
                "block": Out(choice_layout(engine)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        engine, go = self._engine, self.go
        steps = Passage(m, go, self.i, engine.words + 4, "measured")
        ends = steps.ends
        rounded = Register(m, _rounded_layout(engine), go & steps.starts(0), "rounded")
        _round(m, engine, self.estimate, rounded.next)
        counts = _count(m, engine, go, steps, self.estimate, rounded.now)
        estimate = Register(m, estimate_layout(engine), go & ends(0), "estimate")
        m.d.comb += estimate.next.eq(self.estimate)
        widths = Register(m, _widths_layout(engine), go & ends(1), "widths")
        _find_widths(m, engine, estimate.now, rounded.now, widths.next)
        widths_later = Register(m, _widths_layout(engine), go & ends(2), "widths_later")
        m.d.comb += widths_later.next.eq(widths.now)
        lengths = Register(m, _lengths_layout(engine), go & ends(3), "lengths")
        _find_lengths(m, engine, widths_later.now, counts, lengths.next)
        chosen = Register(m, choice_layout(engine), go & ends(4), "chosen")
        _choose(m, engine, lengths.now, chosen.next)
        m.d.comb += [
            self.o.tag.eq(steps.tags[-1]),
            self.o.lanes.eq(steps.lanes[-1]),
            self.block.eq(chosen.now),
        ]
        return m


def _grid_of(finer: Value, tried: int) -> Value:
    """How often a tried grid halves the coarsest one; the last is the coarsest itself."""
    return C(0) if tried == _TRIED - 1 else finer + 1 - tried


def _rounded_layout(engine: StepEngine) -> data.StructLayout:
    """Of each tried grid but the last: the extremes and the mean in its steps."""
    tried = data.StructLayout(
        {
            "least": signed(VALUE_BITS),
            "most": signed(VALUE_BITS),
            "offset": signed(FIELDS["offset"]),
            "zero": 1,
        }
    )
    return data.StructLayout({"tried": data.ArrayLayout(tried, _TRIED - 1)})


def _halves(magnitude: Value, finer: Value) -> Value:
    """A magnitude in half steps of the grid that is next to finer."""
    return magnitude >> (ALIGNED_BITS - finer)[:5]


def _in_steps(halves: Value, tried: int) -> Value:
    return (halves >> (tried + 1)) + halves[tried]


def _round(m: Module, engine: StepEngine, estimate, rounded) -> None:
    extremes = {}
    for name in ("least", "most"):
        value = estimate[name]
        magnitude = Mux(value < 0, -value, value)[:VALUE_BITS]
        extremes[name] = let(m, f"{name}_halves", _halves(magnitude, estimate.finer)), value < 0
    n = exact_log2(engine.block)
    for tried, grid in enumerate(rounded.tried):
        finer = let(m, f"finer{tried}", _grid_of(estimate.finer, tried).as_signed())
        zero = finer <= 0
        for name, (halves, negative) in extremes.items():
            steps = _in_steps(halves, tried)
            m.d.comb += grid[name].eq(Mux(zero, 0, Mux(negative, -steps, steps)))
        # The sum in halves of what the offset counts, for all shifts that there are.
        shift = Mux(zero, 1, finer)[:5]
        sums = estimate.sum - engine.block // 2
        ways = []
        for value in range(1, MAX_FINER + 2):
            down = ALIGNED_BITS + 2 - value + n
            ways.append(Mux(shift == value, sums >> down - 1, 0))
        half = let(m, f"mean_halves{tried}", any_set(ways))
        mean = let(m, f"mean{tried}", (half + 1) >> 1)
        clipped = Mux(mean > MAX_OFFSET, MAX_OFFSET, Mux(mean < -MAX_OFFSET, -MAX_OFFSET, mean))
        m.d.comb += [grid.offset.eq(Mux(zero, 0, clipped)), grid.zero.eq(zero)]


def _count(m: Module, engine: StepEngine, go: Value, steps: Passage, estimate, rounded):
    """Of each tried grid and core, how many escapes there are, and how many of these are the least."""
    # Beyond the cap a code is an escape, wherever the offset lies.
    cap = (MAX_OFFSET + (1 << engine.max_core - 1) + 1).bit_length()
    bits = min(cap + 3, VALUE_BITS - 1)
    masked = Signal(reset_less=True)
    with m.If(go & steps.starts(0)):
        m.d.sync += masked.eq(estimate.masked)
    marks: dict[tuple, list[Signal]] = {}
    infinities = []
    minus_offsets = [let(m, f"minus_offset{i}", -grid.offset) for i, grid in enumerate(rounded.tried)]
    cores = list(zip(splits_of(engine, False), splits_of(engine, True), strict=True))
    for i, lane in enumerate(steps.lanes[0]):
        halves = let(m, f"halves{i}", _halves(lane.magnitude, estimate.finer))
        too_large = halves[bits:].any()
        kept = Signal(bits, name=f"kept{i}", reset_less=True)
        with m.If(go):
            m.d.sync += kept.eq(halves[:bits] | too_large.replicate(bits))
        value = steps.lanes[1][i]
        infinity = let(m, f"infinity{i}", value.special & value.magnitude[0])
        infinities.append(infinity)
        for tried in range(_TRIED - 1):
            grid = rounded.tried[tried]
            there = ~grid.zero
            whole = let(m, f"whole{tried}_{i}", kept[tried + 1 :] & there.replicate(bits - tried - 1))
            up = let(m, f"up{tried}_{i}", kept[tried] & there)
            negative = value.negative
            signed_whole = Cat(whole ^ negative.replicate(len(whole)), negative)
            code = let(m, f"code{tried}_{i}", with_carry(signed_whole, minus_offsets[tried], up ^ negative))
            magnitude = let(m, f"magnitude{tried}_{i}", Mux(code < 0, -code, code))
            for split, ((core, from_mean), (masked_core, _)) in enumerate(cores):
                if from_mean:
                    reach = _reaches(magnitude, core, masked_core, masked)
                    exact = _is_least(magnitude, core, masked_core, masked)
                else:
                    reach, exact = up | whole.any(), Mux(up, ~whole.any(), whole == 1)
                # Of the codes of specials only those of infinities can be escapes, of a core of a bit.
                of_special = infinity & Mux(masked, masked_core == 1, core == 1)
                reach = Mux(value.special, of_special, reach)
                exact = Mux(value.special, of_special, exact)
                for name, mark in (("escapes", reach), ("least", exact)):
                    kept_mark = Signal(name=f"{name}{tried}_{split}_{i}_mark", reset_less=True)
                    with m.If(go):
                        m.d.sync += kept_mark.eq(mark)
                    marks.setdefault((tried, split, name), []).append(kept_mark)
    infinite = [Signal(name=f"infinite{i}", reset_less=True) for i in range(engine.lanes)]
    with m.If(go):
        m.d.sync += Cat(infinite).eq(Cat(infinities))
    marks[_TRIED - 1, 0, "infinities"] = infinite
    first = steps.tags[2].first
    counts = {}
    for key, column in marks.items():
        name = "_".join(map(str, key))
        count = Signal(range(engine.block + 1), name=f"count_{name}", reset_less=True)
        with m.If(go):
            m.d.sync += count.eq(Mux(first, 0, count) + total(m, f"here_{name}", column))
        counts[key] = count
    return counts


def _reaches(size: Value, core: int, masked_core: int, masked: Value) -> Value:
    at_least = [size >= (1 << max(core, 1) - 1) for core in (core, masked_core)]
    return at_least[0] if core == masked_core else Mux(masked, at_least[1], at_least[0])


def _is_least(size: Value, core: int, masked_core: int, masked: Value) -> Value:
    is_it = [size == (1 << max(core, 1) - 1) for core in (core, masked_core)]
    return is_it[0] if core == masked_core else Mux(masked, is_it[1], is_it[0])


def _widths_layout(engine: StepEngine) -> data.StructLayout:
    """Of each tried grid and split the widths of long forms, with 0 and 1 as ``short``."""
    wide = data.StructLayout({"bits": FIELDS["wide"], "fits": 1})
    tried = data.StructLayout(
        {
            "wide": data.ArrayLayout(data.ArrayLayout(wide, 2), 3),
            "offset": signed(FIELDS["offset"]),
            "may": 1,
        }
    )
    return data.StructLayout(
        {
            "tried": data.ArrayLayout(tried, _TRIED),
            "finer": range(MAX_FINER + 1),
            "above": 8,
            "masked": 1,
            "last": 1,
        }
    )


def _find_widths(m: Module, engine: StepEngine, estimate, rounded, widths) -> None:
    # The codes of infinities are no larger than 1, and in a block with specials the width is given.
    cores = list(zip(splits_of(engine, False), splits_of(engine, True), strict=True))
    for tried, grid in enumerate(widths.tried):
        if tried < _TRIED - 1:
            here = rounded.tried[tried]
            least, most, offset = here.least, here.most, here.offset
            may = {0: estimate.finer < estimate.finest, 1: C(1), 2: estimate.finer > 0}[tried]
        else:
            least = most = offset = C(0, signed(1))
            may = C(1)
        m.d.comb += [grid.offset.eq(offset), grid.may.eq(may)]
        for split, ((core, from_mean), (masked_core, _)) in enumerate(cores):
            taken = offset if from_mean else C(0, signed(1))
            up, down = most - taken, taken - least
            size = Mux(up > down, up, down)
            size = let(m, f"size{tried}_{split}", Mux(estimate.finite & (size > 0), size, 0))
            floor = Mux(estimate.masked, 1 << max(masked_core, 1) - 1, 1 << max(core, 1) - 1)
            for short in (0, 1):
                beyond = let(m, f"beyond{tried}_{split}_{short}", size - floor - short)
                found = let(m, f"length{tried}_{split}_{short}", _length(beyond[: len(beyond) - 1]))
                bits = Mux(beyond >= 0, found + 1 - short, 0)
                wide = grid.wide[split][short]
                m.d.comb += [
                    wide.bits.eq(Mux(estimate.masked, MASKED, bits)),
                    wide.fits.eq(bits <= Mux(estimate.masked, MASKED, MASKED - 1)),
                ]
    m.d.comb += [
        widths.finer.eq(estimate.finer),
        widths.above.eq(estimate.above),
        widths.masked.eq(estimate.masked),
        widths.last.eq(estimate.last),
    ]


def _length(number: Value) -> Value:
    """Its length in bits."""
    padded = 1 << (len(number) + 1 - 1).bit_length()
    zeros = leading_zeros(Cat(C(0, padded - len(number) - 1), C(1, 1), number))
    return (len(number) - zeros)[: len(number).bit_length()]


def _lengths_layout(engine: StepEngine) -> data.StructLayout:
    """Of each tried grid the shortest split; ``fits`` unless it is too long."""
    tried = data.StructLayout(
        {
            "fits": 1,
            "escapes": range(engine.block + 1),
            "length": range(engine.room + 1),
            "offset": signed(FIELDS["offset"]),
            "core": FIELDS["core"],
            "short": 1,
            "wide": FIELDS["wide"],
        }
    )
    return data.StructLayout(
        {
            "tried": data.ArrayLayout(tried, _TRIED),
            "finer": range(MAX_FINER + 1),
            "above": 8,
            "masked": 1,
            "last": 1,
        }
    )


def _find_lengths(m: Module, engine: StepEngine, widths, counts, lengths) -> None:
    n = engine.block
    cores = list(zip(splits_of(engine, False), splits_of(engine, True), strict=True))
    room = Mux(widths.masked, engine.room - n, engine.room)
    for tried, (grid, shortest) in enumerate(zip(widths.tried, lengths.tried, strict=True)):
        best = None
        for split, ((core, from_mean), (masked_core, _)) in enumerate(cores):
            if core == 0:
                continue
            if tried < _TRIED - 1:
                escapes, least = counts[tried, split, "escapes"], counts[tried, split, "least"]
            else:
                # Only infinities have a code other than 0.
                found = counts[tried, 0, "infinities"]
                escapes = least = Mux(Mux(widths.masked, masked_core, core) == 1, found, 0)
            core_now = let(m, f"core{tried}_{split}", Mux(widths.masked, masked_core, core))
            for short in (0, 1):
                wide = grid.wide[split][short]
                fields = escapes - least if short else escapes
                length = let(
                    m,
                    f"length{tried}_{split}_{short}",
                    Mux(widths.masked, n * masked_core, n * core)
                    + (2 * escapes if short else 0)
                    + (fields.as_unsigned() if short else fields)[: len(escapes)] * wide.bits,
                )
                fits = wide.fits & (core_now > 0) & (length <= room)
                offset = grid.offset if from_mean else C(0, signed(1))
                new = (fits, length, offset, core_now, C(short, 1), wide.bits, escapes)
                if best is None:
                    best = new
                    continue
                better = let(m, f"better{tried}_{split}_{short}", fits & (~best[0] | (length < best[1])))
                best = (fits | best[0], *(Mux(better, a, b) for a, b in zip(new[1:], best[1:], strict=True)))
                best = tuple(let(m, f"best{tried}_{split}_{short}_{i}", part) for i, part in enumerate(best))
        fits, length, offset, core_now, short, wide_bits, escapes = best
        m.d.comb += [
            shortest.fits.eq(fits & grid.may),
            shortest.length.eq(length),
            shortest.offset.eq(offset),
            shortest.core.eq(core_now),
            shortest.short.eq(short),
            shortest.wide.eq(wide_bits),
            shortest.escapes.eq(escapes),
        ]
    m.d.comb += [
        lengths.finer.eq(widths.finer),
        lengths.above.eq(widths.above),
        lengths.masked.eq(widths.masked),
        lengths.last.eq(widths.last),
    ]


def _choose(m: Module, engine: StepEngine, lengths, chosen) -> None:
    m.d.comb += [
        chosen.alone.eq(1),
        chosen.wide.eq(MASKED),
        chosen.masked.eq(lengths.masked),
        chosen.last.eq(lengths.last),
    ]
    for tried in reversed(range(_TRIED)):
        grid = lengths.tried[tried]
        finer = _grid_of(lengths.finer, tried)
        with m.If(grid.fits):
            m.d.comb += [
                chosen.alone.eq(0),
                chosen.finer.eq(finer),
                chosen.grid.eq(lengths.above - finer),
                chosen.offset.eq(grid.offset),
                chosen.core.eq(grid.core),
                chosen.least.eq((C(1) << grid.core) >> 1),
                chosen.short.eq(grid.short),
                chosen.wide.eq(grid.wide),
                chosen.escapes.eq(grid.escapes),
                chosen.length.eq(grid.length + Mux(lengths.masked, engine.block, 0)),
            ]
