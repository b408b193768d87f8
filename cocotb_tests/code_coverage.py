"""Line and toggle coverage of the generated Verilog, read from what a Verilator model leaves behind."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gen import netlist
from gen.config import Config
from gen.verilog import module_name
from golden import Format, HadamardFormat, PlaneFormat
from golden.hadamard import LEVELS


class Point(NamedTuple):
    """Something a run can reach: a branch, or a rise or fall of a bit.

    Attributes:
        place: of a branch ``engine.v:line``, or which case of what it is; of a bit the same as ``signal``.
        signal: the bit itself, or the branch's condition if that is a signal; the submodules before its name.
        bit: of the signal.
        hits: how often it was reached.
    """

    place: str
    signal: str
    bit: int
    hits: int


@dataclass(frozen=True)
class CodeCoverage:
    """How much of an engine's Verilog the benches reached.

    Lines are its branches. Toggles are the rises and falls of every bit of every signal that rtl/ names; what
    Amaranth numbers (``$12``) is a term of an expression. Bits that ABC proves to be constant cannot toggle,
    nor can a branch be taken against a constant condition; such points are left out.

    Attributes:
        lines, lines_reached, toggles, toggles_reached: numbers of points.
        constant: points left out.
        missed: for each branch or signal that was not fully reached, how many of its points were not.
        waived: why, for those that have a reason.
    """

    config: str
    part: str
    lines: int
    lines_reached: int
    toggles: int
    toggles_reached: int
    constant: int
    missed: dict[str, int]
    waived: dict[str, str]

    def as_row(self) -> dict[str, Any]:
        why = Counter[str]()
        for place, count in self.missed.items():
            where = place.removeprefix("inner.").split(".")[0]
            why[self.waived.get(place, f"without a reason, in {where}")] += count
        return {
            "config": self.config,
            "part": self.part,
            "lines": self.lines,
            "lines_percent": 100 * self.lines_reached / self.lines,
            "toggles": self.toggles,
            "toggles_percent": 100 * self.toggles_reached / self.toggles,
            "constant": self.constant,
            "missed": "; ".join(f"{count} {reason}" for reason, count in why.items()) or "none",
        }

    def complaints(self) -> list[str]:
        """What is below the aim of 95 %, and what was missed without a reason."""
        row = self.as_row()
        low = [f"{row[name]:.1f} %" for name in ("lines_percent", "toggles_percent") if row[name] < 95]
        bare = sorted(self.missed.keys() - self.waived.keys())
        return [f"{self.config} {self.part}: {what} reached" for what in low] + [
            f"{self.config} {self.part}: {place} was not reached" for place in bare
        ]


def read(config: Config, part: str, place: Path) -> CodeCoverage:
    """What a model reached whose ``engine.v`` and ``coverage.dat`` lie in a folder.

    Behind AXI4-Stream that is what was added: the engine inside is the same as without.
    """
    top = module_name(config, part)
    points = list(_points(place, top, "core." if config.interface == "axi" else None))
    suspects = sorted({point.signal for point in points if point.signal and not point.hits})
    variable = netlist.variable_bits(place / "engine.v", top, suspects)
    counted = [
        point for point in points if point.hits or not point.signal or (point.signal, point.bit) in variable
    ]
    missed = Counter(point.place for point in counted if not point.hits)
    lines = [point.hits > 0 for point in counted if point.place != point.signal]
    toggles = [point.hits > 0 for point in counted if point.place == point.signal]
    return CodeCoverage(
        config.name,
        part,
        lines=len(lines),
        lines_reached=sum(lines),
        toggles=len(toggles),
        toggles_reached=sum(toggles),
        constant=len(points) - len(counted),
        missed=dict(missed),
        waived={name: reason for name in missed if (reason := waiver(config, part, name))},
    )


def waiver(config: Config, part: str, place: str) -> str | None:
    """Why the benches do not reach a place, where no input can and ABC does not prove it."""
    if place == "inside":
        return "of a count that goes farther than an engine has room for tensors"
    is_end = re.fullmatch(r"m_axis_tkeep|(.*\.)?(word|o__?payload(\$\d+)?)\.empty", place)
    if part == "decompressor" and is_end and config.fmt.original_bytes < config.bus_bytes:
        return "of a word that ends within a block: values come out in whole blocks"
    if re.fullmatch(r"(.*\.)?(narrower|widener)\.\w+_words\.index is \d+'h0", place):
        return "of a word's first piece among those that follow it"
    if isinstance(config.fmt, PlaneFormat):
        return _plane_waiver(config.fmt, place)
    return _sums_waiver(config, place) or _hadamard_waiver(config.fmt, place)


def _sums_waiver(config: Config, place: str) -> str | None:
    """Of what follows from how large the sums are that a decompressor can have."""
    types = [fmt.float_type for fmt in config.formats]
    widest = max(types, key=lambda ft: ft.mantissa_bits)
    rounded = [ft.mantissa_bits for ft in types if ft.width == 16]
    carry = re.fullmatch(r"(.*\.)?composer(\$\d+)?\.float\d+_(passes0|carry(\d+))", place)
    if carry and rounded:
        last = max(rounded) + (8 if widest.exponent_bits == 8 else 7)
        if int(carry[4] or last) == last:
            return "of a rounding's carry through an exponent field of ones alone: no sum's is so large"
    if re.fullmatch(r"(.*\.)?composer(\$\d+)?\.rows\d+_to\d+_\d+_\d+_carry", place):
        return "of two bits of a sum that together are larger than any sum is"
    small = [fmt for fmt in config.formats if fmt.float_type.exponent_bits < 8]
    is_moved = re.fullmatch(r"(.*\.)?composer(\$\d+)?\.moved\d+_by[1248]", place)
    if is_moved and 0 < len(small) < len(config.formats) and all(_step(fmt) % 4 == 0 for fmt in small):
        return "of a product's lowest bits: only fp16 moves them by less than eight, where they are 0"
    return None


def _step(fmt: Format) -> int:
    """What all sums of a block's levels are multiples of."""
    levels = [LEVELS[width] for width in fmt.widths if width]
    most = sum(of_width[-1] for of_width in levels)
    return math.gcd(
        most, *(of_width[-1] + sign * level for of_width in levels for level in of_width for sign in (-1, 1))
    )


def _plane_waiver(fmt: PlaneFormat, place: str) -> str | None:
    exponent_bits, slots = fmt.float_type.exponent_bits, fmt.slots
    plane = re.fullmatch(r".*\.planes\[(\d+)\]", place)
    if plane and 1 <= int(plane[1]) <= exponent_bits - slots:
        return f"of delta bits: no block keeps more than {slots} exponent planes"
    if re.fullmatch(r"(inner\.)?placer\.moved_by_[248]_0", place):
        return "of a carry's mark: only the last move, by one plane, brings a mantissa plane to the front"
    return None


def _hadamard_waiver(fmt: HadamardFormat, place: str) -> str | None:
    if re.fullmatch(r"(.*\.)?thresholds(\$\d+)?\.\w*\[\d+:\d+\] is 8'h[0-3][0-9a-f]", place):
        return "of a table's entries for numbers below 64: the upper bits of an energy are from 64 on, or 0"
    if re.fullmatch(r"(.*\.)?aligner(\$\d+)?\.(group_)?below\d+_inverse(_\w+)?", place):
        return "of a difference's borrow: no exponent is larger than the largest"
    if re.fullmatch(r"(.*\.)?(root|of4(\[[01]\])?)", place):
        return "of a root's leading bit and its multiples by powers of two: it is one from the first block on"
    has_odd_energy = fmt.block.bit_length() % 2 == 0
    if has_odd_energy and re.fullmatch(r"(.*\.)?quantiser\.threshold(_of)?\d+_\d+(_by\d+)?", place):
        return "of a threshold's highest bit: an energy of an odd number of bits has a zero before them"
    if has_odd_energy and re.fullmatch(
        r"(.*\.)?scaler(\$\d+)?\.(energy_moved|undivided|state\d+|reduced\d+)(\.rest)?", place
    ):
        return "of a dividend's lowest bits: an energy of an odd number of bits is moved by one at least"
    largest = [LEVELS[width][-1] for width in fmt.widths if width]
    is_short = sum(largest).bit_length() < (fmt.block * max(largest)).bit_length()
    if is_short and re.fullmatch(r"(.*\.)?reader\.(stage\d+_\d+_\d+|value\d+_magnitude)", place):
        return "of a sum as large as if all fields were as wide as the widest"
    if re.fullmatch(r"(.*\.)?product(\$\d+)?\.blocks_to\d+_2[4-9]_\d+_(carry|sum)", place):
        return "of constants of negated terms, which registers hold from the first word on"
    if re.fullmatch(r"(.*\.)?product(\$\d+)?\.words_to\d+_[23]_\d+_carry", place):
        return "of two terms of a coefficient that exclude each other"
    carries = r"(.*\.)?aligner(\$\d+)?\.rounded\d+_(carry([7-9]|1\d)|passes[48])"
    if fmt.dtype == "bf16" and re.fullmatch(carries, place):
        return "of a rounding's carry through eight ones: a bfloat16 has no ninth bit to round by"
    return None


def _points(place: Path, top: str, without: str | None) -> Iterator[Point]:
    """The points of a coverage.dat that stand for something in rtl/, but for those in a submodule.

    A line of it is ``C 'key\x02value\x01key\x02value…' hits``; in names, what identifiers of C cannot hold
    stands as ``__0`` and its code. Modules are named by their place: the engine's name, then the submodules'.
    """
    source = (place / "engine.v").read_text().splitlines()
    for line in (place / "coverage.dat").read_text().splitlines():
        if not line.startswith("C '"):
            continue
        fields, hits = line[3:].rsplit("' ", 1)
        point = dict(field.split("\x02", 1) for field in fields.split("\x01") if field)
        kind, module = point["page"].split("/", 1)
        path = f"{module.removeprefix(top)}.".removeprefix(".")
        if without and path.startswith(without):
            continue
        if kind == "v_toggle":
            plain = re.sub(r"__0([0-9A-Fa-f]{2})", lambda code: chr(int(code[1], 16)), point["o"])
            name, bit = re.fullmatch(r"(.*?)(?:\[(-?\d+)\])?:\d->\d", plain).groups()
            if not name.startswith("$"):
                yield Point(path + name, path + name, int(bit or 0), int(hits))
            continue
        text = source[int(point["l"]) - 1]
        if "dump_module" in text:  # Yosys starts each process with an if that does nothing
            continue
        condition = re.search(r"(?:if \(|= )(?:\\(\S+) |(\w+))(?:\[(\d+)\])? *[?)]", text)
        escaped, plain, bit = condition.groups() if condition else (None, None, None)
        signal = path + (escaped or plain) if condition else ""
        case = re.match(r" *(\d+'\w+) ?:", text)
        here = f"{path}{_chooses(source, int(point['l']))} is {case[1]}" if case else f"engine.v:{point['l']}"
        yield Point(here, signal, int(bit or 0), int(hits))


def _chooses(source: list[str], line: int) -> str:
    """What the cases of the Verilog's line are of."""
    return next(
        found[1] for text in source[line - 1 :: -1] if (found := re.search(r"casez? \((.*)\)$", text))
    )
