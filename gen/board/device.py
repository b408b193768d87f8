"""The self-test as the host sees it: memories, runs and their verdicts, in bytes and blocks."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, fields
from functools import cache
from typing import Any

import numpy as np

from golden import FORMATS, Format
from rtl.selftest import FRAME_BYTES, Command, Place, verdict_layout

from ..project import VERSION
from ..verilog import digest
from .link import Link, LinkError, Request

NAME = "bitstash"
_LONGEST_RUN = 60.0  # seconds


@cache
def _sources() -> str:
    """A digest of what the design is made from, its parameters aside, and of what it is held to."""
    return digest("", ("golden", "rtl"))[:16]


@dataclass(frozen=True)
class About:
    """What a design says of itself.

    Attributes:
        name, version: of the project.
        sources: a digest of ``golden/``, ``rtl/`` and Amaranth's version.
        bus_bytes: bytes of a word.
        memory_bytes: of each of its two memories.
        formats: which engines it has.
    """

    name: str
    version: str
    sources: str
    bus_bytes: int
    memory_bytes: int
    formats: tuple[Format, ...]

    @classmethod
    def of(cls, formats: tuple[Format, ...], bus_bytes: int, memory_bytes: int) -> About:
        """This checkout's."""
        return cls(NAME, VERSION, _sources(), bus_bytes, memory_bytes, formats)

    def __str__(self) -> str:
        formats = " and ".join(map(describe, self.formats))
        return f"{self.name} {self.version}, words of {self.bus_bytes} bytes: {formats}"

    def text(self) -> bytes:
        formats = [{"scheme": fmt.scheme, **asdict(fmt)} for fmt in self.formats]
        return json.dumps(vars(self) | {"formats": formats}, separators=(",", ":")).encode()

    @classmethod
    def read(cls, text: bytes) -> About:
        """Raises LinkError for what is not this checkout's."""
        try:
            fields: dict[str, Any] = json.loads(text)
            name, found = fields["name"], fields["version"]
        except (ValueError, KeyError, TypeError):
            raise LinkError(_another(text)) from None
        if name != NAME:
            raise LinkError(f"the design must be {NAME!r}, not {name!r}: another bitstream is loaded")
        if found != VERSION:
            raise LinkError(
                f"the bitstream must be of version {VERSION}, not {found!r}: build and load it anew"
            )
        sources = fields.get("sources")
        if sources != _sources():
            raise LinkError(
                f"the bitstream must be built from these sources, {_sources()}, not from {sources!r}: build "
                "and load it anew"
            )
        try:
            formats = fields.pop("formats")
            kinds = [FORMATS[parameters.pop("scheme")](**parameters) for parameters in formats]
            return cls(**fields, formats=tuple(kinds))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LinkError(
                f"the bitstream must describe itself as this source does, not by {error}: build and load it "
                "anew"
            ) from None


def describe(fmt: Format) -> str:
    """A format in words."""
    return f"{fmt.scheme} of {fmt.block} {fmt.dtype} in {fmt.target} bytes"


def _another(text: bytes) -> str:
    return (
        f"the design must say what it is, not {text[:40]!r}: another bitstream is loaded, or the port echoes "
        "what it is sent"
    )


@dataclass(frozen=True)
class Verdict:
    """What a run has found: see :func:`rtl.selftest.verdict_layout`."""

    busy: int
    cycles: int
    taken: int
    stored: int
    given: int
    errors: int
    lost: int
    stored_signature: tuple[int, ...]
    given_signature: tuple[int, ...]

    @classmethod
    def read(cls, content: bytes) -> Verdict:
        """That of the layout's bytes."""
        numbers = np.frombuffer(content, "<u4").tolist()
        *counts, _, _ = (field.name for field in fields(cls))
        lanes = (len(numbers) - len(counts)) // 2
        stored, given = tuple(numbers[-2 * lanes : -lanes]), tuple(numbers[-lanes:])
        named: dict[str, Any] = dict(zip(counts, numbers, strict=False))
        return cls(**named, stored_signature=stored, given_signature=given)


class Device:
    """A board, or its simulation, with the self-test on it.

    Args:
        link: to it.

    Raises:
        LinkError: it does not answer, or is another design.
    """

    def __init__(self, link: Link):
        self.link = link
        head = self._words(Place.ABOUT, 0, 1)
        size = len(head)
        length = 2 + int.from_bytes(head[:2], "little")
        if length > FRAME_BYTES:
            raise LinkError(_another(head))
        text = self._words(Place.ABOUT, 0, -(-length // size))
        self.about = About.read(text[2:length])

    @property
    def bus_bytes(self) -> int:
        return self.about.bus_bytes

    def write(self, place: Place, content: bytes) -> None:
        """Bytes to a memory, filled up to whole words with zeros."""
        content += bytes(-len(content) % self.bus_bytes)
        for start in range(0, len(content), FRAME_BYTES):
            piece = content[start : start + FRAME_BYTES]
            self.link.ask(Request(Command.WRITE, place, address=start // self.bus_bytes, data=piece))

    def read(self, place: Place, size: int) -> bytes:
        """The first bytes of a memory."""
        found = b""
        while len(found) < size:
            count = min(-(-(size - len(found)) // self.bus_bytes), FRAME_BYTES // self.bus_bytes)
            found += self._words(place, len(found) // self.bus_bytes, count)
        return found[:size]

    def run(self, fmt: Format, place: Place, size: int, **of_request: Any) -> Verdict:
        """Put bytes of a memory, or of the generator, through a format's engines.

        Args:
            fmt: one of the design's.
            place: where they are.
            size: how many; whole words, unless they are compressed.
            of_request: "first", "seed", "mask", "ones" as a request has them.

        Raises:
            LinkError: the run does not end.
        """
        count = -(-size // self.bus_bytes)
        empty = -size % self.bus_bytes
        index = self.about.formats.index(fmt)
        self.link.ask(Request(Command.RUN, place, index, empty=empty, count=count, **of_request))
        ends = time.monotonic() + _LONGEST_RUN
        while (verdict := self.verdict()).busy:
            if time.monotonic() > ends:
                raise LinkError(f"the run must end, not go on for {_LONGEST_RUN:.0f} s: {verdict}")
        return verdict

    def verdict(self) -> Verdict:
        size = verdict_layout(self.bus_bytes).size // 8
        return Verdict.read(self._words(Place.VERDICT, 0, -(-size // self.bus_bytes))[:size])

    def _words(self, place: Place, address: int, count: int) -> bytes:
        return self.link.ask(Request(Command.READ, place, address=address, count=count))
