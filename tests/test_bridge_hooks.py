"""No wrong gradient, nothing leaked: the hooks against a plain reference that knows no tricks."""

import gc
import threading
import warnings
import weakref
from contextlib import nullcontext
from typing import ClassVar

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from golden import HadamardFormat, PlaneFormat
from torch_bridge import Compressor, Offload, Policy, Rule, backends
from torch_bridge.backends import AutoBackend
from torch_bridge.offload import Handle
from torch_bridge.store.entries import Entry

from .plain_hooks import COARSE, FMT, NOTHING, reference, stored, untouched

FINE = PlaneFormat("fp32", 64, 160)
HADAMARD = HadamardFormat("fp32", 128, 64)


def ours(model=NOTHING, fmt=FMT, **kwargs):
    return Compressor(model, stored(fmt), min_values=kwargs.pop("min_values", 0), **kwargs)


def entries():
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [thing for thing in gc.get_objects() if type(thing) is Entry]


def leaf(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), requires_grad=True)


VIEWS = {
    "contiguous": lambda h: h,
    "transposed": lambda h: h.t(),
    "permuted": lambda h: h.view(8, 5, 8, 10).permute(3, 1, 0, 2),
    "expanded": lambda h: h[:1].expand(50, 80),
    "expanded in the middle": lambda h: h[:, None].expand(40, 30, 80),
    "overlapping": lambda h: h.view(-1).unfold(0, 100, 7),
    "overlapping and small": lambda h: h.view(-1).unfold(0, 10, 3)[100:150],
    "views of views": lambda h: h.t()[3:70].t().view(40, 67)[::2].unsqueeze(1),
    "small and dense": lambda h: h[7:9],
    "small and sparse": lambda h: h[:, 5:17],
    "small, sparse and transposed": lambda h: h[3::4, ::9].t(),
    "one column": lambda h: h[:, 3],
    "scalar": lambda h: h[3, 4],
    "empty": lambda h: h[:, :0],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_gradients_of_views_equal_the_reference(view):
    def gradient(context, with_all):
        x = leaf(40, 80)
        with context:
            h = x * 3 + 1
            loss = (h.exp() * h).mean() if with_all else 0
            y = view(h)
            loss = loss + (y * y.sin()).sum()
        loss.backward()
        return x.grad

    for with_all in (False, True):
        expected = gradient(reference(), with_all)
        assert torch.equal(gradient(ours(), with_all), expected)
    assert not torch.equal(gradient(ours(fmt=COARSE), with_all=True), expected)


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_unpacking_restores_size_stride_and_dtype(view):
    seen = []

    class Save(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            seen.append(ctx.saved_tensors[0])
            return grad

    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        h = (leaf(40, 80) * 3).to(dtype)
        y = view(h)
        with ours(fmt=PlaneFormat("fp32", 64, 256)):  # nothing is lost
            loss = Save.apply(y).sum()
        loss.backward()
        found = seen.pop()
        assert (found.shape, found.stride(), found.dtype) == (y.shape, y.stride(), dtype)
        assert torch.equal(found, y)


def test_a_broadcast_tensor_is_not_blown_up():
    x = leaf(1, 64)
    with ours() as saver:
        y = (x * 1).expand(10_000, 64)
        y * y
    assert saver.original_bytes == 256
    assert saver.stored_bytes == 80


def test_a_storage_is_compressed_once_for_all_views():
    x = leaf(64, 64)
    with ours() as saver:
        h = x * 2  # saves neither factor's memory but x's
        outputs = [h.sin(), h.t().exp() * h.t(), h.view(-1)[:3000].cos(), h[5:7].sin()]
    row = next(row for row in saver.report().rows if row.op == "mul")
    assert (row.tensors, row.original_bytes) == (1, 64 * 64 * 4)
    assert len(outputs) == 4


LEFT_OUT = {
    "the right half": lambda h: h[:, :40],
    "the left half": lambda h: h[:, 40:],
    "all but a column": lambda h: h[:, :1],
    "a column": lambda h: h[:, :79],
    "a row": lambda h: h[1:],
    "every other row": lambda h: h[::2],
    "the upper half": lambda h: h[32:],
}


@pytest.mark.parametrize("cut", LEFT_OUT.values(), ids=LEFT_OUT)
def test_what_a_view_leaves_out_is_in_no_block_of_it(cut):
    def gradient(as_copy):
        x = leaf(64, 80)
        large = torch.full((64, 80), 1e6)
        cut(large).fill_(1)
        with ours() as saver:
            h = x * large
            y = cut(h).clone() if as_copy else cut(h)
            before = saver.stored_bytes
            loss = y.sin().sum()
            stored = saver.stored_bytes - before
        loss.backward()
        return x.grad, stored

    found, stored = gradient(as_copy=False)
    expected, blocks = gradient(as_copy=True)
    assert torch.equal(found, expected)
    assert stored == blocks


def saved_of(saver, *tensors):
    """Original and stored bytes that a Compressor counts for saving these, in order, while all are needed."""
    found, needed = [], []
    for tensor in tensors:
        before = saver.original_bytes, saver.stored_bytes
        needed.append(tensor.sin())
        found.append((saver.original_bytes - before[0], saver.stored_bytes - before[1]))
    return found


def test_two_halves_cost_what_the_whole_does():
    with ours() as saver:
        h = leaf(64, 256) * 2
        left, right = h.chunk(2, 1)
        halves, others = [(64 * 128 * 4, 128 * 80)] * 2, [(0, 0)] * 3
        assert saved_of(saver, left, right, h, left.t(), h[3:50, 7:250]) == halves + others


def test_parts_of_a_fused_projection_are_compressed_once_in_whatever_shape():
    with ours() as saver:
        fused = leaf(4, 16, 3 * 64) * 2
        q, k, v = fused.split(64, 2)
        heads = [part.view(4, 16, 4, 16).transpose(1, 2) for part in (q, k, v)]
        again = [q, k.transpose(0, 1), v[None].expand(3, 4, 16, 64), heads[0].mT, heads[1][:, :2], q[:, ::2]]
        assert saved_of(saver, *heads, *again) == [(4 * 16 * 64 * 4, 64 * 80)] * 3 + [(0, 0)] * 6


def test_of_views_that_overlap_only_the_rest_is_compressed():
    with ours() as saver:
        h = leaf(65, 64) * 2
        assert saved_of(saver, h[1:], h[:-1], h) == [(64 * 64 * 4, 64 * 80), (64 * 4, 80), (0, 0)]
    with ours(min_values=100) as saver:
        h = leaf(64, 65) * 2
        # A column is under the floor, and is copied.
        assert saved_of(saver, h[:, 1:], h[:, :-1], h) == [(64 * 64 * 4, 64 * 80), (64 * 4, 64 * 4), (0, 0)]


@pytest.mark.parametrize("min_values", [0, 1024])
@pytest.mark.parametrize("shape", [(0, 64), (64, 0), (0,), (2, 0, 64)], ids=str)
def test_a_tensor_without_values_stays_as_it_is(shape, min_values):
    """As the tokens of an expert that gets none, and the softmax of nothing."""
    x = leaf(*shape)
    with Compressor(NOTHING, min_values=min_values) as saver:
        h = x * 2
        loss = (torch.nn.functional.silu(h) * h.softmax(-1)).sum()
    loss.backward()
    assert x.grad is not None
    assert x.grad.shape == shape
    assert saver.report().stored_bytes == 0


@pytest.mark.parametrize("min_values", [0, 1024])
def test_a_view_without_values_does_not_keep_its_storage(min_values):
    x = leaf(64, 64)
    with Compressor(NOTHING, min_values=min_values):
        h = x * 2
        storage = StorageWeakRef(h.untyped_storage())
        loss = (h[:0] * h[:0]).sum()
        del h
        assert storage.expired()
    loss.backward()
    assert torch.equal(x.grad, torch.zeros(64, 64))


def test_what_views_that_overlap_have_in_common_is_counted_once_if_it_stays_exact():
    with Compressor(NOTHING, Policy([]), min_values=0) as saver:
        h = leaf(65, 65) * 2
        found = saved_of(saver, h[1:], h[:-1], h[:, :3], h, h)
    original = [4 * count for count in (64 * 65, 65, 0, 0, 0)]
    held = [4 * 65 * 65, 0, 0, 0, 0]  # the first holds all of the storage
    assert found == list(zip(original, held, strict=True))
    assert saver.report().original_bytes == saver.report().stored_bytes == 4 * 65 * 65


def test_a_slice_that_stays_as_it_is_counts_all_that_it_keeps_alive():
    with Compressor(NOTHING, Policy([]), min_values=0) as saver:
        h = leaf(1000, 64) * 2
        loss = h[:100].sin().sum()
    storage = StorageWeakRef(h.untyped_storage())
    del h
    assert not storage.expired()
    (row,) = [row for row in saver.report().rows if row.saved_by == "sin"]
    assert (row.original_bytes, row.stored_bytes) == (4 * 100 * 64, 4 * 1000 * 64)
    loss.backward()


@pytest.mark.parametrize(("rows", "is_shared"), [(79, False), (80, True)])
def test_a_part_is_shared_from_an_eighth_on(rows, is_shared):
    with ours() as saver:
        h = leaf(640, 64) * 2
        new = 640 - rows * is_shared
        assert saved_of(saver, h[:rows], h)[1] == (new * 64 * 4, new * 80)


def test_a_part_in_another_format_is_not_shared():
    with Compressor(
        NOTHING, Policy([Rule(COARSE, most=3000, unchecked=True), Rule(FMT)]), min_values=0
    ) as saver:
        h = leaf(64, 64) * 2
        found = saved_of(saver, h[:32], h, h[:40])
    assert found == [(32 * 64 * 4, 32 * 4 * 9), (64 * 64 * 4, 64 * 80), (0, 0)]


@pytest.mark.parametrize("keep", [FMT, "exact"], ids=["compressed", "exact"])
def test_a_view_is_kept_as_what_it_is_part_of(keep):
    with Compressor(NOTHING, Policy([Rule(keep, least=2048), Rule(COARSE)]), min_values=0) as saver:
        h = leaf(64, 64) * 2
        saved = saved_of(saver, h, h[:16], h[:, :8])
    assert saved == [(64 * 64 * 4, 64 * 80 if keep is FMT else 64 * 64 * 4), (0, 0), (0, 0)]


class SaveBoth(torch.autograd.Function):
    """Saves two tensors; what comes back of them is in ``seen``."""

    seen: ClassVar[list] = []

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a.sum() + b.sum()

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        SaveBoth.seen[:] = a, b
        return torch.ones_like(a), torch.ones_like(b)


def unpacked(a, b, **options):
    """What the backward pass sees of two tensors that are saved in this order."""
    with ours(**options):
        loss = SaveBoth.apply(a, b)
    loss.backward(retain_graph=True)
    return SaveBoth.seen


JOINED = {
    "rows": lambda h: (h[1:], h[:-1]),
    "columns": lambda h: (h[:, 1:], h[:, :-1]),
    "corners": lambda h: (h[:40, :50], h[20:, 20:]),
    "a half, then all": lambda h: (h[:, :40], h),
    "a row in the middle, then all": lambda h: (h[20:30], h),
    "windows": lambda h: (h.view(-1)[:3000].unfold(0, 100, 50), h.view(-1)[1000:].unfold(0, 100, 50)),
}


@pytest.mark.parametrize("views", JOINED.values(), ids=JOINED)
def test_views_that_overlap_come_back_as_they_were(views):
    for order in (1, -1):
        a, b = views(leaf(64, 80) * 2)[::order]
        found = unpacked(a, b, fmt=PlaneFormat("fp32", 64, 256))
        assert torch.equal(found[0], a)
        assert torch.equal(found[1], b)
        assert [t.stride() for t in found] == [a.stride(), b.stride()]
        lossy = unpacked(a, b)
        assert all(0 < (x - y).norm() < 0.05 * y.norm() for x, y in zip(lossy, (a, b), strict=True))


def test_views_that_overlap_in_a_row_make_no_chain():
    h = leaf(2000) * 2
    with ours(fmt=PlaneFormat("fp32", 64, 256)):
        nodes = [h[i : i + 1000].sin().grad_fn for i in range(300)]
    assert torch.equal(nodes[-1]._saved_self, h[299:1299])


def test_parts_beside_each_other_come_back_in_one_storage_of_the_size_of_theirs():
    left, right = (leaf(64, 80) * 2).chunk(2, 1)
    a, b = unpacked(left, right)
    assert a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
    assert a.untyped_storage().nbytes() == left.untyped_storage().nbytes()


class WritesOverWhatItSaved(torch.autograd.Function):
    """And keeps it, so that its memory stays."""

    kept: ClassVar[list[torch.Tensor]] = []

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        WritesOverWhatItSaved.kept.append(x)
        return x.cos_() * grad


@pytest.mark.parametrize("others", [0, 4])
def test_what_a_node_wrote_over_is_decompressed_again(others):
    """Whether its memory is among the last that are kept, or was given up for others."""

    def gradient(context, sin):
        x = leaf(64, 64)
        with context:
            h = x * 1
            y = h.cos()
            for _ in range(others):
                y = (y * 1).cos()
            y = y.sum() + sin(h).sum()
        y.backward(retain_graph=True)  # so that the others stay
        WritesOverWhatItSaved.kept.clear()
        return x.grad

    expected = gradient(nullcontext(), torch.sin)
    found = gradient(ours(fmt=FINE), WritesOverWhatItSaved.apply)
    assert (found - expected).norm() < 0.001 * expected.norm()


def test_a_part_that_was_kept_exactly_is_not_overwritten():
    h = leaf(64, 80) * 2
    small, large = h[:, 5:8], h[:, :70]
    exact, coarse = unpacked(small, large, fmt=COARSE, min_values=200)
    assert torch.equal(exact, small)
    assert not torch.equal(coarse, large)


def test_views_come_back_as_views_of_one_storage():
    h = leaf(64, 64) * 2
    a, b = unpacked(h, h.t())
    assert a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def test_a_small_view_does_not_keep_a_large_storage():
    with ours(min_values=1024):
        h = leaf(1000, 64) * 2
        loss = h[3].sin().sum()
    storage = StorageWeakRef(h.untyped_storage())
    del h
    assert storage.expired()
    loss.backward()


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


def test_parameters_and_their_views_are_exact():
    model = torch.nn.Linear(64, 64)

    def gradient(context):
        x = leaf(64, 64)
        with context as saver:
            weight = model.weight
            # Each product also saves x, but only the weight reaches x's gradient.
            y = x @ weight + x @ weight.t() + x * weight.view(-1)[:64] + x * weight[3].expand(64, 64)
        y.sum().backward()
        return x.grad, saver

    expected, _ = gradient(torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), lambda t: t))
    found, saver = gradient(ours(model, COARSE))
    rows = [row for row in saver.report().rows if row.kept == "parameter"]
    assert rows
    assert not any(row.counted for row in rows)
    assert torch.equal(found, expected)


def test_a_parameter_is_held_itself_and_counted_once():
    model, x = torch.nn.Linear(64, 64), leaf(64, 64)
    with ours(model, FMT) as saver:
        product = x * model.weight
        loss = (product + x @ model.weight).sum()
    rows = [row for row in saver.report().rows if row.kept == "parameter"]
    assert [(row.tensors, row.original_bytes, row.counted) for row in rows] == [(1, 64 * 64 * 4, False)]
    assert product.grad_fn._saved_other.data_ptr() == model.weight.data_ptr()
    model.weight.data = 3 * model.weight.data  # as ZeRO-3 frees and gathers it
    assert torch.equal(product.grad_fn._saved_other, model.weight)
    with torch.no_grad():
        model.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified"):
        loss.backward()


@pytest.mark.parametrize("before", [False, True], ids=["made inside", "made before"])
def test_what_is_made_of_an_expanded_parameter_is_no_copy_of_it(before):
    model = torch.nn.ParameterList([torch.randn(8, 64)])

    def repeated():
        return model[0].expand(16, 8, 64).contiguous()

    made = repeated() if before else None
    with ours(model, FMT) as saver:
        loss = (repeated() if made is None else made).square().sum()
    loss.backward()
    assert [(row.kept, row.original_bytes) for row in saver.report().rows if row.counted] == [
        ("compressed", 16 * 8 * 64 * 4)
    ]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_copies_of_parameters_are_exact(dtype):
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))

    def gradient(context):
        x = leaf(64, 64)
        with torch.autocast("cpu", dtype):
            model(x)  # fills autocast's cache with copies made before the context is entered
            with context as saver:
                loss = model(x).float().sum()
        loss.backward()
        return x.grad, saver

    expected, _ = gradient(torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), lambda t: t))
    found, saver = gradient(ours(model, COARSE))
    assert torch.equal(found, expected)
    kept = {row.kept for row in saver.report().rows if row.shape == (64, 64) and not row.counted}
    assert kept == {"parameter copy"}


def test_buffers_are_exact():
    model = torch.nn.Module()
    model.register_buffer("scale", torch.randn(64, 64))
    x = leaf(64, 64)
    with ours(model, COARSE) as saver:
        y = x * model.scale
    y.sum().backward()
    assert torch.equal(x.grad, model.scale)
    assert saver.original_bytes == 0


def test_log_softmax_is_told_by_its_operation():
    x = leaf(64, 64)
    targets = torch.arange(64)
    with Compressor(NOTHING, COARSE, min_values=0) as saver:
        loss = torch.nn.functional.cross_entropy(x, targets)
    loss.backward()
    y = leaf(64, 64)
    torch.nn.functional.cross_entropy(y, targets).backward()
    assert torch.equal(x.grad, y.grad)

    with Compressor(NOTHING, Policy.default(FMT, recompute=False), min_values=0) as saver:
        z = torch.log_softmax(leaf(64, 64), 1)
        z.sin()  # saves the same tensor, which is still a log-softmax
        (z * 1).sin()  # of the same shape, but any tensor
    kept = [(row.op, row.kept) for row in saver.report().rows]
    assert ("_log_softmax", "log-softmax") in kept
    assert ("mul", "compressed") in kept


def test_log_sum_exp_of_attention_is_told_by_its_operation():
    q = leaf(2, 4, 64, 32)
    with Compressor(NOTHING, Policy.default(FMT, recompute=False), min_values=0) as saver:
        y = torch.nn.functional.scaled_dot_product_attention(q, q * 2, q * 3, is_causal=True)
        like = y[..., 0].contiguous()
        like.sin()
    rows = {(row.shape, row.kept) for row in saver.report().rows}
    assert ((2, 4, 64), "log-sum-exp") in rows
    assert ((2, 4, 64), "compressed") in rows


def test_norm_statistics_are_told_by_their_operation():
    x = leaf(2000, 8)
    with Compressor(NOTHING, Policy.default(FMT, recompute=False), min_values=0) as saver:
        torch.nn.functional.layer_norm(x, (8,))
        torch.nn.functional.group_norm(x.view(500, 4, 8), 2)
        torch.nn.functional.batch_norm(x.t(), None, None, training=True)
        (x * torch.rsqrt((x * x).mean(1, keepdim=True))).sin()
    kept = [row.op for row in saver.report().rows if row.kept == "norm statistics"]
    assert {f"native_{kind}_norm.{i}" for kind in ("layer", "group", "batch") for i in (1, 2)} <= set(kept)
    assert "rsqrt" in kept


def test_boolean_masks_and_indices_are_exact():
    x = leaf(64, 64)
    with ours(fmt=COARSE) as saver:
        y, mask = torch.native_dropout(x, 0.5, True)
        z = y.gather(1, torch.arange(64).expand(64, 64)) + y.masked_fill(x > 0, 0)
    z.sum().backward()
    assert torch.equal(x.grad, mask * 2.0 * (1.0 + (x <= 0)))
    assert {"bits", "not floating point"} <= {row.kept for row in saver.report().rows}


def test_the_size_floor_keeps_small_tensors_exact():
    x = leaf(10, 10)
    with ours(fmt=COARSE, min_values=101) as saver:
        y = x * x
    assert y.grad_fn._saved_self.data_ptr() == x.data_ptr()  # not a copy
    y.sum().backward()
    assert torch.equal(x.grad, 2 * x)
    assert saver.report().rows[0].kept == "under 101 values"


def test_strided_nested_tensors_stay_exact():
    def gradients(context):
        x, y = leaf(40, 64), leaf(30, 64, seed=1)
        with context as saver:
            loss = torch.nested.as_nested_tensor([x, y]).relu().to_padded_tensor(0).sin().sum()
        loss.backward()
        return (x.grad, y.grad), saver

    exact, _ = gradients(untouched())
    found, saver = gradients(ours(fmt=PlaneFormat("fp32", 64, 256)))
    assert all(torch.equal(a, b) for a, b in zip(found, exact, strict=True))
    (row,) = [row for row in saver.report().rows if row.kept == "not a plain strided tensor"]
    assert (row.shape, row.original_bytes) == ((70 * 64,), row.tensors * 70 * 64 * 4)


def test_float64_stays_exact():
    x = leaf(64, 64).double()
    with ours() as saver:
        x.sin()
    assert saver.report().rows[0].kept == "no format for float64"


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
