"""What is known of one saved tensor: the record that a policy decides by."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, cached_property

import torch

from .geometry import Geometry
from .need import Known, Need

_OF_ATTENTION = (Need.LOGITS, Need.ATTENDED, Need.PROBABILITIES)
_NUMBER = re.compile(r"^(.*?\b\d+)(?:\.|$)")


@dataclass(frozen=True)
class Facts:
    """What is known of a saved tensor before anyone decides what becomes of it; two alike are treated alike.

    Attributes:
        saved_by: the operation whose node saves it, without namespace, overload and the underscore of the one
            in place: "mul"; of an ``autograd.Function`` the class's name. "" if that is not known.
        slot: which tensor of that operation it is: the name of an argument or of a result, as torch's
            ``derivatives.yaml`` has it, "self" or "result"; "" if that is not known.
        need: what the backward pass of that operation needs of it; None if no table says.
        made_by: the operation that filled its storage, "" if it was not seen: "gelu",
            "native_layer_norm.1" for a second result.
        constant: "parameter", "buffer", "parameter copy" or "buffer copy" of the model, or that the owner of
            the memory empties and refills it, or "".
        module: in whose forward pass it was saved, as in ``model.named_modules()``; "" is the model itself.
        dtype, shape: of the tensor.
        elements: distinct elements of memory that it has.
        requires_grad: whether a gradient is wanted of it.
        is_statistic: whether it has one value for a row: a mean, a norm, a scale, a loss.
        is_filled: whether a mask may have put numbers into it that stand for infinities.
        is_table: whether it needs no gradient and is broadcast against a larger tensor, as the cosines of
            rotary embeddings are.
        feeds_wide: whether it is what a wide matrix product is given, as a language model's head.
        is_again: whether it is given to attention that is done again in the backward pass.
    """

    saved_by: str
    slot: str
    need: Known | None
    made_by: str
    constant: str
    module: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    elements: int
    requires_grad: bool
    is_statistic: bool = False
    is_filled: bool = False
    is_table: bool = False
    is_again: bool = False
    feeds_wide: bool = False

    @cached_property
    def _hash(self) -> int:
        return hash((self.saved_by, self.slot, self.made_by, self.module, self.shape, self.requires_grad))

    def __hash__(self) -> int:
        return self._hash  # of all fields it would take longer than to keep a tensor

    @property
    def layer(self) -> str:
        """The layer that the module is in."""
        return _layer_of(self.module)

    def row(self, geometry: Geometry) -> int:
        """Values of a row; short ones that attention saves are those of a head, others of an image."""
        return geometry.row if self.need in _OF_ATTENTION else geometry.plane


@cache
def _layer_of(module: str) -> str:
    """A module's name up to the first number."""
    found = _NUMBER.match(module)
    return found[1] if found else module


@cache
def name_of(dtype: torch.dtype) -> str:
    """A dtype's name without "torch."."""
    return str(dtype).removeprefix("torch.")
