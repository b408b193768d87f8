"""A training step that is run without memory and without arithmetic: only what it allocates is real.

Tensors are ordinary tensors of the CPU, so that autograd, hooks and modules do what they always do. Below
them a dispatch mode asks PyTorch's meta kernels for sizes, strides and types, and gives memory that nobody
reads or writes: all large tensors lie over each other in one range of addresses that was never touched. What
is small and known, such as positions and causal masks, is computed.

So a 70-billion-parameter configuration runs in seconds, and every byte that lives is counted.
"""

from __future__ import annotations

import mmap
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import prod
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from ..facts.operations import Operation, operation
from ..internals import kernel_of
from . import kernels

# What has more elements is not computed, even if all that it is made of is known.
_COMPUTED = 1 << 14
# What has fewer bytes gets memory of its own, which is zero: whoever looks at it finds the same every time.
_OWN_MEMORY = 1 << 12
_ADDRESSES = 1 << 40  # bytes of the first range; a larger tensor has a larger one made

Function = Callable[..., Any]

_META = torch.device("meta")
_STRIDED = torch.strided


class DryRunError(RuntimeError):
    """An operation whose result has a size that depends on values, of which a dry run has none."""


class _Death(weakref.ref[Any]):
    """Of a storage, with its number.

    It puts itself among the changes when the storage dies. No code of Python's runs then: a Ctrl-C that comes
    in the middle of that would be lost.
    """

    __slots__ = ("number",)

    number: int


@dataclass
class Ledger:
    """What was allocated and freed, in the order of time.

    Attributes:
        sizes: bytes of each storage, by its number.
        changes: a storage's number where it was allocated, its death where it was freed.
        transient: by how many changes had been, bytes that an operation had for itself at that time.
        flops: of matrix products, convolutions and fused attention.
        moved: bytes that all other operations read and wrote.
        assumed: how often an operation asked for a value that is not known, by its name.
    """

    sizes: list[int] = field(default_factory=list)
    changes: list[int | _Death] = field(default_factory=list)
    transient: dict[int, int] = field(default_factory=dict)
    flops: int = 0
    moved: int = 0
    assumed: Counter[str] = field(default_factory=Counter)
    _deaths: dict[int, _Death] = field(default_factory=dict)

    def born(self, storage: torch.UntypedStorage) -> int:
        """Note an allocation, and that it is freed when that happens; its number."""
        number = len(self.sizes)
        self.sizes.append(storage.nbytes())
        self.changes.append(number)
        death = self._deaths[number] = _Death(storage, self.changes.append)
        death.number = number
        return number

    def needs(self, nbytes: int) -> None:
        """Note bytes that the operation that runs next has for itself."""
        here = len(self.changes)
        self.transient[here] = max(nbytes, self.transient.get(here, 0))

    def live(self, end: int | None = None) -> set[int]:
        """Numbers of the storages that live after so many changes, by default after all."""
        found: set[int] = set()
        for change in self.changes[:end]:
            found.discard(change.number) if isinstance(change, _Death) else found.add(change)
        return found

    def bytes_of(self, numbers: Iterable[int]) -> int:
        """That storages have together."""
        return sum(self.sizes[number] for number in numbers)

    def forget(self) -> None:
        """Begin anew, with what lives now."""
        self.changes[:] = sorted(self.live())
        self._deaths = {number: death for number, death in self._deaths.items() if death() is not None}
        self.transient.clear()
        self.assumed.clear()
        self.flops = self.moved = 0

    def peak(self, sizes: Sequence[int] | None = None) -> tuple[int, int]:
        """The most bytes that lived at a time, and after how many changes that was.

        Args:
            sizes: of each storage, where they are not what was noted.
        """
        sizes = self.sizes if sizes is None else sizes
        live = most = when = 0
        for place, change in enumerate(self.changes, 1):
            live += -sizes[change.number] if isinstance(change, _Death) else sizes[change]
            now = live + self.transient.get(place, 0)
            if now > most:
                most, when = now, place
        return most, when


class DryRun(TorchDispatchMode):
    """The mode under which nothing is computed.

    Model, batch and optimizer are made under it as well. Hooks of the bridge have to run under it too: see
    ``torch_bridge.internals.under_always``.

    Args:
        device: whose kernels' results and temporaries are counted, "cpu" or "cuda".
        functions: what operations do that are written in Python; the operations that these are made of are
            run dry.

    Raises:
        DryRunError: the size of an operation's result depends on values.
        MemoryError: the system gives no range of addresses as long as the largest tensor.

    Examples:
        >>> with DryRun() as dry:
        ...     x = torch.randn(1 << 20, 1 << 20)
        >>> x.device.type, dry.number(x), dry.ledger.sizes
        ('cpu', 0, [4398046511104])
    """

    supports_higher_order_operators = True

    def __init__(self, device: str = "cpu", functions: Mapping[Any, Function] | None = None) -> None:
        super().__init__()
        self._functions = functions or {}
        self.ledger = Ledger()
        self._is_cpu = device == "cpu"
        self._known: dict[Any, _Result] = {}
        self._addresses: mmap.mmap | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """PyTorch's own way to leave a mode uncompiled costs as much as the mode."""
        return False

    def number(self, tensor: torch.Tensor) -> int | None:
        """The number of a tensor's storage in the ledger; None if it was there before."""
        found: int | None = getattr(tensor.untyped_storage(), "_dry_number", None)
        return found

    # Operations

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        made_of_others = self._functions.get(func) or _made_of_others(func)
        if made_of_others is not None:
            with self:
                return made_of_others(*args, **kwargs)
        op = operation(func)
        if op.name in _SCALARS:
            return self._scalar(func, op, args)
        if op.is_view or op.name in _VIEWS:
            return func(*args, **kwargs)
        if op.written:
            return self._write(func, op, args, kwargs)
        key = _key_of(func, args, kwargs)
        result = self._known.get(key)
        if result is None:
            result = self._known[key] = self._foresee(func, op, args, kwargs)
        self.ledger.flops += result.flops
        self.ledger.moved += result.moved
        if result.is_small and all(_is_known(one) for one in _tensors((args, kwargs))):
            made = func(*args, **kwargs)
            for tensor in _tensors(made):
                self._note(tensor)
            return made
        if result.temporary:
            self.ledger.needs(result.temporary + result.nbytes)
        made = _map(self._give, result.made)
        if op.name in _TWO_VALUES or self._keeps_two_values(op, args):
            _note_two_values(made)
        return made

    def _foresee(self, func: Any, op: Operation, args: Any, kwargs: Any) -> _Result:
        """What an operation gives, as meta kernels say."""
        meta_args, meta_kwargs = _map(_meta, args), _map(_meta, kwargs)
        if "device" in kwargs:
            meta_kwargs["device"] = _META
        for name in ("pin_memory", "generator"):
            if meta_kwargs.get(name) is not None:
                meta_kwargs[name] = None
        try:
            made = func(*meta_args, **meta_kwargs)
        except (NotImplementedError, RuntimeError) as error:
            raise DryRunError(
                f"{op.name} cannot be run without values: the size of its result may depend on them "
                f"({str(error).partition(chr(10))[0]})"
            ) from error
        if self._is_cpu:
            made = kernels.results_of(op, meta_args, made)
        flops = _flops(func, op, meta_args, meta_kwargs, made)
        results = [*_tensors(made)]
        nbytes, moved = sum(map(_bytes_of, results)), 0
        if not flops and "empty" not in op.name:
            moved = nbytes + sum(map(_bytes_of, _tensors((meta_args, meta_kwargs))))
        is_small = sum(one.numel() for one in results) <= _COMPUTED and not _is_random(func)
        temporary = kernels.temporary_bytes(op, args) if self._is_cpu else 0
        return _Result(_map(_Shape.of, made), is_small, flops, moved, nbytes, temporary)

    def _write(self, func: Any, op: Operation, args: Any, kwargs: Any) -> Any:
        """An operation that writes to its arguments: their values are not known any more, if they were."""
        written = [args[place] if place < len(args) else kwargs.get(name) for place, name in op.written]
        tensors = [*_tensors((args, kwargs))]
        is_small = sum(one.numel() for one in tensors) <= _COMPUTED
        if is_small and not _is_random(func) and all(map(_is_known, tensors)):
            return func(*args, **kwargs)
        flops = 0
        if "out" in kwargs:
            given = {name: value for name, value in kwargs.items() if name != "out"}
            flops = _flops(func, op, args, given, kwargs["out"])
        self.ledger.flops += flops
        for tensor in _tensors(written):
            tensor.untyped_storage()._dry_unknown = True  # type: ignore[attr-defined]
            _note_two_values(tensor, op.in_table in _TWO_VALUES or self._keeps_two_values(op, args))
        self.ledger.moved += 0 if flops else sum(map(_bytes_of, tensors))
        if self._is_cpu and (temporary := kernels.temporary_bytes(op, args, [*_tensors(written)])):
            self.ledger.needs(temporary)
        returns = func._schema.returns
        if not returns:
            return None
        return written[0] if len(returns) == 1 else tuple(written)

    @staticmethod
    def _keeps_two_values(op: Operation, args: Any) -> bool:
        is_of_one = not any(isinstance(one, torch.Tensor) and one.dim() for one in args[1:])
        return op.in_table in _KEEP_TWO_VALUES and is_of_one and has_two_values(args[0])

    def _scalar(self, func: Any, op: Operation, args: Any) -> Any:
        if all(map(_is_known, _tensors(args))):
            return func(*args)
        self.ledger.assumed[op.name] += 1
        return False if op.name == "equal" or args[0].dtype == torch.bool else 0

    # What others than operations do

    def empty(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor that no operation makes, as compiled code has it."""
        return self._allocate(_Shape(tuple(size), tuple(stride), dtype))

    def kernel(self, *args: Any) -> None:
        """Runs a kernel that reads or writes all tensors that it is given."""
        self.ledger.moved += sum(map(_bytes_of, _tensors(args)))

    # Memory

    def _give(self, shape: Any) -> Any:
        return self._allocate(shape) if isinstance(shape, _Shape) else shape

    def _allocate(self, shape: _Shape) -> torch.Tensor:
        """A tensor whose values nobody knows."""
        span = 1 + sum((size - 1) * step for size, step in zip(shape.size, shape.stride, strict=True))
        count = span if prod(shape.size) else 0
        nbytes = count * shape.dtype.itemsize
        if nbytes <= _OWN_MEMORY:
            flat = torch.zeros(count, dtype=shape.dtype, device="cpu")
        else:
            flat = torch.frombuffer(self._range(nbytes), dtype=shape.dtype, count=count)
        flat.untyped_storage()._dry_unknown = True  # type: ignore[attr-defined]
        tensor = flat.as_strided(shape.size, shape.stride)
        self._note(tensor)
        return tensor

    def _range(self, nbytes: int) -> mmap.mmap:
        if self._addresses is None or len(self._addresses) < nbytes:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            if sys.platform == "linux":
                flags |= getattr(mmap, "MAP_NORESERVE", 0x4000)
            length = max(_ADDRESSES, 1 << (nbytes - 1).bit_length())
            try:
                self._addresses = mmap.mmap(-1, length, flags=flags)
            except (OSError, ValueError) as error:
                raise MemoryError(f"the system gives no range of {length:,} addresses: {error}") from error
        return self._addresses

    def _note(self, tensor: torch.Tensor) -> None:
        """Count a storage that an operation has given, until it dies."""
        storage = tensor.untyped_storage()
        if hasattr(storage, "_dry_number"):
            return
        storage._dry_number = self.ledger.born(storage)  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class _Shape:
    """Of a tensor that an operation gives."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def of(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return _Shape(tuple(value.shape), tuple(value.stride()), value.dtype)


@dataclass(frozen=True, slots=True)
class _Result:
    made: Any
    is_small: bool
    flops: int
    moved: int
    nbytes: int
    temporary: int


# They give a number to Python.
_SCALARS = ("_local_scalar_dense", "equal")
# They give their argument's memory and do not say so, or memory that Python has made.
_VIEWS = ("lift_fresh", "lift", "set_", "resize_")
# Products of a CPU's fused attention: in the backward pass the logits are made anew.
_ATTENTIONS = {
    "_scaled_dot_product_flash_attention_for_cpu": 2,
    "_scaled_dot_product_flash_attention_for_cpu_backward": 5,
}


# They give two values, or as many as they are given if all else is a number.
_TWO_VALUES = ("bernoulli", "sign", "sgn", "eq", "ne", "lt", "le", "gt", "ge", "logical_not")
_KEEP_TWO_VALUES = ("div", "mul", "add", "sub", "rsub", "_to_copy", "clone", "neg")


def has_two_values(tensor: torch.Tensor) -> bool:
    """Whether all that is in a tensor's storage are two values, as in a mask of dropout; for a dry run."""
    return getattr(tensor.untyped_storage(), "_dry_two_values", False)


def _note_two_values(tensor: torch.Tensor, has_two: bool = True) -> None:
    tensor.untyped_storage()._dry_two_values = has_two  # type: ignore[attr-defined]


def _flops(func: Any, op: Operation, args: Any, kwargs: Any, made: Any) -> int:
    """Floating-point operations of matrix products, convolutions and fused attention; 0 of others."""
    counter = flop_registry.get(func._overloadpacket)
    if counter is not None:
        found: int = counter(*args, **kwargs, out_val=made)
        return found
    products = _ATTENTIONS.get(op.name)
    if products is None:
        return 0
    query, key = args[1:3] if op.name.endswith("_backward") else args[:2]
    return 2 * products * query.numel() * int(key.shape[-2])


def _key_of(func: Any, args: Any, kwargs: Any) -> Any:
    return func, _frozen(args), _frozen(kwargs) if kwargs else ()


def _frozen(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.stride(), value.dtype
    if isinstance(value, (list, tuple)):
        return tuple([_frozen(one) for one in value])
    if isinstance(value, dict):
        return tuple([(name, _frozen(one)) for name, one in value.items()])
    if isinstance(value, torch.Generator):
        return None
    return type(value), value


def _meta(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=_META)


def _map(function: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        made = [_map(function, one) for one in value]
        return made if isinstance(value, list) else tuple(made)
    if isinstance(value, dict):
        return {name: _map(function, one) for name, one in value.items()}
    return function(value)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


@cache
def _made_of_others(func: Any) -> Function | None:
    """What calls other operations in place of one; None if it has a kernel of its own."""
    if isinstance(func, HigherOrderOperator):
        if (kernel := kernel_of(func)) is None:
            raise DryRunError(f"{func.name()} cannot be run without values: it has no kernel for a CPU")
        return kernel
    has_kernel, name = torch._C._dispatch_has_kernel_for_dispatch_key, func.name()
    # Below autograd, where hooks run, these come whole.
    is_composite = has_kernel(name, "CompositeImplicitAutograd") and not has_kernel(name, "CPU")
    return func.decompose if is_composite else None


def _is_random(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())


def _is_known(tensor: torch.Tensor) -> bool:
    return not getattr(tensor.untyped_storage(), "_dry_unknown", False)


def _bytes_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
