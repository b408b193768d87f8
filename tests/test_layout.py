"""What a view covers, as a region, and what two regions share; against sets of addresses."""

import random

import pytest
import torch

from torch_bridge.facts.geometry import Region, region_of


def view(size, stride, offset=0, elements=5000):
    return torch.arange(elements).as_strided(size, stride, offset)


def addresses(region):
    return region.values(torch.arange(5000)).tolist()


def random_views(seed, count):
    """Slices, transposes and splits of a storage of 4 x 6 x 8 x 4 values."""
    draw = random.Random(seed)
    for _ in range(count):
        tensor = torch.arange(4 * 6 * 8 * 4).view(4, 6, 8, 4)
        for dim in draw.sample(range(4), draw.randrange(4)):
            start = draw.randrange(tensor.shape[dim])
            stop = draw.randrange(start, tensor.shape[dim]) + 1
            tensor = tensor[(slice(None),) * dim + (slice(start, stop, draw.choice([1, 1, 2])),)]
        yield tensor.permute(draw.sample(range(4), 4))


SHAPES = {
    "a run": ((6, 10), (10, 1), 3),
    "transposed": ((10, 6), (1, 10), 0),
    "columns": ((6, 4), (10, 1), 2),
    "heads of a third": ((2, 3, 5, 4), (300, 4, 60, 1), 20),
    "expanded": ((6, 7, 4), (10, 0, 1), 2),
    "windows": ((9, 10), (3, 1), 5),
    "windows with holes": ((9, 2), (3, 1), 5),
    "windows of steps": ((4, 5), (4, 2), 1),
    "a scalar": ((), (), 7),
    "empty": ((3, 0), (4, 1), 7),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_region_has_the_elements_of_a_view_once_in_their_order(shape):
    tensor = view(*shape)
    region = region_of(tensor)
    assert addresses(region) == tensor.unique().tolist()
    assert region.count == len(tensor.unique())


def test_views_of_the_same_elements_have_the_same_region():
    fused = torch.arange(2 * 5 * 24).view(2, 5, 24)
    middle = fused[..., 8:16]
    heads = middle.view(2, 5, 2, 4).transpose(1, 2)
    assert region_of(heads) == region_of(middle) == Region(8, (10, 8), (24, 1))
    assert region_of(middle.unsqueeze(0).expand(3, 2, 5, 8)) == region_of(middle)
    assert region_of(fused.transpose(0, 1)) == region_of(fused) == Region.run(0, 240)


def test_where_elements_overlap_without_a_pattern_the_region_is_all_between():
    tensor = view((3, 3), (3, 2), 4)
    assert region_of(tensor) == Region.run(4, 11)


def test_what_regions_share_is_found():
    views = list(random_views(0, 60))
    known = 0
    for one in views:
        region, mine = region_of(one), set(one.flatten().tolist())
        for other in views:
            theirs = set(other.flatten().tolist())
            common, rest = region.split(region_of(other))
            pieces = [set(addresses(piece)) for piece in ([common] if common else []) + rest]
            assert sum(map(len, pieces)) == len(mine)
            assert set().union(*pieces) == mine
            if common is not None:
                assert pieces[0] == mine & theirs
                known += 1
            assert region.overlaps(region_of(other)) or not mine & theirs
            assert region.is_within(region_of(other)) <= (mine <= theirs)
    assert known > 2500


PAIRS = {
    "rows but the first, and but the last": (lambda h: h[1:], lambda h: h[:-1]),
    "columns but the first, and but the last": (lambda h: h[:, 1:], lambda h: h[:, :-1]),
    "a corner, and another": (lambda h: h[:9, :9], lambda h: h[4:, 3:]),
    "all, and the left half": (lambda h: h, lambda h: h[:, :8]),
    "every other row, and the left half": (lambda h: h[::2], lambda h: h[:, :8]),
}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_what_common_views_share_is_known(pair):
    one, other = (cut(torch.arange(12 * 16).view(12, 16)) for cut in pair)
    both = set(one.flatten().tolist()) & set(other.flatten().tolist())
    common, rest = region_of(one).split(region_of(other))
    assert set(addresses(common)) == both
    assert sum(piece.count for piece in rest) == one.numel() - len(both)
    assert region_of(one).overlaps(region_of(other))


def test_halves_and_thirds_lie_beside_each_other_in_the_same_memory():
    fused = torch.arange(5 * 24).view(5, 24)
    for parts in (2, 3):
        regions = [region_of(part) for part in fused.chunk(parts, 1)]
        assert {region.room(fused.numel()) for region in regions} == {(0, fused.numel())}
        assert not regions[0].overlaps(regions[1])
    assert region_of(fused[1:3]).room(fused.numel()) == (24, 48)
    assert region_of(fused[1:3, 4:]).room(fused.numel()) == (24, 48)
    assert region_of(fused.as_strided((2,), (70,), 45)).room(120) == (0, 120)
