"""Text as bytes: the training data, and the batches that every scheme sees in the same order."""

from __future__ import annotations

from pathlib import Path
from pydoc_data import topics

import torch

HELD_OUT = 0.1


class Text:
    """A text as a sequence of bytes, its last tenth held out.

    Args:
        path: a file, or None for the English text that every Python carries: its documentation
            (``pydoc_data.topics``, 465 kB).
        length: tokens of a training example.

    Raises:
        ValueError: the text is too short to train on.
        OSError: the file cannot be read.
    """

    def __init__(self, path: Path | None, length: int) -> None:
        text = (
            path.read_bytes() if path else "\n".join(topics.topics[k] for k in sorted(topics.topics)).encode()
        )
        tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        split = int(len(tokens) * (1 - HELD_OUT))
        self.train, self.held_out = tokens[:split], tokens[split:]
        self.length = length
        if len(self.held_out) <= length:
            raise ValueError(
                f"{path or 'the text'} is too short: {len(text)} bytes, of which a tenth must be more "
                f"than {length}"
            )

    def batch(self, size: int, generator: torch.Generator) -> torch.Tensor:
        """Examples from the training part at random: int64[size, length]."""
        return _examples(self.train, size, self.length, generator)

    def validation(self, batches: int, size: int) -> list[torch.Tensor]:
        """The same examples of the held-out part every time."""
        generator = torch.Generator().manual_seed(0)
        return [_examples(self.held_out, size, self.length, generator) for _ in range(batches)]


def _examples(tokens: torch.Tensor, size: int, length: int, generator: torch.Generator) -> torch.Tensor:
    starts = torch.randint(len(tokens) - length, (size,), generator=generator)
    return torch.stack([tokens[start : start + length] for start in starts])
