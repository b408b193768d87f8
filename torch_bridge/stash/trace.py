"""Which operation produced a tensor, told by watching the operations themselves.

The hooks of autograd see a saved tensor and not where it comes from: attention's log-sum-exp and the
statistics of a norm have no ``grad_fn``, and autocast's copy of a weight looks like any activation. So a
``TorchDispatchMode`` notes, for every storage that an operation fills, which operation that was, and how to
do it again if that is asked for. It runs every operation unchanged, below autograd and autocast, after the
kernel has been chosen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from .layout import is_plain, local_of
from .origin import Operand, Operation, Origin, Recipe, StorageMap
from .recipe import OPERATIONS
from .uncompiled import uncompiled

# Operations whose result is their first argument in other memory or another type.
_COPIES = ("_to_copy", "clone")
# Its result is its argument in other sizes, but it does not say so.
_UNSAFE_VIEW = "_unsafe_view"
_PRODUCT, _LOG_SOFTMAX = "mul", "_log_softmax"
# Their second argument is an exponent.
_POWERS = ("pow", "norm", "linalg_vector_norm")
_OWN = ("parameter", "buffer")
_STRIDED = torch.strided
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
# What autograd calls copies and views.
_COPY_NODES = {
    f"{name}Backward0"
    for name in (
        "ToCopy",
        "Clone",
        "T",
        "Transpose",
        "Permute",
        "View",
        "UnsafeView",
        "ReshapeAlias",
        "Expand",
    )
}


class Trace(TorchDispatchMode):
    """Notes the origin of every storage that is filled while the mode is active.

    Args:
        module: its parameters and buffers are known as such, and copies of them too.
        follow_modules: also note which module's forward pass is under way, for :attr:`module`.
        records: also note how to do an operation again, for :attr:`Origin.recipe`.

    Attributes:
        before: called with each operation's name and arguments before it runs. What an operation needs of
            its inputs for the backward pass is saved just before.
        follows_modules: as given.
        has_unseen_copies: whether copies of parameters and buffers, as autocast makes them, are only told by
            watching.

    Example:
        >>> with Trace(torch.nn.Linear(2, 2)) as trace:
        ...     y = torch.log_softmax(torch.ones(3, 3), 0)
        >>> trace.origin(y).op
        '_log_softmax'
    """

    def __init__(self, module: torch.nn.Module, follow_modules: bool = False, records: bool = False) -> None:
        super().__init__()
        self._origins = StorageMap()
        self._records = records
        self._names = {part: name for name, part in module.named_modules()} if follow_modules else {}
        self.follows_modules = follow_modules
        self._under_way = threading.local()
        self._hooks: list[RemovableHandle] = []
        self.before: Callable[[str, tuple[Any, ...], bool], bool] | None = None
        modules = _modules(module)
        gathered = _gathered(modules)
        self.has_unseen_copies = False
        for part in modules:
            for buffer in part._buffers.values():
                if buffer is not None:
                    self._add_constant(buffer, "buffer")
                    self.has_unseen_copies |= buffer.is_floating_point()
        for part in modules:
            for parameter in part._parameters.values():
                if parameter is not None:
                    origin = self._add_constant(parameter, "parameter")
                    self.has_unseen_copies |= not parameter.requires_grad
                    if origin is not None and id(parameter) not in gathered:
                        origin.parameter = parameter

    def _add_constant(self, tensor: torch.Tensor, kind: str) -> Origin | None:
        if tensor.layout is not _STRIDED or torch.nn.parameter.is_lazy(tensor):
            return None
        local = local_of(tensor)
        storage = local.untyped_storage()
        other = self._origins.get(storage)
        if other is not None and other.constant == kind:
            if other.parameter is not tensor:
                other.parameter = None  # flattened: each part counts versions for itself
            return None
        origin = self._origins.add(storage, constant=kind)
        return origin if local is tensor else None

    def forget(self) -> None:
        """Let go of the model: nothing more is to be traced."""
        self._origins, self._names = StorageMap(), {}

    @uncompiled
    def __enter__(self) -> Trace:
        # Autocast keeps its copies of weights: those made before now were made unseen.
        torch.clear_autocast_cache()
        if self._names:
            self._hooks += [
                register_module_forward_pre_hook(self._enter_module),
                register_module_forward_hook(self._leave_module, always_call=True),
            ]
        return super().__enter__()

    @uncompiled
    def __exit__(self, *error: Any) -> None:
        while self._hooks:
            self._hooks.pop().remove()
        super().__exit__(*error)

    @property
    def module(self) -> str:
        """Name of the innermost module whose forward pass this thread is in; "" for the model itself."""
        if not self._names:
            return ""
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

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """torch.compile need not fall back to eager because this mode watches."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """PyTorch's own way to leave a mode uncompiled costs as much as the mode."""
        return False

    def origin(self, tensor: torch.Tensor) -> Origin:
        """What is known of the tensor's storage; a parameter or buffer stays one whatever writes it."""
        storage = local_of(tensor).untyped_storage()
        origin = self._origins.get(storage)
        if origin is None:
            constant = "parameter copy" if _is_copy_of_parameter(tensor) else None
            origin = self._origins.add(storage, constant=constant)
        if origin.constant is None and _is_of_parameter(tensor):
            origin.constant = "parameter"
        return origin

    def call(self, name: str, args: tuple[Any, ...]) -> str:
        """What a rule calls an operation: by its name, in place or not, and what tells it from others alike.

        Of powers and norms that is the exponent, "pow(0.5)"; a product with a log-softmax is one:
        "mul(_log_softmax)".
        """
        name = name.removesuffix("_") if writes(name) else name
        if name in _POWERS and len(args) > 1 and isinstance(args[1], int | float):
            return f"{name}({args[1]:g})"
        if name == _PRODUCT:
            for tensor in strided(args):
                origin = self._origins.get(tensor.untyped_storage())
                if origin is not None and origin.op == _LOG_SOFTMAX:
                    return f"{name}({origin.op})"
        return name

    def is_current(self, origin: Origin) -> bool:
        """Whether the storage is there, and was not written to since."""
        return self._origins.has(origin)

    @uncompiled
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        traits = _TRAITS.get(id(func)) or _traits(func)
        is_done_again = False
        if self.before is not None:
            arguments = (*args, *kwargs.values()) if kwargs else args
            may_be = traits.for_its_node and self._records and _fits(traits, args, arguments)
            is_done_again = self.before(traits.name, arguments, may_be)
        result = traits.run(*args, **kwargs) if kwargs else traits.run(*args)
        if traits.written:
            # What is written to as ``out`` may be a part of a storage, as in place.
            name = traits.name if writes(traits.name) else f"{traits.name}_"
            for place, key in traits.written:
                value = args[place] if place < len(args) else (kwargs or {}).get(key)
                for tensor in _tensors(value):
                    self._note_write(tensor, name)
        elif not traits.is_view:
            self._note_results(traits, result, args, kwargs)
            if self._records and traits.for_its_node == is_done_again:
                for operation in traits.operations:
                    self._record(operation, args, kwargs or {}, result)
        return result

    def _note_results(self, traits: _Traits, result: Any, args: tuple[Any, ...], kwargs: Any) -> None:
        outputs = result if isinstance(result, (tuple, list)) else (result,)
        for index, output in enumerate(outputs):
            if isinstance(output, torch.Tensor) and output.layout is _STRIDED:
                storage = local_of(output).untyped_storage()
                if traits.is_copy and args and _is_strided(args[0]):
                    source = self.origin(args[0])
                    is_copy = source.constant is not None and not _repeats(args[0])
                    constant = f"{str(source.constant).removesuffix(' copy')} copy" if is_copy else None
                    self._origins.add(storage, source.op or traits.name, constant)
                else:
                    self._origins.add(storage, f"{traits.name}.{index}" if index else traits.name)

    def _note_write(self, tensor: torch.Tensor, name: str) -> None:
        if tensor.layout is not _STRIDED:
            return
        storage = local_of(tensor).untyped_storage()
        before = self._origins.get(storage)
        origin = self._origins.add(storage, name, writes=before.writes + 1 if before else 1)
        if before is not None and before.constant in _OWN:
            origin.constant, origin.parameter = before.constant, before.parameter

    def _record(
        self, operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Note how to make a result of an operation again."""
        if operation.fits is not None and not operation.fits(args):
            return
        outputs = result if isinstance(result, (tuple, list)) else (result,)
        made = outputs[operation.makes]
        if made.is_inference():
            return
        taken = list(args) if operation.takes is None else [args[place] for place in operation.takes]
        for place in operation.results:
            taken.append(outputs[place])
        for place, value in enumerate(taken):
            if isinstance(value, torch.Tensor):
                if not _may_start(value, made):
                    return
                taken[place] = Operand(self.origin(value), value)
        for name, value in kwargs.items():
            if isinstance(value, torch.Tensor):
                if not _may_start(value, made):
                    return
                kwargs = {**kwargs, name: Operand(self.origin(value), value)}
        self.origin(made).recipe = Recipe(operation, taken, kwargs, made)


def _modules(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Each once; every step asks, and ``model.modules()`` takes the longer the deeper the model."""
    modules, seen = [model], {model}
    for module in modules:
        for child in module._modules.values():
            if child is not None and child not in seen:
                seen.add(child)
                modules.append(child)
    return modules


def _gathered(modules: list[torch.nn.Module]) -> set[int]:
    """Identities of parameters that FSDP2 has gathered already; sharded ones are DTensors."""
    managed = [part for part in modules if hasattr(type(part), "unshard") and hasattr(type(part), "reshard")]
    parameters = (parameter for part in managed for parameter in part.parameters())
    return {id(parameter) for parameter in parameters if type(parameter) is torch.nn.Parameter}


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
    """Whether a tensor is a parameter, or a view of one."""
    for one in (tensor, tensor._base):
        # What a type of its own has to say of it takes longer to ask, and a plain tensor has nothing.
        if one is not None and type(one) is not torch.Tensor and isinstance(one, torch.nn.Parameter):
            return True
    return False


def writes(name: str) -> bool:
    """Whether an operation writes to its first argument, by its name."""
    return name.endswith("_") and not name.endswith("__")


def _may_start(operand: torch.Tensor, made: torch.Tensor) -> bool:
    """Whether a tensor may be computed anew from another: on one device, and no integers from floats.

    What resolves a lazy bit is given it here. Tensors of inference mode have no versions.
    """
    return (
        (operand.get_device() == made.get_device() or not operand.dim())
        and (made.dtype.is_floating_point or not operand.dtype.is_floating_point)
        and (type(operand) in _PLAIN_TYPES or is_plain(operand))
        and operand.layout is _STRIDED
        and not operand.is_nested
        and not operand.is_meta
        and not (operand.is_conj() or operand.is_neg() or operand.is_inference())
    )


def _fits(traits: _Traits, args: tuple[Any, ...], arguments: tuple[Any, ...]) -> bool:
    """Whether all results of an operation that can be computed anew can be so with these arguments."""
    operands = [value for value in arguments if isinstance(value, torch.Tensor)]
    return all(operation.fits is None or operation.fits(args) for operation in traits.operations) and all(
        _may_start(operand, operands[0]) for operand in operands
    )


class _Traits:
    """What is known of an operation.

    Attributes:
        func, run: itself, and what runs it.
        name: without namespace and overload.
        written: places and names of the arguments that it writes to.
        is_view: whether it only makes views.
        is_copy: whether its result is its first argument in other memory or another type.
        operations: how to do it again, for each result that can be made so.
        for_its_node: whether these are for the operation's own node alone.
    """

    __slots__ = ("for_its_node", "func", "is_copy", "is_view", "name", "operations", "run", "written")

    def __init__(self, func: Any) -> None:
        self.func, self.run = func, func._op if type(func) is torch._ops.OpOverload else func
        self.name = func.name().split("::")[-1].split(".")[0]
        schema = getattr(func, "_schema", None)  # torch.cond and its like have none
        self.written = tuple(
            (place, argument.name)
            for place, argument in enumerate(schema.arguments if schema else ())
            if argument.alias_info is not None and argument.alias_info.is_write
        )
        aliases = any(result.alias_info is not None for result in schema.returns) if schema else False
        self.is_view = (aliases and not self.written) or self.name == _UNSAFE_VIEW
        self.is_copy = self.name in _COPIES
        self.operations = OPERATIONS.get(func, ())
        self.for_its_node = any(operation.for_its_node for operation in self.operations)


_TRAITS: dict[int, _Traits] = {}  # by identity: an operation's hash takes longer, and they hold it


def _traits(func: Any) -> _Traits:
    traits = _TRAITS[id(func)] = _Traits(func)
    return traits


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
