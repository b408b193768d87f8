"""Offloading: exact whatever the tensors, and whatever happens to the disk."""

import errno
import gc
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
from contextlib import suppress
from functools import partial

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from golden import HadamardFormat, PlaneFormat
from torch_bridge import (
    Compressor,
    CorruptionError,
    Offload,
    OffloadError,
    Policy,
)
from torch_bridge.offload import file, transfers

FMT = PlaneFormat("fp32", block=64, target=80)
EXACT = Policy([])
SIZE = 40_000


class Odd(torch.nn.Module):
    """Saves views, transposes, broadcasts, masks, integers, small tensors, and one storage several times."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, SIZE).view(200, 200))

    def forward(self, x):
        y = (x @ self.weight).sin()
        y = y * y.T + y.exp().clamp(max=2.0)
        y = y * torch.where(y > 0.5, y, 0.25)
        z = y[:, ::3] * y[:, 1:135:2] * y[0].expand(67, 200).T
        z = z + torch.gather(y, 1, (y[:, :67] > 0).long() * 5)
        return (z.to(torch.bfloat16).float() * z).sum() + y[3, :7].pow(3).sum()


@pytest.fixture
def model():
    return Odd()


def forward(model, policy=EXACT, **options):
    x = torch.linspace(-2, 1, SIZE).view(200, 200).requires_grad_()
    with Compressor(model, policy, **options) as saver:
        loss = model(x)
    return loss, [x, model.weight], saver


def gradients(model, policy=EXACT, **options):
    loss, leaves, saver = forward(model, policy, **options)
    return torch.autograd.grad(loss, leaves), saver


def same(some, others):
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def settle(disk):
    """Wait until everything is written."""
    disk._transfers._storing.submit(lambda: None).result()
    disk._transfers.poll()


def open_files(folder):
    """How many files in a folder, with a name or without one, this process has open."""
    links = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the listing
            links.append(os.readlink(f"/proc/self/fd/{number}"))
    return sum(link.startswith(str(folder)) for link in links)


def intercept(monkeypatch, name, function):
    """Call ``function(real, *arguments)`` in place of a function of os."""
    real = getattr(os, name)
    monkeypatch.setattr(file.os, name, lambda *arguments: function(real, *arguments))


# Gradients


@pytest.mark.parametrize("amount", ["all", "adaptive", 0, 300_000])
@pytest.mark.parametrize("policy", [EXACT, FMT], ids=["exact", "planes"])
def test_gradients_are_those_without_offloading(model, tmp_path, amount, policy):
    expected, _ = gradients(model, policy)
    disk = Offload(tmp_path, amount=amount)
    for _ in range(4):
        found, saver = gradients(model, policy, offload=disk)
        assert same(found, expected)
        if isinstance(amount, int):
            assert saver.offloaded_bytes <= amount
    assert (disk.stored_bytes + disk.forwarded_bytes > 0) == (amount != 0)


def test_a_storage_is_written_once_and_parameters_never(model, tmp_path):
    _, plain = gradients(model)
    disk = Offload(tmp_path, amount="all")
    loss, _, saver = forward(model, offload=disk, min_values=0)
    settle(disk)
    assert disk.stored_bytes == saver.original_bytes
    # Small tensors are parts of others here, and parts under an eighth are written again.
    assert abs(plain.original_bytes - saver.original_bytes) < 1000
    assert all("offloaded" in row.kept for row in saver.report().rows if row.counted)
    assert not any("offloaded" in row.kept for row in saver.report().rows if not row.counted)
    del loss


def test_bytes_written_shrink_by_the_ratio(model, tmp_path):
    disk = Offload(tmp_path, amount="all")
    loss, _, saver = forward(model, FMT, offload=disk)
    settle(disk)
    assert disk.stored_bytes <= saver.stored_bytes < saver.original_bytes / 2
    del loss


def test_memory_is_free_while_tensors_are_away(tmp_path):
    disk = Offload(tmp_path, amount="all")
    x = torch.ones(1 << 20, requires_grad=True)
    with Compressor(torch.nn.Identity(), EXACT, offload=disk):
        y = x.exp()
        loss = y.sin().sum()
    seen = torch.multiprocessing.reductions.StorageWeakRef(y.untyped_storage())
    del y
    settle(disk)
    assert seen.expired()
    loss.backward()
    assert torch.allclose(x.grad, torch.e * torch.cos(torch.tensor(torch.e)).expand(1 << 20))


def test_freed_addresses_are_not_mistaken(tmp_path):
    disk = Offload(tmp_path, amount="all")
    x = torch.ones(5000, requires_grad=True)
    with Compressor(torch.nn.Identity(), EXACT, offload=disk):
        total = sum(((x * number).exp() * 2).sum() for number in range(20))
    total.backward()
    expected = sum(2 * number * torch.exp(torch.tensor(float(number))) for number in range(20))
    assert torch.allclose(x.grad, expected.expand(5000))


def test_second_backward_and_double_backward(model, tmp_path):
    disk = Offload(tmp_path, amount="all")
    loss, leaves, _ = forward(model, offload=disk)
    first = torch.autograd.grad(loss, leaves, retain_graph=True)
    assert same(first, torch.autograd.grad(loss, leaves))

    def twice(**options):
        x = torch.linspace(0, 1, 5000).requires_grad_()
        with Compressor(model, EXACT, **options):
            (slope,) = torch.autograd.grad(x.sin().pow(3).sum(), x, create_graph=True)
            total = slope.pow(2).sum()
        return torch.autograd.grad(total, x)

    assert same(twice(), twice(offload=disk))


def test_a_tensor_that_is_modified_before_it_is_away_is_an_error(tmp_path, monkeypatch):
    written = threading.Event()
    intercept(monkeypatch, "pwrite", lambda real, *given: written.wait() and real(*given))
    disk = Offload(tmp_path, amount="all")
    x = torch.ones(5000, requires_grad=True)
    with Compressor(torch.nn.Identity(), EXACT, offload=disk):
        y = x.exp()
        loss = y.sin().sum()
    with torch.no_grad():
        y.mul_(2)
    written.set()
    with pytest.raises(RuntimeError, match="modified by an inplace operation: exp, 5000, float32"):
        loss.backward()


@pytest.mark.parametrize("refilled", [False, True])
def test_a_tensor_whose_memory_is_emptied_before_it_is_away_is_an_error(tmp_path, monkeypatch, refilled):
    """As by what frees a storage and fills it again: no version counts that."""
    written = threading.Event()
    intercept(monkeypatch, "pwrite", lambda real, *given: written.wait() and real(*given))
    disk = Offload(tmp_path, amount="all")
    x = torch.ones(5000, requires_grad=True)
    with Compressor(torch.nn.Identity(), EXACT, offload=disk):
        y = x.exp()
        loss = y.sin().sum()
    memory, values, held = y.untyped_storage(), y.detach().clone(), y.detach()
    memory.resize_(0)
    between = torch.ones(5000)  # what may be put where it was
    if refilled:
        memory.resize_(values.nbytes)
        held.data.copy_(values)
    written.set()
    with pytest.raises(RuntimeError, match="modified by an inplace operation: exp, 5000, float32"):
        loss.backward()
    del between


# When things move


@pytest.mark.parametrize("policy", [EXACT, HadamardFormat("fp32", 128, 64)], ids=str)
def test_one_that_no_format_has_as_well(tmp_path, monkeypatch, policy):
    written = threading.Event()
    intercept(monkeypatch, "pwrite", lambda real, *given: written.wait() and real(*given))
    x, y = torch.ones(5000, dtype=torch.float64, requires_grad=True), torch.arange(5000, dtype=torch.float64)
    with Offload(tmp_path, amount="all") as disk:
        with Compressor(torch.nn.Identity(), policy, offload=disk):
            loss = (x * y).sum()
            y.mul_(2)
        written.set()
        with pytest.raises(RuntimeError, match="modified by an inplace operation: 5000, float64"):
            loss.backward()


def test_what_is_not_written_yet_comes_from_memory(model, tmp_path, monkeypatch):
    expected, _ = gradients(model)
    release = threading.Event()
    intercept(monkeypatch, "pwrite", lambda real, *given: release.wait(20) and real(*given))
    disk = Offload(tmp_path, amount="adaptive")
    found, saver = gradients(model, offload=disk)
    release.set()
    assert same(found, expected)
    assert disk.forwarded_bytes == saver.offloaded_bytes
    assert disk.loaded_bytes == 0


def test_tensors_are_read_in_reverse_and_ahead_of_their_use(tmp_path, monkeypatch):
    monkeypatch.setattr(transfers, "IN_FLIGHT", 100_000)
    read = []
    intercept(monkeypatch, "preadv", lambda real, *given: read.append(given[2]) or real(*given))
    disk = Offload(tmp_path, amount="all")
    x = torch.ones(5000, requires_grad=True)
    with Compressor(torch.nn.Identity(), EXACT, offload=disk):
        y = x
        for _ in range(12):
            y = y.sin()
        loss = y.sum()
    settle(disk)
    ahead = []
    last = loss.grad_fn.next_functions[0][0]
    last.register_hook(lambda *_: ahead.append(disk._transfers._loading.submit(lambda: len(read)).result()))
    loss.backward()
    assert ahead in ([5], [6])  # of 20 kB; the sixth if the first had been read when it was needed
    assert read == sorted(read, reverse=True)
    assert len(read) == 12


@pytest.mark.parametrize(("policy", "size"), [(EXACT, 20_000), (FMT, 79 * 80)], ids=["exact", "planes"])
def test_what_is_read_ahead_takes_the_place_of_what_is_freed(tmp_path, monkeypatch, policy, size):
    monkeypatch.setattr(transfers, "IN_FLIGHT", 2 * size)
    disk = Offload(tmp_path, amount=10 * size)
    x = torch.ones(5000, requires_grad=True)
    ahead = []

    def counted(grad):
        disk._transfers._loading.submit(lambda: None).result()
        ahead.append(disk.loaded_bytes // size)

    with Compressor(torch.nn.Identity(), policy, offload=disk) as saver:
        y = x
        for _ in range(16):
            y = y.sin()
            y.register_hook(counted)
        loss = y.sum()
    del y
    settle(disk)
    assert saver.offloaded_bytes == 10 * size
    loss.backward()
    assert ahead[0] == 0
    assert ahead[1] == 2
    assert ahead[6] >= 6  # the six that stayed have been needed
    assert ahead[-1] == 10


def test_the_first_go_and_the_last_stay(model, tmp_path):
    x = torch.ones(10_000, requires_grad=True)
    disk = Offload(tmp_path, amount=100_000)
    with Compressor(torch.nn.Identity(), EXACT, offload=disk) as saver:
        first = x.sin()
        second = first.exp()
        third = second.tanh()
        loss = third[:2000].sin().sum()  # small enough, but later than what was too much
    kept = {row.op: row.kept for row in saver.report().rows}
    offloaded = "exact, offloaded"
    assert kept == {"": offloaded, "exp": offloaded, "tanh": "no rule"}
    assert saver.offloaded_bytes == 80_000
    loss.backward()


@pytest.mark.parametrize("amount", ["all", 10**9])
def test_the_forward_pass_waits_for_the_disk(tmp_path, monkeypatch, amount):
    monkeypatch.setattr(transfers, "IN_FLIGHT", 100_000)
    pending = []

    def slow(real, *given):
        pending.append(disk._transfers._out_bytes)
        time.sleep(0.01)
        return real(*given)

    intercept(monkeypatch, "pwrite", slow)
    disk = Offload(tmp_path, amount=amount)
    x = torch.ones(10_000, requires_grad=True)
    with Compressor(torch.nn.Identity(), EXACT, offload=disk):
        y = x
        for _ in range(20):
            y = y.sin()
    assert max(pending) <= 100_000
    y.sum().backward()


# Faults


@pytest.mark.filterwarnings("ignore:a tensor could not be written")
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_what_cannot_be_written_stays_in_memory(model, tmp_path, monkeypatch, error):
    expected, _ = gradients(model)
    writes = []

    def fails(real, *given):
        writes.append(given)
        if len(writes) % 2:
            raise OSError(error, os.strerror(error))
        return real(*given)

    intercept(monkeypatch, "pwrite", fails)
    disk = Offload(tmp_path, amount="all")

    def fill():
        result = forward(model, offload=disk)
        settle(disk)
        return result

    with pytest.warns(RuntimeWarning, match=os.strerror(error)):
        loss, leaves, _ = fill()
    assert disk.failed_bytes > 0
    assert disk.stored_bytes > 0
    assert same(torch.autograd.grad(loss, leaves), expected)


@pytest.mark.filterwarnings("ignore:a tensor could not be written")
def test_a_full_disk(model, tmp_path):
    expected, _ = gradients(model)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, limits[1]))
    try:
        disk = Offload(tmp_path, amount="all")
        for _ in range(3):
            loss, leaves, _ = forward(model, offload=disk)
            settle(disk)
            assert same(torch.autograd.grad(loss, leaves), expected)
        assert disk.failed_bytes > 0
        assert disk.stored_bytes > 0
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_short_writes_and_reads_go_on(model, tmp_path, monkeypatch):
    expected, _ = gradients(model)
    intercept(monkeypatch, "pwrite", lambda real, file, view, at: real(file, view[:1000], at))
    intercept(monkeypatch, "preadv", lambda real, file, views, at: real(file, [views[0][:777]], at))
    disk = Offload(tmp_path, amount="all")
    loss, leaves, _ = forward(model, offload=disk)
    settle(disk)
    assert same(torch.autograd.grad(loss, leaves), expected)
    assert disk.loaded_bytes > 0


def test_altered_bytes_are_an_error_that_names_the_tensor(model, tmp_path):
    disk = Offload(tmp_path, amount="all")
    loss, _, _ = forward(model, offload=disk)
    settle(disk)
    for place in range(0, disk._transfers._file.extents.end, 4096):
        os.pwrite(disk._transfers._file.number, b"altered", place + 100)
    with pytest.raises(CorruptionError, match=r"offloaded bytes changed in '.*': those of .*, float32"):
        loss.backward()


def test_a_torn_file_is_an_error(model, tmp_path):
    disk = Offload(tmp_path, amount="all")
    loss, _, _ = forward(model, offload=disk)
    settle(disk)
    os.ftruncate(disk._transfers._file.number, 100)
    with pytest.raises(OffloadError, match=r"cannot read .* back from '.*': the file ends after \d+ of"):
        loss.backward()


def test_a_read_error_is_an_error(model, tmp_path, monkeypatch):
    disk = Offload(tmp_path, amount="all")
    loss, _, _ = forward(model, offload=disk)
    settle(disk)

    def fails(real, *given):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    intercept(monkeypatch, "preadv", fails)
    with pytest.raises(OffloadError, match="Input/output error"):
        loss.backward()


def test_two_jobs_in_one_directory(tmp_path):
    models = [Odd(), Odd()]
    with torch.no_grad():
        models[1].weight.mul_(0.5)
    expected = [gradients(model)[0] for model in models]
    disks = [Offload(tmp_path, amount="all") for _ in models]
    runs = [forward(model, offload=disk) for model, disk in zip(models, disks, strict=True)]
    for disk in disks:
        settle(disk)
    assert os.listdir(tmp_path) == []
    for (loss, leaves, _), one in zip(runs, expected, strict=True):
        assert same(torch.autograd.grad(loss, leaves), one)


KILLED = """
import os, signal, sys, torch
from torch_bridge import Offload, Policy, Compressor
disk = Offload(sys.argv[1], amount="all")
x = torch.ones(1 << 20, requires_grad=True)
with Compressor(torch.nn.Identity(), Policy([]), offload=disk):
    y = x.sin().exp().tanh()
disk._transfers._storing.submit(lambda: None).result()
print(disk.stored_bytes, os.listdir(sys.argv[1]), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_in_a_forked_process_it_is_an_error(model, tmp_path):
    disk = Offload(tmp_path, amount="all")
    step = disk.begin()
    handle = step.put(torch.arange(5000), "a tensor")
    settle(disk)
    child = os.fork()
    if not child:
        said = []
        for use in (disk.begin, handle.get):
            try:
                use()
            except OffloadError as error:
                said.append(str(error))
        wanted = [
            "nothing can be offloaded in a forked process: make an Offload in each",
            "cannot read a tensor back: its Offload was made in another process",
        ]
        os._exit(said != wanted)
    assert os.waitpid(child, 0)[1] == 0
    assert torch.equal(handle.get(), torch.arange(5000))


def test_a_killed_process_leaves_nothing(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL
    assert done.stdout == f"{3 << 22} []\n"
    assert os.listdir(tmp_path) == []


def test_what_is_read_when_everyone_is_gone_has_its_memory(tmp_path, monkeypatch):
    begun, go_on, made = threading.Event(), threading.Event(), []

    def slow(real, *given):
        begun.set()
        go_on.wait()
        return real(*given)

    def recorded(real, *given):
        memory = real(*given)
        made.append(StorageWeakRef(memory.untyped_storage()))
        return memory

    intercept(monkeypatch, "preadv", slow)
    monkeypatch.setattr(transfers.copies, "host_memory", partial(recorded, transfers.copies.host_memory))
    disk = Offload(tmp_path, amount="all")
    step = disk.begin()
    handle = step.put(torch.arange(5000), "a tensor")
    settle(disk)
    step.advance()
    begun.wait()
    del handle, step, disk
    gc.collect()
    try:
        assert [memory.expired() for memory in made] == [False]
    finally:
        go_on.set()


def test_failed_steps_leave_no_memory(model, tmp_path):
    disk = Offload(tmp_path, amount="all")

    def fails():
        x = torch.ones(200, 200, requires_grad=True)
        with Compressor(model, EXACT, offload=disk):
            model(x.sin())
            raise ZeroDivisionError

    ends = []
    for _ in range(100):
        with pytest.raises(ZeroDivisionError):
            fails()
        settle(disk)
        ends.append(disk._transfers._file.extents.end)
    assert ends[-1] <= 2 * ends[0]
    assert not disk._transfers._out
    assert disk._transfers._out_bytes == 0


def test_the_file_goes_with_its_last_user(model, tmp_path):
    disk = Offload(tmp_path, amount="all")
    loss, _, _ = forward(model, offload=disk)
    del disk
    gc.collect()
    assert open_files(tmp_path) == 1
    loss.backward()
    del loss, _
    gc.collect()
    assert open_files(tmp_path) == 0


def test_places_are_used_again(model, tmp_path):
    disk = Offload(tmp_path, amount="all")
    gradients(model, offload=disk)
    settle(disk)
    end = disk._transfers._file.extents.end
    for _ in range(10):
        gradients(model, offload=disk)
        settle(disk)
    assert disk._transfers._file.extents.end <= 1.5 * end


def test_a_default_device_is_not_where_files_are_read_to(tmp_path):
    disk = Offload(tmp_path, amount="all")
    handle = disk.begin().put(torch.arange(5000), "a tensor")
    settle(disk)
    with torch.device("meta"):
        found = handle.get()
    assert torch.equal(found, torch.arange(5000))


# The end


def threads():
    """Those of offloading; of other tests, too, whose garbage is not collected yet."""
    return {
        thread
        for thread in threading.enumerate()
        if thread.name.startswith(("bitstash-store", "bitstash-load"))
    }


def test_closing_gives_everything_back(model, tmp_path):
    before = threads()
    disk = Offload(tmp_path, amount="all")
    expected, _ = gradients(model)
    for _ in range(2):
        assert same(gradients(model, offload=disk)[0], expected)
    assert open_files(tmp_path) == 1
    own = threads() - before
    assert 1 <= len(own) <= 2  # a pool starts one more only when none is idle
    disk.close()
    assert open_files(tmp_path) == 0
    assert not own & threads()
    disk.close()
    assert disk.stored_bytes + disk.forwarded_bytes > 0
    with pytest.raises(OffloadError, match="nothing more can be offloaded: the Offload is closed"):
        gradients(model, offload=disk)


def test_closing_closes_the_file_even_if_warnings_are_errors(tmp_path, monkeypatch):
    def full(real, *given):
        raise OSError(errno.ENOSPC, "no space")

    intercept(monkeypatch, "pwrite", full)
    disk = Offload(tmp_path, amount="all")
    handle = disk.begin().put(torch.arange(5000), "a tensor")
    disk._transfers._storing.submit(lambda: None).result()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning, match="could not be written"):
            disk.close()
    assert open_files(tmp_path) == 0
    assert torch.equal(handle.get(), torch.arange(5000))


def test_an_offload_is_a_context(model, tmp_path):
    with suppress(ZeroDivisionError), Offload(tmp_path, amount="all") as disk:
        gradients(model, offload=disk)
        raise ZeroDivisionError
    assert open_files(tmp_path) == 0
    with pytest.raises(OffloadError, match="the Offload is closed"):
        disk.begin()


def test_closing_within_a_forward_pass_is_an_error_there(tmp_path):
    disk = Offload(tmp_path, amount="all")
    x = torch.ones(5000, requires_grad=True)
    with Compressor(torch.nn.Identity(), EXACT, offload=disk):
        y = x.sin()
        disk.close()
        with pytest.raises(OffloadError, match="the Offload is closed"):
            y.sin()


def test_what_is_in_a_closed_file_is_an_error_that_names_it(model, tmp_path):
    disk = Offload(tmp_path, amount="all")
    loss, _, _ = forward(model, offload=disk)
    settle(disk)
    disk.close()
    with pytest.raises(OffloadError, match=r"cannot read .*, float32 back: its Offload is closed"):
        loss.backward()


def test_what_is_in_memory_outlives_closing(tmp_path, monkeypatch):
    writing, release = threading.Event(), threading.Event()

    def slow(real, *given):
        writing.set()
        release.wait(20)
        return real(*given)

    intercept(monkeypatch, "pwrite", slow)
    disk = Offload(tmp_path, amount="all")
    step = disk.begin()
    handles = [step.put(torch.full((5000,), float(number)), f"tensor {number}") for number in range(3)]
    assert writing.wait(20)
    threading.Timer(0.05, release.set).start()
    disk.close()
    assert disk.stored_bytes == 20_000
    with pytest.raises(OffloadError, match="cannot read tensor 0 back: its Offload is closed"):
        handles[0].get()
    for number in (1, 2):
        assert torch.equal(handles[number].get(), torch.full((5000,), float(number)))


def test_what_was_read_ahead_outlives_closing(tmp_path):
    disk = Offload(tmp_path, amount="all")
    step = disk.begin()
    handle = step.put(torch.arange(5000), "a tensor")
    settle(disk)
    step.advance()
    disk._transfers._loading.submit(lambda: None).result()
    disk.close()
    assert torch.equal(handle.get(), torch.arange(5000))


# Arguments


def test_wrong_arguments_are_named(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"directory must be one that exists, not '.*/nowhere'"):
        Offload(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(FileNotFoundError, match=r"directory must be one that exists, not '.*/file'"):
        Offload(tmp_path / "file")
    with pytest.raises(ValueError, match="directory must name a directory, or be None, not 5"):
        Offload(5)
    with pytest.raises(ValueError, match="amount must be 'all', 'adaptive' or a number of bytes, not 'some'"):
        Offload(tmp_path, amount="some")
    with pytest.raises(ValueError, match=r"amount must be .*, not True"):
        Offload(tmp_path, amount=True)
    with pytest.raises(ValueError, match=r"store_threads must be a number, from 1, not 1.5"):
        Offload(tmp_path, store_threads=1.5)
    with pytest.raises(ValueError, match="directory must name a directory if host_bytes is 0, not ''"):
        Offload("")
    with pytest.raises(ValueError, match=r"amount must be .*, not -1"):
        Offload(tmp_path, amount=-1)
    with pytest.raises(ValueError, match="host_bytes must be a number of bytes, from 0, not -5"):
        Offload(tmp_path, host_bytes=-5)
    with pytest.raises(ValueError, match="load_threads must be a number, from 1, not 0"):
        Offload(tmp_path, load_threads=0)
    with pytest.raises(ValueError, match="directory must name a directory if host_bytes is 0, not None"):
        Offload(None)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with pytest.raises(ValueError, match="directory must name a directory where there is no accelerator"):
        Offload(None, host_bytes=1 << 30)


# On a GPU


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("host_bytes", [0, 200_000, 1 << 30])
def test_gradients_on_a_gpu(tmp_path, host_bytes):
    model = Odd().cuda()

    def gradients(**options):
        x = torch.linspace(-2, 1, SIZE, device="cuda").view(200, 200).requires_grad_()
        with Compressor(model, EXACT, **options):
            loss = model(x)
        return torch.autograd.grad(loss, [x, model.weight])

    for directory in (tmp_path, None)[: 1 + (host_bytes > 0)]:
        with Offload(directory, amount="all", host_bytes=host_bytes) as disk:
            for _ in range(3):
                assert same(gradients(offload=disk), gradients())
