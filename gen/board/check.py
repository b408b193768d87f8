"""What the board did to blocks, against the golden model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from golden import Format
from rtl.selftest import Place

from .device import Device, Verdict
from .signature import signature_of


@dataclass
class Found:
    """What was compared so far.

    Attributes:
        blocks, mismatches: how many, and how many of them were wrong in any byte.
        cycles, taken: of the runs, and bytes of the uncompressed words that went in meanwhile.
    """

    blocks: int = 0
    mismatches: int = 0
    cycles: int = 0
    taken: int = 0


def batch_blocks(device: Device, fmt: Format) -> int:
    """How many of a format's blocks fit the memories."""
    return device.about.memory_bytes // fmt.raw_bytes


def check_compression(
    device: Device, fmt: Format, values: np.ndarray, place: Place, found: Found, **of_request: int
) -> np.ndarray:
    """Put whole blocks through both engines and compare what is stored and given.

    Args:
        device: with the format.
        fmt: the format.
        values: what the golden model is given, as many as fit.
        place: where the board has the same: the raw memory, to which they are sent, or the generator.
        found: what is added to.
        of_request: the number of the first block, and what the generator is told.

    Returns:
        What the board has stored, uint8[blocks, target], if it was sent; else the golden model's.

    Raises:
        gen.board.link.LinkError: the board does not answer.
    """
    first = of_request.get("first", 0)
    stored = np.asarray(fmt.compress(values, first))
    given = fmt.decompress(stored, values.size, first)
    if place == Place.RAW:
        device.write(place, values.tobytes())
    verdict = device.run(fmt, place, values.nbytes, **of_request)
    found.blocks += len(stored)
    found.cycles += verdict.cycles
    found.taken += values.nbytes
    is_right = _agrees(device, verdict, stored, given)
    if is_right and place == Place.GENERATED:
        return stored
    seen = np.frombuffer(device.read(Place.STORED, stored.nbytes), np.uint8).reshape(stored.shape)
    found.mismatches += _wrong(device, fmt, is_right, seen, stored, given)
    return seen


def check_decompression(
    device: Device,
    fmt: Format,
    stored: np.ndarray,
    first: int,
    found: Found,
    refused: np.ndarray | None = None,
) -> np.ndarray:
    """Decompress blocks and compare; returns the board's values.

    Args:
        device: with the format.
        fmt: the format.
        stored: the blocks, uint8[blocks, target], as many as fit.
        first: the number of the first one.
        found: what is added to.
        refused: bool[blocks], which of them no encoder produces: the board has to give zeros for them, and
            ``error`` with each word that has a byte of one. None of them by default.

    Raises:
        ValueError: another block is one that no encoder produces.
        gen.board.link.LinkError: the board does not answer.
    """
    if refused is None:
        refused = np.zeros(len(stored), bool)
    readable = stored.copy()
    readable[refused] = 0  # a block of zeros, in either format
    given = fmt.decompress(readable, len(stored) * fmt.block, first)
    device.write(Place.STORED, stored.tobytes())
    verdict = device.run(fmt, Place.STORED, stored.nbytes, first=first)
    is_right = _agrees(device, verdict, stored, given, _words_of(device, fmt, refused))
    found.blocks += len(stored)
    found.mismatches += _wrong(device, fmt, is_right, stored, stored, given)
    return np.frombuffer(device.read(Place.RAW, given.nbytes), given.dtype)


def _words_of(device: Device, fmt: Format, chosen: np.ndarray) -> int:
    """How many decompressed words have a byte of the chosen blocks, bool[blocks]."""
    of_bytes = np.repeat(chosen, fmt.raw_bytes)
    of_bytes = np.pad(of_bytes, (0, -len(of_bytes) % device.bus_bytes))
    return int(of_bytes.reshape(-1, device.bus_bytes).any(axis=1).sum())


def _agrees(device: Device, verdict: Verdict, stored: np.ndarray, given: np.ndarray, errors: int = 0) -> bool:
    """Whether the checker on the chip has seen what the golden model makes, and so many errors."""
    words = [content.tobytes() + bytes(-content.nbytes % device.bus_bytes) for content in (stored, given)]
    counts = [len(content) // device.bus_bytes for content in words]
    expected = counts + [signature_of(content, device.bus_bytes) for content in words]
    seen = [verdict.stored, verdict.given, verdict.stored_signature, verdict.given_signature]
    return seen == expected and verdict.errors == errors


def _wrong(
    device: Device, fmt: Format, is_right: bool, seen: np.ndarray, stored: np.ndarray, given: np.ndarray
) -> int:
    """How many blocks differ; at least one if the checker disagreed, which has seen more than is kept."""
    differs = (seen != stored).any(axis=1)
    if not is_right:
        bits = np.frombuffer(device.read(Place.RAW, given.nbytes), np.uint8).reshape(len(stored), -1)
        differs |= (bits != np.frombuffer(given.tobytes(), np.uint8).reshape(bits.shape)).any(axis=1)
    return max(int(differs.sum()), 0 if is_right else 1)
