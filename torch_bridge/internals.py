"""Torch's internals that the bridge stands on, all in this file, each tried before it is first used.

What a version of torch lacks turns one feature off, with one warning that names the version; an import never
fails over it. Nothing else in the bridge takes anything from ``torch._C``.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, reduce
from operator import or_
from types import CodeType, FrameType
from typing import Any, TypeVar
from unittest import mock

import torch
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

T = TypeVar("T")


def _find(path: str) -> Any:
    """What stands at a path below torch, None if it is not there."""
    found: Any = torch
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


# Which operation saves a tensor
#
# Every node of autograd's graph has a number, one more than the node made before it by the same thread.
# While a node saves tensors, this is the number behind the last node's: the same in the pack hook and below
# autograd, where the operation itself runs.

sequence_number: Callable[[], int] = _find("_C._autograd._get_sequence_nr") or (lambda: -1)

_apply_code: CodeType | None = getattr(
    getattr(torch.autograd.Function.apply, "__func__", None), "__code__", None
)


def function_that_saves() -> str:
    """Module and class of the ``autograd.Function`` that saves a tensor, "" if none; asked by pack hooks."""
    frame: FrameType | None = sys._getframe(1).f_back
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name == _FUNCTION:
            if frame.f_code is not _apply_code:
                return ""
            function = frame.f_locals["cls"]
            return f"{function.__module__}.{function.__name__}"
        if name == _CHECKPOINT:
            # The Function that saved a recomputation's inputs before torch 2.13.
            return f"{_CHECKPOINT}._NoopSaveInputs"
        if not name.startswith(_OWN):
            return ""
        frame = frame.f_back
    return ""


_OWN = ("torch._dynamo", __name__)  # frames between autograd and a hook
_FUNCTION, _CHECKPOINT = "torch.autograd.function", "torch.utils.checkpoint"


# What hooks compute, unseen

_len_dispatch = _find("_C._len_torch_dispatch_stack") or (lambda: 1)
_len_function = _find("_C._len_torch_function_stack") or (lambda: 1)
_disable_dispatch = _find("_C._DisableTorchDispatch") or nullcontext
_disable_function = _find("_C.DisableTorchFunction") or nullcontext
_NOTHING = nullcontext()
_dry: list[TorchDispatchMode] = []


@contextmanager
def under_always(mode: TorchDispatchMode) -> Any:
    """Run all operations under a mode, those of hooks too: a dry run, which computes nothing."""
    with mode:
        _dry.append(mode)
        try:
            yield
        finally:
            _dry.pop()


@contextmanager
def _under(mode: TorchDispatchMode) -> Any:
    """Where no mode sees what is computed but this one, which is active, and those that were there before."""
    above: list[Any] = []
    while (top := _python_dispatch._get_current_dispatch_mode()) is not None and top is not mode:
        above.append(_python_dispatch._pop_mode())
    try:
        yield
    finally:
        for one in reversed(above):
            _python_dispatch._push_mode(one)


def unseen() -> AbstractContextManager[Any]:
    """Where no mode sees what is computed, nor a default device changes where."""
    if _dry:
        return _under(_dry[-1])
    if _len_function():
        return _unseen_by_all()
    return _disable_dispatch() if _len_dispatch() else _NOTHING


@contextmanager
def _unseen_by_all() -> Any:
    with _disable_dispatch(), _disable_function():
        yield


def _detached(kind: type[torch.Tensor], tensor: torch.Tensor) -> torch.Tensor:
    with unseen():
        return tensor.detach()


_as = _find("Tensor._make_subclass") or _detached


def detached(tensor: torch.Tensor) -> torch.Tensor:
    """A plain tensor without its history, which counts versions with it; no mode sees it made."""
    return _as(torch.Tensor, tensor) if tensor.requires_grad else tensor


# An operation that is done again below autograd and autocast, as it was recorded

_DEVICES = ("CPU", "CUDA", "XPU", "HPU", "MPS", "PrivateUse1")  # that have autocast
_below_autograd = _find("_C._AutoDispatchBelowAutograd")
_exclude = _find("_C._ExcludeDispatchKeyGuard")
_key_set, _keys = _find("_C.DispatchKeySet"), _find("_C.DispatchKey")


@cache
def _autocast_keys() -> Any:
    keys = (getattr(_keys, f"Autocast{device}", None) for device in _DEVICES)
    return reduce(or_, (_key_set(key) for key in keys if key is not None))


@contextmanager
def as_recorded() -> Any:
    """What runs inside runs as it does when a dispatch mode sees it."""
    with _below_autograd(), _exclude(_autocast_keys()):
        yield


# Tensors

dispatch_keys: Callable[[torch.Tensor], Any] = _find("_C._dispatch_keys")
"""A set whose number tensors of a kind share: same subclass, layout, device type and lazy bits."""
_is_wrapped = _find("_C._functorch.is_functorch_wrapped_tensor") or (lambda tensor: True)


def is_wrapped(tensor: torch.Tensor) -> bool:
    """Whether it is functorch's: no memory of its own."""
    return bool(_is_wrapped(tensor))


# Hooks

_top_hooks = _find("_C._autograd._top_saved_tensors_default_hooks")


def active_hooks() -> Any:
    """The pack and unpack hooks that are active, None without any."""
    return _top_hooks(False) if _top_hooks else None


# Compilation

is_compiling: Callable[[], Any] = _find("_C._dynamo.eval_frame.get_eval_frame_callback") or (lambda: None)
"""Not None where functions that run first are compiled."""
_codes: list[CodeType] = []
_disabled: dict[Callable[..., Any], Callable[..., Any]] = {}


def never_compile(*functions: Callable[..., Any]) -> None:
    """Have the compiler skip functions, once ``tell_compiler`` was called, and nothing that they call.

    They hand over to ``uncompiled`` if ``is_compiling() is not None``. To call what
    ``torch.compiler.disable`` makes of a function takes longer than most of what is called here.
    """
    _codes.extend(function.__code__ for function in functions)


def uncompiled(function: Callable[..., T], *args: Any) -> T:
    """Call a function, and nothing that it calls is compiled."""
    if function not in _disabled:
        _disabled[function] = torch.compiler.disable(function)
    return _disabled[function](*args)


def tell_compiler() -> None:
    """Have the compiler skip what is not to be compiled, if it has been imported."""
    if "torch._dynamo" in sys.modules:
        while _codes:
            torch._dynamo.eval_frame.skip_code(_codes.pop())


def new_size() -> Any:
    """A size that is known when a graph runs, in the fake kernel of an operation.

    ``new_dynamic_size`` gives one only where a user lets graphs contain operations such as ``nonzero``.
    """
    context = torch.library.get_ctx()
    shapes = context._shape_env
    if shapes is None:
        return context.new_dynamic_size()  # raises what the caller expects
    size = shapes.create_unbacked_symint()
    torch.fx.experimental.symbolic_shapes._constrain_range_for_size(size, min=0)
    return size


def note_new_sizes(node: torch.fx.Node) -> None:
    """Have the compiler know the sizes that a node of a graph has by ``new_size``."""
    from torch.fx.experimental.symbolic_shapes import compute_unbacked_bindings

    value = node.meta["val"]
    mode = getattr(value, "fake_mode", None)
    if mode is not None and (bindings := compute_unbacked_bindings(mode.shape_env, value)):
        node.meta["unbacked_bindings"] = bindings


# A compiled model that is run without its kernels


def kernel_of(higher: Any) -> Callable[..., Any] | None:
    """What an operation on operations does on a CPU, as one that puts a state of random numbers back."""
    found: Callable[..., Any] | None = higher.py_kernels.get(torch._C.DispatchKey.CPU)
    return found


def functions_of(module: Any) -> dict[Any, Callable[..., Any]]:
    """The operations that a module defines by ``torch.library.custom_op``, and the functions behind them."""
    kind = torch.library.CustomOpDef
    return {one._opoverload: one._init_fn for one in vars(module).values() if isinstance(one, kind)}


@contextmanager
def inductor_without_kernels(empty: Callable[..., Any], kernel: Callable[..., None]) -> Any:
    """Have Inductor build the code that calls kernels, and no kernels; nothing of it stays in a cache.

    Args:
        empty: size, stride and type -> a tensor, in place of Inductor's allocation.
        kernel: is called in place of each kernel.

    Raises:
        RuntimeError: this torch has no such Inductor.
    """
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.codecache import PyCodeCache

    guards = torch._C._dynamo.guards
    places = (AsyncCompile, "cpp_pybinding"), (guards, "_empty_strided_cpu"), (PyCodeCache, "modules_no_attr")
    missing = [name for owner, name in places if not hasattr(owner, name)]
    if missing:
        raise RuntimeError(f"Inductor of torch {torch.__version__} has no {', '.join(missing)}")

    def build(*_: Any, **__: Any) -> Callable[..., None]:
        return kernel

    with (
        mock.patch.object(AsyncCompile, "cpp_pybinding", build),
        mock.patch.object(guards, "_empty_strided_cpu", empty),
        mock.patch.dict(PyCodeCache.modules_no_attr, clear=True),
        torch.compiler.config.patch(force_disable_caches=True),  # type: ignore[attr-defined]
    ):
        yield


def cache_hits() -> int:
    """How many graphs torch.compile took from a cache with both of their passes, in this process."""
    from torch._dynamo.utils import counters

    return int(counters["aot_autograd"]["autograd_cache_hit"])


def compilation() -> Any:
    """What stands for the compilation of one graph while that is under way; None outside of any."""
    return torch._guards.TracingContext.try_get()


# The self-test


class _Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.numbers.append(sequence_number())
        return func(*args, **(kwargs or {}))


class _Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return 2 * grads[0]


def _tells_savers() -> bool:
    """Whether a pack hook sees the number that the operation has, and the Function that saves."""
    packed: list[tuple[int, str]] = []

    def pack(tensor: torch.Tensor) -> None:
        packed.append((sequence_number(), function_that_saves()))

    x = torch.ones(2, requires_grad=True, device="cpu")
    with _Seen() as seen, torch.autograd.graph.saved_tensors_hooks(pack, lambda _: x):
        y = x.sin()
        numbers = seen.numbers[-1:]
        _Double.apply(y)
    name = f"{_Double.__module__}.{_Double.__name__}"
    return packed[:1] == [(*numbers, "")] and packed[1][1] == name and packed[1][0] != numbers[0]


def _storages_carry_facts() -> bool:
    """Whether what is attached to a storage stays for as long as it lives."""
    x = torch.ones(2, device="cpu")
    x.untyped_storage()._bitstash_test = x.shape  # type: ignore[attr-defined]
    return getattr(x.view(1, 2).untyped_storage(), "_bitstash_test", None) == (2,)


def _does_again() -> bool:
    x = torch.ones(2, requires_grad=True, device="cpu")
    with as_recorded():
        return not torch.ops.aten.add.Tensor(x, x).requires_grad


_TESTS: dict[str, tuple[Callable[[], bool], str]] = {
    "savers": (_tells_savers, "which operation saves a tensor cannot be told: every tensor stays exact"),
    "storages": (_storages_carry_facts, "what made a tensor cannot be told: every tensor stays exact"),
    "recomputation": (_does_again, "no tensor is recomputed"),
}


@cache
def has(feature: str) -> bool:
    """Whether this torch has what a feature needs; a warning, once, if not.

    Args:
        feature: "savers", "storages" or "recomputation".
    """
    test, consequence = _TESTS[feature]
    try:
        with torch.enable_grad():
            works = test()
    except Exception:  # whatever a changed internal raises, the feature is not there
        works = False
    if not works:
        warnings.warn(f"torch {torch.__version__}: {consequence}", RuntimeWarning, stacklevel=2)
    return works
