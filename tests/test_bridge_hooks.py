"""No wrong gradient, nothing leaked: the hooks against a plain reference that knows no tricks."""

import gc
import threading
import warnings
import weakref

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from golden import HadamardFormat, PlaneFormat
from torch_bridge import Compressor, Offload, Policy, Rule, backends
from torch_bridge.backends import AutoBackend
from torch_bridge.offload import Handle
from torch_bridge.store.entries import Entry

from .plain_hooks import COARSE, FMT, NOTHING, leaf, ours, reference

HADAMARD = HadamardFormat("fp32", 128, 64)


def entries():
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [thing for thing in gc.get_objects() if type(thing) is Entry]


def test_in_place_after_saving_keeps_what_was_saved():
    def gradient(context, in_place):
        x = leaf(50, 50)
        with context:
            h = x * 2
            loss = h.sin().sum()
            h = h.mul_(3) if in_place else h * 3
            loss = loss + h.cos().sum()
            h = h.add_(1) if in_place else h + 1
            loss = loss + (h * h).sum()
        loss.backward()
        return x.grad

    assert torch.equal(gradient(ours(), in_place=True), gradient(ours(), in_place=False))


def test_writes_past_the_version_counter_are_seen():
    x = leaf(64, 64)
    with ours(fmt=PlaneFormat("fp32", 64, 256)):
        h = x * 2
        first = h.sin()
        h.data.mul_(2)
        second = h.sin()
    expected = (h.detach() / 2).cos() * 2 + h.detach().cos() * 2
    (first + second).sum().backward()
    assert torch.allclose(x.grad, expected)


@pytest.mark.parametrize("policy", [FMT, HADAMARD], ids=str)
def test_an_exact_tensor_written_to_after_saving_is_an_error(policy):
    weight = torch.nn.Parameter(torch.ones(64, 64))
    x = leaf(64, 64)
    with Compressor(torch.nn.ParameterList([weight]), policy):
        loss = (x @ weight).sum()
    with torch.no_grad():
        weight.mul_(2)
    with pytest.raises(RuntimeError, match=r"modified by an inplace .*version 1; expected version 0"):
        loss.backward()


@pytest.mark.parametrize("policy", [FMT, HADAMARD], ids=str)
@pytest.mark.parametrize("size", [0, 64])
def test_a_result_whose_data_is_replaced_at_once_comes_back_as_it_was(policy, size):
    """As pipelines do with what is sent on."""
    x = leaf(64, 64)
    with Compressor(NOTHING, policy):
        y = x.exp()
        loss = y.sum()
        y.data = torch.zeros(size, size)
    loss.backward()
    assert (x.grad / x.detach().exp() - 1).abs().max() < 0.1


@pytest.mark.parametrize("policy", [FMT, HADAMARD], ids=str)
def test_operators_that_take_functions(policy):
    x = leaf(40, 64)
    with Compressor(NOTHING, policy, min_values=1 << 20):
        y = torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (x * 1,))
    y.sum().backward()
    expected = x.detach().cos() if x.sum() > 0 else -x.detach().sin()
    assert torch.allclose(x.grad, expected)


def test_a_compressor_does_not_keep_the_model():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.BatchNorm1d(64))
    with Compressor(model, FMT) as saver:
        loss = model(torch.randn(64, 64)).sum()
    loss.backward()
    parts = [weakref.ref(part) for part in (*model.parameters(), *model.modules())]
    del model, loss
    gc.collect()
    assert saver.report().ratio > 1
    assert not any(part() is not None for part in parts)


def test_freed_and_reused_addresses_are_never_confused():
    def gradient(context):
        x = leaf(40, 64)
        with context:
            loss = 0
            for i in range(60):  # every temporary reuses its predecessor's memory
                loss = loss + ((x * i).sin() * (x + i).cos()).sum()
        loss.backward()
        return x.grad

    assert torch.equal(gradient(ours()), gradient(reference()))


def test_a_second_backward_gives_the_same_gradient():
    x = leaf(64, 64)
    with ours():
        loss = (x.sin() * x.exp()).sum()
    (first,) = torch.autograd.grad(loss, x, retain_graph=True)
    (second,) = torch.autograd.grad(loss, x, retain_graph=True)
    (third,) = torch.autograd.grad(loss, x)
    assert torch.equal(first, second)
    assert torch.equal(first, third)


@pytest.mark.parametrize("inside", [True, False], ids=["backward inside", "backward after"])
def test_double_backward_equals_the_reference(inside):
    def gradients(context):
        x = leaf(64, 64)
        with context:
            loss = (x.sin() * x * x).sum()
            if inside:
                (first,) = torch.autograd.grad(loss, x, create_graph=True)
                (first * first).sum().backward()
        if not inside:
            (first,) = torch.autograd.grad(loss, x, create_graph=True)
            (first * first).sum().backward()
        return first.detach(), x.grad

    for found, expected in zip(gradients(ours()), gradients(reference()), strict=True):
        assert torch.equal(found, expected)


def test_of_nested_contexts_the_innermost_wins():
    x = leaf(64, 64)
    with ours() as outer:
        y = x.square()
        with ours(fmt=COARSE) as inner:
            y = y.square()
        z = y.square()
    z.sum().backward()
    size = 64 * 64 * 4
    assert (outer.original_bytes, inner.original_bytes) == (2 * size, size)
    assert outer.stored_bytes == 2 * 64 * 80
    assert inner.stored_bytes == 256 * 9


def test_as_a_decorator_every_call_is_a_step_of_its_own():
    x = leaf(64, 64)

    @ours(fmt=COARSE)
    def forward(x):
        return (x * x).sum()

    for _ in range(2):
        (found,) = torch.autograd.grad(forward(x), x)
        assert not torch.equal(found, 2 * x)
    assert torch.equal(torch.autograd.grad((x * x).sum(), x)[0], 2 * x)


def test_nothing_leaks_when_backward_never_runs():
    model = torch.nn.Linear(64, 64)
    before = len(entries())
    kept = []
    with ours(model) as saver:
        x = leaf(64, 64)
        h = torch.log_softmax(model(x.sin()).exp(), 1)
        kept += [StorageWeakRef(t.untyped_storage()) for t in (x, h)]
        assert len(entries()) > before
    del x, h
    assert len(entries()) == before
    assert all(storage.expired() for storage in kept)
    assert saver.report().rows


def test_nothing_leaks_when_forward_or_backward_fails():
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            raise ArithmeticError("backward")

    before = len(entries())
    for _ in range(20):
        with pytest.raises(ZeroDivisionError), ours():
            leaf(64, 64).sin().exp() / (1 // 0)
        with pytest.raises(ArithmeticError), ours():
            Fails.apply(leaf(64, 64).sin().exp()).cos().sum().backward()
    assert len(entries()) == before


def test_entries_go_as_backward_passes_them():
    before = len(entries())
    with ours():
        loss = leaf(64, 64).sin().exp().cos().sum()
    assert len(entries()) == before + 2  # x, and the exponential that exp and cos both save
    loss.backward()
    assert len(entries()) == before


@pytest.mark.parametrize(("storages", "expected"), [(1, 1), (2, 2), (3, 9)])
def test_the_last_two_decompressed_storages_are_kept_for_other_nodes(storages, expected, monkeypatch):
    calls = []

    def decompress(self, stored, count):
        calls.append(count)
        return plain(self, stored, count)

    plain = AutoBackend.decompress
    monkeypatch.setattr(AutoBackend, "decompress", decompress)
    with ours():
        inputs = [leaf(64, 64, seed=seed) * 2 for seed in range(storages)]
        loss = sum(x.sin().sum() for _ in range(3) for x in inputs)  # needed in turn
    loss.backward(retain_graph=True)
    assert len(calls) == expected


class Waiting(Handle):
    """Still where it was, as nobody came to send it away."""

    def __init__(self, tensor, counts):
        self.tensor, self.nbytes, self.counts, self.version = tensor, tensor.nbytes, counts, counts._version

    def get(self):
        if self.counts._version != self.version:
            raise RuntimeError("modified")
        return self.tensor


class Idle(Offload):
    """An offload, and its steps, that sends nothing."""

    bytes = 0

    def __init__(self):
        pass

    def begin(self):
        return self

    def put(self, tensor, name, counts=None):
        return Waiting(tensor, counts)

    def keep(self, owner, nbytes):
        pass

    def advance(self):
        pass

    def end_forward(self):
        pass


def test_what_is_not_offloaded_yet_is_asked_for_each_time():
    h = leaf(64, 64).detach()
    with Compressor(NOTHING, Policy([]), min_values=0, offload=Idle()):
        part = h[10:20].requires_grad_()
        nodes = part.sin().grad_fn, part.cos().grad_fn
        seen = nodes[0]._saved_self
        assert torch.equal(seen, part)
        others = [leaf(64, 64, seed=seed).sin().grad_fn._saved_self for seed in range(3)]
    assert torch.equal(nodes[1]._saved_self, part)
    assert len(others) == 3
    with torch.no_grad():
        h.mul_(2)
    assert torch.equal(seen, part)  # it is the tensor itself
    with pytest.raises(RuntimeError, match="modified"):
        _ = nodes[1]._saved_self


def test_the_forward_pass_is_not_changed():
    attention = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)

    def forward(context):
        torch.manual_seed(0)
        with context:
            loss = attention(leaf(2, 32, 64)).square().mean()
        names, nodes = [], [loss.grad_fn]
        while nodes:
            node = nodes.pop()
            # The same operation; while any dispatch mode is active, reshape calls it by its other name.
            names.append(node.name().replace("ReshapeAlias", "View"))
            nodes += [parent for parent, _ in node.next_functions if parent is not None]
        return loss.item(), names

    identity = torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), lambda t: t)
    assert forward(ours(attention)) == forward(identity)


def test_threads_have_their_own_contexts():
    def gradient(seed, into):
        x = leaf(64, 64, seed=seed)
        with ours():
            loss = (x.sin() * x.exp()).sum()
        loss.backward()
        into[seed] = x.grad

    alone, together = {}, {}
    for seed in range(6):
        gradient(seed, alone)
    threads = [threading.Thread(target=gradient, args=(seed, together)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(alone[seed], together[seed]) for seed in range(6))


def test_one_graph_may_be_walked_by_several_threads():
    x = leaf(64, 64)
    with ours():
        h = x.sin().exp()
        losses = [(h * i).cos().sum() for i in range(6)]
    expected = [torch.autograd.grad(loss, x, retain_graph=True)[0] for loss in losses]
    found = [None] * 6

    def walk(i):
        (found[i],) = torch.autograd.grad(losses[i], x, retain_graph=True)

    threads = [threading.Thread(target=walk, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_batch_norm_running_statistics_do_not_look_modified():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8))
    x = torch.randn(4, 3, 16, 16)
    with ours(model):
        loss = model(x).sum() + model(x).sum()
    loss.backward()
    assert model[0].weight.grad is not None


def test_the_backend_of_every_rule_is_made_at_once(monkeypatch, tmp_path):
    monkeypatch.setenv("BITSTASH_LIBRARIES", str(tmp_path))
    policy = Policy([Rule(COARSE, op="sin"), Rule("exact")])
    with pytest.raises(FileNotFoundError, match="--block 16 --target 9"):
        Compressor(NOTHING, policy, backend="verilated")
    # Of one for large tensors a library need not be built.
    assert Compressor(NOTHING, Policy([Rule(COARSE, least=1 << 20), Rule("exact")]), backend="verilated")
    made = []
    monkeypatch.setattr(backends, "get", lambda name, fmt: made.append(fmt))
    Compressor(NOTHING, Policy([Rule(COARSE), Rule("bits"), Rule(FMT)]))
    assert made == [COARSE, FMT]


def test_a_bad_argument_is_an_error_at_once(tmp_path):
    for policy in (FMT, Policy([]), Policy([Rule(FMT, dtype="float32")]), Policy([Rule(FMT, least=9)])):
        with pytest.raises(ValueError, match=r"backend must be one of .*, not 'gpu'"):
            Compressor(NOTHING, policy, "gpu")
    with pytest.raises(ValueError, match="must have a target"):
        Compressor(NOTHING, PlaneFormat("fp32", 64, None))
    with pytest.raises(ValueError, match="min_values must not be negative, not -1"):
        Compressor(NOTHING, FMT, min_values=-1)
    with pytest.raises(ValueError, match=r"min_values must be a number of values, not 1.5"):
        Compressor(NOTHING, FMT, min_values=1.5)
    with pytest.raises(ValueError, match="policy must be a format or a Policy, not 'planes'"):
        Compressor(NOTHING, "planes")
    with pytest.raises(ValueError, match=r"model must be a torch\.nn\.Module, not None"):
        Compressor(None, FMT)
    with pytest.raises(ValueError, match="offload must be an Offload or None, not '/tmp'"):
        Compressor(NOTHING, FMT, offload="/tmp")
    with (
        Offload(tmp_path) as offload,
        pytest.raises(ValueError, match="offload must be None with backend 'regions'"),
    ):
        Compressor(NOTHING, FMT, backend="regions", offload=offload)


def test_the_report_adds_up_and_prints():
    model = torch.nn.Linear(64, 64)
    with Compressor(model, FMT) as saver:
        model(leaf(64, 64)).sin().log_softmax(1)
    report = saver.report()
    assert report.original_bytes == saver.original_bytes == 3 * 64 * 64 * 4
    assert report.stored_bytes == saver.stored_bytes == 2 * 64 * 80 + 64 * 64 * 4
    assert report.ratio == report.original_bytes / report.stored_bytes
    text = str(report)
    for word in ("log-softmax", "compressed", "64 x 64", "float32", "total"):
        assert word in text
