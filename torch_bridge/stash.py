"""Compressed bytes in place of the tensors that autograd saves."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from golden import PlaneFormat

from . import backends
from .dtypes import float_name, format_for
from .layout import Geometry, Region, region_of
from .report import COMPRESSED, Report, Tally
from .trace import Origin, Trace

# Decompressed storages that are kept until others are needed: nodes that follow each other in the
# backward pass often need the same one. More would give back the memory that compressing saved.
_KEEP_DECOMPRESSED = 2

_CONSTANTS = ("parameter", "buffer", "parameter copy", "buffer copy")


def compress_activations(
    model: torch.nn.Module, fmt: PlaneFormat, backend: str = "auto", *, min_values: int = 1024
) -> AbstractContextManager[Stash]:
    """Stash compressed blocks instead of the activations that the forward pass saves for backward.

    The forward pass goes inside; the backward pass may run inside or after. The result is a decorator as
    well, with a fresh stash for every call. Nothing about the model is changed, and the forward pass
    computes what it always computes; the backward pass sees the activations that were decompressed.

    Kept as they are: parameters and buffers of ``model``, with all views and copies of them (autocast's
    too); tensors of integers, booleans and floats that no format has (fp64); tensors under
    ``min_values``; log-softmaxes, attention's log-sum-exps and norm statistics, told by the operation
    that made them. ``stash.report()`` lists all of it.

    Everything else is cut into blocks in the order of memory and kept as uint8[blocks, target] on its
    device. Tensors that share a storage are stashed once. Of nested managers the innermost wins, as
    with all hooks of this kind in PyTorch.

    Args:
        model: whose parameters and buffers stay raw.
        fmt: a fixed-mode format. Float tensors of another 16- or 32-bit type (autocast saves both) are
            kept at the same ratio: in the same blocks, with the target scaled by their width.
        backend: "auto", "torch", "golden" or "verilated"; the bytes are the same with each.
        min_values: tensors with fewer distinct values stay raw.

    Raises:
        ValueError: there is no such backend, or the format is lossless, whose blocks vary in size.
        FileNotFoundError: the backend is "verilated" and its library is not built.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64))
        >>> with compress_activations(model, PlaneFormat("fp32", block=64, target=80)) as stash:
        ...     loss = model(torch.randn(64, 64)).square().mean()
        >>> loss.backward()
        >>> round(stash.report().ratio, 1)
        3.2
    """
    if min_values < 0:
        raise ValueError(f"min_values must not be negative, not {min_values!r}")
    codecs = _Codecs(fmt, backend)
    return _compressing(model, codecs, min_values)


@contextmanager
def _compressing(model: torch.nn.Module, codecs: _Codecs, min_values: int) -> Iterator[Stash]:
    trace = Trace(model)
    stash = Stash(codecs, trace, min_values)
    with trace, torch.autograd.graph.saved_tensors_hooks(stash.pack, stash.unpack):
        yield stash


class _Codecs:
    """One backend for each dtype that is met, all of one ratio."""

    def __init__(self, fmt: PlaneFormat, name: str) -> None:
        self._fmt, self._name = fmt, name
        self._backends = {fmt.dtype: backends.get(name, fmt)}

    def get(self, dtype: torch.dtype) -> backends.Backend:
        name = float_name(dtype)
        assert name is not None
        if name not in self._backends:
            self._backends[name] = backends.get(self._name, format_for(self._fmt, dtype))
        return self._backends[name]


class Stash:
    """What one ``compress_activations`` keeps; made by it, not by hand.

    It holds nothing but numbers itself: what is stashed belongs to the autograd graph and goes with it.
    """

    def __init__(self, codecs: _Codecs, trace: Trace, min_values: int) -> None:
        self._codecs, self._trace, self._min_values = codecs, trace, min_values
        self._tally = Tally()
        self._entries: weakref.WeakValueDictionary[Hashable, _Source] = weakref.WeakValueDictionary()
        self._decompressed: deque[weakref.ref[_Entry]] = deque()
        self._lock = threading.RLock()

    @property
    def raw_bytes(self) -> int:
        """Bytes of the saved tensors as they were, parameters and buffers left out."""
        return self._tally.raw_bytes

    @property
    def stored_bytes(self) -> int:
        """Bytes of the same as they are kept, with headers, padding and what stays raw."""
        return self._tally.stored_bytes

    def report(self) -> Report:
        """Every saved tensor since the context was entered; see :class:`Report`."""
        with self._lock:
            return self._tally.report()

    def pack(self, tensor: torch.Tensor) -> _Raw | _Packed:
        """The pack hook: what autograd keeps in place of a tensor."""
        if not _is_plain(tensor):
            self._count(tensor, Origin(), "not a plain strided tensor", _nbytes(tensor), _nbytes(tensor))
            return _Raw(tensor.detach(), None)
        # What the hooks compute is neither traced nor differentiated.
        with self._lock, torch.no_grad(), torch._C._DisableTorchDispatch():
            return self._pack(tensor)

    def unpack(self, packed: _Raw | _Packed) -> torch.Tensor:
        """The unpack hook: the tensor again, its bits what the format kept of them."""
        if isinstance(packed, _Raw):
            return packed.tensor()
        with self._lock, torch.no_grad(), torch._C._DisableTorchDispatch():
            memory = packed.entry.memory()
            self._keep(packed.entry, memory)
            geometry = packed.geometry
            offset = geometry.offset - packed.entry.region.offset
            return memory.as_strided(geometry.size, geometry.stride, offset)

    def _pack(self, tensor: torch.Tensor) -> _Raw | _Packed:
        storage = tensor.untyped_storage()
        origin = self._trace.origin(tensor)
        region = region_of(tensor)
        state = (storage._cdata, tensor._version, origin.writes, tensor.dtype)
        whole = Region.run(0, storage.nbytes() // tensor.element_size())
        for candidate in (whole, region):
            entry = self._entries.get((state, candidate))
            if isinstance(entry, _Entry):
                return _Packed(entry, Geometry.of(tensor))

        reason = self._reason_to_stay_raw(tensor, origin, region)
        key = (state, region)
        raw = region.count * tensor.element_size()
        # A small tensor inside a large storage is copied, so that it does not keep all of it alive.
        if reason is None or (reason == self._too_small and region != whole):
            codec = None if reason else self._codecs.get(tensor.dtype)
            new = _Entry(storage, region, region.values(tensor), codec)
            self._entries[key] = new
            self._count(tensor, origin, reason, raw, new.stored.nbytes)
            return _Packed(new, Geometry.of(tensor))
        source = self._entries.get(key)
        if source is None:
            self._entries[key] = source = _Source(storage)
            self._count(tensor, origin, reason, raw, raw)
        return _Raw(tensor.detach(), source)

    @property
    def _too_small(self) -> str:
        return f"under {self._min_values} values"

    def _reason_to_stay_raw(self, tensor: torch.Tensor, origin: Origin, region: Region) -> str | None:
        if origin.exact in _CONSTANTS:
            return origin.exact
        if not tensor.is_floating_point():
            return "boolean" if tensor.dtype == torch.bool else "not floating point"
        if float_name(tensor.dtype) is None:
            return f"no format for {_name(tensor.dtype)}"
        if region.count < self._min_values:
            return self._too_small
        return origin.exact

    def _count(self, tensor: torch.Tensor, origin: Origin, reason: str | None, raw: int, stored: int) -> None:
        op = origin.op or (tensor.grad_fn.name() if tensor.grad_fn else "")
        counted = reason not in _CONSTANTS
        self._tally.add(op, tensor.shape, _name(tensor.dtype), reason or COMPRESSED, counted, raw, stored)

    def _keep(self, entry: _Entry, memory: torch.Tensor) -> None:
        """Keep the last few decompressed storages, and let go of the one used longest ago."""
        if entry.codec is None:
            return
        self._decompressed = deque(
            (ref for ref in self._decompressed if ref() not in (None, entry)), _KEEP_DECOMPRESSED + 1
        )
        entry.kept = memory
        self._decompressed.append(weakref.ref(entry))
        if len(self._decompressed) > _KEEP_DECOMPRESSED:
            oldest = self._decompressed.popleft()()
            if oldest is not None:
                oldest.kept = None


class _Source:
    """One state of one storage, which is counted once. Keeps its address from being used again."""

    __slots__ = ("__weakref__", "_ref")

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._ref = StorageWeakRef(storage)


class _Entry(_Source):
    """A region of a storage, compressed (or copied, without a codec); lives as long as its handles."""

    __slots__ = ("_decompressed", "codec", "dtype", "kept", "region", "stored")

    def __init__(
        self,
        storage: torch.UntypedStorage,
        region: Region,
        values: torch.Tensor,
        codec: backends.Backend | None,
    ) -> None:
        super().__init__(storage)
        self.region, self.codec, self.dtype = region, codec, values.dtype
        self.stored = codec.compress(values) if codec else values.clone()
        self.kept: torch.Tensor | None = None
        self._decompressed: StorageWeakRef | None = None

    def memory(self) -> torch.Tensor:
        """The memory under the region, flat: the same storage for as long as anyone still uses it."""
        if self.kept is not None:
            return self.kept
        if self._decompressed is not None:
            storage = torch.UntypedStorage._new_with_weak_ptr(self._decompressed.cdata)
            if storage is not None:
                return torch.empty(0, dtype=self.dtype, device=self.stored.device).set_(storage)
        values = self.codec.decompress(self.stored, self.region.count) if self.codec else self.stored
        memory = self.region.spread(values)
        if self.codec is not None or self.region.has_gaps:
            self._decompressed = StorageWeakRef(memory.untyped_storage())
        return memory


@dataclass(frozen=True, slots=True)
class _Packed:
    """What autograd holds for a stashed tensor: where it lies in an entry."""

    entry: _Entry
    geometry: Geometry


class _Raw:
    """What autograd holds for a tensor that stays as it is.

    With hooks autograd leaves it to them to notice that a saved tensor was written to since.
    """

    __slots__ = ("_saved", "_source", "_version")

    def __init__(self, saved: torch.Tensor, source: _Source | None) -> None:
        self._saved, self._source, self._version = saved, source, saved._version

    def tensor(self) -> torch.Tensor:
        if self._saved._version != self._version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace "
                f"operation: [{_name(self._saved.dtype)} {list(self._saved.shape)}] is at version "
                f"{self._saved._version}; expected version {self._version} instead"
            )
        return self._saved


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor is memory with strides and no more: no subclass, no lazy bit, not sparse."""
    return (
        type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
        and tensor.layout == torch.strided
        and tensor.device.type != "meta"
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and not tensor.is_neg()
        and not tensor.is_conj()
        and not tensor.is_quantized
    )


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
