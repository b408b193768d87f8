"""Real activations: what a step of the GPT-2 that is trained saves."""

from __future__ import annotations

from ..calibration.capture import Saved, capture
from . import train


def gpt2_activations(
    dtype: str = "fp32", *, attention: str = "sdpa", dropout: float = 0.1, steps: int = 4, batch: int = 1
) -> list[Saved]:
    """What a step of the default GPT-2 saves after a few training steps on English text.

    Args:
        dtype: of the activations; under autocast a 16-bit type comes with fp32 tensors in between.
        attention: "sdpa" or "eager".
        dropout: probability of every dropout.
        steps: training steps before the one that is captured.
        batch: sequences of 128 tokens.
    """
    options = train.Options(dtype=dtype, attention=attention, dropout=dropout, batch=batch, steps=steps)
    return capture(*train.warmed_up(options))
