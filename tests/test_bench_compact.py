"""The count of CompAct's peaks: it is what a CPU allocates, and the page says what its rows say."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from bench.compact import __main__ as command
from bench.compact import live, page, peaks
from torch_bridge.job import peak
from torch_bridge.schemes import compact

WIDTH, HIDDEN, TOKENS, VOCABULARY = 64, 160, 200, 300


class Net(nn.Module):
    """A feedforward block between an embedding and a head."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.up_proj, self.down_proj = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        x = x + self.down_proj(nn.functional.silu(self.up_proj(x.sin())))
        return nn.functional.cross_entropy(self.head(x), tokens)


def model_of(rank):
    model = Net()
    names = compact.convert(model, rank) if rank else ["up_proj", "down_proj"]
    optimizer = compact.CompActAdamW(model) if rank else torch.optim.AdamW(model.parameters())
    return model, optimizer, names


def counted(rank):
    with FakeTensorMode():
        model, optimizer, names = model_of(rank)
        tokens = torch.zeros(TOKENS, dtype=torch.int64)
        return live.count(model, optimizer, lambda: model(tokens), names, vocabulary=VOCABULARY)


@pytest.mark.parametrize("rank", [None, 16])
def test_what_is_counted_is_what_a_cpu_allocates(rank):
    model, optimizer, _ = model_of(rank)
    tokens = torch.zeros(TOKENS, dtype=torch.int64)

    def step():
        loss = model(tokens)
        yield
        loss.backward()

    for _ in step():
        pass
    optimizer.step()
    optimizer.zero_grad()
    real = peak.measure(step, torch.device("cpu"))
    found = counted(rank)
    resting = sum(found.kept[kind] for kind in (live.PARAMETERS, live.OPTIMIZER))
    assert sum(found.at_peak.values()) - resting == pytest.approx(real.peak, rel=0.02)
    assert sum(found.kept.values()) - resting == pytest.approx(real.kept, rel=0.02)


def test_the_kinds_are_what_they_are_called():
    full, projected = counted(None), counted(16)
    parameters = 4 * sum(parameter.numel() for parameter in Net().parameters())
    assert full.at_peak[live.PARAMETERS] == parameters
    assert full.kept[live.OPTIMIZER] == pytest.approx(2 * parameters, abs=100)
    assert full.kept[live.INPUTS] == 4 * TOKENS * (WIDTH + HIDDEN)
    assert projected.kept[live.INPUTS] == 4 * TOKENS * 2 * 16
    subspaces = 4 * 16 * (HIDDEN + WIDTH) - 4 * 2 * WIDTH * HIDDEN
    assert projected.kept[live.OPTIMIZER] == pytest.approx(2 * (parameters + subspaces), abs=100)
    assert projected.at_peak[live.PARAMETERS] == pytest.approx(parameters, abs=100)
    assert full.kept[live.HEAD] >= 4 * TOKENS * VOCABULARY


def test_the_page_says_what_its_rows_say():
    found = json.loads(command.OUTPUT.read_text())
    assert command.as_json(found) == command.OUTPUT.read_text()
    text = Path("docs/schemes.md").read_text()
    for table in (page.pretraining, page.fine_tuning, page.split):
        assert table(found["peaks"]) in text
    assert page.compressed(found["compressed"]) in text
    assert page.training(found["training"]) in text


def test_the_paper_s_peaks_are_counted_to_a_hundredth():
    rows = json.loads(command.OUTPUT.read_text())["peaks"]
    as_in_paper = [
        row for row in rows if row["dtype"] == "bf16" and (row["rank"] == "full" or not row["shared"])
    ]
    assert len(as_in_paper) == 12
    for row in as_in_paper:
        assert row["peak_mb"] == pytest.approx(peaks.PAPER[row["model"], row["rank"]], rel=0.01)
