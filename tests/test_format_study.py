"""The study of the Hadamard format: what it takes for the format is the format."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bench import format_study
from bench.convergence import runs
from golden import HadamardFormat
from torch_bridge.job import train


@pytest.mark.parametrize("block", [64, 128, 256])
@pytest.mark.parametrize("bits", format_study.RATES)
def test_the_format_among_the_variants_is_what_golden_decodes(block, bits):
    rng = np.random.default_rng(0)
    values = rng.standard_normal((300, block)) * np.exp2(rng.integers(-20, 20, (300, 1)))
    values[100:200] *= rng.random((100, block)) < 0.2
    values[200:250, 3] *= 300
    values[290:] = 0
    values = values.astype(np.float32)
    fmt = HadamardFormat("fp32", block, int(bits * block / 8))
    expected = fmt.decompress(fmt.compress(values), values.shape)
    variant = format_study.Variant(bits=bits, block=block)
    found = format_study.Simulated(variant)
    flat = torch.from_numpy(values).view(-1)
    assert (
        found.decompress(found.compress(flat), flat.numel()).numpy().reshape(values.shape) == expected
    ).all()


def test_rows_become_tables_and_are_not_made_again(tmp_path, monkeypatch):
    rows, page = tmp_path / "rows.json", tmp_path / "page.md"
    page.write_text(
        "".join(f"<!-- {name} -->\n<!-- end -->\n" for name in ("choices", "gradients", "training"))
    )
    for name, value in {"ROWS": rows, "PAGE": page, "VARIANTS": {"the format": format_study.FORMAT}}.items():
        monkeypatch.setattr(format_study, name, value)
    monkeypatch.setattr(format_study, "RATES", (2,))
    # A model with a tanh, which is kept as what it was given.
    monkeypatch.setattr(format_study.effective_bits, "MODELS", {"gpt2": format_study.effective_bits.gpt2})
    monkeypatch.setattr(sys, "argv", ["format_study", "--batches", "2"])
    format_study.main()
    (row,) = json.loads(rows.read_text())
    assert 0.1 < row["gradient_error"] < 0.6
    assert 1.2 < row["gain"] < 1.6
    rows.write_text(json.dumps([row, {"variant": "… with a mean", "bits": 2, "seed": 1, "val_loss": 2.25}]))
    monkeypatch.setattr(format_study.effective_bits, "gradient", None)
    format_study.main()
    assert f"| the format | {row['gradient_error']:.3f} ({row['gain']:.2f}) |" in page.read_text()
    assert "| … with a mean, 2 bits | 1 | +0.0390 | +0.0385 |" in page.read_text()
    assert "| the format, 2 bits | 5 | +0.0048 ± 0.0052 |  |" in page.read_text()


def test_the_page_says_what_its_rows_say():
    rows = json.loads(Path("docs/format-study.json").read_text())
    assert (
        f"<!-- choices -->\n{format_study.choices(rows)}\n<!-- end -->"
        in Path("docs/format-study.md").read_text()
    )
    assert set(format_study.REASONS) == set(format_study.VARIANTS) - {"the format"}


def test_a_choice_is_told_with_how_much_the_gradient_differs():
    rows = [
        {"model": model, "variant": variant, "bits": 2, "gradient_error": error}
        for model in format_study.effective_bits.MODELS
        for variant, error in (("the format", 0.2), ("… with 256 values", 0.19))
    ]
    assert "| with 256 values |  | -5 / -5 / -5 |  | Allowed, not the default" in format_study.choices(rows)


def test_a_flag_takes_the_way_that_errs_less():
    rng = np.random.default_rng(0)
    gaussian, shifted, sparse = torch.from_numpy(rng.standard_normal((3, 1, 128))).float()
    shifted += 50
    sparse[:, 5:] = 0

    def error(values, **changed):
        variant = replace(format_study.FORMAT, **changed)
        found = format_study.decoded(values, variant, format_study.Simulated(variant).signs(0, 1))
        return float((found - values).square().mean() / values.var())

    assert error(shifted, mean="flagged") < 0.1 * error(shifted)
    assert error(sparse, second=True) < 1e-6 < error(sparse)
    # Nothing but the flag is lost where it gains nothing.
    for changed in ({"mean": "flagged"}, {"second": True}):
        assert error(gaussian, **changed) == pytest.approx(error(gaussian), rel=0.05)


def test_variants_are_trained_as_the_format_was(monkeypatch):
    given = []

    def run(options, progress):
        given.append(options)
        return {"interrupted": False, "val_loss": 2.0}

    monkeypatch.setattr(train, "run", run)
    assert len(list(format_study.training_rows([], [1]))) == len(given) == len(format_study.TRAINED)
    for bits, scheme in format_study.SAME.items():
        of_format = runs.options_of("small", scheme, 1)
        assert 8 * of_format.format.target / of_format.format.block == bits
        # The rate is the variant's.
        assert {replace(options, target=of_format.target) for options in given} == {of_format}
