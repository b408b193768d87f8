"""What the Python source says of a component: its class, its first sentence, and its ports."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent.parent
_PACKAGES = "/site-packages/"


@dataclass(frozen=True)
class Component:
    """What is known of a component.

    Attributes:
        name: of its class, "" if its source is no class.
        place: file and line, from the repository's root.
        summary: the first sentence of its docstring.
        members: the docstring's "Members" by name: what each port is.
    """

    name: str = ""
    place: str = ""
    summary: str = ""
    members: dict[str, str] = field(default_factory=dict)

    def member(self, port: str) -> str:
        """What the docstring says of a port; of a stream it says it of all ports together."""
        for name, text in self.members.items():
            if re.fullmatch(name.replace("*", ".*"), port) or port.startswith(f"{name}_"):
                return text
        return ""


def place(source: str) -> str:
    """A source as Amaranth notes it, ``/…/rtl/planes/coder.py:57``, without what is before the repository."""
    file, _, line = source.rpartition(":")
    if _PACKAGES in file:
        return f"{file.rpartition(_PACKAGES)[2]}:{line}"
    return f"{Path(file).relative_to(_ROOT).as_posix()}:{line}" if _is_own(file) else ""


def line(source: str) -> str:
    """The same of what is in the repository; "" of what Amaranth itself has."""
    return place(source) if _is_own(source.rpartition(":")[0]) else ""


def _is_own(file: str) -> bool:
    return _PACKAGES not in file and Path(file).is_relative_to(_ROOT)


def component(source: str) -> Component:
    """The component that is elaborated at a source's line."""
    file, _, line = source.rpartition(":")
    here = place(source)
    if not here or not line.isdecimal():
        return Component()
    around = [node for node in _classes(file) if node.lineno <= int(line) <= (node.end_lineno or 0)]
    if not around:
        return Component(place=here)
    inner = max(around, key=lambda node: node.lineno)
    # What Amaranth itself has is named, not quoted.
    text = (ast.get_docstring(inner) or "") if _is_own(file) else ""
    if not text and inner.name.startswith("_"):
        return Component(place=here)
    return Component(inner.name, here, _sentence(text), dict(_members(text)))


@cache
def _classes(file: str) -> list[ast.ClassDef]:
    tree = ast.parse(Path(file).read_text())
    return [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def _sentence(text: str) -> str:
    """The first sentence, in plain text."""
    first = re.split(r"(?<=[.:])\s", _plain(text.split("\n\n")[0]), maxsplit=1)[0]
    return first.rstrip(":") + "." * first.endswith(":")


def _plain(text: str) -> str:
    """A docstring's text on one line, without what marks names."""
    text = re.sub(r":\w+:`~?([^`]*)`", r"\1", " ".join(text.split()))
    return text.replace("``", "").replace("`", "")


def _members(text: str) -> Iterator[tuple[str, str]]:
    """Name and text of each entry of the section "Members"."""
    section = re.search(r"^Members:\n(.*?)(?=^\S|\Z)", inspect.cleandoc(text), re.MULTILINE | re.DOTALL)
    for entry in re.split(r"\n(?=    \S)", section[1] if section else ""):
        names, mark, said = entry.strip().partition(": ")
        if mark:
            for name in names.split(", "):
                yield name, _plain(said)
