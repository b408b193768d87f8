"""The adaptive amount, on a disk and a model that only pass the time of a clock that nothing else moves."""

from concurrent.futures import CancelledError
from contextlib import suppress

import pytest
import torch

from torch_bridge import Compressor, Offload, Policy
from torch_bridge.offload import step, transfers
from torch_bridge.offload.pace import TOLERATED, Measured, Pace

LAYERS, VALUES = 40, 10_000
FORWARD, BACKWARD = 0.003, 0.006  # seconds a layer computes
KEEPING = LAYERS * (FORWARD + BACKWARD)


class Machine:
    """A clock, and threads that take so many seconds for each tensor by it."""

    def __init__(self):
        self.now = 0.0
        self.seconds = {"bitstash-store": 1e-4, "bitstash-load": 1e-4}

    def thread(self, count, name):
        return Thread(self, name)

    def step(self, disk, *, layers=LAYERS):
        """Train one step; its seconds, and the share of its saved bytes that was sent."""
        began = self.now
        x = torch.ones(VALUES, requires_grad=True)
        with Compressor(torch.nn.Identity(), Policy([]), offload=disk) as saver:
            y = x
            for _ in range(layers):
                y = Layer.apply(y, self)
            loss = y.sum()
        del y
        loss.backward()
        return self.now - began, saver.offloaded_bytes / saver.original_bytes


class Thread:
    """Does each task as soon as it is given, and says so when it would have been done."""

    def __init__(self, machine, name):
        self._machine, self._name, self._free = machine, name, 0.0

    def submit(self, function, *arguments):
        self._free = max(self._free, self._machine.now) + self._machine.seconds[self._name]
        return Task(self._machine, self._free, function(*arguments))


class Task:
    def __init__(self, machine, when, result):
        self._machine, self._when, self._result, self._cancelled = machine, when, result, False

    def done(self):
        return self._cancelled or self._machine.now >= self._when

    def cancel(self):
        self._cancelled = not self.done()

    def cancelled(self):
        return self._cancelled

    def exception(self):
        return None

    def result(self):
        if self._cancelled:
            raise CancelledError
        self._machine.now = max(self._machine.now, self._when)
        return self._result


class Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, machine):
        ctx.save_for_backward(x)
        ctx.machine = machine
        y = x + 1  # what the layer before saved is sent away now
        machine.now += FORWARD
        return y

    @staticmethod
    def backward(ctx, grad):
        assert len(ctx.saved_tensors) == 1
        ctx.machine.now += BACKWARD
        return grad, None


@pytest.fixture
def machine(monkeypatch):
    machine = Machine()
    monkeypatch.setattr(transfers, "ThreadPoolExecutor", machine.thread)
    for module in (step, transfers):
        monkeypatch.setattr(module, "perf_counter", lambda: machine.now)
    return machine


@pytest.mark.parametrize("in_flight", [8 << 20, 160_000])
def test_a_slow_disk_costs_a_tenth_at_most(machine, tmp_path, monkeypatch, in_flight):
    monkeypatch.setattr(transfers, "IN_FLIGHT", in_flight)
    machine.seconds["bitstash-load"] = 0.02
    disk = Offload(tmp_path)
    assert disk.plan == "everything, until measured"
    first, sent = machine.step(disk)
    assert first > 2 * KEEPING
    assert sent == 1
    seconds, shares = zip(*(machine.step(disk) for _ in range(50)), strict=True)
    assert max(seconds) < 1.1 * KEEPING
    assert sum(seconds) < (1 + TOLERATED) * len(seconds) * KEEPING
    assert min(shares) > 0.8 * BACKWARD / 0.02
    assert " of 1.6 MB a step; the last sent 0." in disk.plan


@pytest.mark.parametrize("seconds", [1e-4, 0.005])
def test_to_a_fast_disk_everything_goes(machine, tmp_path, seconds):
    machine.seconds = {"bitstash-store": FORWARD, "bitstash-load": seconds}
    disk = Offload(tmp_path)
    for _ in range(10):
        took, sent = machine.step(disk)
        assert took < (1 + TOLERATED) * KEEPING
        assert sent == 1
    assert disk.forwarded_bytes < 0.1 * disk.stored_bytes


def test_the_forward_pass_does_not_wait_for_a_disk_that_writes_slowly(machine, tmp_path, monkeypatch):
    monkeypatch.setattr(transfers, "IN_FLIGHT", 160_000)
    machine.seconds["bitstash-store"] = 0.02
    disk = Offload(tmp_path)
    for _ in range(10):
        took, sent = machine.step(disk)
        assert took < (1 + TOLERATED) * KEEPING
        assert 0.1 < sent < 0.5
    assert disk.forwarded_bytes < disk.stored_bytes


def test_more_goes_when_the_disk_gets_faster_and_less_when_it_gets_slower(machine, tmp_path):
    disk = Offload(tmp_path)
    for seconds, low, high in ((0.02, 0.2, 0.4), (0.003, 0.9, 1.0), (0.012, 0.4, 0.6)):
        machine.seconds["bitstash-load"] = seconds
        found = [machine.step(disk)[1] for _ in range(60)]
        assert low <= found[-1] <= high


def test_nothing_is_not_for_good(machine, tmp_path):
    disk = Offload(tmp_path)
    machine.seconds["bitstash-load"] = 0.3
    sent = [machine.step(disk, layers=8)[1] for _ in range(100)][1:]
    assert sent.count(0) > 95
    machine.seconds["bitstash-load"] = 1e-4
    assert max(machine.step(disk, layers=8)[1] for _ in range(200)) > 0.9


def test_a_tensor_that_cannot_be_read_in_time_is_hardly_ever_tried(machine, tmp_path):
    layers, steps = 2, 1000
    keeping = layers * (FORWARD + BACKWARD)
    machine.seconds["bitstash-load"] = 20 * keeping
    disk = Offload(tmp_path)
    machine.step(disk, layers=layers)
    assert sum(machine.step(disk, layers=layers)[0] for _ in range(steps)) < 1.1 * steps * keeping


def test_steps_of_various_lengths_do_not_wait_either(machine, tmp_path):
    machine.seconds["bitstash-load"] = 0.012
    disk = Offload(tmp_path)
    machine.step(disk)
    began = machine.now
    shares = [machine.step(disk, layers=layers)[1] for layers in (10, 40, 25) * 20]
    assert machine.now - began < 1.1 * 20 * (10 + 40 + 25) * (FORWARD + BACKWARD)
    assert sum(shares) / len(shares) > 0.2


def test_steps_that_tell_nothing_change_nothing(machine, tmp_path):
    machine.seconds["bitstash-load"] = 0.012
    disk = Offload(tmp_path)

    def fails():
        with Compressor(torch.nn.Identity(), Policy([]), offload=disk):
            torch.ones(VALUES, requires_grad=True).sin()
            raise ZeroDivisionError

    def saves_nothing():
        with Compressor(torch.nn.Identity(), Policy([]), offload=disk), torch.no_grad():
            torch.ones(VALUES, requires_grad=True).sin()

    def never_goes_back():
        with Compressor(torch.nn.Identity(), Policy([]), offload=disk):
            return torch.ones(VALUES, requires_grad=True).sin()

    plans = []
    for other in (lambda: None, fails, saves_nothing, never_goes_back):
        for _ in range(2):
            with suppress(ZeroDivisionError):
                other()
            plans.append(disk.plan)
        assert machine.step(disk)[1] > 0.4
    assert plans[::2] == plans[1::2]
    assert plans[0] == "everything, until measured"
    assert len(set(plans)) == 4


def test_a_backward_pass_that_comes_after_another_forward_pass_is_measured(machine, tmp_path):
    machine.seconds["bitstash-load"] = 0.02
    disk, losses = Offload(tmp_path), []
    for _ in range(2):
        x = torch.ones(VALUES, requires_grad=True)
        with Compressor(torch.nn.Identity(), Policy([]), offload=disk):
            for _ in range(LAYERS):
                x = Layer.apply(x, machine)
            losses.append(x.sum())
        del x
    losses[0].backward()
    losses[1].backward()
    assert disk.plan == "everything, until measured"
    assert machine.step(disk)[1] < 0.5


def test_a_backward_pass_that_took_no_time_asks_for_no_more_than_there_was():
    pace = Pace()
    pace.learn(Measured(sent=1000, kept=0, was_limited=False, forward=1.0, backward=1.0, waited=1.0))
    for _ in range(100):
        before = pace.limit
        pace.learn(Measured(sent=500, kept=500, was_limited=True, forward=1.0, backward=0.0, waited=0.0))
        assert before <= pace.limit <= before + 1000


def test_a_step_whose_backward_pass_has_only_begun_tells_nothing_yet(tmp_path):
    x = torch.ones(VALUES, requires_grad=True)
    with Offload(tmp_path) as disk:
        with Compressor(torch.nn.Identity(), Policy([]), offload=disk):
            first, second = x.exp(), x.sin()
        second.sum().backward()
        disk.begin()
        assert disk.plan == "everything, until measured"
        first.sum().backward()
        disk.begin()
        assert disk.plan != "everything, until measured"


def test_the_amount_is_what_the_backward_pass_would_have_hidden():
    pace = Pace()
    pace.learn(Measured(100_000, 0, False, forward=1.0, backward=2.0, waited=0.1))
    assert pace.limit is None
    pace.learn(Measured(100_000, 0, False, forward=1.0, backward=2.0, waited=6.0))
    assert pace.limit == 25_000
    pace.learn(Measured(24_000, 76_000, True, forward=1.0, backward=2.0, waited=0.0))
    assert pace.limit == 25_000 + int(TOLERATED * 3.0 * 24_000 / 2.0)
    pace.learn(Measured(26_000, 74_000, True, forward=1.0, backward=2.0, waited=0.3))
    limit = pace.limit
    assert limit == int(26_000 * 2.0 / 2.3)
    quiet = Measured(20_000, 80_000, True, forward=1.0, backward=2.0, waited=0.0)
    pace.learn(quiet)
    assert pace.limit == limit
    pace.learn(quiet)  # 0.3 s are the tolerated part of 6 s
    assert pace.limit > limit


# Several micro-batches in flight


def forward(machine, disk, layers):
    x = torch.ones(VALUES, requires_grad=True)
    with Compressor(torch.nn.Identity(), Policy([]), offload=disk):
        for _ in range(layers):
            x = Layer.apply(x, machine)
        return x.sum()


def in_pipeline(machine, disk, backward_of, *, passes=8, depth=3, layers=10):
    """Train micro-batches, so many in flight; the seconds that the backward passes waited."""
    began, flying = machine.now, []
    for number in range(passes + depth - 1):
        if number < passes:
            flying.append(forward(machine, disk, layers))
        if number >= depth - 1 and flying:
            flying.pop(backward_of).backward()
    return machine.now - began - passes * layers * (FORWARD + BACKWARD)


@pytest.mark.parametrize("backward_of", [0, -1], ids=["the oldest", "the newest"])
def test_no_backward_pass_of_a_pipeline_waits_for_its_first_tensors(
    machine, tmp_path, monkeypatch, backward_of
):
    monkeypatch.setattr(transfers, "IN_FLIGHT", 160_000)
    machine.seconds["bitstash-load"] = 0.0045
    disk = Offload(tmp_path, amount="all")
    waited = [in_pipeline(machine, disk, backward_of) for _ in range(4)]
    assert waited[0] > 0  # that is when it is found out
    assert max(waited[1:]) < 0.0045
    assert disk.loaded_bytes > 0.8 * disk.stored_bytes


def test_all_of_gpipes_backward_passes_are_read_ahead(machine, tmp_path, monkeypatch):
    monkeypatch.setattr(transfers, "IN_FLIGHT", 160_000)
    machine.seconds["bitstash-load"] = 0.0045
    disk = Offload(tmp_path, amount="all")
    waited = [in_pipeline(machine, disk, 0, passes=6, depth=6) for _ in range(3)]
    assert max(waited[1:]) < 0.0045


def test_a_disk_that_gets_slow_in_mid_run_hardly_stops_a_pipeline(machine, tmp_path, monkeypatch):
    monkeypatch.setattr(transfers, "IN_FLIGHT", 160_000)
    disk = Offload(tmp_path)
    for seconds in (1e-3, 0.03, 1e-3):
        machine.seconds = {"bitstash-store": seconds, "bitstash-load": seconds}
        for _ in range(20):
            in_pipeline(machine, disk, 0)
        waited = sum(in_pipeline(machine, disk, 0) for _ in range(20))
        assert waited < 2 * TOLERATED * 20 * 8 * 10 * (FORWARD + BACKWARD)


def test_what_never_goes_back_is_not_expected_for_ever(machine, tmp_path):
    disk = Offload(tmp_path, amount="all")
    kept = [forward(machine, disk, 4) for _ in range(3)]
    forward(machine, disk, 4).backward()
    assert len(disk._order._steps()) == 3
    del kept
    assert disk._order._steps() == []
