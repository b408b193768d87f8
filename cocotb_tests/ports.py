"""What the ports of an engine showed, block by block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from golden import Format

from .streams import Word, after_pauses, held_up


@dataclass(frozen=True)
class Seen:
    """The blocks that went through an engine, as its ports showed them; a row for each.

    Attributes:
        words: bit patterns of the values that went in or came out, uint[blocks, N].
        stored: the compressed blocks, uint8[blocks, target].
        sizes: bytes that went in; less than a block where a tensor ends within it.
        numbers: of a block in its tensor, from 0 on.
        firsts: the number that the tensor's first word gave to its first block.
        ends: whether a block is its tensor's last.
        paused: whether the source paused before one of the words it came in.
        stalled: whether the sink held up one of the words it became.
    """

    words: np.ndarray
    stored: np.ndarray
    sizes: np.ndarray
    numbers: np.ndarray
    firsts: np.ndarray
    ends: np.ndarray
    paused: np.ndarray
    stalled: np.ndarray


def see(fmt: Format, part: str, bus_bytes: int, taken: Sequence[Word], given: Sequence[Word]) -> Seen:
    """Put together the blocks of whole tensors from the words at either port.

    Args:
        part: "compressor" or "decompressor".
        taken, given: all words since a reset, of as many tensors.
    """
    assert fmt.target is not None
    size, becomes = (
        (fmt.original_bytes, fmt.target) if part == "compressor" else (fmt.target, fmt.original_bytes)
    )
    inputs, outputs, sizes, numbers, firsts, ends, paused, stalled = [], [], [], [], [], [], [], []
    pauses, holds = np.array(after_pauses(taken), bool), np.array(held_up(given), bool)
    for (i, tensor), (o, result) in zip(_tensors(taken), _tensors(given), strict=True):
        data = b"".join(word.data for word in tensor)
        blocks = -(-len(data) // size)
        inputs.append(data.ljust(blocks * size, b"\0"))
        outputs.append(b"".join(word.data for word in result))
        assert len(outputs[-1]) == blocks * becomes
        sizes += [size] * (blocks - 1) + [len(data) - (blocks - 1) * size]
        numbers += range(blocks)
        firsts += [tensor[0].first] * blocks
        ends += [False] * (blocks - 1) + [True]
        paused.append(_touches(pauses[i : i + len(tensor)], size, blocks, bus_bytes))
        stalled.append(_touches(holds[o : o + len(result)], becomes, blocks, bus_bytes))
    stored, values = (outputs, inputs) if part == "compressor" else (inputs, outputs)
    return Seen(
        np.frombuffer(b"".join(values), fmt.float_type.bits).reshape(-1, fmt.block),
        np.frombuffer(b"".join(stored), np.uint8).reshape(-1, fmt.target),
        np.array(sizes, int),
        np.array(numbers, int),
        np.array(firsts, np.int64),
        np.array(ends, bool),
        np.concatenate([np.empty(0, bool), *paused]),
        np.concatenate([np.empty(0, bool), *stalled]),
    )


def _tensors(words: Sequence[Word]) -> Iterator[tuple[int, Sequence[Word]]]:
    """Each tensor's words, and the number of its first."""
    start = 0
    for i, word in enumerate(words):
        if word.last:
            yield start, words[start : i + 1]
            start = i + 1


def _touches(flags: np.ndarray, size: int, blocks: int, bus_bytes: int) -> np.ndarray:
    """Which blocks of so many bytes have a byte in a flagged word."""
    counts = np.concatenate([[0], np.cumsum(flags)])
    starts = np.arange(blocks) * size
    last = np.minimum((starts + size - 1) // bus_bytes, len(flags) - 1)
    return counts[last + 1] > counts[starts // bus_bytes]
