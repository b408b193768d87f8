"""What a backward pass can need of a tensor that it saved: the words of the tables of needs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cache

import torch


class Need(Enum):
    """What must survive of a saved tensor, from permissive to strict; the value says why, for reports."""

    VALUES = "values"
    """Lossy in any format is safe."""
    SQUARED = "its square may be divided by"
    """Its square was made: VALUES if that is summed, else RELATIVE, since a root or logarithm may follow."""
    SIGNS = "sign and zeros of each value"
    """Compared with constants or each other: bit planes of any rate do, formats that mix values do not."""
    RELATIVE = "each value's own relative error"
    """Divided by, or a root, logarithm or power is taken: bit planes of 10 bits a value or more."""
    ANGLE = "whole turns of an angle are left out"
    """RELATIVE, as long as it is not so large that its error is a part of a turn."""
    PROBABILITIES = "a softmax takes differences of what it weighs"
    """The result of a softmax: 4 bits a value or more."""
    LOGITS = "attention takes the exponential of their products"
    """Queries and keys of attention."""
    LOGITS_BIAS = "attention takes its exponential"
    """What attention adds to the products of queries and keys: a bias, or a mask."""
    ATTENDED = "attention takes differences of values and outputs"
    """Values and outputs of attention."""
    LOG_PROBABILITIES = "log-softmax"
    """Exponentials are taken of it: exact where it is small, 12 bits a value or more where it is large."""
    SIGMOID = "how near it is to 0 or 1"
    """Values from 0 to 1: the logit is kept, in 10 bits a value or more."""
    TANH = "how near it is to -1 or 1"
    """Values from -1 to 1: the inverse hyperbolic tangent is kept, in 10 bits a value or more."""
    BITS = "a mask"
    """At most two values: one bit a value."""
    EXACT = "exact"
    """Nothing may be lost; ``why`` has the reason."""


@dataclass(frozen=True)
class Exact:
    """The need EXACT, and why."""

    why: str


@dataclass(frozen=True)
class Normed:
    """The need VALUES of what is left of a tensor without its means: all that a norm reads of its input.

    Args:
        over: dimensions that a mean is taken over, from the last one: -1; none stands for all but the second,
            which has the channels.
        groups: in how many parts the second dimension is cut before, the parts having means of their own; 0
            if it is not.
    """

    over: tuple[int, ...] = (-1,)
    groups: int = 0

    def parted(self, tensor: torch.Tensor) -> torch.Tensor:
        """A view of a tensor with its groups in a dimension of their own."""
        return tensor.unflatten(1, (self.groups, -1)) if self.groups else tensor

    def dims(self, tensor: torch.Tensor) -> list[int]:
        """The dimensions of such a view that means are taken over, from the last one."""
        behind = range(-tensor.dim(), 0)
        if self.groups:
            return list(behind)[2:]
        return list(self.over) or [dim for dim in behind if dim != 1 - tensor.dim()]

    @property
    def is_of_rows(self) -> bool:
        """Whether each row of memory has one mean, if the tensor is contiguous."""
        return bool(self.over) and self.over == tuple(range(-len(self.over), 0)) and not self.groups


normed = cache(Normed)
"""As ``Normed``; what is equal is the same object."""

Known = Need | Exact | Normed

LOG_SUM_EXP = Exact("log-sum-exp")
NORM = Exact("norm statistics")
LOSS_WEIGHT = Exact("weight of the loss")
# The nearer a prediction is to its target, the less is left of their difference, and the more is noise.
NEAR_TARGET = Exact("a loss that may be near its least")
# What is left of two tensors that are near each other: distances, and interpolations between them.
DIFFERENCE = Exact("only a difference counts")
COSINE = Exact("a cosine of vectors that may be alike")
# No format but an exact one has a value there again.
EQUALS = Exact("looked for among the inputs")
SINGULAR = Exact("near where a formula has no value")
# What is trained is scaled by these numbers: a zero of the softmax must be one.
SCALED_MASK = Exact("a softmax of a mask's numbers times what is trained")
JUMPS = Exact("a formula rounds it")
DRAWN_LATER = Exact("drawn after it was saved")
LOOKED_UP = Exact("positions are looked up with it")
STATE = Exact("a kernel's own state")
SECOND = Exact("a gradient of a gradient")

# Of an input of a batch norm each channel has its mean.
CHANNELS = normed(())
