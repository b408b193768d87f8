"""What is to become of a saved tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from golden import PlaneFormat

from ..backends.dtypes import AnyFormat
from ..facts.need import Normed

Of = Literal["values", "logit", "atanh"]
Recompute = Literal["no", "exact", "lossy"]
Strength = tuple[bool, float]

EXACT: Strength = (True, float("inf"))


@dataclass(frozen=True)
class Decision:
    """What is to become of saved tensors with the same facts.

    Attributes:
        format: that they are compressed in; None if they stay exact.
        of: what of them goes into the format: their values, or what a sigmoid or tanh made them of.
        bits: whether they are stored as bits if they have at most two values.
        finite: whether they stay exact if they have infinities, or numbers in their place.
        exact_if_shared: whether they stay exact once several layers turn out to save the same tensor.
        recompute: whether they are recomputed if cheap operations made them of what is stored: "lossy" also
            from what is compressed, "exact" only from what is not.
        products: whether matrix products may be among these operations, also those that are not wide.
        why: they stay exact, or have this format.
        normed: what a norm takes from it before it goes into the format, None if that is no norm's.
        channels: whether the means of its channels are taken from it before that, and the widest halved.
        follows: whether its difference from the last such tensor is stored, where that is smaller.
        sums: whether its rows sum to one, and are made to again when it is decompressed.
        finer: what takes the format's place where logits spread wider than a bound, a softmax amplifies its
            error more, or an angle is larger: bounds, which rise, and formats, None for none.
        unknown: whether that is because no table knows what saves them.
        least: what is enough of a tensor that was stored for another node, see ``strength_of``.
    """

    format: AnyFormat | None = None
    of: Of = "values"
    bits: bool = False
    finite: bool = False
    exact_if_shared: bool = False
    recompute: Recompute = "no"
    products: bool = False
    why: str = ""
    normed: Normed | None = None
    channels: bool = False
    follows: bool = False
    sums: bool = False
    finer: tuple[tuple[float, AnyFormat | None], ...] = ()
    unknown: bool = False
    least: Strength = EXACT

    @property
    def strength(self) -> Strength:
        """What the format keeps of the values: without their means they have no sign of their own."""
        keeps, bits = strength_of(self.format)
        return keeps and self.normed is None, bits


def widest(strength: Strength) -> float:
    """The largest standard deviation of logits that queries and keys of such a strength are enough for.

    The gradient of attention has an error of a third then, and half of that with each bit more: 3 with 4 bits
    that mix the values of a block, 16 with bit planes of 10 bits (``python -m bench.known_cases``, case B).
    """
    keeps, bits = strength
    return 2.0 ** (bits - 6) if keeps else 3 * 2.0 ** (bits - 4)


def most_amplified(strength: Strength) -> float:
    """The largest amplification of its error that a softmax of such a strength is good enough for.

    The gradient of its logits has an error of at most a third then: 3 with 4 bits that mix the values of a
    block, 5 with bit planes of 10 bits (``python -m bench.known_cases``, case K).
    """
    keeps, bits = strength
    return 5 * 2.0 ** (bits - 10) if keeps else 3 * 2.0 ** (bits - 4)


def largest_angle(strength: Strength) -> float:
    """The largest angle, in radians, of which a sine's slope is right with such a strength.

    The gradient has an error of at most a tenth then: 32 with bit planes of 10 bits, 128 with 12.
    """
    keeps, bits = strength
    return 2.0 ** (bits - 5) if keeps else 0.0


def strength_of(fmt: AnyFormat | None) -> Strength:
    """Whether a format keeps signs and zeros of single values, and its bits a value; None is exact."""
    if fmt is None:
        return EXACT
    assert fmt.target is not None
    return keeps_signs(fmt), 8 * fmt.target / fmt.block


def keeps_signs(fmt: AnyFormat) -> bool:
    """Whether a value's sign and zeros survive whatever shares its block: bit planes; others mix values."""
    return isinstance(fmt, PlaneFormat)
