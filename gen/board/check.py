"""What the board did to blocks, against the golden model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
        first_mismatch: of the first run with one, "first", "seed", "mask", "ones" of its request; and, if it
            is in a memory, in which, "memory", the "block" of that run, its first wrong "byte", and all of it
            in hexadecimal, "expected" and "seen".
    """

    blocks: int = 0
    mismatches: int = 0
    cycles: int = 0
    taken: int = 0
    first_mismatch: dict[str, Any] | None = None


def batch_blocks(device: Device, fmt: Format) -> int:
    """How many of a format's blocks fit the memories."""
    return device.about.memory_bytes // fmt.original_bytes


def check_compression(
    device: Device, fmt: Format, values: np.ndarray, place: Place, found: Found, **of_request: int
) -> np.ndarray:
    """Put whole blocks through both engines and compare what is stored and given.

    Args:
        device: with the format.
        fmt: the format.
        values: what the golden model is given, as many as fit.
        place: where the board has the same: the memory of values, to which they are sent, or the generator.
        found: what is added to.
        of_request: the number of the first block, and what the generator is told.

    Returns:
        What the board has stored, uint8[blocks, target], if it was sent; else the golden model's.

    Raises:
        gen.board.link.LinkError: the board does not answer.
    """
    first = of_request.setdefault("first", 0)
    stored = np.asarray(fmt.compress(values, first))
    given = fmt.decompress(stored, values.size, first)
    if place == Place.UNCOMPRESSED:
        device.write(place, values.tobytes())
    verdict = device.run(fmt, place, values.nbytes, **of_request)
    found.blocks += len(stored)
    found.cycles += verdict.cycles
    found.taken += values.nbytes
    agrees = _agrees(device, verdict, stored, given)
    if agrees and place == Place.GENERATED:
        return stored
    seen = _read(device, Place.STORED, stored)
    uncompressed = _read(device, Place.UNCOMPRESSED, given)
    _compare(
        found,
        agrees,
        len(stored),
        {Place.STORED: (seen, stored), Place.UNCOMPRESSED: (uncompressed, given)},
        of_request,
    )
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
    agrees = _agrees(device, verdict, stored, given, _words_of(device, fmt, refused))
    found.blocks += len(stored)
    uncompressed = _read(device, Place.UNCOMPRESSED, given)
    _compare(found, agrees, len(stored), {Place.UNCOMPRESSED: (uncompressed, given)}, {"first": first})
    return uncompressed


def _words_of(device: Device, fmt: Format, chosen: np.ndarray) -> int:
    """How many decompressed words have a byte of the chosen blocks, bool[blocks]."""
    of_bytes = np.repeat(chosen, fmt.original_bytes)
    of_bytes = np.pad(of_bytes, (0, -len(of_bytes) % device.bus_bytes))
    return int(of_bytes.reshape(-1, device.bus_bytes).any(axis=1).sum())


def _agrees(device: Device, verdict: Verdict, stored: np.ndarray, given: np.ndarray, errors: int = 0) -> bool:
    """Whether the checker on the chip has seen what the golden model makes, and so many errors."""
    words = [content.tobytes() + bytes(-content.nbytes % device.bus_bytes) for content in (stored, given)]
    counts = [len(content) // device.bus_bytes for content in words]
    expected = counts + [signature_of(content, device.bus_bytes) for content in words]
    seen = [verdict.stored, verdict.given, verdict.stored_signature, verdict.given_signature]
    return seen == expected and verdict.errors == errors


def _read(device: Device, place: Place, like: np.ndarray) -> np.ndarray:
    """The first bytes of a memory, of an array's type and shape."""
    return np.frombuffer(device.read(place, like.nbytes), like.dtype).reshape(like.shape)


def _compare(
    found: Found,
    agrees: bool,
    blocks: int,
    kept: Mapping[Place, tuple[np.ndarray, np.ndarray]],
    of_request: Mapping[str, int],
) -> None:
    """Count the blocks that a memory has not as expected: one at least if the checker disagreed.

    It sees words before they are kept.
    """
    wrong = np.zeros(blocks, bool)
    what: dict[str, Any] = {}
    for place, pair in kept.items():
        seen, expected = (np.frombuffer(array.tobytes(), np.uint8).reshape(blocks, -1) for array in pair)
        differs = seen != expected
        if differs.any() and not what:
            block, byte = (int(index) for index in np.argwhere(differs)[0])
            what = {"memory": place.name.lower(), "block": block, "byte": byte}
            what |= {"expected": expected[block].tobytes().hex(), "seen": seen[block].tobytes().hex()}
        wrong |= differs.any(axis=1)
    mismatches = max(int(wrong.sum()), 0 if agrees else 1)
    if mismatches and not found.first_mismatch:
        found.first_mismatch = {**of_request, **what}
    found.mismatches += mismatches
