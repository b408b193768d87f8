"""The study of blocks that respect rows: its page has its rows, and its ways to cut differ as it says."""

import json

import pytest
import torch

from bench.rows import gradients, training
from bench.rows.__main__ import OUTPUT
from bench.rows.cuts import CUTS, Store
from bench.rows.page import PAGE, STUDIES, losses, table
from golden import HadamardFormat


def test_the_page_has_the_tables_of_its_rows():
    rows, page = json.loads(OUTPUT.read_text()), PAGE.read_text()
    for name, text in {**{study: table(rows, study) for study in STUDIES}, "training": losses(rows)}.items():
        assert f"<!-- {name} -->\n{text}\n<!-- end -->" in page, name


@pytest.mark.parametrize("width", [64, 192])
def test_small_tokens_are_lost_in_memory_order_and_not_by_the_rule(width):
    errors = {cut: gradients.norm(width, cut, 4) for cut in ("memory order", "rule")}
    assert errors["memory order"]["gradient_error"] > 5
    assert errors["rule"]["gradient_error"] < 0.13
    assert errors["memory order"]["bits_stored"] == errors["rule"]["bits_stored"] == 4


@pytest.mark.parametrize(
    ("cut", "width", "bits"),
    [("memory order", 100, 2), ("rule", 100, 2.56), ("rule", 192, 2), ("padded to 128", 192, 8 / 3)],
)
def test_a_store_counts_what_it_keeps(cut, width, bits):
    store = Store(CUTS[cut], 2, [])
    values = torch.randn(64, width, generator=torch.Generator().manual_seed(0))
    back = store.round_trip(values, width)
    assert store.bits_stored == pytest.approx(bits)
    assert 0.2 < float((back - values).norm() / values.norm()) < 0.5


@pytest.mark.parametrize("by_heads", [False, True])
def test_rows_of_heads_are_those_of_memory(by_heads):
    tensor = torch.randn(2, 5, 3, 64).transpose(1, 2)  # [batch, heads, tokens, 64], tokens in memory
    tensor = tensor.contiguous() if by_heads else tensor
    memory = tensor if by_heads else tensor.transpose(1, 2)
    fmt = HadamardFormat("fp32", 64, 32)
    expected = torch.from_numpy(fmt.decompress(fmt.compress(memory.numpy()), memory.shape))
    back = Store(CUTS["rule"], 4, []).round_trip(tensor, 64 if by_heads else 192)
    assert torch.equal(back if by_heads else back.transpose(1, 2), expected)


def test_runs_are_alike_but_for_what_is_stored(monkeypatch):
    monkeypatch.setitem(training.SIZES, 192, training.Size(64, 1, 2, 3, 1e-3, tokens=32))
    runs = [training.run(192, "outlier", 1, cut, 2) for cut in ("exact", "exact", "rule", "memory order")]
    assert runs[0] == runs[1]
    assert runs[2]["gradient_error"] < 0.5 < runs[3]["gradient_error"]
    assert abs(runs[2]["val_loss"] - runs[0]["val_loss"]) < 0.05
