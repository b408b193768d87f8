"""The activations that autograd saves, as NumPy arrays: real stimulus for benches and for accounts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from golden import PlaneFormat
from golden.floats import FLOAT_TYPES

from ..backends.bits import BitsCodec
from ..backends.dtypes import float_name
from ..policy import Policy, Rule
from ..stash.layout import Region, is_plain, region_of
from ..stash.trace import Trace


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
    """

    op: str
    shape: tuple[int, ...]
    dtype: str
    module: str
    exact: str | None
    values: np.ndarray


def visit(model: torch.nn.Module, forward: Callable[[], torch.Tensor], use: Callable[[Saved], None]) -> None:
    """Run a forward pass and hand over every float tensor that autograd saves, as it is saved.

    What is saved of a storage and version is handed over once; parameters, buffers, their copies and what is
    more than memory with strides (sparse, nested) are not.

    Args:
        model: whose parameters and buffers are left out.
        forward: computes the loss.
        use: called with each tensor. The arrays are not kept here.
    """
    trace = Trace(model, follow_modules=True)
    rules = Policy.default(PlaneFormat("fp32", 64, 80)).rules  # which are exact does not depend on the format
    seen: dict[tuple[Hashable, ...], list[Region]] = defaultdict(list)
    alive = []  # saved tensors, so that no address is used twice while it is in ``seen``

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        dtype = float_name(tensor.dtype)
        if dtype is None or not is_plain(tensor) or tensor.numel() == 0:
            return tensor.detach()
        origin = trace.origin(tensor)
        if origin.constant:
            return tensor.detach()
        with torch.no_grad(), torch._C._DisableTorchDispatch():
            region = region_of(tensor)
            others = seen[tensor.untyped_storage()._cdata, tensor._version, origin.writes, dtype]
            if not any(region.is_within(other) for other in others):
                others.append(region)
                alive.append(tensor.detach())
                values = region.values(tensor)
                exact = _why_exact(rules, origin.op, trace.module, values)
                octets = values.cpu().contiguous().view(torch.uint8).numpy()
                array = octets.view(FLOAT_TYPES[dtype].array).copy()
                use(Saved(origin.op, tuple(tensor.shape), dtype, trace.module, exact, array))
            return tensor.detach()

    with trace, torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()


def _why_exact(rules: Sequence[Rule], op: str, module: str, values: torch.Tensor) -> str | None:
    for rule in rules:
        if rule.fits(op, module, str(values.dtype).removeprefix("torch."), len(values)):
            if rule.keep == "bits" and BitsCodec.of(values) is not None:
                return "two values"
            if rule.keep != "bits":
                return rule.why if rule.keep == "raw" else None
    return None


def capture(model: torch.nn.Module, forward: Callable[[], torch.Tensor]) -> list[Saved]:
    """Every float tensor that autograd saves in a forward pass; see :func:`visit`.

    Example:
        >>> model = torch.nn.Linear(8, 8)
        >>> x = torch.randn(4, 8)
        >>> [saved.shape for saved in capture(model, lambda: model(x).square().mean())]
        [(4, 8), (4, 8)]
    """
    saved: list[Saved] = []
    visit(model, forward, saved.append)
    return saved
