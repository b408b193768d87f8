"""DeepSpeed's ZeRO on two ranks, with gradient accumulation, and its own checkpointing."""

import pytest

from .launch import needs, worker
from .variants import check

pytestmark = needs("deepspeed")

# A run that is killed leaves a lock in the folder of extensions, for which the next one waits.
ranks = worker("deepspeed", ranks=2, DS_ACCELERATOR="cpu", TORCH_EXTENSIONS_DIR="{folder}")


@pytest.mark.parametrize("stage", ["ZeRO-1", "ZeRO-2", "ZeRO-3"])
def test_deepspeed(ranks, stage):
    for rank in ranks:
        check(rank[stage], ratio=7)


@pytest.mark.parametrize("stage", ["ZeRO-2, checkpointed", "ZeRO-3, checkpointed"])
def test_deepspeed_checkpointing(ranks, stage):
    """DeepSpeed keeps the inputs of its checkpoints past all hooks: the norm's and head's are left."""
    for rank in ranks:
        check(rank[stage], ratio=2.5)
        assert rank[stage]["exact"]["original"] < rank["ZeRO-2"]["exact"]["original"] / 10


def test_zero_3_frees_what_it_gathered(ranks):
    for rank in ranks:
        assert rank["ZeRO-3"]["plain"]["more"]["seen"] > 0
        assert {run["gathered"] for run in rank["ZeRO-3"].values()} == {0}


def test_deepspeed_attached(ranks):
    """A loop that calls nothing but the engine, with ``attach(engine)``."""
    for rank in ranks:
        check(rank["ZeRO-3, attached"], ratio=7)
        assert rank["ZeRO-3, attached"]["8x"]["losses"] == rank["ZeRO-3"]["8x"]["losses"]


def test_stages_train_alike(ranks):
    for rank in ranks:
        assert rank["ZeRO-1"]["exact"]["losses"] == pytest.approx(rank["ZeRO-3"]["exact"]["losses"], rel=1e-6)
