"""Which operation produced a tensor, told by watching the operations themselves.

The hooks of autograd see a saved tensor and not where it comes from: attention's log-sum-exp and the
statistics of a norm have no ``grad_fn``, and autocast's copy of a weight looks like any activation. So a
``TorchDispatchMode`` notes, for every storage that an operation fills, which operation that was. It runs
every operation unchanged, below autograd and autocast, after the kernel has been chosen.

A storage is known by its ``StorageImpl``, and a weak reference is kept to it: while that is held no other
storage can have the same address, so a freed and reused address is never mistaken for the old tensor.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

# Operations whose result is their first argument in other memory or another type.
_COPIES = ("_to_copy", "clone")


@dataclass(slots=True)
class Origin:
    """What is known of one storage.

    Attributes:
        op: name of the operation that last wrote it, without namespace, "" if not seen; with its number if
            it is not the first output: "native_layer_norm.1".
        constant: "parameter" or "buffer", or "parameter copy" or "buffer copy", or None.
        writes: in-place operations seen on it. Unlike ``Tensor._version`` this counts writes through
            ``.data`` and other tensors that share the memory and not the version counter.
    """

    op: str = ""
    constant: str | None = None
    writes: int = 0


class StorageMap:
    """A map from live storages to their origins, which keeps no storage alive."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[StorageWeakRef, Origin]] = {}
        self._limit = 1024

    def get(self, storage: torch.UntypedStorage) -> Origin | None:
        entry = self._entries.get(storage._cdata)
        return entry[1] if entry else None

    def set(self, storage: torch.UntypedStorage, origin: Origin) -> None:
        ref = StorageWeakRef(storage)
        self._entries[ref.cdata] = (ref, origin)
        if len(self._entries) > self._limit:
            self._let_go_of_the_dead()

    def _let_go_of_the_dead(self) -> None:
        for key, (ref, _) in list(self._entries.items()):
            if ref.expired():
                self._entries.pop(key, None)
        self._limit = max(1024, 2 * len(self._entries))


class Trace(TorchDispatchMode):
    """Notes the origin of every storage that is filled while the mode is active.

    Args:
        module: its parameters and buffers are known as such, and copies of them too.
        follow_modules: also note which module's forward pass is under way, for :attr:`module`.

    Attributes:
        before: called with each operation's name and arguments before it runs. What an operation needs of
            its inputs for the backward pass is saved just before.

    Example:
        >>> with Trace(torch.nn.Linear(2, 2)) as trace:
        ...     y = torch.log_softmax(torch.ones(3, 3), 0)
        >>> trace.origin(y).op
        '_log_softmax'
    """

    def __init__(self, module: torch.nn.Module, follow_modules: bool = False) -> None:
        super().__init__()
        self._origins = StorageMap()
        self._constants = StorageMap()
        self._names = {part: name for name, part in module.named_modules()} if follow_modules else {}
        self._under_way = threading.local()
        self._hooks: list[RemovableHandle] = []
        self.before: Callable[[str, tuple[Any, ...]], None] | None = None
        self._add_constants(module.parameters(), "parameter")
        self._add_constants(module.buffers(), "buffer")

    def _add_constants(self, tensors: Iterable[torch.Tensor], kind: str) -> None:
        for tensor in tensors:
            if tensor.layout == torch.strided and not torch.nn.parameter.is_lazy(tensor):
                self._constants.set(tensor.untyped_storage(), Origin(constant=kind))

    def __enter__(self) -> Trace:
        # Autocast keeps its copies of weights: those made before now were made unseen.
        torch.clear_autocast_cache()
        if self._names:
            self._hooks += [
                register_module_forward_pre_hook(self._enter_module),
                register_module_forward_hook(self._leave_module, always_call=True),
            ]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        while self._hooks:
            self._hooks.pop().remove()
        super().__exit__(*error)

    @property
    def module(self) -> str:
        """Name of the innermost module whose forward pass this thread is in; "" for the model itself."""
        names = self._stack()
        return names[-1] if names else ""

    def _stack(self) -> list[str]:
        stack: list[str] = self._under_way.__dict__.setdefault("names", [])
        return stack

    def _enter_module(self, module: torch.nn.Module, *_: Any) -> None:
        if module in self._names:
            self._stack().append(self._names[module])

    def _leave_module(self, module: torch.nn.Module, *_: Any) -> None:
        if module in self._names and self._stack():
            self._stack().pop()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """torch.compile need not fall back to eager because this mode watches."""
        return True

    def origin(self, tensor: torch.Tensor) -> Origin:
        """What is known of the tensor's storage; a parameter or buffer stays one whatever writes it."""
        storage = tensor.untyped_storage()
        seen = self._origins.get(storage)
        known = self._constants.get(storage)
        if known is None and (
            isinstance(tensor, torch.nn.Parameter) or isinstance(tensor._base, torch.nn.Parameter)
        ):
            known = Origin(constant="parameter")
        if known is not None:
            return Origin(seen.op if seen else "", known.constant, seen.writes if seen else 0)
        return seen or Origin()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, is_view, written = _traits(func)
        if self.before is not None:
            self.before(_call(name, args), args)
        result = func(*args, **(kwargs or {}))
        for place, key in written:
            value = args[place] if place < len(args) else (kwargs or {}).get(key)
            for tensor in _tensors(value):
                self._note_write(tensor, name)
        if not is_view and not written:
            for index, output in enumerate(_outputs(result)):
                if output is not None and output.layout == torch.strided:
                    self._origins.set(output.untyped_storage(), self._origin_of_output(name, index, args))
        return result

    def _origin_of_output(self, name: str, index: int, args: tuple[Any, ...]) -> Origin:
        if name in _COPIES and args and _is_strided(args[0]):
            source = self.origin(args[0])
            constant = source.constant
            return Origin(source.op or name, f"{constant.removesuffix(' copy')} copy" if constant else None)
        return Origin(f"{name}.{index}" if index else name)

    def _note_write(self, tensor: torch.Tensor, name: str) -> None:
        if tensor.layout != torch.strided:
            return
        storage = tensor.untyped_storage()
        before = self._origins.get(storage)
        self._origins.set(storage, Origin(name, writes=before.writes + 1 if before else 1))


def _call(name: str, args: tuple[Any, ...]) -> str:
    """What a rule calls an operation: its name, of a power with the exponent: "pow(0.5)"."""
    is_power = name == "pow" and len(args) > 1 and isinstance(args[1], int | float)
    return f"pow({args[1]:g})" if is_power else name


@cache
def _traits(func: Any) -> tuple[str, bool, tuple[tuple[int, str], ...]]:
    """Of an operation: its name, whether it only makes views, and the arguments it writes to."""
    name = func.name().split("::")[-1].split(".")[0]
    arguments = func._schema.arguments
    written = tuple(
        (place, argument.name)
        for place, argument in enumerate(arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    aliases = any(result.alias_info is not None for result in func._schema.returns)
    return name, aliases and not written, written


def _outputs(result: Any) -> Iterator[torch.Tensor | None]:
    """The outputs of an operation in their places; what is no tensor is None."""
    for output in result if isinstance(result, (tuple, list)) else (result,):
        yield output if isinstance(output, torch.Tensor) else None


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, torch.Tensor):
        yield value


def strided(value: Any) -> Iterator[torch.Tensor]:
    """The tensors among an operation's arguments that are memory with strides."""
    return filter(_is_strided, _tensors(value))


def _is_strided(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout == torch.strided
