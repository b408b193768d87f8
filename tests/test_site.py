"""The site builds without a warning, asks no network for anything, and every page is in its navigation."""

import re
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

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
