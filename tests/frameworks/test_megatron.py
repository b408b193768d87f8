"""Megatron-core: tensor, sequence and pipeline parallelism, and its recomputation."""

import pytest

from .launch import needs, worker
from .variants import check

pytestmark = needs("megatron")

ranks = worker("megatron", ranks=2, TORCH_COMPILE_DISABLE="1")

TENSOR = ("TP2", "TP2, fused", "TP2, sequence parallel")
PIPELINE = ("PP2",)
RECOMPUTED = (
    "TP2, selective",
    "TP2, sequence parallel, recompute",
    "PP2, interleaved, selective",
    "PP2, recompute",
)


@pytest.mark.parametrize("run", TENSOR)
def test_megatron_tensor_parallel(ranks, run):
    for rank in ranks:
        check(rank[run], ratio=5)


@pytest.mark.parametrize("run", PIPELINE)
def test_megatron_pipeline_parallel(ranks, run):
    for rank in ranks:
        check(rank[run], ratio=5)


@pytest.mark.parametrize("run", RECOMPUTED)
def test_megatron_recompute(ranks, run):
    """Its schedules run backward passes inside, so that what is recomputed is compressed as well."""
    for rank in ranks:
        check(rank[run], ratio=5)
