"""The page of a model's activation memory: what it is made from and says, and that a browser shows it."""

import json
import re
import shutil
from dataclasses import asdict

import pytest
import torch

from golden import HadamardFormat
from torch_bridge import Policy, compress_activations
from torch_bridge.job import cli, explain, train
from torch_bridge.stash.rows import merged

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
    with compress_activations(model, HadamardFormat(), by_module=True) as stash:
        loss(model, batch).backward()
    report = stash.report()
    report.save(tmp_path / "new" / "page.html")
    text = (tmp_path / "new" / "page.html").read_text()
    for row in report.rows:
        assert f"<td>{' x '.join(map(str, row.shape)) or 'scalar'}</td>" in text
    assert {row.module for row in report.rows} >= {"0", "1", "2", "3"}
    assert "Where it goes" in text
    assert text.count("Plotly.newPlot(") >= 3


def test_rows_are_told_apart_by_module_only_when_that_is_asked_for():
    model, batch, loss = job()
    reports = []
    for by_module in (False, True):
        with compress_activations(model, HadamardFormat(), by_module=by_module) as stash:
            loss(model, batch)
        reports.append(stash.report())
    plain, apart = reports
    assert {row.module for row in plain.rows} == {""}
    assert str(apart) == str(plain)
    assert merged(apart.rows) == plain.rows


def test_the_page_says_what_was_derived_and_what_budgets_cost(page):
    text = page.read_text()
    for words in ("computed anew", "One step", "backward", "gradient error", "derived", "under 1024 values"):
        assert words in text


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
        found = explain.load(what, batch=3, length=8)
        assert torch.isfinite(found.loss(found.model, found.batch)), what


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("nowhere.json", "there must be a config, or a function as module:name, not 'nowhere.json'"),
        ("tests.explained:nothing", "tests.explained must have a function nothing"),
        ("tests.nothing:job", "No module named 'tests.nothing'"),
        ("{}", "a config must have a model_type, or a config of small"),
        ('{"model_type": "vit"}', "model_type must be a language model's, not 'vit': give a function"),
    ],
)
def test_what_cannot_be_explained_is_said(what, error, tmp_path, capsys):
    if what.startswith("{"):
        (tmp_path / "config.json").write_text(what)
        what = str(tmp_path)
    with pytest.raises(SystemExit):
        cli.main(["explain", what, "--out", str(tmp_path / "page.html")])
    assert error in re.sub(r"\s+", " ", capsys.readouterr().err)


def test_a_step_of_a_stash_keeps_less_alive(page):
    found = explain.load("tests.explained:job")
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
