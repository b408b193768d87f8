"""The bench of offloading in a pipeline: its models are the paper's, and the page says what its rows say."""

import json
from pathlib import Path

import pytest
import torch

from bench.offload import __main__ as command
from bench.offload import models, page, ranks


@pytest.mark.parametrize("name", models.NAMES)
@pytest.mark.parametrize(("width", "layers"), [(8192, 4), (12288, 3), (16384, 2)])
def test_two_stages_have_the_paper_s_layers(name, width, layers):
    model = models.Model(name, width)
    stages = [model.stage(rank) for rank in range(2)]
    assert [len(stage.blocks) for stage in stages] == [(layers + 1) // 2, layers // 2]
    tokens = torch.randint(models.VOCABULARY, (2, models.LENGTH))
    made = stages[0](tokens)
    assert made.shape == (2, models.LENGTH, width // models.SCALE)
    logits = stages[1](made, **({"decoded": tokens} if name == "t5" else {}))
    models.loss_of(logits, tokens).backward()
    gradients = [parameter.grad for stage in stages for parameter in stage.parameters()]
    assert all(grad is not None and grad.any() for grad in gradients)


@pytest.mark.parametrize(("name", "sees_later_ones"), [("bert", True), ("t5", True), ("gpt", False)])
def test_only_gpts_first_stage_is_causal(name, sees_later_ones):
    stage = models.Model(name, 8192).stage(0)
    tokens = torch.zeros(1, models.LENGTH, dtype=torch.int64)
    others = tokens.clone()
    others[0, -1] = 1
    with torch.no_grad():
        assert torch.equal(stage(tokens)[0, 0], stage(others)[0, 0]) != sees_later_ones


def test_of_both_stages_the_larger_peak_and_all_traffic_count():
    rows = [
        {
            "method": method,
            "micro_batches": 4,
            "activation_peak_bytes": 10 - rank,
            "seconds_per_step": 1.0 + rank,
            "bytes_written": 5,
            "bytes_read": rank,
        }
        for method in page.METHODS
        for rank in range(2)
    ]
    baseline = page.by_method(rows)["baseline"]
    assert (baseline["activation_peak_bytes"], baseline["seconds_per_step"]) == (10, 2.0)
    assert (baseline["bytes_written"], baseline["bytes_read"]) == (10, 1)


def test_the_page_says_what_its_rows_say():
    rows = json.loads(command.OUTPUT.read_text())
    assert command.as_json(rows) == command.OUTPUT.read_text()
    text = Path("docs/schemes.md").read_text()
    assert page.shapes(rows) in text
    assert page.micro_batches(rows) in text
    assert page.times(rows) in text


def test_what_keeps_exact_values_has_the_gradients_of_keeping_them():
    rows = json.loads(command.OUTPUT.read_text())
    assert len(rows) == 2 * len(ranks.cases()) * len(ranks.METHODS)
    for case in ranks.cases():
        for rank in range(2):
            found = {
                row["method"]: row["gradients"]
                for row in rows
                if row["rank"] == rank and vars(case).items() <= row.items()
            }
            exact = {
                found[method] for method in ("baseline", "checkpointing", "offload all", "offload adaptive")
            }
            assert len(exact) == 1
            assert found["compress, offload all"] == found["compress to 4 bits"] not in exact
