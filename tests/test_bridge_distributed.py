"""Training on two ranks: what the bridge does to it is what plain hooks do, and weights stay exact."""

import json

import pytest

from .launch import TORCHRUN, python

PARALLEL = ("ddp", "fsdp", "fsdp, bf16", "fsdp, kept after forward")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What the ranks of tests/distributed_worker.py wrote; see there."""
    folder = tmp_path_factory.mktemp("ranks")
    python(*TORCHRUN, "-m", "tests.distributed_worker", str(folder))
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("parallel", PARALLEL)
def test_losses_equal_those_of_the_reference(ranks, parallel):
    for rank in ranks:
        runs = rank[parallel]
        assert runs["bridge"]["losses"] == runs["reference"]["losses"]
        assert runs["bridge"]["losses"] != runs["exact"]["losses"]
    assert ranks[0][parallel]["bridge"]["losses"] != ranks[1][parallel]["bridge"]["losses"]


@pytest.mark.parametrize("parallel", PARALLEL)
def test_what_is_recomputed_from_exact_tensors_changes_no_loss(ranks, parallel):
    for rank in ranks:
        runs = rank[parallel]
        assert runs["recomputed"]["losses"] == runs["exact"]["losses"]
        recomputed = {row["op"] for row in runs["recomputed"]["rows"] if row["kept"] == "recomputed"}
        attention = "_scaled_dot_product_flash_attention_for_cpu"
        assert recomputed == {"native_layer_norm", attention, f"{attention}.1"}  # a ReLU's input is not saved


@pytest.mark.parametrize("gathered_before", [False, True])
def test_what_is_recomputed_does_not_need_what_fsdp_freed(ranks, gathered_before):
    for rank in ranks:
        exact, recomputed = rank["gathered"][gathered_before]
        assert recomputed == exact


@pytest.mark.parametrize("parallel", PARALLEL)
def test_weights_are_not_compressed(ranks, parallel):
    # Matrices that are not parameters have a row for each of the 120 tokens.
    for rank in ranks:
        rows = rank[parallel]["bridge"]["rows"]
        matrices = [row for row in rows if len(row["shape"]) == 2 and 120 not in row["shape"]]
        weights = [row for row in matrices if row["dtype"] != "int64"]
        assert {tuple(row["shape"]) for row in weights} == {(64, 33), (64, 64), (64, 96), (64, 192), (96, 64)}
        assert {row["kept"] for row in weights} == {"parameter"}
        assert not any(row["counted"] for row in weights)


def test_weights_are_freed_between_forward_and_backward_where_fsdp_frees_them(ranks):
    for rank in ranks:
        kept = {
            parallel: runs["bridge"]["bytes_between"]
            for parallel, runs in rank.items()
            if parallel in PARALLEL
        }
        assert kept == {
            parallel: runs["recomputed"]["bytes_between"]
            for parallel, runs in rank.items()
            if parallel in PARALLEL
        }
        assert kept == {
            parallel: runs["exact"]["bytes_between"]
            for parallel, runs in rank.items()
            if parallel in PARALLEL
        }
        assert (kept["fsdp"], kept["fsdp, bf16"]) == (0, 0)
        assert kept["ddp"] == kept["fsdp, kept after forward"] == 2 * 4 * 64 * 96


def test_activations_are_compressed_alike(ranks):
    def activations(parallel):
        rows = ranks[0][parallel]["bridge"]["rows"]
        return {(tuple(row["shape"]), row["kept"], row["stored_bytes"]) for row in rows if row["counted"]}

    assert activations("fsdp") == activations("ddp") == activations("fsdp, kept after forward")
    assert any(kept == "compressed" for _, kept, _ in activations("ddp"))


def test_of_a_tensor_parallel_model_each_rank_compresses_what_it_has(ranks):
    for rank in ranks:
        found = rank["tensor parallel"]
        assert found["bridge"] == found["reference"]
        assert found["bridge"] != found["exact"]
        kept = {row["kept"] for row in found["rows"]}
        assert kept == {"compressed", "norm statistics", "parameter"}
        wide = [row["shape"] for row in found["rows"] if row["op"] in ("addmm", "gelu")]
        assert {shape[-1] for shape in wide} == {96 // 2}
