"""Tensors of accelerators: what is held how long, and how much of the host's memory they take.

CPU tensors stand for a device's; their copies are done when the test says.
"""

import errno
import gc
import os
import threading
import weakref
from concurrent.futures import Future

import pytest
import torch

from torch_bridge import Compressor, CorruptionError, Offload, Policy
from torch_bridge.backends.memory import octets
from torch_bridge.offload import copies, transfers

from .test_offload import intercept, settle

VALUES = 10_000
BYTES = 4 * VALUES


class Event(threading.Event):
    query = threading.Event.is_set

    def synchronize(self):
        assert self.wait(20)


class Device:
    """Counts the host's memory that its tensors take, and their copies."""

    def __init__(self):
        self.is_done_at_once = True
        self.held = self.most_held = 0
        self.events, self.arrived = [], []

    def host_memory(self, nbytes, device):
        memory = torch.empty(nbytes, dtype=torch.uint8)
        self.held += nbytes
        self.most_held = max(self.most_held, self.held)
        weakref.finalize(memory, self._free, nbytes)
        return memory

    def to_host(self, tensor):
        memory, event = self.host_memory(tensor.nbytes, tensor.device), Event()
        memory.copy_(tensor.reshape(-1).view(torch.uint8))
        self.events.append(event)
        if self.is_done_at_once:
            event.set()
        return memory, event

    def to_device(self, memory, device):
        self.arrived.append(float(memory[:4].view(torch.float32)))
        return copies.Arrival(memory.clone(), None)

    def _free(self, nbytes):
        self.held -= nbytes


@pytest.fixture
def device(monkeypatch):
    device = Device()
    monkeypatch.setattr(copies, "in_host_memory", lambda _: False)
    for name in ("host_memory", "to_host", "to_device"):
        monkeypatch.setattr(copies, name, getattr(device, name))
    return device


@pytest.fixture
def blocked(monkeypatch):
    """Nothing is written before this is set."""
    release = threading.Event()
    intercept(monkeypatch, "pwrite", lambda real, *given: release.wait(20) and real(*given))
    yield release
    release.set()


def number(value):
    return torch.full((VALUES,), float(value))


def put(step, count):
    return [step.put(number(value), f"tensor {value}") for value in range(count)]


def check(handles):
    """In the order of the backward pass."""
    for value in reversed(range(len(handles))):
        assert torch.equal(handles[value].get(), number(value))
        handles[value] = None


def test_a_tensor_is_let_go_when_it_is_copied_and_not_when_it_is_written(tmp_path, device, blocked):
    device.is_done_at_once = False
    disk = Offload(tmp_path, amount="all")
    tensor = number(3)
    seen = weakref.ref(tensor)
    handle = disk.begin().put(tensor, "a tensor")
    del tensor
    disk._transfers.poll()
    assert seen() is not None
    device.events[0].set()
    disk._transfers.poll()
    assert seen() is None
    assert disk.stored_bytes == 0
    assert torch.equal(handle.get(), number(3))
    assert disk.forwarded_bytes == BYTES


def test_a_tensor_may_be_modified_once_it_is_copied(tmp_path, device, blocked):
    device.is_done_at_once = False
    step = Offload(tmp_path, amount="all").begin()
    tensors = [number(0), number(1)]
    handles = [step.put(tensor, f"tensor {value}") for value, tensor in enumerate(tensors)]
    device.events[0].set()
    step.advance()
    for tensor in tensors:
        tensor.add_(1)
    device.events[1].set()
    assert torch.equal(handles[0].get(), number(0))
    with pytest.raises(RuntimeError, match="modified by an inplace operation: tensor 1"):
        handles[1].get()


@pytest.mark.parametrize("host_bytes", [0, 4 * BYTES, 10 * BYTES])
def test_the_hosts_memory_is_bounded_with_all_that_is_on_its_way(tmp_path, monkeypatch, device, host_bytes):
    monkeypatch.setattr(transfers, "IN_FLIGHT", 3 * BYTES)
    with Offload(tmp_path, amount="all", host_bytes=host_bytes) as disk:
        for _ in range(2):
            handles = put(disk.begin(), 30)
            settle(disk)
            resident = max(host_bytes // BYTES - 6, 0)
            assert device.held == resident * BYTES
            check(handles)
        assert device.most_held <= max(host_bytes, 6 * BYTES)
        assert disk.stored_bytes == disk.loaded_bytes == 2 * (30 - resident) * BYTES
    assert device.held == 0


def test_adaptive_keeps_what_would_have_to_wait(tmp_path, monkeypatch, device, blocked):
    monkeypatch.setattr(transfers, "IN_FLIGHT", 3 * BYTES)
    disk = Offload(tmp_path)
    step = disk.begin()
    handles = put(step, 10)
    assert [handle is not None for handle in handles] == [True] * 3 + [False] * 7
    assert step.bytes == device.held == 3 * BYTES
    blocked.set()
    settle(disk)
    assert device.held == 0
    assert step.put(number(10), "tensor 10") is not None


def test_the_hosts_memory_alone(device, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    step = Offload(None, host_bytes=5 * BYTES).begin()
    handles = put(step, 8)
    assert [handle is not None for handle in handles] == [True] * 5 + [False] * 3
    assert step.bytes == device.held == 5 * BYTES
    check(handles[:5])
    del handles
    assert device.held == 0
    assert len([handle for handle in put(step, 8) if handle is not None]) == 5


@pytest.mark.parametrize("is_computed", [True, False], ids=["computed", "to be computed"])
@pytest.mark.parametrize("amount", ["all", "adaptive"])
def test_copies_to_the_hosts_memory_are_bounded(tmp_path, monkeypatch, device, amount, is_computed):
    monkeypatch.setattr(transfers, "IN_FLIGHT", 3 * BYTES)
    monkeypatch.setattr(Event, "synchronize", Event.set)  # it is copied when it is waited for
    monkeypatch.setattr(copies, "work_until_now", lambda _: None if is_computed else Event())
    device.is_done_at_once = False
    step = Offload(tmp_path, amount=amount, host_bytes=100 * BYTES).begin()
    tensors, handles, alive = [], [], []
    for value in range(30):
        tensor = number(value)
        tensors.append(weakref.ref(tensor))
        handles.append(step.put(tensor, f"tensor {value}"))
        del tensor
        alive.append(sum(seen() is not None for seen in tensors))
    if not is_computed:  # the device is behind, not the copies
        assert alive[-1] == 30
        assert None not in handles
    else:
        assert max(alive) == 3
        assert sum(handle is not None for handle in handles) == (30 if amount == "all" else 3)
    sent = [value for value in range(30) if handles[value] is not None]
    assert all(torch.equal(handles[value].get(), number(value)) for value in reversed(sent))


def test_what_is_copied_is_let_go_though_no_more_is_sent(tmp_path, device):
    device.is_done_at_once = False
    disk = Offload(tmp_path, amount=2 * BYTES)
    step, tensors = disk.begin(), [number(0), number(1)]
    seen = [weakref.ref(tensor) for tensor in tensors]
    handles = [step.put(tensor, "a tensor") for tensor in tensors]
    tensors.clear()
    device.events[0].set()
    assert step.put(number(2), "one too many") is None
    assert [tensor() is not None for tensor in seen] == [False, True]
    device.events[1].set()
    step.end_forward()
    assert seen[1]() is None
    check(handles)


def test_tensors_of_a_cpu_stay_where_only_the_hosts_memory_is(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    x = torch.ones(VALUES, requires_grad=True)
    disk = Offload(None, host_bytes=1 << 30)
    with Compressor(torch.nn.Identity(), Policy([]), offload=disk) as saver:
        loss = x.sin().exp().sum()
    assert saver.offloaded_bytes == 0
    assert {row.kept for row in saver.report().rows} == {"no rule"}
    loss.backward()


def test_what_cannot_be_written_stays_in_the_hosts_memory_and_is_counted(tmp_path, monkeypatch, device):
    def fails(*given):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    intercept(monkeypatch, "pwrite", fails)
    monkeypatch.setattr(transfers, "IN_FLIGHT", 2 * BYTES)
    disk = Offload(tmp_path, amount="all")
    step = disk.begin()

    def fill():
        for value in range(10):
            yield step.put(number(value), f"tensor {value}")
            settle(disk)

    with pytest.warns(RuntimeWarning, match="stays in memory"):
        handles = list(fill())
    assert [handle is not None for handle in handles] == [True] * 4 + [False] * 6
    assert device.held == disk.failed_bytes == 4 * BYTES
    check(handles[:4])


def test_tensors_are_on_the_device_ahead_of_their_use(tmp_path, monkeypatch, device):
    monkeypatch.setattr(transfers, "IN_FLIGHT", 3 * BYTES)
    disk = Offload(tmp_path, amount="all", host_bytes=8 * BYTES)
    step = disk.begin()
    handles = put(step, 10)
    settle(disk)
    step.advance()
    assert device.arrived == []
    disk._transfers._loading.submit(lambda: None).result()
    step.advance()
    assert device.arrived == [9, 8, 7]
    for value in reversed(range(4, 10)):
        handles[value].get()
    disk._transfers._loading.submit(lambda: None).result()
    step.advance()
    assert sorted(device.arrived) == list(range(1, 10))  # the first two never left the host's memory
    check(handles[:4])
    assert len(device.arrived) == 10


def test_reads_are_bounded_however_much_is_free(tmp_path, monkeypatch, device):
    class Owner:
        pass

    release = threading.Event()
    intercept(monkeypatch, "preadv", lambda real, *given: release.wait(20) and real(*given))
    monkeypatch.setattr(transfers, "IN_FLIGHT", 3 * BYTES)
    disk = Offload(tmp_path, amount="all")
    step, owner = disk.begin(), Owner()
    handles = put(step, 10)
    step.keep(owner, 1 << 30)
    del owner
    settle(disk)
    for _ in range(3):
        step.advance()
    assert device.held == 3 * BYTES
    release.set()
    disk._transfers._loading.submit(lambda: None).result()
    step.advance()
    assert device.arrived == [9, 8, 7]
    check(handles)


def test_what_cannot_be_read_ahead_does_not_reach_the_device(tmp_path, device):
    disk = Offload(tmp_path, amount="all")
    step = disk.begin()
    handles = put(step, 2)
    settle(disk)
    os.pwrite(disk._transfers._file.number, b"altered", handles[1]._item.place.offset)
    step.advance()
    disk._transfers._loading.submit(lambda: None).result()
    step.advance()
    assert device.arrived == [0]
    assert disk.loaded_bytes == BYTES
    with pytest.raises(CorruptionError, match="those of tensor 1"):
        handles[1].get()
    assert torch.equal(handles[0].get(), number(0))


@pytest.mark.parametrize("host_bytes", [0, 1 << 30])
def test_the_garbage_collector_may_run_in_the_writer_while_the_forward_pass_waits(
    tmp_path, monkeypatch, device, host_bytes
):
    class Collecting(Event):
        def synchronize(self):
            gc.collect()
            super().synchronize()

    monkeypatch.setattr(transfers, "IN_FLIGHT", BYTES)
    disk = Offload(tmp_path, amount="all", host_bytes=host_bytes)
    step = disk.begin()
    cycle = put(step, 1)
    cycle.append(cycle)
    seen = weakref.ref(cycle[0])
    settle(disk)
    disk._transfers._host_bytes = 0
    monkeypatch.setattr(f"{__name__}.Event", Collecting)
    gc.collect()
    gc.disable()
    try:
        del cycle
        assert seen() is not None
        handles = []
        trains = threading.Thread(target=lambda: handles.extend(put(step, 4)), daemon=True)
        trains.start()
        trains.join(20)
        assert not trains.is_alive()
    finally:
        gc.enable()
    assert seen() is None
    check(handles)


def test_a_wait_counts_from_when_the_device_has_nothing_to_do(monkeypatch):
    class Work:
        def __init__(self, queries):
            self.queries = queries

        def query(self):
            self.queries -= 1
            if self.queries == 0:
                read.set_result(None)
            return False

    read = Future()
    monkeypatch.setattr(copies, "work_until_now", lambda _: Work(3))
    assert transfers._wait(read, torch.device("cpu")) == 0

    class Read:
        def done(self):
            return False

        def result(self):
            now.append(5.0)

    now = [2.0]
    idle = Event()
    idle.set()
    monkeypatch.setattr(copies, "work_until_now", lambda _: idle)
    monkeypatch.setattr(transfers, "perf_counter", lambda: now[-1])
    assert transfers._wait(Read(), torch.device("cpu")) == 3


def test_pointers_of_other_devices_do_not_reach_the_host(tmp_path, monkeypatch):
    tensor = torch.ones(VALUES, device="meta")
    with pytest.raises(ValueError, match="tensor must be in the host's memory, not on 'meta'"):
        octets(tensor)
    memory = number(2).view(torch.uint8)
    monkeypatch.setattr(copies, "to_host", lambda given: (memory, None) if given is tensor else None)
    disk = Offload(tmp_path, amount="all")
    handle = disk.begin().put(tensor, "a tensor")
    assert handle._item.given is None
    settle(disk)
    assert disk.stored_bytes == BYTES
    found = handle.get()
    assert found.device.type == "meta"
    assert found.shape == tensor.shape


def test_accelerators_other_than_cuda_wait_for_their_copies():
    memory, ready = copies.to_host(number(2).view(100, 100))  # what .cpu() gives is the same on each
    assert ready is None
    arrival = copies.to_device(memory, torch.device("cpu"))
    assert arrival.ready is None
    assert torch.equal(arrival.use().view(torch.float32), number(2))
