"""The compressor of the step format, third part: each block's grid, and its core and escapes."""

from collections.abc import Iterator

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
from .step_noise import noise_layout, noise_of

__all__ = ["Chooser", "choice_layout", "in_fine_steps", "rounds_up"]

# Tried are the grid of the estimate, the next finer and the next coarser one, and the coarsest of all.
_TRIED = 4

# The finite values of a block that decide how wide its escapes are.
_EXTREMES = ("least", "most")

# Of a magnitude in fine steps.
_WHOLE_BITS = MAX_FINER


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
    """Codes each block at the tried grids, and takes the first at which it fits, with the shortest split.

    Members:
        noise: of the values of ``i``.
        estimate: what is known of their block.
        o: the steps, once their block's grid is chosen.
        block: how it is stored.
        noise_later: of the values of ``o``.
    """

    def __init__(self, engine: StepEngine):
        self._engine = engine
        steps = steps_of(engine, aligned_layout())
        super().__init__(
            {
                "go": In(1),
                "i": In(steps),
                "noise": In(noise_layout(engine)),
                "estimate": In(estimate_layout(engine)),
                "o": Out(steps),
                "block": Out(choice_layout(engine)),
                "noise_later": Out(noise_layout(engine)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        engine, go = self._engine, self.go
        steps = Passage(m, go, self.i, engine.words + 4, "measured")
        ends = steps.ends
        measured = Register(m, _measured_layout(engine), go & steps.starts(0), "measured")
        _measure(m, engine, self.estimate, measured.next)
        counts, flags = _count(m, engine, go, steps, self.noise, self.estimate, measured.now)
        known = Register(m, _known_layout(engine), go & ends(0), "known")
        known_later = Register(m, known.now.shape(), go & ends(1), "known_later")
        measured_later = Register(m, measured.now.shape(), go & ends(1), "measured_later")
        m.d.comb += [
            *(known.next[name].eq(self.estimate[name]) for name, _ in known.now.shape()),
            known_later.next.eq(known.now),
            measured_later.next.eq(measured.now),
        ]
        widths = Register(m, _widths_layout(engine), go & ends(2), "widths")
        _find_widths(m, engine, known_later.now, measured_later.now, flags, widths.next)
        lengths = Register(m, _lengths_layout(engine), go & ends(3), "lengths")
        _find_lengths(m, engine, widths.now, counts, lengths.next)
        chosen = Register(m, choice_layout(engine), go & ends(4), "chosen")
        _choose(m, engine, lengths.now, chosen.next)
        m.d.comb += [
            self.o.tag.eq(steps.tags[-1]),
            self.o.lanes.eq(steps.lanes[-1]),
            self.block.eq(chosen.now),
        ]
        if engine.noise_bits:
            noise = noise_of(m, engine, go, steps.tags[-3], widths.now.known.key)
            m.d.comb += Value.cast(self.noise_later).eq(Cat(noise))
        return m


def _grid_of(finer: Value, tried: int) -> Value:
    """How often a tried grid halves the coarsest one; the last is the coarsest itself."""
    return C(0) if tried == _TRIED - 1 else finer + 1 - tried


def in_fine_steps(magnitude: Value, finer: Value) -> Value:
    """A magnitude in fine steps of a grid, with ``VALUE_BITS`` bits behind the point."""
    return (magnitude << finer)[: VALUE_BITS + MAX_FINER]


def rounds_up(m: Module, engine: StepEngine, name: str, scaled: Value, place: int, noise: Value) -> Value:
    """Whether a magnitude in fine steps is one more when it is rounded to ``2**place`` of them."""
    if not engine.noise_bits:
        return scaled[VALUE_BITS - 1 + place]
    return let(m, name, scaled[place : VALUE_BITS + place] + noise)[VALUE_BITS]


def _known_layout(engine: StepEngine) -> data.StructLayout:
    """What stays of an estimate when the block is measured."""
    names = ("finer", "finest", "finite", "above", "masked", "last", "key")
    return data.StructLayout({name: estimate_layout(engine).members[name] for name in names})


def _measured_layout(engine: StepEngine) -> data.StructLayout:
    """The extremes of a block, and what of its tried grids does not depend on single values.

    Members:
        whole: of an extreme's magnitude, in steps of the finest tried grid, cut off.
        negative: whether it is.
        up: whether it is one step more of each grid, if that depends on no random bits.
        offset: of the splits from the mean.
        zero: the grid is the coarsest one, in which all values are 0.
    """
    ups = 0 if engine.noise_bits else _TRIED - 1
    extreme = data.StructLayout({"whole": _WHOLE_BITS, "negative": 1, "up": ups})
    tried = data.StructLayout({"offset": signed(FIELDS["offset"]), "zero": 1})
    return data.StructLayout(
        {"least": extreme, "most": extreme, "tried": data.ArrayLayout(tried, _TRIED - 1)}
    )


def _measure(m: Module, engine: StepEngine, estimate, measured) -> None:
    for name in _EXTREMES:
        value, extreme = estimate[name], measured[name]
        negative = value < 0
        magnitude = Mux(negative, -value, value)[:VALUE_BITS]
        scaled = let(m, f"{name}_scaled", in_fine_steps(magnitude, estimate.finer))
        m.d.comb += [
            extreme.whole.eq(scaled[VALUE_BITS:]),
            extreme.negative.eq(negative),
            extreme.up.eq(scaled[VALUE_BITS - 1 :]),
        ]
    n = exact_log2(engine.block)
    for tried, grid in enumerate(measured.tried):
        finer = let(m, f"finer{tried}", _grid_of(estimate.finer, tried).as_signed())
        zero = finer <= 0
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


def _count(m: Module, engine: StepEngine, go: Value, steps: Passage, noise, estimate, measured):
    """Of each tried grid and core, how many escapes there are, and how many of these are the least.

    Returns:
        The counts, and for each extreme and tried grid the flag that :func:`_distance` takes.
    """
    # Beyond the cap a code is an escape, wherever the offset lies.
    cap = (MAX_OFFSET + (1 << engine.max_core - 1) + 1).bit_length()
    bits = min(cap + 2, _WHOLE_BITS)
    masked = Signal(reset_less=True)
    with m.If(go & steps.starts(0)):
        m.d.sync += masked.eq(estimate.masked)
    marks: dict[tuple, list[Signal]] = {}
    infinities = []
    found: dict[tuple, list[Value]] = {}
    minus_offsets = [let(m, f"minus_offset{i}", -grid.offset) for i, grid in enumerate(measured.tried)]
    cores = list(zip(splits_of(engine, False), splits_of(engine, True), strict=True))
    for i, lane in enumerate(steps.lanes[0]):
        scaled = let(m, f"scaled{i}", in_fine_steps(lane.magnitude, estimate.finer))
        kept = Signal(_WHOLE_BITS, name=f"kept{i}", reset_less=True)
        ups = Signal(_TRIED - 1, name=f"ups{i}", reset_less=True)
        rounded = [
            rounds_up(m, engine, f"up{tried}_{i}_sum", scaled, tried, noise[i]) for tried in range(_TRIED - 1)
        ]
        with m.If(go):
            m.d.sync += [kept.eq(scaled[VALUE_BITS:]), ups.eq(Cat(rounded))]
        value = steps.lanes[1][i]
        infinity = let(m, f"infinity{i}", value.special & value.magnitude[0])
        infinities.append(infinity)
        if engine.noise_bits:
            for key, flag in _flags(m, i, value, kept, ups, measured):
                found.setdefault(key, []).append(flag)
        too_large = let(m, f"too_large{i}", kept[bits:].any())
        for tried in range(_TRIED - 1):
            there = ~measured.tried[tried].zero
            whole = kept[tried:bits] | too_large.replicate(bits - tried)
            whole = let(m, f"whole{tried}_{i}", whole & there.replicate(bits - tried))
            up = let(m, f"up{tried}_{i}", ups[tried] & there)
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
    flags = {}
    for (name, tried), column in found.items():
        flag = Signal(name=f"{name}_flag{tried}", reset_less=True)
        with m.If(go):
            m.d.sync += flag.eq((flag & ~steps.tags[1].first) | Cat(column).any())
        flags[name, tried] = flag
    return counts, flags


def _flags(m: Module, i: int, value, kept: Value, ups: Value, measured) -> Iterator[tuple[tuple, Value]]:
    """Whether a value that is cut off to the same steps as an extreme becomes the number farther out."""
    for name in _EXTREMES:
        extreme = measured[name]
        differs = kept ^ extreme.whole
        same = ~value.special & (value.negative == extreme.negative)
        for tried in range(_TRIED - 1):
            is_equal = let(m, f"{name}_is{tried}_{i}", same & ~differs[tried:].any())
            outward = value.negative if name == "least" else ~value.negative
            yield (name, tried), is_equal & (ups[tried] == outward)


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
    return data.StructLayout({"tried": data.ArrayLayout(tried, _TRIED), "known": _known_layout(engine)})


def _find_widths(m: Module, engine: StepEngine, known, measured, flags, widths) -> None:
    # The codes of infinities are no larger than 1, and in a block with specials the width is given.
    cores = list(zip(splits_of(engine, False), splits_of(engine, True), strict=True))
    for tried, grid in enumerate(widths.tried):
        zero, offset, may = C(1), C(0, signed(1)), C(1)
        if tried < _TRIED - 1:
            zero, offset = measured.tried[tried].zero, measured.tried[tried].offset
            may = {0: known.finer < known.finest, 1: C(1), 2: known.finer > 0}[tried]
        m.d.comb += [grid.offset.eq(offset), grid.may.eq(may)]
        for split, ((core, from_mean), (masked_core, _)) in enumerate(cores):
            taken = offset if from_mean else C(0, signed(1))
            up, down = (
                _distance(m, name, tried, split, measured, flags, zero, taken) for name in ("most", "least")
            )
            size = Mux(up > down, up, down)
            size = let(m, f"size{tried}_{split}", Mux(known.finite & (size > 0), size, 0))
            floor = Mux(known.masked, 1 << max(masked_core, 1) - 1, 1 << max(core, 1) - 1)
            for short in (0, 1):
                beyond = let(m, f"beyond{tried}_{split}_{short}", size - floor - short)
                found = let(m, f"length{tried}_{split}_{short}", _length(beyond[: len(beyond) - 1]))
                bits = Mux(beyond >= 0, found + 1 - short, 0)
                wide = grid.wide[split][short]
                m.d.comb += [
                    wide.bits.eq(Mux(known.masked, MASKED, bits)),
                    wide.fits.eq(bits <= Mux(known.masked, MASKED, MASKED - 1)),
                ]
    m.d.comb += widths.known.eq(known)


def _distance(m: Module, name: str, tried: int, split: int, measured, flags, zero, taken: Value) -> Value:
    """How far the greatest code lies above an offset, or the least below it.

    A rounded extreme is the steps to which it is cut off, or below 0 their complement, or it is the number
    next to these: a flag says whether it is the one that lies farther out.
    """
    if tried == _TRIED - 1:
        return -taken if name == "most" else taken
    extreme = measured[name]
    outward = extreme.negative if name == "least" else ~extreme.negative
    flag = flags[name, tried] if flags else extreme.up[tried] == outward
    cut = extreme.whole[tried:]
    base = Mux(zero, 0, Cat(cut ^ extreme.negative.replicate(len(cut)), extreme.negative)).as_signed()
    flag = Mux(zero, name == "least", flag)
    farther = let(m, f"{name}_farther{tried}_{split}", flag)
    if name == "most":
        return let(m, f"most{tried}_{split}", with_carry(base, -taken, farther))
    return let(m, f"least{tried}_{split}", with_carry(~base, taken, farther))


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
    known = widths.known
    room = Mux(known.masked, engine.room - n, engine.room)
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
                escapes = least = Mux(Mux(known.masked, masked_core, core) == 1, found, 0)
            core_now = let(m, f"core{tried}_{split}", Mux(known.masked, masked_core, core))
            for short in (0, 1):
                wide = grid.wide[split][short]
                fields = escapes - least if short else escapes
                length = let(
                    m,
                    f"length{tried}_{split}_{short}",
                    Mux(known.masked, n * masked_core, n * core)
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
    m.d.comb += [lengths[name].eq(known[name]) for name in ("finer", "above", "masked", "last")]


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
