"""The front end for eager training: hooks that keep compressed bytes in place of what autograd saves."""

from __future__ import annotations

import reprlib
import warnings
from contextlib import ContextDecorator, ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import torch

from . import backends, internals
from .backends.dtypes import AnyFormat
from .facts.facts import Facts
from .facts.watch import Watch
from .hooks import Pass
from .keep import opt_out
from .offload import Offload
from .policy import Decision, Policy, as_policy
from .report import Report
from .report.report import Tally
from .store.budget import Budget, check_time
from .store.codecs import Codecs
from .store.store import Store
from .store.verdicts import Verdicts


class Compressor(ContextDecorator):
    """Keeps compressed blocks instead of the activations that a forward pass saves for its backward pass.

    Made once for a model and entered in every step: the forward pass goes inside; the backward pass may run
    inside or after. A decorator as well. Nothing about the model is changed, and the forward pass computes
    what it always computes; the backward pass sees the activations that were decompressed.

    A tensor is lossy only if the table of operations says that the backward pass of what saves it bears that.
    Exact stay: parameters and buffers of ``model``, with all views and copies of them (autocast's too);
    integers, and floats that no format has (fp64); tensors under ``min_values``; one value for a row, as a
    mean; what a policy says; and what is saved by an operation or an ``autograd.Function`` that the table
    does not know, which a warning names once. ``report()`` lists all of it. Where the policy recomputes,
    what autocast makes of a parameter is not kept but cast again: a parameter that changes before the
    backward pass raises autograd's error, as it does without autocast.

    What cheap operations made of stored tensors is not stored but recomputed, if the policy says so, as the
    default one does. Everything else is cut into blocks in the order of memory and kept as uint8[blocks,
    target] on its device. What tensors share of a storage is stored once. Of nested contexts the innermost
    wins, as with all hooks of this kind in PyTorch.

    Args:
        model: whose parameters and buffers stay exact. It is not kept alive.
        policy: which tensors are compressed, and how far; a fixed-mode format stands for
            ``Policy.default(fmt)``. By default the Hadamard format in ``bits`` bits a value.
        backend: one of ``torch_bridge.backends.NAMES``; the bytes are the same with each, but that those
            behind a memory engine give a Hadamard block the number that it has there.
        bits: of a value, where there is no policy: 2, 3 or 4.
        time: of a step, where 1 is a step without recomputation: how many matrix products may be done again
            in the backward pass, so that what they made need not be kept. 1.2 allows 0.2 of the
            floating-point operations of a step: those of its products and attention, forward and backward,
            as they are counted in the first step. That one recomputes all it can; then what saves most
            bytes for its operations is picked, and ``report().curve`` shows it. What bitstash itself takes
            to compress is not in it. Without a time only wide products are done again, as the head of a
            language model; a policy whose rules allow products has no limit then.
        min_values: tensors with fewer distinct values stay exact.
        verify: keep a checksum of four bytes for each block; a block whose bytes changed raises
            ``CorruptionError``, which names tensor and block.
        offload: where to keep what is stored, compressed or not, and every other tensor of at least
            ``min_values``, in place of their memory. None with "memory" and "regions", which keep blocks
            in a memory of their own.

    Raises:
        ValueError: an argument is none of these, or the format is lossless, whose blocks vary in size.
        FileNotFoundError: the backend is "verilated", and a rule's library is not built; that of a rule
            for large tensors, or for some dtypes, is looked for when the first is saved.

    Examples:
        >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64))
        >>> saver = Compressor(model)
        >>> with saver:
        ...     loss = model(torch.randn(64, 64)).square().mean()
        >>> loss.backward()
        >>> round(saver.report().ratio, 1)
        5.9
    """

    def __init__(
        self,
        model: torch.nn.Module,
        policy: AnyFormat | Policy | None = None,
        backend: str = "auto",
        *,
        bits: int | None = None,
        time: float | None = None,
        min_values: int = 1024,
        verify: bool = False,
        offload: Offload | None = None,
    ) -> None:
        if not isinstance(model, torch.nn.Module):
            raise ValueError(f"model must be a torch.nn.Module, not {reprlib.repr(model)}")
        if not isinstance(min_values, int):
            raise ValueError(f"min_values must be a number of values, not {min_values!r}")
        if min_values < 0:
            raise ValueError(f"min_values must not be negative, not {min_values!r}")
        if offload is not None and not isinstance(offload, Offload):
            raise ValueError(f"offload must be an Offload or None, not {offload!r}")
        if offload is not None and backend in backends.IN_PLACE:
            raise ValueError(f"offload must be None with backend {backend!r}, whose memory keeps the blocks")
        check_time(time)
        self._policy = as_policy(policy, bits, products=time is not None)
        self._codecs = Codecs(self._policy, backend)
        self._min_values, self._verify, self._offload = min_values, verify, offload
        records = self._policy.recomputes and internals.has("recomputation")
        self._watch = Watch(model, records, "all" if self._policy.products else "wide")
        self._budget = Budget(time)
        self._verdicts, self._shared = Verdicts(), set[Facts]()
        self._places: dict[Any, tuple[Facts, Decision]] = {}
        self._told: set[str] = set()  # of whom a warning has said that they are not known
        self._pass: Pass | None = None
        self._entered: ExitStack | None = None
        internals.has("savers"), internals.has("storages")

    make_store: type[Store] = Store
    make_pass: type[Pass] = Pass

    def __enter__(self) -> Self:
        if self._entered is not None:
            raise RuntimeError("this Compressor is entered already: to nest contexts make one for each")
        internals.tell_compiler()
        _tell_of_others()
        step = self._offload.begin() if self._offload is not None else None
        tally = Tally()
        store = self.store = self.make_store(
            *(self._codecs, self._watch, self._verdicts, self._shared, tally),
            *(self._min_values, self._verify, step, self._budget),
        )
        self._watch.flops = 0 if self._policy.products and self._budget.is_open else None
        one = self._pass = self.make_pass(
            *(self._policy, self._watch, store, tally, step, self._min_values),
            *(self._places, self._told),
        )
        with ExitStack() as stack:
            self._watch.before = one.before
            stack.callback(setattr, self._watch, "before", None)  # a circle that only a collector would find
            stack.enter_context(self._watch)
            stack.enter_context(opt_out.set(False))
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(one.pack, one.unpack))
            stack.callback(one.end)
            self._entered = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        entered, self._entered = self._entered, None
        assert entered is not None
        assert self._pass is not None
        entered.__exit__(kind, error, trace)
        if self._watch.flops is not None and error is None:
            self._budget.close(self._watch.flops, self.stored_bytes)
        if self._pass.step is not None and error is None:
            self._pass.step.end_forward()

    # What the last forward pass kept

    @property
    def original_bytes(self) -> int:
        """Bytes of the tensors that the last forward pass saved, parameters and buffers left out."""
        return self._settled().tally.original_bytes

    @property
    def stored_bytes(self) -> int:
        """Bytes of the same as they are kept, with headers, padding and exact tensors; offloaded or not."""
        return self._settled().tally.stored_bytes

    @property
    def ratio(self) -> float:
        """Original over stored bytes, as in the report; to ask for it never waits for a GPU."""
        return self.original_bytes / self.stored_bytes if self.stored_bytes else float("nan")

    @property
    def offloaded_bytes(self) -> int:
        """Of the stored bytes, those that were sent away."""
        step = self._settled().step
        return step.bytes if step is not None else 0

    def report(self) -> Report:
        """Every tensor that the last forward pass saved; see ``Report``.

        Raises:
            RuntimeError: there was none.
            ValueError: a block that was decompressed on a GPU had an invalid header.
        """
        self._codecs.check()
        return replace(self._settled().tally.report(), curve=self._budget.curve)

    def _settled(self) -> Pass:
        if self._pass is None:
            raise RuntimeError("there is nothing to report before the first forward pass")
        self._pass.settle()
        return self._pass


def _tell_of_others() -> None:
    """Warn if hooks are active that will see nothing of what is saved inside."""
    others = internals.active_hooks()
    pack = others[0] if others else None
    if pack is not None and not isinstance(getattr(pack, "__self__", None), Pass):
        name = getattr(pack, "__qualname__", repr(pack))
        warnings.warn(
            f"other hooks for saved tensors are active ({name}): what is saved inside a Compressor goes to "
            "the Compressor alone. Switch the others off, as activation_offloading of TRL. To offload what "
            "is kept, give the Compressor an offload.",
            RuntimeWarning,
            stacklevel=3,
        )
