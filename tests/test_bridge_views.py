"""What tensors share of a storage: stored once, and each comes back as it lay in it."""

from contextlib import nullcontext
from typing import ClassVar

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from golden import PlaneFormat
from torch_bridge import Compressor, Policy, Rule

from .plain_hooks import COARSE, FMT, NOTHING, leaf, ours, reference

FINE = PlaneFormat("fp32", 64, 160)


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
