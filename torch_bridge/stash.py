"""Compressed bytes in place of the tensors that autograd saves."""

from __future__ import annotations

import sys
import threading
import weakref
from collections import deque
from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from . import backends
from .bits import BitsCodec
from .checksum import CorruptionError, checksums
from .dtypes import Format, float_name, format_for
from .layout import Geometry, Region, region_of
from .offload import Handle, Offload, Step
from .policy import Policy, Rule
from .report import BITS, COMPRESSED, Report, Tally
from .trace import Origin, Trace

# Decompressed storages that are kept until others are needed: nodes that follow each other in the
# backward pass often need the same one. More would give back the memory that compressing saved.
_KEEP_DECOMPRESSED = 2


def compress_activations(
    model: torch.nn.Module,
    policy: Format | Policy,
    backend: str = "auto",
    *,
    min_values: int = 1024,
    verify: bool = False,
    offload: Offload | None = None,
) -> AbstractContextManager[Stash]:
    """Stash compressed blocks instead of the activations that the forward pass saves for backward.

    The forward pass goes inside; the backward pass may run inside or after. The result is a decorator as
    well, with a fresh stash for every call. Nothing about the model is changed, and the forward pass
    computes what it always computes; the backward pass sees the activations that were decompressed.

    Kept as they are: parameters and buffers of ``model``, with all views and copies of them (autocast's
    too); tensors of integers and of floats that no format has (fp64); tensors under ``min_values``; and what
    the policy says. ``stash.report()`` lists all of it.

    Everything else is cut into blocks in the order of memory and kept as uint8[blocks, target] on its
    device. Tensors that share a storage are stashed once. Of nested managers the innermost wins, as
    with all hooks of this kind in PyTorch.

    Args:
        model: whose parameters and buffers stay raw.
        policy: which tensors are compressed, and how far; a fixed-mode format stands for
            ``Policy.default(fmt)``. Float tensors of another 16- or 32-bit type than a format's (autocast
            saves both) are kept at the same ratio: in the same blocks, with the target scaled by their width.
        backend: one of ``torch_bridge.backends.NAMES``; the bytes are the same with each.
        min_values: tensors with fewer distinct values stay raw.
        verify: keep a checksum of four bytes for each block; a block whose bytes changed raises
            :class:`CorruptionError`, which names tensor and block.
        offload: where to keep what is stashed, compressed or not, and every other tensor of at least
            ``min_values``, in place of their memory.

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
    if isinstance(policy, Format):
        policy = Policy.default(policy)
    codecs = _Codecs(policy, backend)
    return _compressing(model, policy, codecs, min_values, verify, offload)


@contextmanager
def _compressing(
    model: torch.nn.Module,
    policy: Policy,
    codecs: _Codecs,
    min_values: int,
    verify: bool,
    offload: Offload | None,
) -> Iterator[Stash]:
    trace = Trace(model, follow_modules=policy.names_modules)
    step = offload.begin() if offload is not None else None
    stash = Stash(policy, codecs, trace, min_values, verify, step)
    pack, unpack = stash.pack, stash.unpack
    if "torch._dynamo" in sys.modules:  # a step may be compiled, but not what the hooks do
        pack, unpack = torch.compiler.disable(pack), torch.compiler.disable(unpack)
    with trace, torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield stash
    if step is not None:
        step.end_forward()


class _Codecs:
    """One backend for each format that is met: that of a rule, or the same for another dtype.

    That of a policy's last rule is made at once, so that what is wrong shows before the training.
    """

    def __init__(self, policy: Policy, name: str) -> None:
        self._name = name
        formats = [rule.keep for rule in policy.rules if isinstance(rule.keep, Format)]
        self._backends = {fmt: backends.get(name, fmt) for fmt in formats[-1:]}

    def get(self, fmt: Format, dtype: torch.dtype) -> backends.Backend:
        fmt = format_for(fmt, dtype)
        if fmt not in self._backends:
            self._backends[fmt] = backends.get(self._name, fmt)
        return self._backends[fmt]

    def check(self) -> None:
        for backend in self._backends.values():
            backend.check()


class Stash:
    """What one ``compress_activations`` keeps; made by it, not by hand.

    It holds nothing but numbers itself: what is stashed belongs to the autograd graph and goes with it.
    """

    def __init__(
        self,
        policy: Policy,
        codecs: _Codecs,
        trace: Trace,
        min_values: int,
        verify: bool,
        step: Step | None,
    ) -> None:
        self._policy, self._codecs, self._trace = policy, codecs, trace
        self._min_values, self._verify, self._step = min_values, verify, step
        self._rules: dict[tuple[str, str, str, int], list[Rule]] = {}
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
        """Bytes of the same as they are kept, with headers, padding and what stays raw; offloaded or not."""
        return self._tally.stored_bytes

    @property
    def offloaded_bytes(self) -> int:
        """Of the stored bytes, those that were sent away."""
        return self._step.bytes if self._step is not None else 0

    def report(self) -> Report:
        """Every saved tensor since the context was entered; see :class:`Report`.

        Raises:
            ValueError: a block that was decompressed on a GPU had an invalid header.
        """
        with self._lock:
            self._codecs.check()
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
        with self._lock, torch.no_grad(), torch._C._DisableTorchDispatch():
            if self._step is not None:
                self._step.advance()
            if isinstance(packed, _Raw):
                return packed.tensor()
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
        if (source := self._entries.get((state, region))) is not None:
            return _Raw(tensor.detach(), source)

        values, codec, kept = tensor, None, origin.constant
        if kept is None:
            values = region.values(tensor.detach())
            codec, kept = self._codec(values, origin)
        key = (state, region)
        raw = region.count * tensor.element_size()
        # A small tensor inside a large storage is copied, so that it does not keep all of it alive.
        is_part = kept == self._too_small and region != whole
        step = self._step
        if origin.constant is not None or len(values) < self._min_values:
            step = None  # nothing that would be worth a way to the disk
        name = self._name(tensor, origin) if self._verify or step is not None else ""
        stored = values
        if codec is not None:
            stored = codec.compress(values)
        elif is_part:
            stored = values.clone()
        handle = step.put(stored, name) if step is not None else None
        if handle is not None:
            kept = f"{kept if codec is not None else 'exact'}, offloaded"
        if codec is not None or is_part or handle is not None:
            sums = checksums(stored) if codec is not None and self._verify else None
            held = stored if handle is None else handle
            new = _Entry(storage, region, codec, values.dtype, held, sums, name)
            if step is not None and handle is None:
                step.keep(new, new.nbytes)
            self._entries[key] = new
            self._count(tensor, origin, kept, raw, new.nbytes)
            return _Packed(new, Geometry.of(tensor))
        self._entries[key] = source = _Source(storage)
        if step is not None:
            step.keep(source, raw)
        self._count(tensor, origin, kept, raw, raw)
        return _Raw(tensor.detach(), source)

    @property
    def _too_small(self) -> str:
        return f"under {self._min_values} values"

    def _codec(self, values: torch.Tensor, origin: Origin) -> tuple[backends.Backend | BitsCodec | None, str]:
        """What compresses a flat tensor, None if nothing does, and what the report is to say of it."""
        if len(values) < self._min_values:
            return None, self._too_small
        for rule in self._rules_for(values, origin):
            if rule.keep == "raw":
                return None, rule.why or "raw"
            if rule.keep == "bits":
                if (bits := BitsCodec.of(values)) is not None:
                    return bits, BITS
            elif not values.is_floating_point():
                return None, "not floating point"
            elif float_name(values.dtype) is None:
                return None, f"no format for {_name_of(values.dtype)}"
            else:
                return self._codecs.get(rule.keep, values.dtype), COMPRESSED
        return None, "no rule"

    def _rules_for(self, values: torch.Tensor, origin: Origin) -> list[Rule]:
        facts = (origin.op, self._trace.module, _name_of(values.dtype), len(values))
        if facts not in self._rules:
            self._rules[facts] = [rule for rule in self._policy.rules if rule.fits(*facts)]
        return self._rules[facts]

    def _name(self, tensor: torch.Tensor, origin: Origin) -> str:
        op = origin.op or (tensor.grad_fn.name() if tensor.grad_fn else "")
        shape = " x ".join(map(str, tensor.shape)) or "scalar"
        return f"{op + ', ' if op else ''}{shape}, {_name_of(tensor.dtype)}"

    def _count(self, tensor: torch.Tensor, origin: Origin, kept: str, raw: int, stored: int) -> None:
        op = origin.op or (tensor.grad_fn.name() if tensor.grad_fn else "")
        counted = origin.constant is None
        self._tally.add(op, tensor.shape, _name_of(tensor.dtype), kept, counted, raw, stored)

    def _keep(self, entry: _Entry, memory: torch.Tensor) -> None:
        """Keep the last few decompressed storages, and let go of the one used longest ago."""
        if not entry.is_made_anew:
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
    """A region of a storage, compressed, copied or offloaded; lives as long as its handles."""

    __slots__ = (
        *("_checksums", "_decompressed", "_device", "_name"),
        *("codec", "dtype", "kept", "region", "stored"),
    )

    def __init__(
        self,
        storage: torch.UntypedStorage,
        region: Region,
        codec: backends.Backend | BitsCodec | None,
        dtype: torch.dtype,
        stored: torch.Tensor | Handle,
        sums: torch.Tensor | None,
        name: str,
    ) -> None:
        super().__init__(storage)
        self.region, self.codec, self.dtype = region, codec, dtype
        self._device, self.stored, self._checksums, self._name = storage.device, stored, sums, name
        self.kept: torch.Tensor | None = None
        self._decompressed: StorageWeakRef | None = None

    @property
    def nbytes(self) -> int:
        return self.stored.nbytes + (0 if self._checksums is None else self._checksums.nbytes)

    @property
    def is_made_anew(self) -> bool:
        """Whether the region's memory has to be made when it is needed, by decompressing or reading."""
        return self.codec is not None or isinstance(self.stored, Handle)

    def _read(self) -> torch.Tensor:
        """The stored bytes; raises CorruptionError if they have checksums and are not what was stashed."""
        stored = self.stored.get() if isinstance(self.stored, Handle) else self.stored
        if self._checksums is not None:
            changed = (checksums(stored) != self._checksums).nonzero()
            if len(changed):
                raise CorruptionError(
                    f"stashed bytes changed in memory: block {int(changed[0])} of {len(stored)} of the "
                    f"tensor {self._name}"
                )
        return stored

    def memory(self) -> torch.Tensor:
        """The memory under the region, flat: the same storage for as long as anyone still uses it."""
        if self.kept is not None:
            return self.kept
        if self._decompressed is not None:
            storage = torch.UntypedStorage._new_with_weak_ptr(self._decompressed.cdata)
            if storage is not None:
                return torch.empty(0, dtype=self.dtype, device=self._device).set_(storage)
        stored = self._read()
        values = self.codec.decompress(stored, self.region.count) if self.codec else stored
        memory = self.region.spread(values)
        if self.is_made_anew or self.region.has_gaps:
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
                f"operation: [{_name_of(self._saved.dtype)} {list(self._saved.shape)}] is at version "
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
        and not tensor._is_zerotensor()
        and not tensor.is_quantized
    )


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
