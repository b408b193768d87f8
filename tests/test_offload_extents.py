"""Places in the offload's file: never two at once, and no more of them than is needed."""

import os
from itertools import pairwise, permutations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torch_bridge import Compressor, Offload, Policy
from torch_bridge.offload.extents import ALIGNMENT, Extents

from .test_offload import settle


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5 * ALIGNMENT))))
def test_places_do_not_overlap_and_free_neighbours_are_one(actions):
    extents, used = Extents(), []
    for takes, number in actions:
        if takes or not used:
            used.append(extents.take(number))
            assert used[-1].size == number
        else:
            extents.give(used.pop(number % len(used)))
        places = sorted(used, key=lambda place: place.offset)
        assert all(place.offset % ALIGNMENT == 0 for place in places)
        assert all(one.offset + max(one.size, 1) <= other.offset for one, other in pairwise(places))
        assert all(place.offset + place.size <= extents.end for place in places)
    for place in used:
        extents.give(place)
    assert extents.take(1).offset == 0
    assert extents.end == ALIGNMENT


@pytest.mark.parametrize("order", [*permutations(range(3))], ids=str)
def test_neighbours_become_one_in_whatever_order_they_are_given_back(order):
    extents = Extents()
    places = [extents.take(ALIGNMENT) for _ in range(4)]
    for number in order:
        extents.give(places[number])
    assert extents.take(3 * ALIGNMENT).offset == 0


def test_a_place_is_taken_where_it_fits():
    extents = Extents()
    first, second, third = (extents.take(size * ALIGNMENT) for size in (3, 1, 2))
    extents.give(first)
    assert extents.take(2 * ALIGNMENT).offset == 0
    assert extents.take(2 * ALIGNMENT).offset == 6 * ALIGNMENT
    extents.give(second)
    assert extents.take(2 * ALIGNMENT).offset == 2 * ALIGNMENT
    extents.give(third)
    assert extents.take(1).offset == 4 * ALIGNMENT


def test_the_file_stays_small_when_lengths_vary(tmp_path):
    disk = Offload(tmp_path, amount="all")
    lengths = torch.Generator().manual_seed(0)
    largest = 0
    for _ in range(60):
        length = int(torch.randint(50, 400, (), generator=lengths))
        x = torch.ones(length, 64, requires_grad=True)
        with Compressor(torch.nn.Identity(), Policy([]), offload=disk) as saver:
            loss = (x.sin().exp() @ torch.ones(64, 2 * length % 97 + 1)).tanh().sum()
        largest = max(largest, saver.offloaded_bytes)
        settle(disk)
        loss.backward()
        del loss
    assert os.fstat(disk._transfers._file.number).st_size < 1.5 * largest
