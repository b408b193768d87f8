"""The page of a model's activation memory: what it is made from and says, and that a browser shows it."""

import json
import re
import shutil
from dataclasses import asdict

import pytest
import torch

from golden import HadamardFormat
from torch_bridge import Compressor, Policy, compile
from torch_bridge.job import cli, explain, jobs, train

from .explained import job

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of the small job, budgets included."""
    path = tmp_path_factory.mktemp("page") / "page.html"
    assert cli.main(["explain", "tests.explained:job", "--out", str(path)]) == 0
    return path


def test_a_report_saves_itself_with_every_row_and_the_modules(tmp_path):
    model, batch, loss = job()
    with Compressor(model, HadamardFormat()) as saver:
        loss(model, batch).backward()
    report = saver.report()
    report.save(tmp_path / "new" / "page.html")
    text = (tmp_path / "new" / "page.html").read_text()
    for row in report.rows:
        assert f"<td>{' x '.join(map(str, row.shape)) or 'scalar'}</td>" in text
    assert {row.module for row in report.rows} >= {"0", "1", "2", "3"}
    assert "Where it goes" in text
    assert text.count("Plotly.newPlot(") >= 3


def test_the_page_says_what_was_recomputed_and_what_budgets_cost(page):
    text = page.read_text()
    for words in (
        "recomputed from the rest",
        "One step",
        "backward",
        "gradient error",
        "recomputed",
        "under 1024 values",
    ):
        assert words in text


def test_a_compiled_model_is_explained_as_its_graphs_keep_it(tmp_path, capsys):
    path = tmp_path / "page.html"
    assert cli.main(["explain", "tests.explained:job", "--compiled", "aot_eager", "--out", str(path)]) == 0
    model, batch, loss = job()
    call = compile(model, HadamardFormat(), backend="aot_eager")
    loss(call, batch).backward()
    report, text = call.report(), path.read_text()
    words = f"{report.original_bytes / 1e6:.1f} MB saved, {report.stored_bytes / 1e6:.1f} MB kept"
    assert words in capsys.readouterr().out
    for row in report.rows:
        assert f"<td>{' x '.join(map(str, row.shape)) or 'scalar'}</td>" in text
    assert "Activation memory of tests.explained:job, compiled" in text
    assert "One step" in text
    assert "What less would cost" not in text


def test_a_model_without_a_graph_is_not_explained_as_one_that_saves_nothing(tmp_path, capsys):
    arguments = ["explain", "tests.explained:uncompilable", "--compiled", "aot_eager"]
    with pytest.raises(SystemExit):
        cli.main([*arguments, "--out", str(tmp_path / "page.html")])
    assert "cannot be explained: RuntimeError: there is nothing to report" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


def test_a_job_is_read_from_options_a_hugging_face_config_or_a_function(tmp_path):
    options = asdict(train.Options(batch=2)) | {"data": None, "offload_dir": "x", "train_loss": []}
    (tmp_path / "run.json").write_text(json.dumps(options))
    llama = {"model_type": "llama", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    llama |= {"intermediate_size": 32, "vocab_size": 50, "num_key_value_heads": 2, "pad_token_id": None}
    (tmp_path / "config.json").write_text(json.dumps(llama))
    for what in (
        str(tmp_path / "run.json"),
        str(tmp_path),
        str(tmp_path / "config.json"),
        "tests.explained:job",
    ):
        found = jobs.load(what, batch=3, length=8)
        assert torch.isfinite(found.loss(found.model, found.batch)), what


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("nowhere.json", "there must be a config, or a function as module:name, not 'nowhere.json'"),
        ("tests.explained:nothing", "tests.explained must have a function nothing"),
        ("tests.nothing:job", "No module named 'tests.nothing'"),
        ("tests.explained:needs", "the function tests.explained:needs must take no arguments: missing a"),
        ("tests.explained:raises", "the function tests.explained:raises failed: RuntimeError: no such luck"),
        ("tests.explained:nothing_made", "must return model and batch, and the loss if need be, not None"),
        (
            "tests.explained:no_model",
            "the model that tests.explained:no_model returns must be a module, not 3",
        ),
        ("tests.explained:no_scalar", "no_scalar must be a tensor of one value, not float32[48, 32]"),
        ("tests.explained:frozen", "the loss of tests.explained:frozen must need a gradient: no parameter"),
        ("tests.explained:no_loss", "the output of a model must have a loss, which float32[48, 32] has not"),
        ("tests.explained:wrong", "the forward pass of tests.explained:wrong failed: RuntimeError: mat1 and"),
        ("..:x", "a function must be given as module:name, not '..:x'"),
        ("tests.explained:", "a function must be given as module:name, not 'tests.explained:'"),
        ("{}", "a config must have a model_type, or a config of small"),
        ("{", "a config must be JSON, which '"),
        ('{"config": ["small"]}', "a config must have a model_type, or a config of small"),
        ('{"config": "small", "batch": "x"}', "must be a positive whole number, not 'x'"),
        ('{"config": "small", "dtype": "fp9"}', "must be one of fp32, bf16, fp16, not 'fp9'"),
        ('{"config": "small", "dropout": 1}', "must be a number from 0 to below 1, not 1"),
        ('{"model_type": ["gpt2"]}', "model_type must be one that transformers has, not ['gpt2']"),
        ('{"model_type": "gpt2", "n_embd": "a"}', "transformers takes no such config as "),
        ('{"model_type": "gpt2", "n_embd": 30, "n_head": 4}', "transformers makes no model of "),
        ('{"model_type": "t5"}', "a config with a decoder must have a decoder_start_token_id, which "),
        ('{"model_type": "vit"}', "model_type must be a language model's, not 'vit': give a function"),
    ],
)
def test_what_cannot_be_explained_is_said_in_one_line(what, error, tmp_path, capsys):
    if what.startswith("{"):
        (tmp_path / "config.json").write_text(what)
        what = str(tmp_path)
    with pytest.raises(SystemExit):
        cli.main(["explain", what, "--out", str(tmp_path / "page.html")])
    assert error in re.sub(r"\s+", " ", capsys.readouterr().err)


SHORT = {"model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64, "vocab_size": 100}
# A model of text and pictures, whose sizes are a level below.
GEMMA = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
GEMMA |= {"intermediate_size": 64, "vocab_size": 100, "head_dim": 16, "max_position_embeddings": 96}


@pytest.mark.parametrize(
    ("config", "length"),
    [
        (SHORT, 64),
        (SHORT | {"n_positions": 300}, 128),
        ({"model_type": "gemma3", "text_config": GEMMA, "vision_config": {"num_hidden_layers": 1}}, 96),
    ],
    ids=["short", "long", "gemma3"],
)
def test_a_batch_has_as_many_tokens_as_the_model_has_positions(config, length, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert jobs.load(str(tmp_path)).batch["input_ids"].shape == (4, length)
    positions = 300 if length == 128 else length
    with pytest.raises(ValueError, match=f"at most the model's {positions} positions, not {positions + 1}"):
        jobs.load(str(tmp_path), length=positions + 1)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ("--bits inf", "must be a number of from 1 to 32, not 'inf'"),
        ("--scheme hadamard --bits 4.5", "bits must be at most 4 for hadamard, not 4.5"),
        ("--scheme quant --bits 2.7", "bits must be one of 2, 3, 4, 8, not 2.7"),
    ],
)
def test_bits_that_a_scheme_has_not_are_named(options, error, tmp_path, capsys):
    with pytest.raises(SystemExit):
        cli.main(["explain", "tests.explained:job", *options.split(), "--out", str(tmp_path / "page.html")])
    assert error in capsys.readouterr().err


class Measured:
    """A calibration whose largest budget costs nothing."""

    least, most = 310_000, 4_090_000

    def __init__(self, *given, **more):
        pass

    def policy(self, budget):
        return budget

    def stored_bytes(self, policy):
        return policy

    def error(self, policy):
        return 0.0 if policy == self.most else 1 - policy / self.most


def test_what_costs_nothing_is_in_the_table_but_at_no_place_of_a_logarithm(monkeypatch):
    monkeypatch.setattr(explain, "Calibration", Measured)
    plotted = []
    monkeypatch.setattr(explain.page, "plot", lambda traces, layout: plotted.append(traces[0]) or "")
    shown = explain._budgets(jobs.load("tests.explained:job")).shown
    assert shown.count("<tr>") == 7
    assert '<td class="number">4.09</td><td class="number">0</td>' in shown
    (trace,) = plotted
    assert len(trace["x"]) == len(trace["y"]) == 5
    assert min(trace["y"]) > 0
    assert max(trace["x"]) < 4


@pytest.mark.parametrize(
    ("values", "steps", "names"),
    [
        ([0.31, 2.32], (1, 2, 5), ["0.2", "0.5", "1", "2", "5"]),
        ([6.3e-5, 0.48], (1,), ["1e-05", "0.0001", "0.001", "0.01", "0.1", "1"]),
        ([1.0], (1, 2, 5), ["1", "2"]),
    ],
)
def test_ticks_of_a_logarithm_are_whole_numbers_around_all_values(values, steps, names):
    axis = explain._log_axis(values, steps)
    assert axis["ticktext"] == names
    assert [10**end for end in axis["range"]] == pytest.approx([axis["tickvals"][0], axis["tickvals"][-1]])
    assert axis["tickvals"][0] <= min(values) < max(values) + 1e-9 < axis["tickvals"][-1]


def test_a_compressed_step_keeps_less_alive(page):
    found = jobs.load("tests.explained:job")
    policy = Policy.default(HadamardFormat())
    lines = [explain.peak.timeline(lambda one=one: explain._step(found, one)) for one in (None, policy)]
    assert lines[0].kept > lines[1].kept
    for line in lines:
        x, y = explain._points(line)
        assert x == sorted(x)
        assert max(x) <= 2
        assert max(y) == max(line.live) / 1e6


@pytest.mark.parametrize("width", [1280, 360])
def test_a_browser_shows_the_page_without_a_network(page, width):
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("no browser is installed")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        view = chromium.new_page(viewport={"width": width, "height": 800})
        asked, said = [], []
        view.on("request", lambda request: asked.append(request.url))
        view.on("console", lambda message: said.append(message.text))
        view.on("pageerror", lambda error: said.append(str(error)))
        view.goto(page.as_uri())
        view.locator(".plot .main-svg").nth(9).wait_for(state="attached")
        assert asked == [page.as_uri()]
        assert said == []
        assert view.evaluate("document.documentElement.scrollWidth") == width
        view.keyboard.press("Tab")
        assert view.evaluate("document.activeElement.className") == "scroll"
        if width < 400:  # the last table is wider than the screen: keys move it
            view.locator(".scroll").last.focus()
            view.keyboard.press("ArrowRight")
            view.wait_for_timeout(500)
            assert view.evaluate("document.activeElement.scrollLeft") > 0
        chromium.close()
