"""The host's end of the UART: a frame out, a frame back, sent again if either is lost."""

from __future__ import annotations

import errno
import os
import random
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import serial
from serial.tools import list_ports

from rtl.selftest import FRAME_BYTES, Command, Place, request_layout
from rtl.selftest.frames import CRC_BYTES, ESCAPE, FLAG, FLIP

BAUD = 1_000_000
_ATTEMPTS = 5
_LONGEST = 2 * (2 + FRAME_BYTES + CRC_BYTES)  # bytes of a reply without its flags: all may be escaped


class LinkError(RuntimeError):
    """The board does not answer, or not as the self-test does; the message says what to look at."""


class Port(Protocol):
    """What of a serial port is used."""

    def write(self, content: bytes, /) -> int | None: ...
    def read(self, size: int = 1, /) -> bytes: ...


@dataclass(frozen=True)
class Request:
    """See :func:`rtl.selftest.request_layout`; ``data`` follows it."""

    command: Command
    place: Place
    format: int = 0
    address: int = 0
    empty: int = 0
    count: int = 0
    first: int = 0
    seed: int = 0
    mask: int = 0
    ones: int = 0
    data: bytes = b""

    def content(self, sequence: int) -> bytes:
        """The bytes of its frame."""
        fields: dict[str, Any] = {"sequence": sequence, "unused": 0} | vars(self)
        parts = [int(fields[name]).to_bytes(part.width // 8, "little") for name, part in request_layout()]
        return b"".join(parts) + self.data


class Link:
    """Requests and replies over a serial port.

    Args:
        port: open, with a timeout for each read.
        patience: seconds after which a frame that was not answered is taken for lost, whatever else came.

    Attributes:
        errors: frames that were lost, in either direction.
    """

    def __init__(self, port: Port, patience: float = 1.0):
        self.errors = 0
        self._port = port
        self._patience = patience
        # Any but that of the last session's last frame will do: after that one a run would not start.
        self._sequence = random.randrange(256)
        self._bytes = bytearray()

    def ask(self, request: Request) -> bytes:
        """Send a request and return what its reply carries.

        Raises:
            LinkError: none came, or the port is gone.
        """
        self._sequence = (self._sequence + 1) % 256
        frame = encode(request.content(self._sequence))
        for _ in range(_ATTEMPTS):
            try:
                self._port.write(frame)
                for reply in self._replies():
                    if reply is None:
                        break
                    if reply[:2] == bytes((self._sequence, request.command)):
                        return reply[2:]
            except OSError as error:  # pyserial's own among them
                raise LinkError(
                    f"the port must stay open, not fail: {error}: has the cable come off, or does another "
                    "program use the port?"
                ) from None
            self.errors += 1
        raise LinkError(
            f"the self-test has not answered in {_ATTEMPTS} attempts: is the bitstream loaded, and is this "
            "the board's port?"
        )

    def _replies(self) -> Iterator[bytes | None]:
        """What is in frames, none where a CRC does not fit, for as long as an answer may take."""
        ends = time.monotonic() + self._patience
        while time.monotonic() < ends:
            if not (received := self._port.read(4096)):
                continue
            *frames, rest = (self._bytes + received).split(bytes([FLAG]))
            self._bytes = bytearray(rest[: _LONGEST + 1])  # more is no frame
            for frame in filter(None, frames):
                yield decode(bytes(frame))


def encode(content: bytes) -> bytes:
    """A frame, its flags included."""
    checked = content + zlib.crc32(content).to_bytes(CRC_BYTES, "little")
    for special in (ESCAPE, FLAG):  # escapes first: those that are put in stay
        checked = checked.replace(bytes([special]), bytes([ESCAPE, special ^ FLIP]))
    return bytes([FLAG]) + checked + bytes([FLAG])


def decode(frame: bytes) -> bytes | None:
    """What is in a frame without its flags; none if its CRC does not fit."""
    checked = bytearray()
    escaped = False
    for byte in frame:
        if byte == ESCAPE:
            escaped = True
        else:
            checked.append(byte ^ FLIP if escaped else byte)
            escaped = False
    content = bytes(checked[:-CRC_BYTES])
    return content if zlib.crc32(content).to_bytes(CRC_BYTES, "little") == checked[-CRC_BYTES:] else None


def open_port(name: str) -> serial.Serial:
    """A serial port by its name.

    Raises:
        LinkError: there is none, it may not be opened, or it is in use.
    """
    try:
        return serial.Serial(name, BAUD, timeout=0.02, exclusive=True)
    except (serial.SerialException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM):
            raise LinkError(
                f"port must be one that you have permission to open, not {name!r}: on Linux be in the group "
                "dialout (sudo usermod -aG dialout $USER, then log in anew)"
            ) from None
        there = ", ".join(port.device for port in list_ports.comports()) or "none"
        why = (isinstance(error, OSError) and error.errno and os.strerror(error.errno)) or error
        raise LinkError(
            f"port must be that of a board, not {name!r}: {why}; ports that there are: {there}"
        ) from None
