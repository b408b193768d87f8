"""Plain hooks to hold the bridge against: they compress and decompress at once.

They know no tricks, and share nothing with the bridge (``ours``) but the golden codec and its formats: what
must stay exact they tell by the values and shapes of tensors, where the bridge watches the operations.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from golden import PlaneFormat
from torch_bridge import Compressor, Policy, Rule
from torch_bridge.backends import get
from torch_bridge.backends.dtypes import float_name, format_for

FMT = PlaneFormat("fp32", block=64, target=80)
COARSE = PlaneFormat("fp32", block=16, target=9)  # what goes through it is plainly not exact
NOTHING = torch.nn.Module()

# Elements behind a copy of a parameter, at most.
_PADDING = 256


def stored(fmt: PlaneFormat) -> Policy:
    """The bridge's policy that stores every tensor but statistics, as the plain hooks do, unchecked."""
    statistics = ("_log_softmax", "*_norm.[12]", "*attention*.1", "rsqrt")
    exact = [Rule("exact", op=op, why="norm statistics") for op in statistics]
    return Policy([*exact, Rule(fmt, unchecked=True)])


def ours(model: torch.nn.Module = NOTHING, fmt: PlaneFormat = FMT, **options: Any) -> Compressor:
    """A Compressor of that policy; it compresses tensors of any size if nothing else is said."""
    return Compressor(model, stored(fmt), **{"min_values": 0, **options})


def leaf(*shape: int, seed: int = 0) -> torch.Tensor:
    """Random numbers that want a gradient."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), requires_grad=True)


hooks = torch.autograd.graph.saved_tensors_hooks


def untouched() -> hooks:
    """Hooks that change nothing; the gradients are exact."""
    return hooks(lambda tensor: tensor.detach(), lambda packed: packed)


def reference(
    model: torch.nn.Module = NOTHING,
    fmt: PlaneFormat = FMT,
    exact: Callable[[torch.Tensor], bool] = lambda tensor: False,
    *,
    min_values: int = 0,
) -> hooks:
    """Hooks that compress and decompress the addresses of a tensor, in their order.

    Dropout masks stay exact. What was compressed of a storage serves views of the same elements or of some of
    them, as in torch_bridge.entries; views that have only some in common must not be saved.

    Args:
        model: parameters, buffers and copies of them (told by their values) stay exact.
        fmt: scaled for 16-bit tensors as the bridge does it.
        exact: whether a tensor must stay as it is for another reason.
        min_values: tensors with fewer distinct elements stay exact.
    """
    constants = [t.detach() for t in [*model.parameters(), *model.buffers()] if t.numel()]
    places_of = {t.untyped_storage().data_ptr() for t in constants if not isinstance(t, DTensor)}
    constants = [t.full_tensor().clone() if isinstance(t, DTensor) else t for t in constants]
    alive: list[torch.Tensor] = []  # so that no address is used twice
    compressed: dict[tuple[int, int], list[tuple[torch.Tensor, torch.Tensor]]] = defaultdict(list)

    def is_copy(memory: torch.Tensor) -> bool:
        # What FSDP gathers may have padding behind it.
        same = (t for t in constants if t.numel() <= len(memory) < t.numel() + _PADDING)
        return any(torch.equal(_memory(t).to(memory.dtype), memory[: t.numel()]) for t in same)

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.detach()
        storage = tensor.untyped_storage()
        if float_name(tensor.dtype) is None or storage.data_ptr() in places_of:
            return tensor
        alive.append(tensor)
        key = storage.data_ptr(), tensor._version
        lies = tensor.shape, tensor.stride(), tensor.storage_offset()
        memory = _memory(tensor).clone()
        places = torch.arange(len(memory)).as_strided(*lies).unique()
        for others, kept in compressed[key]:
            if torch.isin(places, others).all():
                return kept.as_strided(*lies)
        values = memory[places]
        if len(places) < min_values or _is_mask(values) or exact(tensor) or is_copy(memory):
            return tensor
        codec = get("golden", format_for(fmt, tensor.dtype))
        memory[places] = codec.decompress(codec.compress(values), len(values))
        compressed[key].append((places, memory))
        return memory.as_strided(*lies)

    return hooks(pack, lambda packed: packed)


def is_log_softmax(tensor: torch.Tensor) -> bool:
    """Whether the rows are logarithms of probabilities."""
    if tensor.dim() < 2 or tensor.shape[-1] < 2 or tensor.max() > 0:
        return False
    sums = tensor.float().logsumexp(-1)
    return bool((sums.abs() < 16 * torch.finfo(tensor.dtype).eps).all())


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The gradients of all parameters by name, taken away from the model."""
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def unequal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> list[str]:
    """Names of what is not bit for bit the same in both."""
    assert found.keys() == expected.keys()
    return [name for name in expected if not torch.equal(found[name], expected[name])]


def _is_mask(values: torch.Tensor) -> bool:
    """Whether there are two values, zero and another, as in a dropout mask; told by their bits."""
    levels = values.view(torch.int32 if values.element_size() == 4 else torch.int16).unique()
    return len(levels) == 2 and 0 in levels


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.as_strided((count,), (1,), 0)
