"""PyTorch's pipeline schedules: several micro-batches in flight while one Compressor is entered."""

import pytest

from .launch import worker
from .pipeline_worker import SCHEDULES
from .variants import check

ranks = worker("pipeline", ranks=2)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_pipeline(ranks, schedule):
    for rank in ranks:
        check(rank[schedule], ratio=7)


def test_all_schedules_train_alike(ranks):
    """The split of backward passes into those of inputs and those of weights changes nothing either."""
    names = [name for name in SCHEDULES if name not in ("GPipe", "1F1B")]
    for variant in ("plain", "exact", "8x"):
        assert len({tuple(ranks[0][name][variant]["losses"]) for name in names}) == 1
        assert ranks[0]["GPipe"][variant]["losses"] == ranks[0]["1F1B"][variant]["losses"]


@pytest.mark.parametrize("schedule", [name for name in SCHEDULES if name != "GPipe"])
def test_backward_passes_run_between_forward_passes(ranks, schedule):
    """Else the tests above would hold nothing that GPipe's does not."""
    assert any(rank[schedule]["plain"]["more"]["turns"] > 1 for rank in ranks)
    assert all(rank["GPipe"]["plain"]["more"]["turns"] == 1 for rank in ranks)
