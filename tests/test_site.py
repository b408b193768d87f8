"""The site builds without a warning, asks no network for anything, and every page is in its navigation."""

import re
import shutil
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from .test_explain import BROWSERS

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True))
    return folder


@pytest.mark.timeout(300)
def test_every_page_is_there(site):
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not (site / page).exists()} == set()


def test_pages_ask_no_network(site):
    for page in site.rglob("*.html"):
        asked = re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?://[^"]+)"', page.read_text())
        assert asked == [], page


def test_links_and_pictures_lead_somewhere(site):
    broken = []
    for page in site.rglob("*.html"):
        if page.name == "404.html":  # it may stand anywhere
            continue
        for target in re.findall(r'(?:href|src)="([^"#?:]+)(?:#[^"]*)?"', page.read_text()):
            if not (page.parent / target).exists():
                broken.append(f"{page.relative_to(site)}: {target}")
    assert broken == []


def test_everything_public_is_in_the_reference(site):
    import bitstash

    text = (site / "reference.html").read_text()
    assert {name for name in bitstash.__all__ if f'.{name}"' not in text} == set()


@pytest.fixture(scope="module")
def chromium():
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("no browser is installed")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_fit_the_screen_and_say_nothing_in_the_console(site, chromium, width, scheme):
    view = chromium.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
    said, asked = [], []
    view.on("console", lambda message: said.append(message.text))
    view.on("pageerror", lambda error: said.append(str(error)))
    view.on("request", lambda request: asked.append(request.url))
    for page in ("index", "choosing", "convergence", "cost", "integration", "hardware", "guides/lora"):
        view.goto((site / f"{page}.html").as_uri())
        assert view.evaluate("document.documentElement.scrollWidth") <= width, page
        kind = view.evaluate("document.body.dataset.mdColorScheme")
        assert kind == {"light": "default", "dark": "slate"}[scheme]
    assert said == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    view.close()


def test_search_finds_without_a_server(site, chromium):
    view = chromium.new_page(viewport={"width": 1280, "height": 844})
    view.goto((site / "guides/lora.html").as_uri())
    view.locator("input[name=query]").click()
    view.keyboard.type("FlashAttention")
    view.locator(".md-search-result__item").first.wait_for()
    assert "kernels.html" in view.locator(".md-search-result").inner_html()
    view.close()
