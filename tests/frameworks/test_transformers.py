"""transformers' Trainer (in accelerate) through attach: gradient accumulation, bf16, checkpoints."""

import pytest

from .launch import needs, worker
from .variants import check

pytestmark = needs("transformers", "accelerate")

ranks = worker("transformers", HF_HUB_OFFLINE="1")

RATIOS = {"Trainer": 5, "Trainer, bf16": 4, "Trainer, checkpointed": 2}


@pytest.mark.parametrize("run", RATIOS)
def test_transformers(ranks, run):
    check(ranks[0][run], ratio=RATIOS[run])
