"""Compressed bytes in place of the tensors that autograd saves."""

from __future__ import annotations

import reprlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch

from .. import backends
from ..backends import streams
from ..backends.bits import BitsCodec
from ..backends.checksum import checksums
from ..backends.dtypes import StashFormat, float_name
from ..offload import Handle, Offload, Step
from ..policy import AGAIN, Keep, Policy, Rule
from .codecs import Codecs
from .decompressed import Decompressed
from .derive import Derived, Further, Planner
from .entries import Entry, Joint, Packed, Raw, Source
from .layout import Geometry, Region, is_plain, local_of
from .node import Node
from .opt_out import OPTED_OUT, opt_out
from .origin import Origin
from .report import Report, Sums, Tally
from .rows import BITS, COMPRESSED, DERIVED
from .saved import Saved, Sharded, Waiting, name_of, node_of
from .trace import Trace, strided, writes
from .uncompiled import tell_compiler, uncompiled

# What it says of masks that formats which mix the values of a block would make NaNs or zeros of.
INFINITIES = "infinities, or numbers in their place"
# What it says of what was copied so that others can be derived from it.
STARTING_POINT = "starting point"

# What requires no gradient and has a number as large as this may be a mask that attention adds.
_AS_INFINITE = 1e3

_CLONE = "clone"


def compress_activations(
    model: torch.nn.Module,
    policy: StashFormat | Policy,
    backend: str = "auto",
    *,
    min_values: int = 1024,
    verify: bool = False,
    offload: Offload | None = None,
    by_module: bool = False,
) -> AbstractContextManager[Stash]:
    """Stash compressed blocks instead of the activations that the forward pass saves for backward.

    The forward pass goes inside; the backward pass may run inside or after. The result is a decorator as
    well, with a fresh stash for every call. Nothing about the model is changed, and the forward pass
    computes what it always computes; the backward pass sees the activations that were decompressed.

    Kept as they are: parameters and buffers of ``model``, with all views and copies of them (autocast's
    too); tensors of integers and of floats that no format has (fp64); tensors under ``min_values``; and what
    the policy says. ``stash.report()`` lists all of it.

    What cheap operations made of stashed tensors is not kept but computed anew, if the policy says so, as
    the default one does. Everything else is cut into blocks in the order of memory and kept as uint8[blocks,
    target] on its device. What tensors share of a storage is stashed once. Of nested managers the innermost
    wins, as with all hooks of this kind in PyTorch.

    Args:
        model: whose parameters and buffers stay raw.
        policy: which tensors are compressed, and how far; a fixed-mode format stands for
            ``Policy.default(fmt)``. Float tensors of another 16- or 32-bit type than a format's (autocast
            saves both) are kept in planes at the same ratio, and in other formats in as many bits a value.
        backend: one of ``torch_bridge.backends.NAMES``; the bytes are the same with each, but that those
            behind a memory engine give a Hadamard block the number that it has there.
        min_values: tensors with fewer distinct values stay raw.
        verify: keep a checksum of four bytes for each block; a block whose bytes changed raises
            :class:`CorruptionError`, which names tensor and block.
        offload: where to keep what is stashed, compressed or not, and every other tensor of at least
            ``min_values``, in place of their memory. None with "memory" and "regions", which keep blocks
            in a memory of their own.
        by_module: have the report tell modules apart.

    Raises:
        ValueError: an argument is none of these, or the format is lossless, whose blocks vary in size.
        FileNotFoundError: the backend is "verilated", and a rule's library is not built; that of a rule
            for large tensors, or for some dtypes, is looked for when the first is saved.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64))
        >>> with compress_activations(model, PlaneFormat("fp32", block=64, target=80)) as stash:
        ...     loss = model(torch.randn(64, 64)).square().mean()
        >>> loss.backward()
        >>> round(stash.report().ratio, 1)
        3.2
    """
    if not isinstance(model, torch.nn.Module):
        raise ValueError(f"model must be a torch.nn.Module, not {reprlib.repr(model)}")
    if isinstance(policy, StashFormat):
        policy = Policy.default(policy)
    if not isinstance(policy, Policy):
        raise ValueError(f"policy must be a format or a Policy, not {reprlib.repr(policy)}")
    if not isinstance(min_values, int):
        raise ValueError(f"min_values must be a number of values, not {min_values!r}")
    if min_values < 0:
        raise ValueError(f"min_values must not be negative, not {min_values!r}")
    if offload is not None and not isinstance(offload, Offload):
        raise ValueError(f"offload must be an Offload or None, not {offload!r}")
    if offload is not None and backend in backends.IN_PLACE:
        raise ValueError(f"offload must be None with backend {backend!r}, whose memory keeps the blocks")
    codecs = Codecs(policy, backend)
    trace = partial(Trace, model, by_module or policy.names_modules, policy.derives)
    return _compressing(trace, policy, codecs, min_values, verify, offload, by_module)


@uncompiled
def _made(make_trace: Callable[[], Trace]) -> Trace:
    """Else the compiler tries itself at the constructors of references, and keeps what it tried."""
    return make_trace()


@contextmanager
def _compressing(
    make_trace: Callable[[], Trace],
    policy: Policy,
    codecs: Codecs,
    min_values: int,
    verify: bool,
    offload: Offload | None,
    by_module: bool,
) -> Iterator[Stash]:
    tell_compiler()
    trace = _made(make_trace)
    watches = policy.names_operations or policy.derives or trace.follows_modules or trace.has_unseen_copies
    step = offload.begin() if offload is not None else None
    stash = Stash(policy, codecs, trace, min_values, verify, step, by_module)
    if stash.waits:
        trace.before = stash.settle
    hooks = torch.autograd.graph.saved_tensors_hooks(stash.pack, stash.unpack)
    with trace if watches else nullcontext(), hooks, opt_out.set(False):
        try:
            yield stash
        finally:
            stash.settle()
            trace.before = None  # a circle that only the garbage collector would find
            trace.forget()
    if step is not None:
        step.end_forward()


class _Waiting(threading.local):
    """What a thread saved since its last operation."""

    def __init__(self) -> None:
        self.tensors: list[Waiting] = []
        self.copied: int | None = None  # how many they were when something was cloned
        self.node: Node | None = None  # of what runs just now, if that is done again for it


def _apart() -> AbstractContextManager[None]:
    """What the hooks compute is not traced, nor is it on the default device."""
    if torch._C._len_torch_function_stack():
        return _both_apart()
    return torch._C._DisableTorchDispatch() if torch._C._len_torch_dispatch_stack() else _NOTHING


@contextmanager
def _both_apart() -> Iterator[None]:
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        yield


_NOTHING = nullcontext()


class Stash:
    """What one ``compress_activations`` keeps; made by it, not by hand.

    It holds nothing but numbers itself: what is stashed belongs to the autograd graph and goes with it.
    """

    def __init__(
        self,
        policy: Policy,
        codecs: Codecs,
        trace: Trace,
        min_values: int,
        verify: bool,
        step: Step | None,
        by_module: bool,
    ) -> None:
        self._by_module = by_module
        self._policy, self._codecs, self._trace = policy, codecs, trace
        self._min_values, self._verify, self._step = min_values, verify, step
        self._rules: dict[tuple[str, str, torch.dtype, int, str], tuple[list[Rule], bool]] = {}
        self._asks: dict[str, bool] = {}  # for what an operation saves
        self._first_keeps: dict[tuple[str, str, str, int], Keep] = {}  # of results of operations
        self._tally = Tally()
        self._module = ""  # where what is stashed just now was saved
        self.waits = policy.names_savers or policy.derives
        self._too_small = f"under {min_values} values"
        self._planner = Planner(trace)
        self._decompressed = Decompressed()
        self._lock = threading.RLock()
        self._waiting = _Waiting()

    @property
    def raw_bytes(self) -> int:
        """Bytes of the saved tensors as they were, parameters and buffers left out."""
        self.settle()
        return self._tally.raw_bytes

    @property
    def stored_bytes(self) -> int:
        """Bytes of the same as they are kept, with headers, padding and what stays raw; offloaded or not."""
        self.settle()
        return self._tally.stored_bytes

    @property
    def ratio(self) -> float:
        """Raw over stored bytes, as in the report; to ask for it never waits for a GPU."""
        return self.raw_bytes / self.stored_bytes if self.stored_bytes else float("nan")

    @property
    def offloaded_bytes(self) -> int:
        """Of the stored bytes, those that were sent away."""
        self.settle()
        return self._step.bytes if self._step is not None else 0

    def report(self) -> Report:
        """Every saved tensor since the context was entered; see :class:`Report`.

        Raises:
            ValueError: a block that was decompressed on a GPU had an invalid header.
        """
        self.settle()
        with self._lock:
            self._codecs.check()
            return self._tally.report()

    @uncompiled
    def pack(self, tensor: torch.Tensor) -> Raw | Packed | Waiting | Sharded:
        """The pack hook: what autograd keeps in place of a tensor."""
        if is_plain(tensor):
            return self._pack_plain(tensor)
        local = local_of(tensor)
        if local is tensor or not is_plain(local):
            nbytes = tensor.numel() * tensor.element_size()
            with self._lock:
                self._count(tensor, node_of(tensor), None, "not a plain strided tensor", nbytes, nbytes)
            return Raw(tensor.detach(), None)
        return Sharded(tensor, self._pack_plain(local))

    def _pack_plain(self, tensor: torch.Tensor) -> Raw | Packed | Waiting:
        stays = opt_out.holds
        if stays:
            self.settle()  # what was saved before does not stay
        with self._lock, _apart():
            # Within an operation, where what waits is settled, a detached tensor counts versions for itself.
            saved = Saved(tensor, tensor.detach(), self._trace.origin(tensor), self._trace.module)
            if (node := self._waiting.node) is not None and (packed := self._pack_for(node, saved)):
                return packed
            if stays or not self.waits:
                return self._pack(saved, "", stays)
        waiting = Waiting(saved)
        self._waiting.tensors.append(waiting)
        return waiting

    def settle(self, op: str = "", arguments: tuple[Any, ...] = (), may_be_again: bool = False) -> bool:
        """Stash what this thread saved before an operation, which has saved no more than its arguments.

        One that writes to its argument saves a clone of it, made when others are saved already: what waits
        for a clone waits for the next operation.

        Returns:
            Whether the operation, if it may be, is done again in the backward pass for its own node.
        """
        waiting = self._waiting.tensors
        self._waiting.node = None
        if op == _CLONE:
            self._waiting.copied = len(waiting)
            return False
        copied, self._waiting.copied = self._waiting.copied, None
        if not waiting:
            return False
        is_again = may_be_again and self._is_again(op, list(strided(arguments)))
        saver = self._trace.call(f"{op}{AGAIN}" if is_again else op, arguments)
        asks = self._asks.get(saver)
        if asks is None:
            asks = self._asks[saver] = self._policy.asks_for(saver)
        addresses, numbers = set[int](), dict[tuple[Any, ...], int]()
        for number, tensor in enumerate(strided(arguments) if asks else ()):
            addresses.add(tensor.untyped_storage()._cdata)
            numbers.setdefault(_place(tensor), number)
        first = len(waiting) if copied is None or not asks or not writes(op) else copied
        held: dict[tuple[Any, ...], Entry | Raw] = {}
        with self._lock, _apart():
            for place, one in enumerate(waiting):
                if one.saved is not None:  # else the backward pass was first
                    values = one.saved.values
                    which = numbers.get(_place(values)) if numbers else None
                    name = saver if which is None else f"{saver}.{which}"
                    saves = place >= first or values.untyped_storage()._cdata in addresses
                    packed = self._settle(one, name if saves else "")
                    if is_again:
                        held[_place(values)] = packed if isinstance(packed, Raw) else packed.entry
            waiting.clear()
        if is_again:
            self._waiting.node = Node([held[_place(tensor)] for tensor in strided(arguments)])
        return is_again

    def _is_again(self, op: str, operands: list[torch.Tensor]) -> bool:
        """Whether attention is done again for its node: if that holds all it needs, and the rules agree."""
        waiting = {_place(one.saved.values) for one in self._waiting.tensors if one.saved is not None}
        if not torch.is_grad_enabled() or not waiting.issuperset(map(_place, operands)):
            return False
        query, _, value, *_ = operands
        rows = query.numel() // max(1, query.shape[-1])
        module = self._trace.module
        outputs = op, module, name_of(query.dtype), rows * value.shape[-1]
        return all(
            self._first_keep(facts) == "derive" for facts in (outputs, (f"{op}.1", module, "float32", rows))
        )

    def _first_keep(self, facts: tuple[str, str, str, int]) -> Keep:
        """What rules say of an operation's result, which is not in two values."""
        keep = self._first_keeps.get(facts)
        if keep is None:
            fitting = (rule.keep for rule in self._policy.rules if rule.fits(*facts))
            keep = self._first_keeps[facts] = next((keep for keep in fitting if keep != "bits"), "raw")
        return keep

    def _settle(self, waiting: Waiting, saved_by: str) -> Raw | Packed:
        if waiting.packed is None:
            assert waiting.saved is not None
            waiting.packed = self._pack(waiting.saved, saved_by)
            waiting.saved = None
        return waiting.packed

    @uncompiled
    def unpack(self, packed: Raw | Packed | Waiting | Sharded) -> torch.Tensor:
        """The unpack hook: the tensor again, its bits what the format kept of them."""
        if isinstance(packed, Sharded):
            return packed.wrap(self._unpack_plain(packed.packed))
        return self._unpack_plain(packed)

    def _unpack_plain(self, packed: Raw | Packed | Waiting) -> torch.Tensor:
        if type(packed) is Raw and self._step is None:
            return packed.tensor()
        with self._lock, _apart():
            if isinstance(packed, Waiting):
                packed = self._settle(packed, "")
            if self._step is not None:
                self._step.advance()
            if isinstance(packed, Raw):
                return packed.tensor()
            return packed.entry.memory.view(self._decompressed.values(packed.entry), packed.geometry)

    def _pack(self, saved: Saved, saved_by: str, stays: bool = False) -> Raw | Packed:
        self._module = saved.module if self._by_module else ""
        tensor, origin, geometry = saved.values, saved.origin, Geometry.of(saved.values)
        region = geometry.region
        source = origin.source(tensor, tensor._version)
        if origin.constant is not None or stays:
            return self._keep_raw(saved, source, region, origin.constant or OPTED_OUT)
        rules, alone = self._rules_for(tensor.dtype, region.count, origin, saved.module, saved_by)
        if not alone and (entry := source.holding(region)) is not None:
            if isinstance(entry, Derived):
                self._count_more(entry, region)
            return Packed(entry, geometry)
        if source.is_left(region):
            return self._leave(tensor, source, region)[0]

        codec, kept = self._codec(saved, region, rules)
        origin.forget_recipe(region)
        if isinstance(codec, Derived):
            self._count_more(codec, region)
            return Packed(codec, geometry)
        if alone and (entry := source.holding(region, codec)) is not None:
            return Packed(entry, geometry)
        # What is smaller is not worth a way to the disk.
        step = self._step if region.count >= self._min_values else None
        # A small tensor inside a large storage is copied, so that it does not keep all of it alive.
        is_part = kept == self._too_small and region.count < source.elements
        stays = codec is None and not is_part
        if step is not None or not stays:
            streams.hold(tensor)
            new = self._stash(saved, source, region, codec, kept, step, stays)
            if new is not None:
                return Packed(new, geometry)
        return self._keep_raw(saved, source, region, kept, step)

    def _keep_raw(
        self, saved: Saved, source: Source, region: Region, kept: str, step: Step | None = None
    ) -> Raw:
        raw, count = self._leave(saved.values, source, region)
        if count:
            nbytes = count * saved.values.element_size()
            if step is not None:
                step.keep(source, nbytes)
            self._count(saved.values, saved.op, saved.origin.constant, kept, nbytes, nbytes)
        return raw

    def _leave(self, tensor: torch.Tensor, source: Source, region: Region) -> tuple[Raw, int]:
        """A tensor that stays as it is, and how many of its values did not yet."""
        raw = Raw(tensor, source)
        return raw, source.leave(region, raw)

    def _derive(self, saved: Saved) -> Derived | None:
        """What a tensor is computed from; None if it has to be kept."""
        tensor, origin = saved.values, saved.origin
        planned = self._planner.plan(tensor, origin)
        if planned is None:
            return None
        step, whole = planned
        if self._planner.copied:
            self._count(tensor, saved.op, None, STARTING_POINT, 0, self._planner.copied)
        origin.recipe = None
        source = origin.source(tensor, tensor._version)
        return Derived(source, whole, tensor, step, self._count(tensor, saved.op, None, DERIVED, 0, 0))

    def _pack_for(self, node: Node, saved: Saved) -> Packed | None:
        """A result of attention, as its own node saves it; None if it is none."""
        tensor, origin, recipe = saved.values, saved.origin, saved.origin.recipe
        if recipe is None or not recipe.operation.for_its_node:
            return None
        origin.recipe = None
        planned = self._planner.plan_for(node, tensor, recipe)
        if planned is None:
            return None
        redone, whole = planned
        self._module = saved.module if self._by_module else ""
        source, geometry = origin.source(tensor, tensor._version), Geometry.of(tensor)
        sums = self._count(tensor, saved.op, None, DERIVED, 0, 0)
        if recipe.operation.makes:
            entry: Derived = Further(source, whole, tensor, redone, sums, node)
        else:
            entry = node.outputs = Derived(source, whole, tensor, redone, sums)
        self._count_more(entry, geometry.region)
        return Packed(entry, geometry)

    def _count_more(self, entry: Derived, region: Region) -> None:
        """Count what was not saved before of a region that is derived."""
        if count := entry.save(region):
            self._tally.more(entry.sums, count * entry.dtype.itemsize)

    def _stash(
        self,
        saved: Saved,
        source: Source,
        region: Region,
        codec: backends.Backend | BitsCodec | None,
        kept: str,
        step: Step | None,
        stays: bool,
    ) -> Entry | None:
        """Stash what others have not stashed of a tensor's region, and say so in the report.

        None if it stays where it is, as it may, unless it is offloaded.
        """
        tensor = saved.values
        name = saved.name if self._verify or step is not None else ""
        parts, rest = source.shared(region, codec)
        if parts:
            made = [self._entry(source, one, codec, tensor, step, name) for one in rest]
            new = [entry for entry in made if entry is not None]
        else:
            whole = self._entry(source, region, codec, tensor, step, name, stays)
            if whole is None:
                return None
            new = [whole]
        if any(isinstance(entry.stored, Handle) for entry in new):
            kept = f"{kept if codec is not None else 'exact'}, offloaded"
        if new:
            raw = sum(entry.region.count for entry in new) * tensor.element_size()
            self._count(tensor, saved.op, None, kept, raw, sum([entry.nbytes for entry in new]))
        if not parts:
            return new[0]
        return Joint(source, region, tensor, [*parts, *((entry, entry.region) for entry in new)])

    def _entry(
        self,
        source: Source,
        region: Region,
        codec: backends.Backend | BitsCodec | None,
        tensor: torch.Tensor,
        step: Step | None,
        name: str,
        stays: bool = False,
    ) -> Entry | None:
        """Stash a region that no one has; as it is if it is small. None if it stays and is not offloaded."""
        if region.count < self._min_values:
            codec = step = None
        values = region.values(tensor)
        stored = values if codec is None else codec.compress(values)
        sums = checksums(stored) if codec is not None and self._verify else None
        is_same = codec is None and not region.has_gaps  # memory, which what has gaps is copied out of
        handle = step.put(stored, name, tensor if is_same else stored) if step is not None else None
        if handle is not None:
            return Entry(source, region, codec, values, handle, sums, name)
        if stays:
            return None
        if is_same:
            stored = stored.clone()
        entry = Entry(source, region, codec, values, stored, sums, name)
        if step is not None:
            step.keep(entry, entry.nbytes)
        return entry

    def _codec(
        self, saved: Saved, region: Region, rules: list[Rule]
    ) -> tuple[backends.Backend | BitsCodec | Derived | None, str]:
        """What compresses a tensor, or derives it, or None; and what the report says of it."""
        if region.count < self._min_values:
            return None, self._too_small
        tensor, may_be_mask = saved.values, not saved.requires_grad
        for rule in rules:
            if rule.keep == "raw":
                return None, rule.why or "raw"
            if rule.keep == "bits":
                may_be_mask = True
                if (bits := BitsCodec.of(region.values(tensor))) is not None:
                    return bits, BITS
            elif rule.keep == "derive":
                if (entry := self._derive(saved)) is not None:
                    return entry, DERIVED
            elif not tensor.is_floating_point():
                return None, "not floating point"
            elif float_name(tensor.dtype) is None:
                return None, f"no format for {name_of(tensor.dtype)}"
            else:
                if may_be_mask and rule.mixes_values:
                    if (bits := BitsCodec.of(region.values(tensor))) is not None:
                        return bits, BITS
                    if _has_infinities(tensor, region):
                        return None, INFINITIES
                return self._codecs.get(rule, tensor.dtype), COMPRESSED
        return None, "no rule"

    def _rules_for(
        self, dtype: torch.dtype, count: int, origin: Origin, module: str, saved_by: str
    ) -> tuple[list[Rule], bool]:
        """The rules that fit a tensor, and whether any is about what saves it."""
        facts = origin.op, module, dtype, count, saved_by
        found = self._rules.get(facts)
        if found is None:
            names = origin.op, module, name_of(dtype), count, saved_by
            rules = [rule for rule in self._policy.rules if rule.fits(*names)]
            found = self._rules[facts] = rules, any(rule.saved_by != "*" for rule in rules)
        return found

    def _count(
        self, tensor: torch.Tensor, op: str, constant: str | None, kept: str, raw: int, stored: int
    ) -> Sums:
        counted, dtype = constant is None, name_of(tensor.dtype)
        sums = self._tally.sums(op, _shape(tensor), dtype, kept, counted, self._module)
        self._tally.add(sums, raw, stored, counted)
        return sums


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    """Its sizes; of strided nested tensors, which have none, the number of values."""
    is_ragged = tensor.is_nested and tensor.layout is torch.strided
    return (tensor.numel(),) if is_ragged else tensor.shape


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What tells a tensor among an operation's arguments: where it lies."""
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride()


def _has_infinities(tensor: torch.Tensor, region: Region) -> bool:
    """Whether a region has any, or what stands for them; on a GPU this waits for the values."""
    if not region.count:
        return False
    values = tensor.as_strided(region.size, region.stride, region.offset)
    low, high = values.aminmax()
    largest = torch.maximum(-low, high)  # NaN if there is a NaN
    return not bool(largest < _AS_INFINITE) and bool((values.abs() >= _AS_INFINITE).any())
