"""The activations that autograd saves, as NumPy arrays: real stimulus for benches and for accounts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from golden import PlaneFormat
from golden.floats import FLOAT_TYPES

from ..backends.bits import BitsCodec
from ..backends.dtypes import float_name
from ..compressor import Compressor
from ..facts.facts import Facts
from ..facts.geometry import Geometry
from ..policy import Decision, Policy
from ..store.attention import Node
from ..store.entries import Exact, Packed
from ..store.recomputed import source_of
from ..store.saved import Saved as SavedTensor
from ..store.store import Store


@dataclass(frozen=True)
class Saved:
    """One saved float tensor.

    Attributes:
        op: name of the operation that produced it, "" if it was not seen.
        shape: of the tensor as it was saved first.
        dtype: "fp32", "bf16" or "fp16".
        module: in whose forward pass it was saved.
        exact: why the bridge keeps it as it is (log-sum-exp, norm statistics, two values, ...), or None.
        values: flat, in the order of memory, as the bridge would cut it into blocks; of the format's
            NumPy type (``ml_dtypes.bfloat16`` for bf16).
        facts: that a policy decides by.
        row: values of a row, as to a token.
    """

    op: str
    shape: tuple[int, ...]
    dtype: str
    module: str
    exact: str | None
    values: np.ndarray
    facts: Facts
    row: int


class _Visitor(Store):
    """Keeps every tensor as it is, and shows those of floats."""

    use: Callable[[Saved], None]

    def keep(self, saved: SavedTensor, facts: Facts, decision: Decision) -> Exact | Packed:
        tensor, dtype = saved.values, float_name(facts.dtype)
        assert tensor is not None
        geometry = Geometry.of(tensor)
        region = geometry.region
        source = source_of(saved.origin, tensor, tensor._version)
        if dtype is not None and not facts.constant and tensor.numel() and not source.is_left(region):
            with torch.no_grad():
                values = region.values(tensor)
                has_two = decision.bits and BitsCodec.of(values) is not None
                why = "two values" if has_two else None if decision.format is not None else decision.why
                octets = values.cpu().contiguous().view(torch.uint8).numpy()
            array = octets.view(FLOAT_TYPES[dtype].array).copy()
            row = region.row(facts.row(geometry))
            self.use(Saved(saved.op, facts.shape, dtype, facts.module, why, array, facts, row))
        return self.leave(saved, facts, source, region, decision.why)

    def keep_result(self, node: Node, number: int, saved: SavedTensor, facts: Facts) -> None:
        """Also of attention that would be done again."""


class _Visit(Compressor):
    make_store = _Visitor


def visit(model: torch.nn.Module, forward: Callable[[], torch.Tensor], use: Callable[[Saved], None]) -> None:
    """Run a forward pass and hand over every float tensor that autograd saves, as it is saved.

    What is saved of a storage and version is handed over once; parameters, buffers, their copies and what is
    more than memory with strides (sparse, nested) are not.

    Args:
        model: whose parameters and buffers are left out.
        forward: computes the loss.
        use: called with each tensor. The arrays are not kept here.
    """
    # Which are exact does not depend on the format.
    one = _Visit(model, Policy.default(PlaneFormat("fp32", 64, 80)), "golden", min_values=0)
    with one:
        one.store.use = use  # type: ignore[attr-defined]
        forward()


def capture(model: torch.nn.Module, forward: Callable[[], torch.Tensor]) -> list[Saved]:
    """Every float tensor that autograd saves in a forward pass; see ``visit``.

    Examples:
        >>> model = torch.nn.Linear(8, 8)
        >>> x = torch.randn(4, 8)
        >>> [saved.shape for saved in capture(model, lambda: model(x).square().mean())]
        [(4, 8), (4, 8)]
    """
    saved: list[Saved] = []
    visit(model, forward, saved.append)
    return saved
