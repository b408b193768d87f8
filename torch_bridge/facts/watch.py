"""What is told by watching a forward pass: which operation made a tensor, which saves it, in which module.

The hooks of autograd see a saved tensor and nothing else: attention's log-sum-exp and the statistics of a
norm have no ``grad_fn``, and autocast's copy of a weight looks like any activation. So a
``TorchDispatchMode`` notes, for every storage that an operation fills, which operation that was, and how to
do it again if that is asked for. It runs every operation unchanged, below autograd and autocast, after the
kernel has been chosen.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any, Literal

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from ..internals import is_compiling, never_compile, sequence_number, uncompiled
from .functions import EMPTIED, PASSING
from .geometry import is_plain, local_of
from .lineage import Autograd
from .operations import KNOWN, Operation, name_of_result, operation, writes
from .origin import Operand, Origin, note_recipe
from .products import inner_of, is_wide
from .recompute import Recipe, Recomputation

Products = Literal["no", "wide", "all"]

PARAMETER, BUFFER, COPY = "parameter", "buffer", " copy"
REFILLED = "memory that its owner fills again"
# Names that every operation asks for.
Tensor, is_grad_enabled, _STRIDED = torch.Tensor, torch.is_grad_enabled, torch.strided
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
# What autograd calls copies and views.
_COPY_NODES = {
    f"{name}Backward0"
    for name in (
        *("ToCopy", "Clone", "T", "Transpose", "Permute", "View", "UnsafeView", "ReshapeAlias", "Expand"),
    )
}
# What it calls views: what they show another node has given.
_VIEW_NODES = {
    f"{name}Backward{number}"
    for name in (
        *("T", "Transpose", "Permute", "View", "ReshapeAlias", "Expand", "Unsqueeze", "Squeeze", "Slice"),
        *("Select", "Alias", "Narrow", "Split", "Unfold", "UnsafeView", "AsStrided"),
    )
    for number in (0, 1, 2)
}
# Which nodes are of views and which of Functions, by their types: a node's name takes longer to ask for.
_OTHER, _VIEW, _FUNCTION = range(3)
_KINDS: dict[type, int] = {}
_NOTHING: dict[str, Any] = {}
_keys = count()
_free_keys: list[
    int
] = []  # of watches that are gone: their storages may still have an attribute of that name


class Thread:
    """What a thread does.

    Attributes:
        waiting: what it saved since its last operation.
        operation: that ran last and may have a node; None if that is not known.
        number: of the node, as autograd counts them.
        needs: what that needs of its results, by their places.
        modules: names of the modules whose forward passes are under way.
        lineages: of the tensors that it made.
    """

    __slots__ = ("lineages", "modules", "needs", "number", "operation", "waiting")

    def __init__(self) -> None:
        self.waiting: list[Any] = []
        self.operation: Operation | None = None
        self.number = -1
        self.needs: dict[int, Any] = {}
        self.modules: list[str] = [""]
        self.lineages = Autograd()


class _Threads(threading.local):
    """The one that asks."""

    def __init__(self) -> None:
        self.thread = Thread()


class Watch(TorchDispatchMode):
    """Notes the origin of every storage that is filled while the mode is active.

    Args:
        model: its parameters and buffers are known as such, and copies of them too.
        records: also note how to do an operation again, for ``Origin.recipe``.
        products: which matrix products among these.

    Attributes:
        flops: floating-point operations of a step so far, where these are counted; None if not.
        before: called where tensors wait with the thread, an operation that is to run, and its arguments.

    Examples:
        >>> with Watch(torch.nn.Linear(2, 2)) as watch:
        ...     y = torch.log_softmax(torch.ones(3, 3), 0)
        >>> watch.origin(y).op
        '_log_softmax'
    """

    supports_higher_order_operators = True

    def __init__(self, model: torch.nn.Module, records: bool = False, products: Products = "no") -> None:
        super().__init__()
        self._model, self._records, self._products = weakref.ref(model), records, products
        self.flops: int | None = None
        self._key = _key_of(self)  # of the origin among a storage's attributes
        self._step = object()
        self._hooks: list[RemovableHandle] = []
        self._names: dict[torch.nn.Module, str] = {}
        self.before: Callable[[Thread, Operation, tuple[Any, ...], dict[str, Any]], None] | None = None
        self._threads = _Threads()

    @property
    def thread(self) -> Thread:
        """What the thread does that asks."""
        return self._threads.thread

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """torch.compile need not fall back to eager because this mode watches."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """PyTorch's own way to leave a mode uncompiled costs as much as the mode."""
        return False

    def __enter__(self) -> Watch:
        if is_compiling() is not None:
            return uncompiled(Watch.__enter__, self)
        # Autocast keeps its copies of weights: those made before now were made unseen.
        torch.clear_autocast_cache()
        self._step, self._threads = object(), _Threads()
        model = self._model()
        if model is not None:
            self._names = _named_modules(model)
            self._note_model()
        self._hooks += [
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module, always_call=True),
        ]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        if is_compiling() is not None:
            uncompiled(Watch.__exit__, self, *error)
            return
        while self._hooks:
            self._hooks.pop().remove()
        self._names = {}
        super().__exit__(*error)

    # The model

    def _note_model(self) -> None:
        modules = self._names
        gathered = _gathered(modules)
        for part in modules:
            for buffer in part._buffers.values():
                if buffer is not None:
                    self._note_constant(buffer, BUFFER)
        for part in modules:
            for parameter in part._parameters.values():
                if parameter is not None:
                    origin = self._note_constant(parameter, PARAMETER)
                    if origin is not None and id(parameter) not in gathered:
                        origin.parameter = weakref.ref(parameter)

    def _note_constant(self, tensor: torch.Tensor, kind: str) -> Origin | None:
        local = tensor
        if type(tensor) not in _PLAIN_TYPES:
            if torch.nn.parameter.is_lazy(tensor):
                return None
            local = local_of(tensor)
        if tensor.layout is not _STRIDED:
            return None
        storage = local.untyped_storage()
        other = self.known(storage)
        if other is not None and other.constant == kind:
            if other.parameter is not None and other.parameter() is not tensor:
                other.parameter = None  # flattened: each part counts versions for itself
            return None
        origin = self._note(storage, constant=kind)
        return origin if local is tensor else None

    @property
    def module(self) -> str:
        """Name of the innermost module whose forward pass this thread is in; "" for the model itself."""
        return self.thread.modules[-1]

    def _enter_module(self, module: torch.nn.Module, *_: Any) -> None:
        name = self._names.get(module)
        if name is not None:
            self.thread.modules.append(name)

    def _leave_module(self, module: torch.nn.Module, *_: Any) -> None:
        names = self.thread.modules
        if module in self._names and len(names) > 1:
            names.pop()

    # Storages

    def known(self, storage: torch.UntypedStorage) -> Origin | None:
        """What was noted of a storage in this step."""
        origin: Origin | None = getattr(storage, self._key, None)
        return origin if origin is not None and origin.step is self._step else None

    def _note(self, storage: torch.UntypedStorage, op: str = "", constant: str = "") -> Origin:
        origin = Origin(self._step, storage, op, constant)
        setattr(storage, self._key, origin)
        return origin

    def is_current(self, origin: Origin) -> bool:
        """Whether the storage is there, and was not written to since."""
        storage = origin.storage()
        return storage is not None and getattr(storage, self._key, None) is origin

    def origin(self, tensor: torch.Tensor) -> Origin:
        """What is known of the tensor's storage; a parameter or buffer stays one whatever writes it."""
        storage = (tensor if type(tensor) in _PLAIN_TYPES else local_of(tensor)).untyped_storage()
        origin: Origin | None = getattr(storage, self._key, None)
        if origin is None or origin.step is not self._step:
            origin = self._note(
                storage, constant=f"{PARAMETER}{COPY}" if _is_copy_of_parameter(tensor) else ""
            )
        node: Any = tensor.grad_fn
        if node is not None and _KINDS.get(type(node)) is not _OTHER:
            origin = self._behind(node, origin, storage)
        if not origin.constant and _is_of_parameter(tensor):
            origin.constant = PARAMETER
        return origin

    def _behind(self, node: Any, origin: Origin, storage: torch.UntypedStorage) -> Origin:
        """A storage's origin if a Function gave the memory that a node shows."""
        node = _behind_views(node)
        if node is not None and _kind_of(node) is _FUNCTION:
            # A kernel may have written to it past everything that counts: it is another state.
            number = node._sequence_nr()
            if origin.function != number:
                origin = self._note(storage, node.name(), origin.constant)
                origin.function = number
                if _is_emptied(node):
                    origin.constant = REFILLED
        return origin

    def note_part(self, tensor: torch.Tensor, local: torch.Tensor) -> None:
        """Note that what a DTensor has here is a parameter's, which only the DTensor knows.

        FSDP2 gathers a parameter that is also split over ranks into memory that no parameter had before.
        """
        if _is_of_parameter(tensor) or _is_copy_of_parameter(tensor):
            origin = self.origin(local)
            origin.constant = origin.constant or PARAMETER

    # Operations

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_compiling() is not None:
            return uncompiled(Watch.__torch_dispatch__, self, func, types, args, kwargs)
        op, thread = KNOWN.get(id(func)) or operation(func), self._threads.thread
        if thread.waiting and self.before is not None:
            self.before(thread, op, args, kwargs or _NOTHING)
        result = op.run(*args, **kwargs) if kwargs else op.run(*args)
        if op.is_view:  # its node saves no tensor
            thread.operation = None
            return result
        if op.written:
            self._note_writes(op, args, kwargs or _NOTHING)
        else:
            self._note_results(op, result, args, kwargs or _NOTHING)
        if is_grad_enabled():
            thread.operation, thread.number = op, sequence_number()
            if op.may_mask:
                thread.lineages.note(args, thread.number - 1)
            if op.results:
                thread.needs = op.needs_of_results(args, kwargs or _NOTHING, thread.lineages.of_tensor)
        else:
            thread.operation = None
        return result

    def _note_results(
        self, op: Operation, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if self.flops is not None:
            self.flops += op.flops_of_step(args, kwargs, result)
        if type(result) is Tensor and result.layout is _STRIDED:
            storage = result.untyped_storage()
            if op.is_copy and args and _is_strided(args[0]):
                origin = self._note_copy(op, storage, args[0])
            else:
                origin = Origin(self._step, storage, op.name)
                origin.is_statistic = op.is_reduction
                setattr(storage, self._key, origin)
            if op.recomputation is not None and self._records:
                self._record(op.recomputation, args, kwargs, (result,), origin)
            return
        outputs = result if isinstance(result, (tuple, list)) else (result,)
        first = None
        for index, output in enumerate(outputs):
            if isinstance(output, torch.Tensor) and output.layout is _STRIDED:
                name = name_of_result(op.name, index)
                origin = self._note(local_of(output).untyped_storage(), name)
                origin.is_statistic = op.is_reduction
                first = first or origin
        if first is not None and op.recomputation is not None and self._records:
            self._record(op.recomputation, args, kwargs, outputs, first)

    def _note_copy(self, op: Operation, storage: torch.UntypedStorage, copied: torch.Tensor) -> Origin:
        source = self.origin(copied)
        is_constant = source.constant not in ("", REFILLED) and not _repeats(copied)
        constant = f"{source.constant.removesuffix(COPY)}{COPY}" if is_constant else ""
        origin = self._note(storage, source.op or op.name, constant)
        origin.is_statistic = source.is_statistic
        return origin

    def _note_writes(self, op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # What is written to as ``out`` may be a part of a storage, as in place.
        name = op.name if writes(op.name) else f"{op.name}_"
        for place, key in op.written:
            value = args[place] if place < len(args) else kwargs.get(key)
            for tensor in strided(value):
                storage = tensor.untyped_storage()
                before = self.known(storage)
                origin = self._note(storage, name)
                if before is not None and before.constant in (PARAMETER, BUFFER):
                    origin.constant, origin.parameter = before.constant, before.parameter

    def _record(
        self,
        way: Recomputation,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        outputs: Any,
        origin: Origin,
    ) -> None:
        """Note how to make the first result of an operation again."""
        made, inner = outputs[0], 0
        if (way.fits is not None and not way.fits(args)) or made.is_inference():
            return
        if way.factors is not None:
            inner = inner_of(way, args)
            if self._products == "no" or (self._products == "wide" and not is_wide(inner, made.shape[-1])):
                return
        if way.spreads:
            args = (*args[0], *args[1:])
        taken = list(args) if way.takes is None else [args[place] for place in way.takes]
        taken += [outputs[place] for place in way.results]
        operands: list[Operand] = []
        most = 0
        for place, value in enumerate(taken):
            if isinstance(value, Tensor):
                if not _may_start(value, made):
                    return
                source = self.origin(value)
                taken[place] = operand = Operand(source, value)
                operands.append(operand)
                if source.is_statistic:
                    most = max(most, value.numel())
        for name, value in kwargs.items():
            if isinstance(value, Tensor):
                if not _may_start(value, made):
                    return
                operands.append(Operand(self.origin(value), value))
                kwargs = {**kwargs, name: operands[-1]}
        if most and 0 < made.numel() <= most:
            origin.is_statistic = True
        recipe = Recipe(way, taken, kwargs, made)
        recipe.inner = inner
        note_recipe(origin, recipe, operands)


never_compile(Watch.__enter__, Watch.__exit__, Watch.__torch_dispatch__)


def _key_of(watch: Watch) -> str:
    """A name that no other watch has which is still there."""
    if is_compiling() is not None:
        return uncompiled(_key_of, watch)
    number = _free_keys.pop() if _free_keys else next(_keys)
    weakref.finalize(watch, _free_keys.append, number).atexit = False
    return f"_bitstash_{number}"


never_compile(_key_of)


def _named_modules(model: torch.nn.Module) -> dict[torch.nn.Module, str]:
    """Those of ``model.named_modules()``, which takes the longer the deeper the model is."""
    found: dict[torch.nn.Module, str] = {}
    ahead: list[tuple[torch.nn.Module | None, str]] = [(model, "")]
    while ahead:
        module, name = ahead.pop()
        if module is not None and module not in found:
            found[module] = name
            prefix = f"{name}." if name else ""
            ahead += [(child, prefix + own) for own, child in reversed(module._modules.items())]
    return found


def _gathered(modules: Iterable[torch.nn.Module]) -> set[int]:
    """Identities of parameters that FSDP2 has gathered already; sharded ones are DTensors."""
    managed = [part for part in modules if hasattr(type(part), "unshard") and hasattr(type(part), "reshard")]
    parameters = (parameter for part in managed for parameter in part.parameters())
    return {id(parameter) for parameter in parameters if type(parameter) is torch.nn.Parameter}


def _kind_of(node: Any) -> int:
    """Whether a node shows what another one has given, and whether it is an ``autograd.Function``'s."""
    kind = _KINDS.get(type(node))
    if kind is not None:
        return kind
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        return _FUNCTION
    kind = _VIEW if node.name() in _VIEW_NODES else _OTHER
    if type(node).__name__ == node.name():  # else nodes of several kinds have the type
        _KINDS[type(node)] = kind
    return kind


def _behind_views(node: Any) -> Any:
    """The node that gave the memory of which others made views."""
    while node is not None and _kind_of(node) is _VIEW:
        node = node.next_functions[0][0]
    return node


def _is_emptied(node: Any) -> bool:
    """Whether the memory that a Function gave is one that its owner empties and fills again."""
    while node is not None and node.name() in PASSING:
        node = _behind_views(node.next_functions[0][0])
    return node is not None and node.name() in EMPTIED


def _is_copy_of_parameter(tensor: torch.Tensor) -> bool:
    """Whether autograd's graph says that copies and views of a parameter were made, and no more.

    Not of one that was expanded: what is made of that takes as much more memory.
    """
    node = tensor.grad_fn
    if node is None:
        return False
    while node is not None and node.name() in _COPY_NODES:
        node = node.next_functions[0][0]
    variable = getattr(node, "variable", None)
    return isinstance(variable, torch.nn.Parameter) and tensor.numel() <= variable.numel()


def _repeats(tensor: torch.Tensor) -> bool:
    """Whether it has elements of its memory more than once."""
    return tensor.numel() > 1 and 0 in [
        step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1
    ]


def _is_of_parameter(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a parameter, or a view of one; to ask a plain tensor's class takes long."""
    base = tensor._base
    if base is not None and type(base) is not Tensor and isinstance(base, torch.nn.Parameter):
        return True
    return type(tensor) is not Tensor and isinstance(tensor, torch.nn.Parameter)


def _may_start(operand: torch.Tensor, made: torch.Tensor) -> bool:
    """Whether a tensor may be computed anew from another: on one device, and no integers from floats.

    What resolves a lazy bit is given it here. Tensors of inference mode have no versions.
    """
    return (
        (operand.get_device() == made.get_device() or not operand.dim())
        and (made.dtype.is_floating_point or not operand.dtype.is_floating_point)
        and is_plain(operand)
        and not operand.is_inference()
    )


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, torch.Tensor):
        yield value


def strided(value: Any) -> Iterator[torch.Tensor]:
    """The tensors among an operation's arguments that are memory with strides; of DTensors local parts."""
    return map(local_of, filter(_is_strided, _tensors(value)))


def _is_strided(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is _STRIDED
