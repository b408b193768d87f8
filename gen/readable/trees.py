"""What a process assigns, as a tree of choices for each part of its target."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from .rtlil import Assign, Const, Sig, Slice, Statements, Switch, cut, width_of


@dataclass(frozen=True)
class If:
    """One value or another, by one bit."""

    condition: Sig
    then: Tree
    otherwise: Tree


@dataclass(frozen=True)
class Case:
    """The value of the first case with a pattern that matches, or another."""

    key: Sig
    cases: tuple[tuple[tuple[str, ...], Tree], ...]
    otherwise: Tree


Tree = Sig | If | Case


def one_bit(switch: Switch) -> list[tuple[Sig, bool]] | None:
    """Of a switch that stands for if, else if, ...: the bit of each case and its value; () is always true.

    None if a case is about several bits.
    """
    found: list[tuple[Sig, bool]] = []
    for patterns, _ in switch.cases:
        if not patterns:
            found.append(((), True))
            continue
        if len(patterns) != 1:
            return None
        places = [i for i, bit in enumerate(reversed(patterns[0])) if bit != "-"]
        if len(places) != 1:
            return None
        bit = patterns[0][len(patterns[0]) - 1 - places[0]]
        found.append((cut(switch.value, places[0], 1), bit == "1"))
    return found


def segments(body: Statements, width: int) -> list[tuple[int, int]]:
    """Parts of a target by where they begin and their width: each is assigned as a whole or not at all."""
    ends = {0, width}

    def look(statements: Statements) -> None:
        for statement in statements:
            if isinstance(statement, Assign):
                ends.update((statement.target.low, statement.target.low + statement.target.width))
            else:
                for _, inner in statement.cases:
                    look(inner)

    # What comes first is the value of all of it.
    look(body[1:])
    return [(low, high - low) for low, high in pairwise(sorted(ends))]


def tree(body: Statements, low: int, width: int, before: Tree = ()) -> Tree:
    """The value of a part of a target behind some statements.

    Args:
        before: its value if they do not assign it.
    """
    now = before
    for statement in body:
        if isinstance(statement, Assign):
            if covers(statement.target, low, width):
                now = cut(statement.value, low - statement.target.low, width)
        elif assigns(statement, low, width):
            now = _chosen(statement, low, width, now)
    return now


def covers(target: Slice, low: int, width: int) -> bool:
    return target.low <= low and low + width <= target.low + target.width


def assigns(switch: Switch, low: int, width: int) -> bool:
    """Whether a part is assigned in any of the cases."""
    for _, body in switch.cases:
        for statement in body:
            if isinstance(statement, Assign):
                if covers(statement.target, low, width):
                    return True
            elif assigns(statement, low, width):
                return True
    return False


def _chosen(switch: Switch, low: int, width: int, before: Tree) -> Tree:
    values = [tree(body, low, width, before) for _, body in switch.cases]
    bits = one_bit(switch)
    if bits is not None:
        now = before
        for (condition, is_high), value in reversed(list(zip(bits, values, strict=True))):
            if not condition:
                now = value
            elif value != now:
                now = If(condition, value, now) if is_high else If(condition, now, value)
        return now
    otherwise, cases = before, []
    for (patterns, _), value in zip(switch.cases, values, strict=True):
        if not patterns:
            otherwise = value
            break
        cases.append((tuple(patterns), value))
    return Case(switch.value, tuple(cases), otherwise)


def reads(value: Tree) -> list[Sig]:
    """What a tree reads, in its order."""
    if isinstance(value, tuple):
        return [value]
    if isinstance(value, If):
        return [value.condition, *reads(value.then), *reads(value.otherwise)]
    found = [value.key]
    for _, inner in value.cases:
        found += reads(inner)
    return [*found, *reads(value.otherwise)]


def is_constant(sig: Sig) -> bool:
    return all(isinstance(part, Const) for part in sig)


def width(value: Tree) -> int:
    if isinstance(value, tuple):
        return width_of(value)
    return width(value.then if isinstance(value, If) else value.otherwise)
