"""Rules by operation, module, dtype and size."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Literal

import torch

from ..backends.dtypes import AnyFormat
from ..facts.facts import Facts, name_of

Keep = AnyFormat | Literal["exact", "bits", "recompute"]


@dataclass(frozen=True)
class Rule:
    """What to do with the saved tensors that fit all of a rule's conditions.

    A format is what a tensor gets if the backward pass needs no more than that: what the table of operations
    says has to be finer gets more bits, and what has to be exact stays exact. What the table does not know
    stays exact too, unless a rule names the operation that saves it.

    Args:
        keep: "exact"; "bits", a bit for each value, if the tensor has at most two values; "recompute", if
            cheap operations made it of what is stored anyway; or a fixed-mode format. Where "bits" and
            "recompute" do not fit a tensor, the next rule does. A format holds for all float types: another
            than its own gets, in bit planes, the same block and at least the same bits and the same share of
            a value, otherwise as many bits a value. Integers, and floats that no format has, stay exact.
        op: name of the operation that made the tensor, as in a report; a shell pattern ("*_norm.1").
        saved_by: name of the operation that saves it, in place or not, or of the ``autograd.Function``:
            "div", "FlashAttnFunc"; or with the name of the saved tensor behind a point, as torch's
            ``derivatives.yaml`` has it: "div.other", "*attention*.query". A shell pattern.
        module: name of the module in whose forward pass it is saved, as in ``model.named_modules()``; a
            shell pattern ("transformer.h.0.*").
        dtype: "float32", "bfloat16", "bool", ...; a shell pattern.
        least: how many values it has at least.
        most: how many values it has at most.
        why: what the report says of tensors that stay exact, and the policy's table of the rule.
        products: of "recompute": whether matrix products may be done again as well, as many as the time of a
            Compressor allows. Without it only wide ones are, as a language model's head.
        unchecked: whether the format holds whatever the table of operations says. Gradients may be wrong:
            for experiments.

    Raises:
        ValueError: an argument is none of these, or no tensor can fit it.
    """

    keep: Keep
    _: KW_ONLY
    op: str = "*"
    saved_by: str = "*"
    module: str = "*"
    dtype: str = "*"
    least: int = 0
    most: int | None = None
    why: str = ""
    products: bool = False
    unchecked: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.keep, AnyFormat):
            if self.keep.target is None:
                raise ValueError(
                    "saved tensors are kept in blocks of a fixed size: a format must have a target, not None"
                )
        elif not isinstance(self.keep, str) or self.keep not in ("exact", "bits", "recompute"):
            raise ValueError(f"keep must be 'exact', 'bits', 'recompute' or a format, not {self.keep!r}")
        if self.unchecked and not isinstance(self.keep, AnyFormat):
            raise ValueError(f"unchecked must be False where no format is kept, not {self.unchecked!r}")
        if self.products and self.keep != "recompute":
            raise ValueError(f"products must be False where nothing is recomputed, not {self.products!r}")
        for name in ("op", "saved_by", "module", "dtype"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name} must be a name or a shell pattern, not {getattr(self, name)!r}")
        if not any(fnmatchcase(name, self.dtype) for name in _dtypes()):
            raise ValueError(f"dtype must be one of torch's, as 'float32', or fit one, not {self.dtype!r}")
        if not isinstance(self.least, int) or self.least < 0:
            raise ValueError(f"least must be a number of values, from 0, not {self.least!r}")
        if self.most is not None and (not isinstance(self.most, int) or self.most < self.least):
            raise ValueError(f"most must be a number of values, from {self.least}, not {self.most!r}")

    @property
    def names_saver(self) -> bool:
        """Whether it is about tensors that certain operations save."""
        return self.saved_by != "*"

    def fits(self, facts: Facts) -> bool:
        """Whether it is about such a tensor; "bits" and "recompute" may still not fit it."""
        return (
            self.least <= facts.elements
            and (self.most is None or facts.elements <= self.most)
            and fnmatchcase(facts.made_by, self.op)
            and fnmatchcase(facts.module, self.module)
            and fnmatchcase(name_of(facts.dtype), self.dtype)
            and (
                fnmatchcase(facts.saved_by, self.saved_by)
                or fnmatchcase(f"{facts.saved_by}.{facts.slot}", self.saved_by)
            )
        )


@cache
def _dtypes() -> list[str]:
    """The names of torch's dtypes."""
    return [name_of(value) for value in vars(torch).values() if isinstance(value, torch.dtype)]
