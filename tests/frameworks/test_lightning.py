"""Lightning through its callback, with gradient accumulation and bf16."""

import pytest

from .launch import needs, worker
from .variants import check

pytestmark = needs("pytorch_lightning")

ranks = worker("lightning")

RATIOS = {"Lightning": 7, "Lightning, bf16": 3.5}


@pytest.mark.parametrize("run", RATIOS)
def test_lightning(ranks, run):
    check(ranks[0][run], ratio=RATIOS[run])
