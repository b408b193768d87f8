"""What the pages show can be imported, and where they point there is something."""

import importlib
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
OURS = ("bitstash", "golden", "torch_bridge", "gen", "rtl")


def anchor(heading):
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_imports_is_there(page):
    for code in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S):
        for module, names in re.findall(r"^from ([\w.]+) import ([\w, ]+)$", code, re.M):
            if module.partition(".")[0] in OURS:
                found = importlib.import_module(module)
                missing = [
                    name
                    for name in names.split(", ")
                    if not hasattr(found, name) and importlib.util.find_spec(f"{module}.{name}") is None
                ]
                assert missing == [], f"{module} has no {missing}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        path, _, place = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{target} is not there"
        if place:
            headings = re.findall(r"^#+ (.*)$", there.read_text(), re.M)
            assert place in {anchor(heading) for heading in headings}, f"{target} is no heading"


# What stands under a package in CONTRIBUTING.md's table.
IN_PACKAGES = ("", "rtl")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_folders_that_a_page_names_are_there(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    missing = []
    for path in re.findall(
        r"`([\w.-]+/(?:[\w./-]*(?:/|\.(?:py|md|json|png|svg|v|sv|cpp|toml|txt|ya?ml)))?)`", text
    ):
        if path.startswith("build/") or re.search(
            r"\b[A-Z]{2,}\b|_[A-Z]{2,}\b", path
        ):  # made, or a placeholder
            continue
        if not any(
            (folder / path).exists() for folder in (page.parent, *(ROOT / package for package in IN_PACKAGES))
        ):
            missing.append(path)
    assert missing == []
