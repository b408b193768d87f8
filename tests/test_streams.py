"""What one stream of a GPU compresses, another may use when it is there; streams are fakes."""

import pytest
import torch

from golden import PlaneFormat
from torch_bridge import Compressor
from torch_bridge.backends import streams

FMT = PlaneFormat("fp32", block=64, target=80)
NOTHING = torch.nn.Module()


class Stream:
    """Counts what it was given to do; an event is the count when it was recorded."""

    def __init__(self, name):
        self.name, self.done, self.waited = name, 0, []

    def record_event(self):
        self.done += 1
        return self.name, self.done

    def wait_event(self, event):
        self.waited.append(event)


class Device:
    """The current stream, and which streams the allocator was told of for each storage."""

    def __init__(self):
        self.first, self.second = Stream("first"), Stream("second")
        self.current = self.first
        self.told = []


@pytest.fixture
def device(monkeypatch):
    device = Device()
    monkeypatch.setattr(streams, "current_stream", lambda _: device.current)

    def record_stream(tensor, stream):
        device.told.append((tensor.untyped_storage().data_ptr(), stream.name))

    monkeypatch.setattr(torch.Tensor, "record_stream", record_stream)
    return device


def compressed(device, view=lambda h: h):
    """Two nodes that saved the same, by the first stream, and what the allocator was told meanwhile."""
    x = torch.randn(64, 80, generator=torch.Generator().manual_seed(0)).requires_grad_()
    with Compressor(NOTHING, FMT):
        y = view(x * 2)
        nodes = y.sin().grad_fn, y.cos().grad_fn
    assert (y.untyped_storage().data_ptr(), "first") in device.told  # the caller may free it now
    device.told.clear()
    return nodes


VIEWS = {"all": lambda h: h, "half": lambda h: h[:, :40]}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_another_stream_waits_for_what_it_decompresses_and_for_what_was_decompressed(device, view):
    one, other = compressed(device, view)
    compressed_at = device.first.done

    device.current = device.second
    values = one._saved_self
    assert device.second.waited == [("first", compressed_at)]
    assert [name for _, name in device.told] == ["second"]  # of the stored bytes

    device.current = device.first
    again = other._saved_self
    assert torch.equal(values, again)
    assert device.first.waited == [("second", device.second.done)]
    assert device.told[1:] == [(values.untyped_storage().data_ptr(), "first")]


def test_one_stream_waits_for_nothing(device):
    one, other = compressed(device)
    values = one._saved_self, other._saved_self
    assert values[0].data_ptr() == values[1].data_ptr()
    assert device.first.waited == device.told == []


def test_what_lies_beside_it_is_written_after_the_memory_is_there(device):
    x = torch.randn(64, 80).requires_grad_()
    with Compressor(NOTHING, FMT):
        halves = (x * 2).chunk(2, 1)
        nodes = [half.sin().grad_fn for half in halves]
    left = nodes[0]._saved_self
    made_at = device.first.done
    device.current = device.second
    right = nodes[1]._saved_self
    assert left.untyped_storage().data_ptr() == right.untyped_storage().data_ptr()
    assert ("first", made_at) in device.second.waited
    assert (left.untyped_storage().data_ptr(), "second") in device.told


def test_two_values_and_checksums_are_waited_for_as_well(device):
    torch.manual_seed(0)
    x = torch.randn(64, 80).requires_grad_()
    with Compressor(NOTHING, FMT, verify=True):
        y = torch.nn.functional.dropout(x, 0.5)
    device.told.clear()
    device.current = device.second
    mask = y.grad_fn._saved_other
    assert mask.unique().tolist() == [0, 2]
    assert len({pointer for pointer, _ in device.told}) == 3  # bytes, checksums, levels


def test_a_cpu_has_no_streams():
    cpu = torch.device("cpu")
    assert streams.current_stream(cpu) is None
    assert streams.written(cpu) is None
    streams.take(None, torch.ones(1))
    streams.hold(torch.ones(1))
