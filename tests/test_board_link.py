"""The host's link to a board: frames, and ports that are no board, or one no longer."""

import errno
import json
import os
import time

import pytest
import serial

from gen.board.device import About, Device
from gen.board.link import Link, LinkError, decode, encode, open_port
from golden import HadamardFormat

ABOUT = About.of((HadamardFormat("fp32", 64, 16),), bus_bytes=16, memory_bytes=2048)


def test_frames_carry_all_bytes_and_show_their_faults():
    content = bytes(range(256)) + b"\x7e\x7d\x5e\x7d\x7e"
    frame = encode(content)
    assert frame.count(b"\x7e") == 2
    assert decode(frame[1:-1]) == content
    for index in range(1, len(frame) - 1):
        assert decode(frame[1:index] + frame[index + 1 : -1]) is None


class Answers:
    """A port at which another design answers every frame alike."""

    def __init__(self, text):
        self._text, self._replies = len(text).to_bytes(2, "little") + text, b""

    def write(self, content):
        request = decode(content.strip(b"\x7e"))
        self._replies += encode(request[:2] + self._text)

    def read(self, size=1):
        replies, self._replies = self._replies, b""
        return replies


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"hello", "the design must say what it is, not b'hello': another .*, or the port echoes"),
        (json.dumps({"name": "blinky", "version": "1"}).encode(), "must be 'bitstash', not 'blinky'"),
        (
            ABOUT.text().replace(ABOUT.version.encode(), b"0.0.1"),
            r"must be of version .*, not '0.0.1': build and load it anew",
        ),
    ],
)
def test_another_design_is_named(text, message):
    with pytest.raises(LinkError, match=message):
        Device(Link(Answers(text), 0.1))


def test_a_design_of_other_sources_is_named():
    text = ABOUT.text().replace(ABOUT.sources.encode(), b"0123456789abcdef")
    with pytest.raises(LinkError, match=f"these sources, {ABOUT.sources}, not from '0123456789abcdef'"):
        Device(Link(Answers(text), 0.1))
    for text in (ABOUT.text().replace(b"hadamard", b"lossy"), ABOUT.text().replace(b"bus_bytes", b"bytes")):
        with pytest.raises(LinkError, match="must describe itself as this source does"):
            Device(Link(Answers(text), 0.1))


class Talking:
    """A port of something else, which prints lines of its own."""

    def write(self, content):
        pass

    def read(self, size=1):
        return b"$GPGGA,123519,4807.038,N,01131.000,E,1,08,0.9,545.4,M,46.9,M,,*47\r\n" * 60


def test_a_port_that_talks_is_no_board():
    link = Link(Talking(), 0.05)
    with pytest.raises(LinkError, match="has not answered in 5 attempts"):
        Device(link)
    assert len(link._bytes) < 10_000


class Trickling:
    """A port at which one byte comes now and then, for ever."""

    def __init__(self, byte):
        self._byte, self._reads = byte, 0

    def write(self, content):
        pass

    def read(self, size=1):
        self._reads += 1
        assert self._reads < 100, "the host goes on listening"
        time.sleep(0.01)
        return self._byte


@pytest.mark.parametrize("byte", [b"~", b".", encode(b"no reply")])
def test_a_port_that_goes_on_talking_is_given_up(byte):
    with pytest.raises(LinkError, match="has not answered in 5 attempts"):
        Device(Link(Trickling(byte), 0.05))


class Unplugged:
    """A port whose cable has come off."""

    def write(self, content):
        pass

    def read(self, size=1):
        raise serial.SerialException("device reports readiness to read but returned no data")


def test_a_cable_that_comes_off_is_an_error_that_says_so():
    with pytest.raises(LinkError, match=r"not fail: device reports .* no data: has the cable come off, or"):
        Device(Link(Unplugged(), 0.1))
    ours, theirs = os.openpty()
    with open_port(os.ttyname(theirs)) as opened:
        os.close(theirs)
        os.close(ours)
        with pytest.raises(LinkError, match="has the cable come off, or"):
            Device(Link(opened, 0.1))


def test_a_port_that_may_not_be_opened_says_how_it_may(monkeypatch):
    def refuses(*arguments):
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuses)
        with pytest.raises(LinkError) as refused:
            open_port("/dev/ttyUSB0")
    assert "permission to open, not '/dev/ttyUSB0': on Linux be in the group dialout" in str(refused.value)


class Silence:
    def write(self, content):
        pass

    def read(self, size=1):
        return b""


def test_a_port_without_a_board_is_an_error_that_says_so():
    with pytest.raises(LinkError, match="has not answered in 5 attempts: is the bitstream loaded"):
        Device(Link(Silence(), 0.01))
    with pytest.raises(LinkError, match="port must be that of a board, not '/dev/none'"):
        open_port("/dev/none")
