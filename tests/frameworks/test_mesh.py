"""Tensor parallelism within FSDP2, on four ranks."""

from .launch import worker
from .variants import check

ranks = worker("mesh", ranks=4)


def test_tensor_parallel_in_fsdp2(ranks):
    for rank in ranks:
        check(rank["TP x FSDP2"], ratio=6)


def test_fsdp2_frees_what_it_gathered(ranks):
    for rank in ranks:
        runs = rank["TP x FSDP2"]
        assert runs["plain"]["more"]["seen"] > 0
        assert {run["gathered"] for run in runs.values()} == {0}
