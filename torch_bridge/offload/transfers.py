"""What is on its way to the file or to the host's memory, or back, and the threads that move it.

Those threads write and read, and no more. What becomes of a tensor is decided by the threads that train,
whenever they come by, under one lock. Neither the others nor finalizers, which the garbage collector runs in
any thread in the middle of anything, ever take it.
"""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections import deque
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import takewhile
from time import perf_counter

import torch

from ..backends.memory import octets
from . import copies
from .extents import Place
from .file import File, OffloadError

# Bytes that may be on their way out, and as many back; twice the largest tensor, if that is more, so that
# one can move while another is waited for.
IN_FLIGHT = 8 << 20


class Offloaded:
    """One tensor on its way out, away, or on its way back; only ``Transfers`` changes it.

    Attributes:
        nbytes: of the tensor.
        given: the tensor, until its bytes are elsewhere.
        memory: a device's bytes in the host's memory, until they are in the file.
        place, checksum: in the file, once they are.
        written: while they are being written.
        coming: memory, while it is read.
        arrival: on the device, once it is copied there ahead of its use.
    """

    def __init__(self, tensor: torch.Tensor, name: str, counts: torch.Tensor) -> None:
        self.name, self.nbytes, self.device = name, tensor.nbytes, tensor.device
        self._dtype, self._shape = tensor.dtype, tensor.shape
        self._counts: torch.Tensor | None = counts
        self._version, self._address = counts._version, tensor.data_ptr()
        self.given: torch.Tensor | None = tensor
        self.memory: torch.Tensor | None = None
        self.place: Place | None = None
        self.checksum = 0
        self.written: Future[int | None] | None = None
        self.coming: tuple[torch.Tensor, Future[None]] | None = None
        self.arrival: copies.Arrival | None = None

    @property
    def is_modified(self) -> bool:
        """Whether the tensor was written to before its bytes were elsewhere: no one knows which these are.

        Or its memory was another's meanwhile, as what frees a storage and fills it again counts no version.
        """
        if self._counts is None or self.given is None:
            return False
        return self._counts._version != self._version or self.given.data_ptr() != self._address

    @property
    def is_leaving(self) -> bool:
        """Whether it is being written, and still in memory."""
        return self.given is not None and self.written is not None

    def let_go(self) -> None:
        if not self.is_modified:
            self.given = self._counts = None

    def shaped(self, memory: torch.Tensor) -> torch.Tensor:
        return memory.view(self._dtype).view(self._shape)


class Transfers:
    """Moves tensors out and back.

    Args:
        file: None if there is only the host's memory.
        host_bytes: of the host's memory, for the tensors of devices; see ``Offload``.
        waits: whether to wait for the file, or to keep a tensor, when too much is on its way out.
        store_threads, load_threads: that write and read.

    Attributes:
        stored_bytes, loaded_bytes: written and read.
        forwarded_bytes: that were needed before they were written.
        failed_bytes: that could not be written.
    """

    def __init__(
        self, file: File | None, host_bytes: int, *, waits: bool, store_threads: int, load_threads: int
    ) -> None:
        self._file, self._host_bytes, self._waits = file, host_bytes, waits
        self._storing = ThreadPoolExecutor(store_threads, "bitstash-store")
        self._loading = ThreadPoolExecutor(load_threads, "bitstash-load")
        self._lock = threading.RLock()
        self._copying: deque[_Copying] = deque()
        self._out: deque[_Writing] = deque()
        self._back: deque[_Reading] = deque()
        self._out_bytes = self._back_bytes = self._largest = 0
        self._resident = 0  # bytes that stay in the host's memory, of devices
        self._left: deque[int] = deque()  # of these, what is no longer needed
        self._told: set[int | None] = set()  # error numbers that a warning has named
        self._closed, self._process = False, os.getpid()  # threads do not come along with a fork
        self.stored_bytes = self.loaded_bytes = self.forwarded_bytes = self.failed_bytes = 0

    @property
    def most_in_flight(self) -> int:
        """Bytes that may be on their way in one direction."""
        return max(IN_FLIGHT, 2 * self._largest)

    def check_open(self) -> None:
        if self._closed:
            raise OffloadError("nothing more can be offloaded: the Offload is closed")
        if os.getpid() != self._process:
            raise OffloadError("nothing can be offloaded in a forked process: make an Offload in each")

    def send(self, tensor: torch.Tensor, name: str, counts: torch.Tensor) -> Offloaded | None:
        """Send a contiguous tensor out; None if it has to stay. ``counts`` has the versions of its memory."""
        with self._lock:
            self.check_open()
            self.poll()
            self._largest = max(self._largest, tensor.nbytes)
            in_host_memory = copies.in_host_memory(tensor.device)
            reserved = 0 if self._file is None else 2 * self.most_in_flight
            stays = not in_host_memory and self._resident + tensor.nbytes <= self._host_bytes - reserved
            room = self._keeps_up(tensor.nbytes) if stays else self._has_room(tensor.nbytes, in_host_memory)
            if not room:
                return None
            item = Offloaded(tensor, name, counts)
            ready = None if in_host_memory else self._copy(item, tensor)
            if stays:
                self._keep(item)
            else:
                self._write(item, tensor if item.memory is None else item.memory, ready)
            return item

    def fetch(self, item: Offloaded, *, at_once: bool = False) -> bool:
        """Begin to bring a tensor back, if it is away; False if too much is on its way already.

        Raises:
            OffloadError: it is needed at once, and the file is closed.
        """
        with self._lock:
            if item.given is not None or item.coming is not None or item.arrival is not None:
                return True
            if item.memory is not None:
                item.arrival = copies.to_device(item.memory, item.device)
                return True
            if not at_once and self._back and self._back_bytes + item.nbytes > self.most_in_flight:
                return False
            if self._closed or os.getpid() != self._process:
                if at_once:
                    why = "is closed" if self._closed else "was made in another process"
                    raise OffloadError(f"cannot read {item.name} back: its Offload {why}")
                return True
            assert self._file is not None
            assert item.place is not None
            memory = copies.host_memory(item.nbytes, item.device)
            read = self._loading.submit(
                self._file.read, octets(memory).data, item.place, item.checksum, item.name
            )
            item.coming = memory, read
            self._back.append(_Reading(weakref.ref(item), memory, read))
            self._back_bytes += item.nbytes
            return True

    def take(self, item: Offloaded) -> tuple[torch.Tensor, float]:
        """The tensor, from wherever it is, and for how many seconds its device had to wait for it.

        Raises:
            CorruptionError: the file does not hold what was written.
            OffloadError: it cannot be read.
            RuntimeError: the tensor was modified before it was away.
        """
        with self._lock:
            self.poll()
            if item.written is not None and not item.written.done():
                item.written.cancel()
                self.forwarded_bytes += item.nbytes
            item.written = None
            if item.given is not None:
                if item.is_modified:
                    raise RuntimeError(
                        "one of the variables needed for gradient computation has been modified by an "
                        f"inplace operation: {item.name}"
                    )
                return item.given, 0.0
            self.fetch(item, at_once=True)
            arrival, coming = item.arrival, item.coming
            item.arrival = item.coming = None
        waited = 0.0
        if arrival is None:
            assert coming is not None
            memory, read = coming
            try:
                waited = _wait(read, item.device)
            except BaseException:
                self.poll()  # what was read holds the error, which holds everyone that it passes
                raise
            if copies.in_host_memory(item.device):
                return item.shaped(memory), waited
            arrival = copies.to_device(memory, item.device)
        return item.shaped(arrival.use()), waited

    def poll(self) -> None:
        """See what has been copied, written and read; in a thread that trains, which profilers watch."""
        with self._lock:
            while self._left:
                self._resident -= self._left.popleft()
            while self._copying and self._copying[0].is_done:
                copied = self._copying.popleft().item()
                if copied is not None:
                    copied.let_go()
            while self._out and self._out[0].written.done():
                self._settle(self._out.popleft())
            while self._back and self._back[0].read.done():
                self._land(self._back.popleft())

    def close(self) -> None:
        """Cancel what is not being written yet, wait for the rest, and give threads and file back."""
        with self._lock:
            self._closed = True
            for out in self._out:
                out.written.cancel()
            self._storing.shutdown()
            self._loading.shutdown()
            try:
                self.poll()
            finally:  # its warnings may be errors
                if self._file is not None:
                    self._file.close()

    def _keeps_up(self, nbytes: int) -> bool:
        """Whether so many bytes more may be on their way to the host's memory, if need be after waiting.

        What the device has not computed yet is not late.
        """
        while self._late_bytes() + nbytes > self.most_in_flight:
            if not self._waits:
                return False
            self._copying[0].ready.synchronize()
            self.poll()
        return True

    def _late_bytes(self) -> int:
        """Of a device's tensors that are computed, and not copied yet."""
        computed = takewhile(lambda copying: copying.is_computed, self._copying)
        return sum(copying.tensor.nbytes for copying in computed)

    def _has_room(self, nbytes: int, in_host_memory: bool) -> bool:
        """Whether so many bytes more may be on their way to the file, if need be after waiting for it."""
        if self._file is None:
            return False
        while self._out and self._out_bytes + nbytes > self.most_in_flight:
            if not self._waits:
                return False
            wait([self._out[0].written])
            self.poll()
        held = self._resident + self._out_bytes + nbytes  # more than it should only if the file fails
        return in_host_memory or held <= max(self._host_bytes, 2 * self.most_in_flight)

    def _copy(self, item: Offloaded, tensor: torch.Tensor) -> copies.Event | None:
        """Begin to copy a device's tensor, which is held for so long; when that has happened."""
        computed = copies.work_until_now(tensor.device)
        item.memory, ready = copies.to_host(tensor)
        if ready is None:
            item.let_go()
        else:
            self._copying.append(_Copying(weakref.ref(item), tensor, computed, ready))
        return ready

    def _keep(self, item: Offloaded) -> None:
        """A device's tensor stays in the host's memory."""
        self._resident += item.nbytes
        weakref.finalize(item, self._left.append, item.nbytes).atexit = False

    def _write(self, item: Offloaded, memory: torch.Tensor, ready: copies.Event | None) -> None:
        assert self._file is not None
        place, reference = self._file.extents.take(item.nbytes), weakref.ref(item)
        item.written = self._storing.submit(self._store, memory, ready, place, reference)
        self._out.append(_Writing(reference, memory, place, item.written))
        self._out_bytes += item.nbytes

    def _store(
        self,
        memory: torch.Tensor,
        ready: copies.Event | None,
        place: Place,
        item: weakref.ref[Offloaded],
    ) -> int | None:
        """In a thread: write a tensor, if anyone still needs it; its checksum."""
        if ready is not None:
            ready.synchronize()
        if item() is None:
            return None
        assert self._file is not None
        return self._file.write(octets(memory).data, place)

    def _settle(self, out: _Writing) -> None:
        """What was being written is in the file, or is not."""
        assert self._file is not None
        self._out_bytes -= out.place.size
        item, checksum, failure = out.item(), None, None
        try:
            checksum = out.written.result()
        except CancelledError:  # it was needed before its turn came
            pass
        except OSError as error:
            failure = error
        if checksum is not None:
            self.stored_bytes += out.place.size
        if item is None or checksum is None or item.is_modified:
            self._file.extents.give(out.place)
        else:
            item.let_go()
            item.memory, item.place, item.checksum = None, out.place, checksum
            weakref.finalize(item, self._file.extents.give, out.place).atexit = False
        if failure is not None:
            self.failed_bytes += out.place.size
            if item is not None and item.memory is not None:
                self._keep(item)
            if failure.errno not in self._told:
                self._told.add(failure.errno)
                warnings.warn(
                    f"a tensor could not be written to {self._file.directory!r} and stays in memory, as will "
                    f"others: {failure}",
                    RuntimeWarning,
                    stacklevel=2,
                )

    def _land(self, back: _Reading) -> None:
        """What was being read is in memory; what failed is an error when it is needed."""
        self._back_bytes -= back.memory.nbytes
        item = back.item()
        if back.read.exception() is None:
            self.loaded_bytes += back.memory.nbytes
            if item is not None and item.coming is not None and not copies.in_host_memory(item.device):
                item.arrival, item.coming = copies.to_device(back.memory, item.device), None


@dataclass(frozen=True, slots=True)
class _Copying:
    """A device's tensor, which has to live until it is copied, whether anyone needs it or not."""

    item: weakref.ref[Offloaded]
    tensor: torch.Tensor
    computed: copies.Event | None
    ready: copies.Event

    @property
    def is_computed(self) -> bool:
        return self.computed is None or self.computed.query()

    @property
    def is_done(self) -> bool:
        return self.ready.query()


@dataclass(frozen=True, slots=True)
class _Writing:
    """Memory that has to live until it is written."""

    item: weakref.ref[Offloaded]
    memory: torch.Tensor
    place: Place
    written: Future[int | None]


@dataclass(frozen=True, slots=True)
class _Reading:
    """Memory that has to live until it is read."""

    item: weakref.ref[Offloaded]
    memory: torch.Tensor
    read: Future[None]


def _wait(read: Future[None], device: torch.device) -> float:
    """Wait for a tensor; the seconds after its device had done all that it was given before."""
    work = copies.work_until_now(device)
    while work is not None and not read.done() and not work.query():
        wait([read], timeout=0.001)
    began, is_late = perf_counter(), not read.done()
    read.result()
    return perf_counter() - began if is_late else 0.0
