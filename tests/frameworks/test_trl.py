"""TRL's trainers through attach: SFT with LoRA, packing, bf16 and checkpointing; DPO."""

from .launch import needs, worker
from .variants import check

pytestmark = needs("trl", "peft", "datasets")

ranks = worker("trl", HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1")


def test_trl_sft(ranks):
    """What TRL checkpoints is small already; of the head's input, which stays exact, half of it is."""
    check(ranks[0]["SFT"], ratio=2)


def test_trl_dpo(ranks):
    check(ranks[0]["DPO"], ratio=3)


def test_trl_of_its_own_offloading_attach_warns(ranks):
    (told,) = ranks[0]["told"]
    assert told.startswith("activation_offloading of TRL does nothing inside a Compressor")
