"""Offloading in pipelines, FSDP2 and tensor parallelism: what comes back is what went, on every rank."""

import json
import os

import pytest

from .launch import TORCHRUN, python

WAYS = ("1F1B", "GPipe", "FSDP2", "tensor parallelism")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What the ranks of tests/offload_worker.py wrote; see there."""
    folder = tmp_path_factory.mktemp("ranks")
    python(*TORCHRUN, "-m", "tests.offload_worker", str(folder), seconds=400)
    assert sorted(os.listdir(folder)) == ["0.json", "1.json"]  # the files of offloaded tensors have no names
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("method", ["offload", "adaptive", "full disk"])
@pytest.mark.parametrize("way", WAYS)
def test_losses_and_gradients_are_those_without_offloading(ranks, way, method):
    for rank in ranks:
        runs = rank[way]
        assert runs[method]["losses"] == runs["baseline"]["losses"]
        assert runs[method]["gradients"] == runs["baseline"]["gradients"]
        assert runs[method]["stored_bytes"] + runs[method]["forwarded_bytes"] > 0


@pytest.mark.parametrize("way", WAYS)
def test_what_is_compressed_first_is_as_without_offloading_and_fewer_bytes(ranks, way):
    for rank in ranks:
        runs = rank[way]
        both, exact = runs["compress and offload"], runs["offload"]
        assert both["losses"] == runs["compress"]["losses"]
        assert both["gradients"] == runs["compress"]["gradients"] != runs["baseline"]["gradients"]
        assert 0 < both["sent"] < 0.6 * exact["sent"]


@pytest.mark.parametrize("way", WAYS)
def test_a_disk_that_becomes_full_in_mid_run_is_told_of_once(ranks, way):
    for rank in ranks:
        found = rank[way]["full disk"]
        assert found["failed_bytes"] > 0
        assert found["stored_bytes"] > 0
        assert [text.endswith("No space left on device") for text in found["told"]] == [True]
        assert rank[way]["offload"]["told"] == []


def test_each_rank_has_a_file_of_its_own(ranks):
    for way in WAYS:
        assert ranks[0][way]["offload"]["file"] != ranks[1][way]["offload"]["file"]


def test_in_a_pipeline_early_micro_batches_are_read_back(ranks):
    for way in ("1F1B", "GPipe"):
        found = ranks[0][way]["offload"]
        assert found["loaded_bytes"] > found["forwarded_bytes"]
