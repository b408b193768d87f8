"""Ways to cut rows into blocks, and the saved tensors of a model stored so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from golden import HadamardFormat
from torch_bridge import backends
from torch_bridge.backends.rows import pad_rows, unpad_rows

BLOCK = 128

# Values of a tensor's rows, each of which may have a size of its own; None for a tensor that stays exact.
WidthOf = Callable[[torch.Tensor], int | None]
# A format and the width of rows -> the format that they get, and how wide the rows are that begin a block.
Cut = Callable[[HadamardFormat, int], tuple[HadamardFormat, int | None]]


def _in_memory_order(fmt: HadamardFormat, width: int) -> tuple[HadamardFormat, int | None]:
    return fmt, None


def _by_the_rule(fmt: HadamardFormat, width: int) -> tuple[HadamardFormat, int | None]:
    return fmt.for_rows(width), width


def _padded(fmt: HadamardFormat, width: int) -> tuple[HadamardFormat, int | None]:
    return fmt, width


def _padded_in_as_many_bytes(fmt: HadamardFormat, width: int) -> tuple[HadamardFormat, int | None]:
    target = fmt.target * width // fmt.padded_width(width)
    return replace(fmt, target=max(target, fmt.min_target)), width


CUTS: dict[str, Cut] = {
    "memory order": _in_memory_order,
    "rule": _by_the_rule,
    "padded to 128": _padded,
    "padded to 128, as many bytes": _padded_in_as_many_bytes,
}


class Store:
    """Keeps what autograd saves in a format.

    Args:
        cut: how rows become blocks.
        bits: of a value.
        exact: tensors that stay exact, as do views of them.

    Attributes:
        values, stored_bytes: of all that was compressed so far.
    """

    def __init__(self, cut: Cut, bits: float, exact: Iterable[torch.Tensor]) -> None:
        self._cut, self._fmt = cut, HadamardFormat("fp32", BLOCK, int(BLOCK * bits / 8))
        self._exact = {tensor.untyped_storage().data_ptr() for tensor in exact}
        self._blocks = self.values = self.stored_bytes = 0

    @property
    def bits_stored(self) -> float:
        """Of a value, in the mean over all."""
        return 8 * self.stored_bytes / self.values

    @contextmanager
    def saving(self, width_of: WidthOf) -> Iterator[None]:
        """Compress what is saved inside."""

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.untyped_storage().data_ptr() in self._exact or (width := width_of(tensor)) is None:
                return tensor.detach()
            return self.round_trip(tensor.detach(), width)

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            yield

    def round_trip(self, tensor: torch.Tensor, width: int) -> torch.Tensor:
        """What comes back of a tensor, its rows in the order of memory."""
        is_turned = tensor.dim() == 4 and tensor.stride(1) < tensor.stride(2)  # heads within tokens
        ordered = (tensor.transpose(1, 2) if is_turned else tensor).contiguous()
        fmt, row = self._cut(self._fmt, width)
        backend, values = backends.get("auto", fmt), ordered.view(-1)
        laid_out = values if row is None else pad_rows(values, row, fmt)
        stored = backend.compress(laid_out, self._blocks)
        back = backend.decompress(stored, len(laid_out), self._blocks)
        self._blocks += len(stored)
        self.values, self.stored_bytes = self.values + len(values), self.stored_bytes + stored.numel()
        back = (back if row is None else unpad_rows(back, row, fmt)).view(ordered.shape)
        return back.transpose(1, 2) if is_turned else back


def gradient_error(
    module: torch.nn.Module, loss: Callable[[], torch.Tensor], store: Store, width_of: WidthOf
) -> float:
    """``||g - g_exact|| / ||g_exact||`` over all parameters of a module."""
    parameters = list(module.parameters())

    def gradient(of: torch.Tensor) -> torch.Tensor:
        return torch.cat([one.flatten() for one in torch.autograd.grad(of, parameters)])

    exact = gradient(loss())
    with store.saving(width_of):
        lossy = loss()
    return float((gradient(lossy) - exact).norm() / exact.norm())
