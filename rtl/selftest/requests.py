"""What a host asks the self-test for, and what it is told."""

from enum import IntEnum

from amaranth.lib import data

from .signature import signature_layout

__all__ = ["FRAME_BYTES", "Command", "Place", "request_layout", "verdict_layout"]

FRAME_BYTES = 1024  # of data in a frame, at most


class Command(IntEnum):
    """What a frame asks for."""

    READ = 1  # ``count`` words of a place, from ``address`` on: the reply carries them
    WRITE = 2  # the frame's data, whole words, to a place from ``address`` on
    RUN = 3  # put ``count`` words of a place through engines


class Place(IntEnum):
    """Where words are."""

    UNCOMPRESSED = 0  # memory of uncompressed words; every run leaves what is decompressed there
    STORED = 1  # memory of compressed words; a run from here decompresses only
    ABOUT = 2  # what the design is; of :attr:`Command.READ` only
    VERDICT = 3  # what the last run found, see :func:`verdict_layout`; of :attr:`Command.READ` only
    GENERATED = 4  # words of a :class:`rtl.selftest.Generator`; of :attr:`Command.RUN` only


def request_layout() -> data.StructLayout:
    """What stands before a frame's data.

    Members:
        sequence: the reply has the same. A run with that of the frame before is a repetition: it is
            answered, not done again.
        command, place: see :class:`Command`, :class:`Place`; the reply has the same command.
        format: which one of the design's.
        address, count: in words.
        empty: of a run from :attr:`Place.STORED`, bytes that the last word lacks.
        first: number of the first block.
        seed, mask, ones: see :class:`rtl.selftest.Generator`.
    """
    bytes_first = dict.fromkeys(("sequence", "command", "place", "format"), 8)
    address = {"address": 16, "empty": 8, "unused": 8}
    return data.StructLayout(
        bytes_first | address | dict.fromkeys(("count", "first", "seed", "mask", "ones"), 32)
    )


def verdict_layout(bus_bytes: int) -> data.StructLayout:
    """What a run has found.

    Args:
        bus_bytes: bytes of a word.

    Members:
        busy: it is still going on.
        cycles: how long it took.
        taken, stored, given: words into the compressor, into the decompressor, and out of it.
        errors: words that came out with ``error``.
        lost: frames that were dropped since the start: the CRC wrong, too long, or none was awaited.
        stored_signature, given_signature: of the words into the decompressor and out of it, see
            :mod:`rtl.selftest.signature`.
    """
    names = ("busy", "cycles", "taken", "stored", "given", "errors", "lost")
    signature = signature_layout(bus_bytes)
    return data.StructLayout(
        dict.fromkeys(names, 32) | {"stored_signature": signature, "given_signature": signature}
    )
