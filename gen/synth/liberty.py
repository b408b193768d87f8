"""What a cell library in Liberty says of its cells' functions, capacitances and energies."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_TOKEN = re.compile(r'"[^"]*"|[^\s{}();:,"]+|[{}();:,]')
_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass
class Group:
    """A group: ``kind (name) { attribute : value; kind (values); ... }``."""

    kind: str
    name: str
    attributes: dict[str, str] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)

    def all(self, kind: str) -> Iterator[Group]:
        """Its groups of a kind."""
        return (group for group in self.groups if group.kind == kind)


def parse(text: str) -> Group:
    """The library's group.

    Raises:
        ValueError: the text ends too soon.
    """
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL).replace("\\\n", " ")
    tokens = _TOKEN.findall(text)
    top = Group("", "")
    try:
        _body([*tokens, "}"], 0, top)
    except IndexError:
        raise ValueError("a library must end its groups, not in the middle of one") from None
    return top.groups[0]


def _body(tokens: list[str], at: int, group: Group) -> int:
    """Read what is in a group; the place behind its end."""
    while tokens[at] != "}":
        name = tokens[at]
        if name == ";":
            at += 1
        elif tokens[at + 1] == ":":
            end = tokens.index(";", at)
            group.attributes[name] = " ".join(tokens[at + 2 : end]).strip('"')
            at = end + 1
        else:
            end = tokens.index(")", at)
            values = " ".join(token.strip('"') for token in tokens[at + 2 : end] if token != ",")
            at = end + 1
            if at < len(tokens) and tokens[at] == "{":
                inner = Group(name, values)
                group.groups.append(inner)
                at = _body(tokens, at + 1, inner) + 1
            else:
                group.attributes[name] = values
    return at


def expression(function: str) -> tuple[str, list[str]]:
    """A function as Python on integers, of any sign, its pins in braces; and the pins that it reads."""
    pins = list(dict.fromkeys(_NAME.findall(function)))
    text = re.sub(r"\s*([+^|&*()!'])\s*", r"\1", function.strip())
    if "'" in text:
        raise ValueError(f"a function must not have a postfix ', as in {function!r}")
    # What stands side by side is an AND.
    text = (
        re.sub(r"(?<=\w)\s+(?=\w)|(?<=\w)(?=[(!])|(?<=\))(?=[\w(!])", "&", text)
        .replace("*", "&")
        .replace("+", "|")
    )
    return _NAME.sub(lambda pin: "{" + pin[0] + "}", text).replace("!", "~"), pins


def table(group: Group) -> tuple[list[list[float]], list[list[float]]]:
    """The axes of a table of values, and its rows."""

    def numbers(text: str) -> list[float]:
        return [float(number) for number in text.replace(",", " ").split()]

    axes = [numbers(group.attributes[name]) for name in ("index_1", "index_2") if name in group.attributes]
    values = numbers(group.attributes["values"])
    width = len(axes[-1]) if axes else 1
    return axes, [values[start : start + width] for start in range(0, len(values), width)]
