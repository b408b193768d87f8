"""Stashed tensors on an SSD, or in the host's memory, from the forward pass to the backward pass.

After Wu et al., "SSDTrain: An Activation Offloading Framework to SSDs for Faster Large Language Model
Training" (arXiv 2408.10013). What the forward pass saves first is needed last: it is written while the
forward pass goes on, and read back shortly before the backward pass needs it.

All of it lies in one file without a name, which the system removes with the process, however that ends; two
jobs may share a directory. The file grows to what one step needs; places of tensors that are gone are used
again. Every tensor has a checksum.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
import warnings
import weakref
from collections import defaultdict, deque
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from zlib import crc32

import torch

from .backends.memory import octets
from .checksum import CorruptionError

# With amount "all" the forward pass waits while more bytes than these have not been written.
MOST_PENDING = 16 << 20

# Tensors that are read ahead of the one that the backward pass needs.
_AHEAD = 4

# Steps before what is measured decides: one to warm up, one to measure.
_PROFILED_STEPS = 2

_ALIGNMENT = 4096


class OffloadError(RuntimeError):
    """A tensor that was offloaded cannot be read back."""


class Offload:
    """Where tensors go, and what moves them; made once for a training run and used in each of its steps.

    Args:
        directory: of the file, on the SSD; None if there is only the host's memory.
        amount: what goes there in each step. "all": everything, and the forward pass waits for the disk where
            it must. A number of bytes: so much of what is saved first; what the last modules save, and the
            backward pass needs at once, stays. "adaptive": as many bytes as the disk was measured to write
            during a forward pass and read during a backward pass, so that nothing has to wait. Two steps, of
            which the second is measured, offload everything before.
        host_bytes: of tensors on a GPU, go to pinned memory of the host before any go to the disk.
        store_threads, load_threads: that write and read.

    Raises:
        FileNotFoundError: there is no such directory.
        OSError: no file can be made in it.
        ValueError: an argument is none of the above.

    Example:
        >>> from torch_bridge import Policy, compress_activations
        >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64))
        >>> disk = Offload(tempfile.gettempdir(), amount="all")
        >>> with compress_activations(model, Policy([]), offload=disk) as stash:
        ...     loss = model(torch.randn(64, 64)).square().mean()
        >>> loss.backward()
        >>> disk.stored_bytes == stash.raw_bytes
        True
    """

    def __init__(
        self,
        directory: str | Path | None,
        *,
        amount: int | Literal["all", "adaptive"] = "adaptive",
        host_bytes: int = 0,
        store_threads: int = 1,
        load_threads: int = 1,
    ) -> None:
        if amount not in ("all", "adaptive") and (not isinstance(amount, int) or amount < 0):
            raise ValueError(f"amount must be 'all', 'adaptive' or a number of bytes, not {amount!r}")
        if host_bytes < 0:
            raise ValueError(f"host_bytes must not be negative, not {host_bytes!r}")
        if min(store_threads, load_threads) < 1:
            raise ValueError(f"threads must be positive, not {min(store_threads, load_threads)!r}")
        if directory is None and not host_bytes:
            raise ValueError("directory must name a directory if host_bytes is 0, not None")
        self.directory, self.amount = directory, amount
        self._file = _File(directory) if directory is not None else None
        self._host_left = host_bytes
        self._storing = ThreadPoolExecutor(store_threads, "bitstash-store")
        self._loading = ThreadPoolExecutor(load_threads, "bitstash-load")
        self.stores, self.loads = Traffic(), Traffic()
        self._out: deque[_Outgoing] = deque()
        self._pending = 0
        self._adapted: int | None = None
        self._lock = threading.RLock()  # finalizers run anywhere, in the middle of this class's methods too
        self._begun = 0
        self._last: Step | None = None
        self.forwarded_bytes = self.failed_bytes = 0
        self.plan = {"all": "everything", "adaptive": "everything, until measured"}.get(
            str(amount), f"{amount} bytes a step"
        )

    @property
    def stored_bytes(self) -> int:
        """Written so far."""
        self._reap()
        return self.stores.bytes

    @property
    def loaded_bytes(self) -> int:
        """Read so far."""
        return self.loads.bytes

    def begin(self) -> Step:
        """A step begins; what it saves goes through the result."""
        if self.amount == "adaptive" and self._begun == _PROFILED_STEPS and self._last is not None:
            self._adapt(self._last)
        self._begun += 1
        measured = self._begun <= _PROFILED_STEPS
        if self._begun == _PROFILED_STEPS:
            self.stores.restart()
            self.loads.restart()
        limit = self._adapted if self.amount == "adaptive" else None if self.amount == "all" else self.amount
        step = Step(self, limit)
        self._last = step if measured else None
        return step

    def _adapt(self, step: Step) -> None:
        """Choose the amount from what was measured: a step without a backward pass has read nothing."""
        both = [("written", self.stores, step.forward_seconds), ("read", self.loads, step.backward_seconds)]
        both = [(name, traffic, seconds) for name, traffic, seconds in both if traffic.rate]
        self._adapted = min([step.bytes, *(int(traffic.rate * seconds) for _, traffic, seconds in both)])
        said = [f"{name} at {way.rate / 1e9:.2f} GB/s in {1e3 * span:.0f} ms" for name, way, span in both]
        self.plan = f"{self._adapted / 1e6:.1f} of {step.bytes / 1e6:.1f} MB a step: {', '.join(said)}"

    # Tensors on their way out.

    def _put(self, tensor: torch.Tensor, name: str) -> Handle:
        handle = Handle(self, tensor, name)
        with self._lock:
            self._reap()
            self._send(handle)
        return handle

    def _send(self, handle: Handle) -> None:
        place, reference = None, weakref.ref(handle)
        if handle.ready is not None and self._host_left >= handle.nbytes:
            self._host_left -= handle.nbytes
            weakref.finalize(handle, self._give_host, handle.nbytes).atexit = False
        elif self._file is not None:
            place = self._file.take(handle.nbytes)
        elif handle.ready is None:
            return
        assert handle.source is not None
        handle.written = self._storing.submit(self._store, handle.source, handle.ready, place, reference)
        self._out.append(_Outgoing((handle.given, handle.source), reference, handle.written, place))
        self._pending += handle.nbytes
        while self.amount == "all" and self._pending > MOST_PENDING and len(self._out) > 1:
            wait([self._out[0].written])
            self._reap()

    def _give_host(self, nbytes: int) -> None:
        with self._lock:
            self._host_left += nbytes

    def _store(
        self,
        source: torch.Tensor,
        ready: torch.cuda.Event | None,
        place: Place | None,
        handle: weakref.ref[Handle],
    ) -> int:
        """In a thread: write a tensor, if it has a place and anyone still needs it; its checksum."""
        if ready is not None:
            ready.synchronize()
        if place is None or handle() is None:
            return 0
        assert self._file is not None
        memory = octets(source).data
        with self.stores.moving(place.size):
            checksum = crc32(memory)
            self._file.write(memory, place)
        return checksum

    def _reap(self) -> None:
        """Let go of the tensors that are written; in the thread that trains, which profilers watch."""
        with self._lock:
            while self._out and self._out[0].written.done():
                out = self._out.popleft()
                self._pending -= out.nbytes
                self._settle(out)

    def _settle(self, out: _Outgoing) -> None:
        handle, written = out.handle(), False
        try:
            checksum = out.written.result()
            written = True
        except CancelledError:  # it was needed before its turn came
            pass
        except OSError as error:
            self.failed_bytes += out.nbytes
            warnings.warn(
                f"a tensor could not be written to {str(self.directory)!r} and stays in memory: {error}",
                RuntimeWarning,
                stacklevel=2,
            )
        if written and handle is not None:
            handle.is_away(out.place, checksum)
        if self._file is not None and out.place is not None:
            if written and handle is not None:
                weakref.finalize(handle, self._file.give, out.place).atexit = False
            else:
                self._file.give(out.place)

    def _load(self, memory: torch.Tensor, place: Place, checksum: int, name: str) -> None:
        """In a thread: read a tensor."""
        assert self._file is not None
        with self.loads.moving(place.size):
            view = octets(memory).data
            try:
                self._file.read(view, place)
            except OSError as error:
                raise OffloadError(
                    f"cannot read {name} back from {str(self.directory)!r}: {error}"
                ) from error
            if crc32(view) != checksum:
                raise CorruptionError(f"offloaded bytes changed in {str(self.directory)!r}: those of {name}")


class Step:
    """One step's tensors, in the order in which they were saved; made by :meth:`Offload.begin`.

    Attributes:
        bytes: that were put.
        forward_seconds: until :meth:`end_forward`.
        backward_seconds: from then to the last tensor that was needed.
    """

    def __init__(self, offload: Offload, limit: int | None) -> None:
        self._offload, self._limit = offload, limit
        self._handles: list[weakref.ref[Handle]] = []
        self._began = self._turned = self._ended = time.perf_counter()
        self.bytes = 0

    @property
    def forward_seconds(self) -> float:
        return self._turned - self._began

    @property
    def backward_seconds(self) -> float:
        return self._ended - self._turned

    def end_forward(self) -> None:
        self._turned = time.perf_counter()

    def wants(self, nbytes: int) -> bool:
        """Whether so many bytes more are to go."""
        return self._limit is None or self.bytes + nbytes <= self._limit

    def put(self, tensor: torch.Tensor, name: str) -> Handle:
        """Send a contiguous tensor away.

        It must not be written to before it is away; if it was, that is an error when it is needed.
        """
        self.bytes += tensor.nbytes
        handle = self._offload._put(tensor, name)
        handle.step, handle.number = self, len(self._handles)
        self._handles.append(weakref.ref(handle))
        return handle

    def needed(self, handle: Handle) -> None:
        """What was saved just before a tensor that is needed now will be needed next."""
        self._ended = time.perf_counter()
        for number in range(handle.number - 1, max(handle.number - 1 - _AHEAD, -1), -1):
            earlier = self._handles[number]()
            if earlier is not None and not earlier.was_needed:
                earlier.fetch()


class Handle:
    """One tensor that is on its way out, away, or on its way back.

    Attributes:
        nbytes: of the tensor.
        given: the tensor, until its bytes are away.
        source: CPU memory that holds the bytes until they are written: the tensor, or a copy of a GPU's.
        ready: when the source holds them, if they come from a GPU.
        was_needed: whether the backward pass has asked for it.
    """

    step: Step
    number: int

    def __init__(self, offload: Offload, tensor: torch.Tensor, name: str) -> None:
        self._offload, self._name = offload, name
        self._dtype, self._shape, self._device = tensor.dtype, tensor.shape, tensor.device
        self.nbytes = tensor.nbytes
        self.given: torch.Tensor | None = tensor
        self.source: torch.Tensor | None = tensor
        self.ready: torch.cuda.Event | None = None
        if tensor.is_cuda:
            self.source, self.ready = _to_host(tensor)
        self._version = tensor._version
        self.written: Future[int] | None = None
        self._place: Place | None = None
        self._checksum = 0
        self._coming: tuple[torch.Tensor, Future[None]] | None = None
        self.was_needed = False

    def is_away(self, place: Place | None, checksum: int) -> None:
        """The bytes are in the file, or without a place in the host's memory.

        If the tensor was written to meanwhile, no one knows which bytes these are.
        """
        if not self._is_modified:
            self.given = None
            if place is not None:
                self.source, self._place, self._checksum = None, place, checksum

    @property
    def _is_modified(self) -> bool:
        return self.given is not None and self.given._version != self._version

    def fetch(self) -> None:
        """Begin to read the tensor, if it is away."""
        if self._place is not None and self._coming is None:
            memory = torch.empty(self.nbytes, dtype=torch.uint8, pin_memory=self.ready is not None)
            offload = self._offload
            future = offload._loading.submit(offload._load, memory, self._place, self._checksum, self._name)
            self._coming = memory, future

    def get(self) -> torch.Tensor:
        """The tensor: from the file, or from memory if it is still there.

        Raises:
            CorruptionError: the file does not hold what was written.
            OffloadError: it cannot be read.
            RuntimeError: the tensor was modified before it was away.
        """
        self._offload._reap()
        self.was_needed = True
        self.fetch()
        self.step.needed(self)
        if self.given is not None:
            if self.written is not None and not self.written.done():
                self.written.cancel()
                self._offload.forwarded_bytes += self.nbytes
            if self._is_modified:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace "
                    f"operation: {self._name}"
                )
            return self.given
        memory = self.source
        if memory is None:
            assert self._coming is not None
            (memory, future), self._coming = self._coming, None
            future.result()
        if self.ready is not None:
            memory = _to_device(memory, self._device)
        return memory.view(self._dtype).view(self._shape)


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the file."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class _Outgoing:
    """What is being copied or written: its memory has to live so long, whether anyone needs it or not."""

    tensors: tuple[torch.Tensor | None, torch.Tensor]
    handle: weakref.ref[Handle]
    written: Future[int]
    place: Place | None

    @property
    def nbytes(self) -> int:
        return self.tensors[1].nbytes


class _File:
    """A file without a name, in which places are taken and given back."""

    def __init__(self, directory: str | Path) -> None:
        if not Path(directory).is_dir():
            raise FileNotFoundError(f"directory must be one that exists, not {str(directory)!r}")
        with tempfile.TemporaryFile(dir=directory) as file:
            self._number = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._number)
        self._end = 0
        self._free: dict[int, list[Place]] = defaultdict(list)
        self._lock = threading.RLock()

    def take(self, size: int) -> Place:
        """A place of that size; a step's tensors have the sizes of the last step's."""
        with self._lock:
            if self._free[size]:
                return self._free[size].pop()
            place = Place(self._end, size)
            self._end += -(-size // _ALIGNMENT) * _ALIGNMENT
            return place

    def give(self, place: Place) -> None:
        with self._lock:
            self._free[place.size].append(place)

    def write(self, memory: memoryview, place: Place) -> None:
        done = 0
        while done < place.size:
            count = os.pwrite(self._number, memory[done:], place.offset + done)
            if count == 0:
                raise OSError("nothing more could be written")
            done += count

    def read(self, memory: memoryview, place: Place) -> None:
        done = 0
        while done < place.size:
            count = os.preadv(self._number, [memory[done:]], place.offset + done)
            if count == 0:
                raise OSError(f"the file ends after {done} of {place.size} bytes")
            done += count


class Traffic:
    """Bytes that have moved in one direction, and how long anything did."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.bytes, self._moving, self._since = 0, 0, 0.0
        self.restart()

    def restart(self) -> None:
        """Measure the rate from here on."""
        with self._lock:
            self._counted, self._seconds = 0, 0.0

    @property
    def rate(self) -> float:
        """Bytes a second, while anything moved."""
        return self._counted / self._seconds if self._seconds else 0.0

    @contextmanager
    def moving(self, size: int) -> Iterator[None]:
        with self._lock:
            self._since = time.perf_counter() if not self._moving else self._since
            self._moving += 1
        done = 0
        try:
            yield
            done = size
        finally:
            with self._lock:
                self._moving -= 1
                now = time.perf_counter()
                self._seconds, self._since = self._seconds + now - self._since, now
                self.bytes += done
                self._counted += done


_streams: dict[tuple[torch.device, str], torch.cuda.Stream] = {}


def _side_stream(device: torch.device, name: str) -> torch.cuda.Stream:
    """A stream beside the one that computes."""
    if (device, name) not in _streams:
        _streams[device, name] = torch.cuda.Stream(device)
    return _streams[device, name]


def _to_host(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.cuda.Event]:
    """Begin to copy a GPU's tensor to pinned memory; the memory, and when it is there."""
    side, current = _side_stream(tensor.device, "store"), torch.cuda.current_stream(tensor.device)
    host = torch.empty(tensor.nbytes, dtype=torch.uint8, pin_memory=True)
    side.wait_stream(current)
    with torch.cuda.stream(side):
        host.copy_(tensor.reshape(-1).view(torch.uint8), non_blocking=True)
        ready = side.record_event()
    return host, ready


def _to_device(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy pinned memory to a GPU, beside what it computes; later work on the current stream waits."""
    side, current = _side_stream(device, "load"), torch.cuda.current_stream(device)
    with torch.cuda.stream(side):
        tensor = host.to(device, non_blocking=True)
    current.wait_stream(side)
    tensor.record_stream(current)
    return tensor
