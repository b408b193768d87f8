"""The comparison of schemes, and what is made of training runs with several seeds."""

import json
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench.convergence import __main__ as command
from bench.convergence import page, rows, runs
from torch_bridge import Policy
from torch_bridge.job import compare, train
from torch_bridge.job.cli import main
from torch_bridge.offload import transfers

from .test_offload import open_files


def row(peak, seconds, batch=1):
    return {"activation_peak_bytes": peak, "seconds_per_step": seconds, "batch": batch}


def test_the_frontier_is_what_nothing_beats_in_both():
    fast, small, beaten, equal = row(100, 1.0), row(10, 4.0), row(50, 5.0), row(100, 1.0)
    assert compare.frontier([fast, small, beaten, equal]) == [small, fast]
    assert compare.frontier([row(10, 1.0, batch=4), row(20, 1.0)]) == [row(10, 1.0, batch=4)]


def test_every_model_is_compared_and_written(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(transfers, "IN_FLIGHT", 0)  # how fast the disk is does not matter
    given = [
        "--model",
        *compare.MODELS,
        "--scheme",
        "baseline",
        "offload",
        "planes+offload",
        "offload-adaptive",
    ]
    given += ["--batch", "1", "2", "--steps", "4", "--rounds", "1", "--offload-dir", str(tmp_path / "disk")]
    assert main(["compare", *given, "--out", str(tmp_path / "rok")]) == 0
    rows = json.loads((tmp_path / "rok" / "rok.json").read_text())
    assert (tmp_path / "rok" / "rok.png").stat().st_size > 10_000
    assert open_files(tmp_path / "disk") == 0
    assert len(rows) == len(compare.MODELS) * 2 * 4
    by_key = {(found["model"], found["batch"], found["scheme"]): found for found in rows}
    for model in compare.MODELS:
        for batch in (1, 2):
            keep, all_, adaptive, both = (
                by_key[model, batch, scheme]
                for scheme in ("baseline", "offload", "offload-adaptive", "planes+offload")
            )
            assert keep["loss"] == all_["loss"] == adaptive["loss"] != both["loss"]
            assert both["loss"] == pytest.approx(keep["loss"], rel=0.01)
            assert all_["activation_peak_bytes"] < keep["activation_peak_bytes"]
            assert keep["bytes_moved"] == 0
            assert 0 < 2 * both["bytes_written"] < all_["bytes_written"] <= all_["bytes_moved"]
            assert " MB a step; the last sent " in adaptive["offload_plan"]
    assert "t5: a step's activation peak" in capsys.readouterr().out


def test_a_time_is_the_median_of_rounds_that_take_turns(tmp_path, monkeypatch):
    seconds, order = iter([1.0, 2.0, 9.0, 4.0, 3.0, 5.0]), []

    def measure(task, model, scheme, batch):
        order.append(scheme)
        return row(8, next(seconds), batch) | {"model": model, "scheme": scheme, "peak": len(order)}

    monkeypatch.setattr(compare, "measure", measure)
    monkeypatch.setattr(compare, "plot", lambda *_: None)
    monkeypatch.setattr(compare, "table", lambda *_: "")
    rows = compare.compare(compare.Task(rounds=3), ["gpt2"], ["baseline", "planes"], [4], tmp_path)
    assert order == ["baseline", "planes"] * 3
    assert [(found["scheme"], found["seconds_per_step"], found["peak"]) for found in rows] == [
        ("baseline", 3.0, 1),
        ("planes", 4.0, 2),
    ]
    assert json.loads((tmp_path / "rok.json").read_text()) == rows


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--scheme", "zip"], "invalid choice: 'zip'"),
        (["--model", "gpt5"], "invalid choice: 'gpt5'"),
        (["--batch", "0"], "must be a whole number of at least 1, not '0'"),
        (["--offload-amount", "some"], "must be a whole number of at least 0, not 'some'"),
        (["--offload-dir", "/proc/nowhere", "--scheme", "offload", "--model", "t5"], "/proc/nowhere"),
    ],
)
def test_wrong_arguments_are_named(given, message, capsys, tmp_path):
    with pytest.raises(SystemExit):
        main(["compare", "--out", str(tmp_path), *given])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["matplotlib", "transformers"])
def test_what_is_not_installed_is_named_before_anything_is_measured(missing, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(SystemExit) as ended:
        main(["compare", "--out", str(tmp_path)])
    assert ended.value.code == 1
    assert capsys.readouterr().err == f"{missing} is not installed: pip install 'bitstash[train]'\n"


def test_command_lines_start_without_what_only_plots_need():
    code = "import sys; sys.modules.update(matplotlib=None, plotly=None); import torch_bridge.job.cli"
    subprocess.run([sys.executable, "-c", code], check=True)


# Convergence


def result(scheme, seed, loss, model="small"):
    bits = {"baseline": 32.0, "planes 3.2x": 10.0, "recomputed, hadamard 16x": 2.0}[scheme]
    return {
        "model": model,
        "scheme": scheme,
        "bits_per_value": bits,
        "ratio": 32 / bits,
        "seed": seed,
        "steps": rows.STUDIES[model].steps,
        "val_loss": loss,
        "curve": [[10, loss + 1], [20, loss]],
        "gradient_error": [] if scheme == "baseline" else [[10, 0.9], [15, 0.1], [20, 0.2]],
        "effective_bits": None if scheme == "baseline" else 3.5,
    }


ROWS = [
    result("baseline", 1, 2.0),
    result("baseline", 2, 3.0),
    result("planes 3.2x", 1, 2.01),
    result("planes 3.2x", 2, 2.99),
]


EMPTY = "<!-- table -->\n<!-- end -->\n"


def test_differences_are_paired_by_seed():
    middle, half, seeds = page.difference(ROWS[2:], ROWS[:2])
    assert (middle, seeds) == (pytest.approx(0.0), 2)
    # The t distribution with one degree of freedom is Cauchy's.
    assert half == pytest.approx(math.tan(math.pi * 0.475) * 0.01, rel=1e-6)
    middle, half, seeds = page.difference([*ROWS[3:], result("planes 3.2x", 3, 9.0)], ROWS[:2])
    assert (middle, half, seeds) == (pytest.approx(-0.01), math.inf, 1)


def test_a_run_that_diverges_is_kept_and_said():
    lost = result("planes 3.2x", 1, math.inf) | {"effective_bits": None}
    lost["gradient_error"] = [[30, 0.5], [60, math.inf]]
    text = rows.as_json(lost | {"effective_bits": math.nan})
    json.loads(text, parse_constant=lambda name: pytest.fail(f"JSON has no {name}"))
    assert rows.with_infinities(json.loads(text)) == lost
    table = page.table_of([*ROWS[:2], lost], "small")
    assert "| bit-plane format 3.2x | 10 | 3.2x | 1 | diverges |  |  | no | inf |  |" in table


def test_it_goes_on_from_what_is_finished(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("docs").mkdir()
    Path("docs/convergence.md").write_text("before\n" + EMPTY.replace("\n", "\nold\n", 1) + "after\n")
    kept = Path("build/convergence")
    kept.mkdir(parents=True)
    Path("docs/convergence.json").write_text(json.dumps(ROWS[:2]))
    for number, one in enumerate([*ROWS[2:], {**ROWS[0], "steps": 7}]):
        (kept / f"{number}.json").write_text(json.dumps(one))
    (kept / "half.1234").write_text('{"model": "sm')
    (kept / "old.json").write_text(json.dumps({**ROWS[0], "val_loss": 99.0}))
    found = rows.finished()
    assert sorted(found, key=str) == sorted(ROWS, key=str)
    page.document(found)
    assert json.loads(Path("docs/convergence.json").read_text()) == found
    text = Path("docs/convergence.md").read_text()
    assert text.startswith("before\n")
    assert text.endswith("<!-- end -->\nafter\n")
    assert "old" not in text
    line = "| bit-plane format 3.2x | 10 | 3.2x | 2 | 2.5000 | 0.6930 | +0.0000 ± 0.1271 | no | 0.2 | 3.50 |"
    assert line in text


def test_the_page_says_what_its_rows_say():
    committed = [rows.with_infinities(row) for row in json.loads(Path("docs/convergence.json").read_text())]
    text = Path("docs/convergence.md").read_text()
    assert page.progress(committed) in text
    for model in rows.STUDIES:
        if page.by_scheme(committed, model):
            assert page.table_of(committed, model) in text


def test_a_ratio_that_recomputation_makes_is_told_of_fused_gelu_too():
    recomputed = [result("recomputed, hadamard 16x", 1, 2.0) | {"ratio": 28.0}]
    assert "| recomputed, Hadamard 16x | 2 | 28.0x, of fused GELU 16.4x | 1 |" in page.table_of(
        recomputed, "small"
    )


def test_what_no_scheme_is_called_any_more_leaves(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("docs").mkdir()
    Path("docs/convergence.json").write_text(json.dumps([*ROWS, ROWS[0] | {"scheme": "step 8x"}]))
    assert sorted(rows.finished(), key=str) == sorted(ROWS, key=str)


def test_the_picture_has_a_colour_for_each_setting_and_no_wide_intervals(tmp_path):
    committed = [rows.with_infinities(row) for row in json.loads(Path("docs/convergence.json").read_text())]
    lines = page.points(committed)
    assert {setting for _, setting, *_ in lines} <= {*page.SETTINGS}
    assert len(page.SETTINGS) == len(page.COLOURS) <= 5
    assert all(half < page.MOST_HALF for *_, half in lines)
    page.plot(committed, tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("lost", [None, ValueError("no such thing"), KeyboardInterrupt()])
def test_what_one_run_does_is_not_lost_by_another(lost, tmp_path, monkeypatch, capsys):
    ended = []

    def run(model, scheme, seed, threads, device):
        if (scheme, seed) == ("planes 3.2x", 2) and lost is not None:
            raise lost
        ended.append((scheme, seed))
        row = result(scheme, seed, 2.0)
        (kept / f"{scheme}{seed}.json").write_text(rows.as_json(row))
        return row

    def main(rank, status):
        monkeypatch.setenv("RANK", str(rank))
        with pytest.raises(SystemExit) as stop:
            command.main()
        assert stop.value.code == status

    # The same dictionary in every module, whose rows are of this test's own study.
    two = rows.Study("two", ("baseline", "planes 3.2x"), seeds=(1, 2))
    monkeypatch.setitem(rows.STUDIES, "small", two)
    monkeypatch.setattr(command, "run", run)
    monkeypatch.setattr(command, "ProcessPoolExecutor", lambda jobs, *_, **__: ThreadPoolExecutor(jobs))
    monkeypatch.setattr(command.signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["convergence", "--model", "small"])
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.chdir(tmp_path)
    kept = Path("build/convergence")
    kept.mkdir(parents=True)
    Path("docs").mkdir()
    Path("docs/convergence.md").write_text(EMPTY)
    main(0, 0)
    assert ended == [("baseline", 1), ("baseline", 2)]
    main(1, {type(None): 0, ValueError: 1, KeyboardInterrupt: 130}[type(lost)])
    assert ended[2:] == [("planes 3.2x", 1)] + [("planes 3.2x", 2)] * (lost is None)
    printed = capsys.readouterr().err
    assert "small, planes 3.2x, seed 1: 2.0000" in printed
    failed = "small, planes 3.2x, seed 2 failed: ValueError('no such thing')"
    assert (failed in printed) == isinstance(lost, ValueError)
    main(0, 0)
    assert len(json.loads(Path("docs/convergence.json").read_text())) == len(ended)
    assert len(ended) == 3 + (lost is None)


def test_all_schemes_have_the_bits_that_their_names_say():
    for scheme in rows.SCHEMES:
        options = runs.options_of("small", scheme, 1)
        fmt = options.format
        if scheme.endswith("x"):
            assert f"{fmt.original_bytes / fmt.target:.3g}x" == scheme.split()[-1]
        if scheme.startswith("quant"):
            assert f"quant, {options.bits} bits" == scheme
        if scheme.startswith("recompute,") and "boundaries" not in scheme:
            bits, time = f"{8 * fmt.target // fmt.block} bits", options.time
            named = ", ".join(["recompute", bits, *([f"time {time}"] if time else [])])
            assert scheme.replace("calibrated ", "") == named
    assert len(rows.wanted(rows.STUDIES)) == 5 * (15 + 11) + 2 * (5 + 3) + 3 * (7 + 6 + 8 + 8)


def test_products_of_a_processor_without_bf16_are_those_of_fp32_rounded():
    torch.manual_seed(0)
    x, weight = (torch.randn(2, 8, 16).bfloat16().requires_grad_() for _ in range(2))
    with runs.WideProducts():
        product = x @ weight.mT
        mixed = torch.nn.functional.scaled_dot_product_attention(x[None], weight[None], x[None])
        (product.sum() + mixed.sum()).backward()
    assert torch.equal(product, (x.float() @ weight.float().mT).bfloat16())
    y, other = (tensor.detach().float().requires_grad_() for tensor in (x, weight))
    attended = torch.nn.functional.scaled_dot_product_attention(y[None], other[None], y[None])
    ((y @ other.mT).sum() + attended.sum()).backward()
    for narrow, wide in ((mixed, attended), (x.grad, y.grad), (weight.grad, other.grad)):
        assert narrow.dtype == torch.bfloat16
        torch.testing.assert_close(narrow.float(), wide, atol=0.02, rtol=0.02)


def test_calibrated_rates_take_as_many_bytes_as_one_rate(monkeypatch):
    monkeypatch.setattr(runs, "CALIBRATED_AT", 2)
    options = replace(runs.options_of("small", "recomputed, calibrated 16x", 1), batch=1)
    before = torch.random.get_rng_state()
    chosen, default = options.policy, Policy.default(options.format)
    assert torch.equal(torch.random.get_rng_state(), before)
    subject = train.subject_of(options)
    tokens = runs.batch_of(subject, options)
    sizes = [runs.stored_bytes(subject, options, policy, tokens) for policy in (chosen, default)]
    assert 0.75 * sizes[1] < sizes[0] <= 1.01 * sizes[1]
    exact = runs.gradient(subject.model, options, tokens, compress=False)
    errors = []
    for one in (options, replace(runs.options_of("small", "recomputed, hadamard 16x", 1), batch=1)):
        found = runs.gradient(subject.model, one, tokens, compress=True)
        errors.append(float((found - exact).norm()))
    assert errors[0] < errors[1]
