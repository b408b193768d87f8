"""What a cell library in Liberty says of its cells: a reader that takes files as they are found.

Attributes may lack their semicolon, a file may be compressed with gzip, and a library may be several files.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_STRING = r'"[^"]*"'
# In the order of trial: an attribute up to its semicolon or its line's end, a group's head or an attribute
# of several values, a group's end, and what means nothing.
_ITEM = re.compile(
    rf"(?P<name>\w+)\s*:\s*(?P<value>{_STRING}|[^;\n{{}}]*)"
    rf"|(?P<kind>\w+)\s*\((?P<values>(?:{_STRING}|[^()\"])*)\)\s*(?P<open>\{{?)"
    r"|(?P<close>\})"
    r"|[\s;]+"
)
_NAME = re.compile(r"[A-Za-z_]\w*")
_LIBRARY = re.compile(r"^\s*library\s*\(", re.MULTILINE)
_GZIP = b"\x1f\x8b"


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


def read(path: Path) -> str:
    """The text of a library's file, plain or compressed with gzip.

    Raises:
        ValueError: there is no such file, or it is no library.
    """
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if content.startswith(_GZIP) else content).decode(errors="replace")
    except (OSError, EOFError) as error:
        raise ValueError(f"LIBERTY must be a cell library's file, not {str(path)!r}: {error}") from error
    if not _LIBRARY.search(text):
        raise ValueError(f"LIBERTY must be a cell library's file, not {str(path)!r}")
    return text


def time_unit(text: str) -> float:
    """A library's unit of time, ps.

    Raises:
        ValueError: it has none.
    """
    found = re.search(r"""time_unit\s*:\s*"?\s*([\d.]+)\s*([munpf]?)s""", text)
    if not found:
        raise ValueError(f"a library must say its unit of time, not begin with {text[:40]!r}")
    return float(found[1]) * {"": 1e12, "m": 1e9, "u": 1e6, "n": 1e3, "p": 1.0, "f": 1e-3}[found[2]]


def parse(text: str) -> Group:
    """The library's group.

    Raises:
        ValueError: the text ends too soon, or has what is neither attribute nor group.
    """
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL).replace("\\\n", " ")
    top = Group("", "")
    within = [top]
    at = 0
    while at < len(text):
        item = _ITEM.match(text, at)
        if not item:
            line = text[at:].partition("\n")[0]
            raise ValueError(f"a library must consist of attributes and groups, not {line!r}")
        at = item.end()
        if item["name"]:
            within[-1].attributes[item["name"]] = item["value"].strip().strip('"')
        elif item["kind"]:
            values = " ".join(re.findall(r'[^\s,"]+', item["values"]))
            if item["open"]:
                within[-1].groups.append(Group(item["kind"], values))
                within.append(within[-1].groups[-1])
            else:
                within[-1].attributes[item["kind"]] = values
        elif item["close"]:
            within.pop()
            if not within:
                raise ValueError("a library must end its groups once, not more often")
    if within != [top] or not top.groups:
        raise ValueError("a library must end its groups, not in the middle of one")
    return top.groups[0]


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


def table(group: Group, template: Group) -> tuple[list[list[float]], list[list[float]]]:
    """The axes of a table of values, which are its template's unless it has its own, and its rows."""

    def numbers(text: str) -> list[float]:
        return [float(number) for number in text.replace(",", " ").split()]

    values = numbers(group.attributes["values"])
    indices = [group.attributes.get(name, template.attributes.get(name)) for name in ("index_1", "index_2")]
    axes = [numbers(index) for index in indices if index is not None]
    width = len(axes[-1]) if axes else 1
    return axes, [values[start : start + width] for start in range(0, len(values), width)]
